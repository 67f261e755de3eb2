//! How one replica is driven towards what is wanted, and when it is tried again. Pure: it reads no
//! clock, draws from a seeded source, opens nothing.
//!
//! **After every [`WriteCore::step`] its actions are carried out in their order; it is stepped with
//! [`Input::Tick`] again at once while [`WriteCore::has_more`], and at
//! [`WriteCore::next_deadline`].** A step puts one request together at most: none takes longer than
//! a millisecond, however much there is to say. Nothing that happens makes it give up, or forget
//! what the replica lacks.
//!
//! ```text
//!   Waiting ──▶ Dialling ──▶ Linked: compare, write, and compare again every half writer_ttl
//!      ▲            │           │
//!      └────────────┴───────────┘   a failure: 1–12 s, 1–12 s, then degraded: every half writer_ttl
//!
//!   Linked:
//!                    ┌──────────────────── equal: nothing is lacking, and nothing is stale
//!                    │                                                   │
//!   announce one digest ── differs ──▶ announce those of all buckets ────┤
//!      ▲             │                                                   │ differ
//!      │             └── differs, and one bucket is all there is ───┐    │
//!      │                                                            ▼    ▼
//!      └── half writer_ttl, or changes were missed ◀── confirm ◀── write those buckets again, and what changes meanwhile
//! ```
//!
//! - What changes while a replica keeps up is written key by key, from [`Wanted::changes`]. What it
//!   was not told of, because it was away or far behind, the next comparison finds: no copy is kept
//!   for it.
//! - The replica may tell apart fewer buckets than this side, down to one; then those are compared,
//!   and written again.
//! - No write is sent between an announce and its answer: both digests are of the same moment, but
//!   for refusals under way, which are counted out.
//! - What it refuses is left out of the digests, and tried again after each comparison that was
//!   equal.
//! - *Confirm* removes what an earlier start held. It follows once all buckets that differ are
//!   written again, every change is told, and the wanted set is still: see [`CONFIRM_QUIET`]. It is
//!   for the last announce alone.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use longshore_protocol::messages::resolver::{
    Announced, Digest, FromReplica, Group, KeyHash, RequestRefusal, Written,
};
use longshore_protocol::{Path, ResolverTiming};
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::write_client::ReplicaStanding;
use crate::write_client::buckets::Key;
use crate::write_client::lacking::{Batch, Lacking};
use crate::write_client::wanted::{Extent, Wanted};

/// Most requests that wait for an answer.
pub(super) const REQUESTS_IN_FLIGHT_MAX: usize = 8;
/// How long the wanted set has to be still before what is not in it is removed: a publisher that
/// starts again publishes its paths one by one. One that is never still has it removed with the
/// next heartbeat.
pub(super) const CONFIRM_QUIET: Duration = Duration::from_secs(1);

/// What happened.
#[derive(Debug)]
pub(super) enum Input {
    /// The link that was dialled stands.
    Linked,
    /// It does not, and why; or it did, and has ended.
    Unlinked { why: String },
    /// The replica said something.
    Told(FromReplica),
    /// The publisher stops.
    Close,
    /// Time has passed, or something is wanted otherwise.
    Tick,
}

/// What is to be done.
#[derive(PartialEq, Debug)]
pub(super) enum Action {
    /// Connect, and say whether it worked.
    Dial,
    /// Close the link; nothing more is to be said of it.
    Hangup,
    /// Say who the publisher is and what it wants.
    Announce { request: u64, wanted: Vec<Digest> },
    /// Send changes. Without any it is a heartbeat.
    Write { request: u64, groups: Vec<Group> },
    /// Say that everything wanted has been written.
    Confirm { request: u64 },
    /// Have everything of the publisher removed.
    Clear { request: u64 },
    /// For the log: a try has failed.
    Failed { why: String, degraded: bool, again: Instant },
    /// For the log: the replica refuses a path.
    PathRefused { path: Path, reason: String },
    /// The publisher has stopped, as far as this replica can be told.
    Closed,
}

