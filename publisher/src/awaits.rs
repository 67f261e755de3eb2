//! Who waits for which job's end. Pure: it is told what happened, and says what is to be looked at.
//!
//! ```text
//! asked for ─▶ due ─▶ looked at ─▶ has not ended: waits ─┐        has ended, or is not there: answered
//!               ▲                                        │ an event says that it has
//!               └────────────────────────────────────────┘
//! ```
//! A job's end is not told from the event alone: the job is looked up once more, and answered as it
//! stands. So a job that was revived meanwhile is waited for again, and a wait that begins after
//! the end is answered like any other.

use std::collections::{BTreeSet, VecDeque};

use hashbrown::HashMap;
use longshore_protocol::limits::AWAITS_MAX;
use longshore_protocol::{JobId, LinkId};
use longshore_queue::Event;

/// Jobs of one link that are looked at, or on their way to it, at a time: each may have 16 MiB.
const LOOKED_AT_MAX: usize = 64;

/// The waits of all links.
#[derive(Debug, Default)]
pub(crate) struct Awaits {
    /// In sets: all of a cluster may wait for one job, and leave one by one.
    by_job: HashMap<JobId, BTreeSet<(LinkId, u64)>>,
    links: HashMap<LinkId, LinkAwaits>,
    /// Links with jobs to be looked at.
    due: Vec<LinkId>,
}

#[derive(Debug, Default)]
struct LinkAwaits {
    /// By the link's number for its request.
    open: HashMap<u64, Await>,
    /// To be looked at, in order, each with the number of its turn; those whose turn is another by
    /// now are passed over.
    due: VecDeque<(u64, u64)>,
    turns: u64,
    /// Being looked at.
    looking: Vec<u64>,
    /// Answers on their way.
    leaving: usize,
}

#[derive(Debug)]
struct Await {
    job: JobId,
    /// Its turn among those that are due, if it is.
    due: Option<u64>,
}

/// As many ends of jobs as a link may wait for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooManyAwaits;

/// What became of a look at a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Looked {
    /// It is the answer, and on its way until [`Awaits::answered`].
    Answer,
    /// The job has not ended, or nobody waits any more.
    Nothing,
    /// It was not looked up for a wait.
    NotAwaited,
}

impl Awaits {
    /// True while nobody waits for anything.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_job.is_empty()
    }

    /// A link waits for a job's end. The same number again takes the place of the wait before.
    pub(crate) fn begin(&mut self, link: LinkId, id: u64, job: JobId) -> Result<(), TooManyAwaits> {
        self.forget(link, id);
        let waits = self.links.entry(link).or_default();
        if waits.open.len() >= AWAITS_MAX {
            return Err(TooManyAwaits);
        }
        waits.open.insert(id, Await { job, due: None });
        waits.put(id);
        self.by_job.entry(job).or_default().insert((link, id));
        self.due.push(link);
        Ok(())
    }

    /// A link waits no more. False when it did not.
    pub(crate) fn forget(&mut self, link: LinkId, id: u64) -> bool {
        let Some(waits) = self.links.get_mut(&link) else { return false };
        let Some(Await { job, .. }) = waits.open.remove(&id) else { return false };
        self.leave(job, (link, id));
        true
    }

    /// A link is gone.
    pub(crate) fn link_lost(&mut self, link: LinkId) {
        let Some(waits) = self.links.remove(&link) else { return };
        for (id, Await { job, .. }) in waits.open {
            self.leave(job, (link, id));
        }
    }

    /// Something happened to jobs: those that have ended, and those that are gone, are due.
    pub(crate) fn happened(&mut self, events: &[Event]) {
        if self.is_empty() {
            return;
        }
        for event in events {
            if event.state.is_some_and(|state| !state.is_end()) {
                continue;
            }
            for &(link, id) in self.by_job.get(&event.job).into_iter().flatten() {
                let Some(waits) = self.links.get_mut(&link) else { continue };
                if waits.put(id) {
                    self.due.push(link);
                }
            }
        }
    }

    /// Gives the jobs that are to be looked up now, each with its link and the link's number.
    pub(crate) fn look(&mut self, mut look: impl FnMut(LinkId, u64, JobId)) {
        while let Some(link) = self.due.pop() {
            let Some(waits) = self.links.get_mut(&link) else { continue };
            while waits.looking.len() + waits.leaving < LOOKED_AT_MAX
                && let Some((turn, id)) = waits.due.pop_front()
            {
                if let Some(open) = waits.open.get_mut(&id).filter(|open| open.due == Some(turn)) {
                    open.due = None;
                    waits.looking.push(id);
                    look(link, id, open.job);
                }
            }
        }
    }

    /// A job was looked up under that number, and what was found is durable: `ended` if it has
    /// ended or is not there.
    pub(crate) fn looked(&mut self, link: LinkId, id: u64, ended: bool) -> Looked {
        let Some(waits) = self.links.get_mut(&link) else { return Looked::NotAwaited };
        let Some(place) = waits.looking.iter().position(|&looking| looking == id) else {
            return Looked::NotAwaited;
        };
        waits.looking.swap_remove(place);
        waits.leaving += 1;
        if ended && self.forget(link, id) {
            return Looked::Answer;
        }
        self.answered(link);
        Looked::Nothing
    }

    /// An answer has left: there is room for another.
    pub(crate) fn answered(&mut self, link: LinkId) {
        let Some(waits) = self.links.get_mut(&link) else { return };
        waits.leaving = waits.leaving.saturating_sub(1);
        if !waits.due.is_empty() {
            self.due.push(link);
        } else if waits.open.is_empty() && waits.looking.is_empty() && waits.leaving == 0 {
            self.links.remove(&link);
        }
    }

    /// What happened was missed: every job is looked at once more.
    pub(crate) fn missed(&mut self) {
        for (&link, waits) in &mut self.links {
            let ids: Vec<u64> = waits.open.keys().copied().collect();
            ids.into_iter().for_each(|id| {
                waits.put(id);
            });
            self.due.push(link);
        }
    }

    fn leave(&mut self, job: JobId, leaves: (LinkId, u64)) {
        if let Some(waiting) = self.by_job.get_mut(&job) {
            waiting.remove(&leaves);
            if waiting.is_empty() {
                self.by_job.remove(&job);
            }
        }
    }
}

