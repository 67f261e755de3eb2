//! Queues that a default made are found by their own paths while there is anything in them, and by
//! the default's path otherwise: a publisher that has served a million short-lived queues does not
//! stay in the directory with a million paths.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use longshore_protocol::Path;
use longshore_queue::{QueueId, QueueUse};

/// Queues looked at in one go: some 50 µs.
pub(crate) const LOOKED_AT_ONCE: usize = 1_024;
/// Between two such looks.
const STEP: Duration = Duration::from_millis(100);
/// All queues are looked at this often in the time that makes one idle.
const ROUNDS: u32 = 4;

/// Which queues are not published, because nothing is in them. Pure: it is told the time and what
/// it is in each queue.
#[derive(Debug)]
pub(crate) struct IdleQueues {
    /// How long a queue has to be empty.
    after: Duration,
    /// Served by name: published whatever is in them.
    named: HashSet<Path>,
    /// Empty ones: how many jobs they had taken by then, and since when.
    empty: HashMap<QueueId, (u64, Instant)>,
    withdrawn: HashSet<QueueId>,
    /// Where the next look begins.
    cursor: u32,
    look_at: Instant,
}

impl IdleQueues {
    /// A queue is idle once it has been empty for so long.
    pub(crate) fn after(now: Instant, after: Duration, named: HashSet<Path>) -> IdleQueues {
        IdleQueues {
            after,
            named,
            empty: HashMap::new(),
            withdrawn: HashSet::new(),
            cursor: 0,
            look_at: now + after / ROUNDS,
        }
    }

    /// The first queue to look at, if it is time to.
    pub(crate) fn due(&self, now: Instant) -> Option<QueueId> {
        (self.look_at <= now).then_some(QueueId(self.cursor))
    }

    /// When to look again.
    pub(crate) fn next(&self) -> Instant {
        self.look_at
    }

    /// Looks at the next queues, at most [`LOOKED_AT_ONCE`]; gives those that are to be
    /// unpublished.
    pub(crate) fn look<'a>(
        &mut self,
        now: Instant,
        queues: impl Iterator<Item = QueueUse<'a>>,
    ) -> Vec<Path> {
        let (mut idle, mut seen) = (Vec::new(), 0);
        for QueueUse { queue, path, jobs, enqueued } in queues.take(LOOKED_AT_ONCE) {
            seen += 1;
            self.cursor = queue.0 + 1;
            if jobs > 0 || self.named.contains(path) || self.withdrawn.contains(&queue) {
                self.empty.remove(&queue);
                continue;
            }
            let (taken, since) = self.empty.entry(queue).or_insert((enqueued, now));
            if *taken != enqueued {
                (*taken, *since) = (enqueued, now);
            }
            if now.saturating_duration_since(*since) >= self.after {
                self.empty.remove(&queue);
                self.withdrawn.insert(queue);
                idle.push(path.clone());
            }
        }
        if seen < LOOKED_AT_ONCE {
            self.cursor = 0;
            self.look_at = now + self.after / ROUNDS;
        } else {
            self.look_at = now + STEP;
        }
        idle
    }

    /// A job has come into an empty queue; true if that has to be published again.
    pub(crate) fn filled(&mut self, queue: QueueId) -> bool {
        !self.withdrawn.is_empty() && self.withdrawn.remove(&queue)
    }

    /// Every queue is published again, whatever is in it.
    pub(crate) fn all_published(&mut self) {
        self.withdrawn.clear();
        self.empty.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: Duration = Duration::from_secs(120);

    struct Scenario {
        start: Instant,
        idle: IdleQueues,
        paths: Vec<Path>,
        /// Jobs in each queue, and taken ever.
        uses: Vec<(u64, u64)>,
    }

    impl Scenario {
        fn of(queues: usize) -> Scenario {
            let start = Instant::now();
            let paths: Vec<Path> =
                (0..queues).map(|n| Path::new(&format!("/q/{n}")).unwrap()).collect();
            let named = paths.first().cloned().into_iter().collect();
            let idle = IdleQueues::after(start, AFTER, named);
            Scenario { start, idle, paths, uses: vec![(0, 0); queues] }
        }

        /// Lets it look whenever it wants to, until then; when each queue was withdrawn, in
        /// seconds.
        fn until(&mut self, seconds: u64) -> Vec<(f64, Path)> {
            let end = self.start + Duration::from_secs(seconds);
            let mut withdrawn = Vec::new();
            while self.idle.next() <= end {
                let now = self.idle.next();
                let from = self.idle.due(now).unwrap();
                let queues = (from.0 as usize..self.paths.len()).map(|n| QueueUse {
                    queue: QueueId(n as u32),
                    path: &self.paths[n],
                    jobs: self.uses[n].0,
                    enqueued: self.uses[n].1,
                });
                let seconds = (now - self.start).as_secs_f64();
                withdrawn.extend(self.idle.look(now, queues).into_iter().map(|p| (seconds, p)));
            }
            withdrawn
        }
    }

    #[test]
    fn a_queue_that_was_empty_and_untouched_for_long_enough_is_withdrawn_once() {
        let mut scenario = Scenario::of(4);
        scenario.uses[2] = (1, 1);
        // Seen empty at 30 s for the first time.
        assert_eq!(scenario.until(149), []);
        // A job has come and gone between two looks.
        scenario.uses[3] = (0, 1);
        let path = |n: usize| Path::new(&format!("/q/{n}")).unwrap();
        assert_eq!(scenario.until(269), [(150.0, path(1))]);
        assert_eq!(
            scenario.until(1_000),
            [(270.0, path(3))],
            "counted anew; neither named nor full"
        );
        scenario.uses[2] = (0, 1);
        assert_eq!(scenario.until(2_000).len(), 1);
        assert!(scenario.idle.empty.is_empty());
    }

    #[test]
    fn one_that_fills_is_published_again_and_may_become_idle_again() {
        let mut scenario = Scenario::of(2);
        assert_eq!(scenario.until(150).len(), 1);
        assert!(!scenario.idle.filled(QueueId(0)), "it was never withdrawn");
        assert!(scenario.idle.filled(QueueId(1)));
        assert!(!scenario.idle.filled(QueueId(1)), "once");
        scenario.uses[1] = (0, 1);
        assert_eq!(scenario.until(1_000).len(), 1);
        scenario.idle.all_published();
        assert!(!scenario.idle.filled(QueueId(1)));
        assert_eq!(scenario.until(2_000).len(), 1);
    }

    #[test]
    fn many_queues_are_looked_at_few_at_a_time() {
        let mut scenario = Scenario::of(5 * LOOKED_AT_ONCE / 2);
        let withdrawn = scenario.until(600);
        assert_eq!(withdrawn.len(), scenario.paths.len() - 1, "all but the named one");
        let mut looks = withdrawn.chunk_by(|a, b| a.0 == b.0).map(|look| (look[0].0, look.len()));
        let [first, second, third] = [(); 3].map(|()| looks.next().unwrap());
        assert_eq!(
            [first.1, second.1, third.1],
            [LOOKED_AT_ONCE - 1, LOOKED_AT_ONCE, LOOKED_AT_ONCE / 2]
        );
        let apart = [second.0 - first.0, third.0 - second.0];
        assert!(apart.iter().all(|apart| (apart - STEP.as_secs_f64()).abs() < 1e-6), "{apart:?}");
        assert_eq!(looks.next(), None);
    }
}
