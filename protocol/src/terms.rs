//! The properties of a publication besides its path.

use twox_hash::XxHash3_64;

use crate::codec::{Decode, Encode, Reader, WireError, number_bytes};
use crate::fields::codes;
use crate::frame::FrameWriter;
use crate::homes::Homes;
use crate::later_fields::LaterFields;
use crate::limits::TERMS_BYTES_MAX;

codes! {
    /// What is published at a path.
    PublicationKind, "publication kind" {
        /// A queue of jobs.
        Queue = 1, "queue";
        /// A live value.
        Value = 2, "value";
    }
}

/// The terms on which a publisher publishes a path, or declares a default. Each path, and each
/// default, has its own.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Terms {
    /// What is published.
    pub kind: PublicationKind,
    /// Bits reserved for later versions; they are stored and relayed unchanged. 0 by default.
    pub flags: u32,
    /// Subscribers of a value try the publishers with the lowest number first. Default 0.
    pub priority: u16,
    /// Among publishers of one priority, this one is chosen in proportion to its weight. 0: only if
    /// there is no other. Default 100.
    pub weight: u16,
    /// The homes that the publisher declares, the same in all of its terms for queues; empty: none.
    pub homes: Homes,
    /// Fields of later versions: digested and relayed unchanged, so that an older replica and a
    /// newer writer agree.
    pub later: LaterFields,
}

impl Default for Terms {
    fn default() -> Terms {
        Terms {
            kind: PublicationKind::Queue,
            flags: 0,
            priority: 0,
            weight: 100,
            homes: Homes::default(),
            later: LaterFields::default(),
        }
    }
}

impl Terms {
    /// XXH3-64 of the terms' fields. The digest of a path includes it.
    pub fn digest(&self) -> u64 {
        let mut out = FrameWriter::new();
        self.fields(&mut out);
        XxHash3_64::oneshot(&out.into_body())
    }

    fn fields(&self, out: &mut FrameWriter) {
        self.kind.encode(out);
        out.u64(u64::from(self.flags));
        out.u64(u64::from(self.priority));
        out.u64(u64::from(self.weight));
        self.homes.encode(out);
        self.later.encode(out);
    }

    /// The size of the record in bytes, without its length; at most [`TERMS_BYTES_MAX`].
    pub fn bytes(&self) -> usize {
        self.known_bytes() + self.later.as_bytes().len()
    }

    /// The size in bytes of the fields that this version knows, in their shortest form.
    fn known_bytes(&self) -> usize {
        let numbers = [u64::from(self.flags), u64::from(self.priority), u64::from(self.weight)];
        1 + numbers.map(number_bytes).into_iter().sum::<usize>() + self.homes.bytes()
    }
}

/// A record, so that later versions can add fields.
impl Encode for Terms {
    fn encode(&self, out: &mut FrameWriter) {
        out.record(|out| self.fields(out));
    }
}

impl Decode for Terms {
    fn decode(r: &mut Reader) -> Result<Terms, WireError> {
        r.record_within("bytes of terms", TERMS_BYTES_MAX, |r| {
            let start = r.offset();
            let (kind, flags) = (PublicationKind::decode(r)?, r.u32()?);
            let (priority, weight) = (r.u16()?, r.u16()?);
            let homes = Homes::decode(r)?;
            let (known, padded) =
                (r.offset() - start, r.invalid("number not in its shortest form"));
            let later = LaterFields::decode(r)?;
            let terms = Terms { kind, flags, priority, weight, homes, later };
            // The same terms must have only one encoding, because the digests of both sides must
            // agree.
            if known == terms.known_bytes() { Ok(terms) } else { Err(padded) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn homes(declared: &[(&str, &[&str])]) -> Homes {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let declared = declared.iter().map(|(path, all)| (path.parse().unwrap(), names(all)));
        Homes::new(declared).unwrap()
    }

    #[test]
    fn different_terms_have_different_digests() {
        let plain = Terms::default();
        let others = [
            Terms { kind: PublicationKind::Value, ..plain.clone() },
            Terms { flags: 1, ..plain.clone() },
            Terms { priority: 1, ..plain.clone() },
            Terms { weight: 1, ..plain.clone() },
            Terms { homes: homes(&[("/a", &["a"])]), ..plain.clone() },
            Terms { homes: homes(&[("/a", &["a", "b"])]), ..plain.clone() },
            Terms { homes: homes(&[("/a", &["ab"])]), ..plain.clone() },
            Terms { homes: homes(&[("/aa", &["b"])]), ..plain.clone() },
            Terms { homes: homes(&[("/a", &["a"]), ("/b", &["a"])]), ..plain.clone() },
            Terms { later: LaterFields::new(b"\x01").unwrap(), ..plain.clone() },
        ];
        for (at, one) in others.iter().enumerate() {
            assert_ne!(one.digest(), plain.digest());
            assert!(others[..at].iter().all(|other| other.digest() != one.digest()));
        }
    }

    #[test]
    fn digest_of_the_default_terms_never_changes() {
        assert_eq!(format!("{:016x}", Terms::default().digest()), "50ecad31ec737582");
    }

    #[test]
    fn terms_over_their_size_limit_are_refused() {
        let decode = |last: usize| {
            let names: Vec<String> = (0..58).map(|n| format!("{n:0100}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let later = LaterFields::new(&vec![1; last]).unwrap();
            let terms = Terms { homes: homes(&[("/a", &names)]), later, ..Terms::default() };
            let mut out = FrameWriter::new();
            terms.encode(&mut out);
            assert_eq!(out.body_len(), 4 + terms.bytes());
            (terms.bytes(), Terms::decode(&mut Reader::new(out.into_body())).map(drop))
        };
        assert_eq!(decode(277), (TERMS_BYTES_MAX, Ok(())));
        assert!(matches!(decode(278), (_, Err(WireError::OverLimit { .. }))));
    }

    #[test]
    fn fields_of_later_versions_are_digested_and_relayed_unchanged() {
        let mut out = FrameWriter::new();
        out.record(|out| {
            Terms::default().fields(out);
            out.put(b"\x80\x01later");
        });
        let raw = out.into_body();
        let terms = Terms::decode(&mut Reader::new(raw.clone())).unwrap();
        assert_eq!(terms.later.as_bytes(), b"\x80\x01later");
        let mut out = FrameWriter::new();
        terms.encode(&mut out);
        assert_eq!(out.into_body(), raw);
        let without = Terms { later: LaterFields::default(), ..terms.clone() };
        assert_ne!(terms.digest(), without.digest());
    }

    #[test]
    fn numbers_not_in_their_shortest_form_are_refused() {
        // Kind, flags 0 in two bytes, priority, weight, no homes.
        let padded = [6, 0, 0, 0, 1, 0x80, 0, 0, 100, 0];
        let error = Terms::decode(&mut Reader::new(padded.to_vec().into())).unwrap_err();
        assert!(matches!(error, WireError::Invalid { .. }), "{error}");
    }
}
