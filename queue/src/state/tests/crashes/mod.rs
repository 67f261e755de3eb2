//! What each crash must leave: the crash points by their numbers.

mod delivering;
mod losing;
mod meanwhile;
mod producing;
mod settling;

const HOUR_MS: u64 = 60 * 60 * 1_000;
