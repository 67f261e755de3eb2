//! What users touch first: a subscriber, and how it subscribes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use longshore_protocol::messages::values::Policy;
use longshore_protocol::{Handshake, LinkTiming, Path, Role, SessionId, Value, check_name};
use longshore_resolver::{Cluster, ReadClient};
use longshore_transport::LinkOptions;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout_at};

use super::connection_manager::ConnectionManager;
use super::handles::{DurableValue, ValueSubscription};
use super::network::{Network, TcpNetwork};
use super::retries::RetryState;
use super::subscription_core::{SubscriptionCore, SubscriptionKind, ValueState};
use super::updates::{UPDATES_OF_ONE_MAX, Updates, UpdatesSink};
use super::writes::WriteError;
use crate::ConnectError;
use crate::connect::FAR_FUTURE;

/// How long a subscription may take to be made, unless told otherwise: the resolver, the connect
/// and the publisher's answer together.
pub const SUBSCRIBE_WAIT: Duration = Duration::from_secs(30);

/// Follows live values, and writes to them. Cheap to clone; all clones share one link to each
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
/// let subscriber = Subscriber::connect("localhost").await?;
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

/// How a subscriber presents itself, dials and chooses.
#[derive(Clone, Debug)]
pub struct SubscriberOptions {
    /// What operators see; 1 to 128 bytes. The default is `subscriber-` and the process's id.
    pub name: String,
    /// How its links to publishers are dialled. By default with
    /// [`LinkTiming::VALUES`](longshore_protocol::LinkTiming::VALUES).
    pub link: LinkOptions,
    /// Publishers on this machine are tried before all others.
    pub local_first: bool,
}

impl Default for SubscriberOptions {
    /// 5 s between heartbeats, 100 s of silence until a link counts as hung, 3 s to connect.
    fn default() -> SubscriberOptions {
        SubscriberOptions {
            name: format!("subscriber-{}", std::process::id()),
            link: LinkOptions { timing: LinkTiming::VALUES, ..LinkOptions::default() },
            local_first: false,
        }
    }
}

/// How to subscribe.
#[derive(Clone, Debug)]
pub struct SubscribeOptions {
    /// What becomes of updates that this process is too slow for; [`Policy::Conflate`] by default.
    /// Of several subscriptions of one process to one path, the first says what the publisher does.
    pub policy: Policy,
    /// How long the subscription may take to be made: the resolver, the connect and the publisher's
    /// answer together. 30 s by default; without meaning for durable ones.
    pub within: Duration,
    /// Where updates go; none for a queue of its own, of 1,024 updates, that `next` reads.
    pub into: Option<UpdatesSink>,
}

impl Default for SubscribeOptions {
    /// Conflating, 30 s, a queue of its own.
    fn default() -> SubscribeOptions {
        SubscribeOptions { policy: Policy::Conflate, within: SUBSCRIBE_WAIT, into: None }
    }
}

/// Why there is no subscription. All but [`Stopped`](SubscribeError::Stopped) may pass: subscribe
/// again later, or with [`Subscriber::durable_subscribe`], which does that by itself.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SubscribeError {
    /// No replica of the resolver answered.
    #[error("{0}")]
    Resolver(Arc<str>),
    /// Nobody publishes a value there.
    #[error("nobody publishes a value at this path{}", if *complete { "" } else { ", as far as replicas know that are still warming up" })]
    NotFound {
        /// False if no replica that answered knew everything yet: try again.
        complete: bool,
    },
    /// No publisher could be linked to; what went wrong at each.
    #[error("no link to any publisher: {0}")]
    NoLink(Arc<str>),
    /// It was refused; by whom, and why, for people: the value is gone again, is a queue, or the
    /// program that makes it did not want to.
    #[error("refused by {0}")]
    Refused(Arc<str>),
    /// Its updates may not be left out ([`Policy::Disconnect`]), and as many wait to be read as
    /// may.
    #[error("as many updates wait to be read as may, and the policy leaves out none")]
    Unread,
    /// It took longer than [`SubscribeOptions::within`].
    #[error("the subscription was not made within {after:?}")]
    Late {
        /// The time that it had.
        after: Duration,
    },
    /// The runtime has stopped.
    #[error("the runtime has stopped")]
    Stopped,
}

