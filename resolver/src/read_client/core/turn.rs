//! The next replica in turn. One that a publisher cannot reach does not know of it, so one watch
//! asks all of them, one after the other; and a watch that a replica has no room for is tried at
//! the next.
//!
//! A replica that answers is not left for one that may not: the next is dialled beside it, is sent
//! the watches, and takes its place with its first word about one of them, as soon as the one
//! before owes nothing.

use std::collections::BTreeSet;
use std::time::Instant;

use longshore_protocol::messages::resolver::FromReplica;

use super::{Action, News, ReadCore, Replica, State, Up};

/// A replica that is tried beside the link.
#[derive(Debug)]
pub(super) struct Candidate {
    up: Up,
    /// Those to be tried if it fails, from the end.
    rest: Vec<Replica>,
    stage: Stage,
    /// Watches of whose paths it has told while the link was still in use. Two replicas cannot tell
    /// of the paths of one watch: it is asked again.
    unheard: BTreeSet<u32>,
}

impl Candidate {
    /// Its link, if it stands.
    pub(super) fn up_if_linked(&mut self) -> Option<&mut Up> {
        (self.stage != Stage::Dialling).then_some(&mut self.up)
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Stage {
    Dialling,
    /// The watches are sent. An answer may take so long.
    Asked {
        until: Instant,
    },
    /// It has answered, and takes over once the link owes nothing. The link takes no more batches.
    Answered,
}

impl ReadCore {
    /// Whether the link is to be left as soon as it owes nothing.
    pub(super) fn is_leaving(&self) -> bool {
        self.candidate.as_ref().is_some_and(|candidate| candidate.stage == Stage::Answered)
    }

    /// When there is something to do about turns.
    pub(super) fn turn_deadline(&self, up: &Up) -> Option<Instant> {
        match &self.candidate {
            Some(Candidate { stage: Stage::Asked { until }, .. }) => Some(*until),
            Some(_) => None,
            None => up.try_elsewhere_at.into_iter().chain(self.turn_ends(up)).min(),
        }
    }

    /// Batches keep a link where it is; watches alone go on to the next replica.
    fn turn_ends(&self, up: &Up) -> Option<Instant> {
        let only_watches = self.batches.is_empty() && !self.watches.is_empty();
        (only_watches && self.replicas.len() > 1).then_some(up.next_turn_at)
    }

    pub(super) fn turn_due(&mut self, now: Instant) {
        let State::Up(up) = &self.state else { return };
        if self.turn_deadline(up).is_none_or(|at| now < at) {
            return;
        }
        match &self.candidate {
            Some(candidate) => {
                self.actions.push(Action::Hangup { link: candidate.up.link });
                self.candidate_failed(now);
            }
            None if self.replicas.len() == 1 => self.send_refused_again(),
            None => self.try_next(now),
        }
    }

    /// Tries the replicas after this one, but for those that have failed of late.
    fn try_next(&mut self, now: Instant) {
        let State::Up(up) = &self.state else { return };
        let (replica, all) = (up.replica, self.replicas.len());
        let mut order: Vec<Replica> = (1..all).map(|nth| (replica + nth) % all).collect();
        order.retain(|&replica| !self.memory.doubts(replica, now));
        order.reverse();
        self.try_one_of(now, order);
    }

    fn try_one_of(&mut self, now: Instant, mut rest: Vec<Replica>) {
        self.candidate = rest.pop().map(|replica| {
            let link = self.dial(replica);
            let (up, unheard) = (self.up(now, link, replica), BTreeSet::new());
            Candidate { up, rest, stage: Stage::Dialling, unheard }
        });
        if self.candidate.is_none()
            && let State::Up(up) = &mut self.state
        {
            // None of them is better than this one. It is asked again what it refused.
            up.next_turn_at = now + self.timing.reader_ttl;
            self.send_refused_again();
        }
    }

    /// Stops trying, without a word about why.
    pub(super) fn drop_candidate(&mut self) {
        if let Some(candidate) = self.candidate.take() {
            self.actions.push(Action::Hangup { link: candidate.up.link });
        }
    }

    fn candidate_failed(&mut self, now: Instant) {
        let Some(candidate) = self.candidate.take() else { return };
        self.memory.failed(candidate.up.replica, now, self.timing.reader_ttl);
        self.try_one_of(now, candidate.rest);
        self.queue_those_asked_meanwhile(now);
    }

    pub(super) fn candidate_linked(&mut self, now: Instant, link: u64) {
        let Some(mut candidate) = self.candidate.take_if(|one| one.up.link == link) else { return };
        candidate.stage = Stage::Asked { until: now + self.timing.request_timeout_min };
        candidate.up.next_turn_at = now + self.timing.reader_ttl;
        self.send_watches(&mut candidate.up);
        self.candidate = Some(candidate);
    }

    pub(super) fn candidate_unlinked(&mut self, now: Instant, link: u64) {
        if self.candidate.as_ref().is_some_and(|one| one.up.link == link) {
            self.candidate_failed(now);
        }
    }

    pub(super) fn candidate_told(&mut self, now: Instant, link: u64, message: FromReplica) {
        let Some(candidate) = self.candidate.as_mut().filter(|one| one.up.link == link) else {
            return;
        };
        let (replica, answered) = (candidate.up.replica, candidate.stage == Stage::Answered);
        match message {
            FromReplica::Refused { id, reason, .. } => {
                if let Some(watch) = candidate.up.watch_requests.remove(&id) {
                    self.candidate_refused(now, watch, reason);
                }
            }
            FromReplica::Publishers(_) | FromReplica::PathSnapshot(_) if !answered => {
                candidate.stage = Stage::Answered;
                self.take_over(now);
                // By whichever it is now: the link, or still the candidate.
                self.told(now, link, message);
            }
            FromReplica::Publishers(publishers) => {
                candidate.up.watch_requests.retain(|_, watch| *watch != publishers.watch);
                self.tell(link, replica, publishers.watch, News::Publishers(publishers));
            }
            FromReplica::PublisherGone(gone) => self.publisher_gone(link, replica, gone),
            FromReplica::PathSnapshot(part) => {
                candidate.unheard.insert(part.watch);
            }
            FromReplica::PathChanges(changes) => candidate.unheard.extend(changes.watches),
            _ => {}
        }
    }

    /// It does not take a watch. One that refuses the first is no better than the one before.
    fn candidate_refused(&mut self, now: Instant, watch: u32, reason: String) {
        let Some(candidate) = &mut self.candidate else { return };
        let (link, replica) = (candidate.up.link, candidate.up.replica);
        let answered = candidate.stage == Stage::Answered;
        if answered {
            candidate.up.refused.insert(watch);
        }
        self.tell(link, replica, watch, News::Refused(reason));
        if !answered {
            self.actions.push(Action::Hangup { link });
            self.candidate_failed(now);
        }
    }

    /// The replica that has answered takes the place of the one before, if that owes nothing. True
    /// if it does.
    pub(super) fn take_over(&mut self, now: Instant) -> bool {
        let State::Up(up) = &self.state else { return false };
        if !up.owes_nothing() || !self.is_leaving() {
            return false;
        }
        let (link, replica) = (up.link, up.replica);
        let Some(candidate) = self.candidate.take() else { return false };
        self.link_ends(replica);
        self.actions.push(Action::Hangup { link });
        let refused = candidate.up.refused.clone();
        self.memory.answered(candidate.up.replica);
        self.serve_over(now, candidate.up);
        candidate.unheard.into_iter().for_each(|watch| self.send_watch(watch));
        refused.into_iter().for_each(|watch| self.pace_refused(now, watch));
        true
    }

    pub(super) fn links(&self) -> impl Iterator<Item = u64> {
        let up = match &self.state {
            State::Up(up) => Some(up.link),
            _ => None,
        };
        let asked = |one: &&Candidate| one.stage != Stage::Dialling;
        up.into_iter().chain(self.candidate.as_ref().filter(asked).map(|one| one.up.link))
    }
}
