//! Validation across keys. Each error names the origin, the problem and the remedy.

use std::net::{IpAddr, SocketAddr};

use longshore::protocol::SocketPath;
use longshore::protocol::limits::SOCKET_PATH_BYTES_MAX;

use super::values::{ExactDuration, ReplicaMetrics};
use super::{Authority, ClientCertificates, Config, Origin, Setting};

/// After the path of a replica's socket, the one of its metrics.
const METRICS_SUFFIX: &str = ".metrics";

/// Checks the keys that every command reads.
pub(super) fn cluster(config: &Config) -> Result<(), String> {
    let (least, most) = (&config.timing.retry_wait_min, &config.timing.retry_wait_max);
    if least.value > most.value {
        let (min, max) = ("timing.retry_wait_min", "timing.retry_wait_max");
        // Report the one that was written.
        let (key, at) = if most.origin == Origin::Default { (min, least) } else { (max, most) };
        return Err(wrong(
            key,
            at,
            &format!(
                "waits are drawn from {min} to {max}, and {} ({}) is more than {} ({}); write \
                 both, the shorter one as {min}",
                ExactDuration(least.value),
                least.origin,
                ExactDuration(most.value),
                most.origin,
            ),
        ));
    }
    let tls = &config.tls;
    if let (Some(_), None) | (None, Some(_)) = (&tls.certificate.value, &tls.key.value) {
        let (key, at, other) = match tls.key.value {
            None => ("tls.certificate", &tls.certificate, "tls.key"),
            Some(_) => ("tls.key", &tls.key, "tls.certificate"),
        };
        return Err(wrong(key, at, &format!("a certificate and its key go together; set {other}")));
    }
    if !tls.is_on() {
        let alone = "this says nothing without certificates; set tls.ca, or leave it out";
        if tls.server_name.value.is_some() {
            return Err(wrong("tls.server_name", &tls.server_name, alone));
        }
        if tls.client_certificates.value.is_some() {
            return Err(wrong("tls.client_certificates", &tls.client_certificates, alone));
        }
    }
    let is_local = config.resolvers.value.iter().all(|replica| replica.starts_with("unix:"));
    if config.token.value.is_some() && !tls.is_on() && !is_local {
        let what = "a token is sent over TLS or a Unix socket only; set tls.ca, or leave it out";
        return Err(wrong("token_file", &config.token, what));
    }
    if let (
        Some(ClientCertificates::Required | ClientCertificates::Optional),
        None | Some(Authority::System),
    ) = (tls.client_certificates.value, &tls.ca.value)
    {
        let what = "anyone can have a certificate that the machine trusts; set tls.ca to the file \
                    of the authority that signs the clients' certificates";
        return Err(wrong("tls.client_certificates", &tls.client_certificates, what));
    }
    let resolver = &config.resolver;
    let (writers, tools) = (&resolver.writers_reserved, &resolver.tools_reserved);
    let half = resolver.connections_max.value / 2;
    if writers.value.saturating_add(tools.value) > half {
        // A default is an eighth at most, so the larger one was written.
        let (key, at) = if writers.value >= tools.value {
            ("resolver.writers_reserved", writers)
        } else {
            ("resolver.tools_reserved", tools)
        };
        return Err(wrong(
            key,
            at,
            &format!(
                "{} connections reserved for publishers and {} for tools leave readers too few; \
                 at most half of resolver.connections_max, {half}, can be reserved: reserve less, \
                 or allow more connections",
                writers.value, tools.value
            ),
        ));
    }
    Ok(())
}

/// Checks that tokens and JWTs of clients are accepted, and keep others out.
pub(super) fn access(config: &Config) -> Result<(), String> {
    let (tokens, jwt) = (&config.access.tokens, &config.access.jwt);
    if let Some((key, origin, missing)) = jwt.half() {
        let what = format!("issuer, audience and keys go together; set {missing}");
        return Err(wrong_at(key, origin, &what));
    }
    for (key, setting) in [("access.tokens", tokens), ("access.jwt.keys", &jwt.keys)] {
        if setting.value.is_none() {
            continue;
        }
        let sockets = [&config.publisher.listen_unix, &config.resolver.listen_unix];
        if !config.tls.is_on() && sockets.iter().all(|socket| socket.value.is_none()) {
            let what = "tokens are accepted over TLS and Unix sockets only; set tls.certificate \
                        and tls.key, or listen_unix";
            return Err(wrong(key, setting, what));
        }
        let is_closed = config.tls.client_certificates() == ClientCertificates::Required
            && sockets.iter().all(|socket| socket.value.is_none());
        if config.access.policy.value.is_none() && !is_closed {
            let what = "without a policy, clients without a token may do everything, too; set \
                        access.policy";
            return Err(wrong(key, setting, what));
        }
    }
    Ok(())
}

