//! The faults of a case, and everything that happens to its runs by time.

use std::time::Duration;

use longshore_protocol::messages::work::{NewSettle, RequestError};
use longshore_protocol::{CheckpointOutcome, SettleOutcome};
use longshore_subscriber::testing::earlier;
use longshore_subscriber::{CANCEL_GRACE, CancelReason, CheckpointError, CheckpointsError};

use super::case::{Case, CaseError, HANDLER_TIME_MAX, words_of};
use super::fault::{Fault, ordinal};
use super::host::{HeldLease, HostRequest};
use super::run::{Held, Run, Until};

/// How long a lost link is away, some within the publisher's grace and some beyond.
const LINK_AWAY: [Duration; 4] = seconds([1, 4, 6, 40]);
/// How long a handler is delayed.
const DELAYS: [Duration; 4] = seconds([0, 1, 20, 120]);
/// How long after a pause a worker takes to link again.
const RECONNECTS: [Duration; 3] = seconds([0, 3, 60]);

const fn seconds<const N: usize>(counts: [u64; N]) -> [Duration; N] {
    let mut all = [Duration::ZERO; N];
    let mut at = 0;
    while at < N {
        all[at] = Duration::from_secs(counts[at]);
        at += 1;
    }
    all
}

impl Case<'_> {
    /// Applies the faults of the run's present await point.
    pub(super) fn inject(&mut self, at: usize) -> Result<(), CaseError> {
        let run = &self.runs[at];
        let place = (run.job, run.nth, run.awaits);
        let due = self.unfired.iter().position(|injection| {
            injection.fault != Fault::LoseSettle
                && (injection.job, injection.run, injection.awaits) == place
        });
        let Some(due) = due else { return Ok(()) };
        let fault = self.unfired.swap_remove(due).fault;
        self.fired.push(fault);
        self.note_run(&self.runs[at], || format!("FAULT: {fault}"));
        let now = self.now();
        match fault {
            Fault::LoseSettle => {}
            Fault::Crash => {
                self.crash(at)?;
            }
            Fault::Twice | Fault::Zombie => {
                self.maybe_answer_requests()?;
                self.unlink(at)?;
                let until =
                    if fault == Fault::Twice { Until::OtherStarted } else { Until::OtherEnded };
                self.runs[at].held = Some(Held::until(until, now));
            }
            Fault::Delay => {
                let delay = self.random.pick(&DELAYS).unwrap_or_default();
                self.runs[at].held = Some(Held::delay(now, delay + Duration::from_millis(5)));
            }
            Fault::LoseLink => {
                self.maybe_answer_requests()?;
                self.unlink(at)?;
                let away = self.random.pick(&LINK_AWAY).unwrap_or_default();
                self.runs[at].link_at = Some(now + away);
            }
            Fault::Stop => {
                self.runs[at].lease.cancel(CancelReason::Shutdown);
                self.runs[at].drop_at = Some(now + CANCEL_GRACE);
            }
            Fault::Cancel => {
                let id = self.job_id(self.runs[at].job);
                self.publisher.cancel(id)?;
            }
        }
        Ok(())
    }

    /// Applies the faults between the handler's return and the publisher's answer.
    pub(super) fn inject_after_return(&mut self, at: usize) -> Result<(), CaseError> {
        let run = &self.runs[at];
        let place = (run.job, run.nth);
        let due = self.unfired.iter().position(|injection| {
            injection.fault == Fault::LoseSettle && (injection.job, injection.run) == place
        });
        let Some(due) = due else { return Ok(()) };
        self.fired.push(self.unfired.swap_remove(due).fault);
        self.note_run(&self.runs[at], || "FAULT: crash before its result is sent".to_owned());
        self.crash(at)
    }

    /// The worker's process dies.
    fn crash(&mut self, at: usize) -> Result<(), CaseError> {
        self.maybe_answer_requests()?;
        self.end_run(at)
    }

    /// Requests on their way arrive before a fault, or not.
    fn maybe_answer_requests(&mut self) -> Result<(), CaseError> {
        if self.random.flip() { self.answer_requests() } else { Ok(()) }
    }

    /// The link is lost.
    fn unlink(&mut self, at: usize) -> Result<(), CaseError> {
        let unlinked_since = Some(self.now());
        let run = &mut self.runs[at];
        self.publisher.disconnect(&mut run.worker)?;
        if let Some(ends) = run.ends {
            self.host.hold(run.token, HeldLease { ends, unlinked_since });
        }
        Ok(())
    }

    /// Everything that is due: held runs go on, workers link again, leases are renewed or end,
    /// settles are sent.
    pub(super) fn run_timers(&mut self) -> Result<(), CaseError> {
        let now = self.now();
        let mut at = 0;
        while at < self.runs.len() {
            let run = &self.runs[at];
            if let Some(held) = run.held
                && (held.latest <= now || self.is_released(run, held.until))
            {
                self.go_on(at);
            }
            let run = &self.runs[at];
            let is_frozen = run.unaware || (run.held.is_some() && run.worker.link.is_none());
            if !is_frozen && self.run_timer(at)? {
                self.end_run(at)?;
                continue;
            }
            at += 1;
        }
        Ok(())
    }

    /// A held run goes on.
    fn go_on(&mut self, at: usize) {
        let now = self.now();
        let reconnect = self.random.pick(&RECONNECTS).unwrap_or_default();
        let run = &mut self.runs[at];
        run.held = None;
        run.must_end_at = now + HANDLER_TIME_MAX;
        if run.worker.link.is_none() {
            run.unaware = run.is_runnable();
            run.link_at = Some(now + reconnect);
        }
        self.note_run(&self.runs[at], || "continues".to_owned());
    }

    /// What is due of one run. Returns true if the run is over.
    fn run_timer(&mut self, at: usize) -> Result<bool, CaseError> {
        let now = self.now();
        let run = &mut self.runs[at];
        if run.settle.is_some() && run.worker.link.is_none() {
            run.link_at.get_or_insert(now);
        }
        if run.link_at.is_some_and(|due| due <= now) {
            self.relink(at)?;
        }
        let run = &self.runs[at];
        match run.worker.link {
            Some(link) if run.ends.is_some() && run.renew_at <= now => {
                if self.publisher.renew(link, run.token) {
                    self.renewed(at);
                } else {
                    self.lose_lease(at, CancelReason::LeaseLost);
                }
            }
            None if run.ends.is_some_and(|ends| ends <= now) => {
                self.lose_lease(at, CancelReason::LeaseLost);
            }
            _ => {}
        }
        let run = &mut self.runs[at];
        if run.drop_at.is_some_and(|due| due <= now) {
            (run.drop_at, run.handling) = (None, None);
            run.settle = Some(NewSettle::Release);
            self.note_run(&self.runs[at], || "is dropped, and its job released".to_owned());
        }
        let run = &self.runs[at];
        if run.handling.is_some() && run.held.is_none() && run.must_end_at <= now {
            let waits = ordinal(run.awaits.max(1));
            return Err(CaseError::Problem(format!(
                "the handler did not end within {HANDLER_TIME_MAX:?}: run {} of job {} waits at \
                 its {waits} await",
                run.nth,
                run.job + 1
            )));
        }
        if self.runs[at].worker.link.is_some() { self.send_settle(at) } else { Ok(false) }
    }

    /// Sends what the handler has returned. Returns true if the run is over.
    fn send_settle(&mut self, at: usize) -> Result<bool, CaseError> {
        let run = &mut self.runs[at];
        let Some(settle) = run.settle.take() else { return Ok(false) };
        // As a worker: a result whose lease was lost is sent, a failure is not.
        if run.ends.is_none() && !matches!(settle, NewSettle::Complete { .. }) {
            return Ok(true);
        }
        let outcome = self.publisher.settle(&mut run.worker, run.token, &settle)?;
        self.note_run(&self.runs[at], || match outcome {
            SettleOutcome::Accepted => format!("{}: accepted", words_of(Some(&settle))),
            outcome => format!("{}: refused, {outcome}", words_of(Some(&settle))),
        });
        Ok(true)
    }

    fn relink(&mut self, at: usize) -> Result<(), CaseError> {
        let run = &mut self.runs[at];
        run.link_at = None;
        if run.worker.link.is_some() {
            return Ok(());
        }
        let resume = if run.ends.is_some() { vec![run.token] } else { Vec::new() };
        let gone = self.publisher.connect(&mut run.worker, &resume)?;
        self.note_run(&self.runs[at], || "has a link again".to_owned());
        if !gone.is_empty() {
            self.lose_lease(at, CancelReason::LeaseLost);
        } else if self.runs[at].ends.is_some() {
            self.renewed(at);
            if let Some(link) = self.runs[at].worker.link {
                self.publisher.started(link, self.runs[at].token);
            }
        }
        Ok(())
    }

    fn renewed(&mut self, at: usize) {
        let now = self.now();
        let run = &mut self.runs[at];
        let ends = run.renewed(now);
        self.host.hold(run.token, HeldLease { ends, unlinked_since: None });
    }

    /// Sends the requests of contexts whose workers have a link, and answers them.
    pub(super) fn answer_requests(&mut self) -> Result<(), CaseError> {
        for (token, request) in self.host.take_requests() {
            match self.runs.iter_mut().find(|run| run.token == token) {
                Some(run) => run.requests.push_back(request),
                None => request.end(None),
            }
        }
        for at in 0..self.runs.len() {
            while self.runs[at].worker.link.is_some()
                && let Some(request) = self.runs[at].requests.pop_front()
            {
                self.answer(at, request)?;
            }
        }
        Ok(())
    }

    fn answer(&mut self, at: usize, request: HostRequest) -> Result<(), CaseError> {
        let Run { token, attempt, checkpoints, worker, lease, .. } = &mut self.runs[at];
        let Some(link) = worker.link else { return Ok(()) };
        let lost = CancelReason::LeaseLost;
        let is_stale = match request {
            HostRequest::Progress => {
                if let Some(progress) = lease.take_progress() {
                    self.publisher.progress(link, *token, progress);
                }
                false
            }
            HostRequest::Store(bytes, answer) => {
                let sequence = *checkpoints + 1;
                let outcome = self.publisher.checkpoint(link, *token, sequence, &bytes)?;
                // The handler may have stopped waiting.
                let _ = answer.send(match outcome {
                    CheckpointOutcome::Accepted => {
                        *checkpoints = sequence;
                        Ok(sequence)
                    }
                    CheckpointOutcome::StaleToken => Err(CheckpointError::Lost(lost)),
                    CheckpointOutcome::Gap => Err(CheckpointError::Gap),
                    CheckpointOutcome::NoSpace => Err(CheckpointError::NoSpace),
                    CheckpointOutcome::TooLarge => Err(CheckpointError::TooLarge {
                        bytes: bytes.len(),
                        limit: longshore_protocol::limits::CHECKPOINT_BYTES_MAX,
                    }),
                });
                outcome == CheckpointOutcome::StaleToken
            }
            HostRequest::Read(answer) => {
                let stored = self.publisher.checkpoints(link, *token);
                let is_stale = matches!(stored, Err(RequestError::StaleToken));
                let _ = answer.send(match stored {
                    Ok(stored) => earlier(stored, *attempt, *checkpoints),
                    Err(RequestError::StaleToken) => Err(CheckpointsError::Lost(lost)),
                    Err(error) => Err(CheckpointsError::Refused(error)),
                });
                is_stale
            }
        };
        if is_stale {
            self.lose_lease(at, lost);
        }
        Ok(())
    }
}
