//! What bounds readers; what decides is in [`Rules`](crate::Rules).

/// Rows that one page of a listing may pass over, so that a rare match does not stall the queues.
pub(super) const PAGE_ROWS_MAX: u32 = 100_000;
