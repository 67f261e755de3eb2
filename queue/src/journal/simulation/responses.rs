//! How clients receive responses, and update the model.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use longshore_protocol::messages::work::{ReplaceOutcome, RequestError, Settled};
use longshore_protocol::{CheckpointOutcome, LinkId, Refusal, SettleOutcome};
use rand::RngExt;

use super::harness::{PublisherRun, SimulationHarness};
use super::session::ClientSession;
use super::tool_requests::ToolRequest;
use crate::log::LogReadError;
use crate::store::PendingAnswer;
use crate::{Assignment, Poisoned, Released, Reply};

impl SimulationHarness {
    /// Makes submitted commands durable, and delivers the responses.
    pub(super) fn release(&mut self, run: &mut PublisherRun) -> Result<(), Poisoned> {
        loop {
            let mut released = Released::default();
            let outcome = poll_once(run.store.released(&mut released));
            self.model.index = self.model.index.max(run.store.committed());
            self.receive(run, released);
            match outcome {
                Some(Ok(())) if !run.store.is_released() => {}
                Some(outcome) => return outcome,
                // Nothing is pending.
                None => return Ok(()),
            }
        }
    }

    fn receive(&mut self, run: &PublisherRun, released: Released) {
        let Released { assignments, replies, revoked, answered, .. } = released;
        for assignment in assignments {
            self.receive_delivery(run, assignment);
        }
        for (link, _, token) in revoked {
            if let Some(session) = self.session_of(link) {
                session.leases.remove(&token);
            }
        }
        // Query results may be older than replies of the same commit, never newer than the next
        // ones.
        for (link, request, answer) in answered {
            let add_request =
                self.session_of(link).and_then(|session| session.requests.remove(&request));
            if let (Some(ToolRequest::Show(id)), PendingAnswer::Job(view)) = (add_request, answer) {
                self.model.shown(id, view.map(|view| view.info.state));
            }
        }
        for (link, reply) in replies {
            self.receive_reply(run, link, reply);
        }
        self.feed_reader.read(run.store.tail(), run.store.committed());
    }

    fn receive_delivery(&mut self, run: &PublisherRun, assignment: Assignment) {
        let Assignment { link, subscription, token, .. } = assignment;
        if let Some(session) = self.session_of(link) {
            let credits = session.credits.get_mut(&subscription).filter(|credits| **credits > 0);
            *credits.expect("nothing is delivered without a credit") -= 1;
        }
        let hot = run.store.payload(assignment.entry);
        let read = hot.map_or_else(|| run.store.reader().read(assignment.entry), Ok);
        let entry = match read {
            // Now and then an entry is treated as damaged.
            Ok(_) if self.random.random_range(0..150) == 0 => Err(()),
            Ok(entry) => Ok(entry),
            Err(LogReadError::Damaged { .. }) => Err(()),
            // The next command detects a disk that fails meanwhile.
            Err(_) => return,
        };
        let Ok(entry) = entry else {
            // It never reaches its worker; the publisher buries it.
            self.unreadable.push((link, subscription, token));
            return;
        };
        let entry = self.entry_of_schedule(run, &assignment, entry);
        let Some(entry) = entry else { return };
        let job = self.model.delivered(&assignment, entry);
        if let Some(session) = self.session_of(link) {
            session.leases.insert(token, (job, 0));
        }
    }

    fn session_of(&mut self, link: LinkId) -> Option<&mut ClientSession> {
        self.sessions.iter_mut().find(|session| session.link == Some(link))
    }

