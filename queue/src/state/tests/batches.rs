//! Single cases of batches.

use longshore_protocol::messages::work::{
    Action, BatchInfo, BlockedBy, Filter, JobsQuery, NewSettle, Related, ReplaceOutcome, Selection,
};
use longshore_protocol::{
    DeathReason, Due, EnqueueOutcome, JobOptions, JobState, NewBatch, NewJob, ParentEnd, Refusal,
};

use super::scenario::*;
use crate::Rules;
use crate::command::Command;
use crate::state::steps;

pub(super) fn member(job: NewJob, batch: Option<u32>) -> NewJob {
    batch.map_or(job.clone(), |batch| job.in_batch(id(batch)))
}

fn info(scenario: &StateScenario, number: u32) -> BatchInfo {
    scenario.job(number).info.batch.expect("it is a batch")
}

fn states<const N: usize>(scenario: &StateScenario, jobs: [u32; N]) -> [JobState; N] {
    jobs.map(|number| scenario.job(number).info.state)
}

/// Most ends take several commands.
pub(super) fn small_steps() -> Rules {
    Rules { step_jobs: 2, step_rows: 5, ..Rules::STANDARD }
}

#[test]
fn an_open_batch_binds_its_queue_to_its_home() {
    let mut scenario = StateScenario::begin();
    let producer = scenario.link("producer");
    let bound = |scenario: &StateScenario| {
        let queues = scenario.state.queue_keys();
        queues.iter().map(|queue| queue.jobs).collect::<Vec<_>>()
    };
    scenario.enqueue(producer, &[plain(1).batch(NewBatch::Open), plain(2)]);
    assert_eq!(bound(&scenario), [1]);
    scenario.act_on(Action::CloseBatch, &[1]);
    scenario.work_off();
    assert_eq!(bound(&scenario), []);
}

#[test]
fn the_callbacks_of_a_batch_run_once_each() {
    let mut scenario = StateScenario::with_rules(small_steps());
    let (worker, _) = scenario.worker("worker", "/jobs/work", 0);
    let producer = scenario.link("producer");
    let callback = |number, when| {
        let path = path("/jobs/callbacks");
        NewJob { path, ..after(number, &[(1, when)]) }
    };
    scenario.enqueue(
        producer,
        &[
            plain(1).batch(NewBatch::Open),
            plain(2).batch(NewBatch::Open).in_batch(id(1)),
            callback(3, ParentEnd::Success),
            callback(4, ParentEnd::Death),
            callback(5, ParentEnd::Any),
        ],
    );
    let work = |number| NewJob { path: path("/jobs/work"), ..plain(number).in_batch(id(2)) };
    scenario.enqueue(producer, &[work(6), work(7)]);
    scenario.act_on(Action::CloseBatch, &[1, 2]);
    let next = |scenario: &mut StateScenario, is_ok: bool| {
        let token = scenario.credit(worker, 1, 1)[0].token;
        if is_ok {
            scenario.complete(worker, token);
        } else {
            scenario.settle(worker, token, &NewSettle::Bury(error("no luck")));
        }
        scenario.work_off();
    };
    use JobState::{Blocked, Completed, Dead, Ready};
    // The first death within counts at once, for the batch around as well.
    next(&mut scenario, false);
    assert_eq!(states(&scenario, [1, 2, 3, 4, 5]), [Blocked, Blocked, Blocked, Ready, Blocked]);
    next(&mut scenario, true);
    assert_eq!(states(&scenario, [1, 2, 3, 4, 5]), [Dead, Dead, Blocked, Ready, Ready]);
    let death = scenario.job(1).info.death;
    assert_eq!(death, Some(DeathReason::MemberDead));
    // All is revived with the outermost batch; its success may still come.
    assert_eq!(scenario.act_on(Action::Revive, &[1]), 1);
    assert_eq!(states(&scenario, [1, 2, 6]), [Blocked, Blocked, Ready]);
    next(&mut scenario, true);
    assert_eq!(states(&scenario, [1, 2, 3, 4, 5]), [Completed, Completed, Ready, Ready, Ready]);
    let all = BatchInfo { closed: true, completed: 1, ..BatchInfo::default() };
    assert_eq!(info(&scenario, 1), all);
    assert_eq!(scenario.counts_of("/jobs/callbacks").ready, 3);
}

