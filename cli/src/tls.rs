//! TLS of this process: loaded at its start, and again when a file has changed.

use std::path::Path;
use std::time::Duration;

use longshore::{Access, Cluster, TlsAcceptor, TlsDialer, TlsError};
use tokio::task::spawn_blocking;
use tracing::{info, warn};

use crate::config::{Authority, ClientCertificates, Config};
use crate::failure::UsageError;

/// How often the files are compared with what is in use. They are a few kilobytes.
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// The TLS of this process's links.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tls {
    dialer: Option<TlsDialer>,
    acceptor: Option<TlsAcceptor>,
}

impl Tls {
    /// Reads the configured files; that of the token only to report its absence at once.
    pub(crate) fn load(config: &Config) -> Result<Tls, UsageError> {
        if let Some(token) = &config.token.value {
            token.read().map_err(|error| UsageError(error.to_string()))?;
        }
        let config = &config.tls;
        if !config.is_on() {
            return Ok(Tls::default());
        }
        let failed = |error: TlsError| UsageError(format!("TLS: {error}"));
        let identity: Option<(&Path, &Path)> =
            config.certificate.value.as_deref().zip(config.key.value.as_deref());
        let name = config.server_name.value.as_deref();
        let authority = match &config.ca.value {
            None | Some(Authority::System) => None,
            Some(Authority::File(file)) => Some(file.as_path()),
        };
        let dialer = match authority {
            None => TlsDialer::from_system(name, identity),
            Some(file) => TlsDialer::from_pem(file, name, identity),
        };
        let clients = config.client_certificates();
        let acceptor = identity.map(|(chain, key)| match (clients, authority) {
            (ClientCertificates::Optional, Some(file)) => {
                TlsAcceptor::from_pem_optional(chain, key, file)
            }
            (ClientCertificates::Required, file) => TlsAcceptor::from_pem(chain, key, file),
            _ => TlsAcceptor::from_pem(chain, key, None),
        });
        Ok(Tls {
            dialer: Some(dialer.map_err(failed)?),
            acceptor: acceptor.transpose().map_err(failed)?,
        })
    }

    /// TLS of this authority alone: servers and clients need its certificates.
    pub(crate) fn of_files(ca: &Path, certificate: &Path, key: &Path) -> Result<Tls, TlsError> {
        Ok(Tls {
            dialer: Some(TlsDialer::from_pem(ca, None, Some((certificate, key)))?),
            acceptor: Some(TlsAcceptor::from_pem(certificate, key, Some(ca))?),
        })
    }

    /// How clients of this process reach the configured system.
    pub(crate) fn cluster(&self, config: &Config) -> Cluster {
        let mut cluster = Cluster::from(config.resolvers.value.join(","));
        cluster.timing = config.timing();
        cluster.access = self.access(config);
        cluster
    }

    /// The cluster's name, TLS, and the token.
    pub(crate) fn access(&self, config: &Config) -> Access {
        Access {
            cluster: config.cluster.value.clone(),
            tls: self.dialer.clone(),
            token: config.token.value.clone(),
        }
    }

    /// For a listener of this process; none without TLS.
    pub(crate) fn acceptor(&self) -> Result<Option<TlsAcceptor>, UsageError> {
        match (&self.dialer, &self.acceptor) {
            (Some(_), None) => {
                let what = "TLS: a process that listens needs tls.certificate and tls.key, \
                            beside tls.ca; longshore cert makes them for development";
                Err(UsageError(what.to_owned()))
            }
            (_, acceptor) => Ok(acceptor.clone()),
        }
    }

    /// Compares the files with what is in use, for as long as the process runs, and uses what has
    /// changed for new links.
    pub(crate) async fn keep_fresh(self) {
        let mut failed: Option<String> = None;
        while self.dialer.is_some() {
            tokio::time::sleep(RELOAD_INTERVAL).await;
            let why = self.reload().await.err();
            if let Some(why) = why.as_ref().filter(|why| failed.as_ref() != Some(*why)) {
                warn!("TLS: {why}; links still use what was read before");
            }
            failed = why;
        }
    }

    /// Reads the files again, and uses what has changed for new links.
    pub(crate) async fn reload(&self) -> Result<(), String> {
        let tls = self.clone();
        let read = spawn_blocking(move || {
            let dialer = tls.dialer.map_or(Ok(false), |dialer| dialer.reload());
            let acceptor = tls.acceptor.map_or(Ok(false), |acceptor| acceptor.reload());
            [dialer, acceptor]
        });
        let read = read.await.map_err(|error| error.to_string())?;
        if read.iter().any(|read| matches!(read, Ok(true))) {
            info!("TLS: certificates have changed; new links use them");
        }
        match read.into_iter().find_map(Result::err) {
            None => Ok(()),
            Some(error) => Err(error.to_string()),
        }
    }
}
