//! Which replicas have failed recently. A batch counts its own failures; watches never end, and
//! would return to a bad replica at every turn.

use std::time::{Duration, Instant};

use super::Replica;

/// The longest time that a replica is skipped, in turns: after it recovers it is used again within
/// that many `reader_ttl`s.
const TURNS_MAX: u32 = 8;

/// The history of every replica.
#[derive(Debug)]
pub(super) struct FailureHistory {
    replicas: Vec<ReplicaRecord>,
}

#[derive(Clone, Default, Debug)]
struct ReplicaRecord {
    /// Failures since its last answer.
    failures: u32,
    /// Until when it is avoided.
    until: Option<Instant>,
}

impl FailureHistory {
    /// A history without failures.
    pub(super) fn of(replicas: usize) -> FailureHistory {
        FailureHistory { replicas: vec![ReplicaRecord::default(); replicas] }
    }

    /// Records a failure: the replica is skipped for two turns, then four, then eight.
    pub(super) fn failed(&mut self, replica: Replica, now: Instant, turn: Duration) {
        let record = &mut self.replicas[replica];
        record.failures = record.failures.saturating_add(1);
        let turns = 1_u32.checked_shl(record.failures).unwrap_or(TURNS_MAX).min(TURNS_MAX);
        record.until = Some(now + turn * turns);
    }

    /// Records an answer.
    pub(super) fn answered(&mut self, replica: Replica) {
        self.replicas[replica] = ReplicaRecord::default();
    }

    /// Whether other replicas are preferred.
    pub(super) fn is_avoided(&self, replica: Replica, now: Instant) -> bool {
        self.replicas[replica].until.is_some_and(|until| now < until)
    }
}
