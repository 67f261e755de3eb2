//! Batches and jobs after others, against a model that looks at all jobs after each command.

use std::collections::{BTreeMap, BTreeSet};

use longshore_protocol::limits::BATCH_DEPTH_MAX;
use longshore_protocol::messages::work::{Action, BatchInfo, NewSettle, Selection};
use longshore_protocol::{EnqueueOutcome, JobState, LinkId, NewBatch, ParentEnd, Refusal};
use proptest::prelude::*;

use super::batches::{member, small_steps};
use super::scenario::*;
use crate::Rules;
use crate::command::Command;

/// Ended jobs that the queue keeps.
const KEPT: u64 = 4;

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
    completed: u64,
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
    /// A closed batch with its members, perhaps within another.
    Closed(u8, Option<u16>),
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
        1 => (0..4u8, batch()).prop_map(|(members, batch)| Step::Closed(members, batch)),
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
        } else if state == JobState::Completed
            && let Some(batch) = self.batch_mut(around)
        {
            batch.completed += 1;
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
        if let Some(batch) = self.batch_mut(batch) {
            batch.cancelled += 1;
        }
    }

    fn batch_mut(&mut self, number: Option<u32>) -> Option<&mut Batch> {
        self.jobs.get_mut(&number?)?.batch.as_mut()
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

    /// True of a dead job, and of an open batch within which one has died.
    fn is_revivable(job: &Job) -> bool {
        job.state == JobState::Dead
            || is_open(job.state) && job.batch.is_some_and(|batch| batch.has_died)
    }

    fn revive(&mut self, number: u32) {
        let job = self.jobs.get_mut(&number).expect("it is known");
        job.state = if job.batch.is_some() { JobState::Blocked } else { JobState::Ready };
        if job.batch.is_some() {
            for member in self.members(number, |_| true) {
                if Model::is_revivable(&self.jobs[&member]) {
                    self.revive(member);
                }
            }
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

    /// True of a job around which a batch is open, or may be revived.
    fn is_held(&self, number: u32) -> bool {
        let around = self.around(self.jobs[&number].member_of);
        around.into_iter().any(|batch| self.jobs.get(&batch).is_some_and(|job| !is_over(job.state)))
    }

    /// Forgets the jobs that the state has forgotten: ended ones that no batch holds, so that few
    /// of these are left.
    fn forget(&mut self, scenario: &StateScenario) -> Result<(), TestCaseError> {
        let is_known = |number: u32| scenario.state.job(&id(number), scenario.now).is_some();
        let over = self.jobs.keys().copied().filter(|&job| is_over(self.state(job)));
        let (held, free): (Vec<u32>, Vec<u32>) = over.partition(|&job| self.is_held(job));
        prop_assert!(held.iter().all(|&job| is_known(job)), "one of {:?} is forgotten", held);
        let (mut left, forgotten): (Vec<u32>, Vec<u32>) =
            free.into_iter().partition(|&number| is_known(number));
        forgotten.iter().for_each(|job| drop(self.jobs.remove(job)));
        // Once a batch between them is gone, the outermost one may hold a job or not.
        left.retain(|job| {
            let around = self.around(self.jobs[job].member_of);
            around.iter().all(|batch| self.jobs.contains_key(batch))
        });
        prop_assert!(left.len() as u64 <= KEPT, "{:?} are left", left);
        Ok(())
    }

    fn pick_batch(&self, index: u16) -> Option<u32> {
        self.pick(index, |job| job.batch.is_some())
    }

    fn pick(&self, index: u16, of: impl Fn(&Job) -> bool) -> Option<u32> {
        let all: Vec<u32> = self.jobs.iter().filter(|(_, job)| of(job)).map(|(&n, _)| n).collect();
        all.get(usize::from(index) % all.len().max(1)).copied()
    }
}

/// How long some jobs are kept, instead of what their queue says.
fn keep_of(number: u32) -> Option<u64> {
    [None, None, Some(0), Some(500)][number as usize / 10 % 4]
}

fn job_of(state: JobState, member_of: Option<u32>, closed: Option<bool>) -> Job {
    let batch = closed.map(|closed| Batch { closed, completed: 0, cancelled: 0, has_died: false });
    Job { state, waits_for: BTreeSet::new(), batch, member_of }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn jobs_and_batches_wait_for_exactly_what_they_should(
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let keeps_few = Rules { ended_per_queue: KEPT, keep_ms: 3_000, ..small_steps() };
        let mut scenario = StateScenario::with_rules(keeps_few);
        let (worker, _) = scenario.worker("worker", "/jobs/**", 0);
        let producer = scenario.link("producer");
        let mut model = Model::default();
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
                    let batch = batch.and_then(|index| model.pick_batch(index));
                    let outcome = model.judge(&parents, batch);
                    let mut job = member(after(number, &parents), batch);
                    job.options.keep_ms = keep_of(number);
                    prop_assert_eq!(scenario.enqueue(producer, &[job]), vec![outcome]);
                    if outcome == EnqueueOutcome::Created {
                        let state =
                            if parents.is_empty() { JobState::Ready } else { JobState::Blocked };
                        model.add(number, &parents, job_of(state, batch, None));
                    }
                }
                Step::Open(batch) => {
                    let batch = batch.and_then(|index| model.pick_batch(index));
                    let outcome = model.judge(&[], batch);
                    let mut job = member(plain(number).batch(NewBatch::Open), batch);
                    job.options.keep_ms = keep_of(number);
                    prop_assert_eq!(scenario.enqueue(producer, &[job]), vec![outcome]);
                    if outcome == EnqueueOutcome::Created {
                        model.add(number, &[], job_of(JobState::Blocked, batch, Some(false)));
                    }
                }
                Step::Closed(members, batch) => {
                    let batch = batch.and_then(|index| model.pick_batch(index));
                    let batch = batch.filter(|&batch| {
                        let is_shallow = model.around(Some(batch)).len() + 1 < BATCH_DEPTH_MAX;
                        is_shallow && model.judge(&[], Some(batch)) == EnqueueOutcome::Created
                    });
                    let last = number + u32::from(members);
                    let mut jobs = vec![member(plain(number).batch(NewBatch::Closed), batch)];
                    jobs[0].options.keep_ms = keep_of(number);
                    let members = number + 1..=last;
                    jobs.extend(members.clone().map(|job| member(plain(job), Some(number))));
                    let created = vec![EnqueueOutcome::Created; jobs.len()];
                    prop_assert_eq!(scenario.enqueue_atomic(producer, &jobs), created);
                    model.add(number, &[], job_of(JobState::Blocked, batch, Some(true)));
                    for job in members {
                        model.add(job, &[], job_of(JobState::Ready, Some(number), None));
                    }
                }
                Step::Close(index) => {
                    let fits = |job: &Job| job.batch.is_some() && is_open(job.state);
                    if let Some(number) = model.pick(index, fits) {
                        scenario.act_on(Action::CloseBatch, &[number]);
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
                        scenario.act_on(Action::Cancel, &[job]);
                        model.end(job, JobState::Cancelled);
                    }
                }
                Step::Drop(index) => {
                    if let Some(job) = model.pick(index, |job| job.state.is_end()) {
                        scenario.act_on(Action::Drop, &[job]);
                        model.drop_job(job);
                    }
                }
                Step::Revive(index) => {
                    if let Some(job) = model.pick(index, Model::is_revivable) {
                        scenario.act(Action::Revive, Selection::Ids(vec![id(job)]));
                        scenario.restore();
                        model.revive(job);
                    }
                }
                Step::Restore => scenario.restore(),
                Step::Later => drop(scenario.later(1_000).apply(Command::Tick)),
            }
            if number % 3 == 0 {
                scenario.restore();
            }
            scenario.work_off();
            model.settle();
            check(&scenario, &mut model)?;
        }
        finish(&mut scenario, &mut model, worker)?;
    }
}

