//! A publisher from start to stop.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_protocol::{
    Address, Epoch, LinkId, Path, PublisherId, PublisherInfo, ResolverTiming, Role, check_name,
};
use longshore_queue::{
    Clock, ClockSource, CutTail, Dropped, LostPayloads, Opened, Rules, START_PATHS_MAX, Secret,
    Store, StoreOptions, UNCOMMITTED_BYTES_MAX,
};
use longshore_resolver::WriteClient;
use longshore_transport::{
    FrameBudget, HANDSHAKES_MAX, LINK_BYTES, Listener, ListenerOptions, MemoryBounds,
    OldestCommand, SEND_QUEUE_BYTES_MAX, ServerInfo, TlsError,
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::accept::{LinkClient, accept};
use crate::error::{OpenError, PublisherFailed, grace_ms_min};
use crate::event::{EVENT_BYTES_MAX, EventSender};
use crate::health::HealthHandle;
use crate::homes::OwnHomes;
use crate::idle::IdleQueues;
use crate::link;
use crate::metrics::{PublisherMetrics, metrics_path, serve_metrics};
use crate::options::PublisherOptions;
use crate::owner::{DiskWatch, Owner};
use crate::queue_quotas::QueueQuotas;
use crate::registry::Registry;
use crate::values::{self, PathKinds, ValueDefault, ValueOptions, ValueRegistry, Values};

/// A future that is compiled in this crate: see Build in `docs/ARCHITECTURE.md`.
type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// How long a stop waits for the replicas to remove the publisher.
const CLEAR_WAIT: Duration = Duration::from_secs(2);

/// How long a stop waits for links to send their goodbye.
const GOODBYE_WAIT: Duration = Duration::from_secs(1);

/// An open publisher: its journal is recovered, its start is durable, its address is bound.
/// [`Publisher::run`] serves. Dropping it earlier closes the listener.
pub struct Publisher {
    pub(crate) owner: Owner,
    events: EventSender,
    listener: Listener,
    info: PublisherInfo,
    registry: Option<Registry>,
    registration: Option<Registration>,
    values: Values,
    metrics: Option<ValueDefault>,
    opened: Opened,
    memory: MemoryBounds,
    health: HealthHandle,
}

impl Publisher {
    /// Recovers the journal, makes this start durable, listens, and begins to register at the
    /// resolver. Links that arrive before [`Publisher::run`] wait. Reading a large journal takes a
    /// while, on a thread of its own. Needs a tokio runtime.
    ///
    /// Not cancel safe: when the future is dropped, recovery goes on to its end, and the data
    /// directory is in use until then.
    pub fn open(
        options: PublisherOptions,
    ) -> impl Future<Output = Result<Publisher, OpenError>> + Send {
        let opening: BoxFuture<_> = Box::pin(Publisher::recover_and_listen(options));
        opening
    }

    async fn recover_and_listen(options: PublisherOptions) -> Result<Publisher, OpenError> {
        check(&options)?;
        let terms = options.terms()?;
        let store_options = StoreOptions {
            secret: Secret(rand::random()),
            segment_bytes: options.segment_bytes,
            durability: options.durability,
            accept_loss: options.accept_loss,
            cache_bytes: options.cache_bytes,
            memory_max: options.memory_max.unwrap_or_else(PublisherOptions::default_memory_max),
            paths: options.paths.clone(),
            defaults: options.defaults.clone(),
            rules: Rules::STANDARD,
            leases: options.leases,
            clock_skew_max: options.clock_skew_max,
            clock: options
                .clock
                .as_ref()
                .map_or(ClockSource::Machine, |clock| ClockSource::Manual(clock.manual())),
        };
        let moves = match &options.clock {
            Some(clock) => Some(clock.take_moves().ok_or(OpenError::ClockInUse)?),
            None => None,
        };
        let data = options.data.clone();
        // Recovery reads the whole journal: not on a runtime thread.
        let opening = tokio::task::spawn_blocking(move || Store::open(&data, store_options));
        let (store, clock, opened): (Store, Clock, Opened) =
            opening.await.map_err(|_| OpenError::Interrupted)??;
        let homes = OwnHomes::new(options.name.clone(), options.homes.clone());
        homes.check_keys(store.state())?;
        if let Some(dropped) = &opened.dropped {
            let Dropped { file, offset, index, moved_to, bytes } = dropped;
            warn!(?file, offset, index, ?moved_to, bytes, "this command and all after it are lost");
        }
        if let Some(LostPayloads { file, files }) = &opened.lost_payloads {
            warn!(?file, files, "jobs with payloads in these files are buried when read");
        }
        if let Some(CutTail { file, offset, bytes }) = &opened.cut {
            info!(?file, offset, bytes, "a torn tail was cut off");
        }

        let info = ServerInfo {
            instance: opened.publisher.0,
            epoch: opened.epoch.0,
            name: options.name.clone(),
            serves: |role| !role.is_for_resolver(),
        };
        let oldest = OldestCommand::default();
        let budget = options.frame_budget();
        let listener_options =
            ListenerOptions {
                budget: budget.clone(),
                oldest: oldest.clone(),
                timing: options.timing,
                value_timing: options.value_timing,
                connections_max: options.connections_max,
                value_connections_max: Some(options.value_connections_max.unwrap_or(
                    PublisherOptions::default_value_connections(options.connections_max),
                )),
                insecure: options.insecure,
                unix: options.listen_unix.clone(),
                cluster: options.cluster_name(),
                tls: options.tls.clone(),
                access_control: options.access_control.clone(),
                audit: options.audit.clone(),
                ..ListenerOptions::default()
            };
        let listener = Listener::bind(options.listen, info, listener_options)?;
        let addresses = if options.advertise.is_empty() {
            let unix = options.listen_unix.clone().map(Address::Unix);
            [listener.local_address().into()].into_iter().chain(unix).collect()
        } else {
            options.advertise.clone()
        };
        let info =
            PublisherInfo::new(opened.publisher, opened.epoch, options.name.clone(), addresses);
        let info = PublisherInfo { tls_name: options.tls_name.clone(), ..info };

        let timing =
            options.cluster.as_ref().map_or_else(ResolverTiming::default, |all| all.timing.clone());
        let queues = options.paths.iter().chain(store.state().queue_paths());
        let names = PathKinds::of_queues(queues.cloned(), options.defaults.iter().cloned());
        let names = Arc::new(names);
        let queue_terms = terms.clone();
        let registry = options.cluster.map(|cluster| {
            // One session per start: replicas distinguish the starts of a publisher by its epoch.
            let client = WriteClient::connect(cluster, info.clone());
            let registry = Registry::new(client, terms, names.clone());
            let paths = options.paths.iter().chain(store.state().queue_paths());
            registry.publish_all(paths.cloned(), options.defaults.iter().cloned());
            registry
        });
        let client = registry.as_ref().map(|registry| registry.client().clone());
        let usual = ValueOptions { priority: options.priority, weight: options.weight };
        let directory = ValueRegistry::new(client, names.clone(), Some(queue_terms), usual);
        let values = Values::new(directory);
        let disk = DiskWatch::new(options.hang_after, oldest);
        let declared = options.paths.into_iter().collect();
        let idle = IdleQueues::after(Instant::now(), timing.writer_ttl, declared);
        let registration = (registry.clone(), names);
        // The only value so far, so it cannot be published already.
        let base = metrics_path("publishers", &options.name);
        let metrics = options.metrics.then(|| values.publish_reserved_default(base).ok()).flatten();
        let watches = (disk, idle, QueueQuotas::new(options.access_control), homes);
        let named = (options.name, opened.journal, options.audit);
        let (owner, events, health) =
            Owner::new(store, clock, registration, named, watches, values.clone(), moves);
        let memory = memory_bounds(&budget, options.cache_bytes, listener.slots().limit());
        let address = listener.local_address();
        info!(publisher = %info.id, epoch = info.epoch.0, %address, "publisher open");
        info!(%memory, "memory of a publisher beside its jobs");
        Ok(Publisher {
            owner,
            events,
            listener,
            info,
            registration: registry.as_ref().map(|registry| Registration(registry.client().clone())),
            registry,
            values,
            metrics,
            opened,
            memory,
            health,
        })
    }

    /// The address that it listens on.
    pub fn local_address(&self) -> SocketAddr {
        self.listener.local_address()
    }

    /// Its id and addresses, for `Producer::to_publishers` and `Queues::to_publishers` where there
    /// is no resolver.
    pub fn info(&self) -> &PublisherInfo {
        &self.info
    }

    /// Its id, which lives as long as its data directory.
    pub fn id(&self) -> PublisherId {
        self.info.id
    }

    /// Its name for operators.
    pub fn name(&self) -> &str {
        &self.info.name
    }

    /// Its live values, published at the same address and served while [`Publisher::run`] runs.
    pub fn values(&self) -> Values {
        self.values.clone()
    }

    /// What recovery found.
    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    /// The most memory that its links can use, beside its jobs, which have
    /// [`memory_max`](PublisherOptions::memory_max).
    pub fn memory_bounds(&self) -> &MemoryBounds {
        &self.memory
    }

    /// The state of its registration at each replica; none without a resolver.
    pub fn write_client(&self) -> Option<&WriteClient> {
        self.registry.as_ref().map(Registry::client)
    }

    /// Reads its health while it runs, for a watchdog.
    pub fn health_handle(&self) -> HealthHandle {
        self.health.clone()
    }

    /// Serves until `stop` resolves, and drops it. Then it accepts no more jobs and links, commits
    /// and answers what it received, closes every link, and withdraws its paths from every replica
    /// that it reaches. An error means that the journal failed: end the process and start it again.
    ///
    /// Dropping the future stops the queues at once, as a crash would; everything acknowledged is
    /// durable. Links receive a goodbye, and the port is free within a second. Paths stay at the
    /// replicas until they expire.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), PublisherFailed> {
        let stopping = CancellationToken::new();
        let mut serving = self.serve(stopping.clone());
        tokio::select! {
            // Polled whenever the publisher waits, or has used up the budget of its task.
            biased;
            () = stop => stopping.cancel(),
            served = &mut serving => return served,
        }
        serving.await
    }

    fn serve(self, stopping: CancellationToken) -> BoxFuture<Result<(), PublisherFailed>> {
        Box::pin(self.serve_until(stopping))
    }

    async fn serve_until(self, stopping: CancellationToken) -> Result<(), PublisherFailed> {
        let Publisher { owner, events, listener, info, registry, values, metrics, .. } = self;
        // Ends it also if this future is dropped.
        let _registration = self.registration;
        let closing = CancellationToken::new();
        // Also if this future is dropped.
        let _closes = closing.clone().drop_guard();
        // Dropping the set ends the task.
        let mut metrics_task = JoinSet::new();
        if let Some(default) = metrics {
            let base = metrics_path("publishers", &info.name);
            let source = PublisherMetrics::new(base, events.sender().clone());
            metrics_task.spawn(serve_metrics(default, values.clone(), source));
        }
        let (link_values, mut number) = (values.clone(), 0);
        let serve = move |client: LinkClient, sender, receiver| {
            number += 1;
            // Never reused within a data directory: the epoch rises with each start.
            let id = LinkId(info.epoch.0 << 32 | number);
            let (values, events) = (link_values.clone(), events.clone());
            async move {
                match client.handshake.role {
                    // Boxed, so that the futures of thousands of worker links do not reserve room
                    // for it.
                    Role::Values => Box::pin(values::serve(values, client, sender, receiver)).await,
                    _ => link::serve(id, client, sender, receiver, events).await,
                }
            }
        };
        let stops = (stopping.clone(), closing.clone());
        let accepting = accept(listener, values, stops, GOODBYE_WAIT, serve);
        let accepting = tokio::spawn(accepting);
        let served = owner.run(stopping).await;
        metrics_task.shutdown().await;
        closing.cancel();
        if let Err(why) = accepting.await {
            error!(%why, "the listener's task ended early");
        }
        if let Some(registry) = registry {
            registry.close(CLEAR_WAIT).await;
        }
        served.inspect_err(|why| error!(%why, "the journal failed"))?;
        Ok(())
    }
}