/// The write client, towards one replica.
#[derive(Debug)]
pub(super) struct WriteCore {
    timing: ResolverTiming,
    random: StdRng,
    state: State,
    standing: ReplicaStanding,
    /// Failures since something last went well.
    failures: u32,
    /// When the try began that is under way, or was last.
    tried_at: Instant,
    last_error: Option<String>,
    next_request: u64,
    lacking: Lacking,
    /// How much is wanted, and how much of it has changed, as far as it has looked.
    extent: Extent,
    /// When the wanted set last changed.
    changed_at: Instant,
    /// The replica did not hold what it should when last asked: what differs is written again, and
    /// then to be confirmed.
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
    /// Requests without their last answer, in the order in which they were sent.
    in_flight: BTreeMap<u64, Request>,
    /// Since when the replica owes an answer, and how long it may take.
    owing: Option<(Instant, Duration)>,
    /// When something was last sent.
    sent_at: Instant,
    /// When both sides' digests were last compared, as far as this side is concerned.
    compared_at: Instant,
    /// How often both are to be: half of the shorter `writer_ttl` of both sides.
    heartbeat: Duration,
    /// The first announce is answered.
    announced: bool,
}

#[derive(Debug)]
enum Request {
    /// Covers all changes before that number.
    Announce {
        digests: Vec<Digest>,
        changes: u64,
    },
    /// All keys of it, and how many are answered.
    Write {
        keys: Vec<KeyHash>,
        done: usize,
    },
    Confirm,
    Clear,
}

impl WriteCore {
    /// A client that tries at once.
    pub(super) fn new(now: Instant, timing: ResolverTiming, seed: u64) -> WriteCore {
        WriteCore {
            timing,
            random: StdRng::seed_from_u64(seed),
            state: State::Waiting { until: now },
            standing: ReplicaStanding::Connecting { since: now },
            failures: 0,
            tried_at: now,
            last_error: None,
            next_request: 1,
            lacking: Lacking::new(),
            extent: Extent::default(),
            changed_at: now,
            unconfirmed: false,
            closing: false,
            actions: Vec::new(),
        }
    }

    /// Takes in what happened, and says what is to be done.
    pub(super) fn step(&mut self, now: Instant, wanted: &Wanted, input: Input) -> Vec<Action> {
        let extent = wanted.extent();
        if self.extent.changes < extent.changes {
            self.changed_at = now;
        }
        self.extent = extent;
        match input {
            Input::Linked => self.linked(now, wanted),
            Input::Unlinked { why } => self.failed(now, why),
            Input::Told(message) => self.told(now, wanted, message),
            Input::Close => self.close(now),
            Input::Tick => {}
        }
        self.due(now);
        self.send(now, wanted);
        self.compare(now, wanted);
        std::mem::take(&mut self.actions)
    }

