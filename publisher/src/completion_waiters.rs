//! Requests that wait for a job to end. Pure: it receives events and returns the jobs to look up.
//!
//! ```text
//! request ─▶ pending ─▶ looked up ─▶ has not ended: waits ─┐      ended or missing: answered
//!               ▲                                          │ an event reports the end
//!               └──────────────────────────────────────────┘
//! ```
//! An event alone does not answer: the job is looked up again and answered as it stands. So a
//! request keeps waiting for a job that was revived meanwhile, and a request that arrives after the
//! end is answered like any other.

use std::collections::{BTreeSet, VecDeque};

use hashbrown::HashMap;
use longshore_protocol::limits::COMPLETION_WAITS_MAX;
use longshore_protocol::{JobId, LinkId};
use longshore_queue::Event;

/// Jobs of one link that are looked up or being answered at a time: each may take 16 MiB.
const LOOKUPS_PER_LINK_MAX: usize = 64;

/// The waiting requests of all links.
#[derive(Debug, Default)]
pub(crate) struct CompletionWaiters {
    /// Sets, because a whole cluster may wait for one job and leave one by one.
    by_job: HashMap<JobId, BTreeSet<(LinkId, u64)>>,
    links: HashMap<LinkId, LinkWaiters>,
    /// Links with jobs to look up.
    pending: Vec<LinkId>,
}

#[derive(Debug, Default)]
struct LinkWaiters {
    /// By the link's request number.
    open: HashMap<u64, Waiter>,
    /// Requests to look up, in order, each with its turn. An entry whose turn is no longer the
    /// request's current one is skipped.
    pending: VecDeque<(u64, u64)>,
    turns: u64,
    /// Lookups under way.
    looking_up: Vec<u64>,
    /// Answers being completed.
    answering: usize,
}

#[derive(Debug)]
struct Waiter {
    job: JobId,
    /// Its turn in `pending`, if it is there.
    pending: Option<u64>,
}

/// The link has reached its limit of waits.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooManyWaiters;

/// What to do with the result of a lookup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LookupOutcome {
    /// Send it; the answer counts as being completed until [`CompletionWaiters::answered`].
    Answer,
    /// Drop it: the job has not ended, or nobody waits any more.
    Drop,
    /// The lookup was not made for a waiting request.
    NotAwaited,
}

impl CompletionWaiters {
    /// True while no request waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_job.is_empty()
    }

    /// A link waits for a job's end. A request with the same number replaces the older one.
    pub(crate) fn begin(
        &mut self,
        link: LinkId,
        id: u64,
        job: JobId,
    ) -> Result<(), TooManyWaiters> {
        self.forget(link, id);
        let waiters = self.links.entry(link).or_default();
        if waiters.open.len() >= COMPLETION_WAITS_MAX {
            return Err(TooManyWaiters);
        }
        waiters.open.insert(id, Waiter { job, pending: None });
        waiters.enqueue(id);
        self.by_job.entry(job).or_default().insert((link, id));
        self.pending.push(link);
        Ok(())
    }

    /// A link cancels its request. False if there was none.
    pub(crate) fn forget(&mut self, link: LinkId, id: u64) -> bool {
        let Some(waiters) = self.links.get_mut(&link) else { return false };
        let Some(Waiter { job, .. }) = waiters.open.remove(&id) else { return false };
        self.remove_waiter(job, (link, id));
        true
    }

    /// A link has ended.
    pub(crate) fn link_lost(&mut self, link: LinkId) {
        let Some(waiters) = self.links.remove(&link) else { return };
        for (id, Waiter { job, .. }) in waiters.open {
            self.remove_waiter(job, (link, id));
        }
    }

    /// Processes events: jobs that have ended or are gone become pending.
    pub(crate) fn on_events(&mut self, events: &[Event]) {
        if self.is_empty() {
            return;
        }
        for event in events {
            if event.state.is_some_and(|state| !state.is_end()) {
                continue;
            }
            for &(link, id) in self.by_job.get(&event.job).into_iter().flatten() {
                let Some(waiters) = self.links.get_mut(&link) else { continue };
                if waiters.enqueue(id) {
                    self.pending.push(link);
                }
            }
        }
    }

    /// Calls `start` for each job to look up now, with its link and request number.
    pub(crate) fn start_lookups(&mut self, mut start: impl FnMut(LinkId, u64, JobId)) {
        while let Some(link) = self.pending.pop() {
            let Some(waiters) = self.links.get_mut(&link) else { continue };
            while waiters.looking_up.len() + waiters.answering < LOOKUPS_PER_LINK_MAX
                && let Some((turn, id)) = waiters.pending.pop_front()
            {
                if let Some(open) =
                    waiters.open.get_mut(&id).filter(|open| open.pending == Some(turn))
                {
                    open.pending = None;
                    waiters.looking_up.push(id);
                    start(link, id, open.job);
                }
            }
        }
    }

    /// A lookup returned and its result is durable. `ended`: the job has ended or does not exist.
    pub(crate) fn looked_up(&mut self, link: LinkId, id: u64, ended: bool) -> LookupOutcome {
        let Some(waiters) = self.links.get_mut(&link) else { return LookupOutcome::NotAwaited };
        let Some(position) = waiters.looking_up.iter().position(|&looking_up| looking_up == id)
        else {
            return LookupOutcome::NotAwaited;
        };
        waiters.looking_up.swap_remove(position);
        waiters.answering += 1;
        if ended && self.forget(link, id) {
            return LookupOutcome::Answer;
        }
        self.answered(link);
        LookupOutcome::Drop
    }

    /// An answer was sent: there is room for another.
    pub(crate) fn answered(&mut self, link: LinkId) {
        let Some(waiters) = self.links.get_mut(&link) else { return };
        waiters.answering = waiters.answering.saturating_sub(1);
        if !waiters.pending.is_empty() {
            self.pending.push(link);
        } else if waiters.open.is_empty() && waiters.looking_up.is_empty() && waiters.answering == 0
        {
            self.links.remove(&link);
        }
    }

    /// Events were missed: every job is looked up again.
    pub(crate) fn on_gap(&mut self) {
        for (&link, waiters) in &mut self.links {
            let ids: Vec<u64> = waiters.open.keys().copied().collect();
            ids.into_iter().for_each(|id| {
                waiters.enqueue(id);
            });
            self.pending.push(link);
        }
    }

    fn remove_waiter(&mut self, job: JobId, waiter: (LinkId, u64)) {
        if let Some(waiting) = self.by_job.get_mut(&job) {
            waiting.remove(&waiter);
            if waiting.is_empty() {
                self.by_job.remove(&job);
            }
        }
        if self.by_job.is_empty() {
            // No request waits, so no link has jobs to look up.
            self.pending.clear();
        }
    }
}

