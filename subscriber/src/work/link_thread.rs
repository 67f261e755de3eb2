//! The thread of a worker's links. A handler that blocks its own runtime, or that keeps every core
//! busy, loses no link: its leases are renewed, and its publishers hear heartbeats.

use std::io;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

/// The longest that the thread outlives its worker: its links send what is queued, and close.
const CLOSE_WAIT_MAX: Duration = Duration::from_secs(5);
/// How often the thread checks whether its links are closed.
const CLOSE_CHECK: Duration = Duration::from_millis(10);

/// A runtime on a thread of its own. Dropping it ends the thread once no task is left; tasks that
/// do not end by themselves are to be aborted first.
#[derive(Debug)]
pub(crate) struct LinkThread {
    runtime: Handle,
    /// Dropped with this.
    _stop: oneshot::Sender<()>,
}

impl LinkThread {
    /// Fails if the process can have no further thread or file descriptor.
    pub(crate) fn start() -> io::Result<LinkThread> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        std::thread::Builder::new().name("longshore-links".into()).spawn(move || {
            runtime.block_on(async {
                // An error: the worker has ended.
                let _ = stopped.await;
                let _ = timeout(CLOSE_WAIT_MAX, no_tasks_left()).await;
            });
            // A look-up of a name may still block one of its threads.
            runtime.shutdown_background();
        })?;
        Ok(LinkThread { runtime: handle, _stop: stop })
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }
}

async fn no_tasks_left() {
    while Handle::current().metrics().num_alive_tasks() > 0 {
        sleep(CLOSE_CHECK).await;
    }
}
