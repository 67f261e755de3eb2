//! Which replica next, how long to wait, when to give up. Pure: it reads no clock, draws from a seeded source, opens nothing.
//!
//! **After every [`ReadCore::step`] its actions are carried out in their order, and at [`ReadCore::next_deadline`] it is stepped with
//! [`Input::Tick`].** There is one link at a time; every batch and every watch uses it.
//!
//! ```text
//!            batch, watch               all replicas refused: a round is over
//!   Idle ───────────────────▶ Dialling ────────────────────────────┐
//!    ▲                         │    ▲                               ▼
//!    │ nothing left     linked │    │ 1–12 s later          Waiting (for what has rounds left)
//!    └──────────── Up ◀────────┘    └──────────────────────────────┘
//!                   ├── crash, timeout: a round is over ────────────▲
//!                   └── only watches, for a reader_ttl: Dialling the next
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_protocol::limits::{RESOLVER_BATCH_BYTES_MAX, RESOLVER_BATCH_PATHS_MAX};
use longshore_protocol::messages::resolver::{FromReplica, Publishers};
use longshore_protocol::{Glob, Path, ResolverTiming};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::cluster::ReplicaFailure;
use crate::read_client::answer::{Answer, Listing, ReadError, Resolution};

/// Most requests that wait for an answer on the link; each has at most 1 MiB of paths.
pub(super) const REQUESTS_IN_FLIGHT_MAX: usize = 8;

/// A replica's place in the cluster.
pub(super) type Replica = usize;

/// What is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Question {
    Resolve(Arc<[Path]>),
    List(Path),
    ListMatching(Arc<[Glob]>),
}

/// What happened.
#[derive(Debug)]
pub(super) enum Input {
    /// The caller has a batch. Its number is new.
    Ask { batch: u64, question: Question },
    /// Its caller no longer waits.
    Forget { batch: u64 },
    /// The caller watches. Its number is new.
    Watch { watch: u32, glob: Glob },
    /// It no longer does.
    Unwatch { watch: u32 },
    /// The link that was dialled stands.
    Linked,
    /// It does not, and why; or it did, and has ended.
    Unlinked { why: String },
    /// The replica said something.
    Told(FromReplica),
    /// Time has passed.
    Tick,
}

/// What is to be done.
#[derive(PartialEq, Debug)]
pub(super) enum Action {
    /// Connect to that replica, and say whether it worked.
    Dial { replica: Replica },
    /// Close the link, or stop dialling; nothing more is to be said of it.
    Hangup,
    /// Send a question, or of its paths those in `range`.
    Ask { request: u64, question: Question, range: Range<usize> },
    /// Send a watch.
    Watch { watch: u32, glob: Glob },
    /// End a watch.
    Unwatch { watch: u32 },
    /// The batch has ended.
    Finish { batch: u64, answer: Result<Answer, ReadError> },
    /// For the log: the replica has no room for the watch.
    WatchRefused { watch: u32, replica: Replica, reason: String },
    /// The watch has news.
    Tell { watch: u32, replica: Replica, publishers: Publishers },
}

/// The read client.
#[derive(Debug)]
pub(super) struct ReadCore {
    timing: ResolverTiming,
    replicas: Vec<String>,
    random: StdRng,
    state: State,
    batches: BTreeMap<u64, Batch>,
    watches: BTreeMap<u32, Glob>,
    next_request: u64,
    /// The replica whose link ended last: tried after the others.
    shunned: Option<Replica>,
    /// Links in a row over which a watch was refused.
    refusals: usize,
    actions: Vec<Action>,
}

#[derive(Debug)]
enum State {
    /// Nobody wants anything.
    Idle,
    /// Trying one replica after the other; `rest` is to come, from its end.
    Dialling { replica: Replica, rest: Vec<Replica> },
    /// Linked.
    Up(Up),
    /// Between two rounds.
    Waiting { until: Instant },
}

