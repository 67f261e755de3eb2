//! Compares the state's visible results with the model's.

use longshore_protocol::messages::work::{
    Action, AttemptInfo, CheckpointInfo, Filter, JobInfo, RequestError, Selection,
};
use longshore_protocol::{Glob, JobState, LinkId, Path, PathSet};

use super::super::scenario::{glob, id};
use super::dispatch::lane_of;
use super::driver::{Harness, IDS, STEP_JOBS};
use super::jobs::{Job, Phase};
use super::naive::Expected;
use crate::command::Command;
use crate::outcome::{Outcomes, RecordRef, Reply};
use crate::state::State;
use crate::time::Now;

impl Harness {
    pub(super) fn compare_jobs(&self) {
        for number in 0..IDS {
            let view = self.state.job(&id(number), self.now);
            let job = self.model.jobs.iter().find(|job| job.id == id(number));
            let (Some(view), Some(job)) = (&view, job) else {
                assert!(
                    view.is_none() && job.is_none(),
                    "job {number} exists in one of them: {job:?}"
                );
                continue;
            };
            assert_eq!(view.info, self.info(job, &view.info));
            assert_eq!((view.entry, view.result), (job.location(), job.result), "{job:?}");
            assert_eq!(view.error, job.last_error(), "{job:?}");
            let errors: Vec<Option<RecordRef>> =
                job.history.iter().map(|a| a.error.map(|(record, _)| record)).collect();
            assert_eq!(view.attempt_errors, errors, "{job:?}");
            let bytes: Vec<RecordRef> = job.checkpoints.iter().map(|c| c.bytes).collect();
            assert_eq!(view.checkpoints, bytes, "{job:?}");
        }
        assert_eq!(self.state.is_draining(), self.model.draining);
        assert_eq!(self.state.totals().jobs, self.model.jobs.len() as u64);
        assert_eq!(self.state.totals().running, self.model.tokens().0.len() as u64);
        assert_eq!(self.state.totals().stale_refused, self.model.stale_refused);
    }

    /// The expected view of a job. Where the contract allows several values, that of `actual`.
    fn info(&self, job: &Job, actual: &JobInfo) -> JobInfo {
        let (now, model) = (self.now, &self.model);
        let (token, worker) = match job.phase {
            Phase::Running { token, session } => {
                (Some(token), Some(model.sessions[session].name.clone()))
            }
            _ => (None, None),
        };
        let due_at = match job.phase {
            Phase::Timed(at) => Some(at),
            Phase::Delayed(at) | Phase::Retrying(at) => {
                Some(now.wall_ms + at.saturating_sub(now.mono_ms))
            }
            _ => None,
        };
        let expires = !job.state().is_end() && job.state() != JobState::Running;
        // Or derived from the end: the implementation need not know the wall clock's changes
        // meanwhile, nor more than 49 days.
        let since = |start: Now, end: Now, actual: Option<u64>| {
            let ran_ms = (end.mono_ms - start.mono_ms) as u32;
            let reckoned = end.wall_ms.saturating_sub(u64::from(ran_ms));
            let reckoned = match job.enqueued_wall_ms {
                enqueued if enqueued <= end.wall_ms => reckoned.max(enqueued),
                _ => reckoned,
            };
            actual.filter(|&at| at == reckoned).unwrap_or(start.wall_ms)
        };
        let attempt = |(nth, attempt): (usize, &super::jobs::Attempt)| AttemptInfo {
            number: attempt.number,
            worker: attempt.worker.clone(),
            delivered_at: since(
                attempt.delivered,
                attempt.ended,
                actual.attempts.get(nth).map(|a| a.delivered_at),
            ),
            ended_at: attempt.ended.wall_ms,
            outcome: attempt.outcome,
            error: None,
            fingerprint: attempt.error.map(|(_, fingerprint)| fingerprint),
        };
        let checkpoint = |checkpoint: &super::jobs::Checkpoint| CheckpointInfo {
            attempt: checkpoint.attempt,
            sequence: checkpoint.sequence,
            at: checkpoint.at,
            length: u64::from(checkpoint.bytes.length),
            bytes: None,
        };
        JobInfo {
            id: job.id,
            path: job.path.clone(),
            state: job.state(),
            retrying: job.is_retrying(),
            priority: job.options.priority,
            attempt: job.attempt(),
            max_attempts: model.max_attempts(job),
            deliveries: job.deliveries,
            lease_ms: model.lease_ms(job),
            run_timeout_ms: model.run_timeout_ms(job),
            enqueued_at: job.enqueued_wall_ms,
            due_at,
            expires_at: if expires { job.expires_at } else { actual.expires_at },
            delivered_at: token.map(|_| since(job.delivered, now, actual.delivered_at)),
            ended_at: job.ended.map(|(at, _)| at.wall_ms),
            token,
            worker,
            blocked: model.blocked_by(job, actual.blocked.as_ref()),
            death: if let Phase::Dead(reason) = job.phase { Some(reason) } else { None },
            error: None,
            schedule: job.made_by.as_ref().map(|made| made.schedule.clone()),
            batch: None,
            member_of: None,
            replaces: job.replaces,
            progress: None,
            attempts: job.history.iter().enumerate().map(attempt).collect(),
            checkpoints: job.checkpoints.iter().map(checkpoint).collect(),
            payload_len: job.payload_len as u64,
            payload: None,
            headers: None,
            result: None,
            options: None,
            after: Vec::new(),
        }
    }

