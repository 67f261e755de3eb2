//! Limits of the model: every start of a job is remembered, and each check counts all of them.
//!
//! No delivery may exceed a limit. What the state holds back has no room, or the state's timer is
//! due by when it has.

use longshore_protocol::messages::work::{BlockedBy, RequestError};
use longshore_protocol::{JobLimit, JobState, LimitScope, Path};

use super::jobs::{Job, Phase};
use super::naive::{Expected, Model};

/// A limit, with the number of starts before it was set.
#[derive(Clone)]
pub(super) struct Limit {
    pub(super) limit: JobLimit,
    since: usize,
    /// When its rate became another than at the first of these starts.
    changed_at: Option<u64>,
}

/// What a changed rate makes of the starts before: at least those that count as they are, at most a
/// whole burst.
#[derive(Clone, Copy, PartialEq)]
enum Before {
    AtLeast,
    AtMost,
}

/// A start of a job.
#[derive(Clone)]
pub(super) struct JobStart {
    path: Path,
    key: Option<String>,
    cost: u64,
    at: u64,
}

/// A job that starts, or might.
struct Candidate<'a> {
    path: &'a Path,
    key: Option<&'a String>,
    /// Units of others that are to start before it.
    ahead: u64,
    cost: u64,
}

impl Job {
    pub(super) fn cost(&self) -> u64 {
        u64::from(self.cost.unwrap_or(1))
    }
}

impl Model {
    /// The job may be delivered only where a handler is free.
    pub(super) fn needs_free_handler(&self, job: &Job) -> bool {
        let applies = |limit: &Limit| limit.covers(&job.path, job.limit.as_ref());
        job.order.is_some() || self.job_limits.iter().any(applies)
    }
}

impl Limit {
    fn covers(&self, path: &Path, key: Option<&String>) -> bool {
        self.limit.pattern.matches(path) && (self.limit.scope != LimitScope::Key || key.is_some())
    }

    /// Whether both are counted together.
    fn joins(&self, job: &Candidate<'_>, path: &Path, key: Option<&String>) -> bool {
        self.covers(path, key)
            && match self.limit.scope {
                LimitScope::Shared => true,
                LimitScope::Queue => path == job.path,
                LimitScope::Key => path == job.path && key == job.key,
            }
    }
}

impl Model {
    pub(super) fn set_limit(&mut self, limit: &JobLimit) -> Result<bool, RequestError> {
        let known = self.job_limits.iter().position(|known| known.limit.name == limit.name);
        if known.is_none() && self.job_limits.len() as u64 >= self.limits.limits {
            return Err(RequestError::TooManyLimits);
        }
        let since = self.starts.len();
        let Some(known) = known else {
            self.job_limits.push(Limit { limit: limit.clone(), since, changed_at: None });
            return Ok(true);
        };
        let known = &mut self.job_limits[known];
        let before = std::mem::replace(&mut known.limit, limit.clone());
        if (&before.pattern, before.scope) != (&limit.pattern, limit.scope) {
            (known.since, known.changed_at) = (since, None);
        } else if before.rate != limit.rate {
            (known.since, known.changed_at) = (since, Some(self.now.mono_ms));
        }
        Ok(before != *limit)
    }

    pub(super) fn remove_limit(&mut self, name: &str) -> bool {
        let before = self.job_limits.len();
        self.job_limits.retain(|known| known.limit.name != name);
        self.job_limits.len() < before
    }

    fn has_units(&self, limit: &Limit, job: &Candidate<'_>) -> bool {
        let Some(most) = limit.limit.concurrency else { return true };
        let runs = |other: &&Job| {
            other.state() == JobState::Running
                && limit.joins(job, &other.path, other.limit.as_ref())
        };
        let others = self.jobs.iter().filter(runs).map(Job::cost).sum::<u64>() + job.ahead;
        others == 0 || others + job.cost <= u64::from(most)
    }

    /// The first millisecond from now on at which the rate allows the job's start; none if only
    /// other starts help. The units of every window count.
    fn allowed_at(&self, limit: &Limit, job: &Candidate<'_>, before: Before) -> Option<u64> {
        let Some(rate) = limit.limit.rate else { return Some(self.now.mono_ms) };
        let burst = u64::from(rate.burst);
        let units = job.ahead + job.cost.min(burst);
        if units > burst {
            return None;
        }
        let (mut at, mut sum) = (self.now.mono_ms, units);
        let starts = self.starts[limit.since..].iter().rev();
        for start in starts.filter(|start| limit.joins(job, &start.path, start.key.as_ref())) {
            sum += start.cost.min(burst);
            let over = sum.saturating_sub(burst);
            at = at.max(start.at + (over * rate.per_ms).div_ceil(u64::from(rate.units)));
        }
        if let Some(changed_at) = limit.changed_at
            && before == Before::AtMost
        {
            at = at.max(changed_at + (sum * rate.per_ms).div_ceil(u64::from(rate.units)));
        }
        Some(at)
    }

