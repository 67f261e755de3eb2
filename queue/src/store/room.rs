//! What is done instead of a command that the disk has no room for.
//!
//! A refusal must not need the room that is missing: no payload is logged for it.

use longshore_protocol::limits::SMALL_BYTES_MAX;
use longshore_protocol::messages::work::{
    Checkpointed, EnqueueBatch, ReplaceOutcome, SettleBatch, Settled, Verdict,
};
use longshore_protocol::{CheckpointOutcome, LinkId, Refusal, Runs, SettleOutcome};

use crate::{Command, Reply, Space, State};

/// Bytes of a record beside its jobs, and more: what is around it in its commit.
const RECORD_BYTES: u64 = 64;

/// What becomes of a command.
#[derive(PartialEq, Debug)]
pub(super) enum Fit {
    /// It is logged: the command itself, or the refusal of its jobs.
    Log(Command),
    /// It changes nothing, and this is its answer.
    Answer(LinkId, Reply),
}

/// Lets everything pass that must go on; asks for the room only if it matters.
pub(super) fn fit(command: Command, state: &State, space: impl Fn() -> Space) -> Fit {
    match command {
        Command::Enqueue { link, ref batch } => {
            if space().admits(bytes_of(batch)) {
                return Fit::Log(command);
            }
            let (sequence, jobs) = (batch.sequence, batch.len() as u32);
            Fit::Log(Command::Refuse { link, sequence, jobs, refusal: Refusal::NoSpace })
        }
        Command::Settle { link, ref batch } if is_large(batch) && space().level.is_short() => {
            // What it was answered before counts: it may be the answer that was lost.
            let known = state.settled_before(link, batch.sequence);
            let outcomes =
                known.unwrap_or_else(|| Runs::all(SettleOutcome::NoSpace, batch.items().count()));
            Fit::Answer(link, Reply::Settled(Settled { sequence: batch.sequence, outcomes }))
        }
        Command::Checkpoint { link, ref checkpoint }
            if checkpoint.length as usize > SMALL_BYTES_MAX && space().level.is_short() =>
        {
            let (token, sequence) = (checkpoint.token, checkpoint.sequence);
            let outcome = CheckpointOutcome::NoSpace;
            Fit::Answer(link, Reply::Checkpointed(Checkpointed { token, sequence, outcome }))
        }
        Command::Replace { link, request, ref entry, .. }
            if entry.len() > SMALL_BYTES_MAX && space().level.is_short() =>
        {
            Fit::Answer(link, Reply::Replaced { request, outcome: ReplaceOutcome::NoSpace })
        }
        other => Fit::Log(other),
    }
}

/// What a batch of jobs takes of the disk.
pub(super) fn bytes_of(batch: &EnqueueBatch) -> u64 {
    batch.body().len() as u64 + RECORD_BYTES
}

