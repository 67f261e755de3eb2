//! Admission: which commands disk and memory have room for, and what replaces the others.
//!
//! A refusal must not need the missing space: its payload is not logged.

use std::collections::HashSet;

use longshore_protocol::limits::SMALL_BYTES_MAX;
use longshore_protocol::messages::work::{
    Checkpointed, EnqueueBatch, Enqueued, NewSettle, ReplaceOutcome, RequestError, RunOutcome,
    Selection, SettleBatch, SettleBatchBuilder, SettleItem, Settled, Verdict,
};
use longshore_protocol::{BatchRefusal, CheckpointOutcome, LinkId, Refusal, Runs, SettleOutcome};

use crate::{Budget, Command, Reply, State};

/// The decision about a command.
#[derive(PartialEq, Debug)]
pub(super) enum Admission {
    /// Log it.
    Log,
    /// Log this command instead.
    LogInstead(Command),
    /// It changes nothing; this is its answer.
    Answer(LinkId, Reply),
}

/// Decides about a command of `bytes` bytes. Commands that cannot be refused are small, or were
/// debited when their leases began.
pub(super) fn admit(
    command: &Command,
    bytes: u64,
    state: &State,
    budget: &Budget,
    memory_max: u64,
) -> Admission {
    if let Command::Enqueue { link, batch } = command {
        let (link, sequence, jobs) = (*link, batch.sequence, batch.len() as u32);
        if state.must_go_to_another(link, batch) {
            let outcome = Err(BatchRefusal::Draining);
            return Admission::Answer(link, Reply::Enqueued(Enqueued { sequence, outcome }));
        }
        return match refusal(bytes, state, budget, memory_max) {
            Some(refusal) => {
                Admission::LogInstead(Command::Refuse { link, sequence, jobs, refusal })
            }
            None => Admission::Log,
        };
    }
    if let Command::RunSchedule { link, request, .. } = command
        && let Some(refusal) = refusal(bytes, state, budget, memory_max)
    {
        let result = Ok(RunOutcome::Refused(refusal));
        return Admission::Answer(*link, Reply::ScheduleRun { request: *request, result });
    }
    if bytes <= budget.headroom() {
        return Admission::Log;
    }
    let (link, reply) = match *command {
        Command::Settle { link, ref batch } => {
            let outcomes = if let Some(outcomes) = state.settle_without_effect(link, batch) {
                outcomes
            } else if let Some(batch) = without_stale_payloads(state, link, batch) {
                return Admission::LogInstead(Command::Settle { link, batch });
            } else if !has_large(batch) && budget.fits_settle(bytes) {
                return Admission::Log;
            } else {
                Runs::all(SettleOutcome::NoSpace, batch.items().count())
            };
            (link, Reply::Settled(Settled { sequence: batch.sequence, outcomes }))
        }
        Command::Checkpoint { link, ref checkpoint } => {
            let (token, sequence) = (checkpoint.token, checkpoint.sequence);
            let outcome = CheckpointOutcome::NoSpace;
            (link, Reply::Checkpointed(Checkpointed { token, sequence, outcome }))
        }
        Command::Replace { link, request, .. } => {
            (link, Reply::Replaced { request, outcome: ReplaceOutcome::NoSpace })
        }
        Command::PutSchedule { link, request, .. } => {
            (link, Reply::ScheduleSet { request, result: Err(RequestError::NoSpace) })
        }
        _ if budget.fits_small(bytes) => return Admission::Log,
        Command::Act { link, request, selection: Selection::Ids(_), .. } => {
            (link, Reply::ActRefused { request, error: RequestError::NoSpace })
        }
        Command::Pause { link, request, paused: true, .. } => {
            (link, Reply::Paused { request, report: Err(RequestError::NoSpace) })
        }
        Command::SetLimit { link, request, .. } => {
            (link, Reply::LimitSet { request, result: Err(RequestError::NoSpace) })
        }
        Command::PauseSchedule { link, request, paused: true, .. } => {
            (link, Reply::ScheduleSet { request, result: Err(RequestError::NoSpace) })
        }
        Command::Drain { link, request, draining: true } => {
            (link, Reply::Drained { request, result: Err(RequestError::NoSpace) })
        }
        Command::Configure { link, request, .. } => {
            (link, Reply::Configured { request, result: Err(Refusal::NoSpace) })
        }
        Command::Subscribe { link, subscription, .. } if bytes > SMALL_BYTES_MAX as u64 => {
            let reason = "NoSpace: the publisher's disk is full; try again later".to_owned();
            (link, Reply::SubscribeRefused { subscription, reason })
        }
        _ => return Admission::Log,
    };
    Admission::Answer(link, reply)
}

