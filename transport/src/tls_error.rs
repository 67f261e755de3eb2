//! Why a TLS configuration cannot be built.

use std::io;
use std::path::PathBuf;

use longshore_protocol::TlsName;

use crate::pem_files::TLS_FILE_BYTES_MAX;

/// Why a TLS configuration could not be built. Errors of a file name it.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file is longer than any certificate chain or bundle.
    #[error("{}: longer than {TLS_FILE_BYTES_MAX} bytes; is it a PEM file?", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// A PEM file does not have the expected content.
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
    /// The system has no trusted certificates.
    #[error("the system trusts no certificate authority: {why}; name one of your own")]
    NoSystemAuthority {
        /// What was tried.
        why: String,
    },
    /// A server needs a certificate and its key.
    #[error("a server needs a certificate and its key")]
    NoIdentity,
    /// The expected server name is neither a DNS name nor an address.
    #[error("`{name}` is not a server name")]
    ServerName {
        /// The name.
        name: String,
    },
    /// The server's certificate does not have the name that clients are to expect.
    #[error("its certificate does not have the name {name}, which clients would expect: {source}")]
    NotItsName {
        /// The name.
        name: TlsName,
        /// The error of rustls.
        source: rustls::Error,
    },
    /// Certificate and key do not match, or rustls does not accept them.
    #[error(transparent)]
    Rustls(#[from] rustls::Error),
    /// The certificate authority for clients cannot be used.
    #[error("client certificate authority: {0}")]
    ClientAuthority(#[from] rustls::client::VerifierBuilderError),
}
