//! Certificates made for one test.

use std::fs;
use std::path::PathBuf;

use longshore_transport::{LinkOptions, ListenerOptions, TlsAcceptor, TlsDialer};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;

use super::{dialling, listening};

/// PEM files: an authority, and a certificate that it has signed for 127.0.0.1 and `longshore.test`.
pub struct Pem {
    directory: TempDir,
}

impl Pem {
    pub fn new() -> Pem {
        let directory = TempDir::new().unwrap();
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority =
            CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
        let names = ["127.0.0.1".to_owned(), "longshore.test".to_owned()];
        let key = KeyPair::generate().unwrap();
        let chain = CertificateParams::new(names).unwrap().signed_by(&key, &authority).unwrap();
        fs::write(directory.path().join("authority.pem"), authority.pem()).unwrap();
        fs::write(directory.path().join("chain.pem"), chain.pem()).unwrap();
        fs::write(directory.path().join("key.pem"), key.serialize_pem()).unwrap();
        Pem { directory }
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn listening(&self, client_authority: Option<&Pem>) -> ListenerOptions {
        let authority = client_authority.map(|pem| pem.file("authority.pem"));
        let tls = TlsAcceptor::from_pem(
            &self.file("chain.pem"),
            &self.file("key.pem"),
            authority.as_deref(),
        );
        ListenerOptions { tls: Some(tls.unwrap()), ..listening() }
    }

    pub fn dialling(&self, name: Option<&str>, identity: Option<&Pem>) -> LinkOptions {
        let files = identity.map(|pem| (pem.file("chain.pem"), pem.file("key.pem")));
        let identity = files.as_ref().map(|(chain, key)| (chain.as_path(), key.as_path()));
        let tls = TlsDialer::from_pem(&self.file("authority.pem"), name, identity);
        LinkOptions { tls: Some(tls.unwrap()), ..dialling() }
    }
}
