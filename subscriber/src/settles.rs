//! The ends of jobs on their way to one publisher: collected into batches, numbered, kept until they are answered, and sent
//! again, with the same numbers, on the next link.

use std::collections::VecDeque;

use bytes::Bytes;
use longshore_protocol::messages::work::{NewSettle, SettleBatchBuilder, Settled};
use longshore_protocol::{FrameWriter, Reader, SettleOutcome, Token};

/// Settles that make a batch while others are in flight. With nothing in flight one is enough: latency matters there.
pub(crate) const BATCH_SETTLES: usize = 500;
/// Batches in flight; the publisher remembers the answers of the last 64.
pub(crate) const BATCHES_IN_FLIGHT_MAX: usize = 32;
/// Settles in flight: with as many jobs held, they are what one link can resume.
pub(crate) const SETTLES_IN_FLIGHT_MAX: usize = 32_768;

/// How a job ended, as it is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Completed,
    Failed,
    Released,
    Snoozed,
    Buried,
}

impl End {
    fn of(settle: &NewSettle) -> End {
        match settle {
            NewSettle::Complete { .. } => End::Completed,
            NewSettle::Fail(_) => End::Failed,
            NewSettle::Release => End::Released,
            NewSettle::Snooze { .. } => End::Snoozed,
            NewSettle::Bury(_) => End::Buried,
        }
    }
}

/// All settles at one publisher without an answer.
#[derive(Debug)]
pub(crate) struct Settles {
    attached: bool,
    /// The number of the next batch.
    next: u64,
    /// Not yet numbered; only the last is still open.
    open: VecDeque<Open>,
    /// Numbered, in order.
    in_flight: VecDeque<Batch>,
    /// How many of `in_flight` were sent on this link.
    sent: usize,
    settles_in_flight: usize,
}

#[derive(Debug, Default)]
struct Open {
    builder: SettleBatchBuilder,
    items: Vec<(Token, End)>,
    /// Jobs among them that still count as held.
    held: u32,
}

#[derive(Debug)]
struct Batch {
    sequence: u64,
    body: Bytes,
    items: Vec<(Token, End)>,
}

/// A batch to send now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sealed {
    pub(crate) body: Bytes,
    /// Jobs that are held no more once it is sent.
    pub(crate) freed: u32,
}

impl Default for Settles {
    fn default() -> Settles {
        Settles {
            attached: false,
            next: 1,
            open: VecDeque::new(),
            in_flight: VecDeque::new(),
            sent: 0,
            settles_in_flight: 0,
        }
    }
}

impl Settles {
    /// Adds the end of a lease. `held` when its job still counts as held: until the batch is sent.
    pub(crate) fn push(&mut self, token: Token, settle: &NewSettle, held: bool) {
        if self.open.back().is_none_or(|open| open.builder.is_full()) {
            self.open.push_back(Open::default());
        }
        if let Some(open) = self.open.back_mut() {
            open.builder.push(token, settle);
            open.items.push((token, End::of(settle)));
            open.held += u32::from(held);
        }
    }

    /// True when [`Settles::next_to_send`] has something.
    pub(crate) fn is_ready(&self) -> bool {
        if !self.attached {
            return false;
        }
        if self.sent < self.in_flight.len() {
            return true;
        }
        let Some(first) = self.open.front() else { return false };
        let eager = self.in_flight.is_empty() || self.open.len() > 1;
        let fits = self.in_flight.len() < BATCHES_IN_FLIGHT_MAX
            && (self.in_flight.is_empty()
                || self.settles_in_flight + first.items.len() <= SETTLES_IN_FLIGHT_MAX);
        fits && (eager || first.items.len() >= BATCH_SETTLES)
    }

    /// The next batch to send: first those of earlier links, then new ones.
    pub(crate) fn next_to_send(&mut self) -> Option<Sealed> {
        if !self.is_ready() {
            return None;
        }
        let mut freed = 0;
        if self.sent == self.in_flight.len() {
            let open = self.open.pop_front()?;
            let sequence = self.next;
            self.next += 1;
            freed = open.held;
            self.settles_in_flight += open.items.len();
            let body = open.builder.seal(sequence);
            self.in_flight.push_back(Batch { sequence, body, items: open.items });
        }
        let body = self.in_flight.get(self.sent)?.body.clone();
        self.sent += 1;
        Some(Sealed { body, freed })
    }

