//! Workflows: jobs that follow each other, enqueued together.
//!
//! A workflow is a closed batch with all of its jobs as members. A step is a job after those that
//! it follows, and a fan-out a batch within. There is no engine beside that: the publisher holds
//! the jobs, and runs none before what it waits for has ended.

use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use longshore_kinds::{After, IntoJob, JobKind};
use longshore_protocol::{JobId, NewBatch, NewJob, OnConflict, ParentEnd, Path};
use parking_lot::Mutex;

use crate::outcome::{EnqueueError, Receipt};
use crate::{Producer, new_id};

/// A workflow under construction: its jobs are enqueued by [`Workflow::enqueue`], all or none.
///
/// It is a batch: [`JobKind`] steps are its members, so that `longshore batch show`, `cancel` and
/// `retry` apply to all of them, and it ends once they have. At most 10,000 jobs, 16 MiB of
/// payload. All queues have one home.
///
/// The page of the crate `longshore` on workflows has a whole example:
///
/// ```text
/// let flow = Workflow::new("/movies".parse()?, "movie 7");
/// flow.step(Probe(7)).fan_out(0..12, Encode).join(Concat(7)).then(Publish(7));
/// flow.enqueue(&producer).await?;
/// ```
#[derive(Debug)]
#[must_use = "a workflow runs once it is enqueued"]
pub struct Workflow {
    parts: Mutex<Parts>,
}

#[derive(Debug)]
struct Parts {
    /// The batch, then the other jobs, each after those that it waits for.
    jobs: Vec<NewJob>,
    /// The jobs that wait for the whole workflow.
    callbacks: Vec<NewJob>,
    /// The first mistake.
    bad: Option<String>,
    first_id: JobId,
}

/// A job of a workflow. Copies follow it as it does: one step may have several that follow.
pub struct Step<'w, K> {
    at: Place<'w>,
    kind: PhantomData<fn() -> K>,
}

/// Two steps, both of which the next one follows.
pub struct Both<'w, K, L> {
    first: Place<'w>,
    second: Place<'w>,
    kinds: PhantomData<fn() -> (K, L)>,
}

/// Jobs of one kind that run beside each other.
pub struct FanOut<'w, K> {
    batch: Place<'w>,
    /// The step that they follow.
    from: usize,
    kind: PhantomData<fn() -> K>,
}

/// A job, by its place in the list.
#[derive(Clone, Copy)]
struct Place<'w> {
    workflow: &'w Workflow,
    index: usize,
}

impl Workflow {
    /// A workflow without jobs: a batch in that queue, with a name for readers.
    pub fn new(path: Path, name: impl Into<String>) -> Workflow {
        let first_id = new_id();
        let batch = NewJob::new(path, numbered(first_id, 0), name.into());
        let jobs = vec![batch.batch(NewBatch::Closed)];
        Workflow { parts: Mutex::new(Parts { jobs, callbacks: Vec::new(), bad: None, first_id }) }
    }

    /// The id of the workflow: that of its batch. It is known before it is enqueued.
    pub fn id(&self) -> JobId {
        numbered(self.parts.lock().first_id, 0)
    }

    /// Cancels what has not ended by then.
    pub fn deadline(self, within: Duration) -> Workflow {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at = u64::try_from(now.saturating_add(within).as_millis()).unwrap_or(u64::MAX);
        self.parts.lock().jobs[0].options.expires_at = Some(at);
        self
    }

