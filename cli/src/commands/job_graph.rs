//! The graph around a job: what it waited for, what waits for it, and the members of its batch.

use std::collections::HashMap;

use longshore::protocol::messages::work::JobInfo;
use longshore::{Filter, FoundJob, Glob, JobId, JobLocator, JobsQuery, ParentEnd, Queues, Related};
use serde_json::{Value, json};

use super::job_view::{parents_json, shown_state};

/// Most jobs that are read for a drawing, of each kind.
const MEMBERS_MAX: u32 = 100;
const WAITING_MAX: u32 = 20;
const PARENTS_MAX: usize = 20;
/// Most pages of each listing, of 100,000 jobs that the publisher examines.
const PAGES_MAX: usize = 20;

/// A job and those that it has to do with.
#[derive(Default)]
pub(super) struct JobGraph {
    jobs: Vec<JobInfo>,
    /// There are more than are shown.
    more: bool,
}

impl JobGraph {
    /// Reads the graph around a job, which is at one publisher. Jobs that are forgotten, or that
    /// this client may not see, are left out.
    pub(super) async fn read(found: &FoundJob, queues: &Queues) -> JobGraph {
        let mut graph = JobGraph::default();
        graph.add([found.job.clone()]);
        let is_batch = found.job.batch.is_some();
        if let Some(batch) = found.job.member_of.or(is_batch.then_some(found.job.id)) {
            graph.read_job(batch, queues).await;
            graph.list(Related::MembersOf(batch), MEMBERS_MAX, queues).await;
            graph.list(Related::WaitingFor(batch), WAITING_MAX, queues).await;
        }
        for parent in found.job.after.iter().take(PARENTS_MAX) {
            graph.read_job(parent.job, queues).await;
        }
        graph.more |= found.job.after.len() > PARENTS_MAX;
        graph.list(Related::WaitingFor(found.job.id), WAITING_MAX, queues).await;
        graph
    }

    async fn list(&mut self, related: Related, most: u32, queues: &Queues) {
        let filter = Filter::of(Glob::everything());
        // One more than is shown, to know whether there are more.
        let (related, limit) = (Some(related), most + 1);
        let query = JobsQuery { related, limit, ..JobsQuery::of(filter) };
        let Ok(mut pages) = queues.jobs(query).await else { return };
        let mut left = most as usize;
        for _ in 0..PAGES_MAX {
            let Some(page) = pages.next().await else {
                self.more |= !pages.is_complete();
                return;
            };
            let is_last = page.jobs.len() > left;
            let jobs: Vec<JobInfo> = page.jobs.into_iter().take(left).collect();
            left -= jobs.len();
            self.add(jobs);
            if is_last {
                break;
            }
        }
        self.more = true;
    }

    async fn read_job(&mut self, id: JobId, queues: &Queues) {
        if self.jobs.iter().all(|known| known.id != id)
            && let Ok(found) = queues.job(&JobLocator::from(id)).await
        {
            self.add([found.job]);
        }
    }

    fn add(&mut self, jobs: impl IntoIterator<Item = JobInfo>) {
        for job in jobs {
            if self.jobs.iter().all(|known| known.id != job.id) {
                self.jobs.push(job);
            }
        }
    }

    /// True if the job has nothing to do with others.
    pub(super) fn is_alone(&self) -> bool {
        self.jobs.len() < 2
    }

    pub(super) fn json(&self) -> Value {
        let job = |job: &JobInfo| {
            json!({
                "id": job.id.to_string(), "path": job.path.as_str(),
                "state": job.state.to_string(), "after": parents_json(&job.after),
                "batch": job.member_of.map(|batch| batch.to_string()),
            })
        };
        json!({ "jobs": self.jobs.iter().map(job).collect::<Vec<_>>(), "more": self.more })
    }

    /// The drawing: each job is below the last of those that it waits for, or below its batch.
    pub(super) fn lines(&self, this: JobId) -> Vec<String> {
        let drawing = Drawing::of(&self.jobs);
        let mut lines = Vec::new();
        for root in drawing.below(None) {
            drawing.draw(root, "", "", this, &mut lines);
        }
        if self.more {
            lines.push("… and more".to_owned());
        }
        lines
    }
}

/// Jobs, and below which other one each is drawn.
struct Drawing<'a> {
    jobs: &'a [JobInfo],
    below: Vec<Option<usize>>,
}

