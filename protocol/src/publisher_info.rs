//! The description of a publisher in the directory.

use crate::address::Address;
use crate::codec::{Encode, Reader, WireError};
use crate::fields::fields;
use crate::frame::FrameWriter;
use crate::id::{Epoch, PublisherId};
use crate::later_fields::LaterFields;
use crate::limits::{ADDRESSES_MAX, NAME_BYTES_MAX, PUBLISHER_BYTES_MAX};
use crate::tls_name::{TlsName, optional};

/// Bytes of a record's length field.
const RECORD_LENGTH_BYTES: usize = 4;

/// Why no replica would accept the registration of a publisher.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PublisherInfoError {
    /// It has too many addresses: this many.
    #[error("{0} addresses are more than the {ADDRESSES_MAX} that a publisher may advertise")]
    TooManyAddresses(usize),
    /// Its names and its addresses are too long: this many bytes.
    #[error(
        "its names and addresses take {0} bytes and may take {PUBLISHER_BYTES_MAX}; advertise \
         fewer addresses, or shorter host names"
    )]
    TooLong(usize),
}

fields! {
    /// The identity of a publisher and its addresses: sent by the resolver, and used by
    /// `Producer::to_publishers`.
    #[derive(Hash)]
    pub struct PublisherInfo as record("bytes of a publisher", PUBLISHER_BYTES_MAX) {
        /// Its id, constant for the life of its data directory.
        pub id: PublisherId,
        /// Its start counter; a higher epoch replaces a lower one.
        pub epoch: Epoch,
        /// Its name, chosen by operators: 1 to 128 bytes. Two publishers may have the same.
        pub name: String = at_most("publisher name", NAME_BYTES_MAX),
        /// The addresses at which it listens, best first. At least one, at most 16.
        pub addresses: Vec<Address> = read_by(addresses),
        /// The name that its certificate has; without one it has those that are dialled.
        pub tls_name: Option<TlsName> = with(optional),
        /// Fields of later versions, relayed byte for byte.
        pub later: LaterFields,
    }
}

impl PublisherInfo {
    /// A publisher without a name for its certificate, and without fields of later versions.
    pub fn new(
        id: PublisherId,
        epoch: Epoch,
        name: impl Into<String>,
        addresses: impl IntoIterator<Item = impl Into<Address>>,
    ) -> PublisherInfo {
        let addresses = addresses.into_iter().map(Into::into).collect();
        let (name, later) = (name.into(), LaterFields::default());
        PublisherInfo { id, epoch, name, addresses, tls_name: None, later }
    }

    /// Checks that replicas would accept it.
    pub fn check(&self) -> Result<(), PublisherInfoError> {
        if self.addresses.len() > ADDRESSES_MAX {
            return Err(PublisherInfoError::TooManyAddresses(self.addresses.len()));
        }
        let mut out = FrameWriter::new();
        self.encode(&mut out);
        match out.body_len() - RECORD_LENGTH_BYTES {
            0..=PUBLISHER_BYTES_MAX => Ok(()),
            bytes => Err(PublisherInfoError::TooLong(bytes)),
        }
    }
}

fn addresses(r: &mut Reader) -> Result<Vec<Address>, WireError> {
    r.non_empty_list("publisher without an address", "publisher addresses", ADDRESSES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Decode;

    #[test]
    fn a_publisher_over_its_limit_is_refused_by_both_sides() {
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
