//! What was measured, and how the sides compare.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use serde_json::{Value, json};

use super::work::{PATHS, SINGLES_PER_S, Work};
use crate::machine::{QUIET_PERCENT, cores};
use crate::numbers::{grouped, median, rounded};
use crate::side::Side;

/// What one round of one side has come to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Figures {
    pub(super) updates_per_s: f64,
    /// Processor time of each side for one update.
    pub(super) publisher_cpu_ns: f64,
    pub(super) subscriber_cpu_ns: f64,
    /// From the moment that a single update should be made until its subscriber's program has it.
    pub(super) latency_p50_us: f64,
    pub(super) latency_p99_us: f64,
    /// How much of the machine's processor time others had while the updates went through.
    pub(super) others_percent: f64,
}

/// One of the figures.
struct Row {
    key: &'static str,
    name: &'static str,
    more_is_better: bool,
    of: fn(&Figures) -> f64,
}

const ROWS: [Row; 5] = [
    Row { key: "updates_per_s", name: "updates/s", more_is_better: true, of: |f| f.updates_per_s },
    Row::time("publisher_cpu_ns", "  ns of CPU, publisher", |f| f.publisher_cpu_ns),
    Row::time("subscriber_cpu_ns", "  ns of CPU, subscriber", |f| f.subscriber_cpu_ns),
    Row::time("latency_p50_us", "one update, µs, p50", |f| f.latency_p50_us),
    Row::time("latency_p99_us", "  p99", |f| f.latency_p99_us),
];

impl Row {
    const fn time(key: &'static str, name: &'static str, of: fn(&Figures) -> f64) -> Row {
        Row { key, name, more_is_better: false, of }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figure = |row: &Row| format!("{} {}", grouped((row.of)(self)), row.name.trim());
        f.write_str(&ROWS.iter().map(figure).collect::<Vec<_>>().join(", "))?;
        write!(f, ", others had {:.0} % of the processors", self.others_percent)
    }
}

/// All rounds of both sides.
pub(super) struct Comparison {
    work: Work,
    rounds: BTreeMap<Side, Vec<Figures>>,
}

impl Comparison {
    pub(super) fn new(work: &Work) -> Comparison {
        Comparison { work: work.clone(), rounds: BTreeMap::new() }
    }

    pub(super) fn add(&mut self, side: Side, figures: Figures) {
        self.rounds.entry(side).or_default().push(figures);
    }

    fn all(&self, side: Side, of: fn(&Figures) -> f64) -> Vec<f64> {
        self.rounds.get(&side).into_iter().flatten().map(of).collect()
    }

    fn count(&self) -> usize {
        self.rounds.values().map(Vec::len).min().unwrap_or(0)
    }

    /// How many times better Longshore's median is, and how it ranges when each round is compared with its neighbour.
    fn ratio(&self, row: &Row) -> (f64, f64, f64) {
        let (ours, theirs) = (self.all(Side::Longshore, row.of), self.all(Side::Netidx, row.of));
        let better = |ours: f64, theirs: f64| match row.more_is_better {
            true => ours / theirs,
            false => theirs / ours,
        };
        let pairs: Vec<f64> = ours.iter().zip(&theirs).map(|(o, t)| better(*o, *t)).collect();
        let least = pairs.iter().copied().fold(f64::INFINITY, f64::min);
        let most = pairs.iter().copied().fold(0.0, f64::max);
        (better(median(ours), median(theirs)), least, most)
    }

    /// One object; the ratios say how many times better Longshore is.
    pub(super) fn json(&self) -> Value {
        let side = |side, commit: usize| {
            let medians = ROWS.map(|row| (row.key, rounded(median(self.all(side, row.of)))));
            let rounds = ROWS.map(|row| {
                (row.key, self.all(side, row.of).into_iter().map(rounded).collect::<Vec<_>>())
            });
            let mut object = json!(BTreeMap::from(medians));
            object["rounds"] = json!(BTreeMap::from(rounds));
            object["others_percent"] = json!(rounded(median(self.all(side, |f| f.others_percent))));
            object["updates_per_commit"] = json!(commit);
            object
        };
        let ratios = ROWS.map(|row| (row.key, rounded(self.ratio(&row).0)));
        let mut netidx = side(Side::Netidx, self.work.commits.netidx);
        netidx["version"] = json!("0.32.0");
        json!({
            "measure": "values",
            "cores": cores(),
            "paths": PATHS,
            "size": self.work.size,
            "updates": self.work.updates,
            "offered_per_s": SINGLES_PER_S,
            "rounds": self.count(),
            "netidx": netidx,
            "longshore": side(Side::Longshore, self.work.commits.longshore),
            "times_better": BTreeMap::from(ratios),
        })
    }

    /// A table of medians for people.
    pub(super) fn table(&self) -> String {
        let mut table = format!(
            "{} updates of {} bytes, medians of {} rounds\n{:<24}{:>14}{:>14}{:>14}  each round\n",
            grouped(self.work.updates as f64),
            self.work.size,
            self.count(),
            "",
            "netidx 0.32.0",
            "longshore",
            "times better",
        );
        for row in ROWS {
            let name = row.name;
            let of_side = |side| grouped(median(self.all(side, row.of)));
            let (ratio, least, most) = self.ratio(&row);
            let (theirs, ours) = (of_side(Side::Netidx), of_side(Side::Longshore));
            // Writing into a string does not fail.
            let _ = writeln!(
                table,
                "{name:<24}{theirs:>14}{ours:>14}{ratio:>14.2}  {least:.2}–{most:.2}"
            );
        }
        let others = |side| median(self.all(side, |f| f.others_percent));
        let (theirs, ours) = (others(Side::Netidx), others(Side::Longshore));
        if theirs.max(ours) > QUIET_PERCENT {
            let _ = writeln!(
                table,
                "\nThe machine was not quiet: others had {theirs:.0} % of its processor time beside netidx, {ours:.0} % beside \
                 Longshore.\nSpeeds, and their ratios, are of little worth then; the CPU time is of more."
            );
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::asked::Asked;

    fn figures(speed: f64, latency: f64) -> Figures {
        Figures {
            updates_per_s: speed,
            publisher_cpu_ns: 1e9 / speed,
            subscriber_cpu_ns: 1e9 / speed,
            latency_p50_us: latency,
            latency_p99_us: latency,
            others_percent: 0.0,
        }
    }

    #[test]
    fn ratios_are_of_medians_and_say_how_many_times_better_longshore_is() {
        let mut comparison = Comparison::new(&Asked::parse(&[]).unwrap().works[0]);
        for (theirs, ours) in [(100.0, 200.0), (50.0, 300.0), (110.0, 250.0)] {
            comparison.add(Side::Netidx, figures(theirs, 400.0));
            comparison.add(Side::Longshore, figures(ours, 100.0));
        }
        let json = comparison.json();
        assert_eq!(json["netidx"]["updates_per_s"], 100.0);
        assert_eq!(json["times_better"]["updates_per_s"], 2.5);
        assert_eq!(json["times_better"]["latency_p50_us"], 4.0);
        assert_eq!(comparison.ratio(&ROWS[0]), (2.5, 2.0, 6.0));
        assert!(!comparison.table().contains("not quiet"));
        for _ in 0..4 {
            comparison.add(Side::Netidx, Figures { others_percent: 60.0, ..figures(1.0, 1.0) });
        }
        assert!(comparison.table().contains("others had 60 %"));
    }
}
