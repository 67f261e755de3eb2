//! Counts the elements that a command examines: tests bound it, so that they need no timing. In
//! other builds it costs nothing.

#[cfg(test)]
use std::cell::Cell;

#[cfg(test)]
thread_local! {
    static STEPS: Cell<u64> = const { Cell::new(0) };
}

/// Counts further examined elements.
#[inline]
pub(super) fn count(steps: u64) {
    #[cfg(test)]
    STEPS.set(STEPS.get() + steps);
    let _ = steps;
}

/// The count since the last call.
#[cfg(test)]
pub(super) fn take() -> u64 {
    STEPS.take()
}
