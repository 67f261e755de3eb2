//! The replicas of a resolver, as its clients know them.

use longshore_protocol::{LinkTiming, ResolverTiming, Role};
use longshore_transport::TlsDialer;

/// The replicas of a resolver, and the rules of time that hold with them. Made from a text:
/// `Cluster::from("a.example:4770,b.example")`. Replicas know nothing of each other: whoever
/// publishes tells all of them, whoever asks asks one that answers.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Every replica, as `host:port`. With none, clients can be made of it, and find nobody;
    /// workers and subscribers refuse it.
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

/// The timing of a link in that role: a side that is silent for the role's time to live is gone,
/// and four heartbeats fit into it.
pub(crate) fn link_timing(timing: &ResolverTiming, role: Role) -> LinkTiming {
    let hang = match role {
        Role::ResolverWriter => timing.writer_ttl,
        _ => timing.reader_ttl,
    };
    LinkTiming { heartbeat: hang / 4, hang }
}

/// Where a replica listens unless it is told otherwise.
pub const REPLICA_PORT: u16 = 4770;

impl Cluster {
    /// The replicas that a text names, separated by commas; one without a port listens at 4770.
    /// Checks nothing: a wrong name shows when it is dialled.
    pub fn parse(replicas: &str) -> Cluster {
        let named = replicas.split(',').map(str::trim).filter(|replica| !replica.is_empty());
        Cluster::new(named.map(|replica| match replica.rsplit_once(':') {
            // A colon within brackets is the address's own.
            Some((_, after)) if !after.contains(']') => replica.to_owned(),
            _ => format!("{replica}:{REPLICA_PORT}"),
        }))
    }
}

impl From<&str> for Cluster {
    fn from(replicas: &str) -> Cluster {
        Cluster::parse(replicas)
    }
}

impl From<String> for Cluster {
    fn from(replicas: String) -> Cluster {
        Cluster::parse(&replicas)
    }
}

#[cfg(test)]
mod tests {
    use super::Cluster;

    #[test]
    fn a_text_names_replicas_with_or_without_their_port() {
        let cluster = Cluster::from("localhost, a:1,[::1],[::1]:2,");
        assert_eq!(cluster.replicas, ["localhost:4770", "a:1", "[::1]:4770", "[::1]:2"]);
        assert!(Cluster::from("").replicas.is_empty());
    }
}
