//! The address at which a publisher listens and others dial it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::limits::{ADDRESS_BYTES_MAX, HOST_BYTES_MAX};
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
    /// One of a kind that a later version has. It is relayed unchanged, and never dialled.
    Unknown(UnknownAddress),
}

/// The kinds, each followed by the length of its bytes.
const HOST: u8 = 0;
const SOCKET: u8 = 1;
const IPV4: u8 = 4;
const IPV6: u8 = 6;
/// The bytes of a port.
const PORT_BYTES: usize = 2;

/// An address of an unknown kind, byte for byte.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct UnknownAddress {
    kind: u8,
    bytes: Box<[u8]>,
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
    /// The port, if it has one.
    pub fn port(&self) -> Option<u16> {
        match self {
            Address::Ip(address) => Some(address.port()),
            Address::Host(host) => Some(host.port),
            Address::Unix(_) | Address::Unknown(_) => None,
        }
    }

    /// Returns the IP address, or `None` for another address.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Address::Ip(address) => Some(address.ip()),
            Address::Host(_) | Address::Unix(_) | Address::Unknown(_) => None,
        }
    }

    /// The kind, and the length of the bytes that follow it.
    fn header(&self) -> (u8, usize) {
        match self {
            Address::Ip(SocketAddr::V4(_)) => (IPV4, 4 + PORT_BYTES),
            Address::Ip(SocketAddr::V6(_)) => (IPV6, 16 + PORT_BYTES),
            Address::Host(host) => (HOST, host.name.len() + PORT_BYTES),
            Address::Unix(path) => (SOCKET, path.as_str().len()),
            Address::Unknown(unknown) => (unknown.kind, unknown.bytes.len()),
        }
    }

    /// At most the bytes of its encoding.
    pub fn encoded_bytes_max(&self) -> usize {
        const KIND_AND_LENGTH_BYTES_MAX: usize = 1 + 2;
        KIND_AND_LENGTH_BYTES_MAX + self.header().1
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
            Address::Unknown(unknown) => write!(f, "an address of kind {}", unknown.kind),
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

/// Layout: a byte for the kind, and the length of what follows: the IP address, or the host name,
/// and the port, in network order; or the path of a Unix socket.
impl Encode for Address {
    fn encode(&self, out: &mut FrameWriter) {
        let (kind, length) = self.header();
        out.u8(kind);
        out.u64(length as u64);
        match self {
            Address::Ip(SocketAddr::V4(v4)) => out.put(&v4.ip().octets()),
            Address::Ip(SocketAddr::V6(v6)) => out.put(&v6.ip().octets()),
            Address::Host(host) => out.put(host.name.as_bytes()),
            Address::Unix(path) => out.put(path.as_str().as_bytes()),
            Address::Unknown(unknown) => out.put(&unknown.bytes),
        }
        if let Some(port) = self.port() {
            out.put(&port.to_be_bytes());
        }
    }
}

impl Decode for Address {
    fn decode(r: &mut Reader) -> Result<Address, WireError> {
        let kind = r.u8()?;
        let invalid = r.invalid(match kind {
            HOST => "host name",
            SOCKET => "path of a socket",
            _ => "IP address",
        });
        let bytes = r.bytes("bytes of an address", ADDRESS_BYTES_MAX)?;
        let address = match kind {
            HOST | IPV4 | IPV6 => with_port(kind, &bytes),
            SOCKET => text(&bytes).and_then(|path| path.parse().ok()).map(Address::Unix),
            _ => Some(Address::Unknown(UnknownAddress { kind, bytes: bytes[..].into() })),
        };
        address.ok_or(invalid)
    }
}

fn with_port(kind: u8, bytes: &[u8]) -> Option<Address> {
    let (address, port) = bytes.split_last_chunk::<PORT_BYTES>()?;
    let port = u16::from_be_bytes(*port);
    let ip = match kind {
        HOST => return HostAddress::new(text(address)?, port).ok().map(Address::Host),
        IPV4 => IpAddr::from(<[u8; 4]>::try_from(address).ok()?),
        _ => IpAddr::from(<[u8; 16]>::try_from(address).ok()?),
    };
    Some(Address::Ip(SocketAddr::new(ip, port)))
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Bounded as _;

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

    #[test]
    fn an_address_of_an_unknown_kind_spoils_no_other_and_is_relayed() {
        let read = |bytes: &[u8]| Vec::<Address>::read(&mut reader(bytes), "addresses", 9);
        let wire = [2, 9, 3, 0xff, 0, 0xee, 4, 6, 127, 0, 0, 1, 0x12, 0xac];
        let addresses = read(&wire).unwrap();
        assert_eq!(addresses[1], Address::from(([127, 0, 0, 1], 4780)));
        assert_eq!(addresses[0].to_string(), "an address of kind 9");
        let mut out = FrameWriter::new();
        addresses.encode(&mut out);
        assert_eq!(out.into_body()[..], wire);
        // A known kind of another length is no later version.
        for wrong in [&[1, 4, 5, 127, 0, 0, 1, 1][..], &[1, 6, 1, 0], &[1, 0, 2, 1, 1], &[1, 1, 0]]
        {
            assert!(matches!(read(wrong), Err(WireError::Invalid { .. })), "{wrong:?}");
        }
        let long = [&[1, 9, 0x80, 2][..], &[0; 256]].concat();
        assert!(matches!(read(&long), Err(WireError::OverLimit { .. })));
    }

    fn reader(bytes: &[u8]) -> Reader {
        Reader::new(bytes.to_vec().into())
    }
}
