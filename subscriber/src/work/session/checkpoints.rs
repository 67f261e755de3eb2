//! The session's interface to handlers that store and read checkpoints, and the answers to both.

use longshore_protocol::limits::CHECKPOINT_BYTES_MAX;
use longshore_protocol::messages::work::{
    Answer, CheckpointInfo, Checkpointed, JobsPage, Request, RequestError,
};
use longshore_protocol::{CheckpointOutcome, JobId, Token};

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::{Intake, SlotId, State, WorkerSession};
use crate::work::lease_signal::LeaseSignal;
use crate::work::state::checkpoints::{Checkpoints, QueryAnswered, StoreAnswered, Waiters};
use crate::{CancelReason, Checkpoint, CheckpointError, CheckpointsError, JobContext};

type Stored = Result<u64, CheckpointError>;
type Read = Result<Vec<Checkpoint>, CheckpointsError>;
type ParentsRead = Result<JobsPage, CheckpointsError>;

/// The checkpoints at one publisher, with the senders of their answers.
pub(super) type PendingCheckpoints = Checkpoints<oneshot::Sender<Stored>, Reader>;

/// A handler that reads earlier checkpoints, or its parents.
#[derive(Debug)]
pub(super) enum Reader {
    Checkpoints { attempt: u16, answer: oneshot::Sender<Read> },
    Parents(oneshot::Sender<ParentsRead>),
}

impl Reader {
    fn fail(self, error: CheckpointsError) {
        // The handler may have stopped waiting.
        match self {
            Reader::Checkpoints { answer, .. } => drop(answer.send(Err(error))),
            Reader::Parents(answer) => drop(answer.send(Err(error))),
        }
    }
}

/// Why the waits of an attempt end without an answer.
#[derive(Clone, Copy)]
pub(super) enum WaitEnd {
    Lost(CancelReason),
    Ended,
}

impl WorkerSession {
    /// Stores a checkpoint of a job that runs here. The receiver gets the publisher's answer.
    pub(crate) fn checkpoint(
        &self,
        context: &JobContext,
        bytes: Bytes,
    ) -> Result<oneshot::Receiver<Stored>, CheckpointError> {
        let (waiter, answer) = oneshot::channel();
        self.with_lease(context, |pending| pending.store(context.token, bytes, waiter))?;
        Ok(answer)
    }

    /// Requests the checkpoints of earlier attempts.
    pub(crate) fn checkpoints(
        &self,
        context: &JobContext,
    ) -> Result<oneshot::Receiver<Read>, CheckpointsError> {
        let (sender, answer) = oneshot::channel();
        let reader = Reader::Checkpoints { attempt: context.attempt, answer: sender };
        let request = Request::Checkpoints { token: context.token };
        self.with_lease(context, |pending| pending.query(context.token, request, reader))?;
        Ok(answer)
    }

    /// Requests a page of a parent of the job.
    pub(crate) fn parent_jobs(
        &self,
        context: &JobContext,
        parent: JobId,
        cursor: u64,
    ) -> Result<oneshot::Receiver<ParentsRead>, CheckpointsError> {
        let (sender, answer) = oneshot::channel();
        let request = Request::ParentJobs { token: context.token, parent, cursor };
        let reader = Reader::Parents(sender);
        self.with_lease(context, |pending| pending.query(context.token, request, reader))?;
        Ok(answer)
    }

    fn with_lease(
        &self,
        context: &JobContext,
        then: impl FnOnce(&mut PendingCheckpoints),
    ) -> Result<(), WaitEnd> {
        let now = self.now();
        let mut state = self.state.lock();
        if state.intake == Intake::Released {
            return Err(context.cancel_reason().map_or(WaitEnd::Ended, WaitEnd::Lost));
        }
        let slot = state.slot(context.slot_id);
        // A context may outlive its handler, and its slot may belong to another publisher by then.
        let is_own_signal = |signal: &Arc<LeaseSignal>| Arc::ptr_eq(signal, &context.signal);
        let lease = slot.leases.get_mut(context.token);
        match lease.filter(|lease| lease.job.signal().is_some_and(is_own_signal)) {
            Some(lease) if now < lease.ends() => {
                then(&mut slot.checkpoints);
                slot.wake.notify_one();
                Ok(())
            }
            // The lease is over, so another worker may have the job. The handler may notice this
            // before the link does.
            Some(_) => Err(WaitEnd::Lost(CancelReason::LeaseLost)),
            None => Err(context.cancel_reason().map_or(WaitEnd::Ended, WaitEnd::Lost)),
        }
    }

    /// Handles the answer to a stored checkpoint.
    pub(crate) fn checkpointed(&self, slot_id: SlotId, answer: &Checkpointed) {
        let mut state = self.state.lock();
        let answered = state.slot(slot_id).checkpoints.answered(answer);
        if answer.outcome == CheckpointOutcome::StaleToken {
            self.refused_as_stale(&mut state, slot_id, answer.token);
        }
        let Some(StoreAnswered { waiter, length }) = answered else { return };
        // The handler may have stopped waiting.
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
        if state.slot(slot_id).checkpoints.is_ready() {
            state.slot(slot_id).wake.notify_one();
        }
    }

