//! What a client shows to servers, and what it expects of them.

use crate::tls::TlsDialer;

/// The cluster that a client belongs to, and how it reaches the cluster's servers. The default is a
/// cluster without a name, without TLS. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The cluster's name; empty for one without a name. At most 64 bytes. A server of another name
    /// refuses the link, naming both: a client whose address is wrong by mistake joins no cluster
    /// but its own. Not a secret.
    pub cluster: String,
    /// TLS, if the servers require it. None by default.
    pub tls: Option<TlsDialer>,
}
