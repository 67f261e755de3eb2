//! Actions of tools.

use longshore_protocol::messages::work::{Action, Filter, Pace, Request, Selection};
use longshore_protocol::{
    Backoff, FrameWriter, Gate, Glob, JobId, JobLimit, JobRate, JobState, LimitScope, Path,
    QueueSettings, Role,
};
use rand::RngExt;

use super::harness::{PublisherRun, SimulationHarness};
use super::tool_requests::ToolRequest;
use super::workload::QUEUES;
use crate::{Command, Poisoned};

/// Patterns that are paused and resumed; they overlap.
const PAUSED: [&str; 3] = ["/c", "/a/**", "/a/b"];
/// The queue whose retention changes. The other queues use the default.
const SHORT_RETENTION: &str = "/a/b";

impl SimulationHarness {
    pub(super) fn act(&mut self, run: &mut PublisherRun) -> Result<(), Poisoned> {
        let Some((position, link)) = self.link_of(Role::Tool) else { return Ok(()) };
        let action = self.one_of(&[
            Action::Confirm,
            Action::Confirm,
            Action::Cancel,
            Action::Drop,
            Action::Drop,
            Action::Revive,
            Action::Revive,
            Action::CloseBatch,
            Action::CloseBatch,
        ]);
        let pace = (action == Action::Revive && self.once_in(3))
            .then(|| Pace { per_second: self.random.random_range(1..5), before: 0 });
        if self.once_in(if self.workers_keep_up { 3 } else { 8 }) {
            let path: Path = self.one_of(&QUEUES).parse().expect("a path");
            self.model.request_action_in(&path, action);
            let selection = Selection::Matching(self.filter(&path, action));
            let command = Command::Act { link, request: 0, action, selection, pace, within: None };
            return run.store.submit(self.now, command).map(drop);
        }
        // Mostly jobs that the action may apply to.
        let fitting = self.model.jobs_for(action);
        let all = self.model.jobs();
        if all.is_empty() {
            return Ok(());
        }
        let mut ids: Vec<JobId> = Vec::new();
        for _ in 0..self.random.random_range(1..10) {
            let any = fitting.is_empty() || self.once_in(4);
            let id = self.one_of(if any { &all } else { &fitting });
            if !ids.contains(&id) {
                ids.push(id);
                self.model.request_action(id, action);
            }
        }
        let selection = Selection::Ids(ids.clone());
        let request = self.add_request(position, ToolRequest::Act(action, ids));
        let command = Command::Act { link, request, action, selection, pace, within: None };
        run.store.submit(self.now, command).map(drop)
    }

    /// The filter of an action on a queue.
    fn filter(&mut self, path: &Path, action: Action) -> Filter {
        let filter = Filter::of(path.as_str().parse().expect("a pattern"));
        match action {
            Action::Drop => filter.in_state(self.one_of(&[JobState::Dead, JobState::Cancelled])),
            Action::Cancel => {
                filter.in_state(self.one_of(&[JobState::Prepared, JobState::Scheduled]))
            }
            Action::Revive | Action::Confirm | Action::CloseBatch => filter,
        }
    }

    pub(super) fn replace(&mut self, run: &mut PublisherRun) -> Result<(), Poisoned> {
        let Some((position, link)) = self.link_of(Role::Tool) else { return Ok(()) };
        let (dead, all) = (self.model.jobs_for(Action::Revive), self.model.jobs());
        if all.is_empty() {
            return Ok(());
        }
        let any = dead.is_empty() || self.once_in(5);
        let id = self.one_of(if any { &all } else { &dead });
        let path = self.model.path(id).expect("it was enqueued").clone();
        let job = self.job(path, 6_000);
        let mut out = FrameWriter::with_capacity(64);
        job.encode_entry_head(&mut out);
        out.put_shared(job.payload.clone());
        let entry = out.into_body();
        self.model.request_replace(id, &job);
        let request = self.add_request(position, ToolRequest::Replace(id, job.id));
        run.store.submit(self.now, Command::Replace { link, request, id, entry }).map(drop)
    }

    pub(super) fn configure(&mut self, run: &mut PublisherRun) -> Result<(), Poisoned> {
        let Some((position, link)) = self.link_of(Role::Tool) else { return Ok(()) };
        let path: Path = self.one_of(&QUEUES).parse().expect("a path");
        let mut changes = QueueSettings {
            max_attempts: self.once_in(2).then(|| self.random.random_range(1..5)),
            lease_ms: self.once_in(2).then(|| self.one_of(&[1_000, 30_000])),
            run_timeout_ms: self.once_in(2).then(|| self.one_of(&[0, 1_000, 60_000])),
            backoff: self.once_in(2).then_some(Backoff::Linear { step_ms: 50, max_ms: 120 }),
            ..QueueSettings::default()
        };
        if path.as_str() == SHORT_RETENTION {
            changes.keep_ms = self.once_in(2).then(|| self.one_of(&[0, 1_000]));
            changes.keep_jobs = self.once_in(2).then(|| self.one_of(&[0, 1, 5]));
        }
        let reset = self.once_in(2);
        self.model.request_configure(&path, &changes);
        let request = self.add_request(position, ToolRequest::Configure(path.clone()));
        let command = Command::Configure { link, request, path, changes, reset };
        run.store.submit(self.now, command).map(drop)
    }

    pub(super) fn pause(&mut self, run: &mut PublisherRun) -> Result<(), Poisoned> {
        let Some((position, link)) = self.link_of(Role::Tool) else { return Ok(()) };
        let paused = self.random.random_bool(0.4);
        let pattern: Glob = self.one_of(&PAUSED).parse().expect("a pattern");
        self.model.request_pause(&pattern);
        let request = self.add_request(position, ToolRequest::Pause(pattern.clone(), paused));
        run.store
            .submit(
                self.now,
                Command::Pause { link, request, gate: Gate::Delivery, pattern, paused },
            )
            .map(drop)
    }

    /// Sets or removes a limit. All of them let jobs pass quickly.
    pub(super) fn change_limit(&mut self, run: &mut PublisherRun) -> Result<(), Poisoned> {
        let Some((_, link)) = self.link_of(Role::Tool) else { return Ok(()) };
        self.next_request += 1;
        let request = self.next_request;
        let name = self.one_of(&["a", "b", "c"]).to_owned();
        if self.once_in(3) {
            return run
                .store
                .submit(self.now, Command::RemoveLimit { link, request, name })
                .map(drop);
        }
        let rate = JobRate { units: 20, per_ms: 100, burst: 5 };
        let concurrency = self.once_in(2).then(|| self.random.random_range(1..6));
        let rate = (concurrency.is_none() || self.once_in(3)).then_some(rate);
        let scope = self.one_of(LimitScope::ALL);
        let pattern = self.one_of(&["/**", "/a/**", "/c"]).parse().expect("a pattern");
        let limit = JobLimit { name, pattern, scope, concurrency, rate };
        run.store.submit(self.now, Command::SetLimit { link, request, limit }).map(drop)
    }

    /// Queries a job: the model records the result.
    pub(super) fn show(&mut self, run: &mut PublisherRun) {
        let Some((position, link)) = self.link_of(Role::Tool) else { return };
        let jobs = self.model.jobs();
        if !jobs.is_empty() {
            let id = self.one_of(&jobs);
            let request = self.add_request(position, ToolRequest::Show(id));
            run.store.query(self.now, link, request, Request::Job { id }, None);
        }
    }

    fn add_request(&mut self, position: usize, add_request: ToolRequest) -> u64 {
        self.next_request += 1;
        self.sessions[position].requests.insert(self.next_request, add_request);
        self.next_request
    }
}
