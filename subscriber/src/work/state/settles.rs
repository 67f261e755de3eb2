//! Settles to one publisher: batched, numbered, retained until they are answered, and sent again
//! with the same numbers on the next link. Settles that the publisher has no space for are
//! retained, and sent again with new numbers.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use longshore_protocol::limits::SMALL_BYTES_MAX;
use longshore_protocol::messages::work::{
    NewSettle, SettleBatch, SettleBatchBuilder, Settled, Verdict,
};
use longshore_protocol::{FrameWriter, Reader, SettleOutcome, Token};

use super::counts::SubscriptionCounts;

/// Settles that make a full batch while others are in flight. With nothing in flight one settle is
/// enough, for latency.
pub(crate) const BATCH_SETTLES: usize = 500;
/// Most batches in flight; the publisher remembers the answers of the last 64.
pub(crate) const BATCHES_IN_FLIGHT_MAX: usize = 32;
/// How long settles wait for the answer to earlier ones before they make a batch that is not full.
/// Until they are sent their jobs count as held, and a stopped publisher answers nothing until its
/// link is dead after 10 s: other publishers must not miss these credits for so long. All batches
/// in flight together cover this time.
pub(crate) const ANSWER_WAIT: Duration = Duration::from_millis(320);
/// Bytes that make a full batch. A batch is one frame, which holds up everything behind it.
const BATCH_BYTES: usize = 1024 * 1024;
/// Bytes of a settle that waits, without its result or error.
pub(crate) const SETTLE_BYTES: usize = 4 * 1024;
/// Most settles in flight: with as many jobs held, they are what one link can resume.
pub(crate) const SETTLES_IN_FLIGHT_MAX: usize = 32_768;

/// The first and the longest wait before a settle is sent again that its publisher had no space
/// for; the wait doubles in between. At most the longest one after there is space again, all
/// results have arrived.
pub(crate) const NO_SPACE_WAITS: (Duration, Duration) =
    (Duration::from_secs(1), Duration::from_secs(16));

/// The kind of a settle, for the counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SettleKind {
    Completed,
    Failed,
    Released,
    Snoozed,
    Buried,
}

impl SettleKind {
    fn of(settle: &NewSettle) -> SettleKind {
        match settle {
            NewSettle::Complete { .. } => SettleKind::Completed,
            NewSettle::Fail(_) => SettleKind::Failed,
            NewSettle::Release => SettleKind::Released,
            NewSettle::Snooze { .. } | NewSettle::Throttle { .. } => SettleKind::Snoozed,
            NewSettle::Bury(_) => SettleKind::Buried,
        }
    }
}

/// All settles at one publisher without an answer.
#[derive(Debug)]
pub(crate) struct Settles {
    attached: bool,
    /// The number of the next batch.
    next: u64,
    /// Not yet numbered; only the last batch is open.
    open: VecDeque<OpenBatch>,
    /// Numbered, in order.
    in_flight: VecDeque<InFlightBatch>,
    /// How many of `in_flight` were sent on this link.
    sent: usize,
    settles_in_flight: usize,
    /// When the last batch was sent.
    sent_at: Duration,
    /// Settles that the publisher has no space for, and the sizes of their results or errors.
    postponed: Vec<(Token, NewSettle, usize)>,
    /// When they are sent again; set by the next [`Settles::retry`].
    retry_at: Option<Duration>,
    /// The next wait.
    wait: Duration,
}

#[derive(Debug, Default)]
struct OpenBatch {
    builder: SettleBatchBuilder,
    items: Vec<(Token, SettleKind)>,
    /// No other settle is added: the batch is likely to be refused.
    isolated: bool,
    /// Jobs among them that still count as held.
    unsent_jobs: SubscriptionCounts,
}

impl OpenBatch {
    fn is_full(&self) -> bool {
        self.builder.is_full() || self.builder.bytes() >= BATCH_BYTES
    }
}

#[derive(Debug)]
struct InFlightBatch {
    sequence: u64,
    isolated: bool,
    body: Bytes,
    items: Vec<(Token, SettleKind)>,
}

