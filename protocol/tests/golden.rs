//! The bytes of every message, checked in. A difference here is a change of the protocol: old clients and old journals
//! would not be understood. `LONGSHORE_BLESS=1` writes the vectors anew.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod shared;

use std::collections::BTreeSet;

use bytes::Bytes;
use shared::{golden, samples};

#[test]
fn every_message_encodes_to_its_golden_bytes() {
    let bless = std::env::var_os("LONGSHORE_BLESS").is_some();
    for (name, says, sample) in samples::all() {
        let file = golden::folder().join(format!("{name}.hex"));
        let text = golden::to_text(&says, &sample.encode());
        if bless {
            std::fs::write(&file, &text).expect("the golden file can be written");
        }
        let kept = std::fs::read_to_string(&file)
            .unwrap_or_else(|_| panic!("{name}.hex is missing; LONGSHORE_BLESS=1 writes it"));
        assert_eq!(kept, text, "{name}.hex: the protocol has changed");
    }
}

#[test]
fn every_golden_vector_decodes_to_its_message() {
    for (name, _, sample) in samples::all() {
        let file = golden::folder().join(format!("{name}.hex"));
        let kept = std::fs::read_to_string(&file).expect("a golden file");
        let decoded = sample.decode(Bytes::from(golden::from_text(&kept)));
        assert_eq!(decoded, Ok(sample), "{name}.hex");
    }
}

#[test]
fn every_golden_vector_belongs_to_a_message() {
    let known: BTreeSet<String> = samples::all().into_iter().map(|(name, ..)| name).collect();
    let kept: BTreeSet<String> = golden::vectors().into_iter().map(|(name, _)| name).collect();
    assert_eq!(kept, known);
}

#[test]
fn every_tag_has_a_vector() {
    use longshore_protocol::messages::{HEARTBEAT, resolver, values, work};
    let tags: BTreeSet<u8> = samples::all()
        .iter()
        .filter(|(name, ..)| ["to-", "from-", "heartbeat"].iter().any(|p| name.starts_with(p)))
        .map(|(_, _, sample)| sample.encode()[0])
        .collect();
    let all = [work::tag::ALL, resolver::tag::ALL, values::tag::ALL].concat();
    let expected = [HEARTBEAT].into_iter().chain(all.into_iter().map(|(tag, _)| tag)).collect();
    assert_eq!(tags, expected);
}
