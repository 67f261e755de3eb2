//! A whole store on a faulty disk: clients get responses, the disk fails, and the next start is
//! compared with what the responses promised.
//!
//! - [`harness`] is the publisher, its clients and its disk in virtual time, of one seed;
//!   [`session`] is a client, [`workload`] the actions of producers and workers, [`tools`] those of
//!   tools, [`responses`] what all of them receive, [`schedules`] the owner of
//!   schedules. [`feed_reader`] follows the feed.
//! - [`client_model`] records what responses promised; [`reference`] is the state that all commands
//!   give. Each start is compared with both.
//! - [`log`] is the journal without its threads. [`phase`] names what the publisher was doing when
//!   the disk failed, and [`command_coverage`] counts effective commands: a simulation fails if a
//!   phase never had a fault, or a kind of command was never executed.
//!
//! `LONGSHORE_POWER_CUTS`, `LONGSHORE_BIT_FLIPS`, `LONGSHORE_SHORTAGES`, `LONGSHORE_WORKED_OFF`,
//! `LONGSHORE_UNSYNCED_CUTS`, `LONGSHORE_LOSSES` and `LONGSHORE_ROTTEN_SNAPSHOTS` set the numbers
//! of cases beyond the defaults.

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
mod schedules;
mod session;
mod shortage;
mod tool_requests;
mod tools;
mod unsynced;
mod workload;

use longshore_protocol::{Durability, PublisherId};

use super::{JournalOptions, SEGMENT_BYTES_MIN};

const DIR: &str = "/data";
/// So short that every run uses many segments.
const SEGMENT_BYTES: u64 = 64 * 1024;

fn options() -> JournalOptions {
    JournalOptions {
        segment_bytes: SEGMENT_BYTES,
        durability: Durability::Fsync,
        accept_loss: false,
        new_publisher: PublisherId([9; 16]),
        new_journal: PublisherId([8; 16]),
    }
}

/// Options of one seed: every third has segments longer than the zeros that a commit writes ahead
/// (256 KiB), so that its zeros end within the segment.
fn options_of(seed: u64) -> JournalOptions {
    let segment_bytes = if seed.is_multiple_of(3) { SEGMENT_BYTES_MIN } else { SEGMENT_BYTES };
    JournalOptions { segment_bytes, ..options() }
}

/// A number from the environment, or the default.
fn env_or(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|number| number.parse().ok()).unwrap_or(otherwise)
}