#[derive(Debug)]
struct Up {
    replica: Replica,
    since: Instant,
    /// What is still to be sent: a batch's paths, or its whole question.
    to_send: VecDeque<(u64, Range<usize>)>,
    /// Requests without their last answer, and whose they are.
    in_flight: BTreeMap<u64, u64>,
    /// Since when the replica owes an answer.
    owing_since: Instant,
    /// The watches that it has no room for. The link is of use for everything else.
    refused: BTreeSet<u32>,
    /// When those are to be tried elsewhere.
    try_elsewhere_at: Option<Instant>,
    /// It is time for that: the link takes no more batches, and is left once it owes nothing.
    leaving: bool,
}

#[derive(Debug)]
struct Batch {
    question: Question,
    /// How long an answer may take.
    timeout: Duration,
    /// Rounds that are over.
    rounds: u32,
    /// It has been there since the round began that is under way: one that joins in the middle is not charged with it.
    whole_round: bool,
    /// By replica.
    trials: Vec<Trial>,
    /// What the replica of the link has answered so far.
    so_far: Option<Answer>,
    /// Requests that have not had their last answer.
    parts_left: usize,
    /// What warming replicas have answered.
    doubtful: Option<Answer>,
}

/// How a replica has served a batch.
#[derive(Clone, Default, Debug)]
struct Trial {
    failures: u32,
    why: Option<String>,
    /// It has answered, and is warming: another is asked.
    warming: bool,
}

impl ReadCore {
    /// A client of these replicas.
    pub(super) fn new(timing: ResolverTiming, replicas: Vec<String>, seed: u64) -> ReadCore {
        ReadCore {
            timing,
            replicas,
            random: StdRng::seed_from_u64(seed),
            state: State::Idle,
            batches: BTreeMap::new(),
            watches: BTreeMap::new(),
            next_request: 1,
            shunned: None,
            refusals: 0,
            actions: Vec::new(),
        }
    }

    /// Takes in what happened, and says what is to be done.
    pub(super) fn step(&mut self, now: Instant, input: Input) -> Vec<Action> {
        match input {
            Input::Ask { batch, question } => self.ask(now, batch, question),
            Input::Forget { batch } => {
                self.batches.remove(&batch);
            }
            Input::Watch { watch, glob } => self.watch(watch, glob),
            Input::Unwatch { watch } => self.unwatch(watch),
            Input::Linked => self.linked(now),
            Input::Unlinked { why } => self.unlinked(now, why),
            Input::Told(message) => self.told(now, message),
            Input::Tick => {}
        }
        self.due(now);
        self.send(now);
        std::mem::take(&mut self.actions)
    }

