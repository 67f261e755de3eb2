//! Which replicas have failed of late. A batch counts for itself who has failed it; watches have
//! nothing that ends, and would go back to a bad replica at every turn.

use std::time::{Duration, Instant};

use super::Replica;

/// The longest that a replica is passed over, in turns: one that comes back is of use again within
/// that many `reader_ttl`s.
const TURNS_MAX: u32 = 8;

/// What is remembered of every replica.
#[derive(Debug)]
pub(super) struct Memory {
    replicas: Vec<Standing>,
}

#[derive(Clone, Default, Debug)]
struct Standing {
    /// Failures since it answered last.
    failures: u32,
    /// Until when it is doubted.
    until: Option<Instant>,
}

impl Memory {
    /// Of so many replicas nothing is known.
    pub(super) fn of(replicas: usize) -> Memory {
        Memory { replicas: vec![Standing::default(); replicas] }
    }

    /// It failed: passed over for two turns, then four, then eight.
    pub(super) fn failed(&mut self, replica: Replica, now: Instant, turn: Duration) {
        let standing = &mut self.replicas[replica];
        standing.failures = standing.failures.saturating_add(1);
        let turns = 1_u32.checked_shl(standing.failures).unwrap_or(TURNS_MAX).min(TURNS_MAX);
        standing.until = Some(now + turn * turns);
    }

    /// It is at work.
    pub(super) fn answered(&mut self, replica: Replica) {
        self.replicas[replica] = Standing::default();
    }

    /// Whether others are to be preferred.
    pub(super) fn doubts(&self, replica: Replica, now: Instant) -> bool {
        self.replicas[replica].until.is_some_and(|until| now < until)
    }
}
