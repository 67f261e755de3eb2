//! Messages of a *work* link: between a publisher and its producers, workers and tools.
//!
//! A client first sends [`Attach`]; the publisher answers [`Attached`] once the link is in its
//! journal. Every message of a publisher on a work link reflects only durable state.

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
mod schedules;
mod selection;
mod settle;
mod status;

use bytes::Bytes;

pub use answer::{
    ActOutcome, ActionReport, Answer, DeadGroup, DeadGroups, JobsPage, PauseReport, QueuesPage,
    ReplaceOutcome,
};
pub use attach::{Attach, Attached};
pub use credit::{Credit, Order, Source, Sources, Subscribe, Tokens, Waiting};
pub use deliver::{Deliver, Delivery, JobTimes};
pub use enqueue::{BatchBuilder, BatchEntry, EnqueueBatch, Enqueued, SealedBatch, refusal_at};
pub use feed::{FeedEnd, FeedEvent, FeedEvents, FeedPosition};
pub use job_info::{
    AttemptInfo, BatchInfo, BlockedBy, CheckpointInfo, JobInfo, LimitedBy, ProgressInfo,
};
pub use progress::{Checkpoint, Checkpointed, Progress, Started};
pub use quiet::{Quiet, QuietEnd, QuietedWorker, WorkerPattern, WorkerPatternError};
pub use request::{Action, JobsQuery, Pace, Related, Request, RequestError};
pub use schedules::{
    NextOccurrence, Occurrences, RunOutcome, ScheduleInfo, ScheduleOutcome, SchedulesPage,
};
pub use selection::{Filter, Selection};
pub use settle::{NewSettle, SettleBatch, SettleBatchBuilder, SettleItem, Settled, Span, Verdict};
pub use status::{JobCounts, PublisherStatus, QueueStat, Room};

use crate::codec::{Encode, Reader};
use crate::codes::Revoked;
use crate::fields::messages;
use crate::frame::FrameWriter;
use crate::limits::REASON_BYTES_MAX;

messages! {
    /// The tags. 1 is [`crate::messages::HEARTBEAT`].
    pub mod tag {
        /// The tags of a client's messages, including those of later versions. A publisher answers
        /// an unknown one with [`FromPublisher::Unsupported`](super::FromPublisher::Unsupported).
        pub const OF_CLIENTS: std::ops::RangeInclusive<u8> = 10..=29;
    }

    /// What a client sends to a publisher.
    pub enum ToPublisher {
        /// The first message of every link.
        ATTACH = 10 => Attach(attach: Attach),
        /// Jobs to enqueue.
        ENQUEUE = 11 => Enqueue(batch: EnqueueBatch = body()),
        /// A subscription to the jobs of patterns.
        SUBSCRIBE = 12 => Subscribe(subscribe: Subscribe),
        /// Ends a subscription and its credits. Jobs already delivered remain with the worker.
        UNSUBSCRIBE = 13 => Unsubscribe(subscription: u32),
        /// Grants credits for more jobs.
        CREDIT = 14 => Credit(credit: Credit),
        /// Takes back credits; [`FromPublisher::Returned`] answers with the number that was still
        /// unused.
        RECALL = 15 => Recall(credit: Credit),
        /// These attempts are about to run, or are already running.
        STARTED = 16 => Started(started: Started),
        /// The progress of attempts.
        PROGRESS = 20 => Progress(all: Vec<Progress> = with(progress)),
        /// Durable data for later attempts.
        CHECKPOINT = 21 => Checkpoint(checkpoint: Checkpoint = body()),
        /// The ends of leases.
        SETTLE = 17 => Settle(batch: SettleBatch = body()),
        /// Renews leases.
        RENEW = 18 => Renew(tokens: Tokens),
        /// A query or an action.
        REQUEST = 19 => Request {
            /// The client's number for it, repeated in the answer.
            id: u64,
            /// The request.
            request: Request,
        },
        /// Ends the feed, or the wait for the end of a job, that the client opened with that
        /// request number.
        FORGET = 22 => Forget(request: u64),
        /// Whether the worker is quiet: the answer to [`FromPublisher::WorkerQuiet`], or the report
        /// of a change at the worker.
        QUIETED = 23 => Quieted(quiet: Quiet),
    }

    /// What a publisher sends to a client.
    pub enum FromPublisher {
        /// The link is registered; the result of resuming leases.
        ATTACHED = 30 => Attached(attached: Attached),
        /// The answer to a batch of jobs.
        ENQUEUED = 31 => Enqueued(enqueued: Enqueued),
        /// Jobs, each with its lease.
        DELIVER = 32 => Deliver(deliver: Deliver),
        /// Recalled credits.
        RETURNED = 33 => Returned(credit: Credit),
        /// The number of jobs that wait for a credit of a subscription.
        WAITING = 34 => Waiting(waiting: Waiting),
        /// The answer to a batch of settles.
        SETTLED = 35 => Settled(settled: Settled),
        /// These leases have ended, but not through their worker, which cancels their contexts.
        REVOKED = 36 => Revoked {
            /// The reason.
            reason: Revoked,
            /// The leases.
            tokens: Tokens,
        },
        /// The answer to a request.
        ANSWER = 37 => Answer {
            /// The request's number.
            id: u64,
            /// The answer, or why there is none.
            answer: Result<Answer, RequestError>,
        },
        /// A subscription was refused.
        SUBSCRIBE_REFUSED = 38 => SubscribeRefused {
            /// The subscription.
            subscription: u32,
            /// The reason, for people.
            reason: String = cut("reason", REASON_BYTES_MAX),
        },
        /// The answer to a renewal: those of its tokens that no longer have a lease.
        RENEWED = 39 => Renewed {
            /// The stale tokens.
            stale: Tokens,
        },
        /// The publisher is about to close the link.
        GOODBYE = 40 => Goodbye {
            /// The reason, for people.
            reason: String = cut("reason", REASON_BYTES_MAX),
        },
        /// The answer to a checkpoint.
        CHECKPOINTED = 41 => Checkpointed(checkpointed: Checkpointed),
        /// Events of a feed.
        FEED = 42 => Feed(events: FeedEvents),
        /// A feed ended.
        FEED_ENDED = 43 => FeedEnded {
            /// The number of the request that opened it.
            id: u64,
            /// The reason.
            end: FeedEnd,
        },
        /// An operator requests that the worker begins no jobs, or resumes. Answered by
        /// [`ToPublisher::Quieted`].
        WORKER_QUIET = 44 => WorkerQuiet(quiet: Quiet),
        /// The publisher's version does not know a message; it was skipped, and the link continues.
        UNSUPPORTED = 45 => Unsupported {
            /// Its tag.
            tag: u8,
            /// The number with which it begins; 0 if it does not begin with a number.
            id: u64,
        },
    }
}

impl ToPublisher {
    /// Reads the sender's number for a message, even if the message cannot be decoded: a batch's
    /// sequence or a request's id. It allows a publisher to answer `Malformed`, `TooLarge` or
    /// `Unknown` without ending the link.
    pub fn number(body: &Bytes) -> Option<u64> {
        Reader::new(body.clone()).u64().ok()
    }
}

impl FromPublisher {
    /// Writes a delivery from a reference, so that the caller can reuse it.
    pub fn encode_deliver(deliver: &Deliver, out: &mut FrameWriter) {
        out.message(tag::DELIVER, |out| deliver.encode(out));
    }
}
