//! Withdraws idle queues from the directory. While a queue that a default made has jobs, clients
//! find it by its own path; otherwise by the default's path. So a publisher that has served a
//! million short-lived queues does not leave a million paths in the directory.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use longshore_protocol::Path;
use longshore_queue::{QueueId, QueueUse};

/// Queues per scan step: some 50 µs.
pub(crate) const SCAN_BATCH: usize = 1_024;
/// The pause between two scan steps.
const SCAN_PAUSE: Duration = Duration::from_millis(100);
/// Scans of all queues within the idle time.
const SCANS_PER_PERIOD: u32 = 4;

/// The queues that are not published because they are empty. Pure: its inputs are the time and the
/// number of jobs of each queue.
#[derive(Debug)]
pub(crate) struct IdleQueues {
    /// How long a queue has to be empty.
    after: Duration,
    /// Configured by name: published even when empty.
    named: HashSet<Path>,
    /// Empty queues: how many jobs they had accepted by then, and since when they are empty.
    empty: HashMap<QueueId, (u64, Instant)>,
    withdrawn: HashSet<QueueId>,
    /// Where the next scan begins.
    cursor: u32,
    scan_at: Instant,
}

impl IdleQueues {
    /// A queue is idle once it has been empty for `after`.
    pub(crate) fn after(now: Instant, after: Duration, named: HashSet<Path>) -> IdleQueues {
        IdleQueues {
            after,
            named,
            empty: HashMap::new(),
            withdrawn: HashSet::new(),
            cursor: 0,
            scan_at: now + after / SCANS_PER_PERIOD,
        }
    }

    /// The first queue to scan, if a scan step is pending.
    pub(crate) fn scan_from(&self, now: Instant) -> Option<QueueId> {
        (self.scan_at <= now).then_some(QueueId(self.cursor))
    }

    /// The time of the next scan step.
    pub(crate) fn next(&self) -> Instant {
        self.scan_at
    }

    /// Scans the next queues, at most [`SCAN_BATCH`]; returns the paths to unpublish.
    pub(crate) fn scan<'a>(
        &mut self,
        now: Instant,
        queues: impl Iterator<Item = QueueUse<'a>>,
    ) -> Vec<Path> {
        let (mut idle, mut seen) = (Vec::new(), 0);
        for QueueUse { queue, path, jobs, enqueued } in queues.take(SCAN_BATCH) {
            seen += 1;
            self.cursor = queue.0 + 1;
            if jobs > 0 || self.named.contains(path) || self.withdrawn.contains(&queue) {
                self.empty.remove(&queue);
                continue;
            }
            let (accepted, since) = self.empty.entry(queue).or_insert((enqueued, now));
            if *accepted != enqueued {
                (*accepted, *since) = (enqueued, now);
            }
            if now.saturating_duration_since(*since) >= self.after {
                self.empty.remove(&queue);
                self.withdrawn.insert(queue);
                idle.push(path.clone());
            }
        }
        if seen < SCAN_BATCH {
            self.cursor = 0;
            self.scan_at = now + self.after / SCANS_PER_PERIOD;
        } else {
            self.scan_at = now + SCAN_PAUSE;
        }
        idle
    }

    /// A job was added to an empty queue; true if the queue has to be published again.
    pub(crate) fn job_added(&mut self, queue: QueueId) -> bool {
        !self.withdrawn.is_empty() && self.withdrawn.remove(&queue)
    }

    /// Every queue was published again, with or without jobs.
    pub(crate) fn reset(&mut self) {
        self.withdrawn.clear();
        self.empty.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: Duration = Duration::from_secs(120);

    struct IdleScan {
        start: Instant,
        idle: IdleQueues,
        paths: Vec<Path>,
        /// Jobs in each queue, and jobs accepted ever.
        uses: Vec<(u64, u64)>,
    }

    impl IdleScan {
        fn of(queues: usize) -> IdleScan {
            let start = Instant::now();
            let paths: Vec<Path> =
                (0..queues).map(|n| Path::new(&format!("/q/{n}")).unwrap()).collect();
            let named = paths.first().cloned().into_iter().collect();
            let idle = IdleQueues::after(start, AFTER, named);
            IdleScan { start, idle, paths, uses: vec![(0, 0); queues] }
        }

        /// Runs the scan steps until `seconds`; returns when each queue was withdrawn, in seconds.
        fn until(&mut self, seconds: u64) -> Vec<(f64, Path)> {
            let end = self.start + Duration::from_secs(seconds);
            let mut withdrawn = Vec::new();
            while self.idle.next() <= end {
                let now = self.idle.next();
                let from = self.idle.scan_from(now).unwrap();
                let queues = (from.0 as usize..self.paths.len()).map(|n| QueueUse {
                    queue: QueueId(n as u32),
                    path: &self.paths[n],
                    jobs: self.uses[n].0,
                    enqueued: self.uses[n].1,
                });
                let seconds = (now - self.start).as_secs_f64();
                withdrawn.extend(self.idle.scan(now, queues).into_iter().map(|p| (seconds, p)));
            }
            withdrawn
        }
    }

    #[test]
    fn queue_empty_and_untouched_for_long_enough_is_withdrawn_once() {
        let mut scan_run = IdleScan::of(4);
        scan_run.uses[2] = (1, 1);
        // First seen empty at 30 s.
        assert_eq!(scan_run.until(149), []);
        // A job came and went between two scans.
        scan_run.uses[3] = (0, 1);
        let path = |n: usize| Path::new(&format!("/q/{n}")).unwrap();
        assert_eq!(scan_run.until(269), [(150.0, path(1))]);
        assert_eq!(
            scan_run.until(1_000),
            [(270.0, path(3))],
            "counted again; the named and the full queue stay"
        );
        scan_run.uses[2] = (0, 1);
        assert_eq!(scan_run.until(2_000).len(), 1);
        assert!(scan_run.idle.empty.is_empty());
    }

    #[test]
    fn queue_that_fills_is_published_and_may_become_idle_again() {
        let mut scan_run = IdleScan::of(2);
        assert_eq!(scan_run.until(150).len(), 1);
        assert!(!scan_run.idle.job_added(QueueId(0)), "it was never withdrawn");
        assert!(scan_run.idle.job_added(QueueId(1)));
        assert!(!scan_run.idle.job_added(QueueId(1)), "once");
        scan_run.uses[1] = (0, 1);
        assert_eq!(scan_run.until(1_000).len(), 1);
        scan_run.idle.reset();
        assert!(!scan_run.idle.job_added(QueueId(1)));
        assert_eq!(scan_run.until(2_000).len(), 1);
    }

    #[test]
    fn many_queues_are_scanned_in_batches() {
        let mut scan_run = IdleScan::of(5 * SCAN_BATCH / 2);
        let withdrawn = scan_run.until(600);
        assert_eq!(withdrawn.len(), scan_run.paths.len() - 1, "all but the named one");
        let mut scans = withdrawn.chunk_by(|a, b| a.0 == b.0).map(|scan| (scan[0].0, scan.len()));
        let [first, second, third] = [(); 3].map(|()| scans.next().unwrap());
        assert_eq!([first.1, second.1, third.1], [SCAN_BATCH - 1, SCAN_BATCH, SCAN_BATCH / 2]);
        let apart = [second.0 - first.0, third.0 - second.0];
        assert!(
            apart.iter().all(|apart| (apart - SCAN_PAUSE.as_secs_f64()).abs() < 1e-6),
            "{apart:?}"
        );
        assert_eq!(scans.next(), None);
    }
}
