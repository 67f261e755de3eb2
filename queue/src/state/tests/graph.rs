//! Jobs that wait for the ends of others, against a model that looks at all jobs after each
//! command; and single cases.

use std::collections::{BTreeMap, BTreeSet};

use longshore_protocol::messages::work::{Action, NewSettle, ReplaceOutcome, Selection};
use longshore_protocol::{
    EnqueueOutcome, FrameWriter, JobOptions, JobState, NewJob, OnConflict, Parent, ParentEnd,
    Refusal, Unique,
};
use proptest::prelude::*;

use super::scenario::*;
use crate::Rules;
use crate::command::Command;
use crate::outcome::Reply;
use crate::state::State;

/// What a job of the model is.
#[derive(Clone, Debug)]
struct Job {
    state: JobState,
    /// The conditions that have not been met.
    waits_for: BTreeSet<(u32, u8)>,
}

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    /// A job that waits for some of those before it, picked by the numbers.
    Enqueue(Vec<(u16, u8)>),
    Complete,
    Bury,
    Cancel(u16),
    Drop(u16),
    Revive(u16),
    Restore,
    Later,
}

fn step() -> impl Strategy<Value = Step> {
    let parents = prop::collection::vec((any::<u16>(), 0..3u8), 0..5);
    prop_oneof![
        6 => parents.prop_map(Step::Enqueue),
        3 => Just(Step::Complete),
        2 => Just(Step::Bury),
        1 => any::<u16>().prop_map(Step::Cancel),
        1 => any::<u16>().prop_map(Step::Drop),
        1 => any::<u16>().prop_map(Step::Revive),
        1 => Just(Step::Restore),
        1 => Just(Step::Later),
    ]
}

#[derive(Clone, Debug, Default)]
struct Model {
    jobs: BTreeMap<u32, Job>,
}

/// How the model's job ended, as a parent sees it.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Ended {
    Completed,
    Dead,
    Otherwise,
}

impl Model {
    /// Tells all jobs that wait for it, and those that wait for them.
    fn end(&mut self, number: u32, ended: Ended) {
        let waiting: Vec<u32> = self.jobs.keys().copied().collect();
        for child in waiting {
            let Some(job) = self.jobs.get_mut(&child) else { continue };
            if job.state != JobState::Blocked {
                continue;
            }
            let mut is_lost = false;
            for when in 0..3 {
                if !job.waits_for.contains(&(number, when)) {
                    continue;
                }
                let is_met = match when {
                    0 if ended == Ended::Dead => continue,
                    0 => ended == Ended::Completed,
                    1 => ended == Ended::Dead,
                    _ => true,
                };
                job.waits_for.remove(&(number, when));
                is_lost |= !is_met;
            }
            if is_lost {
                job.state = JobState::Cancelled;
                self.end(child, Ended::Otherwise);
            } else if job.waits_for.is_empty() {
                job.state = JobState::Ready;
            }
        }
    }

    fn set(&mut self, number: u32, state: JobState, ended: Ended) {
        if let Some(job) = self.jobs.get_mut(&number) {
            job.state = state;
            self.end(number, ended);
        }
    }

    fn pick(&self, index: u16, of: impl Fn(JobState) -> bool) -> Option<u32> {
        let all: Vec<u32> =
            self.jobs.iter().filter(|(_, job)| of(job.state)).map(|(&n, _)| n).collect();
        all.get(usize::from(index) % all.len().max(1)).copied()
    }
}

fn end_of(code: u8) -> ParentEnd {
    [ParentEnd::Success, ParentEnd::Death, ParentEnd::Any][usize::from(code)]
}

fn waiting(number: u32, parents: &[(u32, u8)]) -> NewJob {
    parents
        .iter()
        .fold(plain(number), |job, &(parent, when)| job.after_end(id(parent), end_of(when)))
}

