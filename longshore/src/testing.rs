//! A whole system in this process for your tests, with a clock that the test moves.
//!
//! ```
//! use std::time::Duration;
//!
//! use longshore::Path;
//! use longshore::prelude::*;
//! use longshore::testing::TestSystem;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let system = TestSystem::start().await?;
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
//! The publisher's clock moves only when the test moves it, so a slow test does not make jobs
//! due or expired, and does not end leases. Back-offs, delays and times to live pass when the test
//! moves the clock. Links, leases, tokens, retries and dead letters work as in production, but
//! acknowledgements do not wait for the disk.
//!
//! [`Torture`] needs no system: it runs handlers with a fault at each of their awaits.

mod drain;
mod memory_fenced_store;
mod torture;

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

pub use self::drain::{DrainError, DrainReport};
pub use self::memory_fenced_store::MemoryFencedStore;
pub use self::torture::{
    Fault, JOBS_MAX, Outcome, SEEDS, Torture, TortureError, TortureFailure, TortureReport,
};
pub use longshore_publisher::{ClockUnused, TestClock};

use longshore_access::{
    AccessControl, Policy, PolicyFault, SECRET_RANDOM_BYTES, Secret, Token, TokenFault, Tokens,
};
use longshore_protocol::NotASocketPath;
use tempfile::TempDir;

use crate::embedded::{self, RunningPublisher, SystemOptions};
use crate::{
    Cluster, Durability, Producer, PublisherInfo, PublisherOptions, Queues, ReadClient,
    TokenSource, Worker,
};

/// The default time that [`TestSystem::drain`] waits without progress, by the machine's clock.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of a journal segment. Segments are preallocated, and a test needs little.
const SEGMENT_BYTES: u64 = 4 * 1024 * 1024;

/// A resolver replica and a publisher of every path, on free ports of the loopback address, with a
/// journal in a temporary folder. When dropped, both stop and the folder is deleted. Needs a tokio
/// runtime with its time and io drivers; a current-thread runtime is enough.
#[derive(Debug)]
pub struct TestSystem {
    system: embedded::System,
    clock: TestClock,
    drain_timeout: Duration,
    /// Under a policy: the secrets of its tokens.
    tokens: HashMap<String, TokenSource>,
}

