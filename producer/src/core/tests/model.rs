//! Random simulation of publishers that crash, stop, move and forget, and of a network that delays
//! and loses. Every reported outcome is compared with the publishers' disks.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};

use super::*;

#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    Push,
    Kill(usize),
    Revive(usize),
    Stop(usize),
    DialEnds { at: usize, link: u64 },
    Batch { at: usize, link: u64, sequence: u64 },
    Answer { at: usize, link: u64, sequence: u64, refusal: Option<u8> },
    LossSeen { at: usize, link: u64 },
    Resolved,
}

/// A publisher with a disk that survives its crashes.
#[derive(Default)]
struct SimulatedPublisher {
    jobs: BTreeMap<u64, usize>,
    next: u64,
    up: bool,
    stopping: bool,
    /// The attached link.
    link: Option<u64>,
    epoch: u64,
}

struct Simulation {
    scenario: Scenario,
    rng: StdRng,
    publishers: Vec<SimulatedPublisher>,
    events: BinaryHeap<std::cmp::Reverse<(Time, u64, Event)>>,
    counter: u64,
    in_flight: BTreeMap<(usize, u64, u64), SealedBatch>,
    ends: BTreeMap<u64, BatchOutcome>,
    pushed: u64,
    refused: BTreeSet<u64>,
}

const PUBLISHERS: usize = 3;
const JOBS: u64 = 60;

impl Simulation {
    fn new(seed: u64, failover: Failover) -> Simulation {
        let limits = StreamLimits { batch_jobs_max: 4, eager_batches: 2, ..single() };
        let mut scenario = Scenario::with(limits, failover);
        scenario.request_route();
        let publisher_state =
            |_| SimulatedPublisher { next: 1, up: true, epoch: 1, ..SimulatedPublisher::default() };
        Simulation {
            scenario,
            rng: StdRng::seed_from_u64(seed),
            publishers: (0..PUBLISHERS).map(publisher_state).collect(),
            events: BinaryHeap::new(),
            counter: 0,
            in_flight: BTreeMap::new(),
            ends: BTreeMap::new(),
            pushed: 0,
            refused: BTreeSet::new(),
        }
    }

    fn info(&self, at: usize) -> PublisherInfo {
        PublisherInfo { epoch: Epoch(self.publishers[at].epoch), ..publisher(at as u8 + 1) }
    }

    fn later(&mut self, most_ms: u64, event: Event) {
        let wait = Duration::from_micros(self.rng.random_range(0..=most_ms * 1_000));
        self.counter += 1;
        self.events.push(std::cmp::Reverse((self.scenario.now + wait, self.counter, event)));
    }

    fn index(publisher: PublisherId) -> usize {
        usize::from(publisher.0[0]) - 1
    }

    /// Schedules the actions of the state machine.
    fn schedule_actions(&mut self) {
        while let Some(dials) = self.scenario.dials.pop_front() {
            let (at, link) = (Simulation::index(dials.publisher), dials.link.0);
            self.later(50, Event::DialEnds { at, link });
        }
        // A link preserves order: all batches of one step arrive at the same time, in order.
        let wait = self.rng.random_range(0..3_000);
        while let Some(sent) = self.scenario.sent.pop_front() {
            let (at, link) = (Simulation::index(sent.publisher), sent.link.0);
            self.in_flight.insert((at, link, sent.sequence), sent.batch);
            self.counter += 1;
            let time =
                self.scenario.now.max(self.last_batch(at, link)) + Duration::from_micros(wait);
            let event = Event::Batch { at, link, sequence: sent.sequence };
            self.events.push(std::cmp::Reverse((time, self.counter, event)));
        }
        for (publisher, link) in std::mem::take(&mut self.scenario.closed) {
            let publisher_state = &mut self.publishers[Simulation::index(publisher)];
            if publisher_state.link == Some(link.0) {
                publisher_state.link = None;
            }
        }
        if !self.scenario.resolve_requests.is_empty() {
            self.later(5, Event::Resolved);
        }
        while let Some(end) = self.scenario.ended.pop_front() {
            for job in end.jobs {
                let before = self.ends.insert(job, end.end.clone());
                assert!(before.is_none(), "job {job} has two outcomes");
            }
        }
    }

