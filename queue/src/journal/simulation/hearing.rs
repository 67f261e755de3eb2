//! What clients hear, and what they make of it.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use longshore_protocol::messages::work::{ReplaceOutcome, RequestError, Settled};
use longshore_protocol::{CheckpointOutcome, LinkId, Refusal, SettleOutcome};
use rand::RngExt;

use super::asks::Ask;
use super::session::Session;
use super::world::{Run, World};
use crate::log::ReadError;
use crate::store::Asked;
use crate::{Handed, Poisoned, Released, Reply};

impl World {
    /// What was submitted becomes durable, and clients are told.
    pub(super) fn release(&mut self, run: &mut Run) -> Result<(), Poisoned> {
        loop {
            let mut released = Released::default();
            let outcome = poll_once(run.store.released(&mut released));
            self.told.index = self.told.index.max(run.store.committed());
            self.hear(run, released);
            match outcome {
                Some(Ok(())) if !run.store.is_released() => {}
                Some(outcome) => return outcome,
                // Nothing is held back.
                None => return Ok(()),
            }
        }
    }

    fn hear(&mut self, run: &Run, released: Released) {
        let Released { handed, replies, revoked, answered, .. } = released;
        for handed in handed {
            self.hear_handed(run, handed);
        }
        for (link, _, token) in revoked {
            if let Some(session) = self.session_of(link) {
                session.held.remove(&token);
            }
        }
        // What was shown may be older than what the replies of the same commit say, and never newer
        // than the next ones.
        for (link, request, answer) in answered {
            let ask = self.session_of(link).and_then(|session| session.asked.remove(&request));
            if let (Some(Ask::Show(id)), Asked::Job(view)) = (ask, answer) {
                self.told.shown(id, view.map(|view| view.info.state));
            }
        }
        for (link, reply) in replies {
            self.hear_reply(run, link, reply);
        }
        self.watcher.read(run.store.tail(), run.store.committed());
    }

    fn hear_handed(&mut self, run: &Run, handed: Handed) {
        let Handed { link, subscription, token, .. } = handed;
        if let Some(session) = self.session_of(link) {
            let credits = session.credits.get_mut(&subscription).filter(|credits| **credits > 0);
            *credits.expect("nothing is delivered without a credit") -= 1;
        }
        let hot = run.store.payload(handed.entry);
        let read = hot.map_or_else(|| run.store.reader().read(handed.entry), Ok);
        let entry = match read {
            // Now and then one is taken for rotten.
            Ok(_) if self.random.random_range(0..150) == 0 => Err(()),
            Ok(entry) => Ok(entry),
            Err(ReadError::Damaged { .. }) => Err(()),
            // A disk that fails meanwhile is met by the next command.
            Err(_) => return,
        };
        let Ok(entry) = entry else {
            // It never reaches its worker, and the publisher buries it.
            self.unreadable.push((link, subscription, token));
            return;
        };
        let job = self.told.handed(&handed, entry);
        if let Some(session) = self.session_of(link) {
            session.held.insert(token, (job, 0));
        }
    }

    fn session_of(&mut self, link: LinkId) -> Option<&mut Session> {
        self.sessions.iter_mut().find(|session| session.link == Some(link))
    }

    fn hear_reply(&mut self, run: &Run, link: LinkId, reply: Reply) {
        let found = self.sessions.iter_mut().find(|session| session.link == Some(link));
        // An answer to a link that is gone: nobody hears it.
        let Some(session) = found else { return };
        match reply {
            Reply::Attached(attached) => {
                assert_eq!(attached.durability, self.options.durability, "it says what it does");
                session.attached = Some((attached.next_batch, attached.next_settle));
                session.held.retain(|token, _| !attached.gone.0.contains(token));
            }
            Reply::Enqueued(answer) => {
                let outcome = answer.outcome.expect("batches follow each other without a gap");
                if let Some((_, ids)) = session.batches.remove(&answer.sequence) {
                    assert_eq!(outcome.len(), ids.len());
                    ids.into_iter().zip(outcome.iter()).for_each(|(id, outcome)| {
                        self.told.enqueued(id, outcome);
                    });
                }
            }
            Reply::Settled(answer) => self.hear_settled(run, link, &answer),
            Reply::Returned(credit) => {
                let credits = session.credits.entry(credit.subscription).or_default();
                let left = credits.checked_sub(u64::from(credit.count));
                *credits = left.expect("no more comes back than was given");
            }
            Reply::Checkpointed(answer) => match answer.outcome {
                CheckpointOutcome::StaleToken => drop(session.held.remove(&answer.token)),
                // The same number may be sent again.
                CheckpointOutcome::NoSpace => {
                    if let Some((_, last)) = session.held.get_mut(&answer.token) {
                        *last = (*last).min(answer.sequence - 1);
                    }
                }
                _ => {}
            },
            Reply::Unacted { request, .. } => drop(session.asked.remove(&request)),
            Reply::Acted { request, report } => {
                if let Some(Ask::Act(action, ids)) = session.asked.remove(&request) {
                    for (&id, outcome) in ids.iter().zip(report.outcomes.iter()) {
                        self.told.acted(id, action, outcome);
                    }
                }
            }
            Reply::Replaced { request, outcome } => {
                if let Some(Ask::Replace(dead, new)) = session.asked.remove(&request) {
                    self.told.replaced(dead, new, outcome == ReplaceOutcome::Replaced);
                }
            }
            Reply::Drained { .. } => {}
            Reply::Paused { request, report } => {
                if let Some(Ask::Pause(pattern, paused)) = session.asked.remove(&request) {
                    match report {
                        Ok(_) => self.told.paused(&pattern, paused),
                        Err(why) => assert_eq!(why, RequestError::NoSpace),
                    }
                }
            }
            Reply::Configured { request, result } => {
                if let Some(Ask::Configure(path)) = session.asked.remove(&request) {
                    match result {
                        Ok(settings) => self.told.configured(path, settings),
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

    fn hear_settled(&mut self, run: &Run, link: LinkId, answer: &Settled) {
        let found = self.sessions.iter_mut().find(|session| session.link == Some(link));
        let Some(session) = found else { return };
        let Some((_, settles)) = session.settles.remove(&answer.sequence) else { return };
        assert_eq!(answer.outcomes.len(), settles.len());
        let resent = answer.sequence <= session.resent;
        for (settle, outcome) in settles.iter().zip(answer.outcomes.iter()) {
            let counts = outcome == SettleOutcome::Accepted;
            self.told.settled(settle, counts, resent);
            self.settled_short += u64::from(counts && run.store.space().level.is_short());
            match outcome {
                // The lease runs on: it is settled again.
                SettleOutcome::NoSpace => {
                    let large = settles.iter().any(|settle| settle.is_large);
                    // Others fill the disk, too: more than the ends of leases were to have.
                    let is_short = run.store.space().level.is_short();
                    assert!(large || is_short, "{:?} has room", settle.token);
                    session.held.insert(settle.token, (settle.job, settle.checkpoints));
                }
                SettleOutcome::Accepted => {
                    session.settled = session.settled.max(answer.sequence + 1);
                }
                _ => {}
            }
        }
    }
}

/// What a future gives at once, if it does.
pub(super) fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
