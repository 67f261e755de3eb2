//! The API of live values: `Subscriber` and its options.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use longshore_protocol::messages::values::Policy;
use longshore_protocol::{Glob, Handshake, LinkTiming, Path, Role, SessionId, Value};
use longshore_resolver::{Cluster, ReadClient, ReadError};
use longshore_transport::LinkOptions;
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout_at};

use super::call::CallError;
use super::connection_manager::ConnectionManager;
use super::handles::{DurableValue, ValueSubscription};
use super::matching::{GenericMatching, MatchingValues};
use super::network::{Network, TcpNetwork};
use super::retries::RetryState;
use super::subscription_core::{SubscriptionCore, SubscriptionKind, ValueState};
use super::updates::{UPDATES_OF_ONE_MAX, Updates, UpdatesSink};
use super::writes::WriteError;
use crate::connect::FAR_FUTURE;

/// The default time limit of a subscription: resolve, connect and the publisher's answer together.
pub const SUBSCRIBE_WAIT: Duration = Duration::from_secs(30);

/// Subscribes to live values, and writes to them. Cheap to clone; all clones share one link per
/// publisher. Subscriptions outlive it.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// # mod longshore {
/// #     pub use longshore_protocol::Path;
/// #     pub mod values { pub use longshore_subscriber::*; }
/// # }
/// use longshore::Path;
/// use longshore::values::{Event, Subscriber};
///
/// let subscriber = Subscriber::connect("localhost");
/// let mut temperature = subscriber.durable_subscribe(Path::new("/hall/temperature")?);
/// while let Some(event) = temperature.next().await {
///     match event {
///         Event::Update(value) => println!("{value}"),
///         Event::Dead(reason) => eprintln!("lost, and tried again: {reason}"),
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Subscriber {
    inner: GenericSubscriber<TcpNetwork>,
}

/// The options of a [`Subscriber`]: `Subscriber::builder().name("panel").connect("localhost")`.
#[derive(Clone, Debug)]
#[must_use = "a builder creates a subscriber with `connect`"]
pub struct SubscriberBuilder {
    name: String,
    pub(super) link: LinkOptions,
    local_first: bool,
}

impl SubscriberBuilder {
    /// Sets the name that operators see; 1 to 128 bytes. With an invalid name every subscription
    /// fails. The default is `subscriber-` and the process id.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the options of links to publishers. By default 5 s between heartbeats, 100 s of silence
    /// until a link counts as hung
    /// ([`LinkTiming::VALUES`](longshore_protocol::LinkTiming::VALUES)), 3 s to connect.
    pub fn link(mut self, link: LinkOptions) -> Self {
        self.link = link;
        self
    }

    /// Whether to try publishers on this machine before all others; false by default.
    pub fn local_first(mut self, local_first: bool) -> Self {
        self.local_first = local_first;
        self
    }

    /// Creates the subscriber: see [`Subscriber::connect`]. Needs a tokio runtime.
    pub fn connect(self, cluster: impl Into<Cluster>) -> Subscriber {
        let SubscriberBuilder { name, link, local_first } = self;
        let cluster = cluster.into();
        let link = cluster.link_options(link);
        let resolver = ReadClient::builder().name(&name).connect(cluster);
        let session = SessionId(rand::random());
        let handshake = Handshake::new(Role::Values, session, name, link.timing);
        let net = TcpNetwork { resolver, handshake, options: link };
        Subscriber { inner: GenericSubscriber::new(net, local_first, rand::random()) }
    }
}

/// Options of a subscription.
#[derive(Clone, Debug)]
pub struct SubscribeOptions {
    /// What to do with updates that this process is too slow for; [`Policy::Conflate`] by default.
    /// If several subscriptions of one process share a path, the publisher applies the policy of
    /// the first.
    pub policy: Policy,
    /// The time limit of the subscription: resolve, connect and the publisher's answer together. 30
    /// s by default; ignored for durable subscriptions.
    pub within: Duration,
    /// The sink for updates. `None` creates a queue of 1,024 updates that `next` reads.
    pub into: Option<UpdatesSink>,
}

impl Default for SubscribeOptions {
    /// `Conflate`, 30 s, a queue of its own.
    fn default() -> SubscribeOptions {
        SubscribeOptions { policy: Policy::Conflate, within: SUBSCRIBE_WAIT, into: None }
    }
}

/// Why a subscription failed. All reasons but [`Stopped`](SubscribeError::Stopped) may be
/// temporary: retry later, or use [`Subscriber::durable_subscribe`], which retries by itself.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SubscribeError {
    /// No replica of the resolver answered.
    #[error("{0}")]
    Resolver(Arc<str>),
    /// No publisher publishes a value at this path.
    #[error(
        "nobody publishes a value at this path{}",
        if *complete { "" } else { "; the resolver is still warming up" }
    )]
    NotFound {
        /// False if no replica that answered has complete data yet: retry.
        complete: bool,
    },
    /// No publisher could be connected to; with the reason for each.
    #[error("no link to any publisher: {0}")]
    NoLink(Arc<str>),
    /// A publisher refused, with its name and reason: the value is gone, the path is a queue, or
    /// the program that creates the value declined.
    #[error("refused by {0}")]
    Refused(Arc<str>),
    /// The reader's queue is full, and the policy [`Policy::Disconnect`] does not allow dropping
    /// updates.
    #[error("the reader's queue is full, and the policy does not drop updates")]
    ReaderFull,
    /// It took longer than [`SubscribeOptions::within`].
    #[error("the subscription was not made within {after:?}")]
    Late {
        /// The time limit.
        after: Duration,
    },
    /// The runtime has stopped.
    #[error("the runtime has stopped")]
    Stopped,
}

