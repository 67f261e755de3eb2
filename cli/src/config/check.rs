//! What has to hold between several keys. Each error says where, what, and what to do.

use std::net::{IpAddr, SocketAddr};

use super::values::{Exactly, ReplicaMetrics};
use super::{Config, Origin, Setting};

/// What every process of a cluster has to hold to.
pub(super) fn cluster(config: &Config) -> Result<(), String> {
    let (least, most) = (&config.timing.retry_wait_min, &config.timing.retry_wait_max);
    if least.value > most.value {
        let (min, max) = ("timing.retry_wait_min", "timing.retry_wait_max");
        // Whoever wrote one of them is told of that one.
        let (key, at) = if most.origin == Origin::Default { (min, least) } else { (max, most) };
        return Err(wrong(
            key,
            at,
            &format!(
                "waits are drawn from {min} to {max}, and {} ({}) is more than {} ({}); write both, the \
                 shorter one as {min}",
                Exactly(least.value),
                least.origin,
                Exactly(most.value),
                most.origin,
            ),
        ));
    }
    let resolver = &config.resolver;
    let (writers, tools) = (&resolver.writers_kept, &resolver.tools_kept);
    let half = resolver.connections_max.value / 2;
    if writers.value.saturating_add(tools.value) > half {
        // A default is an eighth at most: whoever wrote the larger one has to write less.
        let (key, at) = if writers.value >= tools.value {
            ("resolver.writers_kept", writers)
        } else {
            ("resolver.tools_kept", tools)
        };
        return Err(wrong(
            key,
            at,
            &format!(
                "{} connections kept for publishers and {} for tools leave readers too few; at most half of \
                 resolver.connections_max, {half}, can be kept: write less, or more connections",
                writers.value, tools.value
            ),
        ));
    }
    Ok(())
}

/// Whether the services start with what is written.
pub(super) fn services(config: &Config) -> Result<(), String> {
    let (publisher, resolver) = (&config.publisher, &config.resolver);
    let publishes_at = ("publisher.listen", &publisher.listen);
    let resolves_at = ("resolver.listen", &resolver.listen);
    let metrics_at = match resolver.metrics.value {
        ReplicaMetrics::At(value) => {
            Some(Setting { value, origin: resolver.metrics.origin.clone() })
        }
        ReplicaMetrics::Off | ReplicaMetrics::Beside => None,
    };
    let of_metrics =
        metrics_at.iter().map(|at| (("resolver.metrics", at), resolver.insecure.value));
    for ((key, listen), insecure) in
        [(publishes_at, publisher.insecure.value), (resolves_at, resolver.insecure.value)]
            .into_iter()
            .chain(of_metrics)
    {
        if !insecure && !is_loopback(listen.value.ip()) {
            let section = key.split('.').next().unwrap_or(key);
            return Err(wrong(
                key,
                listen,
                &format!(
                    "other machines can reach {}, and nothing is encrypted or authenticated; listen on \
                     127.0.0.1, or accept it with {section}.insecure = true",
                    listen.value
                ),
            ));
        }
    }
    if publisher.listen.value.ip().is_unspecified() && publisher.advertise.value.is_empty() {
        return Err(wrong(
            publishes_at.0,
            publishes_at.1,
            &format!(
                "a publisher that listens on all addresses ({}) has to say where others dial it; write \
                 publisher.advertise = [\"HOST:PORT\"]",
                publisher.listen.value
            ),
        ));
    }
    let metrics = metrics_at.iter().map(|at| ("the metrics of a replica", "resolver.metrics", at));
    let services = [
        ("the publisher", publishes_at.0, publishes_at.1),
        ("a replica", resolves_at.0, resolves_at.1),
    ];
    apart(&metrics.chain(services).collect::<Vec<_>>())
}

/// Whether all of these can listen beside each other: who listens, the key that says where, and
/// what it says.
fn apart(listeners: &[(&str, &str, &Setting<SocketAddr>)]) -> Result<(), String> {
    for (nth, one) in listeners.iter().enumerate() {
        for other in &listeners[nth + 1..] {
            if !collide(one.2.value, other.2.value) {
                continue;
            }
            // Whoever wrote one of them is told of that one.
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

/// Two listeners of one machine that cannot both have their port.
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
    match &setting.origin {
        Origin::Default => format!("{key}: {what}"),
        origin => format!("{origin}: {key}: {what}"),
    }
}
