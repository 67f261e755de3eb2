//! What one replica still lacks, and when to try it again. Pure: it reads no clock, draws from a seeded source, opens nothing.
//!
//! **After every [`WriteCore::step`] its actions are carried out in their order, and at [`WriteCore::next_deadline`] it is stepped with
//! [`Input::Tick`].** Nothing that happens makes it give up, or forget what the replica lacks.
//!
//! ```text
//!   Waiting ──▶ Dialling ──▶ Announcing ──▶ Up: write what is lacking, announce again every half writer_ttl
//!      ▲            │            │           │
//!      └────────────┴────────────┴───────────┘   a failure: 1–12 s, 1–12 s, then degraded: every half writer_ttl
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use longshore_protocol::limits::RESOLVER_BATCH_BYTES_MAX;
use longshore_protocol::messages::resolver::{
    Announced, Change, Digest, FromReplica, RequestRefusal, Written,
};
use longshore_protocol::{Path, ResolverTiming};
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::write_client::ReplicaStanding;
use crate::write_client::wanted::{Key, TERMS, Wanted};

/// Most requests that wait for an answer.
pub(super) const REQUESTS_IN_FLIGHT_MAX: usize = 8;
/// Most paths in one request; a replica answers it in slices all the same.
pub(super) const WRITE_PATHS_MAX: usize = 10_000;
/// How long the wanted set has to be still before what is not in it is removed: a publisher that starts again publishes its paths one by one.
/// One that is never still has it removed with the next heartbeat.
pub(super) const CONFIRM_QUIET: Duration = Duration::from_secs(1);