#[test]
fn a_batch_that_is_empty_completes_once_it_is_closed() {
    let mut scenario = StateScenario::begin();
    let producer = scenario.link("producer");
    let batches = [plain(1).batch(NewBatch::Open), plain(2).batch(NewBatch::Closed)];
    // A closed one gets only what is enqueued with it, so it is enqueued atomically.
    let alone = scenario.enqueue(producer, &batches[1..]);
    assert_eq!(alone, [EnqueueOutcome::Refused(Refusal::BadOptions)]);
    scenario.enqueue_atomic(producer, &batches);
    assert_eq!(states(&scenario, [1, 2]), [JobState::Blocked, JobState::Completed]);
    let open = BlockedBy::Members(BatchInfo::default());
    assert_eq!(scenario.job(1).info.blocked, Some(open));
    assert_eq!(scenario.act_on(Action::CloseBatch, &[1]), 1);
    assert_eq!(scenario.act_on(Action::CloseBatch, &[1]), 1, "its answer was lost");
    assert_eq!(states(&scenario, [1]), [JobState::Completed]);
    let closed = EnqueueOutcome::Refused(Refusal::BatchClosed);
    assert_eq!(scenario.enqueue(producer, &[plain(3).in_batch(id(2))]), [closed]);
    let batch = [plain(4).batch(NewBatch::Closed), plain(5).in_batch(id(4))];
    assert_eq!(scenario.enqueue_atomic(producer, &batch), [EnqueueOutcome::Created; 2]);
    assert_eq!(scenario.enqueue(producer, &[plain(6).in_batch(id(4))]), [closed]);
}

#[test]
fn what_is_no_batch_or_no_member_is_refused() {
    let mut scenario = StateScenario::begin();
    scenario.fill(1..=1);
    let producer = scenario.link("producer");
    let mut refused = |job: NewJob, refusal| {
        let outcome = EnqueueOutcome::Refused(refusal);
        let alone = std::slice::from_ref(&job);
        assert_eq!(scenario.enqueue(producer, alone), [outcome], "{job:?}");
        assert_eq!(scenario.enqueue_atomic(producer, alone), [outcome], "{job:?}");
    };
    refused(plain(2).in_batch(id(9)), Refusal::ParentGone);
    refused(plain(2).in_batch(id(1)), Refusal::ParentGone);
    refused(plain(2).in_batch(id(2)), Refusal::ParentGone);
    let batch = || plain(2).batch(NewBatch::Open);
    refused(batch().after(id(1)), Refusal::BadOptions);
    refused(batch().order_key("k"), Refusal::BadOptions);
    refused(batch().limit_key("k"), Refusal::BadOptions);
    let prepared = JobOptions { prepared: true, ..JobOptions::default() };
    refused(NewJob { options: prepared, ..batch() }, Refusal::BadOptions);
    let delayed = JobOptions { due: Due::After(5), ..JobOptions::default() };
    refused(NewJob { options: delayed, ..batch() }, Refusal::BadOptions);
    refused(replacing(2).after(id(1)), Refusal::BadOptions);
}

#[test]
fn batches_are_up_to_eight_deep() {
    let mut scenario = StateScenario::begin();
    let producer = scenario.link("producer");
    for number in 1..=9u32 {
        let batch = (number > 1).then(|| number - 1);
        let job = member(plain(number).batch(NewBatch::Open), batch);
        assert_eq!(scenario.enqueue(producer, &[job]), [EnqueueOutcome::Created]);
    }
    let deep = EnqueueOutcome::Refused(Refusal::BadOptions);
    assert_eq!(scenario.enqueue(producer, &[plain(10).in_batch(id(9))]), [deep]);
    let created = scenario.enqueue(producer, &[plain(10).in_batch(id(8))]);
    assert_eq!(created, [EnqueueOutcome::Created]);
}

