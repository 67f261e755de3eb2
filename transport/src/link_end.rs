//! Why a link ended.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::pace::{PACE_TIME, pace_bytes};

/// Why a link ended. Both halves return the same reason.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LinkEnd {
    /// The other side closed it between two frames; a process that died looks the same.
    #[error("the other side closed the link")]
    Closed,
    /// No byte arrived for the hang timeout.
    #[error("the other side was silent for {silent_for:?}")]
    Hung {
        /// Time since the last byte arrived.
        silent_for: Duration,
    },
    /// The other side announced a frame over the negotiated limit. None of it was read.
    #[error("a frame of {length} bytes was announced; the limit is {limit}")]
    FrameTooLong {
        /// Bytes that the frame's body would have had.
        length: usize,
        /// The negotiated limit.
        limit: usize,
    },
    /// The other side closed it in the middle of a frame.
    #[error("the link ended within a frame: {had} of {needed} bytes came")]
    Truncated {
        /// Bytes of the frame that arrived, its length field included.
        had: usize,
        /// Bytes of the whole frame as far as is known.
        needed: usize,
    },
    /// Less than 64 KiB of a frame, or than a sixth of a long one, arrived in 10 s, and it did not
    /// end: it would occupy its memory for too long. Only an accepted link ends this way.
    #[error(
        "a frame came too slowly: {had} of {needed} bytes are here, and fewer than {} came in \
         {PACE_TIME:?}", pace_bytes(*needed)
    )]
    TooSlow {
        /// Bytes of the frame that arrived, its length field included.
        had: usize,
        /// Bytes of the whole frame as far as is known.
        needed: usize,
    },
    /// The socket took no byte for the hang timeout though bytes were queued: the other side does
    /// not read.
    #[error("the other side took no byte for {stalled_for:?}")]
    SendStalled {
        /// Time since the first byte was refused.
        stalled_for: Duration,
    },
    /// The socket failed.
    #[error("{0}")]
    Io(Arc<io::Error>),
    /// This side closed it.
    #[error("closed here: {0}")]
    Local(Arc<str>),
}

impl LinkEnd {
    pub(crate) fn io(error: io::Error) -> LinkEnd {
        LinkEnd::Io(Arc::new(error))
    }
}
