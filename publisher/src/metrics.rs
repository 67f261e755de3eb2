//! Longshore's own metrics, below `/sys`: live values that are made when somebody asks for them,
//! and only then.
//!
//! A publisher declares one default, at `/sys/publishers/NAME`. What is asked for below it is taken
//! from counters that are there anyway, at most twice a second, all of it in one pass of the owner;
//! what nobody follows any more is let go.

mod ask;
mod publisher;
mod serve;
mod taken;

pub(crate) use self::ask::{Ask, METRICS_LINK, Metric, Waiting};
pub(crate) use self::publisher::OfPublisher;
pub use self::serve::{METRICS_EVERY, METRICS_MAX, MetricSource, Taken, serve_metrics};
pub(crate) use self::taken::{Serving, take};

use longshore_protocol::Path;

/// Where something that operators have named has its metrics: `/sys/KIND/NAME`, with a `-` for each
/// character of the name that no path may have.
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
    fn every_name_has_a_path_of_one_segment() {
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
