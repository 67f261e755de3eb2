//! Checks of negative answers. A replica that a publisher cannot reach does not know its paths, so
//! before a client reports that a path has no publisher, it asks all replicas.

use std::time::{Duration, Instant};

use longshore_protocol::Path;
use longshore_protocol::limits::{RESOLVER_BATCH_BYTES_MAX, RESOLVER_BATCH_PATHS_MAX};
use parking_lot::Mutex;

use super::answer::{PathAnswer, Resolution};

/// The time between two checks, as each makes a link to each replica. It doubles up to `reader_ttl`
/// while checks find nothing: a client may ask for years for what does not exist.
const CHECK_EVERY_MIN: Duration = Duration::from_secs(5);

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
    /// True if a check may begin now; it counts as one that finds nothing.
    pub(super) fn begin(&self, now: Instant, reader_ttl: Duration) -> bool {
        let mut next = self.0.lock();
        if next.at.is_some_and(|at| now < at) {
            return false;
        }
        let wait = CHECK_EVERY_MIN.saturating_mul(1 << next.failures.min(16));
        next.at = Some(now + wait.min(reader_ttl));
        next.failures += 1;
        true
    }

    /// A check found something: the next negative answer is checked, too.
    pub(super) fn found(&self) {
        *self.0.lock() = Next::default();
    }
}

/// The indices of the paths that were not found, as many as one request may have; none if replicas
/// warm, of which all were asked.
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

/// Merges another replica's answers to the missing paths. True if it knows one.
pub(super) fn merge(resolution: &mut Resolution, missing: &[usize], other: Resolution) -> bool {
    let mut found = false;
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
        schedule.found();
        let begun: Vec<u64> = (300..320).filter(|&second| begins(second)).collect();
        assert_eq!(begun, [300, 305, 315]);
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
