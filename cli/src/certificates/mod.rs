//! X.509 certificates for TLS: a development authority, what a certificate says, and the identity
//! that it gives to a client.

mod authority;
mod description;
mod names;
mod pair;
mod pem;

pub(crate) use authority::{Authority, Issued, make_authority};
pub(crate) use description::{Description, Validity, show_time};
pub(crate) use names::{
    AUTHORITY_FILES, DAYS_MAX, Host, NAMES_MAX, parse_authority_name, parse_certificate_name,
    parse_host, parse_uri,
};
pub(crate) use pair::Pair;
pub(crate) use pem::{PemFile, key_fits};
