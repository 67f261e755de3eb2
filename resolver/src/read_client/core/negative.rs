//! Checking negative answers. A replica that a publisher cannot reach does not know its paths:
//! before a batch ends with a path that one replica does not know, the next one is asked, too.
//!
//! The next replica is tried as at the end of a turn: dialled beside the link in use, which it then
//! replaces. Meanwhile the batch waits, and ends with the first answer if there is no other within
//! [`CHECK_WAIT`].

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{ReadCore, Replica, State};
use crate::read_client::answer::Answer;

/// Negative answers within this time after a check begins are final, once it has ended: a client
/// that asks again and again for what does not exist makes a link for each check.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The longest wait for another replica's answer, from when the check begins.
const CHECK_WAIT: Duration = Duration::from_secs(2);

/// The batches whose negative answers are being checked.
#[derive(Default, Debug)]
pub(super) struct NegativeChecks {
    began_at: Option<Instant>,
    /// The batches, and which replica has answered each.
    batches: BTreeMap<u64, Replica>,
}

impl NegativeChecks {
    /// When the batches end with the answers they have.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.began_at.filter(|_| !self.batches.is_empty()).map(|at| at + CHECK_WAIT)
    }

    /// Whether the batch waits for another replica than this.
    pub(super) fn includes(&self, batch: u64, answered_by: Replica) -> bool {
        self.batches.get(&batch) == Some(&answered_by)
    }

    /// The batch has ended.
    pub(super) fn remove(&mut self, batch: u64) {
        self.batches.remove(&batch);
    }
}

impl ReadCore {
    /// Whether the link's answer to a batch, the first one, is checked with the next replica.
    pub(super) fn has_to_check(&self, now: Instant, answer: &Answer) -> bool {
        let is_new = self.negative.began_at.is_none_or(|at| now >= at + CHECK_INTERVAL);
        let is_running = self.negative.deadline().is_some_and(|at| now < at);
        (is_running || is_new && self.has_next(now)) && answer.lacks_a_path()
    }

    /// Checks a batch's answer.
    pub(super) fn check_negative(&mut self, now: Instant, batch: u64) {
        let State::Up(up) = &self.state else { return };
        if self.negative.batches.is_empty() {
            self.negative.began_at = Some(now);
        }
        self.negative.batches.insert(batch, up.replica);
        if self.candidate.is_none() {
            self.try_next(now);
        }
    }

    /// No other replica has answered in time: the first one's answers stand.
    pub(super) fn end_negative_checks(&mut self, now: Instant) {
        for batch in std::mem::take(&mut self.negative.batches).into_keys() {
            self.finish_provisional(batch);
        }
        self.queue_waiting_batches(now);
    }
}
