//! What reaches the owner.

use bytes::Bytes;
use longshore_protocol::messages::work::{ToPublisher, Tokens};
use longshore_protocol::{LinkId, Role, SessionId};
use longshore_queue::Handed;
use longshore_transport::LinkSender;

use crate::cold::LoadedAnswer;

/// Inputs that may wait for the owner, each a frame's worth of messages. When it is full, links are not read.
pub(crate) const INPUTS_MAX: usize = 1_024;

/// One input.
pub(crate) enum Input {
    /// A link has said who it is.
    Up(Up),
    /// A frame's messages.
    Messages {
        /// The link.
        link: LinkId,
        /// In their order.
        messages: Vec<ToPublisher>,
    },
    /// A link has ended.
    Down {
        /// The link.
        link: LinkId,
    },
    /// A link that had as many bytes under way as it may has room again.
    Ready {
        /// The link.
        link: LinkId,
    },
    /// Entries read back from the journal, for jobs on their way to workers.
    Loaded {
        /// Each job with its entry; none where it could not be read.
        jobs: Vec<(Handed, Option<Bytes>)>,
    },
    /// An answer whose cold parts were read.
    Answered(LoadedAnswer),
}

/// A link that stands.
pub(crate) struct Up {
    /// Its number.
    pub(crate) link: LinkId,
    /// Its sending half.
    pub(crate) sender: LinkSender,
    /// What it is for.
    pub(crate) role: Role,
    /// The run of the process at its other end.
    pub(crate) session: SessionId,
    /// That process's name.
    pub(crate) name: String,
    /// Leases that it holds.
    pub(crate) resume: Tokens,
}