/// Why a call has no answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CallError {
    /// The path could not be subscribed to: nothing was sent.
    #[error("nothing was called: {0}")]
    Subscribe(#[from] SubscribeError),
    /// The write was refused, or nothing is known of it.
    #[error("{0}")]
    Write(#[from] WriteError),
}

impl Subscriber {
    /// A subscriber with default options that finds publishers through `cluster`: a [`Cluster`], or
    /// its replicas as `"HOST:PORT,…"`. It needs no replica to be up, waits for nothing, and opens
    /// links only for subscriptions. Needs a tokio runtime.
    pub async fn connect(cluster: impl Into<Cluster>) -> Result<Subscriber, ConnectError> {
        Subscriber::connect_with(cluster, SubscriberOptions::default()).await
    }

    /// A subscriber with options of its own. It waits for nothing. Needs a tokio runtime.
    pub async fn connect_with(
        cluster: impl Into<Cluster>,
        options: SubscriberOptions,
    ) -> Result<Subscriber, ConnectError> {
        let cluster = cluster.into();
        let SubscriberOptions { name, link, local_first } = options;
        if cluster.replicas.is_empty() {
            return Err(ConnectError::NoReplica);
        }
        check_name(&name)?;
        let session = SessionId(rand::random());
        let resolver = ReadClient::new(cluster, session, name.clone());
        let handshake = Handshake::new(Role::Values, session, name, link.timing);
        let net = TcpNetwork { resolver, handshake, options: link };
        Ok(Subscriber { inner: GenericSubscriber::new(net, local_first, rand::random()) })
    }

    /// Follows the value at `path` until it is lost: then the subscription tells
    /// [`crate::Event::Dead`] and ends. Fails if no publisher holds it within 30 s. Cancel safe.
    pub async fn subscribe(&self, path: Path) -> Result<ValueSubscription, SubscribeError> {
        self.subscribe_with(path, &SubscribeOptions::default()).await
    }

    /// The same, as told: fails if no publisher holds it within `options.within`. Cancel safe.
    pub async fn subscribe_with(
        &self,
        path: Path,
        options: &SubscribeOptions,
    ) -> Result<ValueSubscription, SubscribeError> {
        self.inner.subscribe(path, options).await
    }

    /// Follows the value at `path` until the subscription is dropped. While it is not held it is
    /// tried again, each time the whole way: resolve, choose, connect. So it reaches every
    /// publisher of the path in turn, and new ones. Returns at once, whether or not anybody
    /// publishes it: [`DurableValue::alive`] waits. Needs a tokio runtime.
    pub fn durable_subscribe(&self, path: Path) -> DurableValue {
        self.durable_subscribe_with(path, &SubscribeOptions::default())
    }

    /// The same, as told.
    pub fn durable_subscribe_with(&self, path: Path, options: &SubscribeOptions) -> DurableValue {
        self.inner.durable_subscribe(path, options)
    }

    /// The same for many: they are resolved and subscribed in few messages. In the order of
    /// `paths`.
    pub fn durable_subscribe_all(
        &self,
        paths: Vec<Path>,
        options: &SubscribeOptions,
    ) -> Vec<DurableValue> {
        self.inner.durable_subscribe_all(paths, options)
    }

    /// Asks the program that publishes `path`: writes `value` to it, and gives what it answers. All
    /// within `within`. For many calls of one path, subscribe once and
    /// [`ValueSubscription::write_with_receipt`]. Not cancel safe: of a call that was dropped, or
    /// that ended with [`WriteError::Unknown`], the program may have been asked or not.
    pub async fn call(
        &self,
        path: Path,
        value: impl Into<Value>,
        within: Duration,
    ) -> Result<Value, CallError> {
        let until = Instant::now() + within.min(FAR_FUTURE);
        let options = SubscribeOptions { within, ..SubscribeOptions::default() };
        let held = self.subscribe_with(path, &options).await?;
        let left = until.saturating_duration_since(Instant::now());
        Ok(held.write_with_receipt(value, left).await?)
    }
}

/// The same over any net.
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
        // Dropped, it leaves.
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

    fn durable(&self, path: Path, options: &SubscribeOptions) -> DurableValue {
        let (tries, state) =
            (Mutex::new(RetryState::default()), watch::Sender::new(ValueState::Pending));
        let (sub, updates) = self.sub(path, options, SubscriptionKind::Durable { tries, state });
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