impl Drawing<'_> {
    fn of(jobs: &[JobInfo]) -> Drawing<'_> {
        let numbers: HashMap<JobId, usize> =
            jobs.iter().enumerate().map(|(number, job)| (job.id, number)).collect();
        let parents = |number: usize| {
            let job: &JobInfo = &jobs[number];
            job.after.iter().filter_map(|parent| numbers.get(&parent.job).copied())
        };
        // The length of the longest chain that leads to a job. As many rounds as it has jobs settle
        // that; there are no circles.
        let mut depth = vec![0; jobs.len()];
        for _ in jobs {
            for number in 0..jobs.len() {
                let above = parents(number).map(|parent| depth[parent] + 1).max();
                depth[number] = above.unwrap_or(0).min(jobs.len());
            }
        }
        let below = (0..jobs.len()).map(|number| {
            let batch = jobs[number].member_of.and_then(|batch| numbers.get(&batch).copied());
            parents(number).max_by_key(|&parent| depth[parent]).or(batch)
        });
        Drawing { jobs, below: below.collect() }
    }

    /// The jobs that are drawn below another, the oldest first.
    fn below(&self, above: Option<usize>) -> Vec<usize> {
        let mut jobs: Vec<usize> =
            (0..self.jobs.len()).filter(|&number| self.below[number] == above).collect();
        jobs.sort_by_key(|&number| (self.jobs[number].enqueued_at, self.jobs[number].id));
        jobs
    }

    fn draw(
        &self,
        number: usize,
        branch: &str,
        indent: &str,
        this: JobId,
        lines: &mut Vec<String>,
    ) {
        let job = &self.jobs[number];
        let above = self.below[number].map(|above| self.jobs[above].id);
        let edge = job.after.iter().find(|parent| Some(parent.job) == above);
        let word = match edge.map(|parent| parent.when) {
            None => "",
            Some(ParentEnd::Success) => "then ",
            Some(ParentEnd::Death) => "on death ",
            Some(ParentEnd::Any) => "at the end ",
        };
        let kind = if job.batch.is_some() { "batch " } else { "" };
        let state = shown_state(job.state, job.retrying);
        let mut line = format!("{branch}{word}{kind}{}  {}  {state}", job.path, job.id);
        if job.id == this {
            line.push_str("  ◀");
        }
        let others = job.after.len() - usize::from(edge.is_some());
        if others > 0 {
            line.push_str(&format!("  (after {others} more)"));
        }
        lines.push(line);
        let below = self.below(Some(number));
        for (at, &job) in below.iter().enumerate() {
            let (branch, more) =
                if at + 1 < below.len() { ("├─ ", "│  ") } else { ("└─ ", "   ") };
            let (branch, indent) = (format!("{indent}{branch}"), format!("{indent}{more}"));
            self.draw(job, &branch, &indent, this, lines);
        }
    }
}

#[cfg(test)]
mod tests {
    use longshore::{BatchInfo, JobState, Parent, Path};

    use super::*;

    fn job(number: u8, after: &[(u8, ParentEnd)], batch: Option<u8>) -> JobInfo {
        let id = |number: u8| JobId([number; 16]);
        let parent = |&(job, when): &(u8, ParentEnd)| Parent { job: id(job), when };
        let path = Path::new("/jobs/a").unwrap();
        JobInfo {
            after: after.iter().map(parent).collect(),
            member_of: batch.map(id),
            enqueued_at: number.into(),
            ..JobInfo::new(id(number), path, JobState::Blocked)
        }
    }

    #[test]
    fn a_graph_is_drawn_below_the_last_parents() {
        use ParentEnd::{Any, Death, Success};
        let mut batch = job(1, &[], None);
        batch.batch = Some(BatchInfo::default());
        let jobs = vec![
            job(5, &[(3, Success), (4, Success)], Some(1)),
            job(4, &[(2, Success)], Some(1)),
            job(3, &[(2, Success)], Some(1)),
            job(2, &[], Some(1)),
            batch,
            job(7, &[(1, Any)], None),
            job(6, &[(1, Death)], None),
        ];
        let graph = JobGraph { jobs, more: true };
        let lines = graph.lines(JobId([4; 16]));
        let shown: Vec<String> = lines
            .iter()
            .map(|line| {
                let short = (1..8).fold(line.clone(), |line, n| {
                    line.replace(&JobId([n; 16]).to_string(), &n.to_string())
                });
                short.replace("/jobs/a  ", "").replace("  blocked", "")
            })
            .collect();
        let expected = [
            "batch 1",
            "├─ 2",
            "│  ├─ then 3",
            "│  └─ then 4  ◀",
            "│     └─ then 5  (after 1 more)",
            "├─ on death 6",
            "└─ at the end 7",
            "… and more",
        ];
        assert_eq!(shown, expected);
    }
}
