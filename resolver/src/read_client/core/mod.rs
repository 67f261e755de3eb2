//! Decides which replica to use, how long to wait, and when to give up. Pure: it reads no clock,
//! draws from a seeded source, and does no I/O.
//!
//! **After every [`ReadCore::step`] its actions are executed in order, and at
//! [`ReadCore::next_deadline`] it is stepped with [`Event::Tick`].** There is one link at a time,
//! which every batch and every watch uses. Each `reader_ttl`, once it awaits no answer, a second
//! link to the next replica is opened beside it, and replaces it once that replica has answered.
//!
//! ```text
//!            batch, watch               all replicas refused: a round is over
//!   Idle ───────────────────▶ Dialling ────────────────────────────┐
//!    ▲                         │    ▲                               ▼
//!    │ nothing left     linked │    │ 1–12 s later          Waiting (for what has rounds left)
//!    └──────────── Up ◀────────┘    └──────────────────────────────┘
//!                 │ ▲ └── crash, timeout: a round is over ──────────▲
//!                 └─┘ used for a reader_ttl: the next replica, once it has answered
//! ```

mod batches;
mod candidate;
mod failure_history;
mod outstanding;
mod question;
mod watches;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Instant;

use longshore_protocol::ResolverTiming;
use longshore_protocol::messages::resolver::FromReplica;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng, rngs::StdRng};

pub(super) use question::Question;
pub(super) use watches::{Subject, WatchUpdate};

use crate::read_client::answer::{Answer, ReadError};
use batches::{Batch, Trial};
use candidate::Candidate;
use failure_history::FailureHistory;
use outstanding::{ANSWER_BYTES_MAX, OutstandingAnswer};

/// Most requests in flight on the link; each has at most 1 MiB of paths.
pub(super) const REQUESTS_IN_FLIGHT_MAX: usize = 8;

/// Most links at a time: the one in use, and one to a replica that may replace it.
pub(super) const LINKS_MAX: usize = 2;

/// A replica's index in the cluster.
pub(super) type Replica = usize;

/// An event for the core.
#[derive(Debug)]
pub(super) enum Event {
    /// A caller asks a batch. Its number is new.
    Ask { batch: u64, question: Question },
    /// The batch's caller no longer waits.
    Forget { batch: u64 },
    /// A caller adds a watch. Its number is new.
    Watch { watch: u32, subject: Subject },
    /// A watch is dropped.
    Unwatch { watch: u32 },
    /// The link that was dialled is established.
    Linked { link: u64 },
    /// The link could not be established, and why; or it has ended.
    Unlinked { link: u64, why: String },
    /// A message of the replica.
    Received { link: u64, message: FromReplica },
    /// Time has passed.
    Tick,
}

/// An action for the task.
#[derive(PartialEq, Debug)]
pub(super) enum Action {
    /// Connect to the replica, and report the outcome. There are at most [`LINKS_MAX`] links.
    Dial { link: u64, replica: Replica },
    /// Close the link, or stop dialling; report nothing more about it.
    Close { link: u64 },
    /// Send a question, or the part of its paths in `range`.
    Ask { link: u64, request: u64, question: Question, range: Range<usize> },
    /// Send a watch. `request` is the number under which it may be refused.
    Watch { link: u64, request: u64, watch: u32, subject: Subject },
    /// End a watch.
    Unwatch { link: u64, request: u64, watch: u32 },
    /// The batch has ended.
    Finish { batch: u64, answer: Result<Answer, ReadError> },
    /// Deliver an update of a watch.
    Update { link: u64, watch: u32, replica: Replica, update: WatchUpdate },
}