impl Subscriber {
    /// Creates a subscriber that finds publishers through `cluster`: a [`Cluster`], or its replicas
    /// as `"HOST:PORT,…"`. Waits for nothing, and opens links only for subscriptions, so an invalid
    /// cluster is reported by the first subscription, or by [`Subscriber::ready`]. Needs a tokio
    /// runtime.
    pub fn connect(cluster: impl Into<Cluster>) -> Subscriber {
        Subscriber::builder().connect(cluster)
    }

    /// Starts with the default options, to change some:
    /// `Subscriber::builder().name("panel").connect("127.0.0.1")`.
    pub fn builder() -> SubscriberBuilder {
        SubscriberBuilder {
            name: format!("subscriber-{}", std::process::id()),
            link: LinkOptions { timing: LinkTiming::VALUES, ..LinkOptions::default() },
            local_first: false,
        }
    }

    /// Waits until a replica of the resolver has answered: its address, TLS and this subscriber's
    /// name are right. Not needed before other calls. [`ReadError`] has the failure of each
    /// replica; that can take minutes, so put a deadline of your own around it. Cancel safe.
    pub async fn ready(&self) -> Result<(), ReadError> {
        self.inner.manager.net.resolver.ready().await
    }

    /// Subscribes to the value at `path` until it is lost: then the subscription reports
    /// [`crate::Event::Dead`] and ends. Fails if no publisher accepts it within 30 s. Cancel safe.
    pub async fn subscribe(&self, path: Path) -> Result<ValueSubscription, SubscribeError> {
        self.subscribe_with(path, &SubscribeOptions::default()).await
    }

    /// Like [`subscribe`](Subscriber::subscribe), with options: fails if no publisher accepts it
    /// within `options.within`. Cancel safe.
    pub async fn subscribe_with(
        &self,
        path: Path,
        options: &SubscribeOptions,
    ) -> Result<ValueSubscription, SubscribeError> {
        self.inner.subscribe(path, options).await
    }

    /// Subscribes to the value at `path` until the handle is dropped. A lost subscription is
    /// retried; each attempt resolves, ranks and connects again, so it reaches every publisher of
    /// the path in turn, including new ones. Returns at once, even if no publisher has the path:
    /// [`DurableValue::alive`] waits. Needs a tokio runtime.
    pub fn durable_subscribe(&self, path: Path) -> DurableValue {
        self.durable_subscribe_with(path, &SubscribeOptions::default())
    }

    /// Like [`durable_subscribe`](Subscriber::durable_subscribe), with options.
    pub fn durable_subscribe_with(&self, path: Path, options: &SubscribeOptions) -> DurableValue {
        self.inner.durable_subscribe(path, options)
    }

    /// Subscribes to many paths, which are resolved and subscribed in few messages. Returns the
    /// handles in the order of `paths`.
    pub fn durable_subscribe_all(
        &self,
        paths: Vec<Path>,
        options: &SubscribeOptions,
    ) -> Vec<DurableValue> {
        self.inner.durable_subscribe_all(paths, options)
    }

    /// Subscribes to every value that matches `glob`, from when it is published until it is
    /// withdrawn: as durable as [`durable_subscribe`](Subscriber::durable_subscribe), with one
    /// watch and one reader for all. At most 1,000,000 paths. Needs a tokio runtime.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # use longshore_protocol::Glob;
    /// # use longshore_subscriber::{MatchEvent, Policy, Subscriber};
    /// # let subscriber = Subscriber::connect("localhost");
    /// let halls = Glob::new("/halls/*/temperature")?;
    /// let mut halls = subscriber.durable_subscribe_matching(halls, Policy::Conflate);
    /// while let Some(event) = halls.next().await {
    ///     match event? {
    ///         MatchEvent::Update(path, value) => println!("{path}: {value}"),
    ///         MatchEvent::Gone(path) => println!("{path} is gone"),
    ///         _ => {}
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn durable_subscribe_matching(&self, glob: Glob, policy: Policy) -> MatchingValues {
        MatchingValues::new(GenericMatching::new(self.inner.clone(), glob, policy))
    }

    /// Writes `value` to the program that publishes `path`, and returns its answer, all within
    /// `within`. For many writes to one path, subscribe once and use
    /// [`ValueSubscription::write_with_receipt`]. Not cancel safe: if the future is dropped, or
    /// fails with [`WriteError::TimedOut`] or [`WriteError::Unknown`], the program may or may not
    /// have received the write.
    pub async fn write(
        &self,
        path: Path,
        value: impl Into<Value>,
        within: Duration,
    ) -> Result<Value, WriteError> {
        self.inner.write(path, value.into(), within).await
    }

