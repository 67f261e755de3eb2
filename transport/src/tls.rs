//! TLS under links: rustls with ring, configured from PEM files, which may be replaced while links
//! are open.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use longshore_protocol::TlsName;
use parking_lot::Mutex;
use rustls::client::verify_server_name;
use rustls::pki_types::ServerName;
use rustls::server::{ClientCertVerifierBuilder, ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::TlsStream;

use crate::pem_files::{Authority, Contents, Fingerprint, PemFiles};
use crate::socket::MeteredStream;
use crate::tls_error::TlsError;

/// TLS for diallers: for [`Access::tls`](crate::Access::tls). Cheap to clone; clones share their
/// certificates.
#[derive(Clone)]
pub struct TlsDialer {
    loaded: Arc<Loaded<ClientConfig>>,
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
        TlsDialer::load(Authority::File(authority.to_owned()), server_name, identity)
    }

    /// Trusts servers that the system trusts, and is otherwise like
    /// [`from_pem`](TlsDialer::from_pem): for servers with a public certificate. On Unix the file
    /// is the system's bundle, or that of `$SSL_CERT_FILE`.
    pub fn from_system(
        server_name: Option<&str>,
        identity: Option<(&Path, &Path)>,
    ) -> Result<TlsDialer, TlsError> {
        TlsDialer::load(Authority::System, server_name, identity)
    }

    fn load(
        authority: Authority,
        server_name: Option<&str>,
        identity: Option<(&Path, &Path)>,
    ) -> Result<TlsDialer, TlsError> {
        let server_name = server_name
            .map(|name| {
                ServerName::try_from(name.to_owned())
                    .map_err(|_| TlsError::ServerName { name: name.to_owned() })
            })
            .transpose()?;
        let files = PemFiles::new(Some(authority), identity);
        Ok(TlsDialer { loaded: Arc::new(Loaded::new(files, client_config)?), server_name })
    }

    /// Reads the files again; if they have changed, new links use the new certificates, and open
    /// links stay. True if they have changed. On an error the old certificates stay in use: try
    /// again, as the files may be written one after the other. Reads on the calling thread.
    pub fn reload(&self) -> Result<bool, TlsError> {
        self.loaded.reload()
    }

    pub(crate) async fn connect(
        &self,
        address: SocketAddr,
        name: Option<&str>,
        stream: MeteredStream,
    ) -> io::Result<TlsStream<MeteredStream>> {
        let name = match (&self.server_name, name) {
            (Some(name), _) => name.clone(),
            (None, Some(name)) => {
                ServerName::try_from(name.to_owned()).map_err(io::Error::other)?
            }
            (None, None) => address.ip().into(),
        };
        let connector = tokio_rustls::TlsConnector::from(self.loaded.config());
        Ok(connector.connect(name, stream).await?.into())
    }
}

/// TLS for listeners: for the `tls` of a publisher's and a replica's options. Cheap to clone;
/// clones share their certificates.
#[derive(Clone)]
pub struct TlsAcceptor {
    loaded: Arc<Loaded<ServerConfig>>,
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
        let authority = client_authority.map(|file| Authority::File(file.to_owned()));
        let files = PemFiles::new(authority, Some((chain, key)));
        Ok(TlsAcceptor { loaded: Arc::new(Loaded::new(files, server_config)?) })
    }

    /// Like [`from_pem`](TlsAcceptor::from_pem), but diallers without a certificate are admitted,
    /// too: those that have a token.
    pub fn from_pem_optional(
        chain: &Path,
        key: &Path,
        client_authority: &Path,
    ) -> Result<TlsAcceptor, TlsError> {
        let authority = Some(Authority::File(client_authority.to_owned()));
        let files = PemFiles::new(authority, Some((chain, key)));
        Ok(TlsAcceptor { loaded: Arc::new(Loaded::new(files, optional_server_config)?) })
    }

    /// Reads the files again; if they have changed, new links use the new certificates, and open
    /// links stay. True if they have changed. On an error the old certificates stay in use: try
    /// again, as the files may be written one after the other. Reads on the calling thread.
    pub fn reload(&self) -> Result<bool, TlsError> {
        self.loaded.reload()
    }

    /// Checks that the certificate has the name; from then on, one without it is not
    /// [reloaded](TlsAcceptor::reload). Reads the files on the calling thread.
    pub fn check_name(&self, name: &TlsName) -> Result<(), TlsError> {
        let (_, contents) = self.loaded.files.read()?;
        has_name(&contents, name)?;
        let mut names = self.loaded.names.lock();
        if !names.contains(name) {
            names.push(name.clone());
        }
        Ok(())
    }

    pub(crate) async fn accept(
        &self,
        stream: MeteredStream,
    ) -> io::Result<TlsStream<MeteredStream>> {
        let acceptor = tokio_rustls::TlsAcceptor::from(self.loaded.config());
        Ok(acceptor.accept(stream).await?.into())
    }
}