    fn last_batch(&self, at: usize, link: u64) -> Time {
        let of_link = |event: &Event| match event {
            Event::Batch { at: a, link: l, .. } => (*a, *l) == (at, link),
            _ => false,
        };
        let times = self.events.iter().filter(|e| of_link(&e.0.2)).map(|e| e.0.0);
        times.max().unwrap_or_default()
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Push => {
                let n = self.pushed;
                self.pushed += 1;
                match self.scenario.try_push(&job(n)) {
                    Ok(()) => {}
                    Err(_) => {
                        self.refused.insert(n);
                        self.scenario.request_route();
                    }
                }
            }
            Event::Kill(at) => {
                let publisher_state = &mut self.publishers[at];
                (publisher_state.up, publisher_state.stopping) = (false, false);
                if let Some(link) = publisher_state.link.take() {
                    self.later(20, Event::LossSeen { at, link });
                }
                self.later(3_000, Event::Revive(at));
            }
            Event::Revive(at) => {
                let publisher_state = &mut self.publishers[at];
                if !publisher_state.up {
                    (publisher_state.up, publisher_state.epoch) = (true, publisher_state.epoch + 1);
                }
            }
            Event::Stop(at) => {
                self.publishers[at].stopping = true;
                self.later(200, Event::Kill(at));
            }
            Event::DialEnds { at, link } => {
                let id = self.info(at).id;
                if self.publishers[at].up && !self.rng.random_bool(0.1) {
                    if let Some(old) = self.publishers[at].link.replace(link) {
                        self.later(20, Event::LossSeen { at, link: old });
                    }
                    let next = self.publishers[at].next;
                    self.scenario.attach(id, LinkNumber(link), next);
                } else {
                    self.scenario.lose_link(id, LinkNumber(link));
                }
            }
            Event::Batch { at, link, sequence } => {
                let batch =
                    self.in_flight.remove(&(at, link, sequence)).expect("sent once per link");
                let publisher_state = &mut self.publishers[at];
                if publisher_state.link != Some(link) {
                    return;
                }
                let refusal = if publisher_state.stopping {
                    // The most careless permitted behaviour: a stopping publisher checks nothing.
                    Some(BatchRefusal::Draining)
                } else if sequence > publisher_state.next {
                    Some(BatchRefusal::SequenceGap)
                } else {
                    if sequence == publisher_state.next {
                        publisher_state.next += 1;
                        for entry in batch.to_batch(sequence).expect("a batch").entries() {
                            let id = number(entry.head.expect("an entry").id);
                            *publisher_state.jobs.entry(id).or_default() += 1;
                        }
                    }
                    None
                };
                if self.rng.random_bool(0.04) {
                    // The link breaks with the answer in flight.
                    self.publishers[at].link = None;
                    self.later(20, Event::LossSeen { at, link });
                } else {
                    let refusal = refusal.map(BatchRefusal::code);
                    self.in_flight.insert((at, link, sequence), batch);
                    self.later(3, Event::Answer { at, link, sequence, refusal });
                }
            }
            Event::Answer { at, link, sequence, refusal } => {
                let batch = self.in_flight.remove(&(at, link, sequence)).expect("answered once");
                let outcome = match refusal.and_then(BatchRefusal::from_code) {
                    Some(refusal) => Err(refusal),
                    None => Ok(Runs::all(EnqueueOutcome::Created, batch.len())),
                };
                let answer = Enqueued { sequence, outcome };
                let id = self.info(at).id;
                self.scenario.core.answered(self.scenario.now, id, LinkNumber(link), answer);
                self.scenario.drain();
            }
            Event::LossSeen { at, link } => {
                let id = self.info(at).id;
                self.scenario.lose_link(id, LinkNumber(link));
            }
            Event::Resolved => {
                let infos: Vec<PublisherInfo> = (0..PUBLISHERS).map(|at| self.info(at)).collect();
                if !self.scenario.resolve_requests.is_empty() {
                    self.scenario.resolve(&infos);
                }
            }
        }
    }

    fn run(&mut self) {
        for n in 0..JOBS {
            self.later(40 * (n + 1), Event::Push);
        }
        for _ in 0..self.rng.random_range(0..8) {
            let at = self.rng.random_range(0..PUBLISHERS);
            let event = if self.rng.random_bool(0.5) { Event::Kill(at) } else { Event::Stop(at) };
            self.later(3_000, event);
        }
        self.schedule_actions();
        let end = secs(60);
        while self.scenario.now < end {
            let turn = self.scenario.core.next_deadline();
            let next = self.events.peek().map_or(turn, |event| event.0.0.min(turn));
            self.scenario.until(next.max(self.scenario.now));
            self.schedule_actions();
            while self.events.peek().is_some_and(|event| event.0.0 <= self.scenario.now) {
                let event = self.events.pop().expect("peeked").0.2;
                self.handle(event);
                self.schedule_actions();
            }
        }
    }

    /// Every reported outcome matches the disks.
    fn check_outcomes(&self, failover: Failover) {
        for job in (0..JOBS).filter(|job| !self.refused.contains(job)) {
            let at: Vec<usize> =
                (0..PUBLISHERS).filter(|&p| self.publishers[p].jobs.contains_key(&job)).collect();
            let times: usize = self
                .publishers
                .iter()
                .filter_map(|publisher_state| publisher_state.jobs.get(&job))
                .sum();
            let end = self.ends.get(&job).unwrap_or_else(|| panic!("job {job} has no outcome"));
            match end {
                BatchOutcome::Answered { publisher, may_be_at, .. } => {
                    assert!(
                        at.contains(&Simulation::index(*publisher)),
                        "job {job} is not where it should be"
                    );
                    let others = usize::from(may_be_at.is_some());
                    assert!(times <= 1 + others, "job {job} is there {times} times, {end:?}");
                    assert!(others == 0 || failover == Failover::MayDuplicate);
                }
                BatchOutcome::Unknown { publisher, .. } => {
                    let elsewhere = at.iter().any(|&p| p != Simulation::index(*publisher));
                    assert!(
                        !elsewhere || failover == Failover::MayDuplicate,
                        "job {job} at {at:?}"
                    );
                }
                BatchOutcome::Failed(error) => {
                    assert!(
                        at.is_empty(),
                        "job {job} is at {at:?} and was reported as unsent: {error}"
                    );
                }
            }
            if failover == Failover::SamePublisher {
                assert!(times <= 1, "job {job} is there {times} times");
            }
        }
        assert_eq!(self.scenario.core.in_flight_jobs(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_outcome_is_true_and_no_job_exists_twice(seed: u64) {
        let mut simulation = Simulation::new(seed, Failover::SamePublisher);
        simulation.run();
        simulation.check_outcomes(Failover::SamePublisher);
    }

    #[test]
    fn may_duplicate_reports_only_true_outcomes(seed: u64) {
        let mut simulation = Simulation::new(seed, Failover::MayDuplicate);
        simulation.run();
        simulation.check_outcomes(Failover::MayDuplicate);
    }
}

#[test]
fn publishers_that_return_leave_no_job_unknown() {
    let mut unknown = 0;
    for seed in 0..100 {
        let mut simulation = Simulation::new(seed, Failover::SamePublisher);
        simulation.run();
        unknown +=
            simulation.ends.values().filter(|e| matches!(e, BatchOutcome::Unknown { .. })).count();
    }
    assert_eq!(unknown, 0, "every publisher returns within the answer timeout");
}
