//! Why a link ended.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::pace::{PACE_BYTES, PACE_TIME};

/// Why a link ended. Both halves tell the same reason.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LinkEnd {
    /// The other side closed it, between two frames; a process that died looks the same.
    #[error("the other side closed the link")]
    Closed,
    /// No byte came for the hang timeout.
    #[error("the other side was silent for {silent_for:?}")]
    Hung {
        /// How long ago the last byte came.
        silent_for: Duration,
    },
    /// The other side announced a frame that is over the negotiated limit. Nothing of it was read.
    #[error("a frame of {length} bytes was announced; the limit is {limit}")]
    FrameTooLong {
        /// Bytes that the frame's body would have had.
        length: usize,
        /// The most that it may have.
        limit: usize,
    },
    /// The other side closed it in the middle of a frame.
    #[error("the link ended within a frame: {had} of {needed} bytes came")]
    Truncated {
        /// Bytes of the frame that came, its length field included.
        had: usize,
        /// Bytes that it has as far as is known.
        needed: usize,
    },
    /// Less than 64 KiB of a frame came in 10 s, and it did not end: it would keep its memory for
    /// too long. Only an accepted link ends so.
    #[error(
        "a frame came too slowly: {had} of {needed} bytes are here, and fewer than {PACE_BYTES} came in {PACE_TIME:?}"
    )]
    TooSlow {
        /// Bytes of the frame that came, its length field included.
        had: usize,
        /// Bytes that it has as far as is known.
        needed: usize,
    },
    /// The socket took no byte for the hang timeout though there was something to send: the other
    /// side does not read.
    #[error("the other side took no byte for {stalled_for:?}")]
    SendStalled {
        /// How long ago the first byte was refused.
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