    /// When it is to be stepped though nothing has happened.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Waiting { until } => Some(*until),
            State::Up(up) => {
                let elsewhere = up.try_elsewhere_at.filter(|_| !up.leaving);
                let other = match up.in_flight.is_empty() {
                    false => Some(self.answer_deadline(up)),
                    true => self.turn_ends(up),
                };
                elsewhere.into_iter().chain(other).min()
            }
            State::Idle | State::Dialling { .. } => None,
        }
    }

    fn ask(&mut self, now: Instant, number: u64, question: Question) {
        if self.replicas.is_empty() {
            let answer = Err(ReadError::NoReplicas);
            self.actions.push(Action::Finish { batch: number, answer });
            return;
        }
        let batch = Batch {
            timeout: timeout(&self.timing, &question),
            question,
            rounds: 0,
            whole_round: !matches!(self.state, State::Dialling { .. }),
            trials: vec![Trial::default(); self.replicas.len()],
            so_far: None,
            parts_left: 0,
            doubtful: None,
        };
        self.batches.insert(number, batch);
        match &mut self.state {
            State::Idle => self.start_round(),
            State::Up(up) if !up.leaving => self.queue(now, number),
            State::Up(_) | State::Dialling { .. } | State::Waiting { .. } => {}
        }
    }

    fn watch(&mut self, watch: u32, glob: Glob) {
        if self.replicas.is_empty() {
            return;
        }
        self.watches.insert(watch, glob.clone());
        match self.state {
            State::Idle => self.start_round(),
            State::Up(_) => self.actions.push(Action::Watch { watch, glob }),
            State::Dialling { .. } | State::Waiting { .. } => {}
        }
    }

    fn unwatch(&mut self, watch: u32) {
        let State::Up(up) = &mut self.state else {
            self.watches.remove(&watch);
            return;
        };
        if self.watches.remove(&watch).is_some() {
            self.actions.push(Action::Unwatch { watch });
            if up.refused.remove(&watch) && up.refused.is_empty() && !up.leaving {
                up.try_elsewhere_at = None;
            }
        }
    }

    /// A full table of watches is no reason to leave a replica that answers: only the watch goes without it, until the others are
    /// tried, one after the other. If none of them has room, they are tried at the pace of any watch.
    fn watch_refused(&mut self, now: Instant, watch: u32, reason: String) {
        let State::Up(up) = &mut self.state else { return };
        if !self.watches.contains_key(&watch) {
            return;
        }
        up.refused.insert(watch);
        let replica = up.replica;
        if up.try_elsewhere_at.is_none() {
            self.refusals = self.refusals.saturating_add(1);
            let wait = match self.refusals < self.replicas.len() {
                true => self.timing.retry_wait(self.random.next_u64()),
                false => self.timing.reader_ttl,
            };
            up.try_elsewhere_at = Some(now + wait);
        }
        self.actions.push(Action::WatchRefused { watch, replica, reason });
    }

    /// Tries the watches that were refused once more: at the next replica, or here if there is no other.
    fn try_elsewhere(&mut self) {
        let State::Up(up) = &mut self.state else { return };
        if self.replicas.len() > 1 {
            up.leaving = true;
            return;
        }
        up.try_elsewhere_at = None;
        for watch in std::mem::take(&mut up.refused) {
            if let Some(glob) = self.watches.get(&watch) {
                self.actions.push(Action::Watch { watch, glob: glob.clone() });
            }
        }
    }

    /// Leaves the replica for the one after it.
    fn next_in_turn(&mut self) {
        let State::Up(up) = &self.state else { return };
        let (replica, all) = (up.replica, self.replicas.len());
        self.link_ends(replica);
        self.actions.push(Action::Hangup);
        self.dial_in_order((1..=all).map(|nth| (replica + nth) % all).collect());
    }

    fn link_ends(&mut self, replica: Replica) {
        self.shunned = Some(replica);
        if matches!(&self.state, State::Up(up) if up.refused.is_empty()) {
            self.refusals = 0;
        }
    }

    /// Tries every replica once, in a random order; those that have failed or are warming come last.
    fn start_round(&mut self) {
        let mut order: Vec<Replica> = (0..self.replicas.len()).collect();
        order.shuffle(&mut self.random);
        self.dial_in_order(order);
    }

    fn dial_in_order(&mut self, mut order: Vec<Replica>) {
        let trial = |replica: Replica| self.batches.values().map(move |b| &b.trials[replica]);
        order.sort_by_cached_key(|&replica| {
            let warming = trial(replica).any(|trial| trial.warming);
            let failures = trial(replica).map(|trial| trial.failures).max();
            (warming, failures, self.shunned == Some(replica))
        });
        order.reverse();
        self.begin_round();
        match order.pop() {
            Some(replica) => {
                self.actions.push(Action::Dial { replica });
                self.state = State::Dialling { replica, rest: order };
            }
            None => self.state = State::Idle,
        }
    }

    /// From here on a round is a whole one for every batch there is.
    fn begin_round(&mut self) {
        self.batches.values_mut().for_each(|batch| batch.whole_round = true);
    }

    fn linked(&mut self, now: Instant) {
        let State::Dialling { replica, .. } = self.state else { return };
        self.begin_round();
        self.state = State::Up(Up {
            replica,
            since: now,
            to_send: VecDeque::new(),
            in_flight: BTreeMap::new(),
            owing_since: now,
            refused: BTreeSet::new(),
            try_elsewhere_at: None,
            leaving: false,
        });
        let numbers: Vec<u64> = self.batches.keys().copied().collect();
        for number in numbers {
            // It was the last to be tried: nobody knows better than what it has said already.
            if self.batches[&number].trials[replica].warming {
                self.finish_doubtful(number);
            } else {
                self.queue(now, number);
            }
        }
        for (&watch, glob) in &self.watches {
            self.actions.push(Action::Watch { watch, glob: glob.clone() });
        }
    }

    /// A replica could not be reached, or its link has ended.
    fn unlinked(&mut self, now: Instant, why: String) {
        match &mut self.state {
            State::Dialling { replica, rest } => {
                let (failed, next) = (*replica, rest.pop());
                if let Some(next) = next {
                    *replica = next;
                    self.actions.push(Action::Dial { replica: next });
                }
                self.blame(failed, &why);
                if next.is_none() {
                    self.round_over(now);
                }
            }
            State::Up(_) => self.abandon(now, why),
            State::Idle | State::Waiting { .. } => {}
        }
    }

    /// The link is of no use any more.
    fn abandon(&mut self, now: Instant, why: String) {
        let State::Up(up) = &self.state else { return };
        let replica = up.replica;
        self.link_ends(replica);
        self.blame(replica, &why);
        self.round_over(now);
    }

    fn blame(&mut self, replica: Replica, why: &str) {
        for batch in self.batches.values_mut() {
            let trial = &mut batch.trials[replica];
            trial.failures += 1;
            trial.why = Some(why.to_owned());
        }
    }

    /// Every batch has one round less. Those that have none left fail, once every replica has had its chance.
    fn round_over(&mut self, now: Instant) {
        let numbers: Vec<u64> = self.batches.keys().copied().collect();
        for number in numbers {
            let Some(batch) = self.batches.get_mut(&number) else { continue };
            batch.rounds += u32::from(batch.whole_round);
            batch.so_far = None;
            let tried = batch.trials.iter().all(|trial| trial.warming || trial.failures > 0);
            if batch.doubtful.is_some() && tried {
                self.finish_doubtful(number);
            } else if batch.rounds >= self.timing.tries && tried {
                let failures =
                    self.replicas.iter().zip(&batch.trials).map(|(name, trial)| ReplicaFailure {
                        replica: name.clone(),
                        why: trial.why.clone().unwrap_or_default(),
                    });
                let answer = Err(ReadError::NoAnswer(failures.collect()));
                self.batches.remove(&number);
                self.actions.push(Action::Finish { batch: number, answer });
            }
        }
        self.state = if self.batches.is_empty() && self.watches.is_empty() {
            State::Idle
        } else {
            let wait = self.timing.retry_wait(self.random.next_u64());
            State::Waiting { until: now + wait }
        };
    }

    fn finish_doubtful(&mut self, number: u64) {
        if let Some(batch) = self.batches.remove(&number)
            && let Some(answer) = batch.doubtful
        {
            self.actions.push(Action::Finish { batch: number, answer: Ok(answer) });
        }
    }

    /// Cuts a batch into requests.
    fn queue(&mut self, now: Instant, number: u64) {
        let (State::Up(up), Some(batch)) = (&mut self.state, self.batches.get_mut(&number)) else {
            return;
        };
        let parts = batch.question.parts();
        batch.parts_left = parts.len();
        batch.so_far = None;
        if parts.is_empty() {
            let answer = Ok(batch.question.empty_answer());
            self.batches.remove(&number);
            self.actions.push(Action::Finish { batch: number, answer });
            return;
        }
        if up.in_flight.is_empty() && up.to_send.is_empty() {
            up.owing_since = now;
        }
        up.to_send.extend(parts.into_iter().map(|part| (number, part)));
    }

    /// Sends what there is room for.
    fn send(&mut self, now: Instant) {
        let State::Up(up) = &mut self.state else { return };
        // A batch that waits for another replica: this link takes nothing more, and is left once it owes nothing.
        let moving = self.batches.values().any(|batch| batch.trials[up.replica].warming);
        if moving {
            if up.in_flight.is_empty() {
                self.move_on();
            }
            return;
        }
        while up.in_flight.len() < REQUESTS_IN_FLIGHT_MAX
            && let Some((number, range)) = up.to_send.pop_front()
        {
            let Some(batch) = self.batches.get(&number) else { continue };
            if up.in_flight.is_empty() {
                up.owing_since = now;
            }
            let request = self.next_request;
            self.next_request += 1;
            up.in_flight.insert(request, number);
            let question = batch.question.clone();
            self.actions.push(Action::Ask { request, question, range });
        }
        if up.leaving && up.in_flight.is_empty() && up.to_send.is_empty() {
            self.next_in_turn();
        }
    }

    /// Leaves a replica that is warming for one that may know better.
    fn move_on(&mut self) {
        let known = |replica: Replica| self.batches.values().any(|b| b.trials[replica].warming);
        let mut order: Vec<Replica> =
            (0..self.replicas.len()).filter(|&replica| !known(replica)).collect();
        if order.is_empty() {
            order.extend(0..self.replicas.len());
        }
        self.actions.push(Action::Hangup);
        order.shuffle(&mut self.random);
        self.dial_in_order(order);
    }

    fn told(&mut self, now: Instant, message: FromReplica) {
        let State::Up(up) = &mut self.state else { return };
        match message {
            FromReplica::Resolved(slice) => {
                let (id, last) = (slice.id, slice.last);
                self.answered(now, id, last, Answer::Resolved(slice.into()));
            }
            FromReplica::Listed(slice) => {
                let listing = Listing { complete: slice.complete, paths: slice.paths };
                self.answered(now, slice.id, slice.last, Answer::Listed(listing));
            }
            FromReplica::Publishers(publishers) => {
                let (watch, replica) = (publishers.watch, up.replica);
                if self.watches.contains_key(&watch) {
                    self.actions.push(Action::Tell { watch, replica, publishers });
                }
            }
            FromReplica::WatchRefused(no) => self.watch_refused(now, no.watch, no.reason),
            FromReplica::Refused { id, reason, .. } => {
                up.owing_since = now;
                let replica = self.replicas[up.replica].clone();
                if let Some(number) = up.in_flight.remove(&id)
                    && self.batches.remove(&number).is_some()
                {
                    let answer = Err(ReadError::Refused { replica, reason });
                    self.actions.push(Action::Finish { batch: number, answer });
                }
            }
            FromReplica::Status { .. }
            | FromReplica::Announced(_)
            | FromReplica::Written(_)
            | FromReplica::Table(_)
            | FromReplica::Changed(_)
            | FromReplica::PathSnapshot(_)
            | FromReplica::PathChanges(_)
            | FromReplica::PublisherGone(_)
            | FromReplica::PublishersKnown(_) => {}
        }
    }

    /// Some of an answer has come. It shows that the replica is at work, for every request: it answers them in their order.
    fn answered(&mut self, now: Instant, request: u64, last: bool, slice: Answer) {
        let State::Up(up) = &mut self.state else { return };
        up.owing_since = now;
        let replica = up.replica;
        let number =
            if last { up.in_flight.remove(&request) } else { up.in_flight.get(&request).copied() };
        let Some(number) = number else { return };
        let Some(batch) = self.batches.get_mut(&number) else { return };
        match &mut batch.so_far {
            Some(answer) => answer.extend(slice),
            None => batch.so_far = Some(slice),
        }
        if !last {
            return;
        }
        batch.parts_left = batch.parts_left.saturating_sub(1);
        if batch.parts_left > 0 {
            return;
        }
        let Some(answer) = batch.so_far.take().filter(|answer| batch.question.is_answered(answer))
        else {
            self.actions.push(Action::Hangup);
            let why = "it answered something else than it was asked";
            self.abandon(now, why.to_owned());
            return;
        };
        let doubtful = answer.is_doubtful();
        let answer = match batch.doubtful.take() {
            Some(before) => before.join(answer),
            None => answer.sorted(),
        };
        if !doubtful {
            self.batches.remove(&number);
            self.actions.push(Action::Finish { batch: number, answer: Ok(answer) });
            return;
        }
        batch.doubtful = Some(answer);
        batch.trials[replica].warming = true;
        if batch.trials.iter().all(|trial| trial.warming || trial.failures > 0) {
            self.finish_doubtful(number);
        }
    }

    /// Does what is due.
    fn due(&mut self, now: Instant) {
        match &self.state {
            State::Waiting { until } if *until <= now => {
                if self.batches.is_empty() && self.watches.is_empty() {
                    self.state = State::Idle;
                } else {
                    self.start_round();
                }
            }
            State::Up(up) if !up.in_flight.is_empty() && self.answer_deadline(up) <= now => {
                let silent = now.saturating_duration_since(up.owing_since);
                self.actions.push(Action::Hangup);
                self.abandon(now, format!("no answer for {silent:?}"));
            }
            State::Up(up) if up.try_elsewhere_at.is_some_and(|at| at <= now && !up.leaving) => {
                self.try_elsewhere();
            }
            State::Up(up) if self.turn_ends(up).is_some_and(|end| end <= now) => {
                self.next_in_turn();
            }
            _ => {}
        }
    }

    /// When a link that only watches goes on to the next replica: one that a publisher cannot reach does not know of it, and one
    /// watch asks all of them in turn.
    fn turn_ends(&self, up: &Up) -> Option<Instant> {
        let only_watches = self.batches.is_empty() && !self.watches.is_empty();
        (only_watches && self.replicas.len() > 1).then_some(up.since + self.timing.reader_ttl)
    }

    /// Until when the replica may be silent, counted from its last answer: it answers requests in their order, so the batch of the
    /// oldest says how long that may take.
    fn answer_deadline(&self, up: &Up) -> Instant {
        let oldest = up.in_flight.values().find_map(|number| self.batches.get(number));
        let allowed = oldest.map_or(self.timing.request_timeout_min, |batch| batch.timeout);
        up.owing_since + allowed
    }
}