/// A configuration of rustls, and the files it was built from.
struct Loaded<C> {
    files: PemFiles,
    build: fn(Contents) -> Result<C, TlsError>,
    current: Mutex<(Fingerprint, Arc<C>)>,
    reloading: Mutex<()>,
    /// What clients expect in the certificate.
    names: Mutex<Vec<TlsName>>,
}

impl<C> Loaded<C> {
    fn new(files: PemFiles, build: fn(Contents) -> Result<C, TlsError>) -> Result<Self, TlsError> {
        let (fingerprint, contents) = files.read()?;
        let current = Mutex::new((fingerprint, Arc::new(build(contents)?)));
        Ok(Loaded { files, build, current, reloading: Mutex::default(), names: Mutex::default() })
    }

    fn config(&self) -> Arc<C> {
        self.current.lock().1.clone()
    }

    fn reload(&self) -> Result<bool, TlsError> {
        // One at a time: of two, the older read must not win.
        let _reloading = self.reloading.lock();
        let (fingerprint, contents) = self.files.read()?;
        if self.current.lock().0 == fingerprint {
            return Ok(false);
        }
        // With a certificate of another name no client would link any more, once open links end.
        self.names.lock().iter().try_for_each(|name| has_name(&contents, name))?;
        // A new configuration resumes no session of the old one: a client whose authority was
        // replaced has to show a new certificate.
        let config = Arc::new((self.build)(contents)?);
        *self.current.lock() = (fingerprint, config);
        Ok(true)
    }
}

/// Whether the certificate has the name.
fn has_name(contents: &Contents, name: &TlsName) -> Result<(), TlsError> {
    let (chain, _) = contents.identity.as_ref().ok_or(TlsError::NoIdentity)?;
    let own = chain.first().ok_or(TlsError::NoIdentity)?;
    let lacks = |source| TlsError::NotItsName { name: name.clone(), source };
    let expected = ServerName::try_from(name.as_str())
        .map_err(|_| TlsError::ServerName { name: name.to_string() })?;
    let parsed = ParsedCertificate::try_from(own).map_err(lacks)?;
    verify_server_name(&parsed, &expected).map_err(lacks)
}

fn client_config(contents: Contents) -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(contents.authority.unwrap_or_else(RootCertStore::empty));
    Ok(match contents.identity {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => builder.with_client_auth_cert(chain, key)?,
    })
}

fn server_config(contents: Contents) -> Result<ServerConfig, TlsError> {
    server_config_with(contents, |verifier| verifier)
}

fn optional_server_config(contents: Contents) -> Result<ServerConfig, TlsError> {
    server_config_with(contents, ClientCertVerifierBuilder::allow_unauthenticated)
}

fn server_config_with(
    contents: Contents,
    clients: fn(ClientCertVerifierBuilder) -> ClientCertVerifierBuilder,
) -> Result<ServerConfig, TlsError> {
    let builder =
        ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13])?;
    let builder = match contents.authority {
        None => builder.with_no_client_auth(),
        Some(authority) => builder.with_client_cert_verifier(
            clients(WebPkiClientVerifier::builder_with_provider(authority.into(), provider()))
                .build()?,
        ),
    };
    let (chain, key) = contents.identity.ok_or(TlsError::NoIdentity)?;
    Ok(builder.with_single_cert(chain, key)?)
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

impl std::fmt::Debug for TlsDialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsDialer")
            .field("files", &self.loaded.files)
            .field("server_name", &self.server_name)
            .finish()
    }
}

impl std::fmt::Debug for TlsAcceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsAcceptor").field("files", &self.loaded.files).finish()
    }
}
