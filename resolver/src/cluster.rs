//! The replicas of a resolver, as its clients know them.

use longshore_protocol::{LinkTiming, ResolverTiming, Role};
use longshore_transport::TlsDialer;

/// The replicas of a resolver, and the rules of time that hold with them.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Every replica, as `host:port`.
    pub replicas: Vec<String>,
    /// Timeouts, waits and tries.
    pub timing: ResolverTiming,
    /// TLS, if the replicas want it.
    pub tls: Option<TlsDialer>,
}

impl Cluster {
    /// These replicas, with default timing, without TLS.
    pub fn new(replicas: impl IntoIterator<Item = impl Into<String>>) -> Cluster {
        Cluster {
            replicas: replicas.into_iter().map(Into::into).collect(),
            timing: ResolverTiming::default(),
            tls: None,
        }
    }
}

/// A replica that did not answer, and why.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{replica}: {why}")]
pub struct ReplicaFailure {
    /// The replica, as `host:port`.
    pub replica: String,
    /// What went wrong there last.
    pub why: String,
}

/// The timing of a link in that role: a side that is silent for the role's time to live is gone, and four heartbeats fit
/// into it.
pub(crate) fn link_timing(timing: &ResolverTiming, role: Role) -> LinkTiming {
    let hang = match role {
        Role::ResolverWriter => timing.writer_ttl,
        _ => timing.reader_ttl,
    };
    LinkTiming { heartbeat: hang / 4, hang }
}
