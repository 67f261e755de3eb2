//! Every command against a job in every state that it does not belong to: a typed answer, and nothing has changed.

mod stage;

use longshore_protocol::messages::work::{
    ActOutcome, Action, Checkpointed, NewSettle, Order, ReplaceOutcome,
};
use longshore_protocol::{
    CheckpointOutcome, EnqueueOutcome, Gate, LinkId, QueueSettings, Refusal, SettleOutcome,
};

use self::stage::{Stage, Standing, Verb};
use super::sources::sources;
use super::story::*;
use crate::command::Command;
use crate::outcome::{Outcomes, Reply};
use crate::state::State;

/// The answer that says no, in the type that says why.
fn refusal_is_right(verb: &Verb, standing: Standing, stage: &Stage, out: &Outcomes) -> bool {
    let answers: Vec<&Reply> = out.replies.iter().map(|(_, reply)| reply).collect();
    match (verb, &answers[..]) {
        (Verb::Settle(_), [Reply::Settled(settled)]) => {
            settled.outcomes.iter().eq([SettleOutcome::StaleToken])
        }
        (Verb::Checkpoint, [Reply::Checkpointed(answer)]) => {
            let outcome = CheckpointOutcome::StaleToken;
            *answer == Checkpointed { token: stage.token, sequence: 1, outcome }
        }
        // What time says of a lease that has ended is no news.
        (Verb::Expire { .. } | Verb::Damaged, []) => true,
        (Verb::Act(_), [Reply::Acted { request: 3, report }]) => {
            let outcome = standing.state().map_or(ActOutcome::Unknown, ActOutcome::NotInState);
            let is_gone = u64::from(standing == Standing::Gone);
            report.outcomes.iter().eq([outcome])
                && (report.done, report.refused, report.unknown) == (0, 1 - is_gone, is_gone)
        }
        (Verb::Replace, [Reply::Replaced { request: 3, outcome }]) => match standing {
            Standing::Gone => *outcome == ReplaceOutcome::Unknown,
            _ => *outcome == ReplaceOutcome::NotDead,
        },
        (Verb::EnqueueAgain, [_]) => {
            receipts(out).is_ok_and(|receipts| receipts.iter().eq([EnqueueOutcome::Existing]))
        }
        (Verb::EnqueueOther, [_]) => receipts(out).is_ok_and(|receipts| {
            receipts.iter().eq([EnqueueOutcome::Refused(Refusal::IdConflict)])
        }),
        _ => false,
    }
}

/// How many more refusals of stale tokens the publisher has counted, and its queues; and the state without that, without
/// the answers that sessions keep, and at the index and time of before.
fn apart_from_refusals(before: &State, after: &State) -> (u64, u64, State) {
    let mut same = after.clone();
    (same.index, same.now) = (before.index, before.now);
    let stale = after.stale_refused - before.stale_refused;
    same.stale_refused = before.stale_refused;
    let mut of_queues = 0;
    for (queue, known) in same.queues.iter_mut().zip(&before.queues) {
        of_queues += queue.stale_refused - known.stale_refused;
        queue.stale_refused = known.stale_refused;
    }
    for (number, known) in before.sessions.table.iter() {
        let session = &mut same.sessions.table[number];
        (session.next_batch, session.next_settle) = (known.next_batch, known.next_settle);
        session.batches.clone_from(&known.batches);
        session.settles.clone_from(&known.settles);
    }
    same.sessions.answer_bytes = before.sessions.answer_bytes;
    (stale, of_queues, same)
}

#[test]
fn what_does_not_belong_to_a_jobs_state_is_refused_and_changes_nothing() {
    for standing in Standing::ALL {
        for verb in Verb::all().into_iter().filter(|verb| !verb.fits(standing)) {
            let case = format!("{verb:?} while {standing:?}");
            let mut stage = Stage::set(standing, false);
            let before = stage.story.state.clone();
            let out = stage.say(&stage.command(&verb));
            assert!(refusal_is_right(&verb, standing, &stage, &out), "{case}: {:?}", out.replies);
            let silent = Outcomes { replies: out.replies.clone(), ..Outcomes::default() };
            assert_eq!(Outcomes { wants_events: false, ..out }, silent, "{case}");
            let (stale, of_queues, same) = apart_from_refusals(&before, &stage.story.state);
            let is_stale = matches!(verb, Verb::Settle(_) | Verb::Checkpoint);
            assert_eq!(stale, u64::from(is_stale), "{case}: refusals of stale tokens");
            let was_taken =
                matches!(standing, Standing::Ready | Standing::Running | Standing::Cancelled);
            assert_eq!(of_queues, u64::from(is_stale && was_taken), "{case}: the queue's refusals");
            assert!(same.snapshot_bytes() == before.snapshot_bytes(), "{case}: something changed");
        }
    }
}

#[test]
fn what_belongs_to_a_jobs_state_is_done() {
    for standing in Standing::ALL {
        for verb in Verb::all().into_iter().filter(|verb| verb.fits(standing)) {
            let case = format!("{verb:?} while {standing:?}");
            let mut stage = Stage::set(standing, false);
            let before = stage.story.state.clone();
            let out = stage.say(&stage.command(&verb));
            assert!(!refusal_is_right(&verb, standing, &stage, &out), "{case}: {:?}", out.replies);
            assert!(!out.events.is_empty(), "{case}: its change is told");
            let (stale, _, same) = apart_from_refusals(&before, &stage.story.state);
            assert_eq!(stale, 0, "{case}");
            assert!(same.snapshot_bytes() != before.snapshot_bytes(), "{case}: nothing changed");
        }
    }
}

