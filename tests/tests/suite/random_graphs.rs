//! Large random graphs at the state of a publisher, in virtual time: over crashes of publisher and
//! workers, each job runs if and only if what it waits for has happened, once.

use std::collections::{BTreeMap, HashMap};

use longshore::protocol::messages::work::{
    Action, ActionReport, BatchBuilder, Filter, NewSettle, Selection, SettleBatch,
    SettleBatchBuilder, Sources, Tokens,
};
use longshore::protocol::{
    Durability, EnqueueOutcome, Epoch, Glob, JobError, LinkId, PublisherId, Role, SessionId,
    SettleOutcome, Token,
};
use longshore::{JobId, JobState, Path};
use longshore_queue::{Command, LeaseEnd, Now, Outcomes, Reply, Rules, Secret, Start, State};
use longshore_tests::graphs::{DIES, Graph, is_batch};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use crate::long::long;

const QUEUE: &str = "/jobs/graph";
/// Jobs of an enqueued batch, and the most that run at once.
const BATCH: usize = 500;
/// Ended jobs that some queues keep.
const KEPT_FEW: u64 = 10;
/// One command in so many is followed by a crash of the publisher.
const CRASH_EVERY: u32 = 50;

/// A publisher's state, its log since the last snapshot, and the worker's link.
struct Publisher {
    state: State,
    now: Now,
    index: u64,
    snapshot: Vec<u8>,
    log: Vec<(u64, Now, Command)>,
    producer: LinkId,
    worker: LinkId,
    settles: u64,
    running: BTreeMap<Token, JobId>,
    random: StdRng,
    /// The queue forgets ended jobs early, so that batches hold them.
    keeps_few: bool,
}

impl Publisher {
    fn start(seed: u64) -> Publisher {
        let state = State::new();
        let mut publisher = Publisher {
            snapshot: state.snapshot_bytes(),
            state,
            now: Now { mono_ms: 1_000, wall_ms: 1_700_000_000_000 },
            index: 0,
            log: Vec::new(),
            producer: LinkId(0),
            worker: LinkId(0),
            settles: 0,
            running: BTreeMap::new(),
            random: StdRng::seed_from_u64(seed),
            keeps_few: seed % 2 == 1,
        };
        publisher.restart();
        publisher
    }

    fn apply(&mut self, command: Command) -> Outcomes {
        self.index += 1;
        let mut out = Outcomes::default();
        self.state.apply(self.index, self.now, &command, &mut out);
        for given in &out.assignments {
            let job = self.state.job_of(given.token).expect("it was just delivered");
            assert!(self.running.insert(given.token, job).is_none(), "a token twice");
        }
        self.log.push((self.index, self.now, command));
        out
    }

    /// The publisher starts again, and its clients come back.
    fn restart(&mut self) {
        let ended_per_queue =
            if self.keeps_few { KEPT_FEW } else { Rules::STANDARD.ended_per_queue };
        let rules = Rules { lease_ms: 60_000, ended_per_queue, ..Rules::STANDARD };
        let epoch = self.state.last_start().map_or(1, |start| start.epoch.0 + 1);
        self.apply(Command::Start(Start {
            publisher: PublisherId([7; 16]),
            epoch: Epoch(epoch),
            boot: [1; 16],
            secret: Secret([0x5e; 16]),
            rules: Box::new(rules),
            durability: Durability::Fsync,
            paths: Vec::new(),
            defaults: vec![Path::new("/jobs").expect("a path")],
        }));
        self.producer = self.attach(Role::Producer, 1, Vec::new());
        let leases = self.running.keys().copied().collect();
        self.worker = self.attach(Role::Worker, 2, leases);
        let sources = Sources::one(Glob::new(QUEUE).expect("a pattern"));
        let (link, subscription) = (self.worker, 1);
        self.apply(Command::Subscribe { link, subscription, sources, handlers: 1_000 });
    }