/// A batch to send now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SealedBatch {
    pub(crate) body: Bytes,
    /// Jobs that are freed once it is sent.
    pub(crate) freed: SubscriptionCounts,
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
            sent_at: Duration::ZERO,
            postponed: Vec::new(),
            retry_at: None,
            wait: NO_SPACE_WAITS.0,
        }
    }
}

impl Settles {
    /// Adds a settle, whose job may have a lease until it is sent. With `held`, its job counts as
    /// held, of that subscription, until the batch is sent.
    pub(crate) fn push(&mut self, token: Token, settle: &NewSettle, held: Option<u32>) {
        if self.open.back().is_none_or(|open| open.isolated || open.is_full()) {
            self.open.push_back(OpenBatch::default());
        }
        if let Some(open) = self.open.back_mut() {
            open.builder.push(token, settle);
            open.items.push((token, SettleKind::of(settle)));
            held.into_iter().for_each(|subscription| open.unsent_jobs.add(subscription, 1));
        }
    }

    /// True when [`Settles::next_to_send`] has something.
    pub(crate) fn is_ready(&self, now: Duration) -> bool {
        if !self.attached {
            return false;
        }
        if self.sent < self.in_flight.len() {
            return true;
        }
        let Some(first) = self.open.front() else { return false };
        let overdue = now >= self.sent_at + ANSWER_WAIT;
        let eager = self.in_flight.is_empty() || self.open.len() > 1 || overdue;
        let fits = self.in_flight.len() < BATCHES_IN_FLIGHT_MAX
            && (self.in_flight.is_empty()
                || self.settles_in_flight + first.items.len() <= SETTLES_IN_FLIGHT_MAX);
        fits && (eager || first.items.len() >= BATCH_SETTLES)
    }

    /// The next batch to send: first those of earlier links, then new ones.
    pub(crate) fn next_to_send(&mut self, now: Duration) -> Option<SealedBatch> {
        if !self.is_ready(now) {
            return None;
        }
        self.sent_at = now;
        let mut freed = SubscriptionCounts::default();
        if self.sent == self.in_flight.len() {
            let open = self.open.pop_front()?;
            let sequence = self.next;
            self.next += 1;
            freed = open.unsent_jobs;
            self.settles_in_flight += open.items.len();
            let body = open.builder.seal(sequence);
            let OpenBatch { items, isolated, .. } = open;
            self.in_flight.push_back(InFlightBatch { sequence, isolated, body, items });
        }
        let body = self.in_flight.get(self.sent)?.body.clone();
        self.sent += 1;
        Some(SealedBatch { body, freed })
    }

    /// The link is attached. Sends everything unanswered again, with its numbers. A publisher that
    /// has forgotten this session expects a lower number: then the batches are renumbered from
    /// there.
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

    /// The link is dead. Returns the settled jobs that no longer count as held; their settles wait
    /// for the next link.
    pub(crate) fn detached(&mut self) -> SubscriptionCounts {
        self.attached = false;
        self.sent = 0;
        let mut freed = SubscriptionCounts::default();
        self.open.iter_mut().for_each(|open| freed.add_all(std::mem::take(&mut open.unsent_jobs)));
        freed
    }

    /// Handles the answer to a batch: returns the outcome of each settle. `None` if no batch
    /// matches. A publisher that has forgotten the answer sends no outcomes.
    pub(crate) fn answered(
        &mut self,
        settled: &Settled,
    ) -> Option<Vec<(Token, SettleKind, Option<SettleOutcome>)>> {
        let at = self.in_flight.iter().position(|batch| batch.sequence == settled.sequence)?;
        let batch = self.in_flight.remove(at)?;
        self.sent -= usize::from(at < self.sent);
        self.settles_in_flight -= batch.items.len();
        let refused = settled.outcomes.iter().next() == Some(SettleOutcome::NoSpace);
        if refused {
            return Some(self.postpone(&batch));
        }
        if batch.isolated {
            self.wait = NO_SPACE_WAITS.0;
        }
        let mut outcomes = settled.outcomes.iter();
        let with_outcome = |(token, end)| (token, end, outcomes.next());
        Some(batch.items.into_iter().map(with_outcome).collect())
    }