/// What happened.
#[derive(Debug)]
pub(super) enum Input {
    /// Those are wanted since, or no longer.
    Changed(BTreeSet<Key>),
    /// The link that was dialled stands.
    Linked,
    /// It does not, and why; or it did, and has ended.
    Unlinked { why: String },
    /// The replica said something.
    Told(FromReplica),
    /// The publisher stops.
    Close,
    /// Time has passed.
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
    Announce { request: u64, wanted: Digest },
    /// Send changes. Without any it is a heartbeat.
    Write { request: u64, groups: Vec<(Change, Vec<Path>)> },
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
    /// What the replica is to be told of, and is not being told of.
    lacking: BTreeSet<Key>,
    /// What it has refused: left out of the digest, so that one such path does not make everything be written over and over.
    refused: BTreeSet<Key>,
    refused_digest: Digest,
    /// When the wanted set last changed.
    changed_at: Instant,
    /// The replica did not hold what it should when last asked: all that is wanted is written again, and then to be confirmed.
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
    /// Covers what was lacking: none of it is, if the digests agree. The digest leaves out what was refused.
    Announce {
        covered: BTreeSet<Key>,
        digest: Digest,
    },
    /// The keys that are not answered yet, and how many are.
    Write {
        keys: VecDeque<Key>,
        done: u64,
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
            lacking: BTreeSet::new(),
            refused: BTreeSet::new(),
            refused_digest: Digest::default(),
            changed_at: now,
            unconfirmed: false,
            closing: false,
            actions: Vec::new(),
        }
    }

    /// Takes in what happened, and says what is to be done.
    pub(super) fn step(&mut self, now: Instant, wanted: &Wanted, input: Input) -> Vec<Action> {
        match input {
            Input::Changed(keys) => self.changed(now, keys),
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

    /// When the digests are to be compared, or a rewriting confirmed. None while that has to wait for something to happen: for all
    /// that is lacking to be sent, or for the answer to the last time.
    fn compare_at(&self) -> Option<Instant> {
        let State::Linked(linked) = &self.state else { return None };
        let under_way = linked.in_flight.values().any(|r| !matches!(r, Request::Write { .. }));
        if !linked.announced || self.closing || under_way || !self.lacking.is_empty() {
            return None;
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

    /// How many paths and defaults the replica may not have been told of.
    pub(super) fn lacking(&self) -> usize {
        let in_flight = match &self.state {
            State::Linked(linked) => linked.in_flight.values().map(Request::len).sum(),
            _ => 0,
        };
        self.lacking.len() + in_flight
    }

    pub(super) fn refused(&self) -> usize {
        self.refused.len()
    }

    /// The replica has answered, and holds everything that is wanted but for what it refuses.
    pub(super) fn is_whole(&self) -> bool {
        matches!(&self.state, State::Linked(linked) if linked.announced) && self.lacking() == 0
    }

    fn changed(&mut self, now: Instant, keys: BTreeSet<Key>) {
        self.changed_at = now;
        for key in keys {
            if self.refused.remove(&key) {
                self.refused_digest.remove(key.hash(), *TERMS);
            }
            self.lacking.insert(key);
        }
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
        self.announce(now, wanted);
    }

    fn announce(&mut self, now: Instant, wanted: &Wanted) {
        let mut digest = wanted.digest();
        digest.count = digest.count.wrapping_sub(self.refused_digest.count);
        digest.sum = digest.sum.wrapping_sub(self.refused_digest.sum);
        let covered = std::mem::take(&mut self.lacking);
        let request = self.sent(now, Request::Announce { covered, digest });
        if let State::Linked(linked) = &mut self.state {
            linked.compared_at = now;
        }
        self.actions.push(Action::Announce { request, wanted: digest });
    }

    /// Notes a request as sent, and gives it its number.
    fn sent(&mut self, now: Instant, request: Request) -> u64 {
        let number = self.next_request;
        self.next_request += 1;
        let more = self.lacking.len();
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
            FromReplica::Written(answer) => self.written(now, answer),
            FromReplica::Refused { code: RequestRefusal::NotAnnounced, .. } if !self.closing => {
                // It was silent for too long as the replica sees it, and has been forgotten.
                self.take_back();
                self.announce(now, wanted);
            }
            FromReplica::Refused { reason, .. } => {
                self.actions.push(Action::Hangup);
                self.failed(now, reason);
            }
            FromReplica::Resolved(_)
            | FromReplica::Listed(_)
            | FromReplica::Status { .. }
            | FromReplica::Publishers(_)
            | FromReplica::WatchRefused(_)
            | FromReplica::Table(_)
            | FromReplica::Changed(_)
            | FromReplica::PathSnapshot(_)
            | FromReplica::PathChanges(_)
            | FromReplica::PublisherGone(_)
            | FromReplica::PublishersKnown(_) => {}
        }
    }

    fn announced(&mut self, now: Instant, wanted: &Wanted, answer: Announced) {
        let State::Linked(linked) = &mut self.state else { return };
        let Some(Request::Announce { covered, digest }) = linked.in_flight.remove(&answer.id)
        else {
            return;
        };
        let ttl = Duration::from_millis(answer.writer_ttl_ms.max(1)).min(self.timing.writer_ttl);
        linked.heartbeat = ttl / 2;
        linked.announced = true;
        if answer.held == [digest] {
            self.went_well(now);
            // Whatever a link was lost in the middle of: nothing has to be written again, so nothing is stale.
            self.unconfirmed = false;
            // What was refused before may fit now.
            self.lacking.extend(std::mem::take(&mut self.refused));
            self.refused_digest = Digest::default();
        } else {
            self.lacking.extend(covered);
            self.lacking.extend(wanted.keys().cloned());
            self.refused.clear();
            self.refused_digest = Digest::default();
            self.unconfirmed = true;
        }
        self.progress(now);
    }

    fn written(&mut self, now: Instant, answer: Written) {
        let State::Linked(linked) = &mut self.state else { return };
        let Some(request) = linked.in_flight.get_mut(&answer.id) else { return };
        let mut refused = Vec::new();
        match request {
            Request::Write { keys, done } => {
                for no in answer.refused {
                    let place = u64::from(no.place).checked_sub(*done);
                    let key = place.and_then(|place| keys.get(usize::try_from(place).ok()?));
                    refused.extend(key.cloned().map(|key| (key, no.reason)));
                }
                let more = usize::try_from(answer.done.saturating_sub(*done)).unwrap_or(usize::MAX);
                keys.drain(..more.min(keys.len()));
                *done = answer.done;
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
            let left = linked.in_flight.remove(&answer.id);
            // A replica that ends a request early has not done the rest.
            if let Some(Request::Write { keys, .. }) = left {
                self.lacking.extend(keys);
            }
        }
        for (key, reason) in refused {
            self.actions.push(Action::PathRefused { path: key.path.clone(), reason });
            // A digest that was sent behind it takes it for held.
            if let State::Linked(linked) = &mut self.state {
                for (_, request) in linked.in_flight.range_mut(answer.id..) {
                    if let Request::Announce { digest, .. } = request {
                        digest.remove(key.hash(), *TERMS);
                    }
                }
            }
            // Changed meanwhile: it is tried again at once.
            if !self.lacking.contains(&key) && self.refused.insert(key.clone()) {
                self.refused_digest.add(key.hash(), *TERMS);
            }
        }
        self.went_well(now);
        self.progress(now);
    }

    /// An answer has come: the next may take its full time again.
    fn progress(&mut self, now: Instant) {
        let more = self.lacking.len();
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
        // Counted from the start of the try, so that a replica that returns is tried within half a writer_ttl, however long a try takes
        // to fail.
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

    /// What was being told may not have arrived.
    fn take_back(&mut self) {
        let State::Linked(linked) = &mut self.state else { return };
        linked.owing = None;
        for (_, request) in std::mem::take(&mut linked.in_flight) {
            match request {
                Request::Announce { covered, .. } => self.lacking.extend(covered),
                Request::Write { keys, .. } => self.lacking.extend(keys),
                Request::Confirm | Request::Clear => {}
            }
        }
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
                    let keys = VecDeque::new();
                    let request = self.sent(now, Request::Write { keys, done: 0 });
                    self.actions.push(Action::Write { request, groups: Vec::new() });
                }
            }
            State::Waiting { .. } | State::Dialling | State::Closed => {}
        }
    }

    /// Sends what there is room for.
    fn send(&mut self, now: Instant, wanted: &Wanted) {
        loop {
            let State::Linked(linked) = &self.state else { return };
            let announcing =
                linked.in_flight.values().any(|r| matches!(r, Request::Announce { .. }));
            if !linked.announced || announcing {
                return;
            }
            if self.closing {
                if !linked.in_flight.values().any(|r| matches!(r, Request::Clear)) {
                    self.clear(now);
                }
                return;
            }
            if linked.in_flight.len() >= REQUESTS_IN_FLIGHT_MAX || self.lacking.is_empty() {
                return;
            }
            self.write(now, wanted);
        }
    }

    /// Compares digests, or confirms a rewriting, once it is time. Behind whatever is under way: a replica does things in their
    /// order, and a publisher that writes all the time leaves no moment without a request.
    fn compare(&mut self, now: Instant, wanted: &Wanted) {
        if self.compare_at().is_none_or(|at| at > now) {
            return;
        }
        if self.unconfirmed {
            let request = self.sent(now, Request::Confirm);
            self.actions.push(Action::Confirm { request });
        } else {
            self.announce(now, wanted);
        }
    }

    /// Sends one request of what is lacking.
    fn write(&mut self, now: Instant, wanted: &Wanted) {
        let mut groups: BTreeMap<u8, (Change, Vec<Path>)> = BTreeMap::new();
        let outstanding = self.lacking.len();
        let (mut count, mut bytes) = (0, 0);
        while count < WRITE_PATHS_MAX && bytes < RESOLVER_BATCH_BYTES_MAX {
            let Some(key) = self.lacking.pop_first() else { break };
            (count, bytes) = (count + 1, bytes + key.path.as_str().len());
            let change = wanted.change(&key);
            groups.entry(change.code()).or_insert((change, Vec::new())).1.push(key.path);
        }
        let groups: Vec<(Change, Vec<Path>)> = groups.into_values().collect();
        let keys = groups.iter().flat_map(|(change, paths)| {
            let default = matches!(change, Change::PublishDefault | Change::UnpublishDefault);
            paths.iter().map(move |path| Key { path: path.clone(), default })
        });
        let keys: VecDeque<Key> = keys.collect();
        debug_assert_eq!(keys.len() + self.lacking.len(), outstanding);
        let request = self.sent(now, Request::Write { keys, done: 0 });
        self.actions.push(Action::Write { request, groups });
    }
}

impl Linked {
    /// From `now` on the replica owes an answer, if there is any request: the whole of what is on its way, and of what is `lacking`
    /// still, is the batch that decides how long that may take.
    fn owe(&mut self, now: Instant, timing: &ResolverTiming, lacking: usize) {
        let batch: usize = self.in_flight.values().map(Request::len).sum();
        let allowed = timing.write_timeout((batch + lacking) as u64);
        self.owing = (!self.in_flight.is_empty()).then_some((now, allowed));
    }
}

impl Request {
    /// Paths and defaults that it carries and that are not answered.
    fn len(&self) -> usize {
        match self {
            Request::Announce { covered, .. } => covered.len(),
            Request::Write { keys, .. } => keys.len(),
            Request::Confirm | Request::Clear => 0,
        }
    }
}
