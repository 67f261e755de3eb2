//! Batches and jobs after others, against a model that looks at all jobs after each command; and
//! single cases of batches.

use std::collections::{BTreeMap, BTreeSet};

use longshore_protocol::limits::BATCH_DEPTH_MAX;
use longshore_protocol::messages::work::{
    Action, BatchInfo, BlockedBy, JobsQuery, NewSettle, ReplaceOutcome, Selection,
};
use longshore_protocol::{
    DeathReason, EnqueueOutcome, FrameWriter, JobOptions, JobState, NewBatch, NewJob, OnConflict,
    ParentEnd, Refusal, Unique,
};
use proptest::prelude::*;

use super::scenario::*;
use crate::Rules;
use crate::command::Command;
use crate::outcome::Reply;
use crate::state::State;
use crate::state::steps;

/// What a job of the model is.
#[derive(Clone, Debug)]
struct Job {
    state: JobState,
    /// The conditions that have not been met.
    waits_for: BTreeSet<(u32, ParentEnd)>,
    batch: Option<Batch>,
    member_of: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Batch {
    closed: bool,
    cancelled: u64,
    has_died: bool,
}

/// What happens next. Numbers pick one of the jobs that fit.
#[derive(Clone, Debug)]
enum Step {
    /// A job that waits for some of those before it, and may be a member of a batch.
    Enqueue(Vec<(u16, u8)>, Option<u16>),
    /// An open batch, perhaps within another.
    Open(Option<u16>),
    /// A closed batch with its members.
    Closed(u8),
    Close(u16),
    Complete,
    Bury,
    Cancel(u16),
    Drop(u16),
    Revive(u16),
    Restore,
    Later,
}

fn step() -> impl Strategy<Value = Step> {
    let parents = prop::collection::vec((any::<u16>(), 0..3u8), 0..4);
    let batch = || prop::option::of(any::<u16>());
    prop_oneof![
        8 => (parents, batch()).prop_map(|(parents, batch)| Step::Enqueue(parents, batch)),
        2 => batch().prop_map(Step::Open),
        1 => (0..4u8).prop_map(Step::Closed),
        2 => any::<u16>().prop_map(Step::Close),
        5 => Just(Step::Complete),
        2 => Just(Step::Bury),
        1 => any::<u16>().prop_map(Step::Cancel),
        1 => any::<u16>().prop_map(Step::Drop),
        2 => any::<u16>().prop_map(Step::Revive),
        1 => Just(Step::Restore),
        1 => Just(Step::Later),
    ]
}

#[derive(Clone, Debug, Default)]
struct Model {
    jobs: BTreeMap<u32, Job>,
}

fn is_open(state: JobState) -> bool {
    !state.is_end()
}

/// It has ended for good.
fn is_over(state: JobState) -> bool {
    state.is_end() && state != JobState::Dead
}

impl Model {
    fn state(&self, number: u32) -> JobState {
        self.jobs[&number].state
    }

    fn members(&self, batch: u32, of: impl Fn(JobState) -> bool) -> Vec<u32> {
        let is_member = |(_, job): &(&u32, &Job)| job.member_of == Some(batch) && of(job.state);
        self.jobs.iter().filter(is_member).map(|(&number, _)| number).collect()
    }

    fn dead_members(&self, batch: u32) -> Vec<u32> {
        self.members(batch, |state| state == JobState::Dead)
    }

    /// The batches around a job, the innermost first.
    fn around(&self, number: Option<u32>) -> Vec<u32> {
        let above = |number: &u32| self.jobs.get(number)?.member_of;
        std::iter::successors(number, above).collect()
    }

    /// What waits for the job learns of its end, or of a death within a batch.
    fn propagate(&mut self, number: u32) {
        let state = self.state(number);
        let has_died = self.jobs[&number].batch.is_some_and(|batch| batch.has_died);
        let waiting: Vec<u32> = self.jobs.keys().copied().collect();
        for child in waiting {
            let job = self.jobs.get_mut(&child).expect("it is listed");
            if job.state != JobState::Blocked || job.batch.is_some() {
                continue;
            }
            let mut is_lost = false;
            for &when in ParentEnd::ALL {
                let is_met = match when {
                    ParentEnd::Success => state == JobState::Completed,
                    ParentEnd::Death => has_died && is_open(state) || state == JobState::Dead,
                    ParentEnd::Any => state.is_end(),
                };
                if (is_met || is_over(state)) && job.waits_for.remove(&(number, when)) {
                    is_lost |= !is_met;
                }
            }
            if is_lost {
                self.end(child, JobState::Cancelled);
            } else if job.waits_for.is_empty() {
                job.state = JobState::Ready;
            }
        }
    }