    /// A first step: it waits for nothing.
    pub fn step<K: JobKind>(&self, job: K) -> Step<'_, K> {
        Step { at: self.add(job, &[], 0), kind: PhantomData }
    }

    /// Runs a job once all jobs of the workflow have completed. It may read their outputs.
    pub fn on_success(&self, job: impl IntoJob) -> &Workflow {
        self.call_back(job, ParentEnd::Success)
    }

    /// Runs a job at the first death of a job of the workflow.
    pub fn on_first_death(&self, job: impl IntoJob) -> &Workflow {
        self.call_back(job, ParentEnd::Death)
    }

    /// Runs a job once all jobs of the workflow have ended, in whatever way. A death ends nothing
    /// while other steps wait for its success: see [`Workflow::on_first_death`], and
    /// [`Workflow::deadline`].
    pub fn on_end(&self, job: impl IntoJob) -> &Workflow {
        self.call_back(job, ParentEnd::Any)
    }

    /// Enqueues all jobs, or none. Returns the receipt of the workflow's batch. Waits and cancel
    /// safety are those of [`Producer::enqueue_atomic`]; enqueueing the same value again is
    /// harmless, as long as its publisher knows its jobs. Another value is another workflow.
    pub async fn enqueue(&self, producer: &Producer) -> Result<Receipt, EnqueueError> {
        let jobs = {
            let parts = self.parts.lock();
            if let Some(bad) = &parts.bad {
                return Err(EnqueueError::BadPayload(bad.as_str().into()));
            }
            let mut jobs: Vec<NewJob> = parts.jobs.clone();
            jobs.extend(parts.callbacks.iter().cloned());
            jobs
        };
        let receipts = producer.enqueue_atomic(jobs).await?;
        Ok(receipts.into_iter().next().expect("a workflow has its batch, so there is a receipt"))
    }

    /// Adds a member of the batch at `batch`, after the jobs at `after`, whose results it may read.
    fn add(&self, job: impl IntoJob, after: &[usize], batch: usize) -> Place<'_> {
        let mut parts = self.parts.lock();
        let index = parts.jobs.len();
        let id = numbered(parts.first_id, index);
        let mut job = job.into_job(|| id).unwrap_or_else(|bad| {
            parts.note(bad.to_string());
            NewJob::new(parts.jobs[0].path.clone(), id, "")
        });
        // That of a batch within, which another thread may have read, too.
        job.id = id;
        parts.check(&job);
        job.options.keep_result = true;
        for &parent in after {
            job = job.after(parts.jobs[parent].id);
        }
        let job = job.in_batch(parts.jobs[batch].id);
        parts.jobs.push(job);
        Place { workflow: self, index }
    }

    fn call_back(&self, job: impl IntoJob, when: ParentEnd) -> &Workflow {
        let batch = self.id();
        let mut parts = self.parts.lock();
        parts.call_back(job, batch, when);
        self
    }
}

impl<'w, K: JobKind> Step<'w, K> {
    /// The job's id. It is known before the workflow is enqueued.
    pub fn id(&self) -> JobId {
        self.at.workflow.parts.lock().jobs[self.at.index].id
    }

    /// A job that runs once this one has completed, and may read its output.
    pub fn then<N: After<K>>(self, job: N) -> Step<'w, N> {
        let Place { workflow, index } = self.at;
        Step { at: workflow.add(job, &[index], 0), kind: PhantomData }
    }

    /// A job that runs if this one has died; otherwise it is cancelled, and does not count as a
    /// member of the workflow.
    pub fn on_death(self, job: impl IntoJob) -> Step<'w, K> {
        let id = self.id();
        let mut parts = self.at.workflow.parts.lock();
        parts.call_back(job, id, ParentEnd::Death);
        drop(parts);
        self
    }

    /// A job for each item. They run beside each other once this one has completed, and may read
    /// its output.
    pub fn fan_out<I: IntoIterator, N: After<K>>(
        self,
        items: I,
        mut job: impl FnMut(I::Item) -> N,
    ) -> FanOut<'w, N> {
        let Place { workflow, index } = self.at;
        let batch = workflow.parts.lock().nested_batch();
        let batch = workflow.add(batch, &[], 0);
        for item in items {
            workflow.add(job(item), &[index], batch.index);
        }
        FanOut { batch, from: index, kind: PhantomData }
    }

    /// This step and another one of the same workflow, for one that follows both.
    pub fn and<L: JobKind>(self, other: Step<'w, L>) -> Both<'w, K, L> {
        if !std::ptr::eq(self.at.workflow, other.at.workflow) {
            let mistake = "steps of two workflows are followed by one".to_owned();
            self.at.workflow.parts.lock().note(mistake);
        }
        Both { first: self.at, second: other.at, kinds: PhantomData }
    }
}