#[test]
fn whoever_takes_a_members_place_is_a_member() {
    let mut scenario = StateScenario::begin();
    let (worker, _) = scenario.worker("worker", "/jobs/**", 0);
    let producer = scenario.link("producer");
    scenario.enqueue(producer, &[plain(1).batch(NewBatch::Open), replacing(2).in_batch(id(1))]);
    scenario.enqueue(producer, &[replacing(3).in_batch(id(1))]);
    scenario.act_on(Action::CloseBatch, &[1]);
    assert_eq!(info(&scenario, 1), BatchInfo { closed: true, open: 1, ..BatchInfo::default() });
    let token = scenario.credit(worker, 1, 1)[0].token;
    scenario.settle(worker, token, &NewSettle::Bury(error("no luck")));
    assert_eq!(states(&scenario, [1]), [JobState::Dead]);
    let refused = scenario.replace(worker, 1, &plain(4));
    assert_eq!(refused, ReplaceOutcome::BadOptions, "a batch is no job to replace");
    assert_eq!(scenario.replace(worker, 3, &plain(4)), ReplaceOutcome::Replaced);
    assert_eq!(states(&scenario, [1, 4]), [JobState::Blocked, JobState::Ready]);
    let token = scenario.credit(worker, 1, 1)[0].token;
    scenario.complete(worker, token);
    assert_eq!(states(&scenario, [1]), [JobState::Completed]);
}

#[test]
fn a_batch_that_expires_cancels_its_members_in_bounded_steps() {
    let rules = Rules { step_jobs: 10, step_rows: 30, ..Rules::STANDARD };
    let mut scenario = StateScenario::with_rules(rules);
    let producer = scenario.link("producer");
    let expires_at = Some(scenario.now.wall_ms + 1_000);
    let options = JobOptions { expires_at, ..JobOptions::default() };
    scenario.enqueue(producer, &[NewJob { options, ..plain(1).batch(NewBatch::Open) }]);
    let members: Vec<NewJob> = (2..=101).map(|number| plain(number).in_batch(id(1))).collect();
    scenario.enqueue(producer, &members);
    scenario.fill(102..=201);
    scenario.tick_at_next_timer();
    assert_eq!(states(&scenario, [1]), [JobState::Expired]);
    while scenario.state.batches.has_work() {
        let before = scenario.counts().cancelled;
        assert_eq!(scenario.state.next_timer_ms(scenario.now), Some(scenario.now.mono_ms));
        steps::take();
        scenario.apply(Command::Tick);
        assert!(steps::take() <= 100 && scenario.counts().cancelled <= before + 10);
        scenario.restore();
    }
    assert_eq!(scenario.counts().cancelled, 100);
    assert_eq!(scenario.counts().ready, 100, "the others are no members");
    let expected = BatchInfo { cancelled: 100, ..BatchInfo::default() };
    assert_eq!(info(&scenario, 1), expected);
}

#[test]
fn the_members_of_a_batch_can_be_listed() {
    let mut scenario = StateScenario::begin();
    let producer = scenario.link("producer");
    let jobs = [plain(1).batch(NewBatch::Open), plain(2), plain(3).in_batch(id(1))];
    scenario.enqueue(producer, &jobs);
    let listed = |of: u32| {
        let filter = Filter::of(glob("/**"));
        let related = Some(Related::MembersOf(id(of)));
        let query = JobsQuery { related, ..JobsQuery::of(filter) };
        let page = scenario.state.jobs(&query, None, scenario.now).0;
        page.into_iter().map(|job| job.info.id).collect::<Vec<_>>()
    };
    assert_eq!(listed(1), [id(3)]);
    assert_eq!(listed(2), [], "no batch");
    assert_eq!(listed(9), [], "no job");
}