    fn attach(&mut self, role: Role, session: u8, resume: Vec<Token>) -> LinkId {
        let link = self.state.next_link();
        self.apply(Command::LinkUp {
            link,
            role,
            session: SessionId([session; 16]),
            name: format!("client {session}"),
            identity: String::new(),
            work: None,
            resume: Tokens(resume),
        });
        link
    }

    /// Sometimes the publisher crashes: it replays its log onto its last snapshot, and starts
    /// again. Sometimes it writes a snapshot.
    fn maybe_crash(&mut self) {
        if !self.random.random_ratio(1, CRASH_EVERY) {
            return;
        }
        let mut replayed = State::restore(&self.snapshot).expect("a snapshot");
        for (index, now, command) in &self.log {
            replayed.apply(*index, *now, command, &mut Outcomes::default());
        }
        let bytes = replayed.snapshot_bytes();
        assert!(bytes == self.state.snapshot_bytes(), "a replay differs");
        self.state = replayed;
        self.state.invariant().expect("the invariant holds");
        if self.random.random_bool(0.5) {
            (self.snapshot, self.log) = (bytes, Vec::new());
        }
        self.restart();
    }

    fn enqueue(&mut self, graph: &Graph) {
        for (sequence, jobs) in (1u64..).zip(graph.jobs.chunks(BATCH)) {
            let mut builder = BatchBuilder::new();
            jobs.iter().for_each(|job| builder.push(job));
            let batch = builder.seal(true).to_batch(sequence).expect("a built batch decodes");
            let out = self.apply(Command::Enqueue { link: self.producer, batch });
            let created = out.replies.iter().any(|(_, reply)| match reply {
                Reply::Enqueued(answer) => {
                    let mut outcomes = answer.outcome.as_ref().expect("accepted").iter();
                    outcomes.all(|outcome| outcome == EnqueueOutcome::Created)
                }
                _ => false,
            });
            assert!(created, "{:?}", out.replies);
            self.maybe_crash();
        }
    }

    fn act(&mut self, action: Action, selection: Selection) -> ActionReport {
        let (link, request) = (self.state.next_link(), 1);
        let act = Command::Act { link, request, action, selection, pace: None, within: None };
        let out = self.apply(act);
        let report = out.replies.into_iter().find_map(|(_, reply)| match reply {
            Reply::Acted { report, .. } => Some(report),
            _ => None,
        });
        report.expect("an act is answered")
    }

    /// Applies ticks until nothing is due.
    fn tick(&mut self) {
        while self.state.next_timer_ms(self.now).is_some_and(|at| at <= self.now.mono_ms) {
            self.apply(Command::Tick);
            self.maybe_crash();
        }
    }

    /// Settles some running jobs. Returns the jobs that ended.
    fn settle_some(&mut self, graph: &HashMap<JobId, bool>) -> Vec<JobId> {
        let mut tokens: Vec<Token> = self.running.keys().copied().collect();
        tokens.shuffle(&mut self.random);
        tokens.truncate(self.random.random_range(1..=tokens.len()));
        let (mut ended, mut lost) = (Vec::new(), Vec::new());
        let mut builder = SettleBatchBuilder::new();
        for token in tokens {
            let job = self.running.remove(&token).expect("it is listed");
            let error = || JobError { kind: "test".to_owned(), message: "no luck".to_owned() };
            let settle = match self.random.random_range(0..40) {
                0 => NewSettle::Fail(error()),
                1 => {
                    lost.push(LeaseEnd { token, started: true, uncounted: true, timed_out: false });
                    continue;
                }
                _ if graph[&job] => NewSettle::Bury(error()),
                _ => NewSettle::Complete { result: None },
            };
            if !matches!(settle, NewSettle::Fail(_)) {
                ended.push(job);
            }
            builder.push(token, &settle);
        }
        self.apply(Command::Expire { leases: lost });
        self.settles += 1;
        let batch = SettleBatch::decode(builder.seal(self.settles)).expect("a built batch decodes");
        let link = self.worker;
        let out = self.apply(Command::Settle { link, batch });
        let accepted = out.replies.iter().any(|(_, reply)| match reply {
            Reply::Settled(answer) => {
                answer.outcomes.iter().all(|outcome| outcome == SettleOutcome::Accepted)
            }
            _ => false,
        });
        assert!(accepted, "{:?}", out.replies);
        ended
    }
}

