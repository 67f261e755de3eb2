//! A state, a virtual clock, and clients with short names. Every command is also encoded and
//! decoded, and followed by a full scan.

use bytes::Bytes;
use longshore_protocol::messages::work::{
    Action, ActionReport, BatchBuilder, Checkpoint, EnqueueBatch, JobCounts, NewSettle, QueueStat,
    ReplaceOutcome, Selection, SettleBatch, SettleBatchBuilder, Settled, Sources, Tokens,
};
use longshore_protocol::{
    BatchRefusal, Durability, EnqueueOutcome, Epoch, FrameWriter, Glob, JobError, JobId,
    JobOptions, LinkId, NewJob, ParentEnd, Path, PublisherId, Role, Runs, SessionId, SettleOutcome,
    Token, Unique,
};

use crate::Rules;
use crate::command::{Command, LeaseEnd, Secret, Start};
use crate::outcome::{Assignment, JobView, Outcomes, Reply};
use crate::state::State;
use crate::time::Now;

pub(super) const QUEUE: &str = "/jobs/mail";

pub(super) struct StateScenario {
    pub(super) state: State,
    pub(super) now: Now,
    pub(super) index: u64,
    pub(super) log: Vec<(u64, Now, Command)>,
    settles: u64,
}

impl StateScenario {
    /// A publisher that has started with a default for `/jobs`.
    pub(super) fn begin() -> StateScenario {
        StateScenario::with_rules(Rules::STANDARD)
    }

    pub(super) fn with_rules(rules: Rules) -> StateScenario {
        let mut scenario =
            StateScenario { state: State::with_rules(rules), ..StateScenario::empty() };
        scenario.start();
        scenario
    }

    /// Before the first start.
    pub(super) fn empty() -> StateScenario {
        StateScenario {
            state: State::new(),
            now: Now { mono_ms: 1_000, wall_ms: 1_700_000_000_000 },
            index: 0,
            log: Vec::new(),
            settles: 0,
        }
    }

    pub(super) fn apply(&mut self, command: Command) -> Outcomes {
        self.index += 1;
        let (head, raw) = command.encode();
        let body = Bytes::from([head, raw].concat());
        let read = Command::decode(command.kind(), body).expect("what was encoded decodes");
        assert_eq!(read, command);
        let mut out = Outcomes { wants_events: true, ..Outcomes::default() };
        self.state.apply(self.index, self.now, &read, &mut out);
        self.state.invariant().unwrap_or_else(|broken| panic!("{broken}, after {command:?}"));
        self.log.push((self.index, self.now, command));
        out.wants_events = false;
        out
    }

    pub(super) fn later(&mut self, ms: u64) -> &mut StateScenario {
        self.now.mono_ms += ms;
        self.now.wall_ms += ms;
        self
    }

    /// Advances time to the next timer, and applies a `Tick`.
    pub(super) fn tick_at_next_timer(&mut self) -> Outcomes {
        let due = self.state.next_timer_ms(self.now).expect("something waits for a time");
        self.later(due.saturating_sub(self.now.mono_ms));
        self.apply(Command::Tick)
    }

    pub(super) fn start(&mut self) -> Outcomes {
        self.start_at(&[], &["/jobs"])
    }

    pub(super) fn start_at(&mut self, paths: &[&str], defaults: &[&str]) -> Outcomes {
        let paths_of = |texts: &[&str]| texts.iter().map(|text| path(text)).collect();
        let epoch = self.state.last_start().map_or(1, |start| start.epoch.0 + 1);
        self.apply(Command::Start(Start {
            publisher: PublisherId([7; 16]),
            epoch: Epoch(epoch),
            boot: [1; 16],
            secret: Secret([0x5e; 16]),
            rules: Box::new(self.state.rules().clone()),
            durability: Durability::Fsync,
            paths: paths_of(paths),
            defaults: paths_of(defaults),
        }))
    }

    /// The present run's start.
    pub(super) fn this_start(&self) -> Start {
        self.state.last_start().expect("it has started").clone()
    }

    /// A link of the session with that name; `resume` are its leases.
    pub(super) fn attach(&mut self, name: &str, resume: &[Token]) -> (LinkId, Outcomes) {
        let link = self.state.next_link();
        let out = self.apply(Command::LinkUp {
            link,
            role: Role::Worker,
            session: session(name),
            name: name.to_owned(),
            identity: String::new(),
            work: None,
            resume: Tokens(resume.to_vec()),
        });
        (link, out)
    }

    /// A producer, or a worker before it subscribes.
    pub(super) fn link(&mut self, name: &str) -> LinkId {
        self.attach(name, &[]).0
    }

