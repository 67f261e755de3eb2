//! What a producer, its clones and its pipelines share.

use std::sync::{Arc, OnceLock};

use crate::driver::{Driver, StreamHandle};
use crate::queues::Queues;

/// Closes all links when the last producer or pipeline drops it.
pub(crate) struct ProducerHandle {
    pub(crate) driver: Arc<Driver>,
    /// The stream of single `enqueue` calls.
    pub(crate) stream: StreamHandle,
    /// The stream of `enqueue_atomic` calls. In that of single calls, these would take the room as
    /// it becomes free, and a batch, which needs a lot at once, might never have enough.
    pub(crate) atomic_stream: StreamHandle,
    /// The client for requests to publishers. Created on first use, with links of its own.
    pub(crate) queues: OnceLock<Queues>,
}

impl Drop for ProducerHandle {
    fn drop(&mut self) {
        self.driver.closed.cancel();
    }
}
