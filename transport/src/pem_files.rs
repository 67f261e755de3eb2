//! The PEM files of a TLS configuration: read, parsed, and compared with what was read last.

use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::tls_error::TlsError;

/// The longest PEM file that is read, in bytes. A system's bundle has about 250 kB.
pub const TLS_FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Whom to trust.
#[derive(Clone, Debug)]
pub(crate) enum Authority {
    /// The authorities in this file.
    File(PathBuf),
    /// Those that the system trusts.
    System,
}

/// Where certificates and keys are.
#[derive(Debug)]
pub(crate) struct PemFiles {
    authority: Option<Authority>,
    /// A certificate chain and its key.
    identity: Option<(PathBuf, PathBuf)>,
    hasher: RandomState,
}

/// What files contain, as a hash with a random key: it tells changes of our own files, and says
/// nothing of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fingerprint(u64);

/// What the files contain.
pub(crate) struct Contents {
    pub(crate) authority: Option<RootCertStore>,
    pub(crate) identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
}

impl PemFiles {
    pub(crate) fn new(authority: Option<Authority>, identity: Option<(&Path, &Path)>) -> PemFiles {
        let identity = identity.map(|(chain, key)| (chain.to_owned(), key.to_owned()));
        PemFiles { authority, identity, hasher: RandomState::new() }
    }

    /// Reads all files.
    pub(crate) fn read(&self) -> Result<(Fingerprint, Contents), TlsError> {
        let mut all = Vec::new();
        let mut contents = Contents { authority: None, identity: None };
        match &self.authority {
            None => {}
            Some(Authority::File(file)) => {
                let bytes = read(file)?;
                contents.authority = Some(roots(certificates(file, &bytes)?)?);
                all.push(bytes);
            }
            Some(Authority::System) => {
                let found = rustls_native_certs::load_native_certs();
                all.extend(found.certs.iter().map(|certificate| certificate.to_vec()));
                let mut roots = RootCertStore::empty();
                // Old bundles have certificates that rustls does not take: the others count.
                if roots.add_parsable_certificates(found.certs).0 == 0 {
                    let errors = found.errors.iter().map(ToString::to_string);
                    let why = errors.collect::<Vec<_>>().join("; ");
                    return Err(TlsError::NoSystemAuthority { why });
                }
                contents.authority = Some(roots);
            }
        }
        if let Some((chain, key)) = &self.identity {
            let (chain_bytes, key_bytes) = (read(chain)?, read(key)?);
            let failed = |source| TlsError::Pem { path: key.clone(), source };
            let private = PrivateKeyDer::from_pem_slice(&key_bytes).map_err(failed)?;
            contents.identity = Some((certificates(chain, &chain_bytes)?, private));
            all.extend([chain_bytes, key_bytes]);
        }
        Ok((Fingerprint(self.hasher.hash_one(&all)), contents))
    }
}

fn roots(certificates: Vec<CertificateDer<'static>>) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate)?;
    }
    Ok(roots)
}

fn certificates(path: &Path, bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |source| TlsError::Pem { path: path.to_owned(), source };
    let certificates: Vec<_> =
        CertificateDer::pem_slice_iter(bytes).collect::<Result<_, _>>().map_err(failed)?;
    if certificates.is_empty() {
        return Err(TlsError::NoCertificate { path: path.to_owned() });
    }
    Ok(certificates)
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |source: io::Error| TlsError::Read { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let mut file = File::open(path).map_err(failed)?.take(TLS_FILE_BYTES_MAX + 1);
    file.read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > TLS_FILE_BYTES_MAX {
        return Err(TlsError::TooLong { path: path.to_owned() });
    }
    Ok(bytes)
}
