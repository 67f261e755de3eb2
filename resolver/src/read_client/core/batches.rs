//! Batches: their questions and their progress.

use std::time::{Duration, Instant};

use longshore_protocol::messages::resolver::RequestRefusal;

use super::outstanding::{InvalidAnswer, OutstandingAnswer};
use super::{Action, Question, REQUESTS_IN_FLIGHT_MAX, ReadCore, Replica, State, Up};
use crate::cluster::ReplicaFailure;
use crate::read_client::answer::{Answer, ReadError};

#[derive(Debug)]
pub(super) struct Batch {
    question: Question,
    /// How long an answer may take.
    timeout: Duration,
    /// Completed rounds.
    pub(super) rounds: u32,
    /// It was there when the current round began: a batch that joins later is not charged with that
    /// round.
    pub(super) whole_round: bool,
    /// By replica.
    pub(super) trials: Vec<Trial>,
    /// The answer of the current replica so far.
    partial: Option<Answer>,
    /// Requests whose last answer has not arrived.
    parts_left: usize,
    /// The merged answers of warming replicas.
    provisional: Option<Answer>,
}

/// How a replica has served a batch.
#[derive(Clone, Default, Debug)]
pub(super) struct Trial {
    pub(super) failures: u32,
    pub(super) why: Option<String>,
    /// It has answered while warming: another is asked.
    pub(super) warming: bool,
    /// It does not know the request, or has no room for it: another is asked.
    pub(super) refused: bool,
}

impl Trial {
    /// Another is asked, though nothing has failed.
    pub(super) fn is_skipped(&self) -> bool {
        self.warming || self.refused
    }

    /// It has been tried.
    pub(super) fn is_over(&self) -> bool {
        self.warming || self.failures > 0
    }
}

impl ReadCore {
    pub(super) fn ask(&mut self, now: Instant, number: u64, question: Question) {
        if self.replicas.is_empty() {
            let answer = Err(ReadError::NoReplicas);
            self.actions.push(Action::Finish { batch: number, answer });
            return;
        }
        let batch = Batch {
            timeout: question.timeout(&self.timing),
            question,
            rounds: 0,
            whole_round: !matches!(self.state, State::Dialling { .. }),
            trials: vec![Trial::default(); self.replicas.len()],
            partial: None,
            parts_left: 0,
            provisional: None,
        };
        self.batches.insert(number, batch);
        match &self.state {
            State::Idle => self.start_round(now),
            State::Up(up) if !self.is_leaving() && !self.is_skipped(up.replica) => {
                self.queue(now, number);
            }
            State::Up(_) | State::Dialling { .. } | State::Waiting { .. } => {}
        }
    }

