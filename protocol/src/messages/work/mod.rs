//! Messages of a *work* link: between a publisher and its producers, workers and tools.
//!
//! A client first sends [`Attach`]; the publisher answers [`Attached`] once the link is in its journal. Everything that a
//! publisher says on a work link reflects durable state only.

mod answer;
mod attach;
mod credit;
mod deliver;
mod enqueue;
mod feed;
mod job_info;
mod progress;
mod quiet;
mod request;
mod selection;
mod settle;
mod status;

use bytes::Bytes;

pub use answer::{
    ActOutcome, ActionReport, Answer, DeadGroup, DeadGroups, JobsPage, PauseReport, ReplaceOutcome,
};
pub use attach::{Attach, Attached};
pub use credit::{Credit, Order, Source, Sources, Subscribe, Tokens, Waiting};
pub use deliver::{Deliver, Delivery};
pub use enqueue::{BatchBuilder, BatchEntry, EnqueueBatch, Enqueued, PATH_OF_A_VALUE, SealedBatch};
pub use feed::{FeedEnd, FeedEvent, FeedEvents, FeedPosition};
pub use job_info::{AttemptInfo, CheckpointInfo, JobInfo, ProgressInfo};
pub use progress::{Checkpoint, Checkpointed, Progress, Started};
pub use quiet::{Quiet, QuietEnd, QuietedWorker, WorkerPattern, WorkerPatternError};
pub use request::{Action, JobsQuery, Pace, Request, RequestError};
pub use selection::{Filter, Selection};
pub use settle::{NewSettle, SettleBatch, SettleBatchBuilder, SettleItem, Settled, Span, Verdict};
pub use status::{JobCounts, PublisherStatus, QueueStat, Room};

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::limits::REASON_BYTES_MAX;
use crate::refusal::Revoked;

/// The tags. 1 is [`crate::messages::HEARTBEAT`].
pub mod tag {
    #![allow(missing_docs)]

    /// Those of a client's messages, those of later versions included. A publisher answers one that it does not know with
    /// [`FromPublisher::Unsupported`](super::FromPublisher::Unsupported).
    pub const OF_CLIENTS: std::ops::RangeInclusive<u8> = 10..=29;

    pub const ATTACH: u8 = 10;
    pub const ENQUEUE: u8 = 11;
    pub const SUBSCRIBE: u8 = 12;
    pub const UNSUBSCRIBE: u8 = 13;
    pub const CREDIT: u8 = 14;
    pub const RECALL: u8 = 15;
    pub const STARTED: u8 = 16;
    pub const SETTLE: u8 = 17;
    pub const RENEW: u8 = 18;
    pub const REQUEST: u8 = 19;
    pub const PROGRESS: u8 = 20;
    pub const CHECKPOINT: u8 = 21;
    pub const FORGET: u8 = 22;
    pub const QUIETED: u8 = 23;

    pub const ATTACHED: u8 = 30;
    pub const ENQUEUED: u8 = 31;
    pub const DELIVER: u8 = 32;
    pub const RETURNED: u8 = 33;
    pub const WAITING: u8 = 34;
    pub const SETTLED: u8 = 35;
    pub const REVOKED: u8 = 36;
    pub const ANSWER: u8 = 37;
    pub const SUBSCRIBE_REFUSED: u8 = 38;
    pub const RENEWED: u8 = 39;
    pub const GOODBYE: u8 = 40;
    pub const CHECKPOINTED: u8 = 41;
    pub const FEED: u8 = 42;
    pub const FEED_ENDED: u8 = 43;
    pub const WORKER_QUIET: u8 = 44;
    pub const UNSUPPORTED: u8 = 45;
}

