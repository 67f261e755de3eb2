//! The newest updates of a `DropOldest` subscription whose reader has no room for them, in order.

use std::collections::VecDeque;

use longshore_protocol::Value;

use super::retained::RetainedValue;

/// Most updates in the backlog of one subscription.
pub(crate) const BACKLOG_UPDATES_MAX: usize = 1_024;
/// Most bytes in all backlogs of one link. Each subscription may keep its newest update above this
/// limit.
pub(crate) const BACKLOG_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The backlog of one subscription. `total` is the byte count of the whole link.
#[derive(Debug, Default)]
pub(crate) struct Backlog(VecDeque<(RetainedValue, usize)>);

impl Backlog {
    /// Appends an update that arrived in a frame of `frame_bytes`, and drops the oldest updates
    /// that exceed a limit.
    pub(crate) fn push(&mut self, value: &Value, frame_bytes: usize, total: &mut usize) {
        let mut retained = RetainedValue::default();
        retained.store(value, frame_bytes);
        let bytes = size_of::<(RetainedValue, usize)>() + value.memory_bytes();
        *total += bytes;
        self.0.push_back((retained, bytes));
        while self.0.len() > 1
            && (self.0.len() > BACKLOG_UPDATES_MAX || *total > BACKLOG_BYTES_MAX)
            && let Some((_, bytes)) = self.0.pop_front()
        {
            *total -= bytes;
        }
    }

    /// Takes all updates, oldest first.
    pub(crate) fn take(&mut self, total: &mut usize) -> impl Iterator<Item = Value> + use<> {
        let taken = std::mem::take(&mut self.0);
        *total -= taken.iter().map(|(_, bytes)| bytes).sum::<usize>();
        taken.into_iter().filter_map(|(retained, _)| retained.value())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backlog_keeps_the_newest_updates_within_both_limits() {
        let (mut total, mut one, mut other) = (0, Backlog::default(), Backlog::default());
        for n in 0..5_000u64 {
            one.push(&Value::U64(n), 0, &mut total);
        }
        let left: Vec<Value> = one.take(&mut total).collect();
        assert_eq!(left, (5_000 - 1_024..5_000).map(Value::U64).collect::<Vec<_>>());
        assert_eq!(total, 0);

        let large = Value::from(&[7u8; 512 * 1024][..]);
        for _ in 0..200 {
            one.push(&large, 0, &mut total);
        }
        assert!(total <= BACKLOG_BYTES_MAX && total > BACKLOG_BYTES_MAX / 2, "{total}");
        for n in 0..3 {
            other.push(&Value::U64(n), 0, &mut total);
            one.push(&large, 0, &mut total);
        }
        assert_eq!(
            other.take(&mut total).last(),
            Some(Value::U64(2)),
            "each retains its newest update"
        );
        assert_eq!(one.take(&mut total).count(), 127);
        assert_eq!(total, 0);

        // 64 KiB each on the wire.
        let nulls = Value::list(vec![Value::Null; 65_536]);
        for _ in 0..100 {
            one.push(&nulls, 0, &mut total);
        }
        let most = BACKLOG_BYTES_MAX / (65_536 * size_of::<Value>());
        assert_eq!(one.take(&mut total).count(), most, "they count as the memory that they take");
    }
}