/// Whether one of its results or errors is one that the reserve has no room for.
fn is_large(batch: &SettleBatch) -> bool {
    // Most batches are smaller than one such result.
    batch.body().len() > SMALL_BYTES_MAX
        && batch.items().any(|item| {
            let bytes = match item.verdict {
                Verdict::Complete(result) => result.map_or(0, |result| result.length),
                Verdict::Fail(error) | Verdict::Bury(error) => error.length,
                Verdict::Release | Verdict::Snooze(_) => 0,
            };
            bytes as usize > SMALL_BYTES_MAX
        })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use longshore_protocol::messages::work::{
        BatchBuilder, Checkpoint, NewSettle, SettleBatchBuilder,
    };
    use longshore_protocol::{JobError, JobId, NewJob, Path, Token};

    use super::*;
    use crate::SpaceLevel::{self, Hold, NoEnqueues, Open};

    const LINK: LinkId = LinkId(7);

    fn fit_in(level: SpaceLevel, headroom: u64, command: Command) -> Fit {
        fit(command, &State::new(), || Space { level, headroom })
    }

    fn enqueue(jobs: u8) -> Command {
        let mut builder = BatchBuilder::new();
        for n in 0..jobs {
            let path = Path::new("/q").unwrap();
            builder.push(&NewJob::new(path, JobId([n; 16]), vec![n; 1_000]));
        }
        Command::Enqueue { link: LINK, batch: builder.seal(false).to_batch(5).unwrap() }
    }

    fn settle(settles: &[NewSettle]) -> Command {
        let mut builder = SettleBatchBuilder::new();
        for (token, settle) in (1..).zip(settles) {
            builder.push(Token(token), settle);
        }
        let batch = SettleBatch::decode(builder.seal(3)).unwrap();
        Command::Settle { link: LINK, batch }
    }

    fn complete(bytes: usize) -> NewSettle {
        NewSettle::Complete { result: Some(Bytes::from(vec![1; bytes])) }
    }

    #[test]
    fn a_batch_that_does_not_fit_becomes_a_refusal_of_its_jobs_without_their_bytes() {
        let Command::Enqueue { batch, .. } = enqueue(3) else { panic!("it is one") };
        let needs = batch.body().len() as u64 + RECORD_BYTES;
        assert_eq!(fit_in(Open, needs, enqueue(3)), Fit::Log(enqueue(3)));
        let (sequence, jobs, refusal) = (5, 3, Refusal::NoSpace);
        let refused = Command::Refuse { link: LINK, sequence, jobs, refusal };
        for (level, headroom) in [(Open, needs - 1), (NoEnqueues, u64::MAX), (Hold, u64::MAX)] {
            assert_eq!(fit_in(level, headroom, enqueue(3)), Fit::Log(refused.clone()));
        }
    }

    #[test]
    fn small_settles_pass_and_large_ones_are_refused_for_now_with_all_of_their_batch() {
        let error = |bytes: usize| JobError { kind: "e".into(), message: "m".repeat(bytes) };
        for small in [
            settle(&[complete(SMALL_BYTES_MAX), complete(SMALL_BYTES_MAX), NewSettle::Release]),
            settle(&[NewSettle::Fail(error(4_000))]),
        ] {
            assert_eq!(fit_in(Hold, 0, small.clone()), Fit::Log(small));
        }
        let mut larges = vec![settle(&[complete(1), complete(SMALL_BYTES_MAX + 1)])];
        larges.push(settle(&[NewSettle::Fail(error(4_500)), NewSettle::Release]));
        larges.push(settle(&[NewSettle::Release, NewSettle::Bury(error(4_500))]));
        for large in larges {
            assert_eq!(fit_in(Open, 0, large.clone()), Fit::Log(large.clone()));
            let outcomes = Runs::all(SettleOutcome::NoSpace, 2);
            let refused = Reply::Settled(Settled { sequence: 3, outcomes });
            assert_eq!(fit_in(NoEnqueues, 9, large), Fit::Answer(LINK, refused));
        }
    }

    #[test]
    fn small_checkpoints_and_replacements_pass_and_large_ones_are_refused_for_now() {
        let checkpoint = |bytes: usize| {
            let body = Checkpoint::body_of(Token(9), 2, &vec![0; bytes].into());
            Command::Checkpoint { link: LINK, checkpoint: Checkpoint::decode(body).unwrap() }
        };
        let replace = |bytes: usize| Command::Replace {
            link: LINK,
            request: 4,
            id: JobId([1; 16]),
            entry: vec![0; bytes].into(),
        };
        let stored =
            Checkpointed { token: Token(9), sequence: 2, outcome: CheckpointOutcome::NoSpace };
        let replaced = Reply::Replaced { request: 4, outcome: ReplaceOutcome::NoSpace };
        let both: [(&dyn Fn(usize) -> Command, Reply); 2] =
            [(&checkpoint, Reply::Checkpointed(stored)), (&replace, replaced)];
        for (command, refused) in both {
            let (small, large) = (command(SMALL_BYTES_MAX), command(SMALL_BYTES_MAX + 1));
            assert_eq!(fit_in(Hold, 0, small.clone()), Fit::Log(small));
            assert_eq!(fit_in(Open, 0, large.clone()), Fit::Log(large.clone()));
            assert_eq!(fit_in(NoEnqueues, 0, large), Fit::Answer(LINK, refused));
        }
    }

    #[test]
    fn all_else_passes_and_does_not_even_ask() {
        let unasked = || -> Space { panic!("nobody has to ask") };
        let small = settle(&[complete(10)]);
        for command in [Command::Tick, Command::LinkLost { link: LINK }, small] {
            assert_eq!(fit(command.clone(), &State::new(), unasked), Fit::Log(command));
        }
    }
}