/// What a client says to a publisher.
#[derive(Clone, PartialEq, Debug)]
pub enum ToPublisher {
    /// First on every link.
    Attach(Attach),
    /// Jobs to take.
    Enqueue(EnqueueBatch),
    /// A pattern to take jobs from.
    Subscribe(Subscribe),
    /// No more jobs of that subscription; its credits end. Jobs already delivered stay with the worker.
    Unsubscribe(u32),
    /// So many more jobs are wanted.
    Credit(Credit),
    /// So many credits are asked back; answered by [`FromPublisher::Returned`] with what was still free.
    Recall(Credit),
    /// These attempts are about to run, or run already.
    Started(Started),
    /// How far these attempts are.
    Progress(Vec<Progress>),
    /// Something durable for later attempts to read.
    Checkpoint(Checkpoint),
    /// Ends of leases.
    Settle(SettleBatch),
    /// These leases are to run on.
    Renew(Tokens),
    /// A question or an action.
    Request {
        /// The client's number for it; the answer carries it.
        id: u64,
        /// What is asked.
        request: Request,
    },
    /// The feed, or the end of a job, that the client asked for by that number is wanted no more.
    Forget(u64),
    /// Whether the worker is quiet: the answer to [`FromPublisher::WorkerQuiet`], or since something else has told it.
    Quieted(Quiet),
}

/// What a publisher says to a client.
#[derive(Clone, PartialEq, Debug)]
pub enum FromPublisher {
    /// The link is known; what became of what it resumed.
    Attached(Attached),
    /// The answer to a batch of jobs.
    Enqueued(Enqueued),
    /// Jobs, each with its lease.
    Deliver(Deliver),
    /// Credits given back, because they were recalled.
    Returned(Credit),
    /// So many jobs wait for a credit of that subscription.
    Waiting(Waiting),
    /// The answer to a batch of settles.
    Settled(Settled),
    /// These leases have ended though their worker did not end them; their contexts are to be cancelled.
    Revoked {
        /// Why.
        reason: Revoked,
        /// Which.
        tokens: Tokens,
    },
    /// The answer to a request.
    Answer {
        /// The request's number.
        id: u64,
        /// The answer, or why there is none.
        answer: Result<Answer, RequestError>,
    },
    /// A subscription was not made.
    SubscribeRefused {
        /// Which.
        subscription: u32,
        /// Why, for people.
        reason: String,
    },
    /// The answer to a renewal: those of its tokens that hold no lease any more.
    Renewed {
        /// The stale ones.
        stale: Tokens,
    },
    /// The publisher is about to close the link, and why.
    Goodbye {
        /// Why, for people.
        reason: String,
    },
    /// The answer to a checkpoint.
    Checkpointed(Checkpointed),
    /// Events of a feed.
    Feed(FeedEvents),
    /// A feed ended.
    FeedEnded {
        /// The number of the request that opened it.
        id: u64,
        /// Why.
        end: FeedEnd,
    },
    /// An operator asks that the worker begins no job, or begins jobs again. Answered by [`ToPublisher::Quieted`].
    WorkerQuiet(Quiet),
    /// The publisher's version does not know a message; it was skipped, and the link goes on.
    Unsupported {
        /// Its tag.
        tag: u8,
        /// The number that it begins with; 0 if it begins with none.
        id: u64,
    },
}

impl ToPublisher {
    /// Reads the message with that tag. `None` for a tag that this version does not know: it is skipped.
    pub fn decode(tag: u8, body: Bytes) -> Result<Option<ToPublisher>, WireError> {
        let mut r = Reader::new(body);
        let r = &mut r;
        Ok(Some(match tag {
            tag::ATTACH => ToPublisher::Attach(Attach::decode(r)?),
            tag::ENQUEUE => ToPublisher::Enqueue(EnqueueBatch::decode(r.body().clone())?),
            tag::SUBSCRIBE => ToPublisher::Subscribe(Subscribe::decode(r)?),
            tag::UNSUBSCRIBE => ToPublisher::Unsubscribe(r.u32()?),
            tag::CREDIT => ToPublisher::Credit(Credit::decode(r)?),
            tag::RECALL => ToPublisher::Recall(Credit::decode(r)?),
            tag::STARTED => ToPublisher::Started(Started::decode(r)?),
            tag::PROGRESS => ToPublisher::Progress(progress::read_progresses(r)?),
            tag::CHECKPOINT => ToPublisher::Checkpoint(Checkpoint::decode(r.body().clone())?),
            tag::FORGET => ToPublisher::Forget(r.u64()?),
            tag::QUIETED => ToPublisher::Quieted(Quiet::decode(r)?),
            tag::SETTLE => ToPublisher::Settle(SettleBatch::decode(r.body().clone())?),
            tag::RENEW => ToPublisher::Renew(Tokens::decode(r)?),
            tag::REQUEST => ToPublisher::Request { id: r.u64()?, request: Request::decode(r)? },
            _ => return Ok(None),
        }))
    }