    fn receive_reply(&mut self, run: &PublisherRun, link: LinkId, reply: Reply) {
        let found = self.sessions.iter_mut().find(|session| session.link == Some(link));
        // The link is gone: nobody receives the answer.
        let Some(session) = found else { return };
        match reply {
            Reply::Attached(attached) => {
                assert_eq!(
                    attached.durability, self.options.durability,
                    "the reported durability is the configured one"
                );
                session.attached = Some((attached.next_batch, attached.next_settle));
                session.leases.retain(|token, _| !attached.gone.0.contains(token));
            }
            Reply::Enqueued(answer) => {
                let outcome = answer.outcome.expect("batches follow each other without a gap");
                if let Some((_, ids)) = session.batches.remove(&answer.sequence) {
                    assert_eq!(outcome.len(), ids.len());
                    ids.into_iter().zip(outcome.iter()).for_each(|(id, outcome)| {
                        self.model.enqueued(id, outcome);
                    });
                }
            }
            Reply::Settled(answer) => self.receive_settled(run, link, &answer),
            Reply::Returned(credit) => {
                let credits = session.credits.entry(credit.subscription).or_default();
                let left = credits.checked_sub(u64::from(credit.count));
                *credits = left.expect("returned credits were granted before");
            }
            Reply::Checkpointed(answer) => match answer.outcome {
                CheckpointOutcome::StaleToken => drop(session.leases.remove(&answer.token)),
                // The same number may be resent.
                CheckpointOutcome::NoSpace => {
                    if let Some((_, last)) = session.leases.get_mut(&answer.token) {
                        *last = (*last).min(answer.sequence - 1);
                    }
                }
                _ => {}
            },
            Reply::ActRefused { request, .. } => drop(session.requests.remove(&request)),
            Reply::Acted { request, report } => {
                if let Some(ToolRequest::Act(action, ids)) = session.requests.remove(&request) {
                    for (&id, outcome) in ids.iter().zip(report.outcomes.iter()) {
                        self.model.acted(id, action, outcome);
                    }
                }
            }
            Reply::Replaced { request, outcome } => {
                if let Some(ToolRequest::Replace(dead, new)) = session.requests.remove(&request) {
                    self.model.replaced(dead, new, outcome == ReplaceOutcome::Replaced);
                }
            }
            Reply::Drained { .. }
            | Reply::LimitSet { .. }
            | Reply::ScheduleSet { .. }
            | Reply::ScheduleRun { .. } => {}
            Reply::Paused { request, report } => {
                if let Some(ToolRequest::Pause(pattern, paused)) = session.requests.remove(&request)
                {
                    match report {
                        Ok(_) => self.model.paused(&pattern, paused),
                        Err(why) => assert_eq!(why, RequestError::NoSpace),
                    }
                }
            }
            Reply::Configured { request, result } => {
                if let Some(ToolRequest::Configure(path)) = session.requests.remove(&request) {
                    match result {
                        Ok(settings) => self.model.configured(path, settings),
                        Err(why) => assert_eq!(why, Refusal::NoSpace),
                    }
                }
            }
            Reply::LinkRefused { reason } | Reply::SubscribeRefused { reason, .. } => {
                panic!("{reason}")
            }
            Reply::Waiting(_) => {}
        }
    }

    fn receive_settled(&mut self, run: &PublisherRun, link: LinkId, answer: &Settled) {
        let found = self.sessions.iter_mut().find(|session| session.link == Some(link));
        let Some(session) = found else { return };
        let Some((_, settles)) = session.settles.remove(&answer.sequence) else { return };
        assert_eq!(answer.outcomes.len(), settles.len());
        let resent = answer.sequence <= session.resent;
        for (settle, outcome) in settles.iter().zip(answer.outcomes.iter()) {
            let counts = outcome == SettleOutcome::Accepted;
            self.model.settled(settle, counts, resent);
            self.settled_short += u64::from(counts && run.store.space().level.is_short());
            match outcome {
                // The lease runs on: settle it again.
                SettleOutcome::NoSpace => {
                    let large = settles.iter().any(|settle| settle.is_large);
                    // Other programs fill the disk too, beyond the reserve for the ends of leases.
                    let is_short = run.store.space().level.is_short();
                    assert!(large || is_short, "{:?} has room", settle.token);
                    session.leases.insert(settle.token, (settle.job, settle.checkpoints));
                }
                SettleOutcome::Accepted => {
                    session.settled = session.settled.max(answer.sequence + 1);
                }
                _ => {}
            }
        }
    }
}

/// The output of a future that is ready at once.
pub(super) fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
