//! Certificates generated for one test.

use std::fs;
use std::path::PathBuf;

use longshore_transport::{TlsAcceptor, TlsDialer};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;

/// PEM files: a certificate authority, and a certificate signed by it for 127.0.0.1 and a name.
pub struct Pem {
    directory: TempDir,
}

impl Pem {
    pub fn new() -> Pem {
        Pem::of("longshore.test")
    }

    pub fn of(name: &str) -> Pem {
        let directory = TempDir::new().unwrap();
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority =
            CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
        let names = ["127.0.0.1".to_owned(), name.to_owned()];
        let key = KeyPair::generate().unwrap();
        let chain = CertificateParams::new(names).unwrap().signed_by(&key, &authority).unwrap();
        let pem = Pem { directory };
        fs::write(pem.file("authority.pem"), authority.pem()).unwrap();
        fs::write(pem.file("chain.pem"), chain.pem()).unwrap();
        fs::write(pem.file("key.pem"), key.serialize_pem()).unwrap();
        pem
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Creates an acceptor. With `clients`, it accepts only clients with a certificate of that
    /// authority.
    pub fn acceptor(&self, clients: Option<&Pem>) -> TlsAcceptor {
        let clients = clients.map(|pem| pem.file("authority.pem"));
        let (chain, key) = (self.file("chain.pem"), self.file("key.pem"));
        TlsAcceptor::from_pem(&chain, &key, clients.as_deref()).unwrap()
    }

    /// Creates a dialer. `name` must be in the server's certificate; with `identity`, the dialer
    /// presents that certificate.
    pub fn dialer(&self, name: Option<&str>, identity: Option<&Pem>) -> TlsDialer {
        let files = identity.map(|pem| (pem.file("chain.pem"), pem.file("key.pem")));
        let identity = files.as_ref().map(|(chain, key)| (chain.as_path(), key.as_path()));
        TlsDialer::from_pem(&self.file("authority.pem"), name, identity).unwrap()
    }
}