    /// The number by which the sender knows a message, even one that does not decode: a batch's sequence or a request's id.
    /// With it a publisher can answer `Malformed`, `TooLarge` or `Unknown`, and the link goes on.
    pub fn number(body: &Bytes) -> Option<u64> {
        Reader::new(body.clone()).u64().ok()
    }

    /// Writes the message. Batches of jobs and settles are also written by their builders.
    pub fn encode(&self, out: &mut FrameWriter) {
        match self {
            ToPublisher::Attach(attach) => out.message(tag::ATTACH, |out| attach.encode(out)),
            ToPublisher::Enqueue(batch) => {
                out.message(tag::ENQUEUE, |out| out.put_shared(batch.body().clone()))
            }
            ToPublisher::Subscribe(subscribe) => {
                out.message(tag::SUBSCRIBE, |out| subscribe.encode(out))
            }
            ToPublisher::Unsubscribe(id) => {
                out.message(tag::UNSUBSCRIBE, |out| out.u64(u64::from(*id)))
            }
            ToPublisher::Credit(credit) => out.message(tag::CREDIT, |out| credit.encode(out)),
            ToPublisher::Recall(credit) => out.message(tag::RECALL, |out| credit.encode(out)),
            ToPublisher::Started(started) => {
                out.message(tag::STARTED, |out| started.encode(out));
            }
            ToPublisher::Progress(progresses) => {
                out.message(tag::PROGRESS, |out| progress::put_progresses(progresses, out));
            }
            ToPublisher::Checkpoint(checkpoint) => Checkpoint::encode(checkpoint.body(), out),
            ToPublisher::Forget(id) => out.message(tag::FORGET, |out| out.u64(*id)),
            ToPublisher::Quieted(quiet) => out.message(tag::QUIETED, |out| quiet.encode(out)),
            ToPublisher::Settle(batch) => {
                out.message(tag::SETTLE, |out| out.put_shared(batch.body().clone()))
            }
            ToPublisher::Renew(tokens) => out.message(tag::RENEW, |out| tokens.encode(out)),
            ToPublisher::Request { id, request } => out.message(tag::REQUEST, |out| {
                out.u64(*id);
                request.encode(out);
            }),
        }
    }
}

