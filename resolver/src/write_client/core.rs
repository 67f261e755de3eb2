//! Makes one replica match the desired state, and decides when it is tried again. Pure: it reads no
//! clock, draws from a seeded source, and does no I/O.
//!
//! **After every [`WriteCore::step`] its actions are executed in order; it is stepped with
//! [`Event::Tick`] again at once while [`WriteCore::has_more`], and at
//! [`WriteCore::next_deadline`].** A step builds one request at most: none takes longer than a
//! millisecond, however much there is to send. No event makes it give up, or forget what the
//! replica lacks.
//!
//! ```text
//!   Waiting ──▶ Dialling ──▶ Linked: compare, write, and compare again every half writer_ttl
//!      ▲            │           │
//!      └────────────┴───────────┘ a failure: 1–12 s, 1–12 s, then degraded: every half writer_ttl
//!
//!   Linked:
//!                    ┌──────────── equal: nothing is pending, and nothing is stale
//!                    │                                                   │
//!   announce one digest ── differs ──▶ announce those of all buckets ────┤
//!      ▲             │                                                   │ differ
//!      │             └── differs, and there is only one bucket ─────┐    │
//!      │                                                            ▼    ▼
//!      └── half writer_ttl, or a missed change ◀── confirm ◀── rewrite those buckets,
//!                                                              and write later changes
//! ```
//!
//! - While a replica keeps up, changes are written key by key, from [`DesiredState::changes`].
//!   Changes that it was not sent, because it was disconnected or far behind, are found by the next
//!   comparison: no copy is retained for it.
//! - The replica may have fewer buckets than this side, down to one; then those are compared and
//!   rewritten.
//! - No write is sent between an announce and its answer: both digests are of the same moment,
//!   except for refusals in flight, which are subtracted.
//! - Refused keys are excluded from the digests, and sent again after each comparison that was
//!   equal.
//! - *Confirm* removes what an earlier start registered. It follows once all differing buckets are
//!   rewritten, every change is sent, and the desired state is stable: see [`CONFIRM_QUIET`]. It
//!   applies to the last announce only.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use longshore_protocol::messages::resolver::{
    Announced, Digest, FromReplica, Group, KeyHash, RequestRefusal, Written,
};
use longshore_protocol::{Path, ResolverTiming};
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::write_client::ReplicaHealth;
use crate::write_client::buckets::Key;
use crate::write_client::desired_state::{DesiredState, StateSummary};
use crate::write_client::pending_changes::{Batch, PendingChanges};

/// Most requests in flight.
pub(super) const REQUESTS_IN_FLIGHT_MAX: usize = 8;
/// How long the desired state has to be stable before everything else is removed: a publisher that
/// restarts publishes its paths one by one. If it is never stable, the removal comes with the next
/// heartbeat.
pub(super) const CONFIRM_QUIET: Duration = Duration::from_secs(1);

/// An event for the core.
#[derive(Debug)]
pub(super) enum Event {
    /// The link that was dialled is established.
    Linked,
    /// The link could not be established, and why; or it has ended.
    Unlinked { why: String },
    /// A message of the replica.
    Received(FromReplica),
    /// The publisher stops.
    Close,
    /// Time has passed, or the desired state has changed.
    Tick,
}

/// An action for the task.
#[derive(PartialEq, Debug)]
pub(super) enum Action {
    /// Connect, and report the outcome.
    Dial,
    /// Close the link; report nothing more about it.
    Close,
    /// Send the publisher's record and its digests.
    Announce { request: u64, desired: Vec<Digest> },
    /// Send changes. Without any it is a heartbeat.
    Write { request: u64, groups: Vec<Group> },
    /// Send that everything desired has been written.
    Confirm { request: u64 },
    /// Remove everything of the publisher.
    Clear { request: u64 },
    /// For the log: an attempt has failed, or the replica has refused the publisher.
    Failed { why: String, refused: bool, degraded: bool, again: Instant },
    /// For the log: the replica refuses a path.
    PathRefused { path: Path, reason: String },
    /// The publisher has stopped, as far as this replica is concerned.
    Closed,
}

/// The write client of one replica.
#[derive(Debug)]
pub(super) struct WriteCore {
    timing: ResolverTiming,
    random: StdRng,
    state: State,
    health: ReplicaHealth,
    /// Failures since the last success.
    failures: u32,
    /// When the current or the last attempt began.
    attempted_at: Instant,
    last_error: Option<String>,
    next_request: u64,
    pending: PendingChanges,
    /// The size of the desired state and its log, as of the last step.
    summary: StateSummary,
    /// When the desired state last changed.
    changed_at: Instant,
    /// The replica differed at the last comparison: buckets are rewritten, and then have to be
    /// confirmed.
    unconfirmed: bool,
    closing: bool,
    actions: Vec<Action>,
}

