//! The flags that say how to reach the system, beside its replicas.

#[cfg(feature = "bench")]
use std::ffi::OsString;

use clap::Args;

use crate::arguments::file_text;

/// The flags of `cluster`, `[tls]` and `token_file`.
#[derive(Args, Clone, Default, Debug)]
pub(crate) struct SystemFlags {
    /// The name of the cluster: servers of another refuse the link [default: $LONGSHORE_CLUSTER,
    /// the context, the configuration file]
    #[arg(long, global = true, value_name = "NAME", hide_short_help = true)]
    pub(crate) cluster: Option<String>,
    /// The PEM file of the authority that signs the servers' certificates, or system for those that
    /// the machine trusts [default: $LONGSHORE_TLS_CA, the context, the configuration file]
    #[arg(long, global = true, value_name = "FILE", value_parser = file_text(), hide_short_help = true)]
    pub(crate) tls_ca: Option<String>,
    /// The PEM file of this process's certificate [default: $LONGSHORE_TLS_CERTIFICATE, …]
    #[arg(long, global = true, value_name = "FILE", value_parser = file_text(), hide_short_help = true)]
    pub(crate) tls_certificate: Option<String>,
    /// The PEM file of its private key [default: $LONGSHORE_TLS_KEY, …]
    #[arg(long, global = true, value_name = "FILE", value_parser = file_text(), hide_short_help = true)]
    pub(crate) tls_key: Option<String>,
    /// The name in the servers' certificates, if it is not the one that is dialled [default:
    /// $LONGSHORE_TLS_SERVER_NAME, …]
    #[arg(long, global = true, value_name = "NAME", hide_short_help = true)]
    pub(crate) tls_server_name: Option<String>,
    /// The file of the token by which servers know this process; read again for each link [default:
    /// $LONGSHORE_TOKEN_FILE, the secret itself in $LONGSHORE_TOKEN, …]
    #[arg(long, global = true, value_name = "FILE", value_parser = file_text(), hide_short_help = true)]
    pub(crate) token_file: Option<String>,
}

impl SystemFlags {
    /// The flags that were given, for another process of this program.
    #[cfg(feature = "bench")]
    pub(super) fn given(&self) -> impl Iterator<Item = [OsString; 2]> {
        let SystemFlags { cluster, tls_ca, tls_certificate, tls_key, tls_server_name, token_file } =
            self;
        let flags = [
            ("--cluster", cluster),
            ("--tls-ca", tls_ca),
            ("--tls-certificate", tls_certificate),
            ("--tls-key", tls_key),
            ("--tls-server-name", tls_server_name),
            ("--token-file", token_file),
        ];
        flags.into_iter().filter_map(|(flag, value)| Some([flag.into(), value.as_ref()?.into()]))
    }
}