impl LinkWaiters {
    /// Makes a request pending; false if it is already.
    fn enqueue(&mut self, id: u64) -> bool {
        let Some(open) = self.open.get_mut(&id).filter(|open| open.pending.is_none()) else {
            return false;
        };
        self.turns += 1;
        open.pending = Some(self.turns);
        self.pending.push_back((self.turns, id));
        if self.pending.len() > 2 * COMPLETION_WAITS_MAX {
            // Entries of requests that were made and cancelled over and over.
            let open = &self.open;
            self.pending
                .retain(|(turn, id)| open.get(id).is_some_and(|one| one.pending == Some(*turn)));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use longshore_protocol::{JobChange, JobState};
    use longshore_queue::QueueId;

    use super::*;

    const LINK: LinkId = LinkId(1);

    fn job(n: u8) -> JobId {
        JobId([n; 16])
    }

    fn event(n: u8, state: impl Into<Option<JobState>>) -> Event {
        Event {
            index: 1,
            wall_ms: 1,
            job: job(n),
            queue: QueueId(0),
            attempt: 1,
            change: JobChange::Completed,
            state: state.into(),
            retrying: false,
        }
    }

    fn lookups(waiters: &mut CompletionWaiters) -> Vec<u64> {
        let mut ids = Vec::new();
        waiters.start_lookups(|_, id, _| ids.push(id));
        ids
    }

    #[test]
    fn job_is_looked_up_on_request_and_at_its_end() {
        let mut waiters = CompletionWaiters::default();
        waiters.begin(LINK, 7, job(1)).unwrap();
        assert_eq!(lookups(&mut waiters), [7]);
        assert_eq!(waiters.looked_up(LINK, 7, false), LookupOutcome::Drop);
        waiters.on_events(&[event(1, JobState::Running), event(2, JobState::Completed)]);
        assert_eq!(lookups(&mut waiters), [0u64; 0], "it runs; the other job is not awaited");
        waiters.on_events(&[event(1, JobState::Completed)]);
        assert_eq!(lookups(&mut waiters), [7]);
        assert_eq!(waiters.looked_up(LINK, 7, true), LookupOutcome::Answer);
        waiters.answered(LINK);
        assert!(waiters.is_empty() && waiters.links.is_empty(), "nothing is left behind");
    }

    #[test]
    fn end_during_a_lookup_causes_another_lookup() {
        let mut waiters = CompletionWaiters::default();
        waiters.begin(LINK, 7, job(1)).unwrap();
        assert_eq!(lookups(&mut waiters), [7]);
        waiters.on_events(&[event(1, JobState::Dead)]);
        assert_eq!(waiters.looked_up(LINK, 7, false), LookupOutcome::Drop);
        assert_eq!(lookups(&mut waiters), [7], "looked up again");
    }

    #[test]
    fn plain_job_request_is_not_a_waiting_request() {
        let mut waiters = CompletionWaiters::default();
        assert_eq!(waiters.looked_up(LINK, 7, true), LookupOutcome::NotAwaited);
        waiters.begin(LINK, 7, job(1)).unwrap();
        assert_eq!(waiters.looked_up(LINK, 8, true), LookupOutcome::NotAwaited);
        lookups(&mut waiters);
        waiters.forget(LINK, 7);
        assert_eq!(
            waiters.looked_up(LINK, 7, true),
            LookupOutcome::Drop,
            "cancelled during the lookup"
        );
        assert_eq!(waiters.looked_up(LINK, 7, true), LookupOutcome::NotAwaited);
    }

    #[test]
    fn every_job_is_looked_up_again_after_a_gap() {
        let mut waiters = CompletionWaiters::default();
        for id in 1..=3 {
            waiters.begin(LINK, id, job(id as u8)).unwrap();
        }
        for id in lookups(&mut waiters) {
            waiters.looked_up(LINK, id, false);
        }
        waiters.on_gap();
        let mut again = lookups(&mut waiters);
        again.sort_unstable();
        assert_eq!(again, [1, 2, 3]);
    }

    #[test]
    fn removed_job_is_looked_up_too() {
        let mut waiters = CompletionWaiters::default();
        waiters.begin(LINK, 7, job(1)).unwrap();
        lookups(&mut waiters);
        waiters.looked_up(LINK, 7, false);
        waiters.on_events(&[event(1, None)]);
        assert_eq!(lookups(&mut waiters), [7]);
    }

    #[test]
    fn cancelled_request_is_not_answered_and_frees_its_slot() {
        let mut waiters = CompletionWaiters::default();
        waiters.begin(LINK, 7, job(1)).unwrap();
        lookups(&mut waiters);
        assert!(waiters.forget(LINK, 7));
        assert!(!waiters.forget(LINK, 7));
        assert_eq!(waiters.looked_up(LINK, 7, true), LookupOutcome::Drop);
        assert!(waiters.is_empty() && waiters.links.is_empty());
    }

    #[test]
    fn waiting_requests_per_link_are_limited() {
        let mut waiters = CompletionWaiters::default();
        for id in 0..COMPLETION_WAITS_MAX as u64 {
            waiters.begin(LINK, id, job((id % 250) as u8)).unwrap();
        }
        assert_eq!(waiters.begin(LINK, COMPLETION_WAITS_MAX as u64, job(1)), Err(TooManyWaiters));
        assert!(waiters.begin(LinkId(2), 1, job(1)).is_ok(), "another link has its own limit");
        waiters.forget(LINK, 5);
        assert!(waiters.begin(LINK, COMPLETION_WAITS_MAX as u64, job(1)).is_ok());
        waiters.link_lost(LINK);
        waiters.link_lost(LinkId(2));
        assert!(waiters.is_empty() && waiters.links.is_empty());
    }

    #[test]
    fn lookups_are_limited_and_keep_request_order() {
        let mut waiters = CompletionWaiters::default();
        for id in 0..200 {
            waiters.begin(LINK, id, job(id as u8)).unwrap();
        }
        let mut seen = lookups(&mut waiters);
        assert_eq!(seen.len(), LOOKUPS_PER_LINK_MAX);
        assert_eq!(lookups(&mut waiters), [0u64; 0]);
        let mut in_progress: VecDeque<u64> = seen.iter().copied().collect();
        while let Some(id) = in_progress.pop_front() {
            assert_eq!(waiters.looked_up(LINK, id, true), LookupOutcome::Answer);
            waiters.answered(LINK);
            let more = lookups(&mut waiters);
            in_progress.extend(&more);
            seen.extend(more);
        }
        assert_eq!(seen, (0..200).collect::<Vec<_>>());
        assert!(waiters.links.is_empty());
    }

    #[test]
    fn repeated_begin_and_cancel_takes_no_memory() {
        let mut waiters = CompletionWaiters::default();
        for _ in 0..10 * COMPLETION_WAITS_MAX {
            waiters.begin(LINK, 1, job(1)).unwrap();
            waiters.forget(LINK, 1);
        }
        assert!(waiters.links[&LINK].pending.len() <= 2 * COMPLETION_WAITS_MAX + 1);
        assert!(waiters.pending.is_empty());
    }

    #[test]
    fn hundred_thousand_waiters_of_one_job_leave_quickly() {
        let mut waiters = CompletionWaiters::default();
        for link in 0..10 {
            for id in 0..COMPLETION_WAITS_MAX as u64 {
                waiters.begin(LinkId(link), id, job(1)).unwrap();
            }
        }
        // Scanning all other requests for each that waiter took 14 s.
        let began = std::time::Instant::now();
        for link in 0..5 {
            (0..COMPLETION_WAITS_MAX as u64)
                .for_each(|id| assert!(waiters.forget(LinkId(link), id)));
        }
        (5..10).for_each(|link| waiters.link_lost(LinkId(link)));
        assert!(waiters.is_empty());
        assert!(began.elapsed() < std::time::Duration::from_secs(5), "{:?}", began.elapsed());
    }

    #[test]
    fn all_requests_of_two_links_for_one_job_are_answered() {
        let mut waiters = CompletionWaiters::default();
        for (link, id) in [(LINK, 1), (LINK, 2), (LinkId(2), 1)] {
            waiters.begin(link, id, job(1)).unwrap();
        }
        assert_eq!(lookups(&mut waiters).len(), 3);
        for (link, id) in [(LINK, 1), (LINK, 2), (LinkId(2), 1)] {
            waiters.looked_up(link, id, false);
        }
        waiters.on_events(&[event(1, JobState::Cancelled)]);
        assert_eq!(lookups(&mut waiters).len(), 3);
    }
}
