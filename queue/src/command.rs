//! The only ways into the state.

use longshore_protocol::messages::work::{Action, EnqueueBatch, Selection, SettleBatch, Tokens};
use longshore_protocol::{Epoch, Glob, LinkId, Path, PublisherId, Role, SessionId, Token};

/// A command: what happened to the queues. The same commands in the same order give the same state, on any machine.
#[derive(Clone, PartialEq, Debug)]
pub enum Command {
    /// The publisher starts: ends every link of the run before.
    Start(Start),
    /// A link stands. It ends the session's older links and their credits, moves the listed leases to itself, and releases
    /// the session's others.
    LinkUp {
        /// The link.
        link: LinkId,
        /// What it is for.
        role: Role,
        /// The run of the process at its other end.
        session: SessionId,
        /// The process's name.
        name: String,
        /// The leases that it still holds.
        resume: Tokens,
    },
    /// A link is gone: its credits end; its leases run on, and end by `Expire` or by a resumption.
    LinkLost {
        /// The link.
        link: LinkId,
    },
    /// A pattern to take jobs from.
    Subscribe {
        /// The link.
        link: LinkId,
        /// The link's number for it.
        subscription: u32,
        /// Which queues.
        pattern: Glob,
    },
    /// No more jobs of it.
    Unsubscribe {
        /// The link.
        link: LinkId,
        /// The subscription.
        subscription: u32,
    },
    /// More jobs are wanted.
    Credit {
        /// The link.
        link: LinkId,
        /// The subscription.
        subscription: u32,
        /// How many more.
        count: u32,
    },
    /// Credits are asked back.
    Recall {
        /// The link.
        link: LinkId,
        /// The subscription.
        subscription: u32,
        /// How many at most.
        count: u32,
    },
    /// Jobs.
    Enqueue {
        /// The producer's link.
        link: LinkId,
        /// The batch.
        batch: EnqueueBatch,
    },
    /// Ends of leases by their workers.
    Settle {
        /// The worker's link.
        link: LinkId,
        /// The batch.
        batch: SettleBatch,
    },
    /// Ends of leases by time, link or restart.
    Expire {
        /// Which.
        leases: Vec<Expired>,
    },
    /// Cancel, revive or drop jobs.
    Act {
        /// The tool's link.
        link: LinkId,
        /// The tool's number for its request.
        request: u64,
        /// What is to be done.
        action: Action,
        /// To which jobs.
        selection: Selection,
    },
    /// The entry of a running job cannot be read back: the job is buried, the rest goes on.
    Damaged {
        /// Its lease.
        token: Token,
    },
    /// Time has passed: what is due becomes ready, what is too old is forgotten, in bounded steps.
    Tick,
}

/// What a start says.
#[derive(Clone, PartialEq, Debug)]
pub struct Start {
    /// The publisher's id; the same in every start of a data directory.
    pub publisher: PublisherId,
    /// One more than the last.
    pub epoch: Epoch,
    /// The machine's boot: within one, monotonic time goes on by the clock; over several, by the wall.
    pub boot: [u8; 16],
    /// Paths that it serves by name.
    pub paths: Vec<Path>,
    /// Paths below which any queue is made on first use.
    pub defaults: Vec<Path>,
}

/// A lease that has ended without a settle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expired {
    /// The lease.
    pub token: Token,
    /// Whether its worker had reported the attempt as started: then the attempt is used up.
    pub started: bool,
    /// True when it ended because nobody resumed it after the publisher's own restart: then the attempt is given back.
    pub restart: bool,
}

impl Command {
    /// Where the raw batch begins in the encoded body of an `Enqueue` or a `Settle`: after the link, a fixed `u64`.
    pub const BATCH_AT: u32 = 8;
}
