//! Single cases of jobs that wait for the ends of others. The model is that of
//! [batches](super::batch_model).

use longshore_protocol::messages::work::{
    Action, Filter, JobsQuery, NewSettle, Related, ReplaceOutcome,
};
use longshore_protocol::{
    EnqueueOutcome, JobOptions, JobState, NewJob, Parent, ParentEnd, Refusal,
};

use super::scenario::*;
use crate::Rules;
use crate::command::Command;

fn end_of(code: u8) -> ParentEnd {
    [ParentEnd::Success, ParentEnd::Death, ParentEnd::Any][usize::from(code)]
}

fn waiting(number: u32, parents: &[(u32, u8)]) -> NewJob {
    parents
        .iter()
        .fold(plain(number), |job, &(parent, when)| job.after_end(id(parent), end_of(when)))
}

#[test]
fn a_parent_that_is_not_there_refuses_the_job() {
    let mut scenario = StateScenario::begin();
    let producer = scenario.link("producer");
    let gone = EnqueueOutcome::Refused(Refusal::ParentGone);
    assert_eq!(scenario.enqueue(producer, &[waiting(1, &[(9, 0)])]), [gone]);
    assert_eq!(scenario.enqueue(producer, &[waiting(1, &[(1, 0)])]), [gone], "for itself");
    // In a batch parents come first, also in an atomic one: there are no cycles.
    let circle = [waiting(1, &[(2, 0)]), waiting(2, &[(1, 0)])];
    assert_eq!(scenario.enqueue(producer, &circle), [gone, gone]);
    let answers = scenario.enqueue_atomic(producer, &circle);
    assert_eq!(answers, [gone, gone]);
    let answers = scenario.enqueue_atomic(producer, &[plain(1), waiting(2, &[(1, 0)])]);
    assert_eq!(answers, [EnqueueOutcome::Created; 2]);
    assert_eq!(scenario.job(2).info.state, JobState::Blocked);
}

/// An atomic batch may come late: a job of it has expired, and its queue keeps no ended job.
#[test]
fn an_atomic_batch_whose_jobs_have_expired_is_applied_as_a_whole() {
    for keep_ms in [Some(0), None] {
        let rules = Rules { ended_per_queue: 1, ..Rules::STANDARD };
        let mut scenario = StateScenario::with_rules(rules);
        scenario.fill(1..=1);
        let producer = scenario.link("producer");
        scenario.act_on(Action::Cancel, &[1]);
        let options = JobOptions { expires_at: Some(1), keep_ms, ..JobOptions::default() };
        // The first one makes job 1 go, or goes itself.
        let old = if keep_ms.is_none() { 1 } else { 2 };
        let late = NewJob { options, ..plain(2) };
        let jobs = [late, waiting(3, &[(2, 2)]), waiting(4, &[(2, 0)]), waiting(5, &[(old, 2)])];
        let answers = scenario.enqueue_atomic(producer, &jobs);
        assert_eq!(answers, [EnqueueOutcome::Created; 4], "{keep_ms:?}");
        scenario.work_off();
        let state =
            |number| scenario.state.job(&id(number), scenario.now).map(|job| job.info.state);
        assert_eq!(state(3), Some(JobState::Ready), "after any end");
        assert!(matches!(state(4), Some(JobState::Cancelled) | None), "after a success");
        assert_eq!(state(5), Some(JobState::Ready));
    }
}

#[test]
fn a_job_with_parents_has_no_other_time_and_is_not_prepared() {
    let mut scenario = StateScenario::begin();
    scenario.fill(1..=1);
    let producer = scenario.link("producer");
    let refused = EnqueueOutcome::Refused(Refusal::BadOptions);
    let prepared = JobOptions { prepared: true, ..JobOptions::default() };
    let delayed = JobOptions { due: longshore_protocol::Due::After(5), ..JobOptions::default() };
    for options in [prepared, delayed] {
        let job = NewJob { options, ..waiting(2, &[(1, 0)]) };
        assert_eq!(scenario.enqueue(producer, &[job]), [refused]);
    }
}

#[test]
fn waits_for_parents_have_a_limit() {
    let rules = Rules { parents: 3, ..Rules::STANDARD };
    let mut scenario = StateScenario::with_rules(rules);
    scenario.fill(1..=2);
    let producer = scenario.link("producer");
    let full = EnqueueOutcome::Refused(Refusal::KeysFull);
    let two = [(1, 0), (2, 0)];
    let outcomes = scenario.enqueue(producer, &[waiting(3, &two), waiting(4, &two)]);
    assert_eq!(outcomes, [EnqueueOutcome::Created, full]);
    let answers =
        scenario.enqueue_atomic(producer, &[waiting(5, &[(1, 0)]), waiting(6, &[(1, 0)])]);
    assert_eq!(answers, [EnqueueOutcome::Refused(Refusal::BatchRefused), full]);
}

