//! Writes of one link: those to send, and those that wait for an answer. Writes are independent:
//! none waits for another.

use std::collections::VecDeque;
use std::time::Duration;

use hashbrown::HashMap;
use longshore_protocol::limits::VALUE_WRITES_OPEN_MAX;
use longshore_protocol::messages::values::{WriteRefused, WriteValue, Written};
use longshore_protocol::{Value, ValueError};
use tokio::sync::oneshot;

use super::subscriber::SubscribeError;

/// Most bytes of unsent writes of one link. An empty queue accepts any write.
pub const WRITE_QUEUE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The approximate size of a write without its value, in bytes.
const WRITE_BYTES: usize = 32;

/// Receives the answer to a write.
pub(crate) type AnswerSender = oneshot::Sender<Result<Value, WriteError>>;

/// Why a write was not made, or why its outcome is unknown.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WriteError {
    /// The subscription is not alive: nothing was sent. A durable one may recover: retry, or use
    /// `write_within`.
    #[error("the subscription is dead: nothing was written")]
    Dead,
    /// The link's queue is full (4 MiB unsent, or 1,024 writes without an answer): nothing was
    /// sent. Retry later.
    #[error(
        "the link's write queue is full ({WRITE_QUEUE_BYTES_MAX} bytes unsent, or \
         {VALUE_WRITES_OPEN_MAX} writes without an answer): nothing was written"
    )]
    Full,
    /// The value does not fit into a frame: nothing was sent. A retry fails again.
    #[error("{0}")]
    Value(#[from] ValueError),
    /// The publisher refused the write. Its `code` (`protocol::messages::values::WriteRefusal`)
    /// gives the reason, and whether the program may have received it nevertheless.
    #[error("{0}")]
    Refused(WriteRefused),
    /// The subscription for a single write failed: nothing was sent.
    #[error("not written: {0}")]
    Subscribe(#[from] SubscribeError),
    /// No answer arrived in time: the program may or may not have received the write. Retry only
    /// idempotent writes.
    #[error("no answer to the write within {after:?}; its outcome is unknown")]
    TimedOut {
        /// The time limit.
        after: Duration,
    },
    /// The link was lost before the answer: the program may or may not have received the write.
    /// Retry only idempotent writes.
    #[error("the outcome of the write is unknown: {0}")]
    Unknown(String),
}

/// The writes of one link.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    unsent: VecDeque<WriteValue>,
    unsent_bytes: usize,
    open: HashMap<u32, AnswerSender>,
    next: u32,
}

impl Writes {
    /// Queues a write to a subscription.
    pub(crate) fn push(
        &mut self,
        subscription: u32,
        value: Value,
        answer: Option<(AnswerSender, Duration)>,
    ) -> Result<(), WriteError> {
        let bytes = value.encoded_len()? + WRITE_BYTES;
        if answer.is_some() && self.open.len() >= VALUE_WRITES_OPEN_MAX {
            // Callers that stopped waiting free their slot.
            self.open.retain(|_, answer| !answer.is_closed());
        }
        let full = !self.unsent.is_empty() && self.unsent_bytes + bytes > WRITE_QUEUE_BYTES_MAX;
        if full || (answer.is_some() && self.open.len() >= VALUE_WRITES_OPEN_MAX) {
            return Err(WriteError::Full);
        }
        while self.open.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let request = self.next;
        self.next = self.next.wrapping_add(1);
        let receipt = answer.is_some();
        let mut deadline_ms = 0;
        if let Some((answer, deadline)) = answer {
            deadline_ms = u32::try_from(deadline.as_millis()).unwrap_or(u32::MAX).max(1);
            self.open.insert(request, answer);
        }
        self.unsent_bytes += bytes;
        self.unsent.push_back(WriteValue { request, subscription, receipt, deadline_ms, value });
        Ok(())
    }

    /// The next write to send.
    pub(crate) fn take(&mut self) -> Option<WriteValue> {
        let write = self.unsent.pop_front()?;
        let bytes = write.value.encoded_len().unwrap_or(0) + WRITE_BYTES;
        self.unsent_bytes = self.unsent_bytes.saturating_sub(bytes);
        Some(write)
    }

