//! A publisher as the directory knows it.

use std::net::SocketAddr;

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::id::{Epoch, PublisherId};
use crate::limits::{ADDRESSES_MAX, NAME_BYTES_MAX};

/// Who a publisher is and where it listens: what the resolver tells of it, and what `Producer::to_publishers` takes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PublisherInfo {
    /// Its id, as long as its data directory lives.
    pub id: PublisherId,
    /// Its start; a higher one replaces a lower one.
    pub epoch: Epoch,
    /// Its name, as operators gave it: 1 to 128 bytes. Two publishers may have the same.
    pub name: String,
    /// Where it listens, best first. At least one, at most 16.
    pub addresses: Vec<SocketAddr>,
}

impl Encode for PublisherInfo {
    fn encode(&self, out: &mut FrameWriter) {
        out.record(|out| {
            self.id.encode(out);
            self.epoch.encode(out);
            out.string(&self.name);
            self.addresses.encode(out);
        });
    }
}

impl Decode for PublisherInfo {
    fn decode(r: &mut Reader) -> Result<PublisherInfo, WireError> {
        r.record(|r| {
            let id = PublisherId::decode(r)?;
            let epoch = Epoch::decode(r)?;
            let name = r.string("publisher name", NAME_BYTES_MAX)?;
            let none = r.invalid("publisher without an address");
            let addresses: Vec<SocketAddr> = r.list("publisher addresses", ADDRESSES_MAX)?;
            if addresses.is_empty() {
                return Err(none);
            }
            Ok(PublisherInfo { id, epoch, name, addresses })
        })
    }
}

/// IP version (4 or 6), address, port (fixed, big-endian as in an address).
impl Encode for SocketAddr {
    fn encode(&self, out: &mut FrameWriter) {
        match self {
            SocketAddr::V4(v4) => {
                out.u8(4);
                out.put(&v4.ip().octets());
            }
            SocketAddr::V6(v6) => {
                out.u8(6);
                out.put(&v6.ip().octets());
            }
        }
        out.put(&self.port().to_be_bytes());
    }
}

impl Decode for SocketAddr {
    fn decode(r: &mut Reader) -> Result<SocketAddr, WireError> {
        let invalid = r.invalid("IP version");
        let ip = match r.u8()? {
            4 => std::net::IpAddr::from(r.u32_fixed()?.to_le_bytes()),
            6 => std::net::IpAddr::from(r.id()?),
            _ => return Err(invalid),
        };
        let port = u16::from_be_bytes([r.u8()?, r.u8()?]);
        Ok(SocketAddr::new(ip, port))
    }
}