#[test]
fn jobs_of_random_graphs_run_once_what_they_wait_for_has_happened() {
    let (seeds, jobs) = if long() { (1_000, 10_000) } else { (3, 2_000) };
    for seed in 0..seeds {
        run(seed, jobs);
    }
}

fn run(seed: u64, jobs: usize) {
    let graph = Graph::random(&Path::new(QUEUE).expect("a path"), jobs, seed);
    let dies: HashMap<JobId, bool> =
        graph.jobs.iter().map(|job| (job.id, job.payload == DIES)).collect();
    let mut publisher = Publisher::start(seed);
    publisher.enqueue(&graph);
    let batches = graph.batches();
    for batches in batches.chunks(BATCH) {
        let closed = publisher.act(Action::CloseBatch, Selection::Ids(batches.to_vec()));
        assert_eq!(closed.done, batches.len() as u64);
    }
    let mut ended: HashMap<JobId, u32> = HashMap::new();
    loop {
        publisher.tick();
        let (link, count) = (publisher.worker, publisher.random.random_range(1..=BATCH as u32));
        publisher.apply(Command::Credit { link, subscription: 1, count });
        publisher.maybe_crash();
        if publisher.running.is_empty() {
            // Failed jobs wait for their next attempts; nothing else has a time of its own.
            match publisher.state.next_timer_ms(publisher.now) {
                Some(at) if at < publisher.now.mono_ms + 3_600_000 => {
                    let ms = at.saturating_sub(publisher.now.mono_ms);
                    publisher.now.mono_ms += ms;
                    publisher.now.wall_ms += ms;
                    continue;
                }
                _ => break,
            }
        }
        for job in publisher.settle_some(&dies) {
            *ended.entry(job).or_default() += 1;
        }
        publisher.maybe_crash();
    }
    publisher.state.invariant().expect("the invariant holds");
    let ends = graph.ends();
    for job in &graph.jobs {
        let (expected, known) = (ends[&job.id], publisher.state.job_state(&job.id));
        let is_forgotten = publisher.keeps_few && !is_kept(expected) && known.is_none();
        assert!(is_forgotten || known == Some(expected), "seed {seed}, {}: {known:?}", job.id);
        let has_run = matches!(expected, JobState::Completed | JobState::Dead) && !is_batch(job);
        assert_eq!(ended.get(&job.id).copied(), has_run.then_some(1), "seed {seed}, {}", job.id);
    }
    collect(&mut publisher);
}

/// True of jobs that are not forgotten early.
fn is_kept(state: JobState) -> bool {
    !matches!(state, JobState::Completed | JobState::Cancelled)
}

/// Cancels and drops everything: nothing is left.
fn collect(publisher: &mut Publisher) {
    let empty = State::new().memory_bytes();
    let all = || Selection::Matching(Filter::of(Glob::new("/**").expect("a pattern")));
    while publisher.act(Action::Cancel, all()).more {}
    publisher.tick();
    while publisher.act(Action::Drop, all()).more {}
    publisher.tick();
    while let Some(at) = publisher.state.next_timer_ms(publisher.now) {
        let ms = at.saturating_sub(publisher.now.mono_ms);
        publisher.now.mono_ms += ms;
        publisher.now.wall_ms += ms;
        publisher.apply(Command::Tick);
    }
    let left = publisher.state.memory_bytes() - empty;
    assert!(publisher.state.totals().jobs == 0 && left < 10_000, "{left} bytes are left");
}