/// A member that expires when it would be delivered ends its batch in the same command.
#[test]
fn a_member_that_expires_at_its_delivery_ends_its_batch() {
    let mut scenario = StateScenario::begin();
    let (worker, _) = scenario.worker("worker", "/jobs/**", 0);
    let producer = scenario.link("producer");
    let expires_at = Some(scenario.now.wall_ms + 1_000);
    let options = JobOptions { expires_at, ..JobOptions::default() };
    let expiring = NewJob { options, ..plain(2).in_batch(id(1)) };
    scenario.enqueue_atomic(producer, &[plain(1).batch(NewBatch::Closed), expiring]);
    scenario.later(2_000);
    assert!(scenario.credit(worker, 1, 1).is_empty());
    assert_eq!(states(&scenario, [1, 2]), [JobState::Cancelled, JobState::Expired]);
    scenario.restore();
}

/// Members that their queue would have forgotten are forgotten once their batch has ended, in
/// bounded steps. Acts by pattern leave them out.
#[test]
fn a_batch_holds_its_ended_members_until_it_ends() {
    let rules = Rules { step_jobs: 10, ended_per_queue: 60, keep_ms: 1_000, ..Rules::STANDARD };
    let mut scenario = StateScenario::with_rules(rules);
    let (worker, _) = scenario.worker("worker", "/jobs/**", 0);
    let producer = scenario.link("producer");
    let mut batch = vec![plain(1).batch(NewBatch::Closed)];
    batch.extend((2..=102).map(|number| plain(number).in_batch(id(1))));
    scenario.enqueue_atomic(producer, &batch);
    let given = scenario.credit(worker, 1, 101);
    for given in &given[1..] {
        scenario.complete(worker, given.token);
    }
    let pass_retention = |scenario: &mut StateScenario| {
        scenario.later(10_000);
        (0..20).for_each(|_| drop(scenario.apply(Command::Tick)));
    };
    pass_retention(&mut scenario);
    assert_eq!(scenario.counts().completed, 100);
    scenario.restore();
    scenario.act_on(Action::Drop, &[50]);
    let completed = Filter::of(glob("/**")).in_state(Some(JobState::Completed));
    assert_eq!(scenario.act(Action::Drop, Selection::Matching(completed)).0.done, 0);
    scenario.complete(worker, given[0].token);
    assert_eq!(states(&scenario, [1]), [JobState::Completed]);
    while scenario.state.batches.has_work() {
        steps::take();
        scenario.apply(Command::Tick);
        assert!(steps::take() <= 30);
        scenario.restore();
    }
    assert_eq!(scenario.counts().completed, 2, "the batch, and its last member");
    pass_retention(&mut scenario);
    assert_eq!(scenario.counts().completed, 0);
    assert_eq!(scenario.state.batches.bytes(), 0);
}

/// A batch is there as long as it holds jobs, also those of ended batches within it whose rows are
/// gone.
#[test]
fn a_batch_that_is_gone_lets_go_of_all_that_it_held() {
    let rules = Rules { step_jobs: 1, keep_ms: 0, ..Rules::STANDARD };
    let mut scenario = StateScenario::with_rules(rules);
    let (worker, _) = scenario.worker("worker", "/jobs/**", 0);
    let producer = scenario.link("producer");
    let inner = plain(2).batch(NewBatch::Closed).in_batch(id(1));
    let batch = [plain(1).batch(NewBatch::Closed), inner, plain(3).in_batch(id(2))];
    scenario.enqueue_atomic(producer, &batch);
    scenario.enqueue(producer, &[plain(4).batch(NewBatch::Open)]);
    scenario.enqueue(producer, &[plain(5).batch(NewBatch::Open).in_batch(id(4))]);
    scenario.enqueue(producer, &[plain(6).in_batch(id(5)), plain(7).in_batch(id(5))]);
    let given = scenario.credit(worker, 1, 3);
    scenario.complete(worker, given[0].token);
    scenario.restore();
    scenario.work_off();
    assert!(scenario.state.job(&id(3), scenario.now).is_none(), "all of it is forgotten");
    scenario.complete(worker, given[1].token);
    assert_eq!(states(&scenario, [6]), [JobState::Completed], "batch 4 holds it");
    scenario.act_on(Action::Cancel, &[4]);
    scenario.restore();
    assert_eq!(scenario.state.totals().jobs, 0);
    assert_eq!(scenario.state.batches.bytes(), 0);
}

