//! The jobs that wait for a handler task, by source: how many of a source may run at once, and
//! which source comes next.

use std::collections::VecDeque;

/// The limits of a source: one of the patterns that a worker takes jobs from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SourceLimits {
    /// The most jobs of the source that run at once, from 1; `None` for the worker's concurrency.
    pub(crate) cap: Option<usize>,
    /// While several sources have jobs that may begin, jobs begin in proportion to the weights;
    /// from 1.
    pub(crate) weight: u32,
}

impl Default for SourceLimits {
    fn default() -> SourceLimits {
        SourceLimits { cap: None, weight: 1 }
    }
}

/// What one job of a source with weight 1 adds to the source's turn.
/// 2⁴⁴ jobs fit into a turn, and weights up to 65,535 still differ.
const STRIDE: u64 = 1 << 20;

/// Waiting jobs, in the order of their arrival within a source.
#[derive(Debug)]
pub(crate) struct ReadyJobs<J> {
    sources: Vec<Source<J>>,
    /// The turn of the source that was taken from last.
    turn: u64,
}

#[derive(Debug)]
struct Source<J> {
    limits: SourceLimits,
    jobs: VecDeque<J>,
    running: usize,
    /// The source with the lowest turn comes next.
    turn: u64,
}

impl<J> Source<J> {
    /// What a job adds to its turn.
    fn stride(&self) -> u64 {
        STRIDE / u64::from(self.limits.weight.max(1))
    }

    /// How many of its jobs may begin now.
    fn startable(&self) -> usize {
        let room =
            self.limits.cap.map_or(usize::MAX, |cap| cap.max(1).saturating_sub(self.running));
        self.jobs.len().min(room)
    }
}

impl<J> ReadyJobs<J> {
    /// Without limits there is one source, 0, and jobs begin in the order of their arrival.
    pub(crate) fn new(limits: &[SourceLimits]) -> ReadyJobs<J> {
        let none = [SourceLimits::default()];
        let limits = if limits.is_empty() { &none } else { limits };
        let source = |&limits| Source { limits, jobs: VecDeque::new(), running: 0, turn: 0 };
        ReadyJobs { sources: limits.iter().map(source).collect(), turn: 0 }
    }

    pub(crate) fn push_back(&mut self, source: usize, job: J) {
        if let Some(source) = self.filling(source) {
            source.jobs.push_back(job);
        }
    }

    /// Returns a job that was taken and did not begin.
    pub(crate) fn push_front(&mut self, source: usize, job: J) {
        if let Some(source) = self.filling(source) {
            source.jobs.push_front(job);
        }
    }

    /// A source that had no jobs does not catch up on the turns that it missed.
    fn filling(&mut self, source: usize) -> Option<&mut Source<J>> {
        let turn = self.turn;
        let source = self.sources.get_mut(source)?;
        if source.jobs.is_empty() {
            source.turn = source.turn.max(turn);
        }
        Some(source)
    }

    /// How many jobs may begin now, each in a handler task of its own.
    pub(crate) fn startable(&self) -> usize {
        self.sources.iter().map(Source::startable).sum()
    }

    /// True if a job may begin now.
    pub(crate) fn can_start(&self) -> bool {
        self.sources.iter().any(|source| source.startable() > 0)
    }

    /// Takes the next job that may begin: the first of the source whose turn it is. Call
    /// [`ReadyJobs::ended`] or [`ReadyJobs::not_begun`] once for it.
    pub(crate) fn take(&mut self) -> Option<J> {
        let startable = self.sources.iter_mut().filter(|source| source.startable() > 0);
        let source = startable.min_by_key(|source| source.turn)?;
        let job = source.jobs.pop_front()?;
        self.turn = source.turn;
        source.turn += source.stride();
        source.running += 1;
        Some(job)
    }

    /// A job of the source that was taken did not begin: it does not count for its weight.
    pub(crate) fn not_begun(&mut self, source: usize) {
        self.ended(source);
        if let Some(source) = self.sources.get_mut(source) {
            source.turn = source.turn.saturating_sub(source.stride());
        }
    }

