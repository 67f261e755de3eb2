//! Any content of every type.

mod greetings;
mod replicas;
mod work;

pub(crate) use greetings::*;
pub(crate) use replicas::*;
pub(crate) use work::*;