/// Another batch may have the id of one that was dropped, and whose members are left.
#[test]
fn a_batch_with_the_id_of_a_dropped_one_is_another() {
    let mut scenario = StateScenario::begin();
    let (worker, _) = scenario.worker("worker", "/jobs/**", 0);
    let producer = scenario.link("producer");
    scenario.enqueue(producer, &[plain(1).batch(NewBatch::Open), replacing(2).in_batch(id(1))]);
    scenario.act_on(Action::CloseBatch, &[1]);
    let token = scenario.credit(worker, 1, 1)[0].token;
    scenario.settle(worker, token, &NewSettle::Bury(error("no luck")));
    scenario.act_on(Action::Drop, &[1]);
    scenario.act_on(Action::Revive, &[2]);
    scenario.enqueue(producer, &[plain(1).batch(NewBatch::Open), replacing(3).in_batch(id(1))]);
    assert_eq!(info(&scenario, 1), BatchInfo { open: 1, ..BatchInfo::default() });
}

/// Who replaces a dead member may have expired already, and be kept for no time.
#[test]
fn a_member_is_replaced_by_one_that_is_gone_at_once() {
    let mut scenario = StateScenario::begin();
    let (worker, _) = scenario.worker("worker", "/jobs/**", 0);
    let producer = scenario.link("producer");
    let batch = [plain(1).batch(NewBatch::Closed), plain(2).in_batch(id(1))];
    scenario.enqueue_atomic(producer, &batch);
    let token = scenario.credit(worker, 1, 1)[0].token;
    scenario.settle(worker, token, &NewSettle::Bury(error("no luck")));
    scenario.act_on(Action::Drop, &[1]);
    let options = JobOptions { expires_at: Some(1), keep_ms: Some(0), ..JobOptions::default() };
    assert_eq!(scenario.replace(worker, 2, &with(3, options)), ReplaceOutcome::Replaced);
    assert_eq!(scenario.state.batches.bytes(), 0);
}

/// Whoever cancels a batch after reviving it wants its members cancelled, those that were revived
/// meanwhile and those that were not.
#[test]
fn a_cancelled_batch_revives_no_members() {
    for ticks_between in [0, 1] {
        let mut scenario = StateScenario::with_rules(small_steps());
        let (worker, _) = scenario.worker("worker", "/jobs/**", 0);
        let producer = scenario.link("producer");
        let mut batch = vec![plain(1).batch(NewBatch::Closed)];
        batch.extend((2..=20).map(|number| plain(number).in_batch(id(1))));
        scenario.enqueue_atomic(producer, &batch);
        for _ in 2..=20 {
            let token = scenario.credit(worker, 1, 1)[0].token;
            scenario.settle(worker, token, &NewSettle::Bury(error("no luck")));
        }
        scenario.act(Action::Revive, Selection::Ids(vec![id(1)]));
        (0..ticks_between).for_each(|_| drop(scenario.apply(Command::Tick)));
        scenario.act_on(Action::Cancel, &[1]);
        assert_eq!(scenario.counts().ready, 0, "{ticks_between}");
        assert_eq!(scenario.counts().blocked, 0, "{ticks_between}");
    }
}

/// A sweep goes on for the members of a batch that is gone, and ends with the last one.
#[test]
fn a_cancelled_batch_that_nobody_keeps_cancels_its_members() {
    let rules = Rules { keep_ms: 0, ..small_steps() };
    let mut scenario = StateScenario::with_rules(rules);
    let producer = scenario.link("producer");
    scenario.enqueue(producer, &[plain(1).batch(NewBatch::Open)]);
    scenario.enqueue(producer, &[plain(2).in_batch(id(1)), plain(3).in_batch(id(1))]);
    assert_eq!(scenario.act_on(Action::Cancel, &[1]), 1);
    assert_eq!(scenario.counts().ready, 0);
}