    /// Calls the procedure at `path`, and returns its reply, all within `within`. It runs at most
    /// once. A caller of many procedures of one publisher that stays subscribed to one of its
    /// values keeps the link. Not cancel safe: if the future is dropped, the procedure may or may
    /// not run.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # use longshore_protocol::Path;
    /// # use longshore_subscriber::{CallError, Subscriber};
    /// # let subscriber = Subscriber::connect("localhost");
    /// let sum = Path::new("/math/sum")?;
    /// let total: u64 = subscriber.call(sum, &[1, 2, 3], Duration::from_secs(5)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn call<R: DeserializeOwned>(
        &self,
        path: Path,
        argument: &(impl Serialize + ?Sized),
        within: Duration,
    ) -> Result<R, CallError> {
        let argument = Value::from_serde(argument).map_err(CallError::Argument)?;
        let reply = self.inner.write(path, argument, within).await;
        let reply = reply.map_err(|why| CallError::new(why, within))?;
        reply.to_serde().map_err(CallError::Reply)
    }
}

/// [`Subscriber`] over any [`Network`].
pub(crate) struct GenericSubscriber<N: Network> {
    pub(crate) manager: Arc<ConnectionManager<N>>,
    next_key: Arc<AtomicU64>,
}

impl<N: Network> GenericSubscriber<N> {
    pub(crate) fn new(net: N, local_first: bool, seed: u64) -> GenericSubscriber<N> {
        let manager = ConnectionManager::new(net, local_first, seed);
        GenericSubscriber { manager, next_key: Arc::new(AtomicU64::new(1)) }
    }

    pub(crate) async fn subscribe(
        &self,
        path: Path,
        options: &SubscribeOptions,
    ) -> Result<ValueSubscription, SubscribeError> {
        let until = Instant::now() + options.within.min(FAR_FUTURE);
        let (answer, answered) = oneshot::channel();
        let (sub, updates) =
            self.sub(path, options, SubscriptionKind::Once(Mutex::new(Some(answer))));
        // Unsubscribes if this future is dropped.
        let subscription = ValueSubscription::new(sub.clone(), updates);
        self.manager.subscribe_soon([sub]);
        match timeout_at(until, answered).await {
            Ok(Ok(made)) => made.map(|()| subscription),
            Ok(Err(_)) => Err(SubscribeError::Stopped),
            Err(_) => Err(SubscribeError::Late { after: options.within }),
        }
    }

    pub(crate) fn durable_subscribe(&self, path: Path, options: &SubscribeOptions) -> DurableValue {
        let durable = self.durable(path, options);
        self.manager.subscribe_soon([durable.sub().clone()]);
        durable
    }

    pub(crate) fn durable_subscribe_all(
        &self,
        paths: Vec<Path>,
        options: &SubscribeOptions,
    ) -> Vec<DurableValue> {
        let all: Vec<_> = paths.into_iter().map(|path| self.durable(path, options)).collect();
        self.manager.subscribe_soon(all.iter().map(|durable| durable.sub().clone()));
        all
    }

    pub(super) fn watch(&self, globs: Vec<Glob>) -> N::PathSource {
        self.manager.net.watch(globs)
    }

    pub(crate) async fn write(
        &self,
        path: Path,
        value: Value,
        within: Duration,
    ) -> Result<Value, WriteError> {
        let until = Instant::now() + within.min(FAR_FUTURE);
        let options = SubscribeOptions { within, ..SubscribeOptions::default() };
        let subscription = self.subscribe(path, &options).await?;
        let left = until.saturating_duration_since(Instant::now());
        subscription.write_with_receipt(value, left).await.map_err(|why| match why {
            WriteError::TimedOut { .. } => WriteError::TimedOut { after: within },
            why => why,
        })
    }

    fn durable(&self, path: Path, options: &SubscribeOptions) -> DurableValue {
        let (retry, state) =
            (Mutex::new(RetryState::default()), watch::Sender::new(ValueState::Pending));
        let (sub, updates) = self.sub(path, options, SubscriptionKind::Durable { retry, state });
        DurableValue::new(sub, updates)
    }

    fn sub(
        &self,
        path: Path,
        options: &SubscribeOptions,
        kind: SubscriptionKind,
    ) -> (Arc<SubscriptionCore>, Option<Updates>) {
        let (sink, own) = match &options.into {
            Some(sink) => (sink.clone(), None),
            None => {
                let own = Updates::new(UPDATES_OF_ONE_MAX);
                (own.sink(), Some(own))
            }
        };
        let key = self.next_key.fetch_add(1, Ordering::Relaxed);
        (SubscriptionCore::new(key, path, options.policy, sink.0, kind), own)
    }
}

impl<N: Network> Clone for GenericSubscriber<N> {
    fn clone(&self) -> GenericSubscriber<N> {
        GenericSubscriber { manager: self.manager.clone(), next_key: self.next_key.clone() }
    }
}

impl<N: Network> std::fmt::Debug for GenericSubscriber<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscribing").finish_non_exhaustive()
    }
}
