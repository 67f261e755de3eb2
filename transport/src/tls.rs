//! TLS under links: rustls with ring, configured from PEM files.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use longshore_protocol::HostAddress;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::TlsStream;

use crate::socket::MeteredStream;

/// Why a TLS configuration could not be built.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A PEM file cannot be read, or has not the expected content.
    #[error("{}: {source}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// The parser's error.
        source: rustls::pki_types::pem::Error,
    },
    /// A PEM file contains no certificate.
    #[error("{}: no certificate in it", path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// The expected server name is neither a DNS name nor an address.
    #[error("`{name}` is not a server name")]
    ServerName {
        /// The name.
        name: String,
    },
    /// Certificate and key do not match, or rustls does not accept them.
    #[error(transparent)]
    Rustls(#[from] rustls::Error),
    /// The certificate authority for clients cannot be used.
    #[error("client certificate authority: {0}")]
    ClientAuthority(#[from] rustls::client::VerifierBuilderError),
}

/// TLS for diallers: for `LinkOptions::tls` and `Cluster::tls`. Cheap to clone.
#[derive(Clone)]
pub struct TlsDialer {
    config: Arc<ClientConfig>,
    server_name: Option<ServerName<'static>>,
}

impl TlsDialer {
    /// Trusts servers whose certificate the authority in `authority` has signed, for `server_name`
    /// or, without one, for the dialled host name or IP address. `identity`, a certificate chain
    /// and its key, is the client's certificate. Reads the PEM files on the calling thread.
    pub fn from_pem(
        authority: &Path,
        server_name: Option<&str>,
        identity: Option<(&Path, &Path)>,
    ) -> Result<TlsDialer, TlsError> {
        let server_name = server_name
            .map(|name| {
                ServerName::try_from(name.to_owned())
                    .map_err(|_| TlsError::ServerName { name: name.to_owned() })
            })
            .transpose()?;
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots(authority)?);
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                builder.with_client_auth_cert(certificates(chain)?, private_key(key)?)?
            }
        };
        Ok(TlsDialer { config: Arc::new(config), server_name })
    }

    pub(crate) async fn connect(
        &self,
        address: SocketAddr,
        host: Option<&HostAddress>,
        stream: MeteredStream,
    ) -> io::Result<TlsStream<MeteredStream>> {
        let name = match (&self.server_name, host) {
            (Some(name), _) => name.clone(),
            // A trailing dot is for the system's lookup; certificates have none.
            (None, Some(host)) => {
                ServerName::try_from(host.name().trim_end_matches('.').to_owned())
                    .map_err(io::Error::other)?
            }
            (None, None) => address.ip().into(),
        };
        let connector = tokio_rustls::TlsConnector::from(self.config.clone());
        Ok(connector.connect(name, stream).await?.into())
    }
}

/// TLS for listeners: for the `tls` of a publisher's and a replica's options. Cheap to clone.
#[derive(Clone)]
pub struct TlsAcceptor {
    config: Arc<ServerConfig>,
}

impl TlsAcceptor {
    /// Presents the certificate chain in `chain`, whose key is in `key`. With `client_authority`,
    /// only diallers with a certificate that it has signed are admitted. Reads the PEM files on the
    /// calling thread.
    pub fn from_pem(
        chain: &Path,
        key: &Path,
        client_authority: Option<&Path>,
    ) -> Result<TlsAcceptor, TlsError> {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?;
        let builder = match client_authority {
            None => builder.with_no_client_auth(),
            Some(authority) => builder.with_client_cert_verifier(
                WebPkiClientVerifier::builder_with_provider(roots(authority)?.into(), provider())
                    .build()?,
            ),
        };
        let config = builder.with_single_cert(certificates(chain)?, private_key(key)?)?;
        Ok(TlsAcceptor { config: Arc::new(config) })
    }

    pub(crate) async fn accept(
        &self,
        stream: MeteredStream,
    ) -> io::Result<TlsStream<MeteredStream>> {
        let acceptor = tokio_rustls::TlsAcceptor::from(self.config.clone());
        Ok(acceptor.accept(stream).await?.into())
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn roots(authority: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(authority)? {
        roots.add(certificate)?;
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |source| TlsError::Pem { path: path.to_owned(), source };
    let certificates: Vec<_> = CertificateDer::pem_file_iter(path)
        .map_err(failed)?
        .collect::<Result<_, _>>()
        .map_err(failed)?;
    if certificates.is_empty() {
        return Err(TlsError::NoCertificate { path: path.to_owned() });
    }
    Ok(certificates)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path)
        .map_err(|source| TlsError::Pem { path: path.to_owned(), source })
}

impl std::fmt::Debug for TlsDialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsDialer").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for TlsAcceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsAcceptor").finish_non_exhaustive()
    }
}
