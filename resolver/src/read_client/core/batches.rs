//! Batches: what is asked, and how far it is.

use std::time::{Duration, Instant};

use longshore_protocol::messages::resolver::RequestRefusal;

use super::asked::{Asked, Wrong};
use super::{Action, Question, REQUESTS_IN_FLIGHT_MAX, ReadCore, Replica, State, Up};
use crate::cluster::ReplicaFailure;
use crate::read_client::answer::{Answer, ReadError};

#[derive(Debug)]
pub(super) struct Batch {
    question: Question,
    /// How long an answer may take.
    timeout: Duration,
    /// Rounds that are over.
    pub(super) rounds: u32,
    /// It has been there since the round began that is under way: one that joins in the middle is
    /// not charged with it.
    pub(super) whole_round: bool,
    /// By replica.
    pub(super) trials: Vec<Trial>,
    /// What the replica of the link has answered so far.
    so_far: Option<Answer>,
    /// Requests that have not had their last answer.
    parts_left: usize,
    /// What warming replicas have answered.
    doubtful: Option<Answer>,
}

/// How a replica has served a batch.
#[derive(Clone, Default, Debug)]
pub(super) struct Trial {
    pub(super) failures: u32,
    pub(super) why: Option<String>,
    /// It has answered, and is warming: another is asked.
    pub(super) warming: bool,
    /// It does not know the request, or has no room for it: another is asked.
    pub(super) refused: bool,
}

impl Trial {
    /// Another is asked, though nothing has failed.
    pub(super) fn is_passed(&self) -> bool {
        self.warming || self.refused
    }

    /// It has had its chance.
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
            so_far: None,
            parts_left: 0,
            doubtful: None,
        };
        self.batches.insert(number, batch);
        match &self.state {
            State::Idle => self.start_round(now),
            State::Up(up) if !self.is_leaving() && !self.is_passed(up.replica) => {
                self.queue(now, number);
            }
            State::Up(_) | State::Dialling { .. } | State::Waiting { .. } => {}
        }
    }

    /// Every batch has one round less. Those that have none left fail, once every replica has had
    /// its chance.
    pub(super) fn count_round(&mut self) {
        let numbers: Vec<u64> = self.batches.keys().copied().collect();
        for number in numbers {
            let Some(batch) = self.batches.get_mut(&number) else { continue };
            batch.rounds += u32::from(batch.whole_round);
            batch.so_far = None;
            let tried = batch.trials.iter().all(Trial::is_over);
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
    }

    pub(super) fn finish_doubtful(&mut self, number: u64) {
        if let Some(batch) = self.batches.remove(&number)
            && let Some(answer) = batch.doubtful
        {
            self.actions.push(Action::Finish { batch: number, answer: Ok(answer) });
        }
    }

    /// Cuts a batch into requests.
    pub(super) fn queue(&mut self, now: Instant, number: u64) {
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

    /// Whether a batch waits for another replica than this: its link is left as soon as it owes
    /// nothing.
    fn is_passed(&self, replica: Replica) -> bool {
        self.batches.values().any(|batch| batch.trials[replica].is_passed())
    }

    /// Those that were to go to the next replica have to do with this one after all, unless there
    /// is still one that cannot.
    pub(super) fn queue_those_asked_meanwhile(&mut self, now: Instant) {
        let waits = |(number, batch): (&u64, &Batch)| (batch.parts_left == 0).then_some(*number);
        let State::Up(up) = &self.state else { return };
        let replica = up.replica;
        if self.is_passed(replica) {
            return;
        }
        let numbers: Vec<u64> = self.batches.iter().filter_map(waits).collect();
        numbers.into_iter().for_each(|number| self.queue(now, number));
    }

    /// Sends what there is room for, over the next replica's link once this one owes nothing and
    /// that has answered.
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
                up.owing_since = now;
            }
            let request = self.next_request;
            self.next_request += 1;
            let answers = batch.question.answers(&range);
            up.in_flight.insert(request, Asked::new(number, answers, self.answer_bytes_max));
            let (link, question) = (up.link, batch.question.clone());
            self.actions.push(Action::Ask { link, request, question, range });
        }
        // What was asked of this replica before it answers first: it may be the only one that can
        // be reached.
        if let State::Up(up) = &self.state
            && up.owes_nothing()
            && self.is_passed(up.replica)
        {
            self.move_on(now);
        }
    }

    /// Some of an answer has come. If there is anything in it, it shows that the replica is at
    /// work, for every request: it answers them in their order.
    pub(super) fn answered(&mut self, now: Instant, request: u64, last: bool, slice: Answer) {
        let State::Up(up) = &mut self.state else { return };
        let replica = up.replica;
        let Some(asked) = up.in_flight.get_mut(&request) else { return };
        let number = asked.batch;
        match asked.take(&slice, last) {
            Ok(true) => up.owing_since = now,
            Ok(false) => {}
            Err(wrong) => {
                self.answers_wrong(now, number, wrong);
                return;
            }
        }
        if last {
            up.in_flight.remove(&request);
        }
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
            self.answers_wrong(now, number, Wrong::SomethingElse);
            return;
        };
        let doubtful = answer.is_doubtful();
        let answer = match batch.doubtful.take() {
            Some(before) => before.join(answer.sorted()),
            None => answer.sorted(),
        };
        if !doubtful {
            self.batches.remove(&number);
            self.actions.push(Action::Finish { batch: number, answer: Ok(answer) });
            return;
        }
        batch.doubtful = Some(answer);
        batch.trials[replica].warming = true;
        if batch.trials.iter().all(Trial::is_over) {
            self.finish_doubtful(number);
        }
    }

    /// The replica does not answer what it was asked, or without end: it is left. Another is asked;
    /// but not for what is too long to be taken in, because from there it would be as long.
    fn answers_wrong(&mut self, now: Instant, number: u64, wrong: Wrong) {
        let State::Up(up) = &self.state else { return };
        let (link, replica) = (up.link, up.replica);
        if wrong == Wrong::TooLong && self.batches.remove(&number).is_some() {
            let (replica, limit) = (self.replicas[replica].clone(), self.answer_bytes_max);
            let answer = Err(ReadError::TooLong { replica, limit });
            self.actions.push(Action::Finish { batch: number, answer });
        }
        self.actions.push(Action::Hangup { link });
        self.abandon(now, wrong.why());
    }

    /// The replica refused a whole request. What another may take, another is asked, once; what
    /// none would, fails at once.
    pub(super) fn request_refused(
        &mut self,
        now: Instant,
        request: u64,
        code: RequestRefusal,
        reason: String,
    ) {
        let State::Up(up) = &mut self.state else { return };
        let replica = up.replica;
        let Some(Asked { batch: number, .. }) = up.in_flight.remove(&request) else { return };
        up.owing_since = now;
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
        } else if batch.doubtful.is_some() {
            self.finish_doubtful(number);
        } else {
            self.batches.remove(&number);
            let replica = self.replicas[replica].clone();
            let answer = Err(ReadError::Refused { replica, reason });
            self.actions.push(Action::Finish { batch: number, answer });
        }
    }

    /// Until when the replica may be silent, counted from its last answer: it answers requests in
    /// their order, so the batch of the oldest says how long that may take.
    pub(super) fn answer_deadline(&self, up: &Up) -> Instant {
        let oldest = up.in_flight.values().find_map(|asked| self.batches.get(&asked.batch));
        let allowed = oldest.map_or(self.timing.request_timeout_min, |batch| batch.timeout);
        up.owing_since + allowed
    }
}
