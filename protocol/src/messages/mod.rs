//! The messages, by kind of link.

pub mod resolver;
pub mod values;
pub mod work;

/// The only message of every link: shows that the sender is alive. Its body is empty, or one LEB128
/// number: the age in milliseconds of the sender's oldest uncommitted command.
pub const HEARTBEAT: u8 = 1;
