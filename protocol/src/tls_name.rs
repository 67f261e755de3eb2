//! The name in a publisher's certificate.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::address::is_host_name;
use crate::codec::{Reader, WireError};
use crate::frame::FrameWriter;
use crate::limits::HOST_BYTES_MAX;

/// The name that a publisher's certificate has, for clients to expect, whatever the address that
/// they dial: a host name without a final dot, or an IP address.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TlsName(Box<str>);

/// The text is no such name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "`{0}` is not a name that a certificate can have: write a host name of at most \
     {HOST_BYTES_MAX} bytes without a port and a final dot, or an IP address"
)]
pub struct NotATlsName(String);

impl TlsName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TlsName {
    type Err = NotATlsName;

    fn from_str(text: &str) -> Result<TlsName, NotATlsName> {
        let is_host = is_host_name(text) && !text.ends_with('.');
        if is_host || text.parse::<IpAddr>().is_ok() {
            Ok(TlsName(text.into()))
        } else {
            Err(NotATlsName(text.to_owned()))
        }
    }
}

impl fmt::Display for TlsName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// As a field: no name is an empty text, or left out.
pub(crate) mod optional {
    use super::*;

    pub(crate) fn put(name: &Option<TlsName>, out: &mut FrameWriter) {
        out.string(name.as_ref().map_or("", TlsName::as_str));
    }

    pub(crate) fn read(r: &mut Reader) -> Result<Option<TlsName>, WireError> {
        if r.is_empty() {
            return Ok(None);
        }
        let invalid = r.invalid("name of a certificate");
        let text = r.string("name of a certificate", HOST_BYTES_MAX)?;
        if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(|_| invalid) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_host_name_or_an_ip_address() {
        let longest = [vec!["a".repeat(63); 3], vec!["a".repeat(61)]].concat().join(".");
        for text in ["berlin-1.example", "a", "10.0.0.7", "::1", &longest] {
            assert_eq!(text.parse::<TlsName>().unwrap().as_str(), text);
        }
        for text in ["", "a.", "a:1", "*.a", "10.0.0", "a b", &format!("{longest}a")] {
            assert!(text.parse::<TlsName>().is_err(), "{text}");
        }
    }
}