    /// A worker with credits for the pattern, and its first deliveries.
    pub(super) fn worker(
        &mut self,
        name: &str,
        pattern: &str,
        credits: u32,
    ) -> (LinkId, Vec<Assignment>) {
        let link = self.link(name);
        self.subscribe(link, 1, pattern);
        let delivered = self.credit(link, 1, credits);
        (link, delivered)
    }

    pub(super) fn subscribe(&mut self, link: LinkId, number: u32, pattern: &str) -> Outcomes {
        self.subscribe_with(link, number, pattern, 1_000)
    }

    /// Subscribes as a worker with that many handlers.
    pub(super) fn subscribe_with(
        &mut self,
        link: LinkId,
        number: u32,
        pattern: &str,
        handlers: u32,
    ) -> Outcomes {
        let sources = Sources::one(glob(pattern));
        self.apply(Command::Subscribe { link, subscription: number, sources, handlers })
    }

    pub(super) fn credit(&mut self, link: LinkId, number: u32, count: u32) -> Vec<Assignment> {
        self.apply(Command::Credit { link, subscription: number, count }).assignments
    }

    pub(super) fn send(&mut self, link: LinkId, batch: EnqueueBatch) -> Outcomes {
        self.apply(Command::Enqueue { link, batch })
    }

    /// Enqueues jobs as the next batch of the link's session.
    pub(super) fn enqueue(&mut self, link: LinkId, jobs: &[NewJob]) -> Vec<EnqueueOutcome> {
        let session = self.state.session_of(link).expect("the link is up");
        let sequence = self.state.sessions.table[session].next_batch;
        let out = self.send(link, batch(sequence, jobs));
        receipts(&out).expect("the batch was accepted").iter().collect()
    }

    /// The same, atomically.
    pub(super) fn enqueue_atomic(&mut self, link: LinkId, jobs: &[NewJob]) -> Vec<EnqueueOutcome> {
        let session = self.state.session_of(link).expect("the link is up");
        let sequence = self.state.sessions.table[session].next_batch;
        let out = self.send(link, atomic(sequence, jobs));
        receipts(&out).expect("the batch was accepted").iter().collect()
    }

    /// An operator replaces a dead job.
    pub(super) fn replace(&mut self, link: LinkId, dead: u32, job: &NewJob) -> ReplaceOutcome {
        let mut entry = FrameWriter::new();
        job.encode_entry_head(&mut entry);
        entry.put_shared(job.payload.clone());
        let (id, entry) = (id(dead), entry.into_body());
        let out = self.apply(Command::Replace { link, request: 1, id, entry });
        let outcome = |(_, reply): &(LinkId, Reply)| match reply {
            Reply::Replaced { outcome, .. } => Some(*outcome),
            _ => None,
        };
        out.replies.iter().find_map(outcome).expect("an answer")
    }

    /// Continues with a state restored from a snapshot.
    pub(super) fn restore(&mut self) {
        let bytes = self.state.snapshot_bytes();
        self.state = State::restore(&bytes).expect("it was written");
        assert!(self.state.snapshot_bytes() == bytes, "restoring changes the bytes");
    }

    /// Lets the state work off ends of parents, and sweeps of batches.
    pub(super) fn work_off(&mut self) {
        while self.state.graph.has_ended() || self.state.batches.has_work() {
            self.apply(Command::Tick);
        }
    }

    /// Acts on jobs, and works off what follows. Returns how many it acted on.
    pub(super) fn act_on(&mut self, action: Action, jobs: &[u32]) -> u64 {
        let ids = jobs.iter().map(|&number| id(number)).collect();
        let done = self.act(action, Selection::Ids(ids)).0.done;
        self.work_off();
        done
    }

    /// Enqueues plain jobs with those numbers.
    pub(super) fn fill(&mut self, numbers: std::ops::RangeInclusive<u32>) {
        let producer = self.link("filler");
        let jobs: Vec<NewJob> = numbers.map(plain).collect();
        let outcomes = self.enqueue(producer, &jobs);
        assert!(outcomes.iter().all(|outcome| *outcome == EnqueueOutcome::Created));
    }

    pub(super) fn settle(
        &mut self,
        link: LinkId,
        token: Token,
        verdict: &NewSettle,
    ) -> (SettleOutcome, Outcomes) {
        self.settles += 1;
        let out = self.send_settles(link, settles(self.settles, &[(token, verdict.clone())]));
        let Settled { outcomes, .. } = settled(&out);
        (outcomes.iter().next().expect("one outcome for one settle"), out)
    }

    pub(super) fn complete(&mut self, link: LinkId, token: Token) -> SettleOutcome {
        self.settle(link, token, &NewSettle::Complete { result: None }).0
    }

    pub(super) fn send_settles(&mut self, link: LinkId, batch: SettleBatch) -> Outcomes {
        self.apply(Command::Settle { link, batch })
    }

