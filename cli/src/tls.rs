//! TLS of this process: loaded at its start, and again when a file has changed.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use longshore::{Access, Cluster, TlsAcceptor, TlsDialer, TlsError};
use tokio::task::spawn_blocking;
use tracing::{info, warn};

use crate::certificates::{Description, PemFile, Validity};
use crate::config::{Authority, ClientCertificates, Config};
use crate::failure::UsageError;
use crate::repeated_warning::{FAILURE_EVERY, RepeatedWarning};
use crate::time::wall_ms;

/// How often the files are compared with what is in use. They are a few kilobytes.
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);
/// How often a certificate that ends soon is logged.
const EXPIRING_EVERY: Duration = Duration::from_secs(24 * 60 * 60);

/// The TLS of this process's links.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tls {
    dialer: Option<TlsDialer>,
    acceptor: Option<TlsAcceptor>,
    /// This process's own certificate.
    certificate: Option<PathBuf>,
}

/// Reads a certificate. Returns its validity, in words, too: `EXPIRES in 13 days`.
pub(crate) fn validity(certificate: &Path) -> Result<(Validity, String), String> {
    let read = PemFile::read_certificates(certificate)?;
    let own = read.certificates.first().ok_or("it has no certificate")?;
    let own = Description::of(own).map_err(|why| format!("{}: {why}", certificate.display()))?;
    let now = i64::try_from(wall_ms() / 1_000).unwrap_or(i64::MAX);
    Ok((own.validity(now), own.time_left(now)))
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
            certificate: config.certificate.value.clone(),
        })
    }

    /// TLS of this authority alone: servers and clients need its certificates.
    pub(crate) fn of_files(ca: &Path, certificate: &Path, key: &Path) -> Result<Tls, TlsError> {
        Ok(Tls {
            dialer: Some(TlsDialer::from_pem(ca, None, Some((certificate, key)))?),
            acceptor: Some(TlsAcceptor::from_pem(certificate, key, Some(ca))?),
            certificate: Some(certificate.to_owned()),
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
    /// changed for new links. Warns of files that cannot be used, and of a certificate that ends.
    pub(crate) async fn keep_fresh(self) {
        let mut failing = RepeatedWarning::default();
        let mut ending = RepeatedWarning::default();
        while self.dialer.is_some() {
            let why = self.reload().await.err();
            if failing.is_due(why.as_deref(), FAILURE_EVERY, Instant::now())
                && let Some(why) = why
            {
                warn!("TLS: {why}; links still use what was read before");
            }
            let invalid = self.certificate_that_ends().await;
            let what = invalid.as_ref().map(|(validity, _)| validity.word());
            let every = match invalid {
                Some((Validity::Expiring, _)) => EXPIRING_EVERY,
                _ => FAILURE_EVERY,
            };
            if ending.is_due(what, every, Instant::now())
                && let Some((_, why)) = invalid
            {
                warn!("TLS: {why} (see longshore cert show)");
            }
            tokio::time::sleep(RELOAD_INTERVAL).await;
        }
    }

    /// The validity of this process's certificate, and its file with that, if it ends soon.
    async fn certificate_that_ends(&self) -> Option<(Validity, String)> {
        let file = self.certificate.clone()?;
        let shown = file.display().to_string();
        // What cannot be read is reported by the reload.
        let (validity, left) = spawn_blocking(move || validity(&file)).await.ok()?.ok()?;
        (validity != Validity::Valid).then(|| (validity, format!("the certificate {shown} {left}")))
    }

    /// Reads the files again, and uses what has changed for new links.
    pub(crate) async fn reload(&self) -> Result<(), String> {
        let tls = self.clone();
        let read = spawn_blocking(move || {
            // The acceptor first, which may not take the certificate: then the dialer keeps the
            // old one, too.
            let acceptor = tls.acceptor.map_or(Ok(false), |acceptor| acceptor.reload());
            let dialer = match acceptor.is_ok() {
                true => tls.dialer.map_or(Ok(false), |dialer| dialer.reload()),
                false => Ok(false),
            };
            [acceptor, dialer]
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
