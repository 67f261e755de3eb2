//! Many producers' lives at random: publishers that are killed, stopped, moved, forgetful; a
//! network that delays and loses. The word that each job's producer gets is compared with what is
//! on the publishers' disks.

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

/// A publisher: its disk outlives it.
#[derive(Default)]
struct Disk {
    jobs: BTreeMap<u64, usize>,
    next: u64,
    up: bool,
    stopping: bool,
    /// The link that is attached.
    link: Option<u64>,
    epoch: u64,
}

struct World {
    scenario: Scenario,
    rng: StdRng,
    disks: Vec<Disk>,
    events: BinaryHeap<std::cmp::Reverse<(Time, u64, Event)>>,
    counter: u64,
    flying: BTreeMap<(usize, u64, u64), SealedBatch>,
    ends: BTreeMap<u64, BatchEnd>,
    pushed: u64,
    refused: BTreeSet<u64>,
}

const PUBLISHERS: usize = 3;
const JOBS: u64 = 60;

impl World {
    fn new(seed: u64, failover: Failover) -> World {
        let rules = LaneRules { batch_jobs_max: 4, eager_batches: 2, ..single() };
        let mut scenario = Scenario::with(rules, failover);
        scenario.ask();
        let disk = |_| Disk { next: 1, up: true, epoch: 1, ..Disk::default() };
        World {
            scenario,
            rng: StdRng::seed_from_u64(seed),
            disks: (0..PUBLISHERS).map(disk).collect(),
            events: BinaryHeap::new(),
            counter: 0,
            flying: BTreeMap::new(),
            ends: BTreeMap::new(),
            pushed: 0,
            refused: BTreeSet::new(),
        }
    }

    fn info(&self, at: usize) -> PublisherInfo {
        PublisherInfo { epoch: Epoch(self.disks[at].epoch), ..publisher(at as u8 + 1) }
    }

    fn later(&mut self, most_ms: u64, event: Event) {
        let wait = Duration::from_micros(self.rng.random_range(0..=most_ms * 1_000));
        self.counter += 1;
        self.events.push(std::cmp::Reverse((self.scenario.now + wait, self.counter, event)));
    }

    fn index(publisher: PublisherId) -> usize {
        usize::from(publisher.0[0]) - 1
    }

    /// What the core did goes on its way.
    fn carry(&mut self) {
        while let Some(dialled) = self.scenario.dialled.pop_front() {
            let (at, link) = (World::index(dialled.publisher), dialled.link.0);
            self.later(50, Event::DialEnds { at, link });
        }
        // Within one link nothing overtakes: all of one turn's batches arrive at the same time, in
        // order.
        let wait = self.rng.random_range(0..3_000);
        while let Some(sent) = self.scenario.sent.pop_front() {
            let (at, link) = (World::index(sent.publisher), sent.link.0);
            self.flying.insert((at, link, sent.sequence), sent.batch);
            self.counter += 1;
            let time =
                self.scenario.now.max(self.last_batch(at, link)) + Duration::from_micros(wait);
            let event = Event::Batch { at, link, sequence: sent.sequence };
            self.events.push(std::cmp::Reverse((time, self.counter, event)));
        }
        for (publisher, link) in std::mem::take(&mut self.scenario.closed) {
            let disk = &mut self.disks[World::index(publisher)];
            if disk.link == Some(link.0) {
                disk.link = None;
            }
        }
        if !self.scenario.asked.is_empty() {
            self.later(5, Event::Resolved);
        }
        while let Some(end) = self.scenario.ended.pop_front() {
            for job in end.jobs {
                let before = self.ends.insert(job, end.end.clone());
                assert!(before.is_none(), "job {job} has two ends");
            }
        }
    }