#[test]
fn whoever_takes_a_parents_place_is_waited_for() {
    let mut scenario = StateScenario::begin();
    let (worker, _) = scenario.worker("worker", "/jobs/**", 0);
    let producer = scenario.link("producer");
    scenario.enqueue(producer, &[replacing(1), waiting(2, &[(1, 0)])]);
    scenario.enqueue(producer, &[replacing(3)]);
    assert_eq!(scenario.job(2).info.state, JobState::Blocked);
    // The replacement dies, and an operator replaces it.
    let token = scenario.credit(worker, 1, 1)[0].token;
    scenario.settle(worker, token, &NewSettle::Bury(error("no luck")));
    assert_eq!(scenario.replace(worker, 3, &plain(4)), ReplaceOutcome::Replaced);
    scenario.restore();
    assert_eq!(scenario.job(2).info.state, JobState::Blocked);
    let token = scenario.credit(worker, 1, 1)[0].token;
    scenario.complete(worker, token);
    assert_eq!(scenario.job(2).info.state, JobState::Ready);
    assert_eq!(scenario.state.graph.bytes(), 0);
}

#[test]
fn a_job_with_many_children_ends_in_bounded_steps() {
    let rules = Rules { step_jobs: 10, ..Rules::STANDARD };
    let mut scenario = StateScenario::with_rules(rules);
    let (worker, _) = scenario.worker("worker", "/jobs/**", 0);
    scenario.fill(1..=1);
    let producer = scenario.link("producer");
    let children: Vec<NewJob> = (2..=101).map(|number| waiting(number, &[(1, 0)])).collect();
    scenario.enqueue(producer, &children);
    let token = scenario.credit(worker, 1, 1)[0].token;
    scenario.complete(worker, token);
    let mut before = 0;
    loop {
        let ready = scenario.counts().ready;
        assert!(ready <= before + 10, "{:?}", scenario.counts());
        before = ready;
        if !scenario.state.graph.has_ended() {
            break;
        }
        assert_eq!(scenario.state.next_timer_ms(scenario.now), Some(scenario.now.mono_ms));
        scenario.apply(Command::Tick);
    }
    assert_eq!(before, 100);
}

#[test]
fn a_waiting_job_tells_what_it_waits_for_and_expires() {
    let mut scenario = StateScenario::begin();
    scenario.fill(1..=1);
    let producer = scenario.link("producer");
    let expires_at = Some(scenario.now.wall_ms + 1_000);
    let options = JobOptions { expires_at, ..JobOptions::default() };
    let job = NewJob { options, ..waiting(2, &[(1, 2)]) };
    scenario.enqueue(producer, &[job, waiting(3, &[(2, 0)]), waiting(4, &[(2, 2)])]);
    let by = scenario.job(2).info.blocked.expect("it waits");
    let (job, state) = (id(1), JobState::Ready);
    assert_eq!(by, longshore_protocol::messages::work::BlockedBy::Parent { job, state });
    scenario.tick_at_next_timer();
    let states = [2, 3, 4].map(|number| scenario.job(number).info.state);
    assert_eq!(states, [JobState::Expired, JobState::Cancelled, JobState::Ready]);
}

#[test]
fn jobs_are_listed_by_what_waits_for_them() {
    let mut scenario = StateScenario::begin();
    let (worker, _) = scenario.worker("worker", "/jobs/**", 0);
    scenario.fill(1..=3);
    let producer = scenario.link("producer");
    let jobs = [waiting(4, &[(1, 0), (2, 0)]), waiting(5, &[(2, 2)]), waiting(6, &[(3, 0)])];
    scenario.enqueue(producer, &jobs);
    let listed = |scenario: &StateScenario, related, before: Option<u64>| {
        let filter = Filter { ended_before: before, ..Filter::of(glob("/**")) };
        let (mut query, mut all) = (JobsQuery::of(filter), Vec::new());
        (query.related, query.limit) = (Some(related), 1);
        loop {
            let (page, next) = scenario.state.jobs(&query, None, scenario.now);
            all.extend(page.into_iter().map(|job| job.info.id));
            let Some(next) = next else { break };
            query.cursor = next;
        }
        all.sort();
        all
    };
    let waits =
        |scenario: &StateScenario, job| listed(scenario, Related::WaitingFor(id(job)), None);
    assert_eq!(waits(&scenario, 2), [id(4), id(5)]);
    assert_eq!(waits(&scenario, 4), []);
    assert_eq!(waits(&scenario, 9), [], "no job");
    let stuck = |scenario: &StateScenario, before| listed(scenario, Related::WaitedFor, before);
    assert_eq!(stuck(&scenario, None), []);
    for given in scenario.credit(worker, 1, 3) {
        scenario.settle(worker, given.token, &NewSettle::Bury(error("no luck")));
    }
    let died = scenario.now.wall_ms;
    assert_eq!(stuck(&scenario, None), [id(1), id(2), id(3)], "job 5 waits for any end");
    scenario.later(1_000);
    assert_eq!(stuck(&scenario, Some(died)), [], "not that long");
    assert_eq!(stuck(&scenario, Some(died + 1)).len(), 3);
    scenario.act_on(Action::Cancel, &[6]);
    scenario.act_on(Action::Drop, &[1]);
    assert_eq!(stuck(&scenario, None), [], "nobody waits for job 3, and job 4 is cancelled");
}

#[test]
fn a_parent_has_a_name_and_an_end_on_the_wire() {
    let job = waiting(1, &[(2, 1)]);
    let keys = job.keys.expect("it has keys");
    assert_eq!(keys.after, [Parent { job: id(2), when: ParentEnd::Death }]);
}
