//! A whole store on a faulty disk: its clients are told things, the disk does its worst, and what
//! the publisher finds at its next start is held against what was told.
//!
//! - [`harness`] is the publisher, its clients and its disk in virtual time, of one seed; [`session`]
//!   is a client, [`workload`] is what producers and workers do, [`tools`] what tools do,
//!   [`responses`] what all of them receive. [`feed_reader`] follows the feed.
//! - [`client_model`] keeps what was promised; [`reference`] keeps what every command comes to. Both are
//!   asked at each start.
//! - [`log`] is the journal without its threads. [`phase`] says what the publisher was doing when
//!   the disk failed, and [`command_coverage`] which commands came to something: a simulation in which a
//!   phase never met its fault, or in which a kind of command was never executed, has failed.
//!
//! `LONGSHORE_POWER_CUTS`, `LONGSHORE_BIT_FLIPS`, `LONGSHORE_SHORTAGES`, `LONGSHORE_WORKED_OFF`,
//! `LONGSHORE_UNSYNCED_CUTS` and `LONGSHORE_LOSSES` ask for more than a run of the tests has; all
//! are numbers.

mod accepted_loss;
mod client_model;
mod command_coverage;
mod damage;
mod failing_calls;
mod feed_reader;
mod full_disk;
mod harness;
mod log;
mod phase;
mod power;
mod reference;
mod responses;
mod session;
mod shortage;
mod tool_requests;
mod tools;
mod unsynced;
mod workload;

use longshore_protocol::{Durability, PublisherId};

use super::{JournalOptions, SEGMENT_BYTES_MIN};

const DIR: &str = "/data";
/// So short that every run goes over many.
const SEGMENT_BYTES: u64 = 64 * 1024;

fn options() -> JournalOptions {
    JournalOptions {
        segment_bytes: SEGMENT_BYTES,
        durability: Durability::Fsync,
        accept_loss: false,
        new_publisher: PublisherId([9; 16]),
    }
}

/// Options of one seed: every third has segments longer than the zeros that a commit writes ahead
/// (256 KiB), and so an end of its zeros within the segment.
fn options_of(seed: u64) -> JournalOptions {
    let segment_bytes = if seed.is_multiple_of(3) { SEGMENT_BYTES_MIN } else { SEGMENT_BYTES };
    JournalOptions { segment_bytes, ..options() }
}

/// A number of the environment, or that many.
fn env_or(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|number| number.parse().ok()).unwrap_or(otherwise)
}