/// Why new jobs of `bytes` bytes are refused. Memory is measured before the batch, which adds about
/// 1 MB at most.
pub(super) fn refusal(
    bytes: u64,
    state: &State,
    budget: &Budget,
    memory_max: u64,
) -> Option<Refusal> {
    if state.memory_bytes() >= memory_max {
        return Some(Refusal::MemoryFull);
    }
    (budget.short || bytes > budget.headroom()).then_some(Refusal::NoSpace)
}

/// Bytes of a batch of jobs in the log.
pub(super) fn bytes_of(batch: &EnqueueBatch) -> u64 {
    logged_bytes(batch.body().len())
}

/// Bytes of a command in the log: its body, its blocks' checksums, and its overhead in the commit.
pub(super) fn logged_bytes(body: usize) -> u64 {
    body as u64 + body as u64 / 1024 + 64
}

/// The batch without the results and errors of stale items, if there are any: space was debited
/// only for the ends of leases. The outcomes are the same.
fn without_stale_payloads(state: &State, link: LinkId, batch: &SettleBatch) -> Option<SettleBatch> {
    let (mut builder, mut ended) = (SettleBatchBuilder::new(), HashSet::new());
    let mut has_any = false;
    for SettleItem { token, verdict } in batch.items() {
        // The second item with the same token ends nothing.
        let ends = state.holds(token, link) && ended.insert(token);
        let has_payload = !matches!(
            verdict,
            Verdict::Complete(None) | Verdict::Release | Verdict::Snooze(_) | Verdict::Throttle(_)
        );
        has_any |= !ends && has_payload;
        let settle = if ends { NewSettle::of(batch.body(), verdict) } else { NewSettle::Release };
        builder.push(token, &settle);
    }
    has_any.then(|| SettleBatch::decode(builder.seal(batch.sequence)).ok()).flatten()
}

