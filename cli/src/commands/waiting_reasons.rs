//! Why a job, or the ready jobs of a queue, wait: each reason that the answers of their publisher
//! tell, with its remedy.

use std::convert::Infallible;
use std::time::Duration;

use longshore::protocol::limits::PAGE_JOBS_MAX;
use longshore::protocol::messages::work::{
    BlockedBy, Filter, JobInfo, JobsQuery, PublisherStatus, Room,
};
use longshore::{Due, FoundJob, Glob, JobLocator, JobState, QueueStat, Queues};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::Context;
use super::job_view::{shown_blocked, shown_limit};
use super::workers::{self, WorkerList};
use crate::output::{counted, jobs, shell_word};
use crate::time::{show_duration, show_timestamp};

/// A command that waits this long for its commit, in milliseconds, indicates a failing disk.
pub(super) const COMMIT_SLOW_MS: u64 = 5_000;
/// The longest time to find the reasons.
const READ_MAX: Duration = Duration::from_secs(5);
/// Most pages of ready jobs that are read to count those before a job.
const AHEAD_PAGES_MAX: usize = 3;
/// When a command that waits for a job first reports why the job waits, and how often it looks for
/// other reasons.
const REPORT_AFTER: Duration = Duration::from_secs(1);
const REPORT_INTERVAL: Duration = Duration::from_secs(3);

/// The kind of a reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    NotConfirmed,
    NotDue,
    Retry,
    Order,
    Limit,
    DeadOrder,
    Parent,
    DeadParent,
    Members,
    BatchOpen,
    ClockHeld,
    Paused,
    NoWorker,
    WorkersQuiet,
    WorkersBusy,
    DiskFull,
    DiskSlow,
    JobsBefore,
    Unknown,
}

impl Cause {
    /// Its keyword in JSON.
    fn word(self) -> &'static str {
        match self {
            Cause::NotConfirmed => "not_confirmed",
            Cause::NotDue => "not_due",
            Cause::Retry => "retry",
            Cause::Order => "order",
            Cause::Limit => "limit",
            Cause::DeadOrder => "dead_order",
            Cause::Parent => "parent",
            Cause::DeadParent => "dead_parent",
            Cause::Members => "members",
            Cause::BatchOpen => "batch_open",
            Cause::ClockHeld => "clock_held",
            Cause::Paused => "paused",
            Cause::NoWorker => "no_worker",
            Cause::WorkersQuiet => "workers_quiet",
            Cause::WorkersBusy => "workers_busy",
            Cause::DiskFull => "disk_full",
            Cause::DiskSlow => "disk_slow",
            Cause::JobsBefore => "jobs_before",
            Cause::Unknown => "unknown",
        }
    }

    /// True if jobs wait until somebody acts: more than a backlog.
    pub(super) fn needs_action(self) -> bool {
        !matches!(
            self,
            Cause::NotDue
                | Cause::Retry
                | Cause::Order
                | Cause::Members
                | Cause::Limit
                | Cause::WorkersBusy
                | Cause::JobsBefore
                | Cause::Unknown
        )
    }
}

/// Why jobs wait.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Reason {
    pub(super) cause: Cause,
    message: String,
    remedy: Option<String>,
}

impl Reason {
    fn new(cause: Cause, message: impl Into<String>) -> Reason {
        Reason { cause, message: message.into(), remedy: None }
    }

    fn with_remedy(self, remedy: impl Into<String>) -> Reason {
        Reason { remedy: Some(remedy.into()), ..self }
    }

