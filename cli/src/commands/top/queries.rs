//! Looks up what the metrics do not have about an open queue or worker: its jobs and dead letters.

use std::time::Duration;

use longshore::protocol::messages::work::{Filter, JobInfo, JobsQuery};
use longshore::{Glob, JobRef, JobState, Queues};
use tokio::task::{AbortHandle, JoinError, JoinHandle};
use tokio::time::{Instant, timeout};

use super::detail::Block;
use super::rows::Subject;
use crate::commands::{dead, job_view};
use crate::output::Table;
use crate::time::wall_ms;

/// How often an open subject is looked up again.
const INTERVAL: Duration = Duration::from_secs(3);
/// The longest lookup. A long queue without an index may take longer; its part is then missing.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Jobs in each table.
const JOBS_MAX: usize = 20;
/// Jobs that ended in this time are recent.
const RECENT: Duration = Duration::from_secs(600);
/// A worker's running jobs are searched among this many.
const SEARCHED_MAX: usize = 1_000;
/// Patterns of a worker whose jobs are looked up.
const PATTERNS_MAX: usize = 8;

/// The lookups of the open subject, one at a time.
pub(super) struct Queries {
    client: Queues,
    running: Option<Running>,
    open: Option<(Subject, Vec<Glob>)>,
    next_at: Instant,
}

struct Running {
    subject: Subject,
    report: JoinHandle<Vec<Block>>,
    _abort: AbortOnDrop,
}

/// A closed subject's lookup ends.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Queries {
    pub(super) fn new(client: Queues) -> Queries {
        Queries { client, running: None, open: None, next_at: Instant::now() }
    }

    /// Looks up a subject now, and again until another one or none is open. `patterns` are those
    /// that a worker takes.
    pub(super) fn open(&mut self, subject: Subject, patterns: Vec<Glob>) {
        self.open = Some((subject, patterns));
        self.running = None;
        self.next_at = Instant::now();
    }

    /// Stops unless this subject is open.
    pub(super) fn retain(&mut self, open: Option<&Subject>) {
        if self.open.as_ref().is_some_and(|(subject, _)| Some(subject) != open) {
            self.open = None;
            self.running = None;
        }
    }

    /// The next report. Pending while nothing is open. Cancel safe.
    pub(super) async fn next(&mut self) -> (Subject, Vec<Block>) {
        loop {
            if let Some(running) = &mut self.running {
                let report: Result<_, JoinError> = (&mut running.report).await;
                let subject = running.subject.clone();
                self.running = None;
                self.next_at = Instant::now() + INTERVAL;
                match report {
                    Ok(report) => return (subject, report),
                    Err(_) => continue,
                }
            }
            let Some((subject, patterns)) = self.open.clone() else {
                return std::future::pending().await;
            };
            tokio::time::sleep_until(self.next_at).await;
            let (client, looked_up) = (self.client.clone(), subject.clone());
            let report = tokio::spawn(async move { report(&client, looked_up, patterns).await });
            let _abort = AbortOnDrop(report.abort_handle());
            self.running = Some(Running { subject, report, _abort });
        }
    }
}

async fn report(client: &Queues, subject: Subject, patterns: Vec<Glob>) -> Vec<Block> {
    match subject {
        Subject::Queue(path) => match Glob::new(&path) {
            Ok(glob) => queue(client, glob).await,
            Err(_) => Vec::new(),
        },
        Subject::Worker { name, .. } => vec![worker(client, &name, patterns).await],
        Subject::Publisher(_) | Subject::Replica(_) => Vec::new(),
    }
}

async fn queue(client: &Queues, glob: Glob) -> Vec<Block> {
    let all = Filter::of(glob);
    let since = wall_ms().saturating_sub(RECENT.as_millis() as u64);
    let running = all.clone().in_state(JobState::Running);
    let ended = Filter { ended_from: Some(since), ..all.clone() };
    let (running, ended, dead) = tokio::join!(
        jobs(client, running, JOBS_MAX, "running jobs", |_| true),
        jobs(client, ended, SEARCHED_MAX, "ended in the last 10 minutes", |_| true),
        timeout(TIMEOUT, client.dead_groups(all)),
    );
    let dead = match dead {
        Ok(Ok(groups)) => {
            let mut groups = groups.merged().groups;
            groups.truncate(JOBS_MAX);
            Block::table("dead letters", &dead::groups_table(&groups))
        }
        Ok(Err(error)) => Block::Note(format!("dead letters: {error}")),
        Err(_) => Block::Note("dead letters: no answer in time".to_owned()),
    };
    vec![running, dead, ended]
}

/// The running jobs of all workers of a name: publishers do not report a job's session.
async fn worker(client: &Queues, name: &str, patterns: Vec<Glob>) -> Block {
    let title = format!("running jobs of workers named {name}");
    let mut all = Vec::new();
    for pattern in patterns.into_iter().take(PATTERNS_MAX) {
        let filter = Filter::of(pattern).in_state(JobState::Running);
        let of_worker = |job: &JobInfo| job.worker.as_deref() == Some(name);
        match find(client, filter, SEARCHED_MAX, of_worker).await {
            Ok(found) => all.extend(found),
            Err(why) => return Block::Note(format!("{title}: {why}")),
        }
    }
    all.sort_by_key(|(at, _)| at.id);
    all.dedup_by_key(|(at, _)| at.id);
    table(&title, all)
}

async fn jobs(
    client: &Queues,
    filter: Filter,
    searched: usize,
    title: &str,
    wanted: impl Fn(&JobInfo) -> bool,
) -> Block {
    match find(client, filter, searched, wanted).await {
        Ok(found) => table(title, found),
        Err(why) => Block::Note(format!("{title}: {why}")),
    }
}

/// The wanted jobs among the first of each publisher.
async fn find(
    client: &Queues,
    filter: Filter,
    searched: usize,
    wanted: impl Fn(&JobInfo) -> bool,
) -> Result<Vec<(JobRef, JobInfo)>, String> {
    let query = JobsQuery { limit: searched as u32, ..JobsQuery::of(filter) };
    let mut found = Vec::new();
    let pages = async {
        let mut pages = client.jobs(query).await.map_err(|error| error.to_string())?;
        let mut seen = 0;
        while seen < searched {
            let Some(page) = pages.next().await else { break };
            seen += page.jobs.len();
            let at = |job: &JobInfo| JobRef { publisher: page.publisher.id, id: job.id };
            let jobs = page.jobs.into_iter().filter(&wanted);
            found.extend(jobs.map(|job| (at(&job), job)));
        }
        Ok(())
    };
    match timeout(TIMEOUT, pages).await {
        Ok(Err(why)) => Err(why),
        Err(_) if found.is_empty() => Err("no answer in time".to_owned()),
        _ => Ok(found),
    }
}

/// Jobs as a table, the latest first.
fn table(title: &str, mut jobs: Vec<(JobRef, JobInfo)>) -> Block {
    let time = |job: &JobInfo| job.ended_at.or(job.delivered_at).unwrap_or(job.enqueued_at);
    jobs.sort_by_key(|(_, job)| std::cmp::Reverse(time(job)));
    let mut table = Table::new(&["job", "state", "attempt", "age", "outcome"]);
    for (at, job) in jobs.iter().take(JOBS_MAX) {
        // The id alone also names the job.
        let [_, _, state, attempt, age, _, outcome] = job_view::row(at, job);
        table.row([job.id.to_string(), state, attempt, age, outcome]);
    }
    Block::table(title, &table)
}
