//! Longshore's own metrics, below `/sys`: live values that exist only while someone subscribes.
//!
//! A publisher declares one default, at `/sys/publishers/NAME`. Metrics below it are read from
//! existing counters, at most twice a second, all in one pass of the owner. A metric without
//! subscribers is unpublished.

mod collect;
mod publisher;
mod request;
mod serve;

pub(crate) use self::collect::{OwnerStats, collect};
pub(crate) use self::publisher::PublisherMetrics;
pub(crate) use self::request::{METRICS_LINK, Metric, MetricsRequest, PendingSamples};
pub use self::serve::{METRICS_EVERY, METRICS_MAX, MetricSample, MetricSource, serve_metrics};

use longshore_protocol::Path;

/// The path of a named service's metrics: `/sys/KIND/NAME`, with a `-` for each character of the
/// name that no path may have.
pub fn metrics_path(kind: &str, name: &str) -> Path {
    let named = |name: &str| Path::new(&format!("/sys/{kind}/{name}")).ok();
    let fits = |path: &Path| path.depth() == 3;
    let plain = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    named(name)
        .filter(fits)
        .or_else(|| named(&name.chars().map(plain).collect::<String>()).filter(fits))
        // Without a name, or with one that is too long.
        .or_else(|| Path::new("/sys/unnamed").ok())
        .unwrap_or_else(Path::root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_becomes_a_path_of_one_segment() {
        for (name, path) in [
            ("publisher", "/sys/publishers/publisher"),
            ("host.example.org:1", "/sys/publishers/host.example.org:1"),
            ("a/b", "/sys/publishers/a-b"),
            ("a/b c*{é}\n", "/sys/publishers/a-b-c--é--"),
            ("/", "/sys/publishers/-"),
        ] {
            assert_eq!(metrics_path("publishers", name).as_str(), path);
        }
    }
}