    /// As JSON.
    pub(super) fn json(&self) -> Value {
        let mut value = json!({ "reason": self.cause.word(), "message": self.message });
        if let Some(remedy) = &self.remedy {
            value["remedy"] = remedy.as_str().into();
        }
        value
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.remedy {
            Some(remedy) => write!(f, "{}: {remedy}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// Why the ready jobs of a queue wait at a publisher.
pub(super) fn of_queue(
    queue: &QueueStat,
    publisher: Option<&PublisherStatus>,
    workers: &WorkerList,
) -> Vec<Reason> {
    let mut reasons = Vec::new();
    for pattern in &queue.paused_by {
        let reason = Reason::new(Cause::Paused, format!("the queue is paused by '{pattern}'"));
        reasons.push(reason.with_remedy(format!("longshore resume {}", word(pattern))));
    }
    if let Some(by) = &queue.limited_by {
        reasons.push(Reason::new(Cause::Limit, shown_limit(by, None)));
    }
    if queue.subscriptions == 0 {
        let reason = Reason::new(Cause::NoWorker, "no worker takes from the queue");
        let path = shell_word(queue.path.as_str());
        reasons.push(reason.with_remedy(format!("longshore work {path} -- COMMAND")));
    } else if queue.credits == 0 && workers.are_all_quiet(&queue.path) {
        let message = "every worker that takes from the queue is quiet";
        let reason = Reason::new(Cause::WorkersQuiet, message);
        reasons.push(reason.with_remedy("longshore workers resume --all"));
    } else if queue.credits == 0 {
        let running = jobs(queue.counts.running);
        let verb = if queue.counts.running == 1 { "runs" } else { "run" };
        let message =
            format!("no worker that takes from the queue is free ({running} of it {verb})");
        let path = shell_word(queue.path.as_str());
        let remedy = format!("start more, or raise --concurrency; longshore workers ls {path}");
        reasons.push(Reason::new(Cause::WorkersBusy, message).with_remedy(remedy));
    }
    let Some(publisher) = publisher else { return reasons };
    if publisher.room == Room::NoDeliveries {
        let message = "its publisher's disk is almost full, and nothing is delivered";
        let reason = Reason::new(Cause::DiskFull, message);
        reasons.push(reason.with_remedy("free some of the disk, and it resumes by itself"));
    }
    if publisher.oldest_uncommitted_ms >= COMMIT_SLOW_MS {
        let waited = show_duration(Duration::from_millis(publisher.oldest_uncommitted_ms));
        let message = format!("its publisher has waited {waited} for its disk");
        reasons.push(Reason::new(Cause::DiskSlow, message).with_remedy("check the disk"));
    }
    reasons
}

fn word(pattern: &Glob) -> String {
    shell_word(pattern.as_str()).into_owned()
}

/// Why a job that is neither ready nor running waits, apart from its queue.
fn of_state(job: &JobInfo, name: &str, clock_held: bool) -> Vec<Reason> {
    let due = job.due_at.map(show_timestamp).unwrap_or_default();
    match job.state {
        JobState::Prepared => {
            let reason = Reason::new(Cause::NotConfirmed, "it is prepared, and not confirmed");
            vec![reason.with_remedy(format!("longshore confirm {name}"))]
        }
        JobState::Blocked => {
            let blocked = job.blocked.iter().map(|by| match by {
                BlockedBy::Order { job, state: JobState::Dead, .. } => {
                    let reason = Reason::new(Cause::DeadOrder, shown_blocked(by));
                    reason.with_remedy(format!("longshore dead revive {job}"))
                }
                BlockedBy::Parent { job, state: JobState::Dead } => {
                    let reason = Reason::new(Cause::DeadParent, shown_blocked(by));
                    reason.with_remedy(format!("longshore dead revive {job}"))
                }
                BlockedBy::Members(members) if members.closed => {
                    let reason = Reason::new(Cause::Members, shown_blocked(by));
                    match members.dead {
                        0 => reason,
                        _ => reason.with_remedy(format!("longshore batch retry {name}")),
                    }
                }
                BlockedBy::Members(_) => {
                    let reason = Reason::new(Cause::BatchOpen, shown_blocked(by));
                    reason.with_remedy(format!("longshore batch close {name}"))
                }
                BlockedBy::Parent { .. } => Reason::new(Cause::Parent, shown_blocked(by)),
                BlockedBy::Order { .. } => Reason::new(Cause::Order, shown_blocked(by)),
                BlockedBy::Limit { .. } | BlockedBy::Throttled { .. } => {
                    Reason::new(Cause::Limit, shown_blocked(by))
                }
            });
            blocked.collect()
        }
        JobState::Scheduled if job.retrying => {
            let (attempt, most) = (job.attempt, job.max_attempts);
            let message = format!("attempt {attempt} of {most} failed; the next is due {due}");
            vec![Reason::new(Cause::Retry, message)]
        }
        JobState::Scheduled => {
            let mut reasons = vec![Reason::new(Cause::NotDue, format!("it is due {due}"))];
            let asked = job.options.as_ref().map(|options| options.due);
            let by_wall_clock =
                matches!((asked, job.due_at), (Some(Due::At(at)), Some(due)) if at == due);
            if by_wall_clock && clock_held {
                let message = "its publisher's wall clock has jumped, and times of day stand still";
                let reason = Reason::new(Cause::ClockHeld, message);
                reasons.push(reason.with_remedy("if it is right, longshore resume --clock"));
            }
            reasons
        }
        _ => Vec::new(),
    }
}

/// Why a job waits; empty if it runs or has ended.
pub(super) async fn of_job(found: &FoundJob, context: &Context) -> Vec<Reason> {
    if found.job.state == JobState::Running || found.job.state.is_end() {
        return Vec::new();
    }
    match timeout(READ_MAX, read(found, context)).await {
        Ok(Ok(reasons)) => reasons,
        Ok(Err(why)) => vec![Reason::new(Cause::Unknown, format!("not known: {why}"))],
        Err(_) => {
            let message = format!("not known: no answer within {}", show_duration(READ_MAX));
            vec![Reason::new(Cause::Unknown, message)]
        }
    }
}

async fn read(found: &FoundJob, context: &Context) -> anyhow::Result<Vec<Reason>> {
    let (job, name) = (&found.job, found.job_ref().to_string());
    let queues = context.queues_of([found.publisher.clone()]);
    let pattern = Glob::new(job.path.as_str())?;
    let (stats, status) = tokio::join!(queues.stats(pattern.clone()), queues.status());
    let (stats, status) = (stats?, status?);
    if let Some(missing) = stats.missing.first().or(status.missing.first()) {
        anyhow::bail!("its publisher does not answer: {}", missing.why);
    }
    let status = status.answers.first().map(|answered| &answered.answer);
    let queue = stats.answers.iter().flat_map(|answered| &answered.answer).next();
    let queue = queue.cloned().unwrap_or_else(|| QueueStat::empty(job.path.clone()));
    // Only whether workers are quiet depends on their list.
    let workers = match queue.subscriptions > 0 && queue.credits == 0 {
        true => workers::read_all(context).await.unwrap_or_default(),
        false => WorkerList::default(),
    };
    let mut reasons = of_state(job, &name, status.is_some_and(|status| status.clock_held));
    let is_ready = job.state == JobState::Ready;
    let of_queue = of_queue(&queue, status, &workers);
    // While it is not ready, only what needs somebody to act matters for the time after that.
    reasons.extend(of_queue.into_iter().filter(|reason| is_ready || reason.cause.needs_action()));
    if is_ready && !reasons.iter().any(|reason| reason.cause.needs_action()) {
        reasons.extend(jobs_before(job, pattern, &queues).await?);
    }
    if reasons.is_empty() {
        let message = "no reason is known: a worker may be taking it just now";
        reasons.push(Reason::new(Cause::Unknown, message));
    }
    Ok(reasons)
}

/// The ready jobs that its queue delivers before this one.
async fn jobs_before(
    job: &JobInfo,
    pattern: Glob,
    queues: &Queues,
) -> anyhow::Result<Option<Reason>> {
    let filter = Filter::of(pattern).in_state(JobState::Ready);
    let limit = u32::try_from(PAGE_JOBS_MAX).unwrap_or(u32::MAX);
    let mut pages = queues.jobs(JobsQuery { limit, ..JobsQuery::of(filter) }).await?;
    let (mut before, mut urgent, mut is_whole) = (0, 0, false);
    for _ in 0..AHEAD_PAGES_MAX {
        let Some(page) = pages.next().await else {
            is_whole = true;
            break;
        };
        let more_urgent = page.jobs.iter().filter(|other| other.priority > job.priority).count();
        let is_older = |other: &&JobInfo| {
            other.priority == job.priority && other.enqueued_at < job.enqueued_at
        };
        urgent += more_urgent as u64;
        before += (more_urgent + page.jobs.iter().filter(is_older).count()) as u64;
    }
    if before == 0 {
        return Ok(None);
    }
    let least = if is_whole { "" } else { "at least " };
    let (before, verb) = (jobs(before), if before == 1 { "is" } else { "are" });
    let of_priority = match urgent {
        0 => String::new(),
        urgent => format!(", {} of higher priority", counted(urgent, "job")),
    };
    let message = format!("{least}{before} of the queue {verb} before it{of_priority}");
    Ok(Some(Reason::new(Cause::JobsBefore, message)))
}

/// Reports why an awaited job waits: after a second, and when the reasons differ from those
/// `reported`. Never ends.
pub(super) async fn keep_reporting(
    name: &JobLocator,
    reported: &mut Vec<Cause>,
    queues: &Queues,
    context: &Context,
) -> Infallible {
    sleep(REPORT_AFTER).await;
    loop {
        if let Ok(found) = queues.job(name).await {
            let reasons = of_job(&found, context).await;
            let causes: Vec<Cause> = reasons.iter().map(|reason| reason.cause).collect();
            if causes != *reported && causes != [Cause::Unknown] {
                for reason in &reasons {
                    report!("job {name} waits: {reason}");
                }
            }
            *reported = causes;
        }
        sleep(REPORT_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use longshore::protocol::messages::work::JobCounts;
    use longshore::{Durability, Path};

    use super::*;

    fn test_job() -> JobInfo {
        let job = JobInfo::new(longshore::new_id(), Path::new("/jobs/a").unwrap(), JobState::Ready);
        JobInfo { attempt: 1, max_attempts: 3, deliveries: 1, ..job }
    }

    fn status(room: Room, oldest_uncommitted_ms: u64) -> PublisherStatus {
        PublisherStatus {
            name: "p".to_owned(),
            durability: Durability::Fsync,
            uptime_ms: 0,
            links: 0,
            jobs: 0,
            queues: 0,
            committed_index: 0,
            oldest_uncommitted_ms,
            journal_bytes: 0,
            written_bytes: 0,
            payload_bytes: 0,
            syncs: 0,
            stale_refused: 0,
            clock_held: false,
            paused: Vec::new(),
            closed: Vec::new(),
            room,
            ballast_bytes: 0,
            memory_bytes: 0,
            memory_max: 0,
            draining: true,
            journal: longshore::PublisherId([1; 16]),
        }
    }

    #[test]
    fn a_full_or_slow_disk_is_a_reason_and_a_drain_is_none() {
        let path = Path::new("/jobs/a").unwrap();
        let counts = JobCounts { ready: 1, ..JobCounts::default() };
        let queue = QueueStat { counts, subscriptions: 1, credits: 1, ..QueueStat::empty(path) };
        let causes = |status: &PublisherStatus| -> Vec<Cause> {
            let reasons = of_queue(&queue, Some(status), &WorkerList::default());
            reasons.iter().map(|reason| reason.cause).collect()
        };
        assert_eq!(causes(&status(Room::Open, 0)), []);
        assert_eq!(causes(&status(Room::NoEnqueues, COMMIT_SLOW_MS - 1)), []);
        let both = [Cause::DiskFull, Cause::DiskSlow];
        assert_eq!(causes(&status(Room::NoDeliveries, COMMIT_SLOW_MS)), both);
    }

    #[test]
    fn a_jumped_clock_holds_only_what_waits_for_a_time_of_day() {
        let at = |due, options: Due, retrying| {
            let options = longshore::JobOptions { due: options, ..Default::default() };
            let job = JobInfo {
                state: JobState::Scheduled,
                retrying,
                due_at: Some(due),
                options: Some(options),
                ..test_job()
            };
            of_state(&job, "p:id", true).iter().map(|reason| reason.cause).collect::<Vec<_>>()
        };
        assert_eq!(at(9, Due::At(9), false), [Cause::NotDue, Cause::ClockHeld]);
        assert_eq!(at(9, Due::After(3), false), [Cause::NotDue]);
        // Revived at a rate: it waits for that, not for its first due time.
        assert_eq!(at(9, Due::At(5), false), [Cause::NotDue]);
        assert_eq!(at(9, Due::At(9), true), [Cause::Retry]);
    }
}
