//! When schedules come due. Pure: the time-zone database is read here, never by the state.
//!
//! [`times`] computes occurrences, [`plan`] decides what becomes of one that has come due.

pub(crate) mod plan;
pub(crate) mod times;
mod zoned;

#[cfg(test)]
mod tests;
