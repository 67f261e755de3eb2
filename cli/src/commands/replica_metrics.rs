//! A replica's metrics as a live value at `/sys/replicas/NAME`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use longshore::protocol::SocketPath;
use longshore::protocol::limits::NAME_BYTES_MAX;
use longshore::values::Values;
use longshore::values::metrics::{MetricSample, MetricSource, metrics_path, serve_metrics};
use longshore::{Cluster, FrameBudget, Path, ReplicaStatus, StatusHandle, Value, ValuePublisher};
use tokio::task::JoinHandle;

use super::Context;
use crate::config::{Origin, ReplicaMetrics};

/// The most links of subscribers to a replica's metrics: its own clients need the descriptors.
const CONNECTIONS_MAX: usize = 64;

/// The metrics of one replica of this process.
struct ReplicaSource {
    base: Path,
    status_handle: StatusHandle,
}

impl MetricSource for ReplicaSource {
    async fn take(&mut self, wanted: Vec<Path>) -> Option<Vec<MetricSample>> {
        let status = self.status_handle.status().await?;
        let one = |path: &Path| match *path == self.base {
            true => MetricSample::Now(metrics(&status)),
            false => MetricSample::Nothing("a replica has no such metrics".to_owned()),
        };
        Some(wanted.iter().map(one).collect())
    }
}

/// Publishes a replica's metrics through `values` while the replica serves.
pub(super) fn serve(
    values: &Values,
    name: &str,
    status_handle: StatusHandle,
) -> anyhow::Result<JoinHandle<()>> {
    let base = metrics_path("replicas", name);
    let default = values.publish_reserved_default(base.clone())?;
    Ok(tokio::spawn(serve_metrics(default, values.clone(), ReplicaSource { base, status_handle })))
}

/// A publisher for the metrics of a standalone replica. It registers at the configured cluster, or
/// at the replica alone. None if metrics are off, or if the replica has no address that clients
/// could dial.
pub(super) async fn publisher(
    context: &Context,
    name: &str,
    replica: SocketAddr,
    setting: ReplicaMetrics,
    insecure: bool,
    budget: FrameBudget,
) -> anyhow::Result<Option<ValuePublisher>> {
    let listen = match setting {
        ReplicaMetrics::Off => return Ok(None),
        ReplicaMetrics::At(listen) => listen,
        ReplicaMetrics::Automatic if replica.ip().is_unspecified() => {
            tracing::info!(
                "no metrics at /sys/replicas: set --metrics IP:PORT or resolver.metrics"
            );
            return Ok(None);
        }
        ReplicaMetrics::Automatic => SocketAddr::new(replica.ip(), 0),
    };
    let mut cluster = context.cluster();
    if context.config.resolvers.origin == Origin::Default {
        let ip = match replica.ip() {
            ip if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            ip => ip,
        };
        cluster.replicas = vec![SocketAddr::new(ip, replica.port()).to_string()];
    }
    let mut name = format!("replica-{name}");
    while name.len() > NAME_BYTES_MAX {
        name.pop();
    }
    let socket = context.config.metrics_socket(setting, replica.ip())?;
    open(name, (listen, socket), cluster, context, insecure, budget).await.map(Some)
}

/// Opens a publisher for replica metrics only.
pub(super) async fn open(
    name: String,
    (listen, socket): (SocketAddr, Option<SocketPath>),
    cluster: Cluster,
    context: &Context,
    insecure: bool,
    budget: FrameBudget,
) -> anyhow::Result<ValuePublisher> {
    let publisher = ValuePublisher::builder()
        .name(name)
        .listen(listen)
        .listen_unix(socket)
        .tls_name(context.config.resolver.tls_name.value.clone())
        .tls(context.acceptor(listen)?)
        .access_control(context.rules.control.clone())
        .audit(context.audit.clone())
        .insecure(insecure)
        .budget(budget)
        .connections_max(CONNECTIONS_MAX);
    Ok(publisher.connect(cluster).await?)
}

fn metrics(s: &ReplicaStatus) -> Value {
    Value::map([
        ("name", Value::from(s.name.as_str())),
        ("incarnation", s.incarnation.to_string().into()),
        ("uptime_s", (s.uptime_ms / 1_000).into()),
        ("warming", s.warming.into()),
        ("warming_left_s", s.warming_left_ms.div_ceil(1_000).into()),
        ("publishers", s.publishers.into()),
        ("hidden", s.hidden.into()),
        ("paths", s.paths.into()),
        ("defaults", s.defaults.into()),
        ("connections", s.connections.into()),
        ("watches", s.watches.into()),
        ("refused_busy", s.refused_busy.into()),
        ("slice_max_us", s.slice_max_us.into()),
        ("memory_bytes", s.memory_bytes.into()),
        ("publishers_max", s.publishers_max.into()),
        ("paths_max", s.paths_max.into()),
        ("connections_max", s.connections_max.into()),
        ("watches_max", s.watches_max.into()),
        ("reads", s.requests.reads().into()),
        ("writes", s.requests.writes().into()),
        ("requests", Value::map(s.requests.iter().map(|(kind, count)| (kind, Value::from(count))))),
    ])
}