    /// The subscription ended: its unsent writes fail with `Dead`.
    pub(crate) fn subscription_ended(&mut self, subscription: u32) {
        if self.unsent.iter().all(|write| write.subscription != subscription) {
            return;
        }
        for write in std::mem::take(&mut self.unsent) {
            if write.subscription != subscription {
                self.unsent.push_back(write);
                continue;
            }
            let bytes = write.value.encoded_len().unwrap_or(0) + WRITE_BYTES;
            self.unsent_bytes = self.unsent_bytes.saturating_sub(bytes);
            if let Some(answer) = self.open.remove(&write.request) {
                let _ = answer.send(Err(WriteError::Dead));
            }
        }
    }

    /// Handles the publisher's answer. An answer without a waiting caller is ignored.
    pub(crate) fn written(&mut self, written: Written) {
        if let Some(answer) = self.open.remove(&written.request) {
            let _ = answer.send(written.outcome.map_err(WriteError::Refused));
        }
    }

    /// The link is dead: unsent writes fail with `Dead`, and the outcome of the others is unknown.
    pub(crate) fn end(&mut self, reason: &str) {
        for write in self.unsent.drain(..) {
            if let Some(answer) = self.open.remove(&write.request) {
                let _ = answer.send(Err(WriteError::Dead));
            }
        }
        for (_, answer) in self.open.drain() {
            let _ = answer.send(Err(WriteError::Unknown(reason.to_owned())));
        }
        self.unsent_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use longshore_protocol::messages::values::WriteRefusal;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn push_with_answer(writes: &mut Writes) -> oneshot::Receiver<Result<Value, WriteError>> {
        let (answer, received) = oneshot::channel();
        writes.push(1, Value::U64(1), Some((answer, SECOND))).unwrap();
        received
    }

    #[test]
    fn answers_may_arrive_in_any_order() {
        let mut writes = Writes::default();
        let (mut first, mut second) =
            (push_with_answer(&mut writes), push_with_answer(&mut writes));
        let (one, two) = (writes.take().unwrap(), writes.take().unwrap());
        assert_eq!((one.deadline_ms, one.receipt), (1_000, true));
        writes.written(Written { request: two.request, outcome: Ok(Value::U64(7)) });
        assert_eq!(second.try_recv().unwrap(), Ok(Value::U64(7)));
        let no = WriteRefused { code: WriteRefusal::Refused, reason: "no".into() };
        writes.written(Written { request: one.request, outcome: Err(no.clone()) });
        assert_eq!(first.try_recv().unwrap(), Err(WriteError::Refused(no)));
    }

    #[test]
    fn a_disconnect_makes_sent_writes_unknown_and_unsent_ones_dead() {
        let mut writes = Writes::default();
        let (mut sent, mut unsent) = (push_with_answer(&mut writes), push_with_answer(&mut writes));
        writes.take();
        writes.end("gone");
        assert_eq!(sent.try_recv().unwrap(), Err(WriteError::Unknown("gone".into())));
        assert_eq!(unsent.try_recv().unwrap(), Err(WriteError::Dead));
    }

    #[test]
    fn unsent_and_unanswered_writes_are_bounded() {
        let mut writes = Writes::default();
        let large = Value::from(&[0u8; 1024 * 1024 - 16][..]);
        for _ in 0..3 {
            writes.push(1, large.clone(), None).unwrap();
        }
        writes.push(1, Value::from(&[0u8; 900 * 1024][..]), None).unwrap();
        assert_eq!(writes.push(1, large.clone(), None), Err(WriteError::Full));
        while writes.take().is_some() {}
        assert_eq!(writes.unsent_bytes, 0);
        let open: Vec<_> =
            (0..VALUE_WRITES_OPEN_MAX).map(|_| push_with_answer(&mut writes)).collect();
        let (answer, _received) = oneshot::channel();
        let refused = writes.push(1, Value::U64(1), Some((answer, SECOND)));
        assert_eq!(refused, Err(WriteError::Full));
        writes.push(1, Value::U64(1), None).unwrap();
        drop(open);
        drop(push_with_answer(&mut writes));
        assert_eq!(writes.open.len(), 1, "closed waiters are removed");
    }
}