/// Whether any result or error is longer than what is debited for a lease.
fn has_large(batch: &SettleBatch) -> bool {
    // Most batches are smaller than one such result.
    batch.body().len() > SMALL_BYTES_MAX
        && batch.items().any(|item| {
            let bytes = match item.verdict {
                Verdict::Complete(result) => result.map_or(0, |result| result.length),
                Verdict::Fail(error) | Verdict::Bury(error) => error.length,
                Verdict::Release | Verdict::Snooze(_) | Verdict::Throttle(_) => 0,
            };
            bytes as usize > SMALL_BYTES_MAX
        })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use longshore_protocol::messages::work::{Action, BatchBuilder, Checkpoint};
    use longshore_protocol::{JobError, JobId, NewJob, Path, Role, SessionId, Token};

    use super::*;
    use crate::{Now, Outcomes};

    const LINK: LinkId = LinkId(7);
    const MIB: u64 = 1024 * 1024;

    /// A budget with so many bytes above the high watermark, or below it if negative.
    fn budget(headroom: i64) -> Budget {
        let high = 6 * MIB as i64;
        let available = (high + headroom) as u64;
        Budget { available, segment_bytes: MIB, short: headroom <= 0, ..Budget::UNLIMITED }
    }

    fn admit_with(headroom: i64, command: &Command) -> Admission {
        let (head, raw) = command.encode();
        let bytes = logged_bytes(head.len() + raw.len());
        admit(command, bytes, &State::new(), &budget(headroom), u64::MAX)
    }

    fn batch(jobs: u8) -> EnqueueBatch {
        let mut builder = BatchBuilder::new();
        for n in 0..jobs {
            let path = Path::new("/q").unwrap();
            builder.push(&NewJob::new(path, JobId([n; 16]), vec![n; 1_000]));
        }
        builder.seal(false).to_batch(5).unwrap()
    }

    fn settle(first: u64, settles: &[NewSettle]) -> Command {
        let mut builder = SettleBatchBuilder::new();
        for (token, settle) in (first..).zip(settles) {
            builder.push(Token(token), settle);
        }
        let batch = SettleBatch::decode(builder.seal(3)).unwrap();
        Command::Settle { link: LINK, batch }
    }

    fn complete(bytes: usize) -> NewSettle {
        NewSettle::Complete { result: Some(Bytes::from(vec![1; bytes])) }
    }

    /// A worker with three leases, and the first token.
    fn working() -> (State, u64) {
        let (mut state, mut out, mut index) = (State::new(), Outcomes::default(), 0);
        let mut apply = |command| {
            index += 1;
            state.apply(index, Now::default(), &command, &mut out);
        };
        let session = SessionId([1; 16]);
        let (role, name, resume) = (Role::Worker, "w".to_owned(), Default::default());
        apply(Command::Start(crate::Start {
            publisher: Default::default(),
            epoch: longshore_protocol::Epoch(1),
            boot: [0; 16],
            secret: crate::Secret([1; 16]),
            rules: Box::new(crate::Rules::STANDARD),
            durability: longshore_protocol::Durability::Fsync,
            paths: vec![],
            defaults: vec![Path::root()],
        }));
        apply(Command::LinkUp {
            link: LINK,
            role,
            session,
            name,
            identity: String::new(),
            work: None,
            resume,
        });
        let sources = longshore_protocol::messages::work::Sources::one("/**".parse().unwrap());
        apply(Command::Subscribe { link: LINK, subscription: 1, sources, handlers: 1_000 });
        apply(Command::Credit { link: LINK, subscription: 1, count: 3 });
        apply(Command::Enqueue {
            link: LINK,
            batch: {
                let mut builder = BatchBuilder::new();
                for n in 0..3 {
                    builder.push(&NewJob::new("/q".parse().unwrap(), JobId([n; 16]), vec![n; 9]));
                }
                builder.seal(false).to_batch(1).unwrap()
            },
        });
        let first = out.assignments[0].token.0;
        (state, first)
    }

    #[test]
    fn batch_that_does_not_fit_becomes_a_refusal_without_its_jobs() {
        let needs = bytes_of(&batch(3)) as i64 + 16;
        let enqueue = Command::Enqueue { link: LINK, batch: batch(3) };
        assert_eq!(admit_with(needs, &enqueue), Admission::Log);
        let (sequence, jobs, refusal) = (5, 3, Refusal::NoSpace);
        let refused = Command::Refuse { link: LINK, sequence, jobs, refusal };
        assert_eq!(admit_with(needs - 200, &enqueue), Admission::LogInstead(refused));
    }

    #[test]
    fn full_memory_refuses_only_new_jobs() {
        let (state, first) = working();
        let used = state.memory_bytes();
        assert!(used > 3 * 96, "three jobs and a worker");
        let enqueue = Command::Enqueue { link: LINK, batch: batch(3) };
        let admit = |command: &Command, most| admit(command, 4_000, &state, &budget(1 << 20), most);
        assert_eq!(admit(&enqueue, used + 1), Admission::Log);
        let (sequence, jobs, refusal) = (5, 3, Refusal::MemoryFull);
        let refused = Command::Refuse { link: LINK, sequence, jobs, refusal };
        assert_eq!(admit(&enqueue, used), Admission::LogInstead(refused));
        assert_eq!(admit(&settle(first, &[complete(9)]), 0), Admission::Log);
    }

    #[test]
    fn small_settles_fit_below_the_watermarks_and_large_do_not() {
        let (state, first) = working();
        assert_eq!(state.leases(), 3);
        let error = |bytes: usize| JobError { kind: "e".into(), message: "m".repeat(bytes) };
        let admit_low = |available, command: &Command| {
            admit(command, 9_000, &state, &Budget { available, ..budget(0) }, u64::MAX)
        };
        for small in [
            settle(
                first,
                &[complete(SMALL_BYTES_MAX), complete(SMALL_BYTES_MAX), NewSettle::Release],
            ),
            settle(first, &[NewSettle::Fail(error(4_000))]),
        ] {
            assert_eq!(admit_low(MIB + 9_000, &small), Admission::Log);
            assert!(
                matches!(admit_low(MIB + 8_999, &small), Admission::Answer(..)),
                "the snapshot's"
            );
        }
        for large in [
            settle(first, &[complete(1), complete(SMALL_BYTES_MAX + 1)]),
            settle(first, &[NewSettle::Fail(error(4_500)), NewSettle::Release]),
        ] {
            let outcomes = Runs::all(SettleOutcome::NoSpace, 2);
            let refused = Reply::Settled(Settled { sequence: 3, outcomes });
            assert_eq!(admit_low(5 * MIB, &large), Admission::Answer(LINK, refused));
        }
    }

    #[test]
    fn settles_without_a_lease_are_answered_and_not_logged() {
        let (state, first) = working();
        let stale = settle(first + 99, &[complete(SMALL_BYTES_MAX)]);
        let outcomes = Runs::all(SettleOutcome::StaleToken, 1);
        let answer = Reply::Settled(Settled { sequence: 3, outcomes });
        let admit_with = |headroom| admit(&stale, 4_200, &state, &budget(headroom), u64::MAX);
        assert_eq!(admit_with(0), Admission::Answer(LINK, answer));
        assert_eq!(admit_with(4_200), Admission::Log);
    }

    #[test]
    fn stale_settle_in_a_batch_is_logged_without_its_result() {
        let (state, first) = working();
        let command = |settles: &[(u64, NewSettle)]| {
            let mut builder = SettleBatchBuilder::new();
            settles.iter().for_each(|(token, settle)| builder.push(Token(*token), settle));
            let batch = SettleBatch::decode(builder.seal(3)).unwrap();
            Command::Settle { link: LINK, batch }
        };
        let error = JobError { kind: "e".into(), message: "m".repeat(900) };
        let small = (first, complete(700));
        // Stale items, large and small, and a second end of the same lease.
        let mixed = command(&[
            small.clone(),
            (first + 90, complete(SMALL_BYTES_MAX + 1)),
            (first + 91, NewSettle::Fail(error)),
            (first, complete(800)),
        ]);
        let released = |token| (token, NewSettle::Release);
        let trimmed =
            command(&[small, released(first + 90), released(first + 91), released(first)]);
        let budget = Budget { available: MIB + 2_000, ..budget(0) };
        let admit = |command: &Command, bytes| admit(command, bytes, &state, &budget, u64::MAX);
        let Admission::LogInstead(logged) = admit(&mixed, 6_500) else { panic!("it is trimmed") };
        assert_eq!(logged, trimmed);
        assert_eq!(admit(&logged, 800), Admission::Log);
        // The same outcomes, in the same order.
        let apply = |command: &Command| {
            let (mut state, mut out) = (working().0, Outcomes::default());
            state.apply(6, Now::default(), command, &mut out);
            out.replies
        };
        assert_eq!(apply(&mixed), apply(&trimmed));
    }

    #[test]
    fn checkpoints_and_replacements_are_new_work() {
        let body = Checkpoint::body_of(Token(9), 2, &vec![0; 10].into());
        let checkpoint = Checkpoint::decode(body).unwrap();
        let checkpoint = Command::Checkpoint { link: LINK, checkpoint };
        let (id, entry) = (JobId([1; 16]), vec![0; 10].into());
        let replace = Command::Replace { link: LINK, request: 4, id, entry };
        for command in [checkpoint, replace] {
            assert_eq!(admit_with(1_000, &command), Admission::Log);
            assert!(matches!(admit_with(0, &command), Admission::Answer(..)));
        }
    }

    #[test]
    fn action_fits_or_is_refused_and_unrefusable_commands_pass() {
        let ids = |count| {
            let selection = Selection::Ids(vec![JobId([1; 16]); count]);
            let (action, pace) = (Action::Drop, None);
            Command::Act { link: LINK, request: 4, action, selection, pace, within: None }
        };
        let refused = Reply::ActRefused { request: 4, error: RequestError::NoSpace };
        // 4 MiB below the high watermark the share of small commands is used up.
        let floor = -4 * MIB as i64;
        assert_eq!(admit_with(floor + 200_000, &ids(10_000)), Admission::Log);
        assert_eq!(admit_with(floor + 100_000, &ids(10_000)), Admission::Answer(LINK, refused));
        assert_eq!(admit_with(floor + 100_000, &ids(10)), Admission::Log);
        for command in [Command::Tick, Command::LinkLost { link: LINK }] {
            assert_eq!(admit_with(-6 * MIB as i64, &command), Admission::Log);
        }
    }
}
