//! How many things a command looks at: tests bound it, so that nobody has to measure time.
//! Elsewhere it costs nothing.

#[cfg(test)]
use std::cell::Cell;

#[cfg(test)]
thread_local! {
    static STEPS: Cell<u64> = const { Cell::new(0) };
}

/// So many more were looked at.
#[inline]
pub(super) fn count(steps: u64) {
    #[cfg(test)]
    STEPS.set(STEPS.get() + steps);
    let _ = steps;
}

/// How many there were since the last call.
#[cfg(test)]
pub(super) fn taken() -> u64 {
    STEPS.take()
}