#[test]
fn a_confirmation_said_again_is_done_and_changes_nothing_wherever_the_job_is_by_then() {
    for standing in Standing::ALL {
        if matches!(standing, Standing::Prepared | Standing::Gone) {
            continue;
        }
        let mut stage = Stage::set(standing, true);
        let before = stage.story.state.clone();
        let out = stage.say(&stage.command(&Verb::Act(Action::Confirm)));
        let Some((_, Reply::Acted { report, .. })) = out.replies.first() else {
            panic!("an action is answered")
        };
        assert!(report.outcomes.iter().eq([ActOutcome::Done]), "{standing:?}: {report:?}");
        assert!(out.events.is_empty() && out.handed.is_empty() && out.revoked.is_empty());
        let (_, _, same) = apart_from_refusals(&before, &stage.story.state);
        assert!(same.snapshot_bytes() == before.snapshot_bytes(), "{standing:?}");
    }
}

#[test]
fn a_lease_fits_only_the_session_that_holds_it() {
    for verb in Verb::all() {
        let mut stage = Stage::set(Standing::Running, false);
        stage.token = stage.story.job(1).info.token.expect("worker b holds it");
        let before = stage.story.state.clone();
        if !matches!(verb, Verb::Settle(_) | Verb::Checkpoint) {
            continue;
        }
        let out = stage.say(&stage.command(&verb));
        assert!(refusal_is_right(&verb, Standing::Running, &stage, &out), "{verb:?}");
        let (stale, of_queues, same) = apart_from_refusals(&before, &stage.story.state);
        assert_eq!((stale, of_queues), (1, 0), "{verb:?}: it never was worker a's");
        assert!(same.snapshot_bytes() == before.snapshot_bytes(), "{verb:?}");
    }
}

#[test]
fn what_names_an_unknown_link_or_subscription_changes_nothing() {
    let mut stage = Stage::set(Standing::Running, false);
    let (a, nobody) = (stage.a, LinkId(1_000));
    let token = stage.story.job(1).info.token.expect("worker b holds it");
    let (subscription, count) = (9, 5);
    let commands = [
        Command::Credit { link: a, subscription, count },
        Command::Recall { link: a, subscription, count },
        Command::Unsubscribe { link: a, subscription },
        Command::Credit { link: nobody, subscription: 1, count },
        Command::Recall { link: nobody, subscription: 1, count },
        Command::Unsubscribe { link: nobody, subscription: 1 },
        Command::Subscribe {
            link: nobody,
            subscription: 1,
            sources: sources(Order::Strict, &[(QUEUE, 1)]),
        },
        Command::LinkLost { link: nobody },
        Command::Settle { link: nobody, batch: settles(1, &[(token, NewSettle::Release)]) },
        Command::Enqueue { link: nobody, batch: batch(1, &[plain(2)]) },
        checkpoint(nobody, token, 1, "from nowhere"),
        Command::Expire { leases: Vec::new() },
        Command::Tick,
    ];
    for command in commands {
        let before = stage.story.state.clone();
        let out = stage.say(&command);
        assert_eq!(Outcomes { wants_events: false, ..out }, Outcomes::default(), "{command:?}");
        let (stale, _, same) = apart_from_refusals(&before, &stage.story.state);
        assert_eq!(stale, 0, "{command:?}");
        assert!(same.snapshot_bytes() == before.snapshot_bytes(), "{command:?}");
    }
}

#[test]
fn what_a_queue_or_a_pause_does_not_allow_changes_nothing() {
    let mut stage = Stage::set(Standing::Running, false);
    let (link, request) = (stage.a, 3);
    stage.story.pause("/jobs/paused");
    let configure = |text: &str| Command::Configure {
        link,
        request,
        path: path(text),
        changes: QueueSettings { max_attempts: Some(3), ..QueueSettings::default() },
        reset: true,
    };
    let pause = |text: &str, paused| {
        let (gate, pattern) = (Gate::Delivery, glob(text));
        Command::Pause { link, request, gate, pattern, paused }
    };
    let again = stage.story.subscribe(link, 1, "/jobs/other").replies;
    assert!(matches!(&again[..], [(_, Reply::SubscribeRefused { subscription: 1, .. })]));
    for (command, refusal) in [
        (configure("/elsewhere"), Some(Refusal::NotHere)),
        (configure("/sys/x"), Some(Refusal::Reserved)),
        (configure("/"), Some(Refusal::BadPath)),
        (pause("/jobs/paused", true), None),
        (pause("/jobs/none", false), None),
    ] {
        let before = stage.story.state.clone();
        let out = stage.say(&command);
        match &out.replies[..] {
            [(_, Reply::Configured { request: 3, result })] => {
                assert_eq!(result.as_ref().err().copied(), refusal);
            }
            [(_, Reply::Paused { request: 3, report })] => {
                assert!(report.as_ref().is_ok_and(|report| !report.changed));
            }
            other => panic!("{command:?}: {other:?}"),
        }
        assert!(out.queues_made.is_empty() && out.events.is_empty());
        let (_, _, same) = apart_from_refusals(&before, &stage.story.state);
        assert!(same.snapshot_bytes() == before.snapshot_bytes(), "{command:?}");
    }
}
