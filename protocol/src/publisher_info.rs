//! A publisher as the directory knows it.

use crate::address::Address;
use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::id::{Epoch, PublisherId};
use crate::later_fields::LaterFields;
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
    pub addresses: Vec<Address>,
    /// Fields of later versions, relayed byte for byte.
    pub later: LaterFields,
}

impl PublisherInfo {
    /// A publisher as this version knows it.
    pub fn new(
        id: PublisherId,
        epoch: Epoch,
        name: impl Into<String>,
        addresses: impl IntoIterator<Item = impl Into<Address>>,
    ) -> PublisherInfo {
        let addresses = addresses.into_iter().map(Into::into).collect();
        PublisherInfo { id, epoch, name: name.into(), addresses, later: LaterFields::default() }
    }
}

impl Encode for PublisherInfo {
    fn encode(&self, out: &mut FrameWriter) {
        out.record(|out| {
            self.id.encode(out);
            self.epoch.encode(out);
            out.string(&self.name);
            self.addresses.encode(out);
            self.later.encode(out);
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
            let addresses: Vec<Address> = r.list("publisher addresses", ADDRESSES_MAX)?;
            if addresses.is_empty() {
                return Err(none);
            }
            let later = LaterFields::decode(r)?;
            Ok(PublisherInfo { id, epoch, name, addresses, later })
        })
    }
}
