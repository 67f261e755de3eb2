//! Messages of a *work* link: between a publisher and its producers, workers and tools.
//!
//! A client first sends [`Attach`]; the publisher answers [`Attached`] once the link is in its
//! journal. Everything that a publisher sends on a work link reflects durable state only.

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

use crate::codec::{Encode, Reader};
use crate::fields::messages;
use crate::frame::FrameWriter;
use crate::limits::REASON_BYTES_MAX;
use crate::refusal::Revoked;

messages! {
    /// The tags. 1 is [`crate::messages::HEARTBEAT`].
    pub mod tag {
        /// Those of a client's messages, those of later versions included. A publisher answers one
        /// that it does not know with
        /// [`FromPublisher::Unsupported`](super::FromPublisher::Unsupported).
        pub const OF_CLIENTS: std::ops::RangeInclusive<u8> = 10..=29;
    }

    /// What a client sends to a publisher.
    pub enum ToPublisher {
        /// First on every link.
        ATTACH = 10 => Attach(attach: Attach),
        /// Jobs to take.
        ENQUEUE = 11 => Enqueue(batch: EnqueueBatch = body()),
        /// A pattern to take jobs from.
        SUBSCRIBE = 12 => Subscribe(subscribe: Subscribe),
        /// No more jobs of that subscription; its credits end. Jobs already delivered stay with the
        /// worker.
        UNSUBSCRIBE = 13 => Unsubscribe(subscription: u32),
        /// So many more jobs are wanted.
        CREDIT = 14 => Credit(credit: Credit),
        /// So many credits are asked back; answered by [`FromPublisher::Returned`] with what was
        /// still free.
        RECALL = 15 => Recall(credit: Credit),
        /// These attempts are about to run, or run already.
        STARTED = 16 => Started(started: Started),
        /// How far these attempts are.
        PROGRESS = 20 => Progress(all: Vec<Progress> = with(progress)),
        /// Something durable for later attempts to read.
        CHECKPOINT = 21 => Checkpoint(checkpoint: Checkpoint = body()),
        /// Ends of leases.
        SETTLE = 17 => Settle(batch: SettleBatch = body()),
        /// These leases are to run on.
        RENEW = 18 => Renew(tokens: Tokens),
        /// A question or an action.
        REQUEST = 19 => Request {
            /// The client's number for it; the answer carries it.
            id: u64,
            /// What is asked.
            request: Request,
        },
        /// The feed, or the end of a job, that the client asked for by that number is wanted no
        /// more.
        FORGET = 22 => Forget(request: u64),
        /// Whether the worker is quiet: the answer to [`FromPublisher::WorkerQuiet`], or to a
        /// change on the worker's side.
        QUIETED = 23 => Quieted(quiet: Quiet),
    }

    /// What a publisher sends to a client.
    pub enum FromPublisher {
        /// The link is known; what became of what it resumed.
        ATTACHED = 30 => Attached(attached: Attached),
        /// The answer to a batch of jobs.
        ENQUEUED = 31 => Enqueued(enqueued: Enqueued),
        /// Jobs, each with its lease.
        DELIVER = 32 => Deliver(deliver: Deliver),
        /// Credits given back, because they were recalled.
        RETURNED = 33 => Returned(credit: Credit),
        /// So many jobs wait for a credit of that subscription.
        WAITING = 34 => Waiting(waiting: Waiting),
        /// The answer to a batch of settles.
        SETTLED = 35 => Settled(settled: Settled),
        /// These leases have ended though their worker did not end them; their contexts are to be
        /// cancelled.
        REVOKED = 36 => Revoked {
            /// Why.
            reason: Revoked,
            /// Which.
            tokens: Tokens,
        },
        /// The answer to a request.
        ANSWER = 37 => Answer {
            /// The request's number.
            id: u64,
            /// The answer, or why there is none.
            answer: Result<Answer, RequestError>,
        },
        /// A subscription was not made.
        SUBSCRIBE_REFUSED = 38 => SubscribeRefused {
            /// Which.
            subscription: u32,
            /// Why, for people.
            reason: String = cut("reason", REASON_BYTES_MAX),
        },
        /// The answer to a renewal: those of its tokens that hold no lease any more.
        RENEWED = 39 => Renewed {
            /// The stale ones.
            stale: Tokens,
        },
        /// The publisher is about to close the link, and why.
        GOODBYE = 40 => Goodbye {
            /// Why, for people.
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
            /// Why.
            end: FeedEnd,
        },
        /// An operator asks that the worker begins no job, or begins jobs again. Answered by
        /// [`ToPublisher::Quieted`].
        WORKER_QUIET = 44 => WorkerQuiet(quiet: Quiet),
        /// The publisher's version does not know a message; it was skipped, and the link goes on.
        UNSUPPORTED = 45 => Unsupported {
            /// Its tag.
            tag: u8,
            /// The number that it begins with; 0 if it begins with none.
            id: u64,
        },
    }
}

impl ToPublisher {
    /// The number by which the sender knows a message, even one that does not decode: a batch's
    /// sequence or a request's id. With it a publisher can answer `Malformed`, `TooLarge` or
    /// `Unknown`, and the link goes on.
    pub fn number(body: &Bytes) -> Option<u64> {
        Reader::new(body.clone()).u64().ok()
    }
}

impl FromPublisher {
    /// Writes a delivery that is kept by its owner, to be filled again.
    pub fn encode_deliver(deliver: &Deliver, out: &mut FrameWriter) {
        out.message(tag::DELIVER, |out| deliver.encode(out));
    }
}
