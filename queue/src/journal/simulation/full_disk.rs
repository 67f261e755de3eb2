//! A disk that is full and stays full: only the journal itself frees space. All waiting jobs are
//! still delivered and complete, however many leases run, however small the commits are, and
//! other clients that keep connecting and being refused.

use std::collections::BTreeMap;
use std::path::Path;

use longshore_protocol::limits::SMALL_BYTES_MAX;
use longshore_protocol::messages::work::{
    Action, BatchBuilder, Checkpoint, NewSettle, Selection, SettleBatch, SettleBatchBuilder,
    Sources, Tokens,
};
use longshore_protocol::{
    Backoff, EnqueueOutcome, JobError, JobId, JobOptions, LinkId, NewJob, Role, SessionId,
    SettleOutcome, Token,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::super::simulated_disk::SimulatedDisk;
use super::super::{JournalOptions, SEGMENT_BYTES_MIN};
use super::log::{ManualBackground, SteppedLog};
use super::power::SeedReport;
use super::responses::poll_once;
use super::{DIR, env_or, options};
use crate::clock::{ClockCore, Reading};
use crate::journal::files::pin::Pin;
use crate::store::StoreOptions;
use crate::{Command, Now, Released, Replay, Reply, Store};

const QUEUE: &str = "/full";
const MIB: u64 = 1024 * 1024;
/// The length of a step, in virtual time.
const STEP_MS: u64 = 10;
/// Most virtual time until another job completes.
const NEXT_WITHIN_MS: u64 = 20_000;
/// The worker's link and its subscription.
const WORKER: LinkId = LinkId(1);
const SUBSCRIPTION: u32 = 1;
/// The producer's link, which stays up.
const PRODUCER: LinkId = LinkId(2);

/// The parameters of a run, drawn from the seed.
#[derive(Debug)]
struct ScenarioConfig {
    disk_bytes: u64,
    payload_bytes: usize,
    /// Jobs of a batch while there is room.
    batch_jobs: usize,
    /// Credits of the worker.
    credits: u32,
    /// Jobs that the worker ends in one step.
    ended_at_a_time: usize,
    /// Settles that share a batch.
    settle_batch: usize,
    /// Producers per second that connect, have a job refused, and disconnect.
    visitors: u64,
    /// Steps from one cycle to the next.
    cycle_steps: u64,
    /// Most steps after each chunk that a cycle writes.
    steps_per_chunk: u64,
    /// Steps of enqueueing after the first refusal.
    steps_after_refusal: u64,
    /// Whether ended jobs are retained.
    retains_jobs: bool,
    /// Most bytes of a result, or of an error.
    result_bytes: usize,
    /// Of ten settles, this many are failures whose job runs again.
    failures: u32,
    /// Checkpoints in each step.
    checkpoints: u64,
    /// Jobs that a tool names each second; none of them exists.
    named_jobs: usize,
    /// Settles without a lease in each step, with results of the largest small size.
    stale: u64,
    /// Seconds out of four in which the journal is being copied.
    copies: u64,
}

impl ScenarioConfig {
    fn of(random: &mut StdRng) -> ScenarioConfig {
        let mut one_of = |choices: &[u64]| choices[random.random_range(0..choices.len())];
        let payload_bytes = one_of(&[10, 300, 1_500, 4_000]);
        let mut config = ScenarioConfig {
            disk_bytes: one_of(&[12, 16, 24]) * MIB,
            payload_bytes: payload_bytes as usize,
            batch_jobs: one_of(&[10, 100]) as usize,
            credits: one_of(&[1, 16, 516, 2_000]) as u32,
            ended_at_a_time: one_of(&[16, 100]) as usize,
            settle_batch: one_of(&[1, 10, 100]) as usize,
            visitors: one_of(&[0, 1, 20, 60]),
            cycle_steps: one_of(&[3, 20, 100]),
            steps_per_chunk: one_of(&[0, 1, 4, 16]),
            steps_after_refusal: one_of(&[0, 100, 1_000]),
            // Retained jobs take room: the end of a very small job takes more than it frees.
            retains_jobs: payload_bytes > 10 && one_of(&[0, 1]) == 1,
            result_bytes: one_of(&[0, 100, SMALL_BYTES_MAX as u64, 2 * SMALL_BYTES_MAX as u64])
                as usize,
            failures: one_of(&[0, 1, 5]) as u32,
            checkpoints: one_of(&[0, 0, 1, 10]),
            named_jobs: one_of(&[0, 100, 10_000]) as usize,
            stale: one_of(&[0, 0, 1, 20]),
            copies: one_of(&[0, 0, 1, 3]),
        };
        // Retained results fill the disk with nothing to free: there is no guarantee for that.
        if config.retains_jobs {
            config.result_bytes = 0;
        }
        config
    }
}

/// An unanswered settle.
#[derive(Clone, Copy, Debug)]
struct SentSettle {
    token: Token,
    ends: bool,
    is_small: bool,
    /// Its lease ended before.
    is_stale: bool,
}

/// A publisher on its disk, a producer, a worker, and visiting producers.
struct FullDiskScenario {
    random: StdRng,
    store: Store<SteppedLog>,
    background: ManualBackground,
    config: ScenarioConfig,
    now: Now,
    next_job: u64,
    next_link: u64,
    next_batch: u64,
    next_settle: u64,
    leases: Vec<Token>,
    /// Unanswered settles, by batch.
    sent: BTreeMap<u64, Vec<SentSettle>>,
    /// The pin of a running copy.
    copy: Option<Pin>,
    disk: SimulatedDisk,
    /// Answered jobs.
    accepted: u64,
    refused: u64,
    ended: u64,
    /// Turns after which the delivery budget was exhausted.
    deliveries_exhausted: u64,
    /// When the disk is measured.
    measure_at: u64,
    /// When a cycle begins.
    cycle_at: u64,
}

impl FullDiskScenario {
    fn start(mut random: StdRng) -> FullDiskScenario {
        let config = ScenarioConfig::of(&mut random);
        FullDiskScenario::with(random, config, SEGMENT_BYTES_MIN)
    }

    fn with(random: StdRng, config: ScenarioConfig, segment_bytes: u64) -> FullDiskScenario {
        let disk = SimulatedDisk::default();
        disk.set_capacity(Some(config.disk_bytes));
        let options = JournalOptions { segment_bytes, ..options() };
        let mut replay = Replay::new();
        let (log, background, recovered) =
            SteppedLog::open(&disk, options, &mut replay, Default::default()).expect("room");
        let now = Now { mono_ms: 1_000, wall_ms: 1_700_000_000_000 };
        let reading = Reading { boot_ms: now.mono_ms, wall_ms: now.wall_ms };
        let stamp = ClockCore::start([1; 8], reading, None).stamp();
        let secret = crate::Secret([0x5e; 16]);
        let options = StoreOptions { secret, cache_bytes: 1 << 20, ..StoreOptions::default() };
        let store = Store::start(log, replay, recovered.publisher, now, stamp, options);
        let mut scenario = FullDiskScenario {
            random,
            store: store.expect("room"),
            background,
            config,
            now,
            next_job: 0,
            next_link: PRODUCER.0 + 1,
            next_batch: 1,
            next_settle: 1,
            leases: Vec::new(),
            sent: BTreeMap::new(),
            copy: None,
            disk,
            accepted: 0,
            refused: 0,
            ended: 0,
            deliveries_exhausted: 0,
            measure_at: 0,
            cycle_at: 0,
        };
        scenario.link_up(PRODUCER, Role::Producer);
        scenario
    }

    fn submit(&mut self, command: Command) {
        self.store.submit(self.now, command).expect("a full disk is no failure");
    }

    fn link_up(&mut self, link: LinkId, role: Role) {
        let mut session = [0; 16];
        session[8..].copy_from_slice(&link.0.to_be_bytes());
        let (name, resume) = (format!("client {}", link.0), Tokens::default());
        self.submit(Command::LinkUp {
            link,
            role,
            session: SessionId(session),
            name,
            identity: String::new(),
            work: None,
            resume,
        });
    }

    fn enqueue(&mut self, link: LinkId, sequence: u64, jobs: usize) {
        let mut batch = BatchBuilder::new();
        for _ in 0..jobs {
            self.next_job += 1;
            let mut random = [0; 10];
            random[2..].copy_from_slice(&self.next_job.to_be_bytes());
            let id = JobId::new_v7(self.now.wall_ms, random);
            let payload = vec![7; self.config.payload_bytes];
            let job = NewJob::new(QUEUE.parse().expect("a path"), id, payload);
            let options = JobOptions {
                keep_ms: (!self.config.retains_jobs).then_some(0),
                max_attempts: Some(1_000),
                backoff: Some(Backoff::Fixed(0)),
                ..job.options
            };
            batch.push(&NewJob { options, ..job });
        }
        let batch = batch.seal(false).to_batch(sequence).expect("within the limits");
        self.submit(Command::Enqueue { link, batch });
    }

    /// Commits, and receives the outcomes.
    fn commit(&mut self) {
        loop {
            let mut released = Released::default();
            let outcome = poll_once(self.store.released(&mut released));
            let Released { assignments, replies, revoked, .. } = released;
            self.leases.extend(assignments.iter().map(|one| one.token));
            self.leases.retain(|token| !revoked.iter().any(|(.., revoked)| revoked == token));
            for (_, reply) in replies {
                match reply {
                    Reply::Enqueued(answer) => {
                        let outcome = answer.outcome.expect("no gap");
                        let accepted =
                            outcome.iter().filter(|it| *it == EnqueueOutcome::Created).count()
                                as u64;
                        self.accepted += accepted;
                        self.refused += outcome.len() as u64 - accepted;
                    }
                    Reply::Settled(answer) => {
                        let sent = self.sent.remove(&answer.sequence).expect("it was sent");
                        assert_eq!(sent.len(), answer.outcomes.len());
                        for (settle, outcome) in sent.into_iter().zip(answer.outcomes.iter()) {
                            self.receive_settled(settle, outcome);
                        }
                    }
                    _ => {}
                }
            }
            match outcome {
                Some(Ok(())) if !self.store.is_released() => {}
                Some(outcome) => break outcome.expect("a full disk is no failure"),
                None => break,
            }
        }
    }

    fn receive_settled(&mut self, settle: SentSettle, outcome: SettleOutcome) {
        let SentSettle { token, ends, is_small, is_stale } = settle;
        match outcome {
            SettleOutcome::Accepted => self.ended += u64::from(ends),
            // Refused for now: sends a shorter result next time.
            SettleOutcome::NoSpace if !is_small || is_stale => {
                self.config.result_bytes = self.config.result_bytes.min(SMALL_BYTES_MAX);
                if !is_stale {
                    self.leases.push(token);
                }
            }
            SettleOutcome::StaleToken if is_stale => {}
            other => panic!("{settle:?}: {other:?}, {}", self.status()),
        }
    }

    /// Runs `something`, advances time, and does the journal's background work; runs `something`
    /// again between the chunks of a cycle.
    fn step(&mut self, mut something: impl FnMut(&mut FullDiskScenario)) {
        something(self);
        self.now.mono_ms += STEP_MS;
        self.now.wall_ms += STEP_MS;
        if self.now.mono_ms >= self.measure_at {
            self.measure_at = self.now.mono_ms + 1_000;
            self.background.ballast().measure_and_grow();
        }
        if self.now.mono_ms >= self.cycle_at {
            self.cycle_at = self.now.mono_ms + self.config.cycle_steps * STEP_MS;
            self.background.request_snapshot();
        }
        self.advance();
        if self.background.is_cycle_ready() {
            let background = self.background.clone();
            let cycled = background.cycle(&mut || {
                let most = self.config.steps_per_chunk;
                for _ in 0..self.random.random_range(0..=most) {
                    something(self);
                    self.advance();
                }
            });
            cycled.expect("a full disk is no failure");
        }
    }

    fn advance(&mut self) {
        self.background.make_segment().expect("a full disk is no failure");
        self.store.advance(self.now).expect("a full disk is no failure");
        self.deliveries_exhausted += u64::from(self.store.state().delivery_budget() == 0);
        self.commit();
    }

    /// A producer connects, enqueues a job, and disconnects.
    fn visit(&mut self) {
        let link = LinkId(self.next_link);
        self.next_link += 1;
        self.link_up(link, Role::Producer);
        self.enqueue(link, 1, 1);
        self.commit();
        self.submit(Command::LinkLost { link });
    }

    fn visits(&mut self) {
        let steps = 1_000 / STEP_MS;
        let step = self.now.mono_ms / STEP_MS % steps;
        let visits = |step: u64| step * self.config.visitors / steps;
        for _ in visits(step)..visits(step + 1) {
            self.visit();
        }
    }

    fn fill(&mut self) {
        let mut refused_steps = 0;
        while refused_steps <= self.config.steps_after_refusal {
            // A refused producer backs off, up to a second.
            let waits = refused_steps > 0 && !self.now.mono_ms.is_multiple_of(1_000);
            self.step(|scenario| {
                if !waits {
                    let sequence = scenario.next_batch;
                    scenario.next_batch += 1;
                    scenario.enqueue(PRODUCER, sequence, scenario.config.batch_jobs);
                    scenario.commit();
                }
            });
            if self.refused > 0 {
                refused_steps += 1;
                self.visits();
            }
        }
    }

    fn work_off(&mut self) {
        self.link_up(WORKER, Role::Worker);
        let sources = Sources::one(QUEUE.parse().expect("a pattern"));
        self.submit(Command::Subscribe {
            link: WORKER,
            subscription: SUBSCRIPTION,
            sources,
            handlers: 1_000,
        });
        let count = self.config.credits;
        self.submit(Command::Credit { link: WORKER, subscription: SUBSCRIPTION, count });
        let (mut ended, mut since) = (0, self.now.mono_ms);
        while self.ended < self.accepted {
            if self.ended > ended {
                (ended, since) = (self.ended, self.now.mono_ms);
            }
            assert!(self.now.mono_ms <= since + NEXT_WITHIN_MS, "stuck: {}", self.status());
            self.step(|scenario| {
                scenario.send_refusable();
                scenario.settle();
            });
            self.store.renew(self.now, WORKER, &Tokens(self.leases.clone()));
            self.visits();
        }
    }

    fn settle(&mut self) {
        let mut left = self.config.ended_at_a_time;
        while left > 0 && !self.leases.is_empty() {
            let together = self.config.settle_batch.min(left).min(self.leases.len());
            left -= together;
            let mut batch = SettleBatchBuilder::new();
            let mut sent = Vec::new();
            for token in self.leases.drain(..together) {
                let most = self.config.result_bytes;
                // The errors of a job are retained with it.
                let fails = !self.config.retains_jobs
                    && self.random.random_range(0..10) < self.config.failures;
                // The error's kind and length take 8 bytes.
                let bytes = self.random.random_range(0..=most);
                let settle = match fails {
                    true => NewSettle::Fail(JobError {
                        kind: String::new(),
                        message: "x".repeat(bytes.saturating_sub(8)),
                    }),
                    false => {
                        NewSettle::Complete { result: (most > 0).then(|| vec![1; bytes].into()) }
                    }
                };
                batch.push(token, &settle);
                let (ends, is_small) = (!fails, most <= SMALL_BYTES_MAX);
                sent.push(SentSettle { token, ends, is_small, is_stale: false });
            }
            self.send(batch, sent);
            let (subscription, count) = (SUBSCRIPTION, together as u32);
            self.submit(Command::Credit { link: WORKER, subscription, count });
            self.commit();
        }
    }

    fn send(&mut self, batch: SettleBatchBuilder, sent: Vec<SentSettle>) {
        let batch = SettleBatch::decode(batch.seal(self.next_settle)).expect("it fits");
        self.sent.insert(self.next_settle, sent);
        self.next_settle += 1;
        self.submit(Command::Settle { link: WORKER, batch });
    }

    /// Sends commands of a worker and a tool that may all be refused.
    fn send_refusable(&mut self) {
        for _ in 0..self.config.stale {
            let mut batch = SettleBatchBuilder::new();
            let token = Token(u64::MAX);
            let result = Some(vec![1; SMALL_BYTES_MAX].into());
            batch.push(token, &NewSettle::Complete { result });
            self.send(
                batch,
                vec![SentSettle { token, ends: false, is_small: true, is_stale: true }],
            );
        }
        for n in 0..self.config.checkpoints {
            let Some(&token) = self.leases.first() else { break };
            let sequence = self.now.mono_ms * 100 + n;
            let body = Checkpoint::body_of(token, sequence, &vec![0; SMALL_BYTES_MAX].into());
            let checkpoint = Checkpoint::decode(body).expect("within the limits");
            self.submit(Command::Checkpoint { link: WORKER, checkpoint });
        }
        let second = self.now.mono_ms / 1_000;
        if !self.now.mono_ms.is_multiple_of(1_000) {
            return;
        }
        if self.config.named_jobs > 0 {
            let ids = (0..self.config.named_jobs).map(|_| JobId(self.random.random())).collect();
            let (link, selection) = (PRODUCER, Selection::Ids(ids));
            let (action, pace) = (Action::Cancel, None);
            self.submit(Command::Act {
                link,
                request: second,
                action,
                selection,
                pace,
                within: None,
            });
        }
        let copies = second % 4 < self.config.copies;
        self.copy = self.copy.take().filter(|_| copies).or_else(|| {
            copies.then(|| Pin::to_read(&self.disk, Path::new(DIR)).expect("nobody deletes now"))
        });
    }

    fn status(&self) -> String {
        format!(
            "{} of {} jobs ended, {} run; {:?}, {:?}; {:?}",
            self.ended,
            self.accepted,
            self.leases.len(),
            self.store.space(),
            self.background.ballast().budget(0),
            self.config,
        )
    }
}

#[test]
fn waiting_jobs_complete_on_a_disk_that_stays_full() {
    let (mut short, mut limited) = (0, 0);
    for seed in 0..env_or("LONGSHORE_WORKED_OFF", 4) {
        let report = SeedReport(seed);
        let mut scenario = FullDiskScenario::start(StdRng::seed_from_u64(seed));
        scenario.fill();
        assert!(
            scenario.accepted > 100 && scenario.refused > 0,
            "nothing was filled: {}",
            scenario.status()
        );
        short += u64::from(scenario.store.space().level.is_short());
        scenario.work_off();
        limited += u64::from(scenario.deliveries_exhausted > 0);
        drop(report);
    }
    assert!(short > 0, "no disk was full when the worker connected");
    assert!(limited > 0, "deliveries were never limited");
}

#[test]
fn waiting_jobs_complete_within_a_quota_that_the_disk_does_not_report() {
    let config = ScenarioConfig {
        disk_bytes: 64 * MIB,
        payload_bytes: 1_500,
        batch_jobs: 100,
        credits: 64,
        ended_at_a_time: 64,
        settle_batch: 10,
        visitors: 1,
        cycle_steps: 20,
        steps_per_chunk: 1,
        steps_after_refusal: 100,
        retains_jobs: false,
        result_bytes: 100,
        failures: 0,
        checkpoints: 0,
        named_jobs: 0,
        stale: 0,
        copies: 0,
    };
    let mut scenario = FullDiskScenario::with(StdRng::seed_from_u64(0), config, 4 * MIB);
    scenario.disk.hide_capacity();
    scenario.fill();
    assert!(scenario.accepted > 10_000, "{}", scenario.status());
    scenario.work_off();
}