    fn limits_of<'a>(&'a self, job: &Candidate<'_>) -> impl Iterator<Item = &'a Limit> {
        let covering = self.job_limits.iter().map(|limit| limit.covers(job.path, job.key));
        let covering = covering.collect::<Vec<_>>();
        self.job_limits.iter().zip(covering).filter_map(|(limit, covers)| covers.then_some(limit))
    }

    fn rest_of(&self, path: &Path, key: &str) -> Option<u64> {
        let mut rests = self.rests.iter().filter(|(p, k, _)| (p, k.as_str()) == (path, key));
        rests.find(|(.., until)| *until > self.now.mono_ms).map(|(.., until)| *until)
    }

    /// A handler lets the key of its job rest.
    pub(super) fn rest(&mut self, path: &Path, key: &str, ms: u64) {
        self.rests.push((path.clone(), key.to_owned(), self.now.mono_ms + ms));
        self.rests.sort_by_key(|(.., until)| std::cmp::Reverse(*until));
    }

    /// The job starts: no limit may be exceeded, and its key may not rest.
    pub(super) fn start(&mut self, number: usize) {
        let job = &self.jobs[number];
        let (path, key, cost) = (&job.path, job.limit.as_ref(), job.cost());
        let candidate = Candidate { path, key, ahead: 0, cost };
        for limit in self.limits_of(&candidate) {
            assert!(self.has_units(limit, &candidate), "{:?} exceeded by {job:?}", limit.limit);
            let at = self.allowed_at(limit, &candidate, Before::AtLeast);
            assert_eq!(at, Some(self.now.mono_ms), "{:?} exceeded by {job:?}", limit.limit);
        }
        let rest = key.and_then(|key| self.rest_of(path, key));
        assert_eq!(rest, None, "the key of {job:?} rests");
        let (path, key) = (path.clone(), key.cloned());
        self.starts.push(JobStart { path, key, cost, at: self.now.mono_ms });
    }

    // Limit keys.