    /// The publisher accepted nothing of the batch. If a settle was large, the small ones are sent
    /// again at once, and the others wait. All are returned: their leases must be renewed
    /// meanwhile.
    fn postpone(
        &mut self,
        batch: &InFlightBatch,
    ) -> Vec<(Token, SettleKind, Option<SettleOutcome>)> {
        let mut postponed = Vec::new();
        // The body was sealed here: it decodes.
        let Ok(read) = SettleBatch::decode(batch.body.clone()) else { return postponed };
        let is_small = |bytes: usize| bytes <= SMALL_BYTES_MAX;
        // Without a large settle there was no space for the small ones themselves.
        let mut all = read.items().map(|item| settle_of(&batch.body, item.verdict).1);
        let has_large = !all.all(is_small);
        for item in read.items() {
            let (settle, bytes) = settle_of(&batch.body, item.verdict);
            postponed.push((item.token, SettleKind::of(&settle), Some(SettleOutcome::NoSpace)));
            if has_large && is_small(bytes) {
                self.push(item.token, &settle, None);
            } else {
                self.postponed.push((item.token, settle, bytes));
            }
        }
        postponed
    }

    /// Queues postponed settles whose wait is over.
    pub(crate) fn retry(&mut self, now: Duration) {
        if self.postponed.is_empty() {
            self.retry_at = None;
            return;
        }
        let Some(at) = self.retry_at else {
            self.retry_at = Some(now + self.wait);
            self.wait = (self.wait * 2).min(NO_SPACE_WAITS.1);
            return;
        };
        if now < at || !self.attached {
            return;
        }
        self.retry_at = None;
        let mut open = OpenBatch { isolated: true, ..OpenBatch::default() };
        for (token, settle, _) in self.postponed.drain(..) {
            if open.is_full() {
                let full = OpenBatch { isolated: true, ..OpenBatch::default() };
                self.open.push_back(std::mem::replace(&mut open, full));
            }
            open.builder.push(token, &settle);
            open.items.push((token, SettleKind::of(&settle)));
        }
        self.open.push_back(open);
    }

    /// Drops the settles of these tokens that wait for space; returns how many.
    pub(crate) fn drop_postponed(&mut self, tokens: &BTreeSet<Token>) -> usize {
        let before = self.postponed.len();
        if !tokens.is_empty() {
            self.postponed.retain(|(token, ..)| !tokens.contains(token));
        }
        before - self.postponed.len()
    }

    /// When [`Settles::retry`] has something to do, or a batch that is not full is sent. If that
    /// time is over, the next settle is ready at once.
    pub(crate) fn next_deadline(&self, now: Duration) -> Option<Duration> {
        let in_flight = !self.in_flight.is_empty();
        let overdue = Some(self.sent_at + ANSWER_WAIT).filter(|at| in_flight && *at > now);
        self.retry_at.into_iter().chain(overdue).min().filter(|_| self.attached)
    }

    /// The tokens of the batch that was sent last.
    pub(crate) fn last_sent(&self) -> impl Iterator<Item = Token> {
        let sent = self.in_flight.iter().take(self.sent).next_back();
        sent.into_iter().flat_map(|batch| &batch.items).map(|(token, _)| *token)
    }

    /// The bytes of the settles that wait for space; none while the publisher is away: it may never
    /// come back, and no more results for it come in.
    pub(crate) fn postponed_bytes(&self) -> usize {
        if !self.attached {
            return 0;
        }
        let isolated = self.open.iter().filter(|open| open.isolated);
        let open = isolated.map(|open| (open.items.len(), open.builder.bytes()));
        let isolated = self.in_flight.iter().filter(|batch| batch.isolated);
        let in_flight = isolated.map(|batch| (batch.items.len(), batch.body.len()));
        let postponed = self.postponed.iter().map(|(.., bytes)| (1, *bytes));
        let all = open.chain(in_flight).chain(postponed);
        all.map(|(settles, bytes)| settles * SETTLE_BYTES + bytes).sum()
    }