/// It begins at the batch, and ends with the last member.
#[test]
fn a_sweep_of_few_members_examines_few_rows() {
    let mut scenario = StateScenario::begin();
    scenario.fill(10..=1_009);
    let producer = scenario.link("producer");
    scenario.enqueue(producer, &[plain(1).batch(NewBatch::Open)]);
    scenario.enqueue(producer, &[plain(2).in_batch(id(1)), plain(3).in_batch(id(1))]);
    steps::take();
    assert_eq!(scenario.act_on(Action::Cancel, &[1]), 1);
    assert!(steps::take() <= 10);
    assert_eq!(states(&scenario, [2, 3]), [JobState::Cancelled; 2]);
}

/// An open batch is retried as a whole: what has died in it, and in open batches within it.
#[test]
fn a_retry_reaches_open_batches_within() {
    let mut scenario = StateScenario::begin();
    let (worker, _) = scenario.worker("worker", "/jobs/**", 0);
    let producer = scenario.link("producer");
    let batch = |number| plain(number).batch(NewBatch::Open);
    scenario.enqueue(producer, &[batch(1), plain(2).in_batch(id(1)), batch(3).in_batch(id(1))]);
    scenario.enqueue(producer, &[plain(4).in_batch(id(3))]);
    let retry = Selection::Ids(vec![id(1)]);
    assert_eq!(scenario.act(Action::Revive, retry.clone()).0.refused, 1);
    for given in scenario.credit(worker, 1, 2) {
        scenario.settle(worker, given.token, &NewSettle::Bury(error("no luck")));
    }
    assert_eq!(states(&scenario, [2, 4]), [JobState::Dead; 2]);
    assert_eq!(scenario.act(Action::Revive, retry).0.done, 1);
    scenario.work_off();
    assert_eq!(states(&scenario, [2, 4]), [JobState::Ready; 2]);
}

/// A deadline is one of the whole batch: a retry does not end it, unless it has passed.
#[test]
fn a_retried_batch_keeps_an_expiry_that_is_to_come() {
    let mut scenario = StateScenario::begin();
    let (worker, _) = scenario.worker("worker", "/jobs/**", 0);
    let producer = scenario.link("producer");
    let expires_at = Some(scenario.now.wall_ms + 1_000);
    let options = JobOptions { expires_at, ..JobOptions::default() };
    let batch = NewJob { options, ..plain(1).batch(NewBatch::Closed) };
    scenario.enqueue_atomic(producer, &[batch, plain(2).in_batch(id(1))]);
    let bury = |scenario: &mut StateScenario| {
        let token = scenario.credit(worker, 1, 1)[0].token;
        scenario.settle(worker, token, &NewSettle::Bury(error("no luck")));
    };
    bury(&mut scenario);
    scenario.later(500);
    assert_eq!(scenario.act_on(Action::Revive, &[1]), 1);
    assert_eq!(scenario.job(1).info.expires_at, expires_at);
    bury(&mut scenario);
    scenario.later(500);
    assert_eq!(scenario.act_on(Action::Revive, &[1]), 1);
    assert_eq!(scenario.job(1).info.expires_at, None);
    scenario.later(500).apply(Command::Tick);
    assert_eq!(states(&scenario, [1, 2]), [JobState::Blocked, JobState::Ready]);
}

