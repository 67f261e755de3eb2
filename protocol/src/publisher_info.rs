//! A publisher as the directory knows it.

use crate::address::Address;
use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::id::{Epoch, PublisherId};
use crate::later_fields::LaterFields;
use crate::limits::{ADDRESSES_MAX, NAME_BYTES_MAX, PUBLISHER_BYTES_MAX};

/// Why a publisher cannot be registered: no replica takes it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PublisherInfoError {
    /// So many addresses.
    #[error("{0} addresses are more than the {ADDRESSES_MAX} that a publisher may advertise")]
    TooManyAddresses(usize),
    /// Its name and its addresses take so many bytes.
    #[error(
        "its name and addresses take {0} bytes and may take {PUBLISHER_BYTES_MAX}; advertise fewer \
         addresses, or shorter host names"
    )]
    TooLong(usize),
}

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

    /// Whether replicas take it.
    pub fn check(&self) -> Result<(), PublisherInfoError> {
        if self.addresses.len() > ADDRESSES_MAX {
            return Err(PublisherInfoError::TooManyAddresses(self.addresses.len()));
        }
        let mut out = FrameWriter::new();
        self.fields(&mut out);
        match out.body_len() {
            0..=PUBLISHER_BYTES_MAX => Ok(()),
            bytes => Err(PublisherInfoError::TooLong(bytes)),
        }
    }

    fn fields(&self, out: &mut FrameWriter) {
        self.id.encode(out);
        self.epoch.encode(out);
        out.string(&self.name);
        self.addresses.encode(out);
        self.later.encode(out);
    }
}

impl Encode for PublisherInfo {
    fn encode(&self, out: &mut FrameWriter) {
        out.record(|out| self.fields(out));
    }
}

impl Decode for PublisherInfo {
    fn decode(r: &mut Reader) -> Result<PublisherInfo, WireError> {
        r.record_within("bytes of a publisher", PUBLISHER_BYTES_MAX, |r| {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_publisher_longer_than_its_limit_is_refused_on_both_sides() {
        let publisher = |more: usize| PublisherInfo {
            later: LaterFields::new(&vec![1; more]).unwrap(),
            ..PublisherInfo::new(PublisherId([1; 16]), Epoch(1), "p".repeat(128), [([1; 4], 1)])
        };
        let decode = |info: &PublisherInfo| {
            let mut out = FrameWriter::new();
            info.encode(&mut out);
            PublisherInfo::decode(&mut Reader::new(out.into_body()))
        };
        let known = PUBLISHER_BYTES_MAX - (0..).find(|&n| publisher(n).check().is_err()).unwrap();
        let most = publisher(PUBLISHER_BYTES_MAX - known - 1);
        assert_eq!(decode(&most).as_ref(), Ok(&most));
        let over = publisher(PUBLISHER_BYTES_MAX - known);
        assert_eq!(over.check(), Err(PublisherInfoError::TooLong(PUBLISHER_BYTES_MAX + 1)));
        assert!(matches!(decode(&over), Err(WireError::OverLimit { .. })));
    }
}
