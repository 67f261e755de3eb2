//! For your tests: a whole system in this process, whose clock your test moves.
//!
//! ```
//! use std::time::Duration;
//!
//! use longshore::prelude::*;
//! use longshore::testing::System;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let system = System::start().await?;
//! let mut job = new_job(Path::new("/jobs/report")?, "monday");
//! job.options.due = longshore::Due::After(3_600_000);
//! system.producer().enqueue(job).await?;
//!
//! let print = |job: Job<String>, _: JobContext| async move { Ok(job.payload.to_uppercase()) };
//! let worker = system.worker().durable_subscribe("/jobs/**");
//! let report = system.drain(worker, |jobs| jobs.run(print)).await?;
//! assert_eq!(report.completed, 0, "not yet");
//!
//! system.advance(Duration::from_secs(3_600)).await?;
//! let worker = system.worker().durable_subscribe("/jobs/**");
//! let report = system.drain(worker, |jobs| jobs.run(print)).await?;
//! assert_eq!(report.completed, 1);
//! # Ok(())
//! # }
//! ```
//!
//! The publisher's clock stands still until it is moved, so nothing comes due, expires or loses its
//! lease because a test is slow; back-off, delays and times to live pass as soon as the test says
//! so. Everything else is as in production: links, leases, tokens, retries, dead letters. Only its
//! acknowledgements do not wait for the disk.

mod drain;

use std::time::{Duration, SystemTime};

use longshore_protocol::SessionId;

pub use self::drain::{DrainError, DrainReport};
pub use longshore_publisher::{ClockUnused, TestClock};

use crate::embedded::{self, SystemOptions};
use crate::{
    Cluster, Durability, Producer, PublisherInfo, PublisherOptions, Queues, QueuesOptions,
    ReadClient, Worker, new_id,
};

/// How long [`System::drain`] waits for something to happen, unless told otherwise: by the
/// machine's clock.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of a segment of the journal: a test needs little, and each is made before it is needed.
const SEGMENT_BYTES: u64 = 4 * 1024 * 1024;

/// A resolver replica and a publisher that takes jobs of every path, on free ports of the loopback
/// address, with a journal in a temporary folder. All of it ends, and the folder goes, when it is
/// dropped. Needs a tokio runtime with its time and io drivers; a current-thread one will do.
#[derive(Debug)]
pub struct System {
    system: embedded::System,
    clock: TestClock,
    patience: Duration,
}

/// Why there is no system: the machine does not let it, or `start_with` was given options that no
/// publisher takes.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No temporary folder could be made.
    #[error("no temporary folder for the journal: {0}")]
    Folder(#[from] std::io::Error),
    /// The resolver replica or the publisher did not start.
    #[error(transparent)]
    System(#[from] embedded::StartError),
}

impl System {
    /// Starts one; its clock stands at the machine's time. Dropping the future ends what it has
    /// begun.
    pub async fn start() -> Result<System, StartError> {
        System::start_with(|_| ()).await
    }

    /// Starts one after `change` has set what is to be different about its publisher: paths,
    /// lengths of leases, limits. Its folder, clock and resolver are the system's.
    pub async fn start_with(
        change: impl FnOnce(&mut PublisherOptions),
    ) -> Result<System, StartError> {
        let folder = tempfile::Builder::new().prefix("longshore-test-").tempdir()?;
        let mut options = SystemOptions::new(folder.path());
        let clock = TestClock::new();
        options.publisher.name = "test".to_owned();
        options.publisher.durability = Durability::None;
        options.publisher.segment_bytes = SEGMENT_BYTES;
        change(&mut options.publisher);
        options.publisher.data = folder.path().to_owned();
        options.publisher.clock = Some(clock.clone());
        let system = embedded::System::start_beside(options, folder).await?;
        Ok(System { system, clock, patience: PATIENCE })
    }

    /// How long [`System::drain`] waits for something to happen before it gives up, by the
    /// machine's clock; 30 s unless told otherwise.
    pub fn patience(mut self, patience: Duration) -> System {
        self.patience = patience;
        self
    }

    /// The resolver replica, for whatever connects by itself: the program under test.
    pub fn cluster(&self) -> Cluster {
        self.system.cluster()
    }

    /// The publisher: its id, its address.
    pub fn publisher(&self) -> &PublisherInfo {
        self.system.publisher().info()
    }

    /// A producer, with default options and links of its own.
    pub fn producer(&self) -> Producer {
        self.system.producer()
    }

    /// A worker. One whose run is dropped, not drained, loses its leases once the clock is moved by
    /// the grace that a lost link has: 5 s.
    pub fn worker(&self) -> Worker {
        self.system.worker()
    }

    /// A client that reads queues and acts on them.
    pub fn queues(&self) -> Queues {
        Queues::to_publishers(vec![self.publisher().clone()], QueuesOptions::default())
    }

    /// The directory, as clients see it.
    pub fn resolvers(&self) -> ReadClient {
        ReadClient::new(self.cluster(), SessionId(new_id().0), "test")
    }

    /// What the publisher's clock says.
    pub fn now(&self) -> SystemTime {
        self.clock.now()
    }

    /// The same in milliseconds since 1970, as jobs have it in [`Due::At`](crate::Due::At) and
    /// `expires_at`.
    pub fn now_ms(&self) -> u64 {
        let since = self.now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// Moves the publisher's clock, in whole milliseconds, and waits until all that comes due in
    /// that time has happened, each thing at its own time and in that order: delays, back-off,
    /// `run_at`, expiry, retention. What is ready then still has to be run.
    ///
    /// A job that runs keeps its lease, unless the move is at least as long as the lease (30 s
    /// unless the job says otherwise): then it is lost, as if its worker had stood still for so
    /// long. So let workers come to an end ([`System::drain`]) before a long move. Cancel safe:
    /// once asked for, a move happens.
    pub async fn advance(&self, by: Duration) -> Result<(), ClockUnused> {
        self.clock.advance(by).await
    }

    /// Stops the publisher in order and removes the folder. Dropping the system, or this future,
    /// does the same without waiting for it.
    pub async fn stop(self) {
        // What failed is in the log, and whoever used it has had an error.
        let _ = self.system.stop().await;
    }
}