fn check(scenario: &StateScenario, model: &mut Model) -> Result<(), TestCaseError> {
    model.forget(scenario)?;
    for (&number, job) in &model.jobs {
        let known = scenario.job(number).info;
        prop_assert_eq!(known.state, job.state, "job {}", number);
        prop_assert_eq!(known.member_of, job.member_of.map(id), "job {}", number);
        let expected = job.batch.map(|batch| BatchInfo {
            closed: batch.closed,
            open: model.members(number, is_open).len() as u64,
            completed: batch.completed,
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
    worker: LinkId,
) -> Result<(), TestCaseError> {
    let batches: Vec<u32> =
        model.jobs.iter().filter(|(_, job)| job.batch.is_some()).map(|(&n, _)| n).collect();
    for number in batches {
        scenario.act_on(Action::CloseBatch, &[number]);
        let job = model.jobs.get_mut(&number).expect("it is known");
        job.batch.as_mut().expect("it is a batch").closed |= is_open(job.state);
    }
    model.settle();
    while let Some(given) = scenario.credit(worker, 1, 1).first() {
        let job = scenario.state.job_of(given.token).expect("it runs");
        let ran = *model.jobs.keys().find(|&&n| id(n) == job).expect("it is known");
        scenario.complete(worker, given.token);
        scenario.work_off();
        model.end(ran, JobState::Completed);
        model.settle();
    }
    check(scenario, model)?;
    prop_assert_eq!(model.stuck(), Vec::<u32>::new());
    // One by one: a job that ends lets others be forgotten.
    for action in [Action::Cancel, Action::Drop] {
        for job in model.jobs.keys() {
            scenario.act_on(action, &[*job]);
        }
    }
    prop_assert_eq!(scenario.state.graph.bytes() + scenario.state.batches.bytes(), 0);
    Ok(())
}
