//! Counts jobs that died per queue since the last report. Pure. It costs nothing per job: the
//! queues count their deaths anyway.

use std::time::{Duration, Instant};

use longshore_protocol::Path;

/// The shortest time between two reports: a bad release may kill a million jobs.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Queues named per report; deaths in other queues are one number.
const QUEUES_NAMED_MAX: usize = 10;

/// What has been reported so far.
#[derive(Debug, Default)]
pub(crate) struct DeathReporter {
    /// By the queue's number.
    reported: Vec<u64>,
    /// The time and the last command of the last report; none before the first check.
    last_check: Option<(Instant, u64)>,
}

/// Deaths since the last report.
#[derive(PartialEq, Eq, Debug, Default)]
pub(crate) struct NewDeaths<'a> {
    /// Queues, with the number of deaths in each.
    pub(crate) named: Vec<(&'a Path, u64)>,
    /// Deaths in queues that are not named.
    pub(crate) others: u64,
    /// When to check again without a new command; none if nothing is unreported.
    pub(crate) next_check: Option<Instant>,
}

impl DeathReporter {
    /// Returns the new deaths, unless the last report is too recent. `deaths` are the totals of all
    /// queues, in the order of their numbers, up to the command at `index`.
    pub(crate) fn poll<'a>(
        &mut self,
        now: Instant,
        index: u64,
        deaths: impl Iterator<Item = (&'a Path, u64)>,
    ) -> NewDeaths<'a> {
        let mut died = NewDeaths::default();
        let Some((at, seen)) = self.last_check else {
            // Deaths before this start were reported by the earlier run.
            self.reported.extend(deaths.map(|(_, ever)| ever));
            self.last_check = Some((now, index));
            return died;
        };
        if seen == index {
            return died;
        }
        if now.saturating_duration_since(at) < REPORT_INTERVAL {
            died.next_check = Some(at + REPORT_INTERVAL);
            return died;
        }
        self.last_check = Some((now, index));
        for (number, (path, ever)) in deaths.enumerate() {
            if number == self.reported.len() {
                self.reported.push(0);
            }
            match ever - std::mem::replace(&mut self.reported[number], ever) {
                0 => {}
                jobs if died.named.len() < QUEUES_NAMED_MAX => died.named.push((path, jobs)),
                jobs => died.others += jobs,
            }
        }
        died
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deaths_are_reported_per_queue_and_once() {
        let paths: Vec<Path> = (0..20).map(|n| Path::new(&format!("/jobs/{n}")).unwrap()).collect();
        let of = |ever: &[u64]| -> Vec<(&Path, u64)> { paths.iter().zip(ever.to_vec()).collect() };
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut deaths = DeathReporter::default();
        let mut poll = |ms, index, ever: &[u64]| deaths.poll(at(ms), index, of(ever).into_iter());
        assert_eq!(poll(0, 1, &[7]), NewDeaths::default(), "those of the runs before");
        let later = NewDeaths { next_check: Some(at(1_000)), ..NewDeaths::default() };
        assert_eq!(poll(10, 2, &[8, 1]), later, "not one by one");
        let died = poll(1_000, 3, &[10, 2]);
        assert_eq!(died.named, [(&paths[0], 3), (&paths[1], 2)]);
        assert_eq!(poll(5_000, 3, &[10, 2]), NewDeaths::default(), "nothing has happened");
        assert_eq!(poll(5_000, 4, &[10, 2]), NewDeaths::default(), "nothing has died");
        let many = poll(9_000, 5, &[20; 20]);
        assert_eq!((many.named.len(), many.others), (QUEUES_NAMED_MAX, 10 * 20));
    }
}
