//! Idempotency keys of the model.

use longshore_protocol::{EnqueueOutcome, Entry, JobId, Path, Refusal};

use super::driver::Harness;
use super::naive::Model;

/// What each key takes of the budget.
const KEY_BYTES: u64 = 160;

/// A key of a queue, and its job.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Key {
    pub(super) path: Path,
    pub(super) text: String,
    pub(super) job: JobId,
    pub(super) payload: (u32, usize),
    pub(super) ends_at: u64,
}

impl Harness {
    /// Both have the same keys, of the same jobs, until the same time.
    pub(super) fn compare_keys(&self) {
        let held = self.state.keys.table().entries().iter().map(|(_, held)| Key {
            path: self.state.queues[held.queue as usize].path.clone(),
            text: String::from_utf8(held.text().to_vec()).expect("a text"),
            job: held.job,
            payload: (held.payload.0, held.payload.1 as usize),
            ends_at: held.ends_at,
        });
        let (mut held, mut expected) = (held.collect::<Vec<_>>(), self.model.keys.clone());
        held.sort_unstable();
        expected.sort_unstable();
        assert_eq!(held, expected);
    }
}

impl Model {
    /// The answer to a job whose key its queue has.
    pub(super) fn known_by_key(&self, path: &Path, entry: &Entry) -> Option<EnqueueOutcome> {
        let key = self.key_of(path, entry).filter(|key| key.ends_at > self.now.wall_ms)?;
        Some(if key.payload != (entry.crc, entry.payload.len()) {
            EnqueueOutcome::Refused(Refusal::KeyConflict)
        } else if key.job == entry.id {
            EnqueueOutcome::Existing
        } else {
            EnqueueOutcome::ExistingKey(key.job)
        })
    }

    /// True if the job has a key for which there is no room. A key that has ended makes room for
    /// its successor alone.
    pub(super) fn has_key_too_many(&self, path: &Path, entry: &Entry) -> bool {
        let is_new = entry.idempotency().is_some() && self.key_of(path, entry).is_none();
        let order = entry.keys.as_ref().and_then(|keys| keys.order.as_ref());
        let (orders, known) = (self.order_keys(path, order), self.order_keys(path, None));
        let fair = entry.keys.as_ref().and_then(|keys| keys.fair.as_ref());
        let fair = fair.map(|fair| (entry.options.priority, &fair.key));
        let (fair, known_fair) = (self.fair_keys(path, fair), self.fair_keys(path, None));
        let new = u64::from(is_new) + u64::from(self.adds_unique(path, entry));
        let keys = (self.keys.len() + self.unique_keys().len()) as u64;
        new > 0 && (keys + new) * KEY_BYTES > self.limits.key_bytes
            || orders > known && orders as u64 > self.limits.order_keys
            || fair > known_fair && fair as u64 > self.limits.fair_keys
    }

    /// The job was created: its key is its own.
    pub(super) fn hold_key(&mut self, path: &Path, entry: &Entry) {
        let Some(idempotency) = entry.idempotency() else { return };
        self.keys.retain(|key| (&key.path, &key.text) != (path, &idempotency.key));
        self.keys.push(Key {
            path: path.clone(),
            text: idempotency.key.clone(),
            job: entry.id,
            payload: (entry.crc, entry.payload.len()),
            ends_at: self.now.wall_ms + idempotency.for_ms.unwrap_or(self.limits.idempotency_ms),
        });
    }

    pub(super) fn end_keys(&mut self) {
        let now = self.now.wall_ms;
        self.keys.retain(|key| key.ends_at > now);
    }

    fn key_of(&self, path: &Path, entry: &Entry) -> Option<&Key> {
        let idempotency = entry.idempotency()?;
        self.keys.iter().find(|key| (&key.path, &key.text) == (path, &idempotency.key))
    }
}
