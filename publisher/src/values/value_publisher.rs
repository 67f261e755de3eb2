//! A process that publishes values and holds no queues: it has no data directory, and a new id each
//! time it starts.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use longshore_access::AccessControl;
use longshore_protocol::{
    Address, Epoch, LinkTiming, NameError, PublisherId, PublisherInfo, PublisherInfoError, Role,
    SocketPath, TlsName, check_name,
};
use longshore_resolver::{Cluster, WriteClient};
use longshore_transport::{
    AuditLog, BindError, CONNECTIONS_MAX, FrameBudget, Listener, ListenerOptions, ServerInfo,
    TlsAcceptor, TlsError,
};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use super::registry::{PathKinds, ValueRegistry};
use super::{ValueOptions, Values, serve};
use crate::accept::accept;

/// How long a stop waits for the replicas to remove the publisher.
const CLEAR_WAIT: Duration = Duration::from_secs(2);
/// How long a stop waits for links to send their goodbye.
const GOODBYE_WAIT: Duration = Duration::from_secs(2);

/// The options of a [`ValuePublisher`]: `ValuePublisher::builder().name("hall").connect(…)`.
#[derive(Clone, Debug)]
#[must_use = "a builder creates a publisher with `connect`"]
pub struct ValuePublisherBuilder {
    name: String,
    listen: SocketAddr,
    advertise: Vec<Address>,
    tls_name: Option<TlsName>,
    usual: ValueOptions,
    listener: ListenerOptions,
}

impl ValuePublisherBuilder {
    /// Sets the name that operators see; 1 to 128 bytes. `values` by default.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the address that it listens on; port 0 picks a free one. Port 0 of 127.0.0.1 by
    /// default. Other machines need TLS, or [`insecure`](Self::insecure).
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = address;
        self
    }

    /// Sets a Unix socket beside the address, without TLS: under a policy its clients are known by
    /// their users, unless they have a token. Only root and this user may write to its folder. None
    /// by default.
    pub fn listen_unix(mut self, socket: impl Into<Option<SocketPath>>) -> Self {
        self.listener.unix = socket.into();
        self
    }

    /// Sets the host name or IP address that its certificate has, which clients then expect at any
    /// of its addresses. By default they expect what they dial.
    pub fn tls_name(mut self, name: impl Into<Option<TlsName>>) -> Self {
        self.tls_name = name.into();
        self
    }

    /// Sets the addresses that others dial, IP addresses, host names or Unix sockets; those that it
    /// listens on by default. Required if it listens on all addresses (`0.0.0.0`).
    pub fn advertise(mut self, addresses: impl IntoIterator<Item = impl Into<Address>>) -> Self {
        self.advertise = addresses.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the priority and weight of its values, unless they have their own.
    pub fn usual(mut self, usual: ValueOptions) -> Self {
        self.usual = usual;
        self
    }

    /// Requires TLS on every link. None by default.
    pub fn tls(mut self, tls: impl Into<Option<TlsAcceptor>>) -> Self {
        self.listener.tls = tls.into();
        self
    }

    /// Sets who may subscribe to its values, and write to them. By default every client may.
    pub fn access_control(mut self, access_control: AccessControl) -> Self {
        self.listener.access_control = access_control;
        self
    }

    /// Records refused clients and changes of the rules. None by default.
    pub fn audit(mut self, audit: AuditLog) -> Self {
        self.listener.audit = audit;
        self
    }

    /// Whether to allow a non-loopback address without TLS: anyone who reaches it could read values
    /// and write to them. False by default.
    pub fn insecure(mut self, insecure: bool) -> Self {
        self.listener.insecure = insecure;
        self
    }

    /// Sets the most links at once; more are refused with `Busy`. 768 by default.
    pub fn connections_max(mut self, connections: usize) -> Self {
        self.listener.connections_max = connections;
        self
    }

    /// Sets the budget of received frames; services of one process share one. Its own 256 MiB by
    /// default.
    pub fn budget(mut self, budget: FrameBudget) -> Self {
        self.listener.budget = budget;
        self
    }

    /// Sets the heartbeats of its links. 5 s, and 100 s until one counts as hung, by default.
    pub fn timing(mut self, timing: LinkTiming) -> Self {
        self.listener.value_timing = timing;
        self
    }

    /// Creates the publisher: see [`ValuePublisher::connect`]. Needs a tokio runtime. Cancel safe.
    pub async fn connect(
        self,
        cluster: impl Into<Cluster>,
    ) -> Result<ValuePublisher, ValuePublisherError> {
        self.start(cluster.into())
    }

    fn start(self, cluster: Cluster) -> Result<ValuePublisher, ValuePublisherError> {
        let ValuePublisherBuilder { name, listen, advertise, tls_name, usual, mut listener } = self;
        listener.cluster.clone_from(&cluster.access.cluster);
        check_name(&name)?;
        if listen.ip().is_unspecified() && advertise.is_empty() {
            return Err(ValuePublisherError::NeedsAdvertise(listen));
        }
        let id = PublisherId(rand::random());
        let epoch = Epoch(1);
        let described = |addresses: Vec<Address>| PublisherInfo {
            tls_name: tls_name.clone(),
            ..PublisherInfo::new(id, epoch, name.as_str(), addresses)
        };
        described(advertise.clone()).check()?;
        if let Some(name) = &tls_name {
            let tls = listener.tls.as_ref().ok_or(TlsError::NoIdentity);
            tls.and_then(|tls| tls.check_name(name)).map_err(ValuePublisherError::BadTlsName)?;
        }
        let unix = listener.unix.clone().map(Address::Unix);
        let info = ServerInfo {
            instance: id.0,
            epoch: epoch.0,
            name: name.clone(),
            serves: |role| role == Role::Values,
        };
        let listener = Listener::bind(listen, info, listener)?;
        let address = listener.local_address();
        let info = described(match advertise.is_empty() {
            true => [address.into()].into_iter().chain(unix).collect(),
            false => advertise,
        });
        let client = WriteClient::connect(cluster, info.clone());
        let names = Arc::new(PathKinds::default());
        let values = Values::new(ValueRegistry::new(Some(client.clone()), names, None, usual));
        let stop = CancellationToken::new();
        let link_values = values.clone();
        let served = move |handshake, sender, receiver| {
            serve(link_values.clone(), handshake, sender, receiver)
        };
        // It has nothing to finish between the two.
        let stops = (stop.clone(), stop.clone());
        let serving = accept(listener, values.clone(), stops, GOODBYE_WAIT, served);
        let serving = Some(tokio::spawn(serving));
        info!(publisher = %info.id, %address, "publisher of values open");
        Ok(ValuePublisher { values, info, address, client, stop, serving })
    }
}

