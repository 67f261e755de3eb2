//! Order keys of the model: turns by a scan of all jobs.

use longshore_protocol::messages::work::BlockedBy;
use longshore_protocol::{JobChange, Path};

use super::jobs::{Job, Phase};
use super::naive::{Expected, Model};

impl Model {
    /// What a due job enters: ready if it has the turn of its key or may take it.
    pub(super) fn take_turn(&mut self, number: usize, to: &Expected<'_>) -> Phase {
        // It has left what it was in.
        self.jobs[number].phase = Phase::Prepared(0);
        if self.jobs[number].has_turn || self.jobs[number].order.is_none() {
            return self.take_room(number, to);
        }
        let others = self.others_of_key(number);
        if others.iter().any(|&other| {
            let job = &self.jobs[other];
            job.has_turn || job.phase == Phase::Blocked
        }) {
            return Phase::Blocked;
        }
        self.jobs[number].has_turn = true;
        self.take_room(number, to)
    }

    /// A blocked job has got the turn: it is ready, or waits on, without an event.
    pub(super) fn get_turn(&mut self, number: usize, to: &mut Expected<'_>) {
        let job = &mut self.jobs[number];
        (job.has_turn, job.ready_since, job.was_scheduled) = (true, self.now.mono_ms, true);
        let is_ready = to.actual_next_is(JobChange::Unblocked, job.id);
        assert!(is_ready || job.limit.is_some(), "{job:?} has the turn");
        job.phase = Phase::Limited;
        if is_ready {
            self.get_room(number, to);
        }
    }

    fn get_room(&mut self, number: usize, to: &mut Expected<'_>) {
        let job = &self.jobs[number];
        assert!(job.limit.is_none() || self.may_get_room(job), "no room for {job:?}");
        let job = &mut self.jobs[number];
        (job.phase, job.ready_since, job.was_scheduled) = (Phase::Ready, self.now.mono_ms, true);
        self.emit(number, JobChange::Unblocked, to);
    }

    /// Turns that change between jobs that wait in any case.
    fn settle_unseen(&mut self) {
        for number in 0..self.jobs.len() {
            let job = &self.jobs[number];
            if job.phase == Phase::Limited && self.overtaker_of(job).is_some() {
                let job = &mut self.jobs[number];
                (job.phase, job.has_turn) = (Phase::Blocked, false);
            }
        }
        for number in 0..self.jobs.len() {
            let job = &self.jobs[number];
            if job.limit.is_some() && self.may_take_turn(job) {
                let job = &mut self.jobs[number];
                (job.phase, job.has_turn) = (Phase::Limited, true);
            }
        }
    }

    /// Follows the turns that the state gives, and checks that each is due, and that none is left.
    pub(super) fn settle_turns(&mut self, to: &mut Expected<'_>) {
        self.settle_unseen();
        while let Some(event) = to.next_actual_event() {
            let Some(number) = self.find(event.job) else { break };
            match event.change {
                JobChange::Blocked => {
                    let job = &self.jobs[number];
                    let is_overtaken = self.overtaker_of(job).is_some();
                    let loses_room = job.limit.is_some() && self.may_lose_room(job);
                    assert!(is_overtaken || loses_room, "nobody overtakes {job:?}");
                    let job = &mut self.jobs[number];
                    job.phase = if is_overtaken { Phase::Blocked } else { Phase::Limited };
                    job.has_turn &= !is_overtaken;
                    (job.ready_since, job.was_scheduled) = (self.now.mono_ms, true);
                    self.emit(number, JobChange::Blocked, to);
                }
                JobChange::Unblocked if self.jobs[number].phase == Phase::Limited => {
                    self.get_room(number, to);
                }
                JobChange::Unblocked => {
                    let job = &self.jobs[number];
                    assert!(self.may_take_turn(job), "it is not the turn of {job:?}");
                    self.get_turn(number, to);
                }
                _ => break,
            }
            self.settle_unseen();
        }
        for job in &self.jobs {
            assert!(!self.may_take_turn(job), "the turn of {job:?} did not come");
            assert!(self.overtaker_of(job).is_none(), "{job:?} kept its turn");
        }
    }

    /// How a blocked job waits.
    pub(super) fn blocked_by(&self, job: &Job, actual: Option<&BlockedBy>) -> Option<BlockedBy> {
        if job.phase != Phase::Blocked {
            return self.limited_by(job, actual);
        }
        let key = job.order.clone()?;
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
        let waits = matches!(job.phase, Phase::Ready | Phase::Limited);
        let may = job.has_turn && !job.keeps_turn && waits;
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