    /// Settles without an answer.
    pub(crate) fn unanswered(&self) -> usize {
        self.postponed.len()
            + self.settles_in_flight
            + self.open.iter().map(|open| open.items.len()).sum::<usize>()
    }

    /// True if every settle was sent on this link, except those that the publisher has no space
    /// for. While a batch of an earlier link is unanswered, later settles wait here, though none of
    /// their jobs counts as held.
    pub(crate) fn all_sent(&self) -> bool {
        self.open.is_empty() && self.sent == self.in_flight.len()
    }

    /// Settled jobs that still count as held.
    pub(crate) fn unsent_jobs(&self) -> u64 {
        self.open.iter().map(|open| open.unsent_jobs.total()).sum()
    }

    /// The tokens of all settles without an answer.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = Token> {
        let in_flight = self.in_flight.iter().flat_map(|batch| &batch.items);
        let open = self.open.iter().flat_map(|open| &open.items);
        in_flight.chain(open).map(|(token, _)| *token)
    }
}

/// Decodes a settle, and returns it with the size of its result or error.
fn settle_of(body: &Bytes, verdict: Verdict) -> (NewSettle, usize) {
    let bytes = match verdict {
        Verdict::Complete(result) => result.map_or(0, |result| result.length),
        Verdict::Fail(error) | Verdict::Bury(error) => error.length,
        Verdict::Release | Verdict::Snooze(_) | Verdict::Throttle(_) => 0,
    };
    (NewSettle::of(body, verdict), bytes as usize)
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
    use longshore_protocol::messages::work::SettleBatch;
    use longshore_protocol::{JobError, Runs};

    use super::*;

    const NOW: Duration = Duration::ZERO;
    const DONE: NewSettle = NewSettle::Complete { result: None };

    fn attached() -> Settles {
        let mut settles = Settles::default();
        settles.attached(1);
        settles
    }

    fn read(sealed: Option<SealedBatch>) -> (u64, Vec<u64>) {
        let batch = SettleBatch::decode(sealed.expect("a batch").body).unwrap();
        (batch.sequence, batch.items().map(|item| item.token.0).collect())
    }

    fn answer(sequence: u64, outcomes: &[SettleOutcome]) -> Settled {
        Settled { sequence, outcomes: outcomes.iter().copied().collect::<Runs<_>>() }
    }

    #[test]
    fn with_nothing_in_flight_one_settle_is_sent_at_once() {
        let mut settles = attached();
        settles.push(Token(7), &DONE, Some(0));
        let sealed = settles.next_to_send(NOW).unwrap();
        assert_eq!(sealed.freed.total(), 1);
        assert_eq!(read(Some(sealed)), (1, vec![7]));
        assert_eq!(settles.next_to_send(NOW), None);
    }

    #[test]
    fn settles_collect_while_a_batch_is_in_flight() {
        let mut settles = attached();
        settles.push(Token(1), &DONE, Some(0));
        settles.next_to_send(NOW);
        settles.push(Token(2), &DONE, Some(0));
        settles.push(Token(3), &DONE, Some(0));
        assert_eq!(settles.next_to_send(NOW), None);
        settles.answered(&answer(1, &[SettleOutcome::Accepted])).unwrap();
        assert_eq!(read(settles.next_to_send(NOW)), (2, vec![2, 3]));
    }

    #[test]
    fn settles_do_not_wait_for_a_silent_publisher() {
        let mut settles = attached();
        let (mut now, mut freed) = (NOW, 0);
        // A settle each 50 ms, while nothing is answered for the 10 s until the link is dead.
        for token in 1..=200 {
            now += Duration::from_millis(50);
            settles.push(Token(token), &DONE, Some(0));
            while let Some(sealed) = settles.next_to_send(now) {
                freed += sealed.freed.total();
            }
            assert!(token - freed <= 6, "{} jobs count as held at {now:?}", token - freed);
            let deadline = settles.next_deadline(now);
            assert!(deadline.is_some_and(|at| at <= now + ANSWER_WAIT), "{deadline:?}");
        }
        assert!(settles.in_flight.len() <= BATCHES_IN_FLIGHT_MAX);
    }

    #[test]
    fn full_batches_are_sent_up_to_the_in_flight_limit() {
        let mut settles = attached();
        let mut token = 0;
        for sequence in 1..=BATCHES_IN_FLIGHT_MAX as u64 {
            for _ in 0..BATCH_SETTLES {
                token += 1;
                settles.push(Token(token), &DONE, Some(0));
            }
            assert_eq!(read(settles.next_to_send(NOW)).0, sequence);
        }
        for _ in 0..BATCH_SETTLES {
            settles.push(Token(0), &DONE, Some(0));
        }
        assert_eq!(settles.next_to_send(NOW), None);
        settles.answered(&answer(1, &[])).unwrap();
        assert_eq!(read(settles.next_to_send(NOW)).0, BATCHES_IN_FLIGHT_MAX as u64 + 1);
    }

    #[test]
    fn unanswered_batches_are_resent_before_new_ones() {
        let mut settles = attached();
        settles.push(Token(1), &DONE, Some(0));
        settles.next_to_send(NOW);
        settles.push(Token(2), &DONE, Some(0));
        assert_eq!(settles.detached().total(), 1, "the unsent settle no longer counts as held");
        assert_eq!(settles.next_to_send(NOW), None);
        assert_eq!(settles.tokens().collect::<Vec<_>>(), [Token(1), Token(2)]);
        settles.attached(2);
        assert_eq!(read(settles.next_to_send(NOW)), (1, vec![1]));
        assert_eq!(settles.next_to_send(NOW), None);
        assert!(settles.unsent_jobs() == 0 && !settles.all_sent(), "the second is still here");
        let ends = settles.answered(&answer(1, &[SettleOutcome::Accepted])).unwrap();
        assert_eq!(ends, [(Token(1), SettleKind::Completed, Some(SettleOutcome::Accepted))]);
        assert_eq!(read(settles.next_to_send(NOW)), (2, vec![2]));
        assert!(settles.unanswered() == 1 && settles.all_sent());
    }

    #[test]
    fn a_forgotten_session_renumbers_its_batches() {
        let mut settles = attached();
        for n in 1..=3 {
            settles.push(Token(n), &DONE, Some(0));
            settles.next_to_send(NOW);
            settles.answered(&answer(n, &[SettleOutcome::Accepted])).unwrap();
        }
        settles.push(Token(4), &NewSettle::Complete { result: Some("r".into()) }, Some(0));
        settles.next_to_send(NOW);
        settles.detached();
        settles.attached(1);
        assert_eq!(read(settles.next_to_send(NOW)), (1, vec![4]));
        settles.answered(&answer(1, &[SettleOutcome::StaleToken])).unwrap();
        settles.push(Token(5), &DONE, Some(0));
        assert_eq!(read(settles.next_to_send(NOW)), (2, vec![5]));
    }

    #[test]
    fn outcomes_match_their_settles_and_count_once() {
        let mut settles = attached();
        settles.push(Token(1), &DONE, Some(0));
        settles.push(Token(2), &NewSettle::Release, Some(0));
        settles.next_to_send(NOW);
        let outcomes = [SettleOutcome::StaleToken, SettleOutcome::Accepted];
        let ends = settles.answered(&answer(1, &outcomes)).unwrap();
        assert_eq!(
            ends,
            [
                (Token(1), SettleKind::Completed, Some(SettleOutcome::StaleToken)),
                (Token(2), SettleKind::Released, Some(SettleOutcome::Accepted)),
            ]
        );
        assert_eq!(settles.answered(&answer(1, &outcomes)), None);
    }

    #[test]
    fn large_settles_refused_for_space_wait_with_backoff() {
        let mut settles = attached();
        let second = Duration::from_secs(1);
        let large = NewSettle::Complete { result: Some(vec![5; 4_097].into()) };
        let small = NewSettle::Complete { result: Some(vec![5; 4_096].into()) };
        let error = JobError { kind: "e".into(), message: "m".repeat(5_000) };
        settles.push(Token(1), &DONE, Some(0));
        assert_eq!(read(settles.next_to_send(NOW)), (1, vec![1]));
        for (token, settle) in [(2, &large), (3, &small), (4, &NewSettle::Fail(error))] {
            settles.push(Token(token), settle, Some(0));
        }
        settles.answered(&answer(1, &[SettleOutcome::Accepted])).unwrap();
        assert_eq!(read(settles.next_to_send(NOW)), (2, vec![2, 3, 4]));
        let refused = [SettleOutcome::NoSpace; 3];
        let postponed = settles.answered(&answer(2, &refused)).unwrap();
        let postponed: Vec<u64> = postponed.into_iter().map(|(token, ..)| token.0).collect();
        assert_eq!(postponed, [2, 3, 4], "leases to be renewed");
        assert_eq!(read(settles.next_to_send(NOW)), (3, vec![3]));
        assert_eq!(settles.unanswered(), 3);
        let (mut now, mut sequence) = (second * 10, 3);
        for wait in [1, 2, 4, 8, 16, 16] {
            settles.retry(now);
            assert_eq!(settles.next_deadline(now), Some(now + second * wait));
            now += second * wait;
            settles.retry(now - Duration::from_nanos(1));
            assert_eq!(settles.postponed.len(), 2);
            settles.retry(now);
            assert_eq!(settles.postponed.len(), 0);
            assert_eq!(settles.next_deadline(now), None);
            // A settle that is added meanwhile is in another batch.
            settles.push(Token(9), &DONE, None);
            sequence += 1;
            let sealed = settles.next_to_send(NOW).unwrap();
            let batch = SettleBatch::decode(sealed.body.clone()).unwrap();
            assert_eq!(settle_of(batch.body(), batch.items().next().unwrap().verdict).0, large);
            assert_eq!(read(Some(sealed)), (sequence, vec![2, 4]));
            assert_eq!(settles.last_sent().collect::<Vec<_>>(), [Token(2), Token(4)]);
            settles.answered(&answer(sequence, &refused[..2])).unwrap();
            sequence += 1;
            settles.answered(&answer(3, &[SettleOutcome::Accepted]));
            assert_eq!(read(settles.next_to_send(NOW)), (sequence, vec![9]));
            settles.answered(&answer(sequence, &[SettleOutcome::Accepted])).unwrap();
        }
        settles.retry(now);
        now += second * 16;
        settles.retry(now);
        assert!(settles.next_to_send(NOW).is_some());
        settles.answered(&answer(sequence + 1, &[SettleOutcome::Accepted; 2])).unwrap();
        assert_eq!((settles.unanswered(), settles.wait), (0, second));
    }

    #[test]
    fn small_settles_refused_alone_wait() {
        let mut settles = attached();
        settles.push(Token(1), &DONE, Some(0));
        settles.next_to_send(NOW);
        let postponed = settles.answered(&answer(1, &[SettleOutcome::NoSpace])).unwrap();
        assert_eq!(postponed.len(), 1, "its lease is to be renewed");
        assert!(settles.next_to_send(NOW).is_none());
    }

    #[test]
    fn postponed_settles_wait_for_a_link_too() {
        let mut settles = attached();
        let large = NewSettle::Complete { result: Some(vec![5; 5_000].into()) };
        settles.push(Token(1), &large, Some(0));
        settles.next_to_send(NOW);
        settles.answered(&answer(1, &[SettleOutcome::NoSpace])).unwrap();
        settles.retry(Duration::ZERO);
        settles.detached();
        assert_eq!(settles.next_deadline(NOW), None);
        settles.retry(Duration::MAX);
        assert_eq!(settles.postponed.len(), 1);
        settles.attached(2);
        settles.retry(Duration::from_secs(1));
        assert_eq!(read(settles.next_to_send(NOW)), (2, vec![1]));
    }
}