    /// A job of the source that was taken has ended.
    pub(crate) fn ended(&mut self, source: usize) {
        if let Some(source) = self.sources.get_mut(source) {
            source.running = source.running.saturating_sub(1);
        }
    }

    /// Removes waiting jobs.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&J) -> bool) {
        self.sources.iter_mut().for_each(|source| source.jobs.retain(&mut keep));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits(cap: usize, weight: u32) -> SourceLimits {
        SourceLimits { cap: (cap > 0).then_some(cap), weight }
    }

    /// Takes a job; jobs are numbered by their sources.
    fn take_one(ready: &mut ReadyJobs<usize>) -> Option<usize> {
        ready.take().map(|job| job % 3)
    }

    #[test]
    fn sources_with_jobs_run_in_proportion_to_their_weights() {
        let mut ready = ReadyJobs::new(&[limits(0, 3), limits(0, 1), limits(0, 5)]);
        (0..400).for_each(|_| ready.push_back(0, 0));
        (0..400).for_each(|_| ready.push_back(1, 1));
        let mut taken = [0u32; 3];
        (0..400).for_each(|_| {
            let mut source = take_one(&mut ready).unwrap();
            if source == 0 {
                // It is returned, and does not count.
                ready.not_begun(0);
                ready.push_front(0, 0);
                source = take_one(&mut ready).unwrap();
            }
            taken[source] += 1;
        });
        assert_eq!(taken, [300, 100, 0]);
        // The third source was idle: it gets its share from now on, and nothing for the past.
        (0..400).for_each(|_| ready.push_back(2, 2));
        let mut taken = [0u32; 3];
        (0..90).for_each(|_| taken[take_one(&mut ready).unwrap()] += 1);
        assert!(taken[1].abs_diff(10) <= 1 && taken[2].abs_diff(50) <= 1, "{taken:?}");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push(usize),
        Take,
        End(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0usize..3).prop_map(Step::Push),
            3 => Just(Step::Take),
            2 => (0usize..20).prop_map(Step::End),
        ]
    }

    proptest! {
        /// Against a naive twin: no source runs above its cap, none waits while it could run, jobs
        /// of a source stay in order, and none is lost.
        #[test]
        fn caps_hold_and_block_nobody_else(
            caps in proptest::collection::vec((0usize..4, 1u32..5), 3),
            steps in proptest::collection::vec(step(), 1..200),
        ) {
            let all: Vec<SourceLimits> = caps.iter().map(|&(cap, w)| limits(cap, w)).collect();
            let mut ready = ReadyJobs::new(&all);
            let mut waiting = vec![VecDeque::new(); 3];
            let mut tasks: Vec<usize> = Vec::new();
            let mut next_job = 0;
            for step in steps {
                match step {
                    Step::Push(source) => {
                        let job = 3 * next_job + source;
                        ready.push_back(source, job);
                        waiting[source].push_back(job);
                        next_job += 1;
                    }
                    Step::Take => {
                        let running = |at: usize| tasks.iter().filter(|&&one| one == at).count();
                        let may = |at: &usize| {
                            let room = all[*at].cap.is_none_or(|cap| running(*at) < cap);
                            room && !waiting[*at].is_empty()
                        };
                        let open: Vec<usize> = (0..3).filter(may).collect();
                        let taken = ready.take();
                        prop_assert_eq!(taken.is_some(), !open.is_empty());
                        let Some(job) = taken else { continue };
                        let source = job % 3;
                        prop_assert!(open.contains(&source), "over its cap");
                        prop_assert_eq!(Some(job), waiting[source].pop_front());
                        tasks.push(source);
                    }
                    Step::End(nth) => {
                        if !tasks.is_empty() {
                            let source = tasks.swap_remove(nth % tasks.len());
                            ready.ended(source);
                        }
                    }
                }
            }
        }
    }
}
