//! Simulation of a followed publisher: a log of events, jobs in slots, pages and events at random
//! times, broken links, and truncated tails. The shown state never goes back, and converges to the
//! publisher's jobs.

use hashbrown::HashMap;
use longshore_protocol::messages::work::{FeedEvent, FeedEvents, FeedPosition, JobInfo, JobsPage};
use longshore_protocol::{Epoch, JobChange, JobId, JobState, Path};
use proptest::prelude::*;

use super::FeedLoss;
use super::cursor::{FeedCursor, PageResult, StalePage, Start};

const SLOTS: usize = 12;
const PAGE: usize = 3;

/// A step of the simulation.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The job in a slot changes.
    Turn { slot: usize, state: Option<JobState> },
    /// This many events arrive.
    Events(usize),
    /// The next page arrives, if one is requested.
    Page,
    /// The link breaks and is restored.
    Break,
    /// The publisher drops its tail; the link breaks and is restored.
    Forget,
}

fn step() -> impl Strategy<Value = Step> {
    use JobState::{Completed, Dead, Ready, Running};
    let state =
        prop::sample::select(vec![None, Some(Ready), Some(Running), Some(Completed), Some(Dead)]);
    prop_oneof![
        20 => (0..SLOTS, state).prop_map(|(slot, state)| Step::Turn { slot, state }),
        5 => (1..10usize).prop_map(Step::Events),
        5 => Just(Step::Page),
        1 => Just(Step::Break),
        1 => Just(Step::Forget),
    ]
}

struct Scenario {
    cursor: FeedCursor,
    slots: Vec<Option<(JobId, JobState, u64)>>,
    log: Vec<FeedEvent>,
    /// Events up to here were dropped.
    floor: u64,
    made: u64,
    jobs: HashMap<JobId, JobState>,
    shown: HashMap<JobId, u64>,
}

impl Scenario {
    fn begin(start: Start) -> Scenario {
        let mut scenario = Scenario {
            cursor: FeedCursor::new(start),
            slots: vec![None; SLOTS],
            log: Vec::new(),
            floor: 0,
            made: 0,
            jobs: HashMap::new(),
            shown: HashMap::new(),
        };
        (0..SLOTS).step_by(2).for_each(|slot| scenario.turn(slot, Some(JobState::Ready)));
        scenario.open();
        scenario
    }

    fn index(&self) -> u64 {
        self.log.len() as u64
    }

    fn at(&self, index: u64) -> FeedPosition {
        FeedPosition { epoch: Epoch(1), index }
    }

    fn turn(&mut self, slot: usize, state: Option<JobState>) {
        let index = self.index() + 1;
        let id = match self.slots[slot] {
            Some((id, ..)) => id,
            None => {
                self.made += 1;
                JobId::new_v7(self.made, [0; 10])
            }
        };
        self.slots[slot] = state.map(|state| (id, state, index));
        let (job, change) = (id, JobChange::Created);
        let (path, retrying, attempt, at) = (0, false, 0, 1);
        self.log.push(FeedEvent { index, at, job, path, change, state, retrying, attempt });
    }

    fn open(&mut self) {
        if let Some(after) = self.cursor.after()
            && after.index < self.floor
        {
            self.cursor.lost(FeedLoss::TooOld);
        }
        let at = self.cursor.after().unwrap_or(self.at(self.index()));
        if self.cursor.opened(at) {
            self.jobs.clear();
            self.shown.clear();
        }
    }

    fn events(&mut self, count: usize) {
        let from = self.cursor.after().map_or(0, |after| after.index);
        let upto = (from + count as u64).min(self.index());
        let events = self.log[from as usize..upto as usize].to_vec();
        let mut events = FeedEvents { id: 1, upto: self.at(upto), paths: Vec::new(), events };
        self.cursor.events(&mut events);
        for event in events.events {
            self.show(event.job, event.state, event.index);
        }
    }