#[derive(Debug)]
enum State {
    Waiting { until: Instant },
    Dialling,
    Linked(Linked),
    Closed,
}

#[derive(Debug)]
struct Linked {
    /// Requests whose last answer has not arrived, in the order in which they were sent.
    in_flight: BTreeMap<u64, Request>,
    /// Since when an answer is awaited, and its timeout.
    awaiting: Option<(Instant, Duration)>,
    /// When something was last sent.
    sent_at: Instant,
    /// When this side last sent its digests.
    compared_at: Instant,
    /// The interval of comparisons: half of the shorter `writer_ttl` of both sides.
    heartbeat: Duration,
    /// The first announce was answered.
    announced: bool,
}

#[derive(Debug)]
enum Request {
    /// Covers all changes before that number.
    Announce {
        digests: Vec<Digest>,
        changes: u64,
    },
    /// All its keys, and how many are answered.
    Write {
        keys: Vec<KeyHash>,
        done: usize,
    },
    Confirm,
    Clear,
}

impl WriteCore {
    /// A client that connects at once.
    pub(super) fn new(now: Instant, timing: ResolverTiming, seed: u64) -> WriteCore {
        WriteCore {
            timing,
            random: StdRng::seed_from_u64(seed),
            state: State::Waiting { until: now },
            health: ReplicaHealth::Connecting { since: now },
            failures: 0,
            attempted_at: now,
            last_error: None,
            next_request: 1,
            pending: PendingChanges::new(),
            summary: StateSummary::default(),
            changed_at: now,
            unconfirmed: false,
            closing: false,
            actions: Vec::new(),
        }
    }

    /// Handles an event, and returns the actions to execute.
    pub(super) fn step(
        &mut self,
        now: Instant,
        desired: &DesiredState,
        event: Event,
    ) -> Vec<Action> {
        let summary = desired.summary();
        if self.summary.changes < summary.changes {
            self.changed_at = now;
        }
        self.summary = summary;
        match event {
            Event::Linked => self.linked(now, desired),
            Event::Unlinked { why } => self.failed(now, why, false),
            Event::Received(message) => self.received(now, desired, message),
            Event::Close => self.close(now),
            Event::Tick => {}
        }
        self.handle_deadlines(now);
        self.send(now, desired);
        self.compare(now, desired);
        std::mem::take(&mut self.actions)
    }

