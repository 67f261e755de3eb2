//! A process that publishes values and holds no queues: it has no data directory, and a new id each
//! time it starts.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use longshore_protocol::{
    Address, Epoch, LinkTiming, NameError, PublisherId, PublisherInfo, PublisherInfoError, Role,
    check_name,
};
use longshore_resolver::{Cluster, WriteClient};
use longshore_transport::{
    BindError, CONNECTIONS_MAX, FrameBudget, Identity, Listener, ListenerOptions, TlsAcceptor,
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

/// The options of a publisher of values. By default it listens on a free port of the loopback
/// address and registers nowhere.
#[derive(Clone, Debug)]
pub struct ValuePublisherOptions {
    /// Its name for operators; 1 to 128 bytes. `values` by default.
    pub name: String,
    /// The address that it listens on; port 0 picks a free one. Port 0 of 127.0.0.1 by default.
    /// Other machines need TLS, or [`insecure`](Self::insecure).
    pub listen: SocketAddr,
    /// The addresses that others dial, IP addresses or host names; empty for the listen address.
    /// Required if it listens on all addresses (`0.0.0.0`).
    pub advertise: Vec<Address>,
    /// The priority and weight of its values, unless they have their own.
    pub usual: ValueOptions,
    /// The resolver replicas. With none, the default, no subscriber finds it: subscribers find
    /// values through a resolver.
    pub cluster: Option<Cluster>,
    /// TLS, for every link.
    pub tls: Option<TlsAcceptor>,
    /// Allows a non-loopback address without TLS: anyone who reaches it could read values and write
    /// to them. False by default.
    pub insecure: bool,
    /// Most links at once; more are refused with `Busy`. 768 by default.
    pub connections_max: usize,
    /// The budget of received frames; services of one process share one. Its own 256 MiB by
    /// default.
    pub budget: FrameBudget,
    /// Heartbeats of its links. 5 s, and 100 s until one counts as hung, by default.
    pub timing: LinkTiming,
}

impl Default for ValuePublisherOptions {
    /// On a free port of the loopback address.
    fn default() -> ValuePublisherOptions {
        ValuePublisherOptions {
            name: "values".to_owned(),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            advertise: Vec::new(),
            usual: ValueOptions::default(),
            cluster: None,
            tls: None,
            insecure: false,
            connections_max: CONNECTIONS_MAX,
            budget: FrameBudget::default(),
            timing: LinkTiming::VALUES,
        }
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
}

/// A publisher of values only. It serves from [`ValuePublisher::open`] until
/// [`ValuePublisher::stop`] or until it is dropped.
pub struct ValuePublisher {
    values: Values,
    info: PublisherInfo,
    address: SocketAddr,
    client: Option<WriteClient>,
    stop: CancellationToken,
    serving: Option<tokio::task::JoinHandle<()>>,
}

impl ValuePublisher {
    /// Listens, and begins to register at the resolver; `write_client().flushed(1)` waits until a
    /// replica knows its values. Needs a tokio runtime. Cancel safe: dropping the future leaves
    /// nothing behind.
    pub async fn open(
        options: ValuePublisherOptions,
    ) -> Result<ValuePublisher, ValuePublisherError> {
        check_name(&options.name)?;
        if options.listen.ip().is_unspecified() && options.advertise.is_empty() {
            return Err(ValuePublisherError::NeedsAdvertise(options.listen));
        }
        let id = PublisherId(rand::random());
        let epoch = Epoch(1);
        let advertised = options.advertise.iter().cloned();
        PublisherInfo::new(id, epoch, options.name.as_str(), advertised).check()?;
        let identity = Identity {
            instance: id.0,
            epoch: epoch.0,
            name: options.name.clone(),
            serves: |role| role == Role::Values,
        };
        let listener_options = ListenerOptions {
            value_timing: options.timing,
            connections_max: options.connections_max,
            budget: options.budget,
            insecure: options.insecure,
            tls: options.tls,
            ..ListenerOptions::default()
        };
        let listener = Listener::bind(options.listen, identity, listener_options).await?;
        let address = listener.local_address();
        let addresses =
            if options.advertise.is_empty() { vec![address.into()] } else { options.advertise };
        let info = PublisherInfo::new(id, epoch, options.name, addresses);
        let client = options.cluster.map(|cluster| WriteClient::connect(cluster, info.clone()));
        let names = Arc::new(PathKinds::default());
        let values = Values::new(ValueRegistry::new(client.clone(), names, None, options.usual));
        let stop = CancellationToken::new();
        let link_values = values.clone();
        let served = move |handshake, sender, receiver| {
            serve(link_values.clone(), handshake, sender, receiver)
        };
        let serving = accept(listener, values.clone(), stop.clone(), GOODBYE_WAIT, served);
        let serving = Some(tokio::spawn(serving));
        info!(publisher = %info.id, %address, "publisher of values open");
        Ok(ValuePublisher { values, info, address, client, stop, serving })
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

    /// The state of its registration at each replica; none without a resolver.
    pub fn write_client(&self) -> Option<&WriteClient> {
        self.client.as_ref()
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
        if let Some(client) = self.client.take() {
            client.close(CLEAR_WAIT).await;
        }
    }
}

impl Drop for ValuePublisher {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl std::fmt::Debug for ValuePublisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ValuePublisher").field("info", &self.info).finish()
    }
}
