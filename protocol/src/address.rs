//! The address at which a publisher listens and others dial it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::limits::{HOST_BYTES_MAX, SOCKET_PATH_BYTES_MAX};
use crate::socket_path::{NotASocketPath, SocketPath};

/// Longest label of a host name, in bytes.
const LABEL_BYTES_MAX: usize = 63;

/// An IP address or a host name, each with a port, or a Unix socket. `10.0.0.1:4780`, `[::1]:4780`,
/// `jobs-1.example:4780`, `unix:/run/longshore/publisher.sock`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Address {
    /// An IP address and a port.
    Ip(SocketAddr),
    /// A host name and a port.
    Host(HostAddress),
    /// A Unix socket of the same machine.
    Unix(SocketPath),
}

/// How the text of a Unix socket's address begins.
const UNIX: &str = "unix:";

/// A host name, which is resolved again for every dial, and a port.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostAddress {
    name: Box<str>,
    port: u16,
}

/// Why a text is not an address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AddressError {
    /// There is no port.
    #[error("`{0}` has no port; write HOST:PORT or IP:PORT")]
    NoPort(String),
    /// After `unix:` there is no path of a socket.
    #[error(transparent)]
    BadPath(#[from] NotASocketPath),
    /// The host is neither an IP address nor a host name.
    #[error(
        "`{0}` is neither an IP address nor a host name: a name has 1 to {HOST_BYTES_MAX} bytes in \
         labels of 1 to 63 letters, digits, `-` and `_`, and its last label is no number"
    )]
    BadHost(String),
}

impl HostAddress {
    /// Checks the name.
    pub fn new(name: &str, port: u16) -> Result<HostAddress, AddressError> {
        if is_host_name(name) {
            Ok(HostAddress { name: name.into(), port })
        } else {
            Err(AddressError::BadHost(name.to_owned()))
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Address {
    /// The port; none of a Unix socket.
    pub fn port(&self) -> Option<u16> {
        match self {
            Address::Ip(address) => Some(address.port()),
            Address::Host(host) => Some(host.port),
            Address::Unix(_) => None,
        }
    }

    /// Returns the IP address, or `None` for another address.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Address::Ip(address) => Some(address.ip()),
            Address::Host(_) | Address::Unix(_) => None,
        }
    }
}

/// `a.last` and `10.last` are names; `10.0.0.999` is a mistyped IP address. A trailing dot is
/// allowed: it disables search domains.
pub(crate) fn is_host_name(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=LABEL_BYTES_MAX).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    let labels = name.strip_suffix('.').unwrap_or(name);
    let last = labels.rsplit('.').next().unwrap_or_default();
    name.len() <= HOST_BYTES_MAX
        && labels.split('.').all(is_label)
        && !last.bytes().all(|byte| byte.is_ascii_digit())
}

impl fmt::Display for HostAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.port)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Ip(address) => address.fmt(f),
            Address::Host(host) => host.fmt(f),
            Address::Unix(path) => write!(f, "{UNIX}{path}"),
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        if let Some(path) = text.strip_prefix(UNIX) {
            return Ok(Address::Unix(path.parse()?));
        }
        if let Ok(address) = text.parse() {
            return Ok(Address::Ip(address));
        }
        let (name, port) = text.rsplit_once(':').unwrap_or((text, ""));
        let port = port.parse().map_err(|_| AddressError::NoPort(text.to_owned()))?;
        Ok(Address::Host(HostAddress::new(name, port)?))
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        Address::Ip(address)
    }
}

impl<I: Into<IpAddr>> From<(I, u16)> for Address {
    fn from(address: (I, u16)) -> Address {
        Address::Ip(address.into())
    }
}

/// Layout: a byte 4 or 6 and the IP address, or a byte 0 and the host name; then the port in
/// network order. Or a byte 1 and the path of a Unix socket.
impl Encode for Address {
    fn encode(&self, out: &mut FrameWriter) {
        match self {
            Address::Ip(SocketAddr::V4(v4)) => {
                out.u8(4);
                out.put(&v4.ip().octets());
            }
            Address::Ip(SocketAddr::V6(v6)) => {
                out.u8(6);
                out.put(&v6.ip().octets());
            }
            Address::Host(host) => {
                out.u8(0);
                out.string(&host.name);
            }
            Address::Unix(path) => {
                out.u8(1);
                out.string(path.as_str());
            }
        }
        if let Some(port) = self.port() {
            out.put(&port.to_be_bytes());
        }
    }
}

impl Decode for Address {
    fn decode(r: &mut Reader) -> Result<Address, WireError> {
        let invalid = r.invalid("kind of an address");
        let ip = match r.u8()? {
            4 => IpAddr::from(r.u32_fixed()?.to_le_bytes()),
            6 => IpAddr::from(r.id()?),
            0 => {
                let invalid = r.invalid("host name");
                let name = r.string("host name", HOST_BYTES_MAX)?;
                return HostAddress::new(&name, port(r)?).map(Address::Host).map_err(|_| invalid);
            }
            1 => {
                let invalid = r.invalid("path of a socket");
                let path = r.string("path of a socket", SOCKET_PATH_BYTES_MAX)?;
                return path.parse().map(Address::Unix).map_err(|_| invalid);
            }
            _ => return Err(invalid),
        };
        Ok(Address::Ip(SocketAddr::new(ip, port(r)?)))
    }
}

fn port(r: &mut Reader) -> Result<u16, WireError> {
    Ok(u16::from_be_bytes([r.u8()?, r.u8()?]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_ip_addresses_and_host_names_with_ports() {
        for text in
            ["10.0.0.1:80", "[::1]:4780", "a:1", "jobs-1.example.:4780", "a_b.c3:65535", "unix:/a"]
        {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        let host = |text: &str| matches!(text.parse(), Ok(Address::Host(_)));
        assert!(host("10.0.0.1x:80") && !host("10.0.0.1:80"));
    }

    #[test]
    fn mistyped_addresses_are_refused_with_a_helpful_error() {
        for text in ["host", "host:", "host:65536", "", ":"] {
            assert_eq!(text.parse::<Address>(), Err(AddressError::NoPort(text.into())), "{text}");
        }
        let long = "a".repeat(64);
        for host in ["", "10.0.0.999", "a..b", "a b", "ü", "[::1", &long] {
            let parsed = format!("{host}:1").parse::<Address>();
            assert_eq!(parsed, Err(AddressError::BadHost(host.into())), "{host}");
        }
    }
}