/// The publisher's registration, which ends with it: its values may live on, and have a client.
#[derive(Debug)]
struct Registration(WriteClient);

impl Drop for Registration {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

fn memory_bounds(budget: &FrameBudget, cache_bytes: usize, links: usize) -> MemoryBounds {
    MemoryBounds {
        frames: budget.bytes(),
        parts: vec![
            ("links", (links + HANDSHAKES_MAX) * LINK_BYTES),
            ("payload cache", cache_bytes),
            ("decoded messages", EVENT_BYTES_MAX),
            // Once as submitted, and once as written.
            ("commits", 2 * UNCOMMITTED_BYTES_MAX),
        ],
        unread: SEND_QUEUE_BYTES_MAX,
        links,
    }
}

fn check(options: &PublisherOptions) -> Result<(), OpenError> {
    check_name(&options.name)?;
    // Every other id and epoch encodes to at most as many bytes.
    let (id, epoch) = (PublisherId([0; 16]), Epoch(u64::MAX));
    let advertised = options.advertise.iter().cloned();
    let info = PublisherInfo::new(id, epoch, options.name.as_str(), advertised);
    PublisherInfo { tls_name: options.tls_name.clone(), ..info }.check()?;
    if let Some(name) = &options.tls_name {
        let tls = options.tls.as_ref().ok_or(TlsError::NoIdentity);
        tls.and_then(|tls| tls.check_name(name)).map_err(OpenError::BadTlsName)?;
    }
    let paths = options.paths.len().max(options.defaults.len());
    if paths > START_PATHS_MAX {
        return Err(OpenError::TooManyPaths(paths));
    }
    if options.hang_after < PublisherOptions::HANG_AFTER_MIN {
        return Err(OpenError::HangsTooSoon(options.hang_after));
    }
    if let Some(bytes) = options.memory_max.filter(|&n| n < PublisherOptions::MEMORY_MAX_MIN) {
        return Err(OpenError::MemoryTooSmall(bytes));
    }
    if let Some(budget) = &options.budget {
        let (bytes, least) = (budget.bytes(), options.frame_bytes_min());
        if bytes < least {
            return Err(OpenError::BudgetTooSmall { bytes, least });
        }
    }
    if options.clock_skew_max < PublisherOptions::CLOCK_SKEW_MAX_MIN {
        return Err(OpenError::ClockSkewTooSmall(options.clock_skew_max));
    }
    let (grace_ms, heartbeat) = (options.leases.reconnect_grace_ms, options.timing.heartbeat);
    if grace_ms < grace_ms_min(heartbeat) {
        return Err(OpenError::GraceTooShort { grace_ms, heartbeat });
    }
    if options.listen.ip().is_unspecified() && options.advertise.is_empty() {
        return Err(OpenError::NeedsAdvertise(options.listen));
    }
    for path in options.paths.iter().chain(&options.defaults) {
        if path.is_reserved() {
            return Err(OpenError::BadPath(path.clone(), "/sys is Longshore's own"));
        }
    }
    if options.paths.iter().any(Path::is_root) {
        return Err(OpenError::BadPath(
            Path::root(),
            "jobs need a path below the root; '/' can be a default",
        ));
    }
    Ok(())
}
