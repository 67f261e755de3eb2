//! Order keys of the model: turns by a scan of all jobs.

use longshore_protocol::messages::work::BlockedBy;
use longshore_protocol::{JobChange, Path};

use super::jobs::{Job, Phase};
use super::naive::{Expected, Model};

impl Model {
    /// What a due job enters: ready if it has the turn of its key or may take it.
    pub(super) fn take_turn(&mut self, number: usize) -> Phase {
        if self.jobs[number].has_turn || self.jobs[number].order.is_none() {
            return Phase::Ready;
        }
        let others = self.others_of_key(number);
        if others.iter().any(|&other| {
            let job = &self.jobs[other];
            job.has_turn || job.phase == Phase::Blocked
        }) {
            return Phase::Blocked;
        }
        self.jobs[number].has_turn = true;
        Phase::Ready
    }

    /// Follows the turns that the state gives, and checks that each is due, and that none is left.
    pub(super) fn settle_turns(&mut self, to: &mut Expected<'_>) {
        while let Some(event) = to.next_actual_event() {
            let Some(number) = self.find(event.job) else { break };
            match event.change {
                JobChange::Blocked => {
                    let job = &self.jobs[number];
                    assert!(self.overtaker_of(job).is_some(), "nobody overtakes {job:?}");
                    let job = &mut self.jobs[number];
                    (job.phase, job.has_turn) = (Phase::Blocked, false);
                    (job.ready_since, job.was_scheduled) = (self.now.mono_ms, true);
                    self.emit(number, JobChange::Blocked, to);
                }
                JobChange::Unblocked => {
                    let job = &self.jobs[number];
                    assert!(self.may_take_turn(job), "it is not the turn of {job:?}");
                    let job = &mut self.jobs[number];
                    (job.phase, job.has_turn) = (Phase::Ready, true);
                    (job.ready_since, job.was_scheduled) = (self.now.mono_ms, true);
                    self.emit(number, JobChange::Unblocked, to);
                }
                _ => break,
            }
        }
        for job in &self.jobs {
            assert!(!self.may_take_turn(job), "the turn of {job:?} did not come");
            assert!(self.overtaker_of(job).is_none(), "{job:?} kept its turn");
        }
    }

    /// How a blocked job waits.
    pub(super) fn blocked_by(&self, job: &Job) -> Option<BlockedBy> {
        let key = job.order.clone().filter(|_| job.phase == Phase::Blocked)?;
        let with_turn = self.jobs.iter().find(|other| other.has_turn && is_of(other, job));
        let with_turn = with_turn.expect("somebody has the turn");
        Some(BlockedBy::Order { key, job: with_turn.id, state: with_turn.state() })
    }

    /// How many order keys there are, with one more.
    pub(super) fn order_keys(&self, path: &Path, more: Option<&String>) -> usize {
        let jobs = self.jobs.iter().chain(&self.replaced_by_batch);
        let keys = jobs.filter_map(|job| Some((&job.path, job.order.as_ref()?)));
        let mut keys: Vec<(&Path, &String)> = keys.chain(more.map(|key| (path, key))).collect();
        keys.sort_unstable();
        keys.dedup();
        keys.len()
    }

    /// It waits, is the oldest that does, and nobody has the turn.
    fn may_take_turn(&self, job: &Job) -> bool {
        let same = || self.jobs.iter().filter(|other| is_of(other, job));
        job.phase == Phase::Blocked
            && same().all(|other| !other.has_turn)
            && same().all(|other| other.phase != Phase::Blocked || other.age() >= job.age())
    }

    /// An older job that waits while this one has the turn, and was never delivered.
    fn overtaker_of(&self, job: &Job) -> Option<&Job> {
        let waits = |other: &&Job| {
            is_of(other, job) && other.phase == Phase::Blocked && other.age() < job.age()
        };
        let overtaker = self.jobs.iter().find(waits);
        let may = job.has_turn && !job.keeps_turn && job.phase == Phase::Ready;
        overtaker.filter(|_| may && job.deliveries == 0)
    }

    fn others_of_key(&self, number: usize) -> Vec<usize> {
        let all = (0..self.jobs.len()).filter(|&other| other != number);
        all.filter(|&other| is_of(&self.jobs[other], &self.jobs[number])).collect()
    }
}

fn is_of(other: &Job, job: &Job) -> bool {
    job.order.is_some() && (&other.path, &other.order) == (&job.path, &job.order)
}
