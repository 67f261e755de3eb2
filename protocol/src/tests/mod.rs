//! Any content of every type, and that it comes back from its bytes.

mod arbitrary;
mod round_trip;

pub(crate) use arbitrary::{Arbitrary, Source, answers, running_times, sets};
