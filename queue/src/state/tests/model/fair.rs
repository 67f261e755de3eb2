//! Fair keys of the model: passes by a scan of all jobs.

use longshore_protocol::Path;

use super::jobs::{Job, Phase};
use super::naive::Model;

const STRIDE: u64 = 1 << 20;

/// A fair key's jobs of one priority; those without one have none.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Share {
    path: Path,
    priority: i32,
    key: Option<String>,
    weight: u64,
    pass: u64,
}

/// What deliveries have come to, at a priority of a queue that has fair keys.
#[derive(Clone, Debug)]
pub(super) struct Level {
    path: Path,
    priority: i32,
    clock: u64,
}

impl Model {
    /// A job with that key was created.
    pub(super) fn join_share(
        &mut self,
        path: &Path,
        priority: i32,
        key: &str,
        weight: u16,
        sets_weight: bool,
    ) {
        let weight = u64::from(weight);
        let is_known = |share: &&mut Share| {
            share.path == *path && share.priority == priority && share.key.as_deref() == Some(key)
        };
        if let Some(share) = self.fair_shares.iter_mut().find(is_known) {
            share.weight = if sets_weight { weight } else { share.weight };
            return;
        }
        let is_level = |level: &&Level| level.path == *path && level.priority == priority;
        let clock = match self.fair_levels.iter().find(is_level) {
            Some(level) => level.clock,
            None => {
                let path = path.clone();
                self.fair_levels.push(Level { path: path.clone(), priority, clock: 0 });
                self.fair_shares.push(Share { path, priority, key: None, weight: 1, pass: 0 });
                0
            }
        };
        let (path, key, pass) = (path.clone(), Some(key.to_owned()), clock + STRIDE / weight);
        self.fair_shares.push(Share { path, priority, key, weight, pass });
    }

    /// True if a replacement at that priority needs one fair key too many.
    pub(super) fn has_no_share_for(&self, dead: &Job, priority: i32) -> bool {
        let Some(key) = &dead.fair else { return false };
        let keys = self.fair_keys(&dead.path, Some((priority, key)));
        keys > self.fair_keys(&dead.path, None) && keys as u64 > self.limits.fair_keys
    }

    /// The weight that a replacement of the job takes over.
    pub(super) fn weight_of(&self, job: &Job) -> u16 {
        let share = self.fair_shares.iter().find(|share| is_of(share, job));
        share.map_or(1, |share| share.weight as u16)
    }

    /// Shares without a job are forgotten, and levels without such a key.
    pub(super) fn forget_shares(&mut self) {
        let jobs = &self.jobs;
        self.fair_shares
            .retain(|share| share.key.is_none() || jobs.iter().any(|job| is_of(share, job)));
        let shares = self.fair_shares.clone();
        let has_keys = |path: &Path, priority: i32| {
            let mut with_keys = shares.iter().filter(|share| share.key.is_some());
            with_keys.any(|share| share.path == *path && share.priority == priority)
        };
        self.fair_levels.retain(|level| has_keys(&level.path, level.priority));
        self.fair_shares.retain(|share| has_keys(&share.path, share.priority));
    }

    /// How many fair keys there are, by priority, with one more.
    pub(super) fn fair_keys(&self, path: &Path, more: Option<(i32, &String)>) -> usize {
        let jobs = self.jobs.iter().chain(&self.replaced_by_batch);
        let keys =
            jobs.filter_map(|job| Some((&job.path, job.options.priority, job.fair.as_ref()?)));
        let more = more.map(|(priority, key)| (path, priority, key));
        let mut keys: Vec<_> = keys.chain(more).collect();
        keys.sort_unstable();
        keys.dedup();
        keys.len()
    }

    /// The jobs of which one is the queue's next: several only if shares are equal.
    fn queue_heads(&self, path: &Path) -> Vec<&Job> {
        let ready =
            || self.jobs.iter().filter(|job| job.path == *path && job.phase == Phase::Ready);
        let Some(priority) = ready().map(|job| job.options.priority).max() else {
            return Vec::new();
        };
        let at_level = || ready().filter(|job| job.options.priority == priority);
        let level = self.fair_levels.iter();
        let mut level = level.filter(|level| level.path == *path && level.priority == priority);
        let Some(level) = level.next() else {
            return at_level().min_by_key(|job| job.age()).into_iter().collect();
        };
        let shares = self.fair_shares.iter();
        let shares = shares.filter(|share| share.path == *path && share.priority == priority);
        let first =
            |share: &Share| at_level().filter(|job| is_of(share, job)).min_by_key(|j| j.age());
        let heads = shares.filter_map(|share| Some((share.pass.max(level.clock), first(share)?)));
        let heads: Vec<(u64, &Job)> = heads.collect();
        let least = heads.iter().map(|(pass, _)| *pass).min();
        let heads = heads.into_iter().filter(|(pass, _)| Some(*pass) == least);
        let heads: Vec<&Job> = heads.map(|(_, job)| job).collect();
        match heads.iter().find(|job| job.fair.is_none()) {
            Some(plain) => vec![plain],
            None => heads,
        }
    }

    /// The jobs of which one is the next of these queues. Between queues, the oldest job of the
    /// highest priority counts, whose turn it may not be.
    pub(super) fn possible_heads(&self, queues: &[&Path]) -> Vec<&Job> {
        let rank = |path: &Path| {
            let ready = self.jobs.iter();
            let ready = ready.filter(|job| job.path == *path && job.phase == Phase::Ready);
            ready.map(Job::rank).min()
        };
        let queues = queues.iter().filter_map(|path| Some((rank(path)?, *path)));
        let next = queues.min_by_key(|(rank, _)| *rank);
        next.map(|(_, path)| self.queue_heads(path)).unwrap_or_default()
    }

    /// The job was delivered.
    pub(super) fn charge_share(&mut self, number: usize) {
        let job = &self.jobs[number];
        let is_level =
            |level: &&mut Level| level.path == job.path && level.priority == job.options.priority;
        let Some(level) = self.fair_levels.iter_mut().find(is_level) else { return };
        let share = self.fair_shares.iter_mut().find(|share| is_of(share, job));
        let share = share.expect("every job at the level has a share");
        level.clock = level.clock.max(share.pass);
        share.pass = level.clock + STRIDE / share.weight;
    }
}

fn is_of(share: &Share, job: &Job) -> bool {
    (&share.path, share.priority, &share.key) == (&job.path, job.options.priority, &job.fair)
}