    /// Every batch has one round less. Those without further rounds fail, once every replica has
    /// been tried.
    pub(super) fn count_round(&mut self) {
        let numbers: Vec<u64> = self.batches.keys().copied().collect();
        for number in numbers {
            let Some(batch) = self.batches.get_mut(&number) else { continue };
            batch.rounds += u32::from(batch.whole_round);
            batch.partial = None;
            let tried = batch.trials.iter().all(Trial::is_over);
            if batch.provisional.is_some() && tried {
                self.finish_provisional(number);
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
    }

    pub(super) fn finish_provisional(&mut self, number: u64) {
        if let Some(batch) = self.batches.remove(&number)
            && let Some(answer) = batch.provisional
        {
            self.actions.push(Action::Finish { batch: number, answer: Ok(answer) });
        }
    }

    /// Divides a batch into requests.
    pub(super) fn queue(&mut self, now: Instant, number: u64) {
        let (State::Up(up), Some(batch)) = (&mut self.state, self.batches.get_mut(&number)) else {
            return;
        };
        let parts = batch.question.parts();
        batch.parts_left = parts.len();
        batch.partial = None;
        if parts.is_empty() {
            let answer = Ok(batch.question.empty_answer());
            self.batches.remove(&number);
            self.actions.push(Action::Finish { batch: number, answer });
            return;
        }
        if up.in_flight.is_empty() && up.to_send.is_empty() {
            up.awaiting_since = now;
        }
        up.was_asked = true;
        up.to_send.extend(parts.into_iter().map(|part| (number, part)));
    }

    /// Whether a batch waits for another replica than this: the link is left as soon as it awaits
    /// no answer.
    fn is_skipped(&self, replica: Replica) -> bool {
        self.batches.values().any(|batch| batch.trials[replica].is_skipped())
    }

    /// Queues the batches that were to go to the next replica at this one after all, unless one
    /// still waits for another replica.
    pub(super) fn queue_waiting_batches(&mut self, now: Instant) {
        let waits = |(number, batch): (&u64, &Batch)| (batch.parts_left == 0).then_some(*number);
        let State::Up(up) = &self.state else { return };
        let replica = up.replica;
        if self.is_skipped(replica) {
            return;
        }
        let numbers: Vec<u64> = self.batches.iter().filter_map(waits).collect();
        numbers.into_iter().for_each(|number| self.queue(now, number));
    }

    /// Sends what fits, and then over the candidate's link if it takes over.
    pub(super) fn send(&mut self, now: Instant) {
        self.send_over_link(now);
        if self.take_over(now) {
            self.send_over_link(now);
        }
    }

    fn send_over_link(&mut self, now: Instant) {
        let State::Up(up) = &mut self.state else { return };
        while up.in_flight.len() < REQUESTS_IN_FLIGHT_MAX
            && let Some((number, range)) = up.to_send.pop_front()
        {
            let Some(batch) = self.batches.get(&number) else { continue };
            if up.in_flight.is_empty() {
                up.awaiting_since = now;
            }
            let request = self.next_request;
            self.next_request += 1;
            let answers = batch.question.answers(&range);
            up.in_flight
                .insert(request, OutstandingAnswer::new(number, answers, self.answer_bytes_max));
            let (link, question) = (up.link, batch.question.clone());
            self.actions.push(Action::Ask { link, request, question, range });
        }
        // Requests to this replica are answered first: it may be the only one that can be reached.
        if let State::Up(up) = &self.state
            && up.is_idle()
            && self.is_skipped(up.replica)
        {
            self.leave_warming_replica(now);
        }
    }

    /// A part of an answer has arrived. Unless empty, it shows for every request that the replica
    /// works: it answers them in order.
    pub(super) fn answered(&mut self, now: Instant, request: u64, last: bool, slice: Answer) {
        let State::Up(up) = &mut self.state else { return };
        let replica = up.replica;
        let Some(outstanding) = up.in_flight.get_mut(&request) else { return };
        let number = outstanding.batch;
        match outstanding.take(&slice, last) {
            Ok(true) => up.awaiting_since = now,
            Ok(false) => {}
            Err(invalid) => {
                self.leave_for_invalid_answer(now, number, invalid);
                return;
            }
        }
        if last {
            up.in_flight.remove(&request);
        }
        let Some(batch) = self.batches.get_mut(&number) else { return };
        match &mut batch.partial {
            Some(answer) => answer.extend(slice),
            None => batch.partial = Some(slice),
        }
        if !last {
            return;
        }
        batch.parts_left = batch.parts_left.saturating_sub(1);
        if batch.parts_left > 0 {
            return;
        }
        let Some(answer) = batch.partial.take().filter(|answer| batch.question.is_answered(answer))
        else {
            self.leave_for_invalid_answer(now, number, InvalidAnswer::SomethingElse);
            return;
        };
        let provisional = answer.is_provisional(batch.question.wants_all_publishers());
        let answer = match batch.provisional.take() {
            Some(before) => before.join(answer.sorted()),
            None => answer.sorted(),
        };
        if !provisional {
            self.batches.remove(&number);
            self.actions.push(Action::Finish { batch: number, answer: Ok(answer) });
            return;
        }
        batch.provisional = Some(answer);
        batch.trials[replica].warming = true;
        if batch.trials.iter().all(Trial::is_over) {
            self.finish_provisional(number);
        }
    }

    /// The replica sends a wrong or endless answer: it is left, and another is asked. But not for
    /// an answer over the limit, which would be as long there.
    fn leave_for_invalid_answer(&mut self, now: Instant, number: u64, invalid: InvalidAnswer) {
        let State::Up(up) = &self.state else { return };
        let (link, replica) = (up.link, up.replica);
        if invalid == InvalidAnswer::TooLong && self.batches.remove(&number).is_some() {
            let (replica, limit) = (self.replicas[replica].clone(), self.answer_bytes_max);
            let answer = Err(ReadError::TooLong { replica, limit });
            self.actions.push(Action::Finish { batch: number, answer });
        }
        self.actions.push(Action::Close { link });
        self.abandon(now, invalid.why());
    }

    /// The replica refused a whole request. If another may accept it, another is asked, once;
    /// otherwise the batch fails at once.
    pub(super) fn request_refused(
        &mut self,
        now: Instant,
        request: u64,
        code: RequestRefusal,
        reason: String,
    ) {
        let State::Up(up) = &mut self.state else { return };
        let replica = up.replica;
        let Some(OutstandingAnswer { batch: number, .. }) = up.in_flight.remove(&request) else {
            return;
        };
        up.awaiting_since = now;
        let Some(batch) = self.batches.get_mut(&number) else { return };
        let trial = &mut batch.trials[replica];
        let elsewhere = matches!(code, RequestRefusal::UnknownRequest | RequestRefusal::Busy);
        if elsewhere {
            trial.refused = true;
            trial.failures += 1;
            trial.why = Some(reason.clone());
        }
        if elsewhere && !batch.trials.iter().all(Trial::is_over) {
            up.to_send.retain(|(other, _)| *other != number);
        } else if batch.provisional.is_some() {
            self.finish_provisional(number);
        } else {
            self.batches.remove(&number);
            let replica = self.replicas[replica].clone();
            let answer = Err(ReadError::Refused { replica, reason });
            self.actions.push(Action::Finish { batch: number, answer });
        }
    }

    /// The deadline of the replica's next answer, counted from its last one. It answers requests in
    /// order, so the timeout is that of the oldest batch.
    pub(super) fn answer_deadline(&self, up: &Up) -> Instant {
        let oldest =
            up.in_flight.values().find_map(|outstanding| self.batches.get(&outstanding.batch));
        let allowed = oldest.map_or(self.timing.request_timeout_min, |batch| batch.timeout);
        up.awaiting_since + allowed
    }
}
