//! The messages, by the link they travel on.

pub mod resolver;
pub mod values;
pub mod work;

/// The one message of every link: shows that the sender lives. Its body is empty, or one LEB128
/// number: the age in milliseconds of the sender's oldest uncommitted command.
pub const HEARTBEAT: u8 = 1;