    /// When it is to be stepped though nothing has happened.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Waiting { until } => Some(*until),
            State::Dialling | State::Closed => None,
            State::Linked(linked) => {
                let answer = linked.owing.map(|(since, allowed)| since + allowed);
                let beats = linked.announced && !self.closing;
                let beat = beats.then_some(linked.sent_at + linked.heartbeat);
                [answer, beat, self.compare_at()].into_iter().flatten().min()
            }
        }
    }

    /// When the digests are to be compared, or a rewriting confirmed. None while that has to wait
    /// for something to happen: for all that is lacking to be sent, or for the answer to the last
    /// time.
    fn compare_at(&self) -> Option<Instant> {
        let State::Linked(linked) = &self.state else { return None };
        let under_way = linked.in_flight.values().any(|r| !matches!(r, Request::Write { .. }));
        if !linked.announced || self.closing || under_way || self.lacking.any(self.extent) {
            return None;
        }
        if self.lacking.missed {
            return Some(linked.compared_at);
        }
        let at = linked.compared_at + linked.heartbeat;
        let still = self.unconfirmed && linked.in_flight.is_empty();
        Some(if still { at.min(self.changed_at + CONFIRM_QUIET) } else { at })
    }

    pub(super) fn standing(&self) -> ReplicaStanding {
        self.standing
    }

    pub(super) fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// There is more to write, and it may be written now.
    pub(super) fn has_more(&self) -> bool {
        self.may_write() && self.lacking.any(self.extent)
    }

    /// How many changes of the wanted set it has taken in.
    pub(super) fn changes(&self) -> u64 {
        self.extent.changes
    }

    /// From which number on it needs changes; none while there is no link, because the next one
    /// begins with a comparison.
    pub(super) fn needs_changes(&self) -> Option<u64> {
        let State::Linked(linked) = &self.state else { return None };
        let covered = linked.in_flight.values().filter_map(|request| match request {
            Request::Announce { changes, .. } => Some(*changes),
            _ => None,
        });
        Some(covered.fold(self.lacking.told(), u64::max))
    }

    /// How many paths and defaults the replica may not have been told of.
    pub(super) fn lacking(&self) -> usize {
        let in_flight = match &self.state {
            State::Linked(linked) => linked.unanswered(),
            _ => 0,
        };
        self.untold() + in_flight
    }

    /// How many of them are not on their way.
    fn untold(&self) -> usize {
        let by_change = matches!(&self.state, State::Linked(linked) if linked.announced);
        self.lacking.len(self.extent, by_change)
    }

    pub(super) fn refused(&self) -> usize {
        self.lacking.refused()
    }

    /// The replica has answered, and holds everything that is wanted but for what it refuses. Not
    /// while digests are compared: what comes of that is known in a moment.
    pub(super) fn is_whole(&self) -> bool {
        let State::Linked(linked) = &self.state else { return false };
        let told = linked.unanswered() == 0 && !self.lacking.may_lack(self.extent);
        linked.announced && !linked.compares() && told && !self.closing
    }

    /// Whether the replica has refused that key.
    #[cfg(test)]
    pub(super) fn has_refused(&self, hash: KeyHash) -> bool {
        self.lacking.has_refused(hash)
    }

    fn linked(&mut self, now: Instant, wanted: &Wanted) {
        if !matches!(self.state, State::Dialling) {
            return;
        }
        self.state = State::Linked(Linked {
            in_flight: BTreeMap::new(),
            owing: None,
            sent_at: now,
            compared_at: now,
            heartbeat: self.timing.heartbeat(),
            announced: false,
        });
        self.announce(now, wanted, 0);
    }

    /// Compares, by so many bits of the hash.
    fn announce(&mut self, now: Instant, wanted: &Wanted, level: u32) {
        let digests = self.lacking.digests(wanted, level);
        self.lacking.is_compared();
        let changes = wanted.changes().end();
        let request = self.sent(now, Request::Announce { digests: digests.clone(), changes });
        if let State::Linked(linked) = &mut self.state {
            linked.compared_at = now;
        }
        self.actions.push(Action::Announce { request, wanted: digests });
    }

    /// Notes a request as sent, and gives it its number.
    fn sent(&mut self, now: Instant, request: Request) -> u64 {
        let number = self.next_request;
        self.next_request += 1;
        let more = self.untold();
        if let State::Linked(linked) = &mut self.state {
            linked.sent_at = now;
            linked.in_flight.insert(number, request);
            if linked.owing.is_none() {
                linked.owe(now, &self.timing, more);
            }
        }
        number
    }

    fn told(&mut self, now: Instant, wanted: &Wanted, message: FromReplica) {
        if !matches!(self.state, State::Linked(_)) {
            return;
        }
        match message {
            FromReplica::Announced(answer) => self.announced(now, wanted, answer),
            FromReplica::Written(answer) => self.written(now, wanted, answer),
            FromReplica::Refused { code: RequestRefusal::NotAnnounced, .. } if !self.closing => {
                // It was silent for too long as the replica sees it, and has been forgotten.
                self.take_back();
                self.lacking.unknown = self.lacking.unknown.max(1);
                if let State::Linked(linked) = &mut self.state {
                    linked.announced = false;
                }
                self.announce(now, wanted, 0);
            }
            FromReplica::Refused { reason, .. } => {
                self.actions.push(Action::Hangup);
                self.failed(now, reason);
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

    fn announced(&mut self, now: Instant, wanted: &Wanted, answer: Announced) {
        let State::Linked(linked) = &mut self.state else { return };
        let Some(Request::Announce { digests, changes }) = linked.in_flight.remove(&answer.id)
        else {
            return;
        };
        let ttl = Duration::from_millis(answer.writer_ttl_ms.max(1)).min(self.timing.writer_ttl);
        linked.heartbeat = ttl / 2;
        linked.announced = true;
        let level = self.lacking.level(wanted);
        if digests.len() == 1 && level > 0 && answer.held != digests {
            // Something differs: which buckets, the next answer tells.
            self.lacking.unknown = self.lacking.unknown.max(1);
            self.progress(now);
            self.announce(now, wanted, level);
            return;
        }
        self.lacking.told_up_to(changes);
        self.lacking.unknown = 0;
        self.unconfirmed = self.lacking.rewrite(wanted, &digests, &answer.held);
        if !self.unconfirmed {
            // Whatever a link was lost in the middle of: nothing has to be written again, so
            // nothing is stale.
            self.went_well(now);
            self.lacking.retry();
        }
        self.progress(now);
    }

    fn written(&mut self, now: Instant, wanted: &Wanted, answer: Written) {
        let State::Linked(linked) = &mut self.state else { return };
        let Some(request) = linked.in_flight.get_mut(&answer.id) else { return };
        let mut refused = Vec::new();
        match request {
            Request::Write { keys, done } => {
                for no in answer.refused {
                    let place = usize::try_from(no.place).ok().filter(|place| place >= done);
                    let hash = place.and_then(|place| keys.get(place));
                    refused.extend(hash.map(|hash| (*hash, no.reason)));
                }
                let told = usize::try_from(answer.done).unwrap_or(usize::MAX);
                *done = told.clamp(*done, keys.len().max(*done));
            }
            Request::Confirm if answer.last => self.unconfirmed = false,
            Request::Clear if answer.last => {
                self.actions.push(Action::Hangup);
                self.closed();
                return;
            }
            Request::Announce { .. } | Request::Confirm | Request::Clear => {}
        }
        if answer.last {
            let ended = linked.in_flight.remove(&answer.id);
            // A replica that ends a request early has not done the rest.
            if ended.is_some_and(|request| request.len() > 0) {
                self.lacking.missed = true;
            }
        }
        for (hash, reason) in refused {
            self.refuse(wanted, answer.id, hash, reason);
        }
        self.went_well(now);
        self.progress(now);
    }

    /// The replica refuses a key of a request. What is no longer wanted is not missed; what is
    /// wanted on other terms by now is written again.
    fn refuse(&mut self, wanted: &Wanted, request: u64, hash: KeyHash, reason: String) {
        let Some((default, entry)) = wanted.keys().by_hash(hash) else { return };
        let (path, terms) = (entry.path.clone(), entry.terms.clone());
        let digest = terms.digest();
        if self.lacking.refuse(hash, Key { path: path.clone(), default }, terms)
            && let State::Linked(linked) = &mut self.state
        {
            // A digest that was sent behind it takes it for held.
            for (_, request) in linked.in_flight.range_mut(request..) {
                if let Request::Announce { digests, .. } = request {
                    let bucket = hash.bucket(digests.len());
                    digests[bucket].remove(hash, digest);
                }
            }
        }
        self.actions.push(Action::PathRefused { path, reason });
    }

    /// An answer has come: the next may take its full time again.
    fn progress(&mut self, now: Instant) {
        let more = self.untold();
        if let State::Linked(linked) = &mut self.state {
            linked.owe(now, &self.timing, more);
        }
    }

    fn went_well(&mut self, now: Instant) {
        self.failures = 0;
        if !matches!(self.standing, ReplicaStanding::Connected { .. }) {
            self.standing = ReplicaStanding::Connected { since: now };
        }
    }

    /// A try has failed: nothing that the replica lacks is forgotten.
    fn failed(&mut self, now: Instant, why: String) {
        if matches!(self.state, State::Waiting { .. } | State::Closed) {
            return;
        }
        self.take_back();
        if self.closing {
            self.closed();
            return;
        }
        self.failures += 1;
        let degraded = self.failures >= self.timing.tries;
        let half = self.timing.heartbeat();
        // Counted from the start of the try, so that a replica that returns is tried within half a
        // writer_ttl, however long a try takes to fail.
        let again = if degraded {
            (self.tried_at + half).max(now)
        } else {
            now + self.timing.retry_wait(self.random.next_u64()).min(half)
        };
        self.standing = match self.standing {
            ReplicaStanding::Degraded { since } => ReplicaStanding::Degraded { since },
            _ if degraded => ReplicaStanding::Degraded { since: now },
            ReplicaStanding::Connecting { since } => ReplicaStanding::Connecting { since },
            ReplicaStanding::Connected { .. } => ReplicaStanding::Connecting { since: now },
        };
        self.last_error = Some(why.clone());
        self.state = State::Waiting { until: again };
        self.actions.push(Action::Failed { why, degraded, again });
    }

    /// What was being told may not have arrived: the next comparison shows.
    fn take_back(&mut self) {
        let State::Linked(linked) = &mut self.state else { return };
        linked.owing = None;
        self.lacking.unknown += linked.unanswered();
        linked.in_flight.clear();
        self.lacking.interrupted();
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
        self.tried_at = now;
        self.actions.push(Action::Dial);
    }

    /// Does what is due, but for what follows the writes: see [`WriteCore::compare`].
    fn due(&mut self, now: Instant) {
        match &self.state {
            State::Waiting { until } if *until <= now => self.dial(now),
            State::Linked(linked) => {
                if let Some((since, allowed)) = linked.owing
                    && since + allowed <= now
                {
                    let silent = now.saturating_duration_since(since);
                    self.actions.push(Action::Hangup);
                    self.failed(now, format!("no answer for {silent:?}"));
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

    /// Sends one request, if there is room for it and anything to say.
    fn send(&mut self, now: Instant, wanted: &Wanted) {
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
            && let Some(Batch { groups, keys }) = self.lacking.next(wanted)
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

    /// Compares digests, or confirms a rewriting, once it is time. Behind whatever is under way: a
    /// replica does things in their order, and a publisher that writes all the time leaves no
    /// moment without a request.
    fn compare(&mut self, now: Instant, wanted: &Wanted) {
        if self.compare_at().is_none_or(|at| at > now) {
            return;
        }
        // What was missed may be something that a confirm would remove.
        if self.unconfirmed && !self.lacking.missed {
            let request = self.sent(now, Request::Confirm);
            self.actions.push(Action::Confirm { request });
        } else {
            self.announce(now, wanted, 0);
        }
    }
}

impl Linked {
    /// Digests are being compared.
    fn compares(&self) -> bool {
        self.in_flight.values().any(|request| matches!(request, Request::Announce { .. }))
    }

    /// Paths and defaults that are on their way and not answered.
    fn unanswered(&self) -> usize {
        self.in_flight.values().map(Request::len).sum()
    }

    /// From `now` on the replica owes an answer, if there is any request: the whole of what is on
    /// its way, and of what is `lacking` still, is the batch that decides how long that may take.
    /// With an announce on its way, what is lacking is not asked of it yet: digests are compared no
    /// slower if much has changed while it was away.
    fn owe(&mut self, now: Instant, timing: &ResolverTiming, lacking: usize) {
        let lacking = if self.compares() { 0 } else { lacking };
        let allowed = timing.write_timeout((self.unanswered() + lacking) as u64);
        self.owing = (!self.in_flight.is_empty()).then_some((now, allowed));
    }
}

impl Request {
    /// Paths and defaults that it carries and that are not answered.
    fn len(&self) -> usize {
        match self {
            Request::Write { keys, done } => keys.len() - done,
            Request::Announce { .. } | Request::Confirm | Request::Clear => 0,
        }
    }
}
