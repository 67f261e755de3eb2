//! `cluster` and `[tls]`: which system this is, and how its servers and clients know each other.
//! From the command line, the environment, and the context in force or else the configuration file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use longshore::protocol::limits::CLUSTER_BYTES_MAX;
use serde::Deserialize;

use super::layers::Layers;
use super::raw_value::Key;
use super::system_flags::SystemFlags;
use super::{Setting, values};

/// The keys of a system beside its replicas, as a file has them.
#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TlsSection {
    pub(crate) ca: Key<String>,
    pub(crate) certificate: Key<String>,
    pub(crate) key: Key<String>,
    pub(crate) server_name: Key<String>,
    pub(crate) client_certificates: Key<String>,
}

impl TlsSection {
    /// Whether any key is written.
    pub(super) fn is_written(&self) -> bool {
        let TlsSection { ca, certificate, key, server_name, client_certificates } = self;
        [ca, certificate, key, server_name, client_certificates].iter().any(|key| key.is_some())
    }
}

/// `[tls]`. Without any file there is no TLS.
#[derive(Clone, Debug)]
pub(crate) struct TlsConfig {
    /// Who signs the certificates that this process trusts.
    pub(crate) ca: Setting<Option<Authority>>,
    /// The certificate chain that this process shows.
    pub(crate) certificate: Setting<Option<PathBuf>>,
    /// Its private key.
    pub(crate) key: Setting<Option<PathBuf>>,
    /// The name that servers' certificates must have; none: the dialled host or address.
    pub(crate) server_name: Setting<Option<String>>,
    /// Whether a server demands certificates of its clients; none: if `ca` is a file.
    pub(crate) client_certificates: Setting<Option<ClientCertificates>>,
}

/// Who signs certificates.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Authority {
    /// Those that the machine trusts.
    System,
    /// The authorities in this PEM file.
    File(PathBuf),
}

/// Whether a server demands certificates of its clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ClientCertificates {
    Required,
    /// A client without one needs a token.
    Optional,
    Off,
}

impl TlsConfig {
    /// Whether any key asks for TLS.
    pub(crate) fn is_on(&self) -> bool {
        let TlsConfig { ca, certificate, key, .. } = self;
        ca.value.is_some() || certificate.value.is_some() || key.value.is_some()
    }

    /// Whether servers demand certificates of their clients.
    pub(crate) fn client_certificates(&self) -> ClientCertificates {
        self.client_certificates.value.unwrap_or(match self.ca.value {
            Some(Authority::File(_)) => ClientCertificates::Required,
            // Everyone could have one that the machine trusts.
            _ => ClientCertificates::Off,
        })
    }

    /// An error if everyone may be a client of this listener, and nothing says that this is meant.
    pub(crate) fn check_listener(&self, listen: SocketAddr, policy: bool) -> Result<(), String> {
        let is_meant = match self.client_certificates.value {
            Some(ClientCertificates::Off) => true,
            // The others need a token, and rights.
            Some(ClientCertificates::Optional) => policy,
            Some(ClientCertificates::Required) | None => false,
        };
        if !self.is_on()
            || is_meant
            || self.client_certificates() == ClientCertificates::Required
            || listen.ip().to_canonical().is_loopback()
        {
            return Ok(());
        }
        let why = "other machines can reach it, and it would admit clients without a certificate: \
                   set tls.ca to the file of the authority that signs theirs, or access.policy \
                   beside tls.client_certificates = \"optional\", or accept it with \
                   tls.client_certificates = \"off\"";
        Err(why.to_owned())
    }

    pub(super) fn resolve(
        layers: &Layers<'_>,
        written: TlsSection,
        flags: &SystemFlags,
        home: Option<&Path>,
    ) -> TlsConfig {
        let file = |text: String| values::expand_home(&text, home).map(Some);
        let authority = |text: String| match text.as_str() {
            "system" => Ok(Some(Authority::System)),
            _ => Ok(file(text)?.map(Authority::File)),
        };
        let name = |text: String| Ok(Some(text));
        let client_certificates = |text: String| match text.as_str() {
            "required" => Ok(Some(ClientCertificates::Required)),
            "optional" => Ok(Some(ClientCertificates::Optional)),
            "off" => Ok(Some(ClientCertificates::Off)),
            _ => Err(format!("'{text}' is unknown; expected required, optional or off")),
        };
        let of_flag = |key, flag, given: &Option<String>| {
            let given = given.clone()?;
            layers.flag(key, flag, file(given))
        };
        let ca_flag =
            flags.tls_ca.clone().and_then(|ca| layers.flag("tls.ca", "--tls-ca", authority(ca)));
        TlsConfig {
            ca: layers
                .of_text("tls.ca", "LONGSHORE_TLS_CA", written.ca, &authority)
                .or_flag(ca_flag, "--tls-ca"),
            certificate: layers
                .of_text("tls.certificate", "LONGSHORE_TLS_CERTIFICATE", written.certificate, &file)
                .or_flag(
                    of_flag("tls.certificate", "--tls-certificate", &flags.tls_certificate),
                    "--tls-certificate",
                ),
            key: layers
                .of_text("tls.key", "LONGSHORE_TLS_KEY", written.key, &file)
                .or_flag(of_flag("tls.key", "--tls-key", &flags.tls_key), "--tls-key"),
            server_name: layers
                .of_text("tls.server_name", "LONGSHORE_TLS_SERVER_NAME", written.server_name, &name)
                .or_flag(flags.tls_server_name.clone().map(Some), "--tls-server-name"),
            client_certificates: layers.of_file(
                "tls.client_certificates",
                written.client_certificates,
                client_certificates,
                None,
            ),
        }
    }
}

/// Checks the name of a cluster.
pub(crate) fn cluster_name(text: String) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if text.len() <= CLUSTER_BYTES_MAX && text.chars().all(fits) {
        return Ok(text);
    }
    Err(format!(
        "{text:?} is not a cluster's name; use up to {CLUSTER_BYTES_MAX} letters, digits, '-', '_' \
         and '.'"
    ))
}
