//! The replicas of a resolver, as its clients see them.

use longshore_protocol::{Address, LinkTiming, ResolverTiming, Role};
use longshore_transport::{Access, LinkOptions, TlsDialer, TokenSource};

/// The replicas of a resolver, their timing, and how to reach the servers of this cluster. Made
/// from a text: `Cluster::from("a.example:4770,b.example")`. Replicas do not know each other:
/// publishers write to all of them, readers ask any that answers.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Every replica, as `host:port`. With none, clients can be created and find no publisher;
    /// workers and subscribers refuse it.
    pub replicas: Vec<String>,
    /// Timeouts, waits and attempts.
    pub timing: ResolverTiming,
    /// The cluster's name, TLS and the token, for links to replicas and to publishers.
    pub access: Access,
}

impl Cluster {
    /// A cluster of `replicas` with default timing, without a name, without TLS.
    pub fn new(replicas: impl IntoIterator<Item = impl Into<String>>) -> Cluster {
        Cluster {
            replicas: replicas.into_iter().map(Into::into).collect(),
            timing: ResolverTiming::default(),
            access: Access::default(),
        }
    }

    /// Sets the name of the cluster, at most 64 bytes: servers of another cluster refuse the link.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Cluster {
        self.access.cluster = name.into();
        self
    }

    /// Shows a token to its replicas and publishers, by which they know this process. It needs TLS.
    #[must_use]
    pub fn token(mut self, token: TokenSource) -> Cluster {
        self.access.token = Some(token);
        self
    }

    /// Requires TLS on links to its replicas and publishers.
    #[must_use]
    pub fn tls(mut self, tls: TlsDialer) -> Cluster {
        self.access.tls = Some(tls);
        self
    }

    /// What links to its publishers need besides these options.
    pub fn link_options(&self, options: LinkOptions) -> LinkOptions {
        let mut options = options.or_access(&self.access);
        options.socket_folders.get_or_insert_with(|| {
            let sockets = self.replicas.iter().filter_map(|replica| match replica.parse() {
                Ok(Address::Unix(path)) => Some(path.folder().to_owned()),
                _ => None,
            });
            sockets.collect()
        });
        options
    }
}

/// A replica that did not answer, and why.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{replica}: {why}")]
pub struct ReplicaFailure {
    /// The replica, as `host:port`.
    pub replica: String,
    /// The last error there.
    pub why: String,
}

/// The timing of a link in `role`: a side that is silent for the role's time to live is gone, and
/// four heartbeats fit into it.
pub(crate) fn link_timing(timing: &ResolverTiming, role: Role) -> LinkTiming {
    let hang = match role {
        Role::ResolverWriter => timing.writer_ttl,
        _ => timing.reader_ttl,
    };
    LinkTiming { heartbeat: hang / 4, hang }
}

/// The default port of a replica.
pub const REPLICA_PORT: u16 = 4770;

impl Cluster {
    /// The replicas in a comma-separated text; the default port is 4770. Checks nothing: a wrong
    /// name fails when it is dialled.
    pub fn parse(replicas: &str) -> Cluster {
        let named = replicas.split(',').map(str::trim).filter(|replica| !replica.is_empty());
        Cluster::new(named.map(|replica| match replica.rsplit_once(':') {
            // A colon within brackets belongs to the address.
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