    fn last_batch(&self, at: usize, link: u64) -> Time {
        let of_link = |event: &Event| matches!(event, Event::Batch { at: a, link: l, .. } if (*a, *l) == (at, link));
        let times = self.events.iter().filter(|e| of_link(&e.0.2)).map(|e| e.0.0);
        times.max().unwrap_or_default()
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Push => {
                let n = self.pushed;
                self.pushed += 1;
                match self.scenario.try_push(&job(n)) {
                    Ok(()) => {}
                    Err(_) => {
                        self.refused.insert(n);
                        self.scenario.ask();
                    }
                }
            }
            Event::Kill(at) => {
                let disk = &mut self.disks[at];
                (disk.up, disk.stopping) = (false, false);
                if let Some(link) = disk.link.take() {
                    self.later(20, Event::LossSeen { at, link });
                }
                self.later(3_000, Event::Revive(at));
            }
            Event::Revive(at) => {
                let disk = &mut self.disks[at];
                if !disk.up {
                    (disk.up, disk.epoch) = (true, disk.epoch + 1);
                }
            }
            Event::Stop(at) => {
                self.disks[at].stopping = true;
                self.later(200, Event::Kill(at));
            }
            Event::DialEnds { at, link } => {
                let id = self.info(at).id;
                if self.disks[at].up && !self.rng.random_bool(0.1) {
                    if let Some(old) = self.disks[at].link.replace(link) {
                        self.later(20, Event::LossSeen { at, link: old });
                    }
                    let next = self.disks[at].next;
                    self.scenario.attach(id, LinkNumber(link), next);
                } else {
                    self.scenario.lose(id, LinkNumber(link));
                }
            }
            Event::Batch { at, link, sequence } => {
                let batch = self.flying.remove(&(at, link, sequence)).expect("sent once per link");
                let disk = &mut self.disks[at];
                if disk.link != Some(link) {
                    return;
                }
                let refusal = if disk.stopping {
                    // As careless as a publisher may be: it looks at nothing any more.
                    Some(BatchRefusal::Draining)
                } else if sequence > disk.next {
                    Some(BatchRefusal::SequenceGap)
                } else {
                    if sequence == disk.next {
                        disk.next += 1;
                        for entry in batch.to_batch(sequence).expect("a batch").entries() {
                            let id = number(entry.head.expect("an entry").id);
                            *disk.jobs.entry(id).or_default() += 1;
                        }
                    }
                    None
                };
                if self.rng.random_bool(0.04) {
                    // The link breaks with the answer on it.
                    self.disks[at].link = None;
                    self.later(20, Event::LossSeen { at, link });
                } else {
                    let refusal = refusal.map(BatchRefusal::code);
                    self.flying.insert((at, link, sequence), batch);
                    self.later(3, Event::Answer { at, link, sequence, refusal });
                }
            }
            Event::Answer { at, link, sequence, refusal } => {
                let batch = self.flying.remove(&(at, link, sequence)).expect("answered once");
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
                self.scenario.lose(id, LinkNumber(link));
            }
            Event::Resolved => {
                let infos: Vec<PublisherInfo> = (0..PUBLISHERS).map(|at| self.info(at)).collect();
                if !self.scenario.asked.is_empty() {
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
        self.carry();
        let end = secs(60);
        while self.scenario.now < end {
            let turn = self.scenario.core.next_deadline();
            let next = self.events.peek().map_or(turn, |event| event.0.0.min(turn));
            self.scenario.until(next.max(self.scenario.now));
            self.carry();
            while self.events.peek().is_some_and(|event| event.0.0 <= self.scenario.now) {
                let event = self.events.pop().expect("peeked").0.2;
                self.happen(event);
                self.carry();
            }
        }
    }

    /// Every word that was given is true of the disks.
    fn judge(&self, failover: Failover) {
        for job in (0..JOBS).filter(|job| !self.refused.contains(job)) {
            let at: Vec<usize> =
                (0..PUBLISHERS).filter(|&p| self.disks[p].jobs.contains_key(&job)).collect();
            let times: usize = self.disks.iter().filter_map(|disk| disk.jobs.get(&job)).sum();
            let end = self.ends.get(&job).unwrap_or_else(|| panic!("job {job} has no end"));
            match end {
                BatchEnd::Answered { publisher, may_be_at, .. } => {
                    assert!(
                        at.contains(&World::index(*publisher)),
                        "job {job} is not where it should be"
                    );
                    let others = usize::from(may_be_at.is_some());
                    assert!(times <= 1 + others, "job {job} is there {times} times, {end:?}");
                    assert!(others == 0 || failover == Failover::MayDuplicate);
                }
                BatchEnd::Unknown { publisher, .. } => {
                    let elsewhere = at.iter().any(|&p| p != World::index(*publisher));
                    assert!(
                        !elsewhere || failover == Failover::MayDuplicate,
                        "job {job} at {at:?}"
                    );
                }
                BatchEnd::Failed(error) => {
                    assert!(
                        at.is_empty(),
                        "job {job} is at {at:?} and was said to be nowhere: {error}"
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
    fn every_word_is_true_and_no_job_exists_twice(seed: u64) {
        let mut world = World::new(seed, Failover::SamePublisher);
        world.run();
        world.judge(Failover::SamePublisher);
    }

    #[test]
    fn with_duplicates_allowed_every_word_is_true(seed: u64) {
        let mut world = World::new(seed, Failover::MayDuplicate);
        world.run();
        world.judge(Failover::MayDuplicate);
    }
}

#[test]
fn publishers_that_come_back_leave_no_job_unknown() {
    let mut unknown = 0;
    for seed in 0..100 {
        let mut world = World::new(seed, Failover::SamePublisher);
        world.run();
        unknown += world.ends.values().filter(|e| matches!(e, BatchEnd::Unknown { .. })).count();
    }
    assert_eq!(unknown, 0, "every publisher is back within the time for an answer");
}
