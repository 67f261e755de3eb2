//! The bytes of every message, checked in. A difference is a change of the protocol: old clients
//! and old journals would become unreadable. `LONGSHORE_BLESS=1` rewrites the decoded content shown
//! in each vector; write the bytes of a new vector by hand, from `docs/PROTOCOL.md`.

use std::collections::BTreeSet;

use super::vectors::{self, Sample};
use longshore_protocol::messages::{HEARTBEAT, resolver, values, work};

#[test]
fn golden_vectors_round_trip_with_the_content_shown() {
    let bless = std::env::var_os("LONGSHORE_BLESS").is_some();
    for (name, text) in vectors::files() {
        let sample = Sample::decode(&name, vectors::from_text(&text).into()).expect(&name);
        let title = text.lines().next().expect("a title");
        let bytes = if bless { vectors::from_text(&text).into() } else { sample.encode() };
        let again = vectors::to_text(title, &sample.show(), &bytes);
        if bless {
            std::fs::write(vectors::folder().join(format!("{name}.hex")), again).expect("a file");
        } else {
            assert_eq!(text, again, "{name}.hex: the protocol has changed");
        }
    }
}

#[test]
fn every_tag_has_a_vector() {
    let tags: BTreeSet<u8> = vectors::vectors()
        .iter()
        .filter(|(name, _)| ["to-", "from-", "heartbeat"].iter().any(|p| name.starts_with(p)))
        .map(|(_, bytes)| bytes[0])
        .collect();
    let all = [work::tag::ALL, resolver::tag::ALL, values::tag::ALL].concat();
    let expected = [HEARTBEAT].into_iter().chain(all.into_iter().map(|(tag, _)| tag)).collect();
    assert_eq!(tags, expected);
}