    pub(super) fn expire(&mut self, token: Token, started: bool) -> Outcomes {
        self.apply(Command::Expire {
            leases: vec![LeaseEnd { token, started, uncounted: false, timed_out: false }],
        })
    }

    pub(super) fn act(&mut self, action: Action, selection: Selection) -> (ActionReport, Outcomes) {
        let link = self.state.next_link();
        let preview = self.state.preview(action, &selection, None);
        let out = self.apply(Command::Act {
            link,
            request: 1,
            action,
            selection,
            pace: None,
            within: None,
        });
        let report = out.replies.iter().find_map(|(_, reply)| match reply {
            Reply::Acted { report, .. } => Some(report.clone()),
            _ => None,
        });
        let report = report.expect("an action is answered");
        assert!(report.more || preview == report, "a preview equals the result");
        (report, out)
    }

    pub(super) fn job(&self, number: u32) -> JobView {
        self.state.job(&id(number), self.now).expect("the job exists")
    }

    pub(super) fn counts(&self) -> JobCounts {
        self.counts_of(QUEUE)
    }

    pub(super) fn counts_of(&self, text: &str) -> JobCounts {
        self.stat_of(text).counts
    }

    pub(super) fn stat_of(&self, text: &str) -> QueueStat {
        self.state.all_queue_stats(&glob(text), self.now).swap_remove(0)
    }
}

pub(super) fn path(text: &str) -> Path {
    Path::new(text).expect("a test's path")
}

pub(super) fn glob(text: &str) -> Glob {
    Glob::new(text).expect("a test's glob")
}

pub(super) fn id(number: u32) -> JobId {
    let mut random = [0; 10];
    random[6..].copy_from_slice(&number.to_be_bytes());
    JobId::new_v7(1_700_000_000_000, random)
}

pub(super) fn session(name: &str) -> SessionId {
    let mut bytes = [0; 16];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    SessionId(bytes)
}

pub(super) fn plain(number: u32) -> NewJob {
    NewJob::new(path(QUEUE), id(number), Bytes::from(format!("payload {number}")))
}

/// A job that takes the place of one that waits.
pub(super) fn replacing(number: u32) -> NewJob {
    plain(number).unique(Unique::by_key("k").replace())
}

/// A job after others.
pub(super) fn after(number: u32, parents: &[(u32, ParentEnd)]) -> NewJob {
    parents.iter().fold(plain(number), |job, &(parent, when)| job.after_end(id(parent), when))
}

pub(super) fn with(number: u32, options: JobOptions) -> NewJob {
    NewJob { options, ..plain(number) }
}

pub(super) fn batch(sequence: u64, jobs: &[NewJob]) -> EnqueueBatch {
    sealed(sequence, jobs, false)
}

pub(super) fn atomic(sequence: u64, jobs: &[NewJob]) -> EnqueueBatch {
    sealed(sequence, jobs, true)
}

fn sealed(sequence: u64, jobs: &[NewJob], atomic: bool) -> EnqueueBatch {
    let mut builder = BatchBuilder::new();
    jobs.iter().for_each(|job| builder.push(job));
    builder.seal(atomic).to_batch(sequence).expect("a built batch decodes")
}

pub(super) fn checkpoint(link: LinkId, token: Token, sequence: u64, text: &str) -> Command {
    let body = Checkpoint::body_of(token, sequence, &Bytes::from(text.to_owned()));
    let checkpoint = Checkpoint::decode(body).expect("a built checkpoint decodes");
    Command::Checkpoint { link, checkpoint }
}

pub(super) fn settles(sequence: u64, items: &[(Token, NewSettle)]) -> SettleBatch {
    let mut builder = SettleBatchBuilder::new();
    items.iter().for_each(|(token, settle)| builder.push(*token, settle));
    SettleBatch::decode(builder.seal(sequence)).expect("a built batch decodes")
}

pub(super) fn error(message: &str) -> JobError {
    JobError { kind: "test".to_owned(), message: message.to_owned() }
}

pub(super) fn fail() -> NewSettle {
    NewSettle::Fail(error("no luck"))
}

/// The answer to the one batch of jobs.
pub(super) fn receipts(out: &Outcomes) -> Result<Runs<EnqueueOutcome>, BatchRefusal> {
    let answer = out.replies.iter().find_map(|(_, reply)| match reply {
        Reply::Enqueued(enqueued) => Some(enqueued.outcome.clone()),
        _ => None,
    });
    answer.expect("a batch is answered")
}

/// The answer to the one batch of settles.
pub(super) fn settled(out: &Outcomes) -> Settled {
    let answer = out.replies.iter().find_map(|(_, reply)| match reply {
        Reply::Settled(settled) => Some(settled.clone()),
        _ => None,
    });
    answer.expect("a batch is answered")
}
