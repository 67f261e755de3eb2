//! Moving to the next replica in turn. A replica that a publisher cannot reach does not know it, so
//! a watch visits all of them, one after the other, and so does a client that asks again and again;
//! and a watch that a replica has no room for is tried at the next.
//!
//! The client does not leave a replica that answers for one that may not: the next one is dialled
//! beside it, is sent the watches, and replaces it with its first answer to one of them, or at once
//! without a watch, as soon as the link in use awaits no answer.

use std::collections::BTreeSet;
use std::time::Instant;

use longshore_protocol::messages::resolver::FromReplica;

use super::{Action, ReadCore, Replica, State, Up, WatchUpdate};

/// A replica that is tried beside the link.
#[derive(Debug)]
pub(super) struct Candidate {
    up: Up,
    /// Those to try if it fails, the next at the end.
    rest: Vec<Replica>,
    state: CandidateState,
    /// Watches whose paths it has reported while the link was still in use, and those of publishers
    /// that both have reported. A watch cannot follow two replicas: it is sent again.
    resend: BTreeSet<u32>,
}

impl Candidate {
    /// Its link, if it is established.
    pub(super) fn up_if_linked(&mut self) -> Option<&mut Up> {
        (self.state != CandidateState::Dialling).then_some(&mut self.up)
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum CandidateState {
    Dialling,
    /// The watches are sent; the answer is awaited until then.
    AwaitingAnswer {
        until: Instant,
    },
    /// It has answered, and takes over once the link awaits no answer. The link gets no more
    /// batches.
    Answered,
}

impl ReadCore {
    /// The link in use has reported the publishers of a watch that the candidate has reported
    /// before: the set is the former's, and the candidate reports it again.
    pub(super) fn publishers_reported(&mut self, watch: u32) {
        if let Some(candidate) = &mut self.candidate
            && candidate.state == CandidateState::Answered
        {
            candidate.resend.insert(watch);
        }
    }

    /// Whether the link is to be left as soon as it awaits no answer.
    pub(super) fn is_leaving(&self) -> bool {
        self.candidate.as_ref().is_some_and(|candidate| candidate.state == CandidateState::Answered)
    }

    /// The next deadline concerning turns.
    pub(super) fn turn_deadline(&self, up: &Up) -> Option<Instant> {
        match &self.candidate {
            Some(Candidate { state: CandidateState::AwaitingAnswer { until }, .. }) => Some(*until),
            Some(_) => None,
            None => up.try_elsewhere_at.into_iter().chain(self.turn_ends(up)).min(),
        }
    }

    /// Batches keep a link at its replica while they are answered. A link that has had nothing to
    /// do stays.
    fn turn_ends(&self, up: &Up) -> Option<Instant> {
        let is_moving = self.batches.is_empty() && (!self.watches.is_empty() || up.was_asked);
        (is_moving && self.replicas.len() > 1).then_some(up.next_turn_at)
    }

    pub(super) fn handle_turn_deadline(&mut self, now: Instant) {
        let State::Up(up) = &self.state else { return };
        if self.turn_deadline(up).is_none_or(|at| now < at) {
            return;
        }
        match &self.candidate {
            Some(candidate) => {
                self.actions.push(Action::Close { link: candidate.up.link });
                self.candidate_failed(now);
            }
            None if self.replicas.len() == 1 => self.send_refused_again(),
            None => self.try_next(now),
        }
    }

    /// Tries the replicas after this one, except for those that have failed recently.
    fn try_next(&mut self, now: Instant) {
        let State::Up(up) = &self.state else { return };
        let (replica, all) = (up.replica, self.replicas.len());
        let mut order: Vec<Replica> = (1..all).map(|nth| (replica + nth) % all).collect();
        order.retain(|&replica| !self.failures.is_avoided(replica, now));
        order.reverse();
        self.try_one_of(now, order);
    }

    fn try_one_of(&mut self, now: Instant, mut rest: Vec<Replica>) {
        self.candidate = rest.pop().map(|replica| {
            let link = self.dial(replica);
            let (up, resend) = (self.up(now, link, replica), BTreeSet::new());
            Candidate { up, rest, state: CandidateState::Dialling, resend }
        });
        if self.candidate.is_none()
            && let State::Up(up) = &mut self.state
        {
            // None of them is better than this one. It is sent again what it refused.
            up.next_turn_at = now + self.timing.reader_ttl;
            up.was_asked = false;
            self.send_refused_again();
        }
    }

    /// Stops trying, without recording a failure.
    pub(super) fn drop_candidate(&mut self) {
        if let Some(candidate) = self.candidate.take() {
            self.actions.push(Action::Close { link: candidate.up.link });
        }
    }

    fn candidate_failed(&mut self, now: Instant) {
        let Some(candidate) = self.candidate.take() else { return };
        self.failures.failed(candidate.up.replica, now, self.timing.reader_ttl);
        self.try_one_of(now, candidate.rest);
        self.queue_waiting_batches(now);
    }

    pub(super) fn candidate_linked(&mut self, now: Instant, link: u64) {
        let Some(mut candidate) = self.candidate.take_if(|one| one.up.link == link) else { return };
        candidate.state = match self.watches.is_empty() {
            true => CandidateState::Answered,
            false => {
                CandidateState::AwaitingAnswer { until: now + self.timing.request_timeout_min }
            }
        };
        candidate.up.next_turn_at = now + self.timing.reader_ttl;
        self.send_watches(&mut candidate.up);
        self.candidate = Some(candidate);
    }

    pub(super) fn candidate_unlinked(&mut self, now: Instant, link: u64) {
        if self.candidate.as_ref().is_some_and(|one| one.up.link == link) {
            self.candidate_failed(now);
        }
    }

    pub(super) fn candidate_received(&mut self, now: Instant, link: u64, message: FromReplica) {
        let Some(candidate) = self.candidate.as_mut().filter(|one| one.up.link == link) else {
            return;
        };
        let (replica, answered) =
            (candidate.up.replica, candidate.state == CandidateState::Answered);
        match message {
            FromReplica::Refused { id, reason, .. } => {
                if let Some(watch) = candidate.up.watch_requests.remove(&id) {
                    self.candidate_refused(now, watch, reason);
                }
            }
            FromReplica::Publishers(_) | FromReplica::PathSnapshot(_) if !answered => {
                candidate.state = CandidateState::Answered;
                self.take_over(now);
                // Handled for the link or the candidate, whichever it is now.
                self.received(now, link, message);
            }
            FromReplica::Publishers(publishers) => {
                candidate.up.watch_requests.retain(|_, watch| *watch != publishers.watch);
                self.update_watch(
                    link,
                    replica,
                    publishers.watch,
                    WatchUpdate::Publishers(publishers),
                );
            }
            FromReplica::PublisherGone(gone) => self.publisher_gone(link, replica, gone),
            FromReplica::PathSnapshot(part) => {
                candidate.resend.insert(part.watch);
            }
            FromReplica::PathChanges(changes) => candidate.resend.extend(changes.watches),
            _ => {}
        }
    }

    /// It refuses a watch. One that refuses the first is no better than the current one.
    fn candidate_refused(&mut self, now: Instant, watch: u32, reason: String) {
        let Some(candidate) = &mut self.candidate else { return };
        let (link, replica) = (candidate.up.link, candidate.up.replica);
        let answered = candidate.state == CandidateState::Answered;
        if answered {
            candidate.up.refused.insert(watch);
        }
        self.update_watch(link, replica, watch, WatchUpdate::Refused(reason));
        if !answered {
            self.actions.push(Action::Close { link });
            self.candidate_failed(now);
        }
    }

    /// Replaces the link in use by the candidate that has answered, if no answer is awaited. True
    /// if it did.
    pub(super) fn take_over(&mut self, now: Instant) -> bool {
        let State::Up(up) = &self.state else { return false };
        if !up.is_idle() || !self.is_leaving() {
            return false;
        }
        let (link, replica) = (up.link, up.replica);
        let Some(candidate) = self.candidate.take() else { return false };
        self.link_ends(replica);
        self.actions.push(Action::Close { link });
        let refused = candidate.up.refused.clone();
        self.failures.answered(candidate.up.replica);
        self.serve_over(now, candidate.up);
        candidate.resend.into_iter().for_each(|watch| self.send_watch(watch));
        refused.into_iter().for_each(|watch| self.pace_refused(now, watch));
        true
    }

    pub(super) fn links(&self) -> impl Iterator<Item = u64> {
        let up = match &self.state {
            State::Up(up) => Some(up.link),
            _ => None,
        };
        let outstanding = |one: &&Candidate| one.state != CandidateState::Dialling;
        up.into_iter().chain(self.candidate.as_ref().filter(outstanding).map(|one| one.up.link))
    }
}
