//! PEM files: their certificates, and a private key.

use std::path::Path;

use rustls::pki_types::pem::{PemObject as _, SectionKind};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::files;

/// The longest PEM file that is read, in bytes. A system's bundle of authorities has about 250 kB.
const PEM_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// What a PEM file has.
#[derive(Debug)]
pub(crate) struct PemFile {
    pub(crate) certificates: Vec<CertificateDer<'static>>,
    /// The first private key. Never print it.
    pub(crate) key: Option<PrivateKeyDer<'static>>,
}

impl PemFile {
    /// Reads a file. The error names it.
    pub(crate) fn read(path: &Path) -> Result<PemFile, String> {
        let failed = |why: &dyn std::fmt::Display| format!("cannot read {}: {why}", path.display());
        let bytes = files::read_bytes(path, PEM_BYTES_MAX).map_err(|why| failed(&why))?;
        PemFile::parse(&bytes).map_err(|why| failed(&why))
    }

    fn parse(bytes: &[u8]) -> Result<PemFile, String> {
        let mut file = PemFile { certificates: Vec::new(), key: None };
        for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(bytes) {
            let (kind, der) = section.map_err(|why| format!("it is not valid PEM: {why}"))?;
            match kind {
                SectionKind::Certificate => file.certificates.push(der.into()),
                _ if file.key.is_none() => file.key = PrivateKeyDer::from_pem(kind, der),
                _ => {}
            }
        }
        Ok(file)
    }

    /// Reads a file that has to have a certificate. The error names it.
    pub(crate) fn read_certificates(path: &Path) -> Result<PemFile, String> {
        let file = PemFile::read(path)?;
        if !file.certificates.is_empty() {
            return Ok(file);
        }
        let has = match file.key {
            Some(_) => "a private key and no certificate",
            None => "no certificate in PEM, which begins with -----BEGIN CERTIFICATE-----",
        };
        Err(format!("{} has {has}", path.display()))
    }
}

/// Whether a private key belongs to a public one, given as DER. An error if the key is of no kind
/// that rustls knows.
pub(crate) fn key_fits(key: &PrivateKeyDer<'_>, public_key: &[u8]) -> Result<bool, String> {
    let key = rustls::crypto::ring::sign::any_supported_type(key)
        .map_err(|_| "its key is neither ECDSA (P-256, P-384) nor Ed25519 nor RSA".to_owned())?;
    let own = key.public_key().ok_or("its public key is unknown")?;
    Ok(own.as_ref() == public_key)
}