    pub(super) fn compare_schedules(&self) {
        let expected = self.model.sorted_schedules();
        let most = expected.len().max(1);
        let page = self.state.schedules_page("", most, None);
        assert_eq!((page.schedules, page.more), (expected.clone(), false));
        let mut due: Vec<u64> =
            expected.iter().filter_map(|known| Some(known.next?.fires_at)).collect();
        due.sort_unstable();
        let actual = self.state.due_schedules().map(|due| due.next.fires_at);
        assert_eq!(actual.collect::<Vec<_>>(), due, "in the order of their times");
    }

    pub(super) fn compare_queues(&self) {
        let stats = self.state.all_queue_stats(&glob("/**"), self.now);
        assert_eq!(stats.len(), self.model.queues.len());
        for (stat, queue) in stats.iter().zip(&self.model.queues) {
            let counts = self.model.counts(&queue.path);
            assert_eq!((&stat.path, stat.counts), (&queue.path, counts));
            assert_eq!(
                [stat.enqueued, stat.completed, stat.failed, stat.redelivered, stat.died],
                [queue.enqueued, queue.completed, queue.failed, queue.redelivered, queue.died],
                "enqueued, completed, failed, redelivered and died of {}",
                queue.path
            );
            assert_eq!(stat.stale_refused, queue.stale);
            assert_eq!(stat.settings, queue.settings);
            assert_eq!(stat.oldest_ready_ms.is_some(), counts.ready > 0);
            let matching = || {
                self.model
                    .subscriptions
                    .iter()
                    .filter(|s| lane_of(&s.sources, &queue.path).is_some())
            };
            assert_eq!(stat.subscriptions, matching().count() as u64);
            assert_eq!(stat.credits, matching().map(|s| u64::from(s.credit)).sum::<u64>());
            let sorted = |patterns: &[Glob]| {
                let matching = patterns.iter().filter(|pattern| pattern.matches(&queue.path));
                let mut texts: Vec<String> = matching.map(|p| p.as_str().to_owned()).collect();
                texts.sort_unstable();
                texts
            };
            assert_eq!(sorted(&stat.paused_by), sorted(&self.model.pauses));
            assert_eq!(sorted(&stat.closed_by), sorted(&self.model.closings));
        }
    }

    /// A lease is its holder's until it is revoked; a revoked lease is never reported as held.
    pub(super) fn compare_leases(&self) {
        let is_still_leased_to = |token, session: usize| {
            self.model.sessions[session].link.map(|link| self.state.is_still_leased_to(token, link))
        };
        for job in &self.model.jobs {
            let Phase::Running { token, session } = job.phase else { continue };
            assert_ne!(is_still_leased_to(token, session), Some(false), "{token:?} runs");
        }
        for (number, session) in self.model.sessions.iter().enumerate() {
            for &(token, _) in &session.revoked {
                assert_ne!(is_still_leased_to(token, number), Some(true), "{token:?} was revoked");
            }
        }
    }

