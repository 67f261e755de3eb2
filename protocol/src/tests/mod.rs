//! Random content of every type, and tests that it survives a round trip through its encoding.

mod arbitrary;
mod round_trip;

pub(crate) use arbitrary::{Arbitrary, Source, answers, running_times, sets};