/// The read client.
#[derive(Debug)]
pub(super) struct ReadCore {
    timing: ResolverTiming,
    replicas: Vec<String>,
    random: StdRng,
    state: State,
    batches: BTreeMap<u64, Batch>,
    watches: BTreeMap<u32, Subject>,
    next_request: u64,
    next_link: u64,
    /// The replica that is tried beside the link.
    candidate: Option<Candidate>,
    failures: FailureHistory,
    /// The replica whose link ended last: tried after the others.
    last_ended: Option<Replica>,
    /// Consecutive links over which a watch was refused.
    refusals: usize,
    /// The most memory for the answer to one request, in bytes.
    answer_bytes_max: usize,
    actions: Vec<Action>,
}

#[derive(Debug)]
enum State {
    /// No batch and no watch.
    Idle,
    /// Trying one replica after the other; `rest` has the remaining ones, the next at its end.
    Dialling { link: u64, replica: Replica, rest: Vec<Replica> },
    /// Linked.
    Up(Up),
    /// Between two rounds. The client as a whole waits before it connects again: a batch that
    /// arrives meanwhile waits with it, and has all its rounds after that.
    Waiting { until: Instant },
}

#[derive(Debug)]
struct Up {
    link: u64,
    replica: Replica,
    /// When a link moves to the next replica.
    next_turn_at: Instant,
    /// A batch was sent over it.
    was_asked: bool,
    /// What is still to be sent: a batch's paths, or its whole question.
    to_send: VecDeque<(u64, Range<usize>)>,
    /// Requests whose last answer has not arrived.
    in_flight: BTreeMap<u64, OutstandingAnswer>,
    /// Since when an answer is awaited.
    awaiting_since: Instant,
    /// Watches that the replica has not answered, by the number of their request.
    watch_requests: BTreeMap<u64, u32>,
    /// The watches that the replica has refused for lack of room. The link serves everything else.
    refused: BTreeSet<u32>,
    /// When these are to be tried elsewhere.
    try_elsewhere_at: Option<Instant>,
}

impl Up {
    fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.to_send.is_empty()
    }
}

impl ReadCore {
    /// A client of these replicas.
    pub(super) fn new(timing: ResolverTiming, replicas: Vec<String>, seed: u64) -> ReadCore {
        ReadCore {
            failures: FailureHistory::of(replicas.len()),
            timing,
            replicas,
            random: StdRng::seed_from_u64(seed),
            state: State::Idle,
            batches: BTreeMap::new(),
            watches: BTreeMap::new(),
            next_request: 1,
            next_link: 1,
            candidate: None,
            last_ended: None,
            refusals: 0,
            answer_bytes_max: ANSWER_BYTES_MAX,
            actions: Vec::new(),
        }
    }

    /// Lowers the limit of the answer to one request.
    #[cfg(test)]
    pub(super) fn limit_answers(&mut self, bytes: usize) {
        self.answer_bytes_max = bytes;
    }

    /// Handles an event, and returns the actions to execute.
    pub(super) fn step(&mut self, now: Instant, event: Event) -> Vec<Action> {
        match event {
            Event::Ask { batch, question } => self.ask(now, batch, question),
            Event::Forget { batch } => {
                self.batches.remove(&batch);
                if !self.is_leaving() {
                    self.queue_waiting_batches(now);
                }
            }
            Event::Watch { watch, subject } => self.watch(now, watch, subject),
            Event::Unwatch { watch } => self.unwatch(now, watch),
            Event::Linked { link } => self.linked(now, link),
            Event::Unlinked { link, why } => self.unlinked(now, link, why),
            Event::Received { link, message } => self.received(now, link, message),
            Event::Tick => {}
        }
        self.handle_deadlines(now);
        self.send(now);
        std::mem::take(&mut self.actions)
    }

