//! Writes of one link: what waits to be sent, and what waits for its answer. Each goes its own way;
//! none waits for another.

use std::collections::VecDeque;
use std::time::Duration;

use hashbrown::HashMap;
use longshore_protocol::limits::VALUE_WRITES_OPEN_MAX;
use longshore_protocol::messages::values::{WriteRefused, WriteValue, Written};
use longshore_protocol::{Value, ValueError};
use tokio::sync::oneshot;

/// Most bytes of writes that wait to be sent on one link. An empty queue takes any write.
pub const WRITE_QUEUE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// What a write takes beside its value, about, in bytes.
const WRITE_BYTES: usize = 32;

/// Where the answer to a write goes.
pub(crate) type Answer = oneshot::Sender<Result<Value, WriteError>>;

/// Why a write was not made, or is not known to have been.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WriteError {
    /// The subscription is not held: nothing was sent. A durable one may be held again: try again,
    /// or `write_within`.
    #[error("the subscription is dead: nothing was written")]
    Dead,
    /// As much waits as may on that link, 4 MiB to be sent or 1,024 writes to be answered: nothing
    /// was sent. Try again later.
    #[error(
        "as many writes wait as may, {WRITE_QUEUE_BYTES_MAX} bytes to be sent or {VALUE_WRITES_OPEN_MAX} for their \
         answers: nothing was written"
    )]
    Full,
    /// No frame may hold the value: nothing was sent. It would be refused again.
    #[error("{0}")]
    Value(#[from] ValueError),
    /// The publisher did not take it; its `code` (`protocol::messages::values::WriteRefusal`) says
    /// why, and whether it can have been taken all the same.
    #[error("{0}")]
    Refused(WriteRefused),
    /// It was sent, or may have been, and no answer came in time: the publisher's program may have
    /// taken it or not. Write again only what may be taken twice.
    #[error("whether it was written is unknown: {0}")]
    Unknown(String),
}

/// The writes of one link.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    unsent: VecDeque<WriteValue>,
    unsent_bytes: usize,
    open: HashMap<u32, Answer>,
    next: u32,
}

impl Writes {
    /// Takes a write, to be sent to the subscription of that number.
    pub(crate) fn push(
        &mut self,
        subscription: u32,
        value: Value,
        answer: Option<(Answer, Duration)>,
    ) -> Result<(), WriteError> {
        let bytes = value.encoded_len()? + WRITE_BYTES;
        if answer.is_some() && self.open.len() >= VALUE_WRITES_OPEN_MAX {
            // Who has given up waiting needs no place any more.
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

    /// The next to be sent.
    pub(crate) fn take(&mut self) -> Option<WriteValue> {
        let write = self.unsent.pop_front()?;
        let bytes = write.value.encoded_len().unwrap_or(0) + WRITE_BYTES;
        self.unsent_bytes = self.unsent_bytes.saturating_sub(bytes);
        Some(write)
    }

    /// The subscription of that number has ended: what was not sent to it was not written.
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

    /// The publisher's answer. One to a write that nobody waits for changes nothing.
    pub(crate) fn written(&mut self, written: Written) {
        if let Some(answer) = self.open.remove(&written.request) {
            let _ = answer.send(written.outcome.map_err(WriteError::Refused));
        }
    }

    /// The link is dead. What was not sent was not written; of the rest it is unknown.
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
    fn answers_may_come_in_any_order() {
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
    fn at_a_disconnect_what_was_sent_is_unknown_and_what_was_not_was_not_written() {
        let mut writes = Writes::default();
        let (mut sent, mut unsent) = (push_with_answer(&mut writes), push_with_answer(&mut writes));
        writes.take();
        writes.end("gone");
        assert_eq!(sent.try_recv().unwrap(), Err(WriteError::Unknown("gone".into())));
        assert_eq!(unsent.try_recv().unwrap(), Err(WriteError::Dead));
    }

    #[test]
    fn what_waits_to_be_sent_and_to_be_answered_is_bounded() {
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
        assert_eq!(writes.open.len(), 1, "those who gave up waiting need no place");
    }
}