    fn page(&mut self) {
        let Some(cursor) = self.cursor.next_page() else { return };
        let from = cursor as usize;
        let shown: Vec<_> = self.slots.iter().skip(from).take(PAGE).flatten().copied().collect();
        let jobs = shown.iter().map(|&(id, state, _)| job(id, state)).collect();
        let next = (from + PAGE < SLOTS).then_some((from + PAGE) as u64);
        let listed = self.cursor.page(&JobsPage { jobs, next, index: self.index() });
        assert_eq!(listed, Ok(if next.is_some() { PageResult::More } else { PageResult::Last }));
        for (id, state, index) in shown {
            self.show(id, Some(state), index);
        }
    }

    fn show(&mut self, id: JobId, state: Option<JobState>, index: u64) {
        let before = self.shown.insert(id, index).unwrap_or(0);
        assert!(index >= before, "{id} goes back from {before} to {index}");
        match state {
            Some(state) => self.jobs.insert(id, state),
            None => self.jobs.remove(&id),
        };
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Turn { slot, state } => self.turn(slot, state),
            Step::Events(count) => self.events(count),
            Step::Page => self.page(),
            Step::Break => self.open(),
            Step::Forget => {
                self.floor = self.index();
                self.open();
            }
        }
    }
}

fn job(id: JobId, state: JobState) -> JobInfo {
    JobInfo::new(id, Path::root(), state)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn pages_and_events_in_any_order_converge(
        steps in prop::collection::vec(step(), 0..200),
    ) {
        let mut scenario = Scenario::begin(Start::Snapshot);
        steps.into_iter().for_each(|step| scenario.step(step));
        while scenario.cursor.next_page().is_some() {
            scenario.page();
        }
        scenario.events(usize::MAX / 2);
        let is: HashMap<_, _> =
            scenario.slots.iter().flatten().map(|&(id, state, _)| (id, state)).collect();
        prop_assert_eq!(&scenario.jobs, &is);
        prop_assert!(scenario.cursor.is_caught_up(), "no page is ahead of the events");
    }
}

#[test]
fn a_stale_page_is_rejected() {
    let mut scenario = Scenario::begin(Start::Snapshot);
    scenario.turn(0, Some(JobState::Dead));
    scenario.events(100);
    let page = JobsPage { index: scenario.index() - 1, ..JobsPage::default() };
    assert_eq!(scenario.cursor.page(&page), Err(StalePage));
    let page = JobsPage { index: scenario.index(), ..JobsPage::default() };
    assert_eq!(scenario.cursor.page(&page), Ok(PageResult::Last));
}

#[test]
fn a_resumed_feed_lists_only_after_a_loss() {
    let seen = FeedPosition { epoch: Epoch(1), index: 4 };
    let mut cursor = FeedCursor::new(Start::After(seen));
    assert_eq!(cursor.after(), Some(seen));
    assert!(!cursor.opened(seen));
    assert_eq!(cursor.next_page(), None);
    cursor.lost(FeedLoss::Rewound);
    assert_eq!(cursor.after(), None);
    assert!(cursor.opened(FeedPosition { epoch: Epoch(2), index: 3 }));
    assert_eq!(cursor.next_page(), Some(0));
}

#[test]
fn a_feed_from_now_on_never_lists() {
    let mut cursor = FeedCursor::new(Start::Now);
    assert!(!cursor.opened(FeedPosition { epoch: Epoch(1), index: 3 }));
    cursor.lost(FeedLoss::TooOld);
    assert!(!cursor.opened(FeedPosition { epoch: Epoch(1), index: 9 }));
    assert_eq!(cursor.next_page(), None);
}

#[test]
fn a_cursor_that_does_not_advance_ends_the_listing() {
    let mut cursor = FeedCursor::new(Start::Snapshot);
    cursor.opened(FeedPosition { epoch: Epoch(1), index: 0 });
    let page = JobsPage { next: Some(0), ..JobsPage::default() };
    assert_eq!(cursor.page(&page), Ok(PageResult::Last));
}