/// Checks that the services could start with this configuration.
pub(super) fn services(config: &Config) -> Result<(), String> {
    let (publisher, resolver) = (&config.publisher, &config.resolver);
    let publishes_at = ("publisher.listen", &publisher.listen);
    let resolves_at = ("resolver.listen", &resolver.listen);
    let metrics_at = match resolver.metrics.value {
        ReplicaMetrics::At(value) => {
            Some(Setting { value, origin: resolver.metrics.origin.clone() })
        }
        ReplicaMetrics::Off | ReplicaMetrics::Automatic => None,
    };
    let of_metrics =
        metrics_at.iter().map(|at| (("resolver.metrics", at), resolver.insecure.value));
    for ((key, listen), insecure) in
        [(publishes_at, publisher.insecure.value), (resolves_at, resolver.insecure.value)]
            .into_iter()
            .chain(of_metrics)
    {
        config
            .tls
            .check_listener(listen.value, config.access.policy.value.is_some())
            .map_err(|why| wrong(key, listen, &why))?;
        if !insecure && !config.tls.is_on() && !is_loopback(listen.value.ip()) {
            let section = key.split('.').next().unwrap_or(key);
            return Err(wrong(
                key,
                listen,
                &format!(
                    "other machines can reach {}, and nothing is encrypted or authenticated; \
                     set tls.ca, tls.certificate and tls.key, listen on 127.0.0.1, or accept it \
                     with {section}.insecure = true",
                    listen.value
                ),
            ));
        }
    }
    access(config)?;
    let metrics = resolver.metrics.value;
    metrics_socket(&resolver.listen_unix, metrics, resolver.listen.value.ip())?;
    let tls_names =
        [("publisher.tls_name", &publisher.tls_name), ("resolver.tls_name", &resolver.tls_name)];
    for (key, name) in tls_names {
        if name.value.is_some() && config.tls.certificate.value.is_none() {
            let what =
                "this says nothing without certificates; set tls.certificate, or leave it out";
            return Err(wrong(key, name, what));
        }
    }
    if publisher.listen.value.ip().is_unspecified() && publisher.advertise.value.is_empty() {
        return Err(wrong(
            publishes_at.0,
            publishes_at.1,
            &format!(
                "a publisher that listens on all addresses ({}) needs an address for its clients \
                 to dial; write publisher.advertise = [\"HOST:PORT\"]",
                publisher.listen.value
            ),
        ));
    }
    let metrics = metrics_at.iter().map(|at| ("the metrics of a replica", "resolver.metrics", at));
    let services = [
        ("the publisher", publishes_at.0, publishes_at.1),
        ("a replica", resolves_at.0, resolves_at.1),
    ];
    check_ports(&metrics.chain(services).collect::<Vec<_>>())
}

/// The socket of a replica's metrics: beside its own, with a longer name.
pub(super) fn metrics_socket(
    own: &Setting<Option<SocketPath>>,
    metrics: ReplicaMetrics,
    listen: IpAddr,
) -> Result<Option<SocketPath>, String> {
    let nowhere = match metrics {
        ReplicaMetrics::Off => true,
        ReplicaMetrics::Automatic => listen.is_unspecified(),
        ReplicaMetrics::At(_) => false,
    };
    let Some(path) = own.value.as_ref().filter(|_| !nowhere) else { return Ok(None) };
    let socket = format!("{path}{METRICS_SUFFIX}");
    socket.parse().map(Some).map_err(|_| {
        let (length, most) = (socket.len(), SOCKET_PATH_BYTES_MAX);
        let what = format!(
            "the replica's metrics have the socket {socket}, of {length} bytes, and a path of a \
             socket has at most {most}; write a path of at most {} bytes, or set \
             resolver.metrics = false",
            most - METRICS_SUFFIX.len()
        );
        wrong("resolver.listen_unix", own, &what)
    })
}

/// Checks that no two listeners (name, key, address) share a port.
fn check_ports(listeners: &[(&str, &str, &Setting<SocketAddr>)]) -> Result<(), String> {
    for (nth, one) in listeners.iter().enumerate() {
        for other in &listeners[nth + 1..] {
            if !collide(one.2.value, other.2.value) {
                continue;
            }
            // Report the one that was written.
            let (a, b) = if one.2.origin == Origin::Default { (other, one) } else { (one, other) };
            let what = format!(
                "{} would listen on {}, and {} on {} ({}); give one of them another port",
                a.0, a.2.value, b.0, b.2.value, b.1
            );
            return Err(wrong(a.1, a.2, &what));
        }
    }
    Ok(())
}

/// Whether two listeners of one machine need the same port.
fn collide(one: SocketAddr, other: SocketAddr) -> bool {
    let (a, b) = (one.ip().to_canonical(), other.ip().to_canonical());
    one.port() == other.port()
        && one.port() != 0
        && (a == b || a.is_unspecified() || b.is_unspecified())
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

fn wrong<T>(key: &str, setting: &Setting<T>, what: &str) -> String {
    wrong_at(key, &setting.origin, what)
}

fn wrong_at(key: &str, origin: &Origin, what: &str) -> String {
    match origin {
        Origin::Default => format!("{key}: {what}"),
        origin => format!("{origin}: {key}: {what}"),
    }
}
