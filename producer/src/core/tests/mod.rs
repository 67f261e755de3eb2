//! Scenarios for the state machine in virtual time: the test acts as network, resolver and
//! publishers.

mod deadlines;
mod failover;
mod homes;
mod links;
mod model;
mod resending;
mod routing;
mod sealing;
mod silence;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use longshore_protocol::messages::work::{Attached, Enqueued, SealedBatch, Tokens};
use longshore_protocol::{
    BatchRefusal, Durability, EnqueueOutcome, Epoch, Homes, JobId, NewJob, Path, PublisherId,
    PublisherInfo, Refusal, Runs, Terms,
};
use longshore_resolver::{PathAnswer, Publication, Resolution};

use super::action::*;
use super::batch::weight;
use super::ids::*;
use super::limits::*;
use super::*;
use crate::outcome::{BatchOutcome, EnqueueError};

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn publication(publisher: &PublisherInfo) -> Publication {
    Publication { publisher: publisher.clone(), terms: Terms::default() }
}

fn publisher(n: u8) -> PublisherInfo {
    PublisherInfo::new(PublisherId([n; 16]), Epoch(1), format!("p{n}"), [([127, 0, 0, n], 4780)])
}

fn path(text: &str) -> Path {
    Path::new(text).expect("a path")
}

fn job(n: u64) -> NewJob {
    job_of(n, b"x")
}

fn job_of(n: u64, payload: &'static [u8]) -> NewJob {
    let mut id = [0; 16];
    id[8..].copy_from_slice(&n.to_be_bytes());
    NewJob::new(path("/jobs"), JobId(id), payload)
}

fn number(id: JobId) -> u64 {
    u64::from_be_bytes(id.0[8..].try_into().expect("eight bytes"))
}

/// Batches of one job, sent as soon as a publisher accepts them.
fn single() -> StreamLimits {
    StreamLimits {
        in_flight_jobs_max: 1_000,
        in_flight_bytes_max: 1 << 20,
        linger: ms(1),
        batch_jobs_max: 1,
        batch_bytes_max: 1 << 20,
        eager_batches: usize::MAX,
    }
}

/// A batch sent on a link.
#[derive(Debug)]
struct SentBatch {
    publisher: PublisherId,
    link: LinkNumber,
    sequence: u64,
    jobs: usize,
    batch: SealedBatch,
}

#[derive(Debug)]
struct Dial {
    publisher: PublisherId,
    link: LinkNumber,
    at: Time,
    address: String,
}

#[derive(Debug)]
struct FinishedBatch {
    at: Time,
    jobs: Vec<u64>,
    end: BatchOutcome,
}

/// The state machine, a virtual clock, and the actions so far.
struct Scenario {
    core: Core<()>,
    now: Time,
    stream: StreamId,
    sent: VecDeque<SentBatch>,
    dials: VecDeque<Dial>,
    closed: Vec<(PublisherId, LinkNumber)>,
    resolve_requests: VecDeque<Vec<Path>>,
    /// The last of them is for all publishers.
    all_publishers: bool,
    ended: VecDeque<FinishedBatch>,
}

impl Scenario {
    fn new(limits: StreamLimits) -> Scenario {
        Scenario::with(limits, Failover::SamePublisher)
    }

    fn with(limits: StreamLimits, failover: Failover) -> Scenario {
        let mut core = Core::new(secs(30), failover, 7);
        let stream = core.open_stream(limits);
        Scenario {
            core,
            now: ms(0),
            stream,
            sent: VecDeque::new(),
            dials: VecDeque::new(),
            closed: Vec::new(),
            resolve_requests: VecDeque::new(),
            all_publishers: false,
            ended: VecDeque::new(),
        }
    }

    /// `/jobs` has these publishers, and links to them are attached.
    fn linked_to(limits: StreamLimits, publishers: &[PublisherInfo]) -> Scenario {
        let mut scenario = Scenario::new(limits);
        scenario.link_all(publishers);
        scenario
    }

    fn link_all(&mut self, publishers: &[PublisherInfo]) {
        self.request_route();
        self.resolve(publishers);
        // The first job makes the state machine dial; it is answered before the scenario begins.
        self.push(999_999);
        while let Some(dials) = self.dials.pop_front() {
            self.attach(dials.publisher, dials.link, 1);
        }
        let first = self.sent.pop_front().expect("the first job is sent");
        self.answer_all(&first);
        self.ended.clear();
    }