/// Also one whose last step ends at the row where it began: it would revive for a second time what
/// has died meanwhile.
#[test]
fn a_sweep_goes_round_once() {
    let mut scenario = StateScenario::with_rules(small_steps());
    let (worker, _) = scenario.worker("worker", "/jobs/**", 0);
    let producer = scenario.link("producer");
    let batch = |number| plain(number).batch(NewBatch::Open);
    let members = [batch(2), plain(3), plain(4)].map(|job| job.in_batch(id(1)));
    scenario.enqueue(producer, &[batch(1)]);
    scenario.enqueue(producer, &members);
    for given in scenario.credit(worker, 1, 2) {
        scenario.settle(worker, given.token, &NewSettle::Bury(error("no luck")));
    }
    scenario.act(Action::Revive, Selection::Ids(vec![id(1)]));
    // Two jobs are one step: the sweep has examined all rows.
    scenario.apply(Command::Tick);
    assert_eq!(states(&scenario, [3, 4]), [JobState::Ready; 2]);
    assert!(!scenario.state.batches.has_work());
}

/// A sweep reaches all rows, though there are more meanwhile.
#[test]
fn a_sweep_reaches_every_member_of_a_table_that_grows() {
    let mut scenario = StateScenario::with_rules(small_steps());
    let producer = scenario.link("producer");
    let open = |scenario: &mut StateScenario, batch: u32, members: u32| {
        scenario.enqueue(producer, &[plain(batch).batch(NewBatch::Open)]);
        let members: Vec<NewJob> =
            (1..=members).map(|n| plain(batch + n).in_batch(id(batch))).collect();
        scenario.enqueue(producer, &members);
    };
    open(&mut scenario, 100, 20);
    open(&mut scenario, 200, 20);
    // The first sweep leaves the cursor within the table.
    scenario.act(Action::Cancel, Selection::Ids(vec![id(100)]));
    (0..4).for_each(|_| drop(scenario.apply(Command::Tick)));
    scenario.act(Action::Cancel, Selection::Ids(vec![id(200)]));
    scenario.fill(300..=320);
    scenario.work_off();
    assert_eq!(scenario.counts().ready, 21, "only those that are no members");
}

/// An atomic batch is not applied in part when its batch has expired on the way.
#[test]
fn a_closed_batch_that_has_expired_is_refused_with_its_members() {
    let mut scenario = StateScenario::begin();
    let producer = scenario.link("producer");
    let options = JobOptions { expires_at: Some(1), ..JobOptions::default() };
    let batch = NewJob { options, ..plain(1).batch(NewBatch::Closed) };
    let out = scenario.enqueue_atomic(producer, &[batch, plain(2).in_batch(id(1))]);
    let refused = [Refusal::BatchRefused, Refusal::BatchClosed].map(EnqueueOutcome::Refused);
    assert_eq!(out, refused);
}

/// A death callback that comes after the first death within, and one of an atomic batch.
#[test]
fn a_death_callback_may_come_late() {
    let mut scenario = StateScenario::begin();
    let (worker, _) = scenario.worker("worker", "/jobs/**", 0);
    let producer = scenario.link("producer");
    let inner = plain(2).batch(NewBatch::Open).in_batch(id(1));
    let jobs = [plain(1).batch(NewBatch::Open), inner, plain(3).in_batch(id(2))];
    scenario.enqueue(producer, &jobs);
    let token = scenario.credit(worker, 1, 1)[0].token;
    scenario.settle(worker, token, &NewSettle::Bury(error("no luck")));
    scenario.enqueue(producer, &[after(4, &[(1, ParentEnd::Death)])]);
    scenario.work_off();
    assert_eq!(states(&scenario, [1, 4]), [JobState::Blocked, JobState::Ready]);
}

/// A job that an atomic batch replaces is no parent of a later one.
#[test]
fn the_replaced_job_of_an_atomic_batch_is_no_parent() {
    let mut scenario = StateScenario::begin();
    let producer = scenario.link("producer");
    scenario.enqueue(producer, &[replacing(1)]);
    let batch = [replacing(2), after(3, &[(1, ParentEnd::Success)])];
    let out = scenario.enqueue_atomic(producer, &batch);
    let refused = [Refusal::BatchRefused, Refusal::ParentGone].map(EnqueueOutcome::Refused);
    assert_eq!(out, refused);
}
