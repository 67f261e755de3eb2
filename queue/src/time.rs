//! Time, as commands carry it.

/// A point in time, twice. Both come with the command that they are logged with; the state reads no
/// clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Now {
    /// Milliseconds of the publisher's own life: never falls, over restarts and reboots. Delays and
    /// back-off count in it.
    pub mono_ms: u64,
    /// Milliseconds since 1970, as the clock says.
    pub wall_ms: u64,
}
