//! The timestamps of a command.

/// A point in time on two clocks. Both are logged with the command; the state reads no clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Now {
    /// Milliseconds of the publisher's monotonic time, which never falls, also over restarts and
    /// reboots. Delays and back-off use it.
    pub mono_ms: u64,
    /// Milliseconds since 1970 by the wall clock.
    pub wall_ms: u64,
}