impl FromPublisher {
    /// Reads the message with that tag. `None` for a tag that this version does not know: it is skipped.
    pub fn decode(tag: u8, body: Bytes) -> Result<Option<FromPublisher>, WireError> {
        let mut r = Reader::new(body);
        let r = &mut r;
        Ok(Some(match tag {
            tag::ATTACHED => FromPublisher::Attached(Attached::decode(r)?),
            tag::ENQUEUED => FromPublisher::Enqueued(Enqueued::decode(r)?),
            tag::DELIVER => FromPublisher::Deliver(Deliver::decode(r)?),
            tag::RETURNED => FromPublisher::Returned(Credit::decode(r)?),
            tag::WAITING => FromPublisher::Waiting(Waiting::decode(r)?),
            tag::SETTLED => FromPublisher::Settled(Settled::decode(r)?),
            tag::REVOKED => {
                FromPublisher::Revoked { reason: Revoked::decode(r)?, tokens: Tokens::decode(r)? }
            }
            tag::ANSWER => {
                let id = r.u64()?;
                let answer =
                    if r.bool()? { Ok(Answer::decode(r)?) } else { Err(RequestError::decode(r)?) };
                FromPublisher::Answer { id, answer }
            }
            tag::SUBSCRIBE_REFUSED => FromPublisher::SubscribeRefused {
                subscription: r.u32()?,
                reason: r.string("reason", REASON_BYTES_MAX)?,
            },
            tag::RENEWED => FromPublisher::Renewed { stale: Tokens::decode(r)? },
            tag::GOODBYE => {
                FromPublisher::Goodbye { reason: r.string("reason", REASON_BYTES_MAX)? }
            }
            tag::CHECKPOINTED => FromPublisher::Checkpointed(Checkpointed::decode(r)?),
            tag::FEED => FromPublisher::Feed(FeedEvents::decode(r)?),
            tag::FEED_ENDED => FromPublisher::FeedEnded { id: r.u64()?, end: FeedEnd::decode(r)? },
            tag::WORKER_QUIET => FromPublisher::WorkerQuiet(Quiet::decode(r)?),
            tag::UNSUPPORTED => FromPublisher::Unsupported { tag: r.u8()?, id: r.u64()? },
            _ => return Ok(None),
        }))
    }

    /// Writes the message.
    pub fn encode(&self, out: &mut FrameWriter) {
        match self {
            FromPublisher::Attached(attached) => {
                out.message(tag::ATTACHED, |out| attached.encode(out))
            }
            FromPublisher::Enqueued(answer) => out.message(tag::ENQUEUED, |out| answer.encode(out)),
            FromPublisher::Deliver(deliver) => out.message(tag::DELIVER, |out| deliver.encode(out)),
            FromPublisher::Returned(credit) => out.message(tag::RETURNED, |out| credit.encode(out)),
            FromPublisher::Waiting(waiting) => out.message(tag::WAITING, |out| waiting.encode(out)),
            FromPublisher::Settled(answer) => out.message(tag::SETTLED, |out| answer.encode(out)),
            FromPublisher::Revoked { reason, tokens } => out.message(tag::REVOKED, |out| {
                reason.encode(out);
                tokens.encode(out);
            }),
            FromPublisher::Answer { id, answer } => out.message(tag::ANSWER, |out| {
                out.u64(*id);
                out.bool(answer.is_ok());
                match answer {
                    Ok(answer) => answer.encode(out),
                    Err(error) => error.encode(out),
                }
            }),
            FromPublisher::SubscribeRefused { subscription, reason } => {
                out.message(tag::SUBSCRIBE_REFUSED, |out| {
                    out.u64(u64::from(*subscription));
                    out.string_cut(reason, REASON_BYTES_MAX);
                });
            }
            FromPublisher::Renewed { stale } => out.message(tag::RENEWED, |out| stale.encode(out)),
            FromPublisher::Goodbye { reason } => {
                out.message(tag::GOODBYE, |out| out.string_cut(reason, REASON_BYTES_MAX))
            }
            FromPublisher::Checkpointed(answer) => {
                out.message(tag::CHECKPOINTED, |out| answer.encode(out));
            }
            FromPublisher::Feed(events) => out.message(tag::FEED, |out| events.encode(out)),
            FromPublisher::FeedEnded { id, end } => out.message(tag::FEED_ENDED, |out| {
                out.u64(*id);
                end.encode(out);
            }),
            FromPublisher::WorkerQuiet(quiet) => {
                out.message(tag::WORKER_QUIET, |out| quiet.encode(out));
            }
            FromPublisher::Unsupported { tag, id } => out.message(tag::UNSUPPORTED, |out| {
                out.u8(*tag);
                out.u64(*id);
            }),
        }
    }
}

impl FromPublisher {
    /// Writes a delivery that is kept by its owner, to be filled again.
    pub fn encode_deliver(deliver: &Deliver, out: &mut FrameWriter) {
        out.message(tag::DELIVER, |out| deliver.encode(out));
    }
}