/// `max(15 s, 50 µs × simple reads)`; a listing has another 15 s, as it may look at every path.
fn timeout(timing: &ResolverTiming, question: &Question) -> Duration {
    match question {
        Question::Resolve(paths) => timing.read_timeout(paths.len() as u64),
        Question::List(_) | Question::ListMatching(_) => {
            timing.read_timeout(1) + timing.request_timeout_min
        }
    }
}

impl Question {
    /// The requests that it takes.
    fn parts(&self) -> Vec<Range<usize>> {
        let (mut parts, mut start, mut bytes) = (Vec::new(), 0, 0);
        let Question::Resolve(paths) = self else {
            parts.push(0..0);
            return parts;
        };
        for (at, path) in paths.iter().enumerate() {
            let length = path.as_str().len();
            if at - start >= RESOLVER_BATCH_PATHS_MAX || bytes + length > RESOLVER_BATCH_BYTES_MAX {
                parts.push(start..at);
                (start, bytes) = (at, 0);
            }
            bytes += length;
        }
        if start < paths.len() {
            parts.push(start..paths.len());
        }
        parts
    }

    /// Whether that can be an answer to it.
    fn is_answered(&self, answer: &Answer) -> bool {
        match (self, answer) {
            (Question::Resolve(paths), Answer::Resolved(all)) => all.answers.len() == paths.len(),
            (Question::List(_) | Question::ListMatching(_), Answer::Listed(_)) => true,
            _ => false,
        }
    }

    fn empty_answer(&self) -> Answer {
        match self {
            Question::Resolve(_) => {
                Answer::Resolved(Resolution { complete: true, answers: Vec::new() })
            }
            Question::List(_) | Question::ListMatching(_) => {
                Answer::Listed(Listing { complete: true, paths: Vec::new() })
            }
        }
    }
}
