//! Detects handlers that block their runtime. Pure: it counts ticks, so a pause of the whole
//! process does not look like it.

/// The handlers' runtime is blocked if it has not run for so many ticks of the links' thread: 2 s.
pub(crate) const BLOCKED_TICKS: u32 = 8;

/// Ticks of the links' thread since the last one of the handlers' runtime.
#[derive(Debug, Default)]
pub(crate) struct BlockedDetector {
    missed: u32,
}

impl BlockedDetector {
    /// Returns true when the handlers' runtime becomes blocked.
    pub(crate) fn links_tick(&mut self) -> bool {
        self.missed = self.missed.saturating_add(1);
        self.missed == BLOCKED_TICKS
    }

    pub(crate) fn handlers_tick(&mut self) {
        self.missed = 0;
    }

    pub(crate) fn are_blocked(&self) -> bool {
        self.missed >= BLOCKED_TICKS
    }
}