    /// Handles the answer to a query.
    pub(crate) fn query_answered(
        &self,
        slot_id: SlotId,
        number: u64,
        answer: Result<Answer, RequestError>,
    ) {
        let mut state = self.state.lock();
        let Some(answered) = state.slot(slot_id).checkpoints.query_answered(number) else { return };
        let QueryAnswered { token, waiter: reader, own_count } = answered;
        match (answer, reader) {
            (Ok(Answer::Checkpoints(stored)), Reader::Checkpoints { attempt, answer }) => {
                let _ = answer.send(earlier(stored, attempt, own_count));
            }
            (Ok(Answer::Jobs(page)), Reader::Parents(answer)) => drop(answer.send(Ok(page))),
            // An answer of another kind: the publisher does not know this request.
            (Ok(_), reader) => reader.fail(CheckpointsError::Refused(RequestError::Unknown)),
            (Err(RequestError::StaleToken), reader) => {
                self.refused_as_stale(&mut state, slot_id, token);
                reader.fail(CheckpointsError::Lost(CancelReason::LeaseLost));
            }
            (Err(error), reader) => reader.fail(CheckpointsError::Refused(error)),
        }
        if state.slot(slot_id).checkpoints.is_ready() {
            state.slot(slot_id).wake.notify_one();
        }
    }

    /// The publisher reports that the token holds no lease: the lease is lost here, too.
    fn refused_as_stale(&self, state: &mut State, slot_id: SlotId, token: Token) {
        state.stats.stale_refused += 1;
        let publisher = state.slot(slot_id).id;
        tracing::warn!(
            %publisher, %token,
            "a checkpoint or query was refused with StaleToken: its lease was lost"
        );
        let lost = state.slot(slot_id).leases.revoke(&[token]);
        self.revoke_leases(state, slot_id, lost, CancelReason::LeaseLost);
    }
}

impl State {
    /// Ends all waits of handlers, because the run is over.
    pub(super) fn end_checkpoints(&mut self, wait_end: WaitEnd) {
        self.intake = Intake::Released;
        for slot in &mut self.slots {
            slot.checkpoints.take_all().for_each(|waiters| end(waiters, wait_end));
        }
    }
}

/// Ends the waits of a job whose lease has ended.
pub(super) fn end_job(pending: &mut PendingCheckpoints, token: Token, wait_end: WaitEnd) {
    if let Some(waiters) = pending.remove(token) {
        end(waiters, wait_end);
    }
}

fn end(waiters: Waiters<oneshot::Sender<Stored>, Reader>, wait_end: WaitEnd) {
    for waiter in waiters.stores {
        let _ = waiter.send(Err(wait_end.into()));
    }
    for reader in waiters.reads {
        reader.fail(wait_end.into());
    }
}

/// Returns the checkpoints of earlier deliveries. The last `own_count` are this delivery's own,
/// unless the publisher no longer retains its oldest.
pub(crate) fn earlier(mut stored: Vec<CheckpointInfo>, attempt: u16, own_count: u64) -> Read {
    let is =
        |last: &mut CheckpointInfo, sequence| last.attempt == attempt && last.sequence == sequence;
    for sequence in (1..=own_count).rev() {
        if stored.pop_if(|last| is(last, sequence)).is_none() {
            break;
        }
    }
    let read = |info: CheckpointInfo| {
        let bytes = info.bytes.ok_or(CheckpointsError::Refused(RequestError::Unreadable))?;
        Ok(Checkpoint { attempt: info.attempt, sequence: info.sequence, at: info.at, bytes })
    };
    stored.into_iter().map(read).collect()
}

impl From<WaitEnd> for CheckpointError {
    fn from(wait_end: WaitEnd) -> CheckpointError {
        match wait_end {
            WaitEnd::Lost(reason) => CheckpointError::Lost(reason),
            WaitEnd::Ended => CheckpointError::Ended,
        }
    }
}

impl From<WaitEnd> for CheckpointsError {
    fn from(wait_end: WaitEnd) -> CheckpointsError {
        match wait_end {
            WaitEnd::Lost(reason) => CheckpointsError::Lost(reason),
            WaitEnd::Ended => CheckpointsError::Ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(numbers: &[(u16, u64)]) -> Vec<CheckpointInfo> {
        let info = |(attempt, sequence): &(u16, u64)| CheckpointInfo {
            attempt: *attempt,
            sequence: *sequence,
            at: 1_700_000_000_000,
            length: 1,
            bytes: Some("x".into()),
        };
        numbers.iter().map(info).collect()
    }

    fn earlier_than(numbers: &[(u16, u64)], attempt: u16, own_count: u64) -> Vec<(u16, u64)> {
        let read = earlier(stored(numbers), attempt, own_count).unwrap();
        read.iter().map(|checkpoint| (checkpoint.attempt, checkpoint.sequence)).collect()
    }

    #[test]
    fn own_checkpoints_of_a_delivery_are_left_out() {
        assert_eq!(earlier_than(&[(1, 1), (1, 2)], 2, 0), [(1, 1), (1, 2)]);
        assert_eq!(earlier_than(&[(1, 1), (1, 2), (2, 1), (2, 2)], 2, 2), [(1, 1), (1, 2)]);
        // An earlier run of the same attempt, released.
        assert_eq!(earlier_than(&[(2, 1), (2, 2), (2, 1), (2, 2)], 2, 2), [(2, 1), (2, 2)]);
        assert_eq!(earlier_than(&[(2, 1), (2, 2), (2, 1)], 2, 1), [(2, 1), (2, 2)]);
        // Only the newest of its own are retained.
        assert_eq!(earlier_than(&[(2, 999), (2, 1_000)], 2, 1_000), []);
        // Released once revived: the attempt numbers start again.
        assert_eq!(earlier_than(&[(3, 1), (1, 1)], 1, 1), [(3, 1)]);
    }

    #[test]
    fn missing_checkpoint_bytes_are_an_error() {
        let mut stored = stored(&[(1, 1), (1, 2)]);
        stored[0].bytes = None;
        let unreadable = CheckpointsError::Refused(RequestError::Unreadable);
        assert_eq!(earlier(stored, 2, 0), Err(unreadable));
    }
}
