//! Jobs with order keys and fair keys.

use std::collections::BTreeMap;

use longshore_protocol::messages::work::{Action, BlockedBy, NewSettle, ReplaceOutcome};
use longshore_protocol::{Backoff, JobError, JobId, JobOptions, JobState, NewJob, QueueSettings};

use super::dead_letters::replace;
use super::scenario::{QUEUE, StoreScenario, from, id, job};

fn ordered(n: u32, key: &str) -> NewJob {
    job(n).order_key(key)
}

pub(super) async fn jobs_of_an_order_key_run_one_at_a_time_in_order(scenario: &mut StoreScenario) {
    let retried = JobOptions { backoff: Some(Backoff::Fixed(60_000)), ..JobOptions::default() };
    let urgent = JobOptions { priority: 9, ..JobOptions::default() };
    scenario
        .create([
            NewJob { options: retried, ..ordered(1, "ann") },
            ordered(2, "ann"),
            NewJob { options: urgent, ..ordered(3, "ann") },
            ordered(4, "bob"),
            job(5),
        ])
        .await;
    let worker = scenario.worker("w", from("/jobs/**"), 100).await;
    let first = scenario.delivered(worker);
    let delivered: Vec<_> = first.iter().map(|delivered| delivered.id).collect();
    assert_eq!(delivered, [id(1), id(4), id(5)], "one of each key, and those without");
    let state = JobState::Running;
    let by_ann = Some(BlockedBy::Order { key: "ann".to_owned(), job: id(1), state });
    assert_eq!(scenario.job_view(id(2)).await.info.blocked, by_ann);
    let failed = NewSettle::Fail(JobError::default());
    scenario.end(worker, &[(first[0].token, failed)]).await;
    assert!(scenario.delivered(worker).is_empty(), "a retrying job keeps its turn");
    scenario.restart().await;
    let worker = scenario.worker("other", from("/jobs/**"), 100).await;
    scenario.advance(60_000).await;
    let again = scenario.delivered(worker);
    let again = again.iter().find(|delivered| delivered.id == id(1)).expect("its next attempt");
    assert_eq!(scenario.states([2, 3]).await, [JobState::Blocked; 2]);
    for next in [2, 3] {
        let token = if next == 2 { again.token } else { scenario.delivered_job(worker).token };
        scenario.end(worker, &[(token, NewSettle::Complete { result: None })]).await;
        assert_eq!(scenario.states([next]).await, [JobState::Running], "by age, not by priority");
    }
}

pub(super) async fn a_dead_job_keeps_its_turn_only_if_its_queue_says_so(
    scenario: &mut StoreScenario,
) {
    scenario.create((1..=4).map(|number| ordered(number, "ann"))).await;
    let worker = scenario.worker("w", from("/jobs/**"), 100).await;
    let bury = || NewSettle::Bury(JobError::default());
    let token = scenario.delivered_job(worker).token;
    scenario.end(worker, &[(token, bury())]).await;
    let token = scenario.delivered_job(worker).token;
    assert_eq!(scenario.states([1, 2]).await, [JobState::Dead, JobState::Running]);
    let keeps = QueueSettings { dead_blocks_order: Some(true), ..QueueSettings::default() };
    scenario.configure(QUEUE, keeps, false).await.expect("a queue");
    scenario.end(worker, &[(token, bury())]).await;
    scenario.restart().await;
    let worker = scenario.worker("other", from("/jobs/**"), 100).await;
    assert!(scenario.delivered(worker).is_empty(), "job 2 is dead, and has the turn");
    assert_eq!(scenario.state(id(3)).await, Some(JobState::Blocked));
    assert_eq!(replace(scenario, id(2), &job(9)).await, ReplaceOutcome::Replaced);
    let replacement = scenario.delivered_job(worker);
    assert_eq!(replacement.id, id(9), "it has the turn, though it is younger");
    assert_eq!(scenario.state(id(3)).await, Some(JobState::Blocked));
    scenario.end(worker, &[(replacement.token, bury())]).await;
    assert!(scenario.delivered(worker).is_empty(), "job 9 is dead, and has the turn");
    scenario.act(Action::Drop, &[id(9)]).await;
    let third = scenario.delivered_job(worker);
    assert_eq!(third.id, id(3));
    scenario.end(worker, &[(third.token, bury())]).await;
    assert!(scenario.delivered(worker).is_empty(), "job 3 is dead, and has the turn");
    scenario.configure(QUEUE, QueueSettings::default(), true).await.expect("a queue");
    assert_eq!(scenario.delivered_job(worker).id, id(4));
}

pub(super) async fn fair_keys_share_by_weight_whatever_one_enqueues(scenario: &mut StoreScenario) {
    let of = |n: u32, key: &str, weight| job(n).fair_key(key, weight);
    scenario.create((0..60).map(|n| of(n, "many", 1))).await;
    scenario.create((100..160).map(|n| of(n, "heavy", 3))).await;
    scenario.create((200..230).map(job)).await;
    let worker = scenario.worker("w", from("/jobs/**"), 51).await;
    let kind = |id: JobId| match u32::from_be_bytes(id.0[12..].try_into().unwrap_or_default()) {
        0..100 => "many",
        100..200 => "heavy",
        _ => "none",
    };
    let mut counts = BTreeMap::new();
    for delivered in scenario.delivered(worker) {
        *counts.entry(kind(delivered.id)).or_insert(0) += 1;
    }
    let ideal = [("heavy", 30), ("many", 10), ("none", 10)];
    for (key, share) in ideal {
        assert!((share..=share + 1).contains(&counts[key]), "{counts:?}");
    }
    scenario.restart().await;
    let worker = scenario.worker("other", from("/jobs/**"), 5).await;
    let all: Vec<&str> = scenario.delivered(worker).iter().map(|job| kind(job.id)).collect();
    assert_eq!(all.iter().filter(|&&kind| kind == "heavy").count(), 3, "passes survive: {all:?}");
}
