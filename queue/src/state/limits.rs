//! Limits of readers; those of commands are in [`Rules`](crate::Rules).

/// Rows that one page of a listing may skip, so that a rare match does not stall the queues.
pub(super) const PAGE_ROWS_MAX: u32 = 100_000;