    /// The link stands. Everything unanswered is sent again, with its numbers; but a publisher that has forgotten this session
    /// (it expects a number below them) gets them in the numbers that it expects.
    pub(crate) fn attached(&mut self, next_settle: u64) {
        self.attached = true;
        self.sent = 0;
        let first = self.in_flight.front().map_or(self.next, |batch| batch.sequence);
        if next_settle < first {
            self.next = next_settle;
            for batch in &mut self.in_flight {
                batch.sequence = self.next;
                batch.body = renumbered(&batch.body, self.next);
                self.next += 1;
            }
        }
        self.next = self.next.max(next_settle);
    }

    /// The link is dead. Gives the number of ended jobs that count as held no more: they wait for the next link as settles.
    pub(crate) fn detached(&mut self) -> u32 {
        self.attached = false;
        self.sent = 0;
        self.open.iter_mut().map(|open| std::mem::take(&mut open.held)).sum()
    }

    /// The answer to a batch: what became of each of its settles. `None` for an answer that nobody waits for. A publisher that
    /// has forgotten its answer gives no outcomes.
    pub(crate) fn answered(
        &mut self,
        settled: &Settled,
    ) -> Option<Vec<(Token, End, Option<SettleOutcome>)>> {
        let at = self.in_flight.iter().position(|batch| batch.sequence == settled.sequence)?;
        let batch = self.in_flight.remove(at)?;
        self.sent -= usize::from(at < self.sent);
        self.settles_in_flight -= batch.items.len();
        let mut outcomes = settled.outcomes.iter();
        let with_outcome = |(token, end)| (token, end, outcomes.next());
        Some(batch.items.into_iter().map(with_outcome).collect())
    }

    /// Settles without an answer.
    pub(crate) fn unanswered(&self) -> usize {
        self.settles_in_flight + self.open.iter().map(|open| open.items.len()).sum::<usize>()
    }

    /// Ended jobs that still count as held.
    pub(crate) fn held(&self) -> u64 {
        self.open.iter().map(|open| u64::from(open.held)).sum()
    }

    /// The tokens of all settles without an answer.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = Token> {
        let in_flight = self.in_flight.iter().flat_map(|batch| &batch.items);
        let open = self.open.iter().flat_map(|open| &open.items);
        in_flight.chain(open).map(|(token, _)| *token)
    }
}

fn renumbered(body: &Bytes, sequence: u64) -> Bytes {
    let mut r = Reader::new(body.clone());
    // The body was sealed here: it begins with its number.
    if r.u64().is_err() {
        return body.clone();
    }
    let mut out = FrameWriter::with_capacity(16);
    out.u64(sequence);
    out.put_shared(r.take_rest());
    out.into_body()
}

#[cfg(test)]
mod tests {
    use longshore_protocol::Runs;
    use longshore_protocol::messages::work::SettleBatch;

    use super::*;

    const DONE: NewSettle = NewSettle::Complete { result: None };

    fn attached() -> Settles {
        let mut settles = Settles::default();
        settles.attached(1);
        settles
    }

    fn read(sealed: Option<Sealed>) -> (u64, Vec<u64>) {
        let batch = SettleBatch::decode(sealed.expect("a batch").body).unwrap();
        (batch.sequence, batch.items().map(|item| item.token.0).collect())
    }

    fn answer(sequence: u64, outcomes: &[SettleOutcome]) -> Settled {
        Settled { sequence, outcomes: outcomes.iter().copied().collect::<Runs<_>>() }
    }

    #[test]
    fn with_nothing_in_flight_one_settle_is_sent_at_once() {
        let mut settles = attached();
        settles.push(Token(7), &DONE, true);
        let sealed = settles.next_to_send().unwrap();
        assert_eq!(sealed.freed, 1);
        assert_eq!(read(Some(sealed)), (1, vec![7]));
        assert_eq!(settles.next_to_send(), None);
    }