/// Errors of a start: an error of the machine, or invalid options in `start_with`.
#[derive(Debug, thiserror::Error)]
pub enum TestStartError {
    /// Cannot create a temporary folder.
    #[error("no temporary folder for the journal: {0}")]
    Folder(#[from] std::io::Error),
    /// The resolver replica or the publisher did not start.
    #[error(transparent)]
    System(#[from] embedded::StartError),
    /// The temporary folder's path is too long, or no text.
    #[error("the temporary folder: {0}")]
    Socket(#[from] NotASocketPath),
    /// A name is not one of a token, or there twice.
    #[error(transparent)]
    Token(#[from] TokenFault),
    /// The policy cannot be extended.
    #[error(transparent)]
    Policy(#[from] PolicyFault),
}

fn folder() -> std::io::Result<TempDir> {
    tempfile::Builder::new().prefix("longshore-test-").tempdir()
}

fn options(folder: &TempDir) -> SystemOptions {
    let mut options = SystemOptions::new(folder.path());
    options.publisher.name = "test".to_owned();
    options.publisher.durability = Durability::None;
    options.publisher.segment_bytes = SEGMENT_BYTES;
    options
}

impl TestSystem {
    /// Starts a system whose clock shows the machine's time. Dropping the future stops it.
    pub async fn start() -> Result<TestSystem, TestStartError> {
        TestSystem::start_with(|_| ()).await
    }

    /// Starts a system with changed publisher options: paths, leases, limits. The system sets its
    /// folder, clock and resolver.
    pub async fn start_with(
        change: impl FnOnce(&mut PublisherOptions),
    ) -> Result<TestSystem, TestStartError> {
        let folder = folder()?;
        let mut options = options(&folder);
        change(&mut options.publisher);
        TestSystem::launch(options, folder, HashMap::new()).await
    }

    /// Starts a system under a policy, to test what it allows. For each of these names there is a
    /// token: [`cluster_of`](TestSystem::cluster_of) is for clients that have it. The system itself
    /// and its own clients ([`worker`](TestSystem::worker) …) are `unix:UID`, the user of this
    /// process, which may do everything that no `[[deny]]` forbids it, and owns the publisher's id.
    ///
    /// ```
    /// use longshore::access::Policy;
    /// use longshore::{Path, Producer};
    /// use longshore::prelude::*;
    /// use longshore::testing::TestSystem;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let policy = Policy::parse(
    ///     "[[allow]]\n\
    ///      who = ['token:shop']\n\
    ///      do = ['resolve']\n\
    ///      paths = ['/jobs/**']\n\
    ///      [[allow]]\n\
    ///      who = ['token:shop']\n\
    ///      do = ['enqueue']\n\
    ///      paths = ['/jobs/${user}/**']\n",
    /// )?;
    /// let system = TestSystem::start_under(&policy, &["shop"]).await?;
    /// let shop = Producer::connect(system.cluster_of("shop").ok_or("no such token")?);
    /// shop.enqueue(new_job(Path::new("/jobs/shop/mail")?, "hello")).await?;
    /// let refused = shop.enqueue(new_job(Path::new("/jobs/bank/mail")?, "hello")).await;
    /// assert!(refused.is_err());
    /// // The system itself may do it.
    /// system.producer().enqueue(new_job(Path::new("/jobs/bank/mail")?, "hello")).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn start_under(
        policy: &Policy,
        tokens: &[&str],
    ) -> Result<TestSystem, TestStartError> {
        let folder = folder()?;
        let mut options = options(&folder);
        // Its id is as old as its folder, and the policy has to name it.
        let first = RunningPublisher::start(PublisherOptions {
            clock: None,
            segment_bytes: SEGMENT_BYTES,
            durability: Durability::None,
            ..PublisherOptions::new(folder.path())
        });
        let first = first.await.map_err(embedded::StartError::from)?;
        let policy = policy.clone().with_operator("unix:*", first.info().id)?;
        // It wrote nothing that could be lost.
        let _ = first.stop().await;
        let (mut known, mut secrets) = (Tokens::default(), HashMap::new());
        for (nth, name) in (1_u64..).zip(tokens) {
            // Nobody else reaches its sockets, which are in a folder of this user.
            let mut bytes = [0; SECRET_RANDOM_BYTES];
            bytes[..8].copy_from_slice(&nth.to_le_bytes());
            let secret = Secret::from_random(&mut bytes);
            let (name, hash) = ((*name).to_owned(), secret.hash());
            let token =
                Token { name: name.clone(), hash, created_unix_ms: 0, expires_unix_ms: None };
            known.add(token)?;
            secrets.insert(name, TokenSource::from(secret));
        }
        let control = AccessControl::new(Some(policy), Some(known));
        let socket = |name: &str| folder.path().join(name).to_string_lossy().parse();
        for (_, replica) in &mut options.replicas {
            replica.access_control = control.clone();
            replica.listen_unix = Some(socket("resolver.sock")?);
        }
        options.publisher.access_control = control;
        options.publisher.listen_unix = Some(socket("publisher.sock")?);
        TestSystem::launch(options, folder, secrets).await
    }

    async fn launch(
        mut options: SystemOptions,
        folder: TempDir,
        tokens: HashMap<String, TokenSource>,
    ) -> Result<TestSystem, TestStartError> {
        let clock = TestClock::new();
        options.publisher.data = folder.path().to_owned();
        options.publisher.clock = Some(clock.clone());
        let system = embedded::System::start_with_guard(options, folder).await?;
        Ok(TestSystem { system, clock, drain_timeout: DRAIN_TIMEOUT, tokens })
    }

    /// The cluster, for clients that have the token of this name; none if there is no such token.
    pub fn cluster_of(&self, token: &str) -> Option<Cluster> {
        Some(self.cluster().token(self.tokens.get(token)?.clone()))
    }

    /// Sets how long [`TestSystem::drain`] waits without progress before it fails, by the machine's
    /// clock; 30 s by default.
    pub fn drain_timeout(mut self, drain_timeout: Duration) -> TestSystem {
        self.drain_timeout = drain_timeout;
        self
    }

    /// The cluster, for clients that the program under test creates.
    pub fn cluster(&self) -> Cluster {
        self.system.cluster()
    }

    /// The publisher's id and address.
    pub fn publisher(&self) -> &PublisherInfo {
        self.system.publisher().info()
    }

    /// A producer with default options and its own links.
    pub fn producer(&self) -> Producer {
        self.system.producer()
    }

    /// A worker. If its run is dropped instead of drained, its leases end once the clock is moved
    /// by the grace period of a lost link, 5 s.
    pub fn worker(&self) -> Worker {
        self.system.worker()
    }

    /// A client that reads queues and acts on them.
    pub fn queues(&self) -> Queues {
        Queues::to_publishers(vec![self.publisher().clone()])
    }

    /// A client of the directory.
    pub fn resolvers(&self) -> ReadClient {
        ReadClient::connect(self.cluster())
    }

    /// The time of the publisher's clock.
    pub fn now(&self) -> SystemTime {
        self.clock.now()
    }

    /// The clock's time in milliseconds since 1970, as in [`Due::At`](crate::Due::At) and
    /// `expires_at`.
    pub fn now_ms(&self) -> u64 {
        let since = self.now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// Moves the publisher's clock, in whole milliseconds, and waits until all timers within that
    /// time have fired, each at its own time and in order: delays, back-off, `run_at`, expiry,
    /// retention. Jobs that become ready still have to be run.
    ///
    /// A running job keeps its lease, unless the move is at least as long as the lease (30 s by
    /// default): then the lease is lost, as if its worker had been stopped for that time. Drain
    /// workers ([`TestSystem::drain`]) before a long move. Cancel safe: a requested move always
    /// happens.
    pub async fn advance(&self, by: Duration) -> Result<(), ClockUnused> {
        self.clock.advance(by).await
    }

    /// Stops the publisher in order and removes the folder. Dropping the system, or this future,
    /// does the same without waiting for it.
    pub async fn stop(self) {
        // A failure is logged, and clients have received an error.
        let _ = self.system.stop().await;
    }
}