/// Why a publisher of values does not start. [`Bind`](ValuePublisherError::Bind) names the
/// obstacle; the others are wrong options.
#[derive(Debug, thiserror::Error)]
pub enum ValuePublisherError {
    /// The address cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// It listens on all addresses, and none of them can be dialled by others.
    #[error(
        "a publisher that listens on all addresses ({0}) needs the address that subscribers \
         dial, to advertise it"
    )]
    NeedsAdvertise(SocketAddr),
    /// The name is empty, or has more than 128 bytes.
    #[error("the publisher: {0}")]
    BadName(#[from] NameError),
    /// It advertises more than replicas accept.
    #[error("the publisher: {0}")]
    BadInfo(#[from] PublisherInfoError),
    /// Its certificate does not have the name, or there is none.
    #[error("tls_name: {0}")]
    BadTlsName(#[source] TlsError),
}

/// A publisher of values only. It serves from [`ValuePublisher::connect`] until
/// [`ValuePublisher::stop`] or until it is dropped.
pub struct ValuePublisher {
    values: Values,
    info: PublisherInfo,
    address: SocketAddr,
    client: WriteClient,
    stop: CancellationToken,
    serving: Option<tokio::task::JoinHandle<()>>,
}

impl ValuePublisher {
    /// Listens on a free port of the loopback address, and begins to register at the replicas of
    /// `cluster`, a [`Cluster`] or `"HOST:PORT,…"`. Waits for no replica. With a cluster of none,
    /// no subscriber finds its values. Needs a tokio runtime. Cancel safe: dropping the future
    /// leaves nothing behind.
    pub async fn connect(
        cluster: impl Into<Cluster>,
    ) -> Result<ValuePublisher, ValuePublisherError> {
        ValuePublisher::builder().connect(cluster).await
    }

    /// Starts with the default options, to change some:
    /// `ValuePublisher::builder().name("hall").connect("127.0.0.1")`.
    pub fn builder() -> ValuePublisherBuilder {
        ValuePublisherBuilder {
            name: "values".to_owned(),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            advertise: Vec::new(),
            tls_name: None,
            usual: ValueOptions::default(),
            listener: ListenerOptions {
                value_timing: LinkTiming::VALUES,
                connections_max: CONNECTIONS_MAX,
                ..ListenerOptions::default()
            },
        }
    }

    /// Waits until a replica of the resolver knows all values that were published before this call;
    /// for ever with a cluster of none. Not needed before other calls: subscribers may follow a
    /// value as soon as a replica knows it. Cancel safe.
    pub async fn ready(&self) {
        self.client.flushed(1).await;
    }

    /// Its values.
    pub fn values(&self) -> Values {
        self.values.clone()
    }

    /// The address that it listens on.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Its id, for this start.
    pub fn id(&self) -> PublisherId {
        self.info.id
    }

    /// Its name for operators.
    pub fn name(&self) -> &str {
        &self.info.name
    }

    /// The state of its registration at each replica.
    pub fn write_client(&self) -> &WriteClient {
        &self.client
    }

    /// Closes every link, and withdraws its paths from every replica that it reaches. Not cancel
    /// safe: if the call is dropped, subscribers still receive a goodbye or see their links end,
    /// and replicas notice its silence.
    pub async fn stop(mut self) {
        self.stop.cancel();
        if let Some(serving) = self.serving.take()
            && let Err(why) = serving.await
        {
            error!(%why, "the listener's task ended early");
        }
        self.client.clone().close(CLEAR_WAIT).await;
    }
}

impl Drop for ValuePublisher {
    fn drop(&mut self) {
        self.stop.cancel();
        // Its values may live on, and have a client.
        self.client.abandon();
    }
}

impl std::fmt::Debug for ValuePublisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ValuePublisher").field("info", &self.info).finish()
    }
}
