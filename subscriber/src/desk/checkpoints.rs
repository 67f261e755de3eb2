//! The desk's side that faces handlers which leave checkpoints or read them, and the answers to
//! both.

use longshore_protocol::limits::CHECKPOINT_BYTES_MAX;
use longshore_protocol::messages::work::{Answer, CheckpointInfo, Checkpointed, RequestError};
use longshore_protocol::{CheckpointOutcome, Token};

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::{Desk, PlaceId, Stage, State};
use crate::checkpoints::{Answered, Checkpoints, Told, Waiters};
use crate::signal::LeaseSignal;
use crate::{CancelReason, Checkpoint, CheckpointError, CheckpointsError, JobContext};

type Stored = Result<u64, CheckpointError>;
type Read = Result<Vec<Checkpoint>, CheckpointsError>;

/// The checkpoints at one publisher, and who waits for their answers.
pub(super) type Waiting = Checkpoints<oneshot::Sender<Stored>, Reader>;

/// Who reads earlier checkpoints.
#[derive(Debug)]
pub(super) struct Reader {
    attempt: u16,
    answer: oneshot::Sender<Read>,
}

/// Why an attempt stores and is told nothing any more.
#[derive(Clone, Copy)]
pub(super) enum Gone {
    Lost(CancelReason),
    Ended,
}

impl Desk {
    /// Stores a checkpoint of a job that runs here. Returns once its publisher has answered.
    pub(crate) fn checkpoint(
        &self,
        context: &JobContext,
        bytes: Bytes,
    ) -> Result<oneshot::Receiver<Stored>, CheckpointError> {
        let (waiter, answer) = oneshot::channel();
        self.with_lease(context, |waiting| waiting.store(context.token, bytes, waiter))?;
        Ok(answer)
    }

    /// Asks what earlier attempts have left.
    pub(crate) fn checkpoints(
        &self,
        context: &JobContext,
    ) -> Result<oneshot::Receiver<Read>, CheckpointsError> {
        let (sender, answer) = oneshot::channel();
        let reader = Reader { attempt: context.attempt, answer: sender };
        self.with_lease(context, |waiting| waiting.ask(context.token, reader))?;
        Ok(answer)
    }

    fn with_lease(
        &self,
        context: &JobContext,
        then: impl FnOnce(&mut Waiting),
    ) -> Result<(), Gone> {
        let now = self.now();
        let mut state = self.state.lock();
        let at = state.place(context.place);
        // A context may outlive its handler, and its place may be another publisher's by then.
        let is_its_own = |holder: &Arc<LeaseSignal>| Arc::ptr_eq(holder, &context.signal);
        let lease = at.leases.get_mut(context.token);
        match lease.filter(|lease| lease.holder.as_ref().is_some_and(is_its_own)) {
            Some(lease) if now < lease.ends() => {
                then(&mut at.checkpoints);
                at.wake.notify_one();
                Ok(())
            }
            // Over, so another worker's by now, whether or not its link has seen that already: a
            // handler may be first.
            Some(_) => Err(Gone::Lost(CancelReason::LeaseLost)),
            None => Err(context.cancel_reason().map_or(Gone::Ended, Gone::Lost)),
        }
    }

    /// The answer to a checkpoint.
    pub(crate) fn checkpointed(&self, place: PlaceId, answer: &Checkpointed) {
        let mut state = self.state.lock();
        let answered = state.place(place).checkpoints.answered(answer);
        if answer.outcome == CheckpointOutcome::StaleToken {
            self.refused_as_stale(&mut state, place, answer.token);
        }
        let Some(Answered { waiter, length }) = answered else { return };
        // What a handler does not wait for any more is nobody's.
        let _ = waiter.send(match answer.outcome {
            CheckpointOutcome::Accepted => {
                state.stats.checkpoints += 1;
                Ok(answer.sequence)
            }
            CheckpointOutcome::StaleToken => Err(CheckpointError::Lost(CancelReason::LeaseLost)),
            CheckpointOutcome::Gap => Err(CheckpointError::Gap),
            CheckpointOutcome::NoSpace => Err(CheckpointError::NoSpace),
            CheckpointOutcome::TooLarge => {
                Err(CheckpointError::TooLarge { bytes: length, limit: CHECKPOINT_BYTES_MAX })
            }
        });
        if state.place(place).checkpoints.is_ready() {
            state.place(place).wake.notify_one();
        }
    }

    /// The answer to a question after checkpoints.
    pub(crate) fn told(&self, place: PlaceId, number: u64, answer: Result<Answer, RequestError>) {
        let mut state = self.state.lock();
        let Some(told) = state.place(place).checkpoints.told(number) else { return };
        let Told { token, waiter: reader, own } = told;
        let _ = reader.answer.send(match answer {
            Ok(Answer::Checkpoints(kept)) => earlier(kept, reader.attempt, own),
            // An answer to another question: the publisher does not know this one.
            Ok(_) => Err(CheckpointsError::Refused(RequestError::Unknown)),
            Err(RequestError::StaleToken) => {
                self.refused_as_stale(&mut state, place, token);
                Err(CheckpointsError::Lost(CancelReason::LeaseLost))
            }
            Err(error) => Err(CheckpointsError::Refused(error)),
        });
        if state.place(place).checkpoints.is_ready() {
            state.place(place).wake.notify_one();
        }
    }