impl LinkAwaits {
    /// Puts one among those that are due; false when it stands there already.
    fn put(&mut self, id: u64) -> bool {
        let Some(open) = self.open.get_mut(&id).filter(|open| open.due.is_none()) else {
            return false;
        };
        self.turns += 1;
        open.due = Some(self.turns);
        self.due.push_back((self.turns, id));
        if self.due.len() > 2 * AWAITS_MAX {
            // Begun and forgotten over and over: none of them is open.
            let open = &self.open;
            self.due.retain(|(turn, id)| open.get(id).is_some_and(|one| one.due == Some(*turn)));
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

    fn look(awaits: &mut Awaits) -> Vec<u64> {
        let mut ids = Vec::new();
        awaits.look(|_, id, _| ids.push(id));
        ids
    }

    #[test]
    fn a_job_is_looked_at_when_it_is_asked_for_and_again_at_its_end_and_answered_once() {
        let mut awaits = Awaits::default();
        awaits.begin(LINK, 7, job(1)).unwrap();
        assert_eq!(look(&mut awaits), [7]);
        assert_eq!(awaits.looked(LINK, 7, false), Looked::Nothing);
        awaits.happened(&[event(1, JobState::Running), event(2, JobState::Completed)]);
        assert_eq!(look(&mut awaits), [0u64; 0], "it runs; another's end is none of its business");
        awaits.happened(&[event(1, JobState::Completed)]);
        assert_eq!(look(&mut awaits), [7]);
        assert_eq!(awaits.looked(LINK, 7, true), Looked::Answer);
        awaits.answered(LINK);
        assert!(awaits.is_empty() && awaits.links.is_empty(), "nothing is left behind");
    }

    #[test]
    fn an_end_between_the_look_and_what_it_found_is_not_missed() {
        let mut awaits = Awaits::default();
        awaits.begin(LINK, 7, job(1)).unwrap();
        assert_eq!(look(&mut awaits), [7]);
        awaits.happened(&[event(1, JobState::Dead)]);
        assert_eq!(awaits.looked(LINK, 7, false), Looked::Nothing);
        assert_eq!(look(&mut awaits), [7], "looked at once more");
    }

    #[test]
    fn a_question_about_a_job_is_not_a_wait_for_it() {
        let mut awaits = Awaits::default();
        assert_eq!(awaits.looked(LINK, 7, true), Looked::NotAwaited);
        awaits.begin(LINK, 7, job(1)).unwrap();
        assert_eq!(awaits.looked(LINK, 8, true), Looked::NotAwaited);
        look(&mut awaits);
        awaits.forget(LINK, 7);
        assert_eq!(
            awaits.looked(LINK, 7, true),
            Looked::Nothing,
            "forgotten while it was looked at"
        );
        assert_eq!(awaits.looked(LINK, 7, true), Looked::NotAwaited);
    }

    #[test]
    fn after_a_gap_every_job_is_looked_at_again() {
        let mut awaits = Awaits::default();
        for id in 1..=3 {
            awaits.begin(LINK, id, job(id as u8)).unwrap();
        }
        for id in look(&mut awaits) {
            awaits.looked(LINK, id, false);
        }
        awaits.missed();
        let mut again = look(&mut awaits);
        again.sort_unstable();
        assert_eq!(again, [1, 2, 3]);
    }

    #[test]
    fn a_job_that_is_gone_is_due_as_well() {
        let mut awaits = Awaits::default();
        awaits.begin(LINK, 7, job(1)).unwrap();
        look(&mut awaits);
        awaits.looked(LINK, 7, false);
        awaits.happened(&[event(1, None)]);
        assert_eq!(look(&mut awaits), [7]);
    }

    #[test]
    fn what_is_forgotten_is_not_answered_and_its_place_is_free() {
        let mut awaits = Awaits::default();
        awaits.begin(LINK, 7, job(1)).unwrap();
        look(&mut awaits);
        assert!(awaits.forget(LINK, 7));
        assert!(!awaits.forget(LINK, 7));
        assert_eq!(awaits.looked(LINK, 7, true), Looked::Nothing);
        assert!(awaits.is_empty() && awaits.links.is_empty());
    }

    #[test]
    fn a_link_waits_for_so_many_ends_and_one_more_is_refused() {
        let mut awaits = Awaits::default();
        for id in 0..AWAITS_MAX as u64 {
            awaits.begin(LINK, id, job((id % 250) as u8)).unwrap();
        }
        assert_eq!(awaits.begin(LINK, AWAITS_MAX as u64, job(1)), Err(TooManyAwaits));
        assert!(awaits.begin(LinkId(2), 1, job(1)).is_ok(), "another link is not concerned");
        awaits.forget(LINK, 5);
        assert!(awaits.begin(LINK, AWAITS_MAX as u64, job(1)).is_ok());
        awaits.link_lost(LINK);
        awaits.link_lost(LinkId(2));
        assert!(awaits.is_empty() && awaits.links.is_empty());
    }

    #[test]
    fn so_many_are_looked_at_at_a_time_and_the_rest_in_their_order() {
        let mut awaits = Awaits::default();
        for id in 0..200 {
            awaits.begin(LINK, id, job(id as u8)).unwrap();
        }
        let mut seen = look(&mut awaits);
        assert_eq!(seen.len(), LOOKED_AT_MAX);
        assert_eq!(look(&mut awaits), [0u64; 0]);
        let mut on_their_way: VecDeque<u64> = seen.iter().copied().collect();
        while let Some(id) = on_their_way.pop_front() {
            assert_eq!(awaits.looked(LINK, id, true), Looked::Answer);
            awaits.answered(LINK);
            let more = look(&mut awaits);
            on_their_way.extend(&more);
            seen.extend(more);
        }
        assert_eq!(seen, (0..200).collect::<Vec<_>>());
        assert!(awaits.links.is_empty());
    }

    #[test]
    fn what_is_begun_and_forgotten_over_and_over_takes_no_memory() {
        let mut awaits = Awaits::default();
        for _ in 0..10 * AWAITS_MAX {
            awaits.begin(LINK, 1, job(1)).unwrap();
            awaits.forget(LINK, 1);
        }
        assert!(awaits.links[&LINK].due.len() <= 2 * AWAITS_MAX + 1);
    }

    #[test]
    fn a_hundred_thousand_may_wait_for_one_job_and_leave_one_by_one() {
        let mut awaits = Awaits::default();
        for link in 0..10 {
            for id in 0..AWAITS_MAX as u64 {
                awaits.begin(LinkId(link), id, job(1)).unwrap();
            }
        }
        // Looking through all of the others for each that leaves took 14 s.
        let began = std::time::Instant::now();
        for link in 0..5 {
            (0..AWAITS_MAX as u64).for_each(|id| assert!(awaits.forget(LinkId(link), id)));
        }
        (5..10).for_each(|link| awaits.link_lost(LinkId(link)));
        assert!(awaits.is_empty());
        assert!(began.elapsed() < std::time::Duration::from_secs(5), "{:?}", began.elapsed());
    }

    #[test]
    fn two_links_and_two_waits_for_one_job_are_all_answered() {
        let mut awaits = Awaits::default();
        for (link, id) in [(LINK, 1), (LINK, 2), (LinkId(2), 1)] {
            awaits.begin(link, id, job(1)).unwrap();
        }
        assert_eq!(look(&mut awaits).len(), 3);
        for (link, id) in [(LINK, 1), (LINK, 2), (LinkId(2), 1)] {
            awaits.looked(link, id, false);
        }
        awaits.happened(&[event(1, JobState::Cancelled)]);
        assert_eq!(look(&mut awaits).len(), 3);
    }
}