impl<'w, K: JobKind, L: JobKind> Both<'w, K, L> {
    /// A job that runs once both have completed, and may read their outputs.
    pub fn then<N: After<K> + After<L>>(self, job: N) -> Step<'w, N> {
        let Both { first, second, .. } = self;
        // The second one may be of another workflow, which is a mistake.
        let is_one = std::ptr::eq(first.workflow, second.workflow);
        let after = [first.index, if is_one { second.index } else { first.index }];
        Step { at: first.workflow.add(job, &after, 0), kind: PhantomData }
    }
}

impl<'w, K: JobKind> FanOut<'w, K> {
    /// A job that runs once all of them have completed, and may read their outputs, in the order
    /// of the items.
    pub fn join<N: After<K>>(self, job: N) -> Step<'w, N> {
        let Place { workflow, index } = self.batch;
        let has_members = {
            let parts = workflow.parts.lock();
            let batch = parts.jobs[index].id;
            let batch_of = |job: &NewJob| job.keys.as_ref()?.member_of;
            parts.jobs.iter().any(|job| batch_of(job) == Some(batch))
        };
        // Without items, the batch ends at once: the join still follows what is before it.
        let after = if has_members { &[index][..] } else { &[self.from, index] };
        Step { at: workflow.add(job, after, 0), kind: PhantomData }
    }
}

impl Parts {
    fn note(&mut self, mistake: String) {
        self.bad.get_or_insert(mistake);
    }

    /// Another job must not be taken for one of the workflow: it would never run.
    fn check(&mut self, job: &NewJob) {
        if let Some(keys) = &job.keys
            && (keys.idempotency.is_some()
                || keys.unique.as_ref().is_some_and(|key| key.on_conflict != OnConflict::Refuse))
        {
            let path = &job.path;
            self.note(format!(
                "a job of {path} has an idempotency key, or a unique key without \
                 on_conflict = \"refuse\": another job might take its place in the workflow"
            ));
        }
    }

    /// Adds a job that runs after that one, and is no member of the workflow.
    fn call_back(&mut self, job: impl IntoJob, after: JobId, when: ParentEnd) {
        match job.into_job(new_id) {
            Ok(job) => {
                self.check(&job);
                self.callbacks.push(job.after_end(after, when));
            }
            Err(bad) => self.note(bad.to_string()),
        }
    }

    /// A batch in the workflow's queue, as its next job.
    fn nested_batch(&self) -> NewJob {
        let id = numbered(self.first_id, self.jobs.len());
        NewJob::new(self.jobs[0].path.clone(), id, "").batch(NewBatch::Closed)
    }
}

/// The id of a workflow's nth job: ids rise in the order of the jobs, so that whoever reads the
/// outputs of a fan-out has them in the order of its items.
fn numbered(JobId(mut first): JobId, nth: usize) -> JobId {
    // The last 32 of 74 random bits.
    first[12..].copy_from_slice(&(nth as u32).to_be_bytes());
    JobId(first)
}

impl<K> Clone for Step<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Step<'_, K> {}

impl fmt::Debug for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.workflow.parts.lock().jobs[self.index].id.fmt(f)
    }
}

impl<K> fmt::Debug for Step<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Step").field(&self.at).finish()
    }
}

impl<K, L> fmt::Debug for Both<'_, K, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Both").field(&self.first).field(&self.second).finish()
    }
}

impl<K> fmt::Debug for FanOut<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FanOut").field(&self.batch).finish()
    }
}