    fn of_key<'a>(&'a self, job: &Job, phase: Phase) -> impl Iterator<Item = &'a Job> {
        let (path, key) = (job.path.clone(), job.limit.clone());
        self.jobs.iter().filter(move |other| {
            key.is_some() && (&other.path, &other.limit) == (&path, &key) && other.phase == phase
        })
    }

    fn first_limited(&self, job: &Job) -> Option<&Job> {
        self.of_key(job, Phase::Limited).min_by_key(|job| job.rank())
    }

    /// When a job of a limit key has room, behind its candidates; none if that depends on others.
    fn key_opens_at(&self, job: &Job, ahead: u64, before: Before) -> Option<u64> {
        let (path, key) = (&job.path, job.limit.as_ref());
        let candidate = Candidate { path, key, ahead, cost: job.cost() };
        let mut at = self.rest_of(path, key?).unwrap_or(self.now.mono_ms);
        for limit in self.limits_of(&candidate).filter(|l| l.limit.scope == LimitScope::Key) {
            if !self.has_units(limit, &candidate) {
                return None;
            }
            at = at.max(self.allowed_at(limit, &candidate, before)?);
        }
        Some(at)
    }

    /// The rate of one of its limits is another than when earlier jobs started.
    fn may_differ(&self, job: &Job) -> bool {
        let candidate =
            Candidate { path: &job.path, key: job.limit.as_ref(), ahead: 0, cost: job.cost() };
        self.limits_of(&candidate).any(|limit| limit.changed_at.is_some())
    }

    fn ready_units(&self, job: &Job) -> u64 {
        self.of_key(job, Phase::Ready).map(Job::cost).sum()
    }

    /// What a due job with its turn enters.
    pub(super) fn take_room(&self, number: usize, to: &Expected<'_>) -> Phase {
        let job = &self.jobs[number];
        if job.limit.is_none() {
            return Phase::Ready;
        }
        let opens = self.key_opens_at(job, self.ready_units(job), Before::AtLeast);
        let fits = self.first_limited(job).is_none() && opens == Some(self.now.mono_ms);
        let event = to.next_actual_event().filter(|event| event.job == job.id && !self.is_trial);
        match event.and_then(|event| event.state) {
            Some(JobState::Blocked) if !fits || self.may_differ(job) => Phase::Limited,
            Some(JobState::Ready) => {
                assert!(fits, "{job:?} has no room");
                Phase::Ready
            }
            Some(JobState::Blocked) => panic!("{job:?} has room"),
            _ => {
                if fits {
                    Phase::Ready
                } else {
                    Phase::Limited
                }
            }
        }
    }

    /// A ready job has no room any more, or makes some for another.
    pub(super) fn may_lose_room(&self, job: &Job) -> bool {
        let has_none = self.key_opens_at(job, 0, Before::AtLeast) != Some(self.now.mono_ms);
        let gives_way = self.first_limited(job).is_some_and(|first| first.rank() < job.rank());
        job.phase == Phase::Ready && (has_none || gives_way || self.may_differ(job))
    }

    /// A waiting job has room.
    pub(super) fn may_get_room(&self, job: &Job) -> bool {
        job.phase == Phase::Limited
            && self.key_opens_at(job, self.ready_units(job), Before::AtLeast)
                == Some(self.now.mono_ms)
    }

    /// Ready jobs of a key come before waiting ones.
    pub(super) fn check_candidates(&self) {
        for job in self.jobs.iter().filter(|job| job.phase == Phase::Ready) {
            let first = self.first_limited(job);
            assert!(first.is_none_or(|first| first.rank() > job.rank()), "{first:?}, {job:?}");
        }
    }

    // Queues.

    /// Whether a limit may hold the queue back.
    pub(super) fn may_be_held(&self, path: &Path) -> bool {
        let of_queues = self.job_limits.iter().filter(|l| l.limit.scope != LimitScope::Key);
        of_queues.into_iter().any(|limit| limit.limit.pattern.matches(path))
    }

    /// When one of its own limits, or one that no other queue waits for, lets the queue deliver.
    fn queue_opens_at(&self, path: &Path) -> Option<u64> {
        let waits_alone = |limit: &&Limit| {
            limit.limit.scope == LimitScope::Queue
                || self.held.iter().filter(|held| limit.limit.pattern.matches(held)).count() == 1
        };
        let heads = self.possible_heads(&[path]);
        let opens = |job: &&Job| {
            let candidate = Candidate { path, key: None, ahead: 0, cost: job.cost() };
            let mut at = self.now.mono_ms;
            for limit in self.limits_of(&candidate) {
                if !waits_alone(&limit) || !self.has_units(limit, &candidate) {
                    return None;
                }
                at = at.max(self.allowed_at(limit, &candidate, Before::AtMost)?);
            }
            Some(at)
        };
        // Of several possible heads any may be next.
        let all: Vec<Option<u64>> = heads.iter().map(opens).collect();
        all.into_iter().collect::<Option<Vec<u64>>>()?.into_iter().max()
    }

    /// When the state's timer is due for what limits hold back.
    pub(super) fn limits_open_at(&self) -> Vec<u64> {
        let waits = self.jobs.iter().filter(|job| job.phase == Phase::Limited);
        let first = waits.filter_map(|job| self.first_limited(job));
        let keys =
            first.filter_map(|job| self.key_opens_at(job, self.ready_units(job), Before::AtMost));
        let is_served = self.delivery_budget > 0;
        let limited = self.limited.iter().filter(|path| is_served && !self.is_paused(path));
        keys.chain(limited.filter_map(|path| self.queue_opens_at(path))).collect()
    }

    /// How the state describes what the job waits for.
    pub(super) fn limited_by(&self, job: &Job, actual: Option<&BlockedBy>) -> Option<BlockedBy> {
        let is_held = job.phase == Phase::Ready && self.limited.contains(&job.path);
        if job.phase != Phase::Limited && !is_held {
            return None;
        }
        let applies = |name: &String| {
            let mut limits = self.job_limits.iter().filter(|known| known.limit.name == *name);
            limits.any(|limit| {
                let is_of_key = limit.limit.scope == LimitScope::Key;
                limit.covers(&job.path, job.limit.as_ref()) && is_of_key != is_held
            })
        };
        let is_right = match actual? {
            BlockedBy::Limit { by, key } => {
                applies(&by.limit) && *key == job.limit.clone().filter(|_| !is_held)
            }
            BlockedBy::Throttled { key, .. } => Some(key) == job.limit.as_ref() && !is_held,
            BlockedBy::Order { .. } | BlockedBy::Parent { .. } | BlockedBy::Members(_) => false,
        };
        is_right.then(|| actual.cloned()).flatten()
    }
}
