//! The report of a test run: which tests ran, how long each took, and which failed.

use std::time::Duration;

/// The tests of one run.
#[derive(Default)]
pub(crate) struct Report {
    /// Slowest first.
    tests: Vec<(String, Duration)>,
    failed: Vec<String>,
}

impl Report {
    /// Parses nextest's JUnit file, which has one element per line.
    pub(crate) fn parse(xml: &str) -> Report {
        let mut report = Report::default();
        for line in xml.lines().map(str::trim_start) {
            if let Some(test) = test_of(line) {
                report.tests.push(test);
            } else if line.starts_with("<failure")
                && let Some((name, _)) = report.tests.last()
            {
                report.failed.push(name.clone());
            }
        }
        report.tests.sort_by_key(|test| std::cmp::Reverse(test.1));
        report
    }

    pub(crate) fn slowest(&self, most: usize) -> &[(String, Duration)] {
        &self.tests[..most.min(self.tests.len())]
    }

    pub(crate) fn failed(&self) -> &[String] {
        &self.failed
    }

    pub(crate) fn passed(&self) -> usize {
        self.tests.len() - self.failed.len()
    }
}

/// The name and duration of a `testcase` element.
fn test_of(line: &str) -> Option<(String, Duration)> {
    let element = line.strip_prefix("<testcase ")?;
    let value = |name: &str| {
        let from = element.split_once(&format!(" {name}=\""));
        let from = from.or_else(|| element.split_once(&format!("{name}=\"")))?.1;
        Some(from.split_once('"')?.0)
    };
    let time = Duration::try_from_secs_f64(value("time")?.parse().ok()?).ok()?;
    Some((format!("{} {}", value("classname")?, value("name")?), time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_sorted_by_time_and_failures_counted() {
        let xml = r#"<testsuites name="run" tests="2" time="3.0">
    <testsuite name="a" tests="2">
        <testcase name="one" classname="a" timestamp="t" time="0.250">
        </testcase>
        <testcase name="two::three" classname="b::c" timestamp="t" time="2.000">
            <failure message="x" type="test failure">thread</failure>
        </testcase>"#;
        let report = Report::parse(xml);
        assert_eq!(report.passed(), 1);
        assert_eq!(report.failed(), ["b::c two::three"]);
        let slowest = ("b::c two::three".to_owned(), Duration::from_secs(2));
        assert_eq!(report.slowest(1), [slowest]);
        assert_eq!(Report::parse("").slowest(20), []);
    }
}
