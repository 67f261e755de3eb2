//! A publisher, its clients and its disk, in virtual time: all of it drawn from one seed, so that a run can be repeated.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use longshore_protocol::messages::work::{
    Action, BatchBuilder, Checkpoint, Filter, NewSettle, Selection, SettleBatch,
    SettleBatchBuilder, Sources, Started, Tokens,
};
use longshore_protocol::{
    CheckpointOutcome, Due, JobError, JobId, JobOptions, JobState, LinkId, NewJob, Role,
    SettleOutcome, Token,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::super::simulated_disk::SimulatedDisk;
use super::super::{JournalOptions, OpenError, Recovered};
use super::log::{Hand, SteppedLog};
use super::reference::Reference;
use super::session::{Session, Settle};
use super::told::{Told, Try};
use crate::clock::{ClockCore, Reading};
use crate::log::ReadError;
use crate::store::StoreOptions;
use crate::{Command, LogStore, Now, Poisoned, Released, Replay, Reply};

const QUEUES: [&str; 3] = ["/a", "/a/b", "/c"];
/// What a session's subscription is called.
const SUBSCRIPTION: u32 = 1;

/// Everything that outlives a run of the publisher.
pub(super) struct World {
    pub(super) disk: SimulatedDisk,
    pub(super) random: StdRng,
    pub(super) told: Told,
    options: JournalOptions,
    now: Now,
    reference: Reference,
    sessions: Vec<Session>,
    /// Most bytes of a payload.
    payload_max: usize,
    /// Workers keep up, and most jobs are forgotten at once: segments die, but for the little that is kept.
    drains: bool,
    /// Snapshots are taken now and then.
    pub(super) takes_snapshots: bool,
    next_job: u64,
    next_link: u64,
    next_request: u64,
}

/// One run of the publisher.
pub(super) struct Run {
    store: LogStore<SteppedLog>,
    pub(super) hand: Hand,
    pub(super) recovered: Recovered,
    /// Parts that were told to be damaged when all was read.
    pub(super) damaged: u64,
}

impl World {
    /// Before the publisher's first start; with payloads up to some length.
    pub(super) fn new(seed: u64, options: JournalOptions) -> World {
        let mut random = StdRng::seed_from_u64(seed);
        let payload_max = [100, 2_000, 20_000, 100_000][random.random_range(0..4)];
        World { random, ..World::with_payloads(seed, options, payload_max) }
    }

    /// The same with payloads up to that length.
    pub(super) fn with_payloads(seed: u64, options: JournalOptions, payload_max: usize) -> World {
        let random = StdRng::seed_from_u64(seed);
        let roles = [Role::Producer, Role::Producer, Role::Worker, Role::Worker, Role::Tool];
        let sessions = (1..).zip(roles).map(|(number, role)| Session::new(number, role)).collect();
        World {
            disk: SimulatedDisk::default(),
            random,
            told: Told::default(),
            options,
            now: Now { mono_ms: 1_000, wall_ms: 1_700_000_000_000 },
            reference: Reference::default(),
            sessions,
            payload_max,
            drains: seed.is_multiple_of(2),
            takes_snapshots: true,
            next_job: 0,
            next_link: 0,
            next_request: 0,
        }
    }

    /// The same clients, told the same, with another disk.
    pub(super) fn fork(&self, disk: SimulatedDisk) -> World {
        World {
            disk,
            random: StdRng::seed_from_u64(0),
            told: self.told.clone(),
            options: self.options.clone(),
            now: self.now,
            reference: self.reference.fork(),
            sessions: self.sessions.clone(),
            payload_max: self.payload_max,
            drains: self.drains,
            takes_snapshots: self.takes_snapshots,
            next_job: self.next_job,
            next_link: self.next_link,
            next_request: self.next_request,
        }
    }

    /// Starts the publisher on what is on the disk, and holds what it finds against what was told.
    pub(super) fn open(&mut self) -> Result<Run, OpenError> {
        let mut replay = Replay::new();
        let submitted = self.reference.submitted();
        let (log, hand, recovered) =
            SteppedLog::open(&self.disk, self.options.clone(), &mut replay, submitted)?;
        let (told, last) = (self.told.index, recovered.last_index);
        assert!(last >= told, "{told} was told, and the journal ends with {last}");
        self.reference.recovered(last);
        self.reference.compare(replay.state(), self.now);
        // What a start has found is certain, told or not.
        self.told.index = last;
        let checked = self.told.check(replay.state(), self.now, &hand.reader(), &self.reference);
        let damaged = checked.map_err(|why| match why {
            ReadError::Io { file, error } => {
                let error = std::io::Error::new(error.kind(), error);
                OpenError::Io { what: "reading", file, error }
            }
            why => panic!("{why}"),
        })?;
        self.now.mono_ms += 1;
        let reading = Reading { boot_ms: self.now.mono_ms, wall_ms: self.now.wall_ms };
        let stamp = ClockCore::start([1; 8], reading, None).stamp();
        let options = StoreOptions { cache_bytes: 1 << 20, ..StoreOptions::default() };
        let publisher = recovered.publisher;
        let store = LogStore::start(log, replay, publisher, self.now, stamp, options)?;
        self.told.index = store.committed();
        self.next_link = store.state().next_link().0;
        Ok(Run { store, hand, recovered, damaged })
    }

    /// The publisher runs for so many steps, or until it fails.
    pub(super) fn live(&mut self, run: &mut Run, steps: u32) -> Result<(), Poisoned> {
        for session in 0..self.sessions.len() {
            self.attach(run, session)?;
        }
        self.steps(run, steps)
    }

    /// So many steps, with the clients as they are.
    pub(super) fn steps(&mut self, run: &mut Run, steps: u32) -> Result<(), Poisoned> {
        for _ in 0..steps {
            self.step(run)?;
        }
        self.release(run)
    }

    /// A snapshot of all that there is, with nothing meanwhile.
    pub(super) fn snapshot(&mut self, run: &mut Run) -> Result<(), Poisoned> {
        run.hand.want_snapshot();
        run.store.turn(self.now)?;
        self.release(run)?;
        run.hand.cycle(&mut || {})
    }

    fn step(&mut self, run: &mut Run) -> Result<(), Poisoned> {
        if run.hand.is_cycle_due() && self.random.random_bool(0.5) {
            self.cycle(run)?;
        }
        if self.takes_snapshots && self.random.random_bool(0.05) {
            run.hand.want_snapshot();
        }
        self.small_step(run)
    }

    /// A snapshot is written, while everything else goes on.
    pub(super) fn cycle(&mut self, run: &mut Run) -> Result<(), Poisoned> {
        let hand = run.hand.clone();
        let mut met = Ok(());
        let cycled = hand.cycle(&mut || {
            for _ in 0..self.random.random_range(0..3) {
                if met.is_ok() {
                    met = self.small_step(run);
                }
            }
        });
        cycled.and(met)
    }

    /// Something that takes no snapshot.
    fn small_step(&mut self, run: &mut Run) -> Result<(), Poisoned> {
        match self.random.random_range(0..100) {
            0..30 => self.enqueue(run)?,
            30..40 => self.credit(run)?,
            40..66 => self.settle(run)?,
            66..71 => self.checkpoint(run)?,
            71..78 => self.act(run)?,
            78..84 => self.report(run),
            84..90 => {
                let ms = [10, 500, 3_000, 3_000, 40_000][self.random.random_range(0..5)];
                self.pass(ms);
            }
            90..94 => {
                let session = self.random.random_range(0..self.sessions.len());
                if let Some(link) = self.sessions[session].link.take() {
                    run.store.submit(self.now, Command::LinkLost { link })?;
                }
                self.attach(run, session)?;
            }
            94..96 => self.pause(run)?,
            96 | 97 => run.hand.firm_mark()?,
            98 => run.hand.make_segment()?,
            _ => run.hand.keep_reserve()?,
        }
        run.store.turn(self.now)?;
        // Otherwise the next step goes into the same commit.
        match self.random.random_bool(0.6) {
            true => self.release(run),
            false => Ok(()),
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now.mono_ms += ms;
        self.now.wall_ms += ms;
    }

    fn link_of(&mut self, role: Role) -> Option<(usize, LinkId)> {
        let with_role = self.sessions.iter().enumerate().filter(|(_, found)| found.role == role);
        let linked = with_role.filter_map(|(place, found)| Some((place, found.link?)));
        let linked: Vec<_> = linked.collect();
        (!linked.is_empty()).then(|| linked[self.random.random_range(0..linked.len())])
    }

    fn bytes(&mut self, most: usize) -> Bytes {
        let length = match self.random.random_range(0..3) {
            0 => self.random.random_range(0..=most),
            _ => self.random.random_range(0..=most.min(300)),
        };
        let mut bytes = vec![0; length];
        self.random.fill(&mut bytes[..]);
        bytes.into()
    }

    // What clients do.

    /// A new link; what the last one left unanswered is sent again.
    fn attach(&mut self, run: &mut Run, place: usize) -> Result<(), Poisoned> {
        let link = LinkId(self.next_link);
        self.next_link += 1;
        let session = &mut self.sessions[place];
        session.link = Some(link);
        session.resent = session.next_settle - 1;
        // Nobody asks a tool's question again.
        session.asked = None;
        let unanswered = session.settles.values().flat_map(|(_, settles)| settles);
        let mut tokens: Vec<Token> = unanswered.map(|settle| settle.token).collect();
        tokens.extend(session.held.keys());
        tokens.sort_unstable();
        tokens.dedup();
        let (id, role, name) = (session.id, session.role, format!("client {place}"));
        let command = Command::LinkUp { link, role, session: id, name, resume: Tokens(tokens) };
        run.store.submit(self.now, command)?;
        self.release(run)?;
        let session = &mut self.sessions[place];
        session.check_attached();
        for (&sequence, (batch, _)) in &session.batches {
            let batch = batch.to_batch(sequence).expect("it was read before");
            run.store.submit(self.now, Command::Enqueue { link, batch })?;
        }
        for (body, settles) in session.settles.values() {
            settles.iter().for_each(|settle| self.told.try_(settle.job, Try::End));
            let batch = SettleBatch::decode(body.clone()).expect("it was read before");
            run.store.submit(self.now, Command::Settle { link, batch })?;
        }
        if role == Role::Worker {
            let sources = Sources::one("/**".parse().expect("a pattern"));
            let subscription = SUBSCRIPTION;
            run.store.submit(self.now, Command::Subscribe { link, subscription, sources })?;
        }
        Ok(())
    }

    fn enqueue(&mut self, run: &mut Run) -> Result<(), Poisoned> {
        let Some((place, link)) = self.link_of(Role::Producer) else { return Ok(()) };
        let count = if self.random.random_bool(0.1) { 60 } else { self.random.random_range(1..6) };
        // A batch is about as long as its longest payload, not as many of those.
        let most = self.payload_max * 3 / (count + 2);
        let (mut batch, mut ids) = (BatchBuilder::new(), Vec::new());
        for _ in 0..count {
            let job = self.job(most);
            ids.push(job.id);
            self.told.submit(&job);
            batch.push(&job);
        }
        let sealed = batch.seal(self.random.random_bool(0.2));
        let session = &mut self.sessions[place];
        let sequence = session.next_batch;
        session.next_batch += 1;
        let batch = sealed.to_batch(sequence).expect("within the limits");
        session.batches.insert(sequence, (sealed, ids));
        run.store.submit(self.now, Command::Enqueue { link, batch }).map(drop)
    }

    fn job(&mut self, most: usize) -> NewJob {
        self.next_job += 1;
        let mut random = [0; 10];
        random[2..].copy_from_slice(&self.next_job.to_be_bytes());
        let path = QUEUES[self.random.random_range(0..QUEUES.len())].parse().expect("a path");
        let id = JobId::new_v7(self.now.wall_ms, random);
        let chance = |of, random: &mut StdRng| random.random_range(0..of) == 0;
        let (random, drains) = (&mut self.random, self.drains);
        let options = JobOptions {
            priority: if chance(4, random) { random.random_range(-1..3) } else { 0 },
            due: if chance(5, random) { Due::After(2_000) } else { Due::Now },
            max_attempts: chance(3, random).then(|| random.random_range(1..4)),
            keep_ms: (chance(3, random) || drains && !chance(12, random)).then_some(0),
            keep_result: chance(2, random),
            ..JobOptions::default()
        };
        NewJob { options, ..NewJob::new(path, id, self.bytes(most)) }
    }

    fn credit(&mut self, run: &mut Run) -> Result<(), Poisoned> {
        let Some((_, link)) = self.link_of(Role::Worker) else { return Ok(()) };
        let most = if self.drains { 60 } else { 10 };
        let (subscription, count) = (SUBSCRIPTION, self.random.random_range(1..most));
        run.store.submit(self.now, Command::Credit { link, subscription, count }).map(drop)
    }

    fn settle(&mut self, run: &mut Run) -> Result<(), Poisoned> {
        let Some((place, link)) = self.link_of(Role::Worker) else { return Ok(()) };
        let mut batch = SettleBatchBuilder::new();
        let mut settles = Vec::new();
        let most = if self.drains { 40 } else { 6 };
        for _ in 0..self.random.random_range(1..most) {
            let Some((token, (job, _))) = self.sessions[place].held.pop_first() else { break };
            let error = JobError { kind: "Bad".to_owned(), message: "x".repeat(200) };
            let others = if self.drains { 30 } else { 10 };
            let (settle, end) = match self.random.random_range(0..others) {
                0..5 | 10.. => {
                    let result = self.random.random_bool(0.5).then(|| self.bytes(5_000));
                    (NewSettle::Complete { result }, Some(JobState::Completed))
                }
                5 | 6 => (NewSettle::Fail(error), None),
                7 => (NewSettle::Release, None),
                8 => (NewSettle::Snooze { ms: 1_000 }, None),
                _ => (NewSettle::Bury(error), Some(JobState::Dead)),
            };
            batch.push(token, &settle);
            self.told.try_(job, Try::End);
            settles.push(Settle { token, job, end });
        }
        if settles.is_empty() {
            return Ok(());
        }
        let session = &mut self.sessions[place];
        let body = batch.seal(session.next_settle);
        session.settles.insert(session.next_settle, (body.clone(), settles));
        session.next_settle += 1;
        let batch = SettleBatch::decode(body).expect("within the limits");
        run.store.submit(self.now, Command::Settle { link, batch }).map(drop)
    }

    fn checkpoint(&mut self, run: &mut Run) -> Result<(), Poisoned> {
        let Some((place, link)) = self.link_of(Role::Worker) else { return Ok(()) };
        let bytes = self.bytes(3_000);
        let Some(mut held) = self.sessions[place].held.first_entry() else { return Ok(()) };
        let token = *held.key();
        held.get_mut().1 += 1;
        let body = Checkpoint::body_of(token, held.get().1, &bytes);
        let checkpoint = Checkpoint::decode(body).expect("within the limits");
        run.store.submit(self.now, Command::Checkpoint { link, checkpoint }).map(drop)
    }

    /// What is not logged: renewals and beginnings.
    fn report(&mut self, run: &mut Run) {
        let Some((place, link)) = self.link_of(Role::Worker) else { return };
        let tokens = Tokens(self.sessions[place].held.keys().copied().collect());
        run.store.renew(self.now, link, &tokens);
        run.store.started(self.now, link, &Started { tokens, running_ms: Vec::new() });
    }

    fn act(&mut self, run: &mut Run) -> Result<(), Poisoned> {
        let Some((place, link)) = self.link_of(Role::Tool) else { return Ok(()) };
        let jobs = self.told.jobs();
        if jobs.is_empty() || self.sessions[place].asked.is_some() {
            return Ok(());
        }
        if self.drains && self.random.random_bool(0.3) {
            return self.sweep(run, link);
        }
        let action = [Action::Cancel, Action::Drop, Action::Drop, Action::Revive];
        let action = action[self.random.random_range(0..action.len())];
        let mut ids = Vec::new();
        for _ in 0..self.random.random_range(1..10) {
            let id = jobs[self.random.random_range(0..jobs.len())];
            if !ids.contains(&id) {
                ids.push(id);
                self.told.try_action(id, action);
            }
        }
        self.next_request += 1;
        let (request, selection) = (self.next_request, Selection::Ids(ids.clone()));
        self.sessions[place].asked = Some((request, action, ids));
        let command = Command::Act { link, request, action, selection, pace: None };
        run.store.submit(self.now, command).map(drop)
    }

    /// Drops what has ended in one queue; how much that is nobody knows.
    fn sweep(&mut self, run: &mut Run, link: LinkId) -> Result<(), Poisoned> {
        let pattern = QUEUES[self.random.random_range(0..QUEUES.len())].parse();
        let filter = Filter::of(pattern.expect("a pattern"));
        let state = [JobState::Dead, JobState::Cancelled][self.random.random_range(0..2)];
        let selection = Selection::Matching(filter.in_state(state));
        self.told.jobs().into_iter().for_each(|id| self.told.try_(id, Try::Drop));
        let command =
            Command::Act { link, request: 0, action: Action::Drop, selection, pace: None };
        run.store.submit(self.now, command).map(drop)
    }

    fn pause(&mut self, run: &mut Run) -> Result<(), Poisoned> {
        let Some((_, link)) = self.link_of(Role::Tool) else { return Ok(()) };
        let paused = self.random.random_bool(0.4);
        let pattern = "/c".parse().expect("a pattern");
        run.store.submit(self.now, Command::Pause { link, request: 0, pattern, paused }).map(drop)
    }

    // What clients hear.

    /// What was submitted becomes durable, and clients are told.
    pub(super) fn release(&mut self, run: &mut Run) -> Result<(), Poisoned> {
        loop {
            let mut released = Released::default();
            let outcome = poll_once(run.store.released(&mut released));
            self.told.index = self.told.index.max(run.store.committed());
            self.hear(run, released);
            match outcome {
                Some(Ok(())) if !run.store.is_released() => {}
                Some(outcome) => return outcome,
                // Nothing is held back.
                None => return Ok(()),
            }
        }
    }

    fn hear(&mut self, run: &Run, released: Released) {
        let Released { handed, replies, revoked, .. } = released;
        for handed in handed {
            let hot = run.store.payload(handed.entry);
            // A disk that fails meanwhile is met by the next command.
            let Some(entry) = hot.or_else(|| run.store.reader().read(handed.entry).ok()) else {
                continue;
            };
            let job = self.told.handed(&handed, entry);
            if let Some(session) = self.session_of(handed.link) {
                session.held.insert(handed.token, (job, 0));
            }
        }
        for (link, _, token) in revoked {
            if let Some(session) = self.session_of(link) {
                session.held.remove(&token);
            }
        }
        for (link, reply) in replies {
            self.hear_reply(link, reply);
        }
    }

    fn session_of(&mut self, link: LinkId) -> Option<&mut Session> {
        self.sessions.iter_mut().find(|session| session.link == Some(link))
    }

    fn hear_reply(&mut self, link: LinkId, reply: Reply) {
        let found = self.sessions.iter_mut().find(|session| session.link == Some(link));
        // An answer to a link that is gone: nobody hears it.
        let Some(session) = found else { return };
        match reply {
            Reply::Attached(attached) => {
                session.attached = Some((attached.next_batch, attached.next_settle));
                session.held.retain(|token, _| !attached.gone.0.contains(token));
            }
            Reply::Enqueued(answer) => {
                let outcome = answer.outcome.expect("batches follow each other without a gap");
                if let Some((_, ids)) = session.batches.remove(&answer.sequence) {
                    assert_eq!(outcome.len(), ids.len());
                    ids.into_iter().zip(outcome.iter()).for_each(|(id, outcome)| {
                        self.told.enqueued(id, outcome);
                    });
                }
            }
            Reply::Settled(answer) => {
                if let Some((_, settles)) = session.settles.remove(&answer.sequence) {
                    assert_eq!(answer.outcomes.len(), settles.len());
                    let resent = answer.sequence <= session.resent;
                    for (settle, outcome) in settles.iter().zip(answer.outcomes.iter()) {
                        let counts = outcome == SettleOutcome::Accepted;
                        self.told.settled(settle, counts, resent);
                    }
                }
            }
            Reply::Acted { request, report } => {
                if let Some((_, action, ids)) =
                    session.asked.take_if(|(asked, _, _)| *asked == request)
                {
                    for (&id, outcome) in ids.iter().zip(report.outcomes.iter()) {
                        self.told.acted(id, action, outcome);
                    }
                }
            }
            Reply::Checkpointed(answer) if answer.outcome == CheckpointOutcome::StaleToken => {
                session.held.remove(&answer.token);
            }
            _ => {}
        }
    }
}

/// What a future gives at once, if it does.
fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
