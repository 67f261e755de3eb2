//! What a client shows to servers, and what it expects of them.

use crate::tls::TlsDialer;
use crate::token::TokenSource;

/// The cluster that a client belongs to, and how it reaches the cluster's servers. The default is a
/// cluster without a name, without TLS and token. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The cluster's name; empty for one without a name. At most 64 bytes. A server of another name
    /// refuses the link, naming both: a client whose address is wrong by mistake joins no cluster
    /// but its own. Not a secret.
    pub cluster: String,
    /// TLS, if the servers require it. None by default.
    pub tls: Option<TlsDialer>,
    /// The client's token. It is sent over TLS only: without it no server is dialled. A server that
    /// accepts it knows the client by the token's name, also if the client has a certificate.
    pub token: Option<TokenSource>,
}
