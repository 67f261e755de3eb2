//! Who a client is, and what it may do. Pure: no socket, no clock, no file is opened here.
//!
//! [`identity_of`] reads an [`Identity`] from a certificate.

mod certificate;
mod identity;

pub use certificate::{CertificateError, identity_of};
pub use identity::{IDENTITY_BYTES_MAX, Identity, IdentityTextError, NameKind};