    #[test]
    fn while_one_is_in_flight_others_collect_until_it_is_answered() {
        let mut settles = attached();
        settles.push(Token(1), &DONE, true);
        settles.next_to_send();
        settles.push(Token(2), &DONE, true);
        settles.push(Token(3), &DONE, true);
        assert_eq!(settles.next_to_send(), None);
        settles.answered(&answer(1, &[SettleOutcome::Accepted])).unwrap();
        assert_eq!(read(settles.next_to_send()), (2, vec![2, 3]));
    }

    #[test]
    fn a_full_batch_does_not_wait_for_the_one_in_flight_until_too_many_are() {
        let mut settles = attached();
        let mut token = 0;
        for sequence in 1..=BATCHES_IN_FLIGHT_MAX as u64 {
            for _ in 0..BATCH_SETTLES {
                token += 1;
                settles.push(Token(token), &DONE, true);
            }
            assert_eq!(read(settles.next_to_send()).0, sequence);
        }
        for _ in 0..BATCH_SETTLES {
            settles.push(Token(0), &DONE, true);
        }
        assert_eq!(settles.next_to_send(), None);
        settles.answered(&answer(1, &[])).unwrap();
        assert_eq!(read(settles.next_to_send()).0, BATCHES_IN_FLIGHT_MAX as u64 + 1);
    }

    #[test]
    fn what_was_not_answered_is_sent_again_with_its_number_before_anything_new() {
        let mut settles = attached();
        settles.push(Token(1), &DONE, true);
        settles.next_to_send();
        settles.push(Token(2), &DONE, true);
        assert_eq!(settles.detached(), 1, "the one not sent is held no more");
        assert_eq!(settles.next_to_send(), None);
        assert_eq!(settles.tokens().collect::<Vec<_>>(), [Token(1), Token(2)]);
        settles.attached(2);
        assert_eq!(read(settles.next_to_send()), (1, vec![1]));
        assert_eq!(settles.next_to_send(), None);
        let ends = settles.answered(&answer(1, &[SettleOutcome::Accepted])).unwrap();
        assert_eq!(ends, [(Token(1), End::Completed, Some(SettleOutcome::Accepted))]);
        assert_eq!(read(settles.next_to_send()), (2, vec![2]));
        assert_eq!(settles.unanswered(), 1);
    }

    #[test]
    fn a_publisher_that_forgot_the_session_gets_the_numbers_that_it_expects() {
        let mut settles = attached();
        for n in 1..=3 {
            settles.push(Token(n), &DONE, true);
            settles.next_to_send();
            settles.answered(&answer(n, &[SettleOutcome::Accepted])).unwrap();
        }
        settles.push(Token(4), &NewSettle::Complete { result: Some("r".into()) }, true);
        settles.next_to_send();
        settles.detached();
        settles.attached(1);
        assert_eq!(read(settles.next_to_send()), (1, vec![4]));
        settles.answered(&answer(1, &[SettleOutcome::StaleToken])).unwrap();
        settles.push(Token(5), &DONE, true);
        assert_eq!(read(settles.next_to_send()), (2, vec![5]));
    }

    #[test]
    fn each_outcome_belongs_to_its_settle_and_an_answer_counts_once() {
        let mut settles = attached();
        settles.push(Token(1), &DONE, true);
        settles.push(Token(2), &NewSettle::Release, true);
        settles.next_to_send();
        let outcomes = [SettleOutcome::StaleToken, SettleOutcome::Accepted];
        let ends = settles.answered(&answer(1, &outcomes)).unwrap();
        assert_eq!(
            ends,
            [
                (Token(1), End::Completed, Some(SettleOutcome::StaleToken)),
                (Token(2), End::Released, Some(SettleOutcome::Accepted)),
            ]
        );
        assert_eq!(settles.answered(&answer(1, &outcomes)), None);
    }
}