    /// Only a lease's holder reads the job's checkpoints.
    pub(super) fn compare_checkpoints(&self) {
        for job in &self.model.jobs {
            let Phase::Running { token, session } = job.phase else { continue };
            for (number, other) in self.model.sessions.iter().enumerate() {
                let Some(link) = other.link else { continue };
                let read = self.state.checkpoints(token, link);
                if number == session {
                    let views = read.expect("the holder reads them");
                    let bytes: Vec<RecordRef> = views.iter().map(|view| view.bytes).collect();
                    assert!(bytes.iter().eq(job.checkpoints.iter().map(|c| &c.bytes)));
                } else {
                    assert_eq!(read, Err(RequestError::StaleToken));
                }
            }
        }
    }

    /// Groups of dead letters, and how many jobs an action by filter would apply to.
    pub(super) fn compare_dead(&self, filter: &Filter, within: &PathSet) {
        let dead = Filter { state: None, ..filter.clone() };
        if self.model.selection_is_exact(Action::Drop, &dead) {
            for within in [None, Some(within)] {
                let groups = (self.model.dead_groups(&dead, within), false);
                assert_eq!(self.state.dead_groups(&dead, within), groups, "{dead:?} {within:?}");
            }
        }
        for action in [Action::Confirm, Action::Cancel, Action::Revive, Action::Drop] {
            if self.model.selection_is_exact(action, filter) {
                let selection = Selection::Matching(filter.clone());
                for within in [None, Some(within)] {
                    let preview = self.state.preview(action, &selection, within);
                    let done = self.model.matching(action, filter, within).len() as u64;
                    let case = (action, filter, within);
                    assert_eq!((preview.done, preview.more), (done, false), "{case:?}");
                }
            }
        }
    }

    /// The state's next timer is at or before the next deadline; and not again at once.
    pub(super) fn compare_timers(&self, command: &Command) {
        let due = self.state.next_timer_ms(self.now);
        let at_the_latest = self.model.next_timer_ms().map(|at| at.max(self.now.mono_ms));
        assert!(
            at_the_latest.is_none_or(|at| due.is_some_and(|due| due <= at)),
            "the next timer is at {due:?}, and not by {at_the_latest:?}"
        );
        if matches!(command, Command::Tick) && self.limits.step_jobs == STEP_JOBS {
            assert!(due.is_none_or(|due| due > self.now.mono_ms), "{due:?}: a tick does not help");
        }
    }
}

pub(super) fn compare_outcomes(
    state: &State,
    command: &Command,
    out: &Outcomes,
    mut expected: Expected<'_>,
) {
    assert_eq!(out.events, expected.events, "{command:?}");
    fn sorted<T: Ord + Clone>(things: &[T]) -> Vec<T> {
        let mut things = things.to_vec();
        things.sort_unstable();
        things
    }
    assert_eq!(sorted(&out.ended), sorted(&expected.ended), "{command:?}");
    assert_eq!(sorted(&out.revoked), sorted(&expected.revoked), "{command:?}");
    assert_eq!(sorted(&out.moved), sorted(&expected.moved), "{command:?}");
    assert_eq!(out.queues_created, expected.queues_created, "{command:?}");
    let filled: Vec<&Path> = out.queues_filled.iter().map(|&queue| state.path(queue)).collect();
    assert!(filled.into_iter().eq(&expected.queues_filled), "{command:?}");
    let by_link = |(link, reply): &(LinkId, Reply)| (*link, format!("{reply:?}"));
    let mut replies = out.replies.clone();
    if replies.len() > 1 {
        replies.sort_by_key(by_link);
        expected.replies.sort_by_key(by_link);
    }
    for (_, reply) in replies.iter_mut().chain(&mut expected.replies) {
        // In any order.
        if let Reply::Paused { report: Ok(report), .. } = reply {
            report.still_by.sort_by(|a, b| a.as_str().cmp(b.as_str()));
        }
    }
    assert_eq!(replies, expected.replies, "{command:?}");
}
