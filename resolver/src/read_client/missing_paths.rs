//! Checks of negative answers. A replica that a publisher cannot reach does not know its paths, so
//! before a client reports that a path has no publisher, it asks all replicas, at intervals.

use std::time::{Duration, Instant};

use longshore_protocol::Path;
use longshore_protocol::limits::{RESOLVER_BATCH_BYTES_MAX, RESOLVER_BATCH_PATHS_MAX};
use parking_lot::Mutex;

use super::answer::{PathAnswer, Resolution};

/// The time between two checks, as each makes a link to each replica.
const INTERVAL_MIN: Duration = Duration::from_secs(1);
/// The same after a check that finds nothing. It doubles with each, up to `reader_ttl`: a client
/// may ask for years for what does not exist.
const INTERVAL: Duration = Duration::from_secs(5);

/// The longest that a check delays an answer.
pub(super) const CHECK_WAIT: Duration = Duration::from_secs(2);

/// When a client may check next.
#[derive(Default, Debug)]
pub(super) struct CheckSchedule(Mutex<Next>);

#[derive(Default, Debug)]
struct Next {
    at: Option<Instant>,
    /// Checks in a row that found nothing.
    failures: u32,
}

impl CheckSchedule {
    /// True if a check may begin now. It counts as one that finds nothing until [`Self::found`].
    pub(super) fn begin(&self, now: Instant, reader_ttl: Duration) -> bool {
        let mut next = self.0.lock();
        if next.at.is_some_and(|at| now < at) {
            return false;
        }
        let wait = INTERVAL.saturating_mul(1 << next.failures.min(16));
        next.at = Some(now + wait.min(reader_ttl));
        next.failures += 1;
        true
    }

    /// A check found something.
    pub(super) fn found(&self, now: Instant) {
        *self.0.lock() = Next { at: Some(now + INTERVAL_MIN), failures: 0 };
    }
}

/// The indices of the paths that were not found, as many as one request may have. None if the
/// answer is incomplete: then all replicas were asked.
pub(super) fn missing(paths: &[Path], resolution: &Resolution) -> Vec<usize> {
    let not_found = |&index: &usize| resolution.answers[index] == PathAnswer::NotFound;
    let mut bytes = 0;
    let fits = |&index: &usize| {
        bytes += paths[index].as_str().len();
        bytes <= RESOLVER_BATCH_BYTES_MAX
    };
    let all = 0..if resolution.complete { resolution.answers.len().min(paths.len()) } else { 0 };
    all.filter(not_found).take(RESOLVER_BATCH_PATHS_MAX).take_while(fits).collect()
}

/// Merges another replica's answers to the missing paths, unless that replica is warming: it may
/// not know all publishers of a path. True if it knows one of the paths.
pub(super) fn merge(resolution: &mut Resolution, missing: &[usize], other: Resolution) -> bool {
    let mut found = false;
    if !other.complete || other.answers.len() != missing.len() {
        return found;
    }
    for (&index, answer) in missing.iter().zip(other.answers) {
        found |= matches!(answer, PathAnswer::Publishers { .. });
        let before = std::mem::replace(&mut resolution.answers[index], PathAnswer::NotFound);
        resolution.answers[index] = before.better(answer);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_that_find_nothing_become_rarer() {
        let (schedule, start) = (CheckSchedule::default(), Instant::now());
        let begins = |second: u64| {
            schedule.begin(start + Duration::from_secs(second), Duration::from_secs(60))
        };
        let begun: Vec<u64> = (0..300).filter(|&second| begins(second)).collect();
        assert_eq!(begun, [0, 5, 15, 35, 75, 135, 195, 255]);
        schedule.found(start + Duration::from_secs(300));
        let begun: Vec<u64> = (300..320).filter(|&second| begins(second)).collect();
        assert_eq!(begun, [301, 306, 316]);
    }

    #[test]
    fn answers_of_a_warming_replica_are_not_merged() {
        let answer = |complete| {
            let by_default =
                PathAnswer::Publishers { set: [].into(), by_default: true, fallback: None };
            Resolution { complete, answers: vec![by_default] }
        };
        let mut resolution = Resolution { complete: true, answers: vec![PathAnswer::NotFound; 2] };
        assert!(!merge(&mut resolution, &[1], answer(false)));
        assert!(!merge(&mut resolution, &[0, 1], answer(true)), "an answer is missing");
        assert_eq!(resolution.answers, [PathAnswer::NotFound, PathAnswer::NotFound]);
        assert!(merge(&mut resolution, &[1], answer(true)));
        assert!(matches!(resolution.answers[1], PathAnswer::Publishers { .. }));
    }

    #[test]
    fn only_what_fits_one_request_is_checked() {
        let paths: Vec<Path> = (0..RESOLVER_BATCH_PATHS_MAX + 2)
            .map(|n| Path::new(&format!("/{n}")).unwrap())
            .collect();
        let answers = vec![PathAnswer::NotFound; paths.len()];
        let mut resolution = Resolution { complete: true, answers };
        resolution.answers[1] = PathAnswer::Refused(String::from("why"));
        let indices = missing(&paths, &resolution);
        assert_eq!(indices.len(), RESOLVER_BATCH_PATHS_MAX);
        assert_eq!(indices[..3], [0, 2, 3]);
        let long = format!("/{}", "a".repeat(200)).repeat(4);
        let paths = vec![Path::new(&long).unwrap(); 2_000];
        let resolution =
            Resolution { complete: true, answers: vec![PathAnswer::NotFound; paths.len()] };
        assert_eq!(missing(&paths, &resolution).len(), RESOLVER_BATCH_BYTES_MAX / long.len());
        assert!(missing(&paths, &Resolution { complete: false, ..resolution }).is_empty());
    }
}
