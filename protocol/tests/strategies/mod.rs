//! Any content of every type.

mod greetings;
mod replicas;
mod values;
mod work;

pub(crate) use greetings::*;
pub(crate) use replicas::*;
pub(crate) use values::*;
pub(crate) use work::*;