    /// When to step without another event.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Waiting { until } => Some(*until),
            State::Up(up) => {
                let answer = (!up.in_flight.is_empty()).then(|| self.answer_deadline(up));
                answer.into_iter().chain(self.turn_deadline(up)).min()
            }
            State::Idle | State::Dialling { .. } => None,
        }
    }

    /// Tries every replica once, in a random order; those that have failed or are warming come
    /// last.
    fn start_round(&mut self, now: Instant) {
        let mut order: Vec<Replica> = (0..self.replicas.len()).collect();
        order.shuffle(&mut self.random);
        self.dial_in_order(now, order);
    }

    fn dial_in_order(&mut self, now: Instant, mut order: Vec<Replica>) {
        let trial = |replica: Replica| self.batches.values().map(move |b| &b.trials[replica]);
        order.sort_by_cached_key(|&replica| {
            let warming = trial(replica).any(|trial| trial.warming);
            let failures = trial(replica).map(|trial| trial.failures).max();
            let avoided = self.failures.is_avoided(replica, now);
            (warming, failures, avoided, self.last_ended == Some(replica))
        });
        order.reverse();
        self.begin_round();
        match order.pop() {
            Some(replica) => {
                let link = self.dial(replica);
                self.state = State::Dialling { link, replica, rest: order };
            }
            None => self.state = State::Idle,
        }
    }

    fn dial(&mut self, replica: Replica) -> u64 {
        let link = self.next_link;
        self.next_link += 1;
        self.actions.push(Action::Dial { link, replica });
        link
    }

    /// From here on the current round counts as a whole one for every batch.
    fn begin_round(&mut self) {
        self.batches.values_mut().for_each(|batch| batch.whole_round = true);
    }

    fn linked(&mut self, now: Instant, number: u64) {
        match self.state {
            State::Dialling { link, replica, .. } if link == number => {
                let mut up = self.up(now, link, replica);
                self.send_watches(&mut up);
                self.serve_over(now, up);
            }
            _ => self.candidate_linked(now, number),
        }
    }

    fn up(&self, now: Instant, link: u64, replica: Replica) -> Up {
        Up {
            link,
            replica,
            next_turn_at: now + self.timing.reader_ttl,
            was_asked: false,
            to_send: VecDeque::new(),
            in_flight: BTreeMap::new(),
            awaiting_since: now,
            watch_requests: BTreeMap::new(),
            refused: BTreeSet::new(),
            try_elsewhere_at: None,
        }
    }

    /// Makes `up` the link in use.
    fn serve_over(&mut self, now: Instant, up: Up) {
        self.begin_round();
        let replica = up.replica;
        self.state = State::Up(up);
        self.batches.values_mut().for_each(|batch| batch.trials[replica].refused = false);
        let numbers: Vec<u64> = self.batches.keys().copied().collect();
        for number in numbers {
            let trials = &self.batches[&number].trials;
            if !trials[replica].warming {
                self.queue(now, number);
            } else if trials.iter().all(Trial::is_over) {
                // No replica has a better answer. Otherwise one may, and the link is left again.
                self.finish_provisional(number);
            }
        }
    }

    /// A replica could not be reached, or its link has ended.
    fn unlinked(&mut self, now: Instant, number: u64, why: String) {
        match &mut self.state {
            State::Dialling { link, replica, rest } if *link == number => {
                let (failed, next) = (*replica, rest.pop());
                let rest = std::mem::take(rest);
                if let Some(replica) = next {
                    let link = self.dial(replica);
                    self.state = State::Dialling { link, replica, rest };
                }
                self.record_failure(now, failed, &why);
                if next.is_none() {
                    self.round_over(now);
                }
            }
            State::Up(up) if up.link == number => self.abandon(now, why),
            _ => self.candidate_unlinked(now, number),
        }
    }

    /// Gives up the link.
    fn abandon(&mut self, now: Instant, why: String) {
        self.drop_candidate();
        let State::Up(up) = &self.state else { return };
        let replica = up.replica;
        self.link_ends(replica);
        self.record_failure(now, replica, &why);
        self.round_over(now);
    }

    fn link_ends(&mut self, replica: Replica) {
        self.last_ended = Some(replica);
        if matches!(&self.state, State::Up(up) if up.refused.is_empty()) {
            self.refusals = 0;
        }
    }

    fn record_failure(&mut self, now: Instant, replica: Replica, why: &str) {
        self.failures.failed(replica, now, self.timing.reader_ttl);
        for batch in self.batches.values_mut() {
            let trial = &mut batch.trials[replica];
            trial.failures += 1;
            trial.why = Some(why.to_owned());
        }
    }

    /// Every batch has one round less. Those without further rounds fail, once every replica has
    /// been tried.
    fn round_over(&mut self, now: Instant) {
        self.count_round();
        self.state = if self.batches.is_empty() && self.watches.is_empty() {
            State::Idle
        } else {
            let wait = self.timing.retry_wait(self.random.next_u64());
            State::Waiting { until: now + wait }
        };
    }

    /// Leaves a warming replica for one that may have a better answer.
    fn leave_warming_replica(&mut self, now: Instant) {
        let State::Up(up) = &self.state else { return };
        let (link, here) = (up.link, up.replica);
        self.drop_candidate();
        let waiting = || self.batches.values().filter(|batch| batch.trials[here].is_skipped());
        let may_answer =
            |replica: Replica| waiting().any(|batch| !batch.trials[replica].is_skipped());
        let mut order: Vec<Replica> =
            (0..self.replicas.len()).filter(|&replica| may_answer(replica)).collect();
        if order.is_empty() {
            order.extend(0..self.replicas.len());
        }
        self.actions.push(Action::Close { link });
        order.shuffle(&mut self.random);
        self.dial_in_order(now, order);
    }

    fn received(&mut self, now: Instant, link: u64, message: FromReplica) {
        let State::Up(up) = &mut self.state else { return };
        if up.link != link {
            self.candidate_received(now, link, message);
            return;
        }
        let replica = up.replica;
        self.failures.answered(replica);
        match message {
            FromReplica::Resolved(slice) => {
                let (id, last) = (slice.id, slice.last);
                self.answered(now, id, last, Answer::Resolved(slice.into()));
            }
            FromReplica::Listed(slice) => {
                let (id, last) = (slice.id, slice.last);
                self.answered(now, id, last, Answer::Listed(slice.into()));
            }
            FromReplica::Table(slice) => {
                let (id, last) = (slice.id, slice.last);
                self.answered(now, id, last, Answer::Table(slice.into()));
            }
            FromReplica::Publishers(publishers) => {
                up.watch_requests.retain(|_, watch| *watch != publishers.watch);
                self.publishers_reported(publishers.watch);
                self.update_watch(
                    link,
                    replica,
                    publishers.watch,
                    WatchUpdate::Publishers(publishers),
                );
            }
            FromReplica::PublisherGone(gone) => self.publisher_gone(link, replica, gone),
            FromReplica::PathSnapshot(part) => {
                up.watch_requests.retain(|_, watch| *watch != part.watch);
                self.update_watch(link, replica, part.watch, WatchUpdate::Snapshot(part));
            }
            FromReplica::PathChanges(changes) => self.paths_changed(link, replica, changes),
            FromReplica::Refused { id, code, reason } => match up.watch_requests.remove(&id) {
                Some(watch) => self.watch_refused(now, watch, reason),
                None => self.request_refused(now, id, code, reason),
            },
            FromReplica::Status { .. }
            | FromReplica::Announced(_)
            | FromReplica::Written(_)
            | FromReplica::PublishersKnown(_) => {}
        }
    }

    /// Handles expired deadlines.
    fn handle_deadlines(&mut self, now: Instant) {
        match &self.state {
            State::Waiting { until } if *until <= now => {
                if self.batches.is_empty() && self.watches.is_empty() {
                    self.state = State::Idle;
                } else {
                    self.start_round(now);
                }
            }
            State::Up(up) if !up.in_flight.is_empty() && self.answer_deadline(up) <= now => {
                let silent = now.saturating_duration_since(up.awaiting_since);
                self.actions.push(Action::Close { link: up.link });
                self.abandon(now, format!("no answer for {silent:?}"));
            }
            State::Up(_) => self.handle_turn_deadline(now),
            _ => {}
        }
    }
}