    /// Its publisher says that the token holds no lease: then it is lost here, too.
    fn refused_as_stale(&self, state: &mut State, place: PlaceId, token: Token) {
        state.stats.stale_refused += 1;
        let publisher = state.place(place).id;
        tracing::warn!(%publisher, %token, "a checkpoint was refused with StaleToken: its lease was lost");
        let lost = state.place(place).leases.revoke(&[token]);
        self.lose(state, place, lost, CancelReason::LeaseLost);
    }
}

impl State {
    /// No handler waits for an answer any more: the run is over.
    pub(super) fn end_checkpoints(&mut self, gone: Gone) {
        self.stage = Stage::GivenBack;
        for place in &mut self.places {
            place.checkpoints.take_all().for_each(|waiters| end(waiters, gone));
        }
    }
}

/// A job's lease has ended, and with it the waits for what it would have stored or read.
pub(super) fn end_job(waiting: &mut Waiting, token: Token, gone: Gone) {
    if let Some(waiters) = waiting.remove(token) {
        end(waiters, gone);
    }
}

fn end(waiters: Waiters<oneshot::Sender<Stored>, Reader>, gone: Gone) {
    for waiter in waiters.stores {
        let _ = waiter.send(Err(gone.into()));
    }
    for reader in waiters.reads {
        let _ = reader.answer.send(Err(gone.into()));
    }
}

/// Those of earlier deliveries. The last ones are this delivery's `own`, down to its first or to
/// the oldest that is kept.
fn earlier(mut kept: Vec<CheckpointInfo>, attempt: u16, own: u64) -> Read {
    let is =
        |last: &mut CheckpointInfo, sequence| last.attempt == attempt && last.sequence == sequence;
    for sequence in (1..=own).rev() {
        if kept.pop_if(|last| is(last, sequence)).is_none() {
            break;
        }
    }
    let read = |info: CheckpointInfo| {
        let bytes = info.bytes.ok_or(CheckpointsError::Refused(RequestError::Unreadable))?;
        Ok(Checkpoint { attempt: info.attempt, sequence: info.sequence, at: info.at, bytes })
    };
    kept.into_iter().map(read).collect()
}

impl From<Gone> for CheckpointError {
    fn from(gone: Gone) -> CheckpointError {
        match gone {
            Gone::Lost(reason) => CheckpointError::Lost(reason),
            Gone::Ended => CheckpointError::Ended,
        }
    }
}

impl From<Gone> for CheckpointsError {
    fn from(gone: Gone) -> CheckpointsError {
        match gone {
            Gone::Lost(reason) => CheckpointsError::Lost(reason),
            Gone::Ended => CheckpointsError::Ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(marks: &[(u16, u64)]) -> Vec<CheckpointInfo> {
        let info = |(attempt, sequence): &(u16, u64)| CheckpointInfo {
            attempt: *attempt,
            sequence: *sequence,
            at: 1_700_000_000_000,
            length: 1,
            bytes: Some("x".into()),
        };
        marks.iter().map(info).collect()
    }

    fn told(marks: &[(u16, u64)], attempt: u16, own: u64) -> Vec<(u16, u64)> {
        let read = earlier(kept(marks), attempt, own).unwrap();
        read.iter().map(|checkpoint| (checkpoint.attempt, checkpoint.sequence)).collect()
    }

    #[test]
    fn what_this_delivery_has_left_itself_is_not_told() {
        assert_eq!(told(&[(1, 1), (1, 2)], 2, 0), [(1, 1), (1, 2)]);
        assert_eq!(told(&[(1, 1), (1, 2), (2, 1), (2, 2)], 2, 2), [(1, 1), (1, 2)]);
        // An earlier run of the same attempt, given back.
        assert_eq!(told(&[(2, 1), (2, 2), (2, 1), (2, 2)], 2, 2), [(2, 1), (2, 2)]);
        assert_eq!(told(&[(2, 1), (2, 2), (2, 1)], 2, 1), [(2, 1), (2, 2)]);
        // Of its own only the newest are kept.
        assert_eq!(told(&[(2, 999), (2, 1_000)], 2, 1_000), []);
        // Given back once revived: the numbers of attempts begin anew.
        assert_eq!(told(&[(3, 1), (1, 1)], 1, 1), [(3, 1)]);
    }

    #[test]
    fn bytes_that_are_missing_are_not_told_as_none() {
        let mut kept = kept(&[(1, 1), (1, 2)]);
        kept[0].bytes = None;
        let unreadable = CheckpointsError::Refused(RequestError::Unreadable);
        assert_eq!(earlier(kept, 2, 0), Err(unreadable));
    }
}