    fn end(&mut self, number: u32, state: JobState) {
        let job = self.jobs.get_mut(&number).expect("it is known");
        let (around, is_batch) = (job.member_of, job.batch.is_some());
        job.state = state;
        if state == JobState::Dead {
            for batch in self.around(around) {
                let Some(job) = self.jobs.get_mut(&batch).filter(|job| !is_over(job.state)) else {
                    break;
                };
                job.batch.as_mut().expect("it is a batch").has_died = true;
                self.propagate(batch);
            }
        } else if state == JobState::Cancelled {
            self.count_cancelled(around);
        }
        self.propagate(number);
        if is_batch && state == JobState::Cancelled {
            for member in self.members(number, is_open) {
                if is_open(self.state(member)) {
                    self.end(member, JobState::Cancelled);
                }
            }
        }
    }

    fn count_cancelled(&mut self, batch: Option<u32>) {
        if let Some(batch) = batch.and_then(|batch| self.jobs.get_mut(&batch)?.batch.as_mut()) {
            batch.cancelled += 1;
        }
    }

    fn drop_job(&mut self, number: u32) {
        let job = self.jobs[&number].clone();
        if job.state == JobState::Dead {
            self.count_cancelled(job.member_of);
            // To those that wait for its success, it is as if it were cancelled.
            self.jobs.get_mut(&number).expect("it is known").state = JobState::Cancelled;
            self.propagate(number);
        }
        self.jobs.remove(&number);
    }

    fn revive(&mut self, number: u32) {
        let job = self.jobs.get_mut(&number).expect("it is known");
        job.state = if job.batch.is_some() { JobState::Blocked } else { JobState::Ready };
        if job.batch.is_some() {
            self.dead_members(number).into_iter().for_each(|member| self.revive(member));
        }
    }

    /// Ends and reopens batches until nothing changes.
    fn settle(&mut self) {
        let batches: Vec<u32> =
            self.jobs.iter().filter(|(_, job)| job.batch.is_some()).map(|(&n, _)| n).collect();
        let mut next = 0;
        while next < batches.len() {
            let number = batches[next];
            let (open, dead) = (self.members(number, is_open), self.dead_members(number));
            let batch = self.jobs[&number].batch.expect("it is a batch");
            next = 0;
            match self.state(number) {
                JobState::Blocked if batch.closed && open.is_empty() => {
                    let state = match (dead.is_empty(), batch.cancelled) {
                        (false, _) => JobState::Dead,
                        (true, 0) => JobState::Completed,
                        (true, _) => JobState::Cancelled,
                    };
                    self.end(number, state);
                }
                JobState::Dead if !open.is_empty() => {
                    self.jobs.get_mut(&number).expect("it is known").state = JobState::Blocked;
                }
                _ => next = batches.iter().position(|&batch| batch == number).expect("it is") + 1,
            }
        }
    }

    /// The answer to a new member with these parents.
    fn judge(&self, parents: &[(u32, ParentEnd)], batch: Option<u32>) -> EnqueueOutcome {
        let around = self.around(batch);
        if batch.is_some_and(|batch| {
            self.state(batch) != JobState::Blocked || self.jobs[&batch].batch.unwrap().closed
        }) {
            return EnqueueOutcome::Refused(Refusal::BatchClosed);
        }
        for (depth, &batch) in around.iter().enumerate() {
            if depth == BATCH_DEPTH_MAX {
                return EnqueueOutcome::Refused(Refusal::BadOptions);
            }
            let may_precede = |&(parent, _): &(u32, ParentEnd)| {
                let state = self.state(parent);
                is_over(state)
                    || parent < batch
                    || self.around(self.jobs[&parent].member_of).contains(&batch)
            };
            if !parents.iter().all(may_precede) {
                return EnqueueOutcome::Refused(Refusal::Circular);
            }
        }
        EnqueueOutcome::Created
    }