fn restored(scenario: &mut StateScenario) {
    let bytes = scenario.state.snapshot_bytes();
    scenario.state = State::restore(&bytes).expect("it was written");
    assert!(scenario.state.snapshot_bytes() == bytes, "restoring changes the bytes");
}

/// Lets the state work off what has ended.
fn settle(scenario: &mut StateScenario) {
    while scenario.state.graph.has_ended() {
        scenario.apply(Command::Tick);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn jobs_wait_for_exactly_their_parents(steps in prop::collection::vec(step(), 1..80)) {
        // Small steps: most ends take several commands.
        let mut scenario =
            StateScenario::with_rules(Rules { step_jobs: 2, ..Rules::STANDARD });
        let (worker, _) = scenario.worker("worker", "/jobs/**", 0);
        let producer = scenario.link("producer");
        let mut model = Model::default();
        for (number, step) in (1u32..).zip(steps) {
            match step {
                Step::Enqueue(parents) => {
                    let parents: Vec<(u32, u8)> = parents
                        .into_iter()
                        .filter_map(|(index, when)| Some((model.pick(index, |_| true)?, when)))
                        .collect();
                    let outcome = scenario.enqueue(producer, &[waiting(number, &parents)]);
                    prop_assert_eq!(outcome, vec![EnqueueOutcome::Created]);
                    let waits_for: BTreeSet<(u32, u8)> = parents.iter().copied().collect();
                    let state =
                        if parents.is_empty() { JobState::Ready } else { JobState::Blocked };
                    model.jobs.insert(number, Job { state, waits_for });
                    for (parent, _) in parents {
                        match model.jobs[&parent].state {
                            JobState::Completed => model.end(parent, Ended::Completed),
                            JobState::Dead => model.end(parent, Ended::Dead),
                            JobState::Cancelled => model.end(parent, Ended::Otherwise),
                            _ => {}
                        }
                    }
                }
                Step::Complete | Step::Bury => {
                    let given = scenario.credit(worker, 1, 1);
                    let Some(given) = given.first() else {
                        prop_assert!(model.pick(0, |state| state == JobState::Ready).is_none());
                        scenario.apply(Command::Recall {
                            link: worker, subscription: 1, count: 1,
                        });
                        continue;
                    };
                    let job = scenario.state.job_of(given.token).expect("it runs");
                    let ran = *model.jobs.keys().find(|&&n| id(n) == job).expect("it is known");
                    prop_assert_eq!(model.jobs[&ran].state, JobState::Ready);
                    if matches!(step, Step::Complete) {
                        scenario.complete(worker, given.token);
                        model.set(ran, JobState::Completed, Ended::Completed);
                    } else {
                        let bury = NewSettle::Bury(error("no luck"));
                        scenario.settle(worker, given.token, &bury);
                        model.set(ran, JobState::Dead, Ended::Dead);
                    }
                }
                Step::Cancel(index) => {
                    let is_open = |state| matches!(state, JobState::Ready | JobState::Blocked);
                    if let Some(job) = model.pick(index, is_open) {
                        scenario.act(Action::Cancel, Selection::Ids(vec![id(job)]));
                        model.set(job, JobState::Cancelled, Ended::Otherwise);
                    }
                }
                Step::Drop(index) => {
                    let is_ended = |state: JobState| state.is_end();
                    if let Some(job) = model.pick(index, is_ended) {
                        settle(&mut scenario);
                        scenario.act(Action::Drop, Selection::Ids(vec![id(job)]));
                        model.end(job, Ended::Otherwise);
                        model.jobs.remove(&job);
                    }
                }
                Step::Revive(index) => {
                    if let Some(job) = model.pick(index, |state| state == JobState::Dead) {
                        settle(&mut scenario);
                        scenario.act(Action::Revive, Selection::Ids(vec![id(job)]));
                        model.jobs.get_mut(&job).expect("it is there").state = JobState::Ready;
                    }
                }
                Step::Restore => restored(&mut scenario),
                Step::Later => drop(scenario.later(1_000).apply(Command::Tick)),
            }
            if number % 3 == 0 {
                restored(&mut scenario);
            }
            settle(&mut scenario);
            for (&number, job) in &model.jobs {
                prop_assert_eq!(scenario.job(number).info.state, job.state, "job {}", number);
            }
        }
        // Once all have ended and are forgotten, nothing is left.
        let ids = model.jobs.keys().map(|&number| id(number)).collect();
        scenario.act(Action::Cancel, Selection::Ids(ids));
        settle(&mut scenario);
        let ids = model.jobs.keys().map(|&number| id(number)).collect();
        scenario.act(Action::Drop, Selection::Ids(ids));
        settle(&mut scenario);
        prop_assert_eq!(scenario.state.graph.bytes(), 0);
    }
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
    let out = scenario.send(producer, atomic(4, &circle));
    let answers: Vec<EnqueueOutcome> = receipts(&out).expect("an answer").iter().collect();
    assert_eq!(answers, [gone, gone]);
    let out = scenario.send(producer, atomic(5, &[plain(1), waiting(2, &[(1, 0)])]));
    let answers: Vec<EnqueueOutcome> = receipts(&out).expect("an answer").iter().collect();
    assert_eq!(answers, [EnqueueOutcome::Created; 2]);
    assert_eq!(scenario.job(2).info.state, JobState::Blocked);
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
    let out = scenario.send(producer, atomic(2, &[waiting(5, &[(1, 0)]), waiting(6, &[(1, 0)])]));
    let answers: Vec<EnqueueOutcome> = receipts(&out).expect("an answer").iter().collect();
    assert_eq!(answers, [EnqueueOutcome::Refused(Refusal::BatchRefused), full]);
}

#[test]
fn whoever_takes_a_parents_place_is_waited_for() {
    let mut scenario = StateScenario::begin();
    let (worker, _) = scenario.worker("worker", "/jobs/**", 0);
    let producer = scenario.link("producer");
    let unique = |number| {
        let unique = Unique { on_conflict: OnConflict::Replace, ..Unique::by_key("k") };
        let mut job = plain(number);
        job.keys_mut().unique = Some(unique);
        job
    };
    scenario.enqueue(producer, &[unique(1), waiting(2, &[(1, 0)])]);
    scenario.enqueue(producer, &[unique(3)]);
    assert_eq!(scenario.job(2).info.state, JobState::Blocked);
    // The replacement dies, and an operator replaces it.
    let token = scenario.credit(worker, 1, 1)[0].token;
    scenario.settle(worker, token, &NewSettle::Bury(error("no luck")));
    let mut entry = FrameWriter::new();
    let job = plain(4);
    job.encode_entry_head(&mut entry);
    entry.put_shared(job.payload.clone());
    let out = scenario.apply(Command::Replace {
        link: worker,
        request: 1,
        id: id(3),
        entry: entry.into_body(),
    });
    let outcome = out.replies.iter().find_map(|(_, reply)| match reply {
        Reply::Replaced { outcome, .. } => Some(*outcome),
        _ => None,
    });
    assert_eq!(outcome, Some(ReplaceOutcome::Replaced));
    restored(&mut scenario);
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
    crate::state::steps::take();
    scenario.complete(worker, token);
    let mut ready = 0;
    while scenario.state.graph.has_ended() {
        assert!(scenario.counts().ready <= ready + 10, "{:?}", scenario.counts());
        ready = scenario.counts().ready;
        assert_eq!(scenario.state.next_timer_ms(scenario.now), Some(scenario.now.mono_ms));
        scenario.apply(Command::Tick);
    }
    assert_eq!(scenario.counts().ready, 100);
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
fn a_parent_has_a_name_and_an_end_on_the_wire() {
    let job = waiting(1, &[(2, 1)]);
    let keys = job.keys.expect("it has keys");
    assert_eq!(keys.after, [Parent { job: id(2), when: ParentEnd::Death }]);
}