    /// When to step without another event.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Waiting { until } => Some(*until),
            State::Dialling | State::Closed => None,
            State::Linked(linked) => {
                let answer = linked.awaiting.map(|(since, allowed)| since + allowed);
                let beats = linked.announced && !self.closing;
                let beat = beats.then_some(linked.sent_at + linked.heartbeat);
                [answer, beat, self.compare_at()].into_iter().flatten().min()
            }
        }
    }

    /// When to compare digests, or to confirm a rewriting. `None` while that has to wait for an
    /// event: for everything pending to be sent, or for the last answer.
    fn compare_at(&self) -> Option<Instant> {
        let State::Linked(linked) = &self.state else { return None };
        let under_way = linked.in_flight.values().any(|r| !matches!(r, Request::Write { .. }));
        if !linked.announced || self.closing || under_way || self.pending.any(self.summary) {
            return None;
        }
        if self.pending.missed {
            return Some(linked.compared_at);
        }
        let at = linked.compared_at + linked.heartbeat;
        let still = self.unconfirmed && linked.in_flight.is_empty();
        Some(if still { at.min(self.changed_at + CONFIRM_QUIET) } else { at })
    }

    pub(super) fn health(&self) -> ReplicaHealth {
        self.health
    }

    pub(super) fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// There is more to write, and it may be written now.
    pub(super) fn has_more(&self) -> bool {
        self.may_write() && self.pending.any(self.summary)
    }

    /// The number of changes of the desired state that it has handled.
    pub(super) fn changes(&self) -> u64 {
        self.summary.changes
    }

    /// The first change that it still needs; `None` without a link, because the next one begins
    /// with a comparison.
    pub(super) fn needs_changes(&self) -> Option<u64> {
        let State::Linked(linked) = &self.state else { return None };
        let covered = linked.in_flight.values().filter_map(|request| match request {
            Request::Announce { changes, .. } => Some(*changes),
            _ => None,
        });
        Some(covered.fold(self.pending.sent_up_to(), u64::max))
    }

    /// The number of paths and defaults that the replica may lack.
    pub(super) fn pending(&self) -> usize {
        let in_flight = match &self.state {
            State::Linked(linked) => linked.unanswered(),
            _ => 0,
        };
        self.unsent() + in_flight
    }

    /// How many of them are not in flight.
    fn unsent(&self) -> usize {
        let by_change = matches!(&self.state, State::Linked(linked) if linked.announced);
        self.pending.len(self.summary, by_change)
    }

    pub(super) fn refused(&self) -> usize {
        self.pending.refused()
    }

    /// The replica has answered, and matches the desired state except for what it refuses. False
    /// while digests are compared, which takes a moment.
    pub(super) fn is_up_to_date(&self) -> bool {
        let State::Linked(linked) = &self.state else { return false };
        let sent = linked.unanswered() == 0 && !self.pending.may_be_incomplete(self.summary);
        linked.announced && !linked.compares() && sent && !self.closing
    }

    /// Whether the replica has refused that key.
    #[cfg(test)]
    pub(super) fn has_refused(&self, hash: KeyHash) -> bool {
        self.pending.has_refused(hash)
    }

    fn linked(&mut self, now: Instant, desired: &DesiredState) {
        if !matches!(self.state, State::Dialling) {
            return;
        }
        self.state = State::Linked(Linked {
            in_flight: BTreeMap::new(),
            awaiting: None,
            sent_at: now,
            compared_at: now,
            heartbeat: self.timing.heartbeat(),
            announced: false,
        });
        self.announce(now, desired, 0);
    }

    /// Compares digests at `level` bits of the hash.
    fn announce(&mut self, now: Instant, desired: &DesiredState, level: u32) {
        let digests = self.pending.digests(desired, level);
        self.pending.comparison_sent();
        let changes = desired.changes().end();
        let request = self.sent(now, Request::Announce { digests: digests.clone(), changes });
        if let State::Linked(linked) = &mut self.state {
            linked.compared_at = now;
        }
        self.actions.push(Action::Announce { request, desired: digests });
    }

    /// Records a request as sent, and returns its number.
    fn sent(&mut self, now: Instant, request: Request) -> u64 {
        let number = self.next_request;
        self.next_request += 1;
        let more = self.unsent();
        if let State::Linked(linked) = &mut self.state {
            linked.sent_at = now;
            linked.in_flight.insert(number, request);
            if linked.awaiting.is_none() {
                linked.await_answer(now, &self.timing, more);
            }
        }
        number
    }

    fn received(&mut self, now: Instant, desired: &DesiredState, message: FromReplica) {
        if !matches!(self.state, State::Linked(_)) {
            return;
        }
        match message {
            FromReplica::Announced(answer) => self.announced(now, desired, answer),
            FromReplica::Written(answer) => self.written(now, desired, answer),
            FromReplica::Refused { code: RequestRefusal::NotAnnounced, .. } if !self.closing => {
                // The replica considered it silent, and has removed it.
                self.reset_in_flight();
                self.pending.unknown = self.pending.unknown.max(1);
                if let State::Linked(linked) = &mut self.state {
                    linked.announced = false;
                }
                self.announce(now, desired, 0);
            }
            FromReplica::Refused { code, reason, .. } => {
                self.actions.push(Action::Close);
                if code == RequestRefusal::Forbidden {
                    // Nothing changes before the policy does: it is degraded at once.
                    self.failures = self.failures.max(self.timing.tries);
                }
                self.failed(now, reason, true);
            }
            FromReplica::Resolved(_)
            | FromReplica::Listed(_)
            | FromReplica::Status { .. }
            | FromReplica::Publishers(_)
            | FromReplica::Table(_)
            | FromReplica::PathSnapshot(_)
            | FromReplica::PathChanges(_)
            | FromReplica::PublisherGone(_)
            | FromReplica::PublishersKnown(_) => {}
        }
    }

    fn announced(&mut self, now: Instant, desired: &DesiredState, answer: Announced) {
        let State::Linked(linked) = &mut self.state else { return };
        let Some(Request::Announce { digests, changes }) = linked.in_flight.remove(&answer.id)
        else {
            return;
        };
        let ttl = Duration::from_millis(answer.writer_ttl_ms.max(1)).min(self.timing.writer_ttl);
        linked.heartbeat = ttl / 2;
        linked.announced = true;
        let level = self.pending.level(desired);
        if digests.len() == 1 && level > 0 && answer.stored != digests {
            // Some buckets differ; the next answer shows which.
            self.pending.unknown = self.pending.unknown.max(1);
            self.progress(now);
            self.announce(now, desired, level);
            return;
        }
        self.pending.set_sent_up_to(changes);
        self.pending.unknown = 0;
        self.unconfirmed = self.pending.rewrite(desired, &digests, &answer.stored);
        if !self.unconfirmed {
            // Even if a link was lost during a rewriting: nothing has to be rewritten, so nothing
            // is stale.
            self.record_success(now);
            self.pending.retry();
        }
        self.progress(now);
    }

    fn written(&mut self, now: Instant, desired: &DesiredState, answer: Written) {
        let State::Linked(linked) = &mut self.state else { return };
        let Some(request) = linked.in_flight.get_mut(&answer.id) else { return };
        let mut refused = Vec::new();
        match request {
            Request::Write { keys, done } => {
                for no in answer.refused {
                    let position =
                        usize::try_from(no.place).ok().filter(|position| position >= done);
                    let hash = position.and_then(|position| keys.get(position));
                    refused.extend(hash.map(|hash| (*hash, no.reason)));
                }
                let sent = usize::try_from(answer.done).unwrap_or(usize::MAX);
                *done = sent.clamp(*done, keys.len().max(*done));
            }
            Request::Confirm if answer.last => self.unconfirmed = false,
            Request::Clear if answer.last => {
                self.actions.push(Action::Close);
                self.closed();
                return;
            }
            Request::Announce { .. } | Request::Confirm | Request::Clear => {}
        }
        if answer.last {
            let ended = linked.in_flight.remove(&answer.id);
            // A replica that ends a request early has not done the rest.
            if ended.is_some_and(|request| request.len() > 0) {
                self.pending.missed = true;
            }
        }
        for (hash, reason) in refused {
            self.refuse(desired, answer.id, hash, reason);
        }
        self.record_success(now);
        self.progress(now);
    }

    /// The replica refuses a key of a request. A key that is no longer desired is not pending; one
    /// with other terms by now is written again.
    fn refuse(&mut self, desired: &DesiredState, request: u64, hash: KeyHash, reason: String) {
        let Some((default, entry)) = desired.keys().by_hash(hash) else { return };
        let (path, terms) = (entry.path.clone(), entry.terms.clone());
        let digest = terms.digest();
        if self.pending.refuse(hash, Key { path: path.clone(), default }, terms)
            && let State::Linked(linked) = &mut self.state
        {
            // Digests sent after the request assume that the key is registered.
            for (_, request) in linked.in_flight.range_mut(request..) {
                if let Request::Announce { digests, .. } = request {
                    let bucket = hash.bucket(digests.len());
                    digests[bucket].remove(hash, digest);
                }
            }
        }
        self.actions.push(Action::PathRefused { path, reason });
    }

    /// An answer has arrived: the timeout of the next one begins anew.
    fn progress(&mut self, now: Instant) {
        let more = self.unsent();
        if let State::Linked(linked) = &mut self.state {
            linked.await_answer(now, &self.timing, more);
        }
    }

    fn record_success(&mut self, now: Instant) {
        self.failures = 0;
        if !matches!(self.health, ReplicaHealth::Connected { .. }) {
            self.health = ReplicaHealth::Connected { since: now };
        }
    }

    /// An attempt has failed, or was refused. Everything that the replica lacks stays recorded.
    fn failed(&mut self, now: Instant, why: String, refused: bool) {
        if matches!(self.state, State::Waiting { .. } | State::Closed) {
            return;
        }
        self.reset_in_flight();
        if self.closing {
            self.closed();
            return;
        }
        self.failures += 1;
        let degraded = self.failures >= self.timing.tries;
        let half = self.timing.heartbeat();
        // Counted from the start of the attempt, so that a replica that returns is tried within
        // half a `writer_ttl`, however long an attempt takes to fail.
        let again = if degraded {
            (self.attempted_at + half).max(now)
        } else {
            now + self.timing.retry_wait(self.random.next_u64()).min(half)
        };
        self.health = match self.health {
            ReplicaHealth::Degraded { since } => ReplicaHealth::Degraded { since },
            _ if degraded => ReplicaHealth::Degraded { since: now },
            ReplicaHealth::Connecting { since } => ReplicaHealth::Connecting { since },
            ReplicaHealth::Connected { .. } => ReplicaHealth::Connecting { since: now },
        };
        self.last_error = Some(why.clone());
        self.state = State::Waiting { until: again };
        self.actions.push(Action::Failed { why, refused, degraded, again });
    }

    /// Requests in flight may not have arrived: the next comparison shows.
    fn reset_in_flight(&mut self) {
        let State::Linked(linked) = &mut self.state else { return };
        linked.awaiting = None;
        self.pending.unknown += linked.unanswered();
        linked.in_flight.clear();
        self.pending.link_lost();
    }

    fn close(&mut self, now: Instant) {
        self.closing = true;
        match &self.state {
            State::Waiting { .. } => self.dial(now),
            State::Linked(linked) if linked.announced => self.clear(now),
            State::Linked(_) | State::Dialling => {}
            State::Closed => self.actions.push(Action::Closed),
        }
    }

    fn clear(&mut self, now: Instant) {
        let request = self.sent(now, Request::Clear);
        self.actions.push(Action::Clear { request });
    }

    fn closed(&mut self) {
        self.state = State::Closed;
        self.actions.push(Action::Closed);
    }

    fn dial(&mut self, now: Instant) {
        self.state = State::Dialling;
        self.attempted_at = now;
        self.actions.push(Action::Dial);
    }

    /// Handles expired deadlines, except for what follows the writes: see [`WriteCore::compare`].
    fn handle_deadlines(&mut self, now: Instant) {
        match &self.state {
            State::Waiting { until } if *until <= now => self.dial(now),
            State::Linked(linked) => {
                if let Some((since, allowed)) = linked.awaiting
                    && since + allowed <= now
                {
                    let silent = now.saturating_duration_since(since);
                    self.actions.push(Action::Close);
                    self.failed(now, format!("no answer for {silent:?}"), false);
                    return;
                }
                let beats = linked.announced && !self.closing;
                let compares = self.compare_at().is_some_and(|at| at <= now);
                if beats && !compares && linked.sent_at + linked.heartbeat <= now {
                    let request = self.sent(now, Request::Write { keys: Vec::new(), done: 0 });
                    self.actions.push(Action::Write { request, groups: Vec::new() });
                }
            }
            State::Waiting { .. } | State::Dialling | State::Closed => {}
        }
    }

    /// Sends one request, if it may and there is anything to send.
    fn send(&mut self, now: Instant, desired: &DesiredState) {
        if self.closing
            && let State::Linked(linked) = &self.state
            && linked.announced
            && !linked
                .in_flight
                .values()
                .any(|r| matches!(r, Request::Clear | Request::Announce { .. }))
        {
            self.clear(now);
        }
        if self.may_write()
            && let Some(Batch { groups, keys }) = self.pending.next(desired)
        {
            let request = self.sent(now, Request::Write { keys, done: 0 });
            self.actions.push(Action::Write { request, groups });
        }
    }

    /// Nothing is written while digests are compared.
    fn may_write(&self) -> bool {
        let State::Linked(linked) = &self.state else { return false };
        linked.announced
            && !self.closing
            && linked.in_flight.len() < REQUESTS_IN_FLIGHT_MAX
            && !linked.compares()
    }

    /// Compares digests, or confirms a rewriting, once it is time. It need not wait for requests in
    /// flight: a replica handles requests in order, and a publisher that writes all the time always
    /// has one in flight.
    fn compare(&mut self, now: Instant, desired: &DesiredState) {
        if self.compare_at().is_none_or(|at| at > now) {
            return;
        }
        // A missed change may be one that a confirm would remove.
        if self.unconfirmed && !self.pending.missed {
            let request = self.sent(now, Request::Confirm);
            self.actions.push(Action::Confirm { request });
        } else {
            self.announce(now, desired, 0);
        }
    }
}

impl Linked {
    /// Whether digests are being compared.
    fn compares(&self) -> bool {
        self.in_flight.values().any(|request| matches!(request, Request::Announce { .. }))
    }

    /// Paths and defaults in flight.
    fn unanswered(&self) -> usize {
        self.in_flight.values().map(Request::len).sum()
    }

    /// Starts the timeout of the next answer at `now`, if there is any request. The timeout is that
    /// of a batch of everything in flight and still `pending`. With an announce in flight, pending
    /// changes do not count: a comparison does not take longer after many changes.
    fn await_answer(&mut self, now: Instant, timing: &ResolverTiming, pending: usize) {
        let pending = if self.compares() { 0 } else { pending };
        let allowed = timing.write_timeout((self.unanswered() + pending) as u64);
        self.awaiting = (!self.in_flight.is_empty()).then_some((now, allowed));
    }
}

impl Request {
    /// Its unanswered paths and defaults.
    fn len(&self) -> usize {
        match self {
            Request::Write { keys, done } => keys.len() - done,
            Request::Announce { .. } | Request::Confirm | Request::Clear => 0,
        }
    }
}