    fn add(&mut self, number: u32, parents: &[(u32, ParentEnd)], job: Job) {
        self.jobs.insert(number, Job { waits_for: parents.iter().copied().collect(), ..job });
        parents.iter().for_each(|&(parent, _)| self.propagate(parent));
    }

    /// Jobs that wait, though nothing that they wait for can be revived or will run.
    fn stuck(&self) -> Vec<u32> {
        let mut live: BTreeSet<u32> = BTreeSet::new();
        let waits = |number: u32, job: &Job| -> Vec<u32> {
            let parents = job.waits_for.iter().map(|&(parent, _)| parent);
            parents.chain(self.members(number, is_open)).collect()
        };
        loop {
            let before = live.len();
            for (&number, job) in &self.jobs {
                let is_live = job.state != JobState::Blocked
                    || waits(number, job).iter().any(|other| live.contains(other));
                if is_live {
                    live.insert(number);
                }
            }
            if live.len() == before {
                return self.jobs.keys().copied().filter(|job| !live.contains(job)).collect();
            }
        }
    }

    fn pick(&self, index: u16, of: impl Fn(&Job) -> bool) -> Option<u32> {
        let all: Vec<u32> = self.jobs.iter().filter(|(_, job)| of(job)).map(|(&n, _)| n).collect();
        all.get(usize::from(index) % all.len().max(1)).copied()
    }
}

fn job_of(state: JobState, member_of: Option<u32>, closed: Option<bool>) -> Job {
    let batch = closed.map(|closed| Batch { closed, cancelled: 0, has_died: false });
    Job { state, waits_for: BTreeSet::new(), batch, member_of }
}

fn after(number: u32, parents: &[(u32, ParentEnd)]) -> NewJob {
    parents.iter().fold(plain(number), |job, &(parent, when)| job.after_end(id(parent), when))
}

fn member(job: NewJob, batch: Option<u32>) -> NewJob {
    batch.map_or(job.clone(), |batch| job.in_batch(id(batch)))
}

fn restored(scenario: &mut StateScenario) {
    let bytes = scenario.state.snapshot_bytes();
    scenario.state = State::restore(&bytes).expect("it was written");
    assert!(scenario.state.snapshot_bytes() == bytes, "restoring changes the bytes");
}

/// Lets the state work off what has ended.
fn settle(scenario: &mut StateScenario) {
    while scenario.state.graph.has_ended() || scenario.state.batches.is_sweeping() {
        scenario.apply(Command::Tick);
    }
}

fn act(scenario: &mut StateScenario, action: Action, jobs: &[u32]) -> u64 {
    let ids = jobs.iter().map(|&number| id(number)).collect();
    let done = scenario.act(action, Selection::Ids(ids)).0.done;
    settle(scenario);
    done
}

fn info(scenario: &StateScenario, number: u32) -> BatchInfo {
    scenario.job(number).info.batch.expect("it is a batch")
}

fn states<const N: usize>(scenario: &StateScenario, jobs: [u32; N]) -> [JobState; N] {
    jobs.map(|number| scenario.job(number).info.state)
}

/// Small steps: most ends take several commands.
fn small_steps() -> StateScenario {
    StateScenario::with_rules(Rules { step_jobs: 2, step_rows: 5, ..Rules::STANDARD })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn jobs_and_batches_wait_for_exactly_what_they_should(
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut scenario = small_steps();
        let (worker, _) = scenario.worker("worker", "/jobs/**", 0);
        let producer = scenario.link("producer");
        let mut model = Model::default();
        let mut sequence = 0;
        for (number, step) in (1u32..).step_by(10).zip(steps) {
            match step {
                Step::Enqueue(parents, batch) => {
                    let parents: Vec<(u32, ParentEnd)> = parents
                        .into_iter()
                        .filter_map(|(index, when)| {
                            let parent = model.pick(index, |_| true)?;
                            Some((parent, ParentEnd::ALL[usize::from(when)]))
                        })
                        .collect();
                    let batch = batch.and_then(|index| model.pick(index, |job| job.batch.is_some()));
                    let outcome = model.judge(&parents, batch);
                    sequence += 1;
                    let job = member(after(number, &parents), batch);
                    let out = scenario.send(producer, super::scenario::batch(sequence, &[job]));
                    prop_assert_eq!(answers(&out), vec![outcome]);
                    if outcome == EnqueueOutcome::Created {
                        let state =
                            if parents.is_empty() { JobState::Ready } else { JobState::Blocked };
                        model.add(number, &parents, job_of(state, batch, None));
                    }
                }
                Step::Open(batch) => {
                    let batch = batch.and_then(|index| model.pick(index, |job| job.batch.is_some()));
                    let outcome = model.judge(&[], batch);
                    sequence += 1;
                    let job = member(plain(number).batch(NewBatch::Open), batch);
                    let out = scenario.send(producer, super::scenario::batch(sequence, &[job]));
                    prop_assert_eq!(answers(&out), vec![outcome]);
                    if outcome == EnqueueOutcome::Created {
                        model.add(number, &[], job_of(JobState::Blocked, batch, Some(false)));
                    }
                }
                Step::Closed(members) => {
                    let last = number + u32::from(members);
                    let mut jobs = vec![plain(number).batch(NewBatch::Closed)];
                    let members = number + 1..=last;
                    jobs.extend(members.clone().map(|job| member(plain(job), Some(number))));
                    sequence += 1;
                    let out = scenario.send(producer, atomic(sequence, &jobs));
                    prop_assert_eq!(answers(&out), vec![EnqueueOutcome::Created; jobs.len()]);
                    model.add(number, &[], job_of(JobState::Blocked, None, Some(true)));
                    for job in members {
                        model.add(job, &[], job_of(JobState::Ready, Some(number), None));
                    }
                }
                Step::Close(index) => {
                    let fits = |job: &Job| job.batch.is_some() && is_open(job.state);
                    if let Some(number) = model.pick(index, fits) {
                        act(&mut scenario, Action::CloseBatch, &[number]);
                        let job = model.jobs.get_mut(&number).expect("it is known");
                        job.batch.as_mut().expect("it is a batch").closed = true;
                    }
                }
                Step::Complete | Step::Bury => {
                    let given = scenario.credit(worker, 1, 1);
                    let Some(given) = given.first() else {
                        prop_assert!(model.pick(0, |job| job.state == JobState::Ready).is_none());
                        scenario.apply(Command::Recall {
                            link: worker, subscription: 1, count: 1,
                        });
                        continue;
                    };
                    let job = scenario.state.job_of(given.token).expect("it runs");
                    let ran = *model.jobs.keys().find(|&&n| id(n) == job).expect("it is known");
                    prop_assert_eq!(model.state(ran), JobState::Ready);
                    if matches!(step, Step::Complete) {
                        scenario.complete(worker, given.token);
                        model.end(ran, JobState::Completed);
                    } else {
                        let bury = NewSettle::Bury(error("no luck"));
                        scenario.settle(worker, given.token, &bury);
                        model.end(ran, JobState::Dead);
                    }
                }
                Step::Cancel(index) => {
                    if let Some(job) = model.pick(index, |job| is_open(job.state)) {
                        act(&mut scenario, Action::Cancel, &[job]);
                        model.end(job, JobState::Cancelled);
                    }
                }
                Step::Drop(index) => {
                    if let Some(job) = model.pick(index, |job| job.state.is_end()) {
                        act(&mut scenario, Action::Drop, &[job]);
                        model.drop_job(job);
                    }
                }
                Step::Revive(index) => {
                    if let Some(job) = model.pick(index, |job| job.state == JobState::Dead) {
                        scenario.act(Action::Revive, Selection::Ids(vec![id(job)]));
                        restored(&mut scenario);
                        model.revive(job);
                    }
                }
                Step::Restore => restored(&mut scenario),
                Step::Later => drop(scenario.later(1_000).apply(Command::Tick)),
            }
            if number % 3 == 0 {
                restored(&mut scenario);
            }
            settle(&mut scenario);
            model.settle();
            check(&scenario, &model)?;
        }
        finish(&mut scenario, &mut model, worker)?;
    }
}

fn answers(out: &crate::outcome::Outcomes) -> Vec<EnqueueOutcome> {
    receipts(out).expect("an answer").iter().collect()
}

fn check(scenario: &StateScenario, model: &Model) -> Result<(), TestCaseError> {
    for (&number, job) in &model.jobs {
        let known = scenario.job(number).info;
        prop_assert_eq!(known.state, job.state, "job {}", number);
        prop_assert_eq!(known.member_of, job.member_of.map(id), "job {}", number);
        let expected = job.batch.map(|batch| BatchInfo {
            closed: batch.closed,
            open: model.members(number, is_open).len() as u64,
            completed: known.batch.expect("it is a batch").completed,
            dead: model.dead_members(number).len() as u64,
            cancelled: batch.cancelled,
        });
        prop_assert_eq!(known.batch, expected, "batch {}", number);
    }
    Ok(())
}

/// Closes all batches and runs all jobs: nothing waits in a circle. Then all is cancelled and
/// forgotten, and nothing is left.
fn finish(
    scenario: &mut StateScenario,
    model: &mut Model,
    worker: longshore_protocol::LinkId,
) -> Result<(), TestCaseError> {
    let batches: Vec<u32> =
        model.jobs.iter().filter(|(_, job)| job.batch.is_some()).map(|(&n, _)| n).collect();
    for number in batches {
        act(scenario, Action::CloseBatch, &[number]);
        let job = model.jobs.get_mut(&number).expect("it is known");
        job.batch.as_mut().expect("it is a batch").closed |= is_open(job.state);
    }
    model.settle();
    while let Some(given) = scenario.credit(worker, 1, 1).first() {
        let job = scenario.state.job_of(given.token).expect("it runs");
        let ran = *model.jobs.keys().find(|&&n| id(n) == job).expect("it is known");
        scenario.complete(worker, given.token);
        settle(scenario);
        model.end(ran, JobState::Completed);
        model.settle();
    }
    check(scenario, model)?;
    prop_assert_eq!(model.stuck(), Vec::<u32>::new());
    let all: Vec<u32> = model.jobs.keys().copied().collect();
    act(scenario, Action::Cancel, &all);
    act(scenario, Action::Drop, &all);
    prop_assert_eq!(scenario.state.graph.bytes() + scenario.state.batches.bytes(), 0);
    Ok(())
}

#[test]
fn the_callbacks_of_a_batch_run_once_each() {
    let mut scenario = small_steps();
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
    act(&mut scenario, Action::CloseBatch, &[1, 2]);
    let next = |scenario: &mut StateScenario, is_ok: bool| {
        let token = scenario.credit(worker, 1, 1)[0].token;
        if is_ok {
            scenario.complete(worker, token);
        } else {
            scenario.settle(worker, token, &NewSettle::Bury(error("no luck")));
        }
        settle(scenario);
    };
    use JobState::{Blocked, Completed, Dead, Ready};
    // The first death within is told at once, by the batch around as well.
    next(&mut scenario, false);
    assert_eq!(states(&scenario, [1, 2, 3, 4, 5]), [Blocked, Blocked, Blocked, Ready, Blocked]);
    next(&mut scenario, true);
    assert_eq!(states(&scenario, [1, 2, 3, 4, 5]), [Dead, Dead, Blocked, Ready, Ready]);
    let death = scenario.job(1).info.death;
    assert_eq!(death, Some(DeathReason::MemberDead));
    // All is revived with the outermost batch; its success may still come.
    assert_eq!(act(&mut scenario, Action::Revive, &[1]), 1);
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
    scenario.send(producer, atomic(2, &batches));
    assert_eq!(states(&scenario, [1, 2]), [JobState::Blocked, JobState::Completed]);
    let open = BlockedBy::Members(BatchInfo::default());
    assert_eq!(scenario.job(1).info.blocked, Some(open));
    assert_eq!(act(&mut scenario, Action::CloseBatch, &[1]), 1);
    assert_eq!(act(&mut scenario, Action::CloseBatch, &[1]), 1, "its answer was lost");
    assert_eq!(states(&scenario, [1]), [JobState::Completed]);
    let closed = EnqueueOutcome::Refused(Refusal::BatchClosed);
    assert_eq!(scenario.enqueue(producer, &[plain(3).in_batch(id(2))]), [closed]);
    let batch = [plain(4).batch(NewBatch::Closed), plain(5).in_batch(id(4))];
    assert_eq!(answers(&scenario.send(producer, atomic(4, &batch))), [EnqueueOutcome::Created; 2]);
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
        let batch = scenario.state.applied();
        let out = scenario.send(producer, atomic(batch, alone));
        if let Ok(answers) = receipts(&out) {
            assert_eq!(answers.iter().next(), Some(outcome), "{job:?}");
        }
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
    let delayed = JobOptions { due: longshore_protocol::Due::After(5), ..JobOptions::default() };
    refused(NewJob { options: delayed, ..batch() }, Refusal::BadOptions);
    let mut replaces = plain(2).after(id(1));
    let unique = Unique { on_conflict: OnConflict::Replace, ..Unique::by_key("k") };
    replaces.keys_mut().unique = Some(unique);
    refused(replaces, Refusal::BadOptions);
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
    let unique = |number| {
        let mut job = plain(number).in_batch(id(1));
        let unique = Unique { on_conflict: OnConflict::Replace, ..Unique::by_key("k") };
        job.keys_mut().unique = Some(unique);
        job
    };
    scenario.enqueue(producer, &[plain(1).batch(NewBatch::Open), unique(2)]);
    scenario.enqueue(producer, &[unique(3)]);
    act(&mut scenario, Action::CloseBatch, &[1]);
    assert_eq!(info(&scenario, 1), BatchInfo { closed: true, open: 1, ..BatchInfo::default() });
    let token = scenario.credit(worker, 1, 1)[0].token;
    scenario.settle(worker, token, &NewSettle::Bury(error("no luck")));
    assert_eq!(states(&scenario, [1]), [JobState::Dead]);
    let replace = |scenario: &mut StateScenario, dead: u32, job: &NewJob| {
        let mut entry = FrameWriter::new();
        job.encode_entry_head(&mut entry);
        entry.put_shared(job.payload.clone());
        let (id, entry) = (id(dead), entry.into_body());
        let out = scenario.apply(Command::Replace { link: worker, request: 1, id, entry });
        out.replies.iter().find_map(|(_, reply)| match reply {
            Reply::Replaced { outcome, .. } => Some(*outcome),
            _ => None,
        })
    };
    let refused = replace(&mut scenario, 1, &plain(4));
    assert_eq!(refused, Some(ReplaceOutcome::BadOptions), "a batch is no job to replace");
    assert_eq!(replace(&mut scenario, 3, &plain(4)), Some(ReplaceOutcome::Replaced));
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
    while scenario.state.batches.is_sweeping() {
        let before = scenario.counts().cancelled;
        assert_eq!(scenario.state.next_timer_ms(scenario.now), Some(scenario.now.mono_ms));
        steps::take();
        scenario.apply(Command::Tick);
        assert!(steps::take() <= 100 && scenario.counts().cancelled <= before + 10);
        restored(&mut scenario);
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
        let filter = longshore_protocol::messages::work::Filter::of(glob("/**"));
        let member_of = Some(id(of));
        let query = JobsQuery { member_of, ..JobsQuery::of(filter) };
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
    scenario.send(producer, atomic(1, &[plain(1).batch(NewBatch::Closed), expiring]));
    scenario.later(2_000);
    assert!(scenario.credit(worker, 1, 1).is_empty());
    assert_eq!(states(&scenario, [1, 2]), [JobState::Cancelled, JobState::Expired]);
    restored(&mut scenario);
}

/// Another batch may have the id of one that was dropped, and whose members are left.
#[test]
fn a_batch_with_the_id_of_a_dropped_one_is_another() {
    let mut scenario = StateScenario::begin();
    let (worker, _) = scenario.worker("worker", "/jobs/**", 0);
    let producer = scenario.link("producer");
    let unique = |number| {
        let mut job = plain(number).in_batch(id(1));
        let unique = Unique { on_conflict: OnConflict::Replace, ..Unique::by_key("k") };
        job.keys_mut().unique = Some(unique);
        job
    };
    scenario.enqueue(producer, &[plain(1).batch(NewBatch::Open), unique(2)]);
    act(&mut scenario, Action::CloseBatch, &[1]);
    let token = scenario.credit(worker, 1, 1)[0].token;
    scenario.settle(worker, token, &NewSettle::Bury(error("no luck")));
    act(&mut scenario, Action::Drop, &[1]);
    act(&mut scenario, Action::Revive, &[2]);
    scenario.enqueue(producer, &[plain(1).batch(NewBatch::Open), unique(3)]);
    assert_eq!(info(&scenario, 1), BatchInfo { open: 1, ..BatchInfo::default() });
}

/// Who replaces a dead member may have expired already, and be kept for no time.
#[test]
fn a_member_is_replaced_by_one_that_is_gone_at_once() {
    let mut scenario = StateScenario::begin();
    let (worker, _) = scenario.worker("worker", "/jobs/**", 0);
    let producer = scenario.link("producer");
    let batch = [plain(1).batch(NewBatch::Closed), plain(2).in_batch(id(1))];
    scenario.send(producer, atomic(1, &batch));
    let token = scenario.credit(worker, 1, 1)[0].token;
    scenario.settle(worker, token, &NewSettle::Bury(error("no luck")));
    act(&mut scenario, Action::Drop, &[1]);
    let options = JobOptions { expires_at: Some(1), keep_ms: Some(0), ..JobOptions::default() };
    let mut entry = FrameWriter::new();
    let job = with(3, options);
    job.encode_entry_head(&mut entry);
    entry.put_shared(job.payload.clone());
    let (id, entry) = (id(2), entry.into_body());
    scenario.apply(Command::Replace { link: worker, request: 1, id, entry });
    assert_eq!(scenario.state.batches.bytes(), 0);
}

/// Whoever cancels a batch after reviving it wants its members cancelled.
#[test]
fn a_cancelled_batch_revives_no_members() {
    let mut scenario = small_steps();
    let (worker, _) = scenario.worker("worker", "/jobs/**", 0);
    let producer = scenario.link("producer");
    let mut batch = vec![plain(1).batch(NewBatch::Closed)];
    batch.extend((2..=20).map(|number| plain(number).in_batch(id(1))));
    scenario.send(producer, atomic(1, &batch));
    for _ in 2..=20 {
        let token = scenario.credit(worker, 1, 1)[0].token;
        scenario.settle(worker, token, &NewSettle::Bury(error("no luck")));
    }
    scenario.act(Action::Revive, Selection::Ids(vec![id(1)]));
    scenario.apply(Command::Tick);
    act(&mut scenario, Action::Cancel, &[1]);
    assert_eq!(scenario.counts().ready, 0);
    assert_eq!(scenario.counts().blocked, 0);
}

/// A sweep reaches all rows, though there are more meanwhile.
#[test]
fn a_sweep_reaches_every_member_of_a_table_that_grows() {
    let mut scenario = small_steps();
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
    settle(&mut scenario);
    assert_eq!(scenario.counts().ready, 21, "only those that are no members");
}

/// An atomic batch is not applied in part when its batch has expired on the way.
#[test]
fn a_closed_batch_that_has_expired_is_refused_with_its_members() {
    let mut scenario = StateScenario::begin();
    let producer = scenario.link("producer");
    let options = JobOptions { expires_at: Some(1), ..JobOptions::default() };
    let batch = NewJob { options, ..plain(1).batch(NewBatch::Closed) };
    let out = scenario.send(producer, atomic(1, &[batch, plain(2).in_batch(id(1))]));
    let refused = [Refusal::BatchRefused, Refusal::BatchClosed].map(EnqueueOutcome::Refused);
    assert_eq!(answers(&out), refused);
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
    settle(&mut scenario);
    assert_eq!(states(&scenario, [1, 4]), [JobState::Blocked, JobState::Ready]);
}

/// A job that an atomic batch replaces is no parent of a later one.
#[test]
fn the_replaced_job_of_an_atomic_batch_is_no_parent() {
    let mut scenario = StateScenario::begin();
    let producer = scenario.link("producer");
    let unique = |number| {
        let mut job = plain(number);
        let unique = Unique { on_conflict: OnConflict::Replace, ..Unique::by_key("k") };
        job.keys_mut().unique = Some(unique);
        job
    };
    scenario.enqueue(producer, &[unique(1)]);
    let batch = [unique(2), after(3, &[(1, ParentEnd::Success)])];
    let out = scenario.send(producer, atomic(2, &batch));
    let refused = [Refusal::BatchRefused, Refusal::ParentGone].map(EnqueueOutcome::Refused);
    assert_eq!(answers(&out), refused);
}