    fn drain(&mut self) {
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::Resolve { paths, all_publishers } => {
                    self.resolve_requests.push_back(paths);
                    self.all_publishers = all_publishers;
                }
                Action::Dial { publisher, link } => {
                    let (publisher, address) = (publisher.id, publisher.addresses[0].to_string());
                    let at = self.now;
                    self.dials.push_back(Dial { publisher, link, at, address });
                }
                Action::Send { publisher, link, sequence, batch } => {
                    let jobs = batch.len();
                    self.sent.push_back(SentBatch { publisher, link, sequence, jobs, batch });
                }
                Action::Close { publisher, link, .. } => self.closed.push((publisher, link)),
                Action::Finish { ids, end, .. } => {
                    let jobs = ids.into_iter().map(number).collect();
                    self.ended.push_back(FinishedBatch { at: self.now, jobs, end });
                }
                Action::RoutesChanged | Action::StreamClosed(_) => {}
            }
        }
    }

    /// Advances to `at`, ticking the state machine at its deadlines.
    fn until(&mut self, at: Time) {
        let mut turns = 0;
        loop {
            let next = self.core.next_deadline();
            if next > at {
                break;
            }
            self.now = self.now.max(next);
            self.core.tick(self.now);
            assert!(self.core.next_deadline() > self.now, "a tick leaves nothing due");
            self.drain();
            turns += 1;
            assert!(turns < 100_000, "the core spins at {:?}", self.now);
        }
        self.now = at;
        self.core.tick(at);
        self.drain();
    }

    fn pass(&mut self, time: Duration) {
        self.until(self.now + time);
    }

    fn push(&mut self, n: u64) {
        self.try_push(&job(n)).expect("the job is accepted");
    }

    fn try_push(&mut self, job: &NewJob) -> Result<(), PushError> {
        let before = self.core.next_deadline();
        let pushed = self.core.push(self.now, self.stream, 0, job, false);
        if pushed.as_ref().is_ok_and(|pushed| pushed.joined) {
            assert!(self.core.next_deadline() >= before, "the driver does not look at it");
            assert!(self.core.poll_action().is_none(), "the driver does not take any");
        }
        self.drain();
        pushed.map(|_| ())
    }

    fn request_route(&mut self) -> RouteLookup {
        let routed = self.core.route(self.now, &path("/jobs"), false, self.now);
        self.drain();
        routed
    }

    /// Answers the oldest resolve request with these publishers.
    fn resolve(&mut self, publishers: &[PublisherInfo]) {
        let set = publishers.iter().map(publication).collect();
        self.resolve_with(PathAnswer::Publishers { set, by_default: false, fallback: None }, true);
    }

    fn resolve_with(&mut self, answer: PathAnswer, complete: bool) {
        let paths = self.resolve_requests.pop_front().expect("a question");
        let answers = vec![answer; paths.len()];
        self.core.resolved(self.now, &paths, Ok(Resolution { complete, answers }));
        self.drain();
    }

    fn attach(&mut self, publisher: PublisherId, link: LinkNumber, next_batch: u64) {
        let attached = Attached {
            durability: Durability::Fsync,
            next_batch,
            next_settle: 1,
            gone: Tokens::default(),
            reconnect_grace_ms: 5_000,
        };
        self.core.linked(self.now, publisher, link, &attached);
        self.drain();
    }

    /// The next dial succeeds; the publisher expects this batch next.
    fn attach_next(&mut self, next_batch: u64) -> LinkNumber {
        let dials = self.dials.pop_front().expect("a dial");
        self.attach(dials.publisher, dials.link, next_batch);
        dials.link
    }

    fn lose_link(&mut self, publisher: PublisherId, link: LinkNumber) {
        self.core.link_lost(self.now, publisher, link, "gone");
        self.drain();
    }

    fn answer(&mut self, sent: &SentBatch, outcome: Result<Runs<EnqueueOutcome>, BatchRefusal>) {
        let answer = Enqueued { sequence: sent.sequence, outcome };
        self.core.answered(self.now, sent.publisher, sent.link, answer);
        self.drain();
    }

    fn answer_all(&mut self, sent: &SentBatch) {
        self.answer(sent, Ok(Runs::all(EnqueueOutcome::Created, sent.jobs)));
    }

    fn next_sent(&mut self) -> SentBatch {
        self.sent.pop_front().expect("a batch is sent")
    }

    fn next_end(&mut self) -> FinishedBatch {
        self.ended.pop_front().expect("a batch has finished")
    }
}

fn answered_by(end: &BatchOutcome) -> PublisherId {
    match end {
        BatchOutcome::Answered { publisher, .. } => *publisher,
        other => panic!("expected an answer, not {other:?}"),
    }
}
