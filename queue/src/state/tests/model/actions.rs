//! Actions of tools.

use std::collections::BTreeMap;

use longshore_protocol::messages::work::{
    ActOutcome, Action, ActionReport, DeadGroup, Filter, Pace, Selection,
};
use longshore_protocol::{
    AttemptOutcome, DeathReason, Fingerprint, JobChange, JobId, JobState, Path, PathSet, Revoked,
};

use super::dispatch::permits;
use super::jobs::{Job, Phase};
use super::naive::{Expected, Model};
use crate::outcome::{DeadGroupView, Reply};

impl Model {
    pub(super) fn act(
        &mut self,
        action: Action,
        selection: &Selection,
        pace: Option<Pace>,
        within: Option<&PathSet>,
        to: &mut Expected<'_>,
    ) -> ActionReport {
        match selection {
            Selection::Ids(ids) => {
                let mut report = ActionReport::default();
                let mut done = 0;
                for &id in ids {
                    let is_unknown = self.find(id).is_some_and(|number| {
                        within.is_some_and(|within| !permits(within, &self.jobs[number].path))
                    });
                    let outcome = match is_unknown {
                        true => ActOutcome::Unknown,
                        false => self.act_on_named(action, id, pace, &mut done, to),
                    };
                    match outcome {
                        ActOutcome::Done => report.done += 1,
                        ActOutcome::NotInState(_) | ActOutcome::NotUnique(_) => report.refused += 1,
                        ActOutcome::Unknown => report.unknown += 1,
                    }
                    report.outcomes.push(outcome);
                }
                report
            }
            Selection::Matching(filter) => self.act_on_matching(action, filter, pace, within, to),
        }
    }

    fn act_on_named(
        &mut self,
        action: Action,
        id: JobId,
        pace: Option<Pace>,
        done: &mut u64,
        to: &mut Expected<'_>,
    ) -> ActOutcome {
        let Some(number) = self.find(id) else { return ActOutcome::Unknown };
        let job = &self.jobs[number];
        if action == Action::Confirm && job.was_confirmed {
            ActOutcome::Done
        } else if action == Action::Revive
            && job.state() == JobState::Dead
            && let Some(rival) = self.rival(job)
        {
            ActOutcome::NotUnique(rival)
        } else if applies(action, job.state()) {
            self.act_on(action, number, pace, *done, to);
            *done += 1;
            ActOutcome::Done
        } else {
            ActOutcome::NotInState(job.state())
        }
    }

    fn act_on_matching(
        &mut self,
        action: Action,
        filter: &Filter,
        pace: Option<Pace>,
        within: Option<&PathSet>,
        to: &mut Expected<'_>,
    ) -> ActionReport {
        let mut candidates = self.matching(action, filter, within);
        let mut required: Vec<JobId> = candidates.clone();
        required.retain(|&id| self.is_selected_exactly(id, filter));
        let most = self.limits.step_jobs;
        let mut done = 0;
        let change = match action {
            Action::Confirm => JobChange::Confirmed,
            Action::Cancel => JobChange::Cancelled,
            Action::Revive => JobChange::Revived,
            Action::Drop | Action::CloseBatch => JobChange::Dropped,
        };
        // The state may choose any order.
        while done < most
            && let Some(nth) = candidates.iter().position(|&id| to.actual_next_is(change, id))
        {
            let id = candidates.remove(nth);
            required.retain(|&other| other != id);
            let job = self.find(id).expect("no earlier step removed it");
            self.act_on(action, job, pace, done, to);
            done += 1;
        }
        let is_refused = |id: &JobId| {
            let job = &self.jobs[self.find(*id).expect("it is left")];
            action == Action::Revive && self.rival(job).is_some()
        };
        required.retain(|id| !is_refused(id));
        let refused = candidates.iter().filter(|id| is_refused(id)).count() as u64;
        let reported = to.actual.replies.iter().find_map(|(_, reply)| match reply {
            Reply::Acted { report, .. } => Some(report),
            _ => None,
        });
        // A full step may leave out only jobs that would be refused, of which it does not know yet:
        // one of its own jobs has taken their unique key.
        if let Some(reported) = reported.filter(|reported| reported.more) {
            assert!(!candidates.is_empty() && done + reported.refused >= most, "{reported:?}");
            assert!(reported.refused <= refused, "{refused}: {reported:?}");
            return ActionReport { done, ..reported.clone() };
        }
        assert!(required.is_empty(), "{action:?} left out {required:?} of {filter:?}");
        ActionReport { done, refused, ..ActionReport::default() }
    }

    /// The jobs that the filter matches and the action applies to, in queues that the tool may use.
    pub(super) fn matching(
        &self,
        action: Action,
        filter: &Filter,
        within: Option<&PathSet>,
    ) -> Vec<JobId> {
        let state = match (action, filter.state) {
            (Action::Drop, None) => Some(JobState::Dead),
            (_, state) => state,
        };
        let fits = |job: &&Job| {
            let ended_at = job.ended.map(|(now, _)| now.wall_ms);
            let death = match job.phase {
                Phase::Dead(reason) => Some((reason, job.died_of)),
                _ => None,
            };
            filter.pattern.matches(&job.path)
                && within.is_none_or(|within| permits(within, &job.path))
                && state.is_none_or(|state| job.state() == state)
                && applies(action, job.state())
                && filter.matches_end_time(ended_at)
                && (filter.death.is_none() || filter.death == death.map(|(reason, _)| reason))
                && (filter.fingerprint.is_none() || filter.fingerprint == death.map(|(_, of)| of))
        };
        self.jobs.iter().filter(fits).map(|job| job.id).collect()
    }

    /// Dead letters by reason and fingerprint, largest groups first.
    pub(super) fn dead_groups(
        &self,
        filter: &Filter,
        within: Option<&PathSet>,
    ) -> Vec<DeadGroupView> {
        let filter = Filter { state: Some(JobState::Dead), ..filter.clone() };
        let mut kinds: BTreeMap<(Path, DeathReason, Fingerprint), Vec<&Job>> = BTreeMap::new();
        for id in self.matching(Action::Drop, &filter, within) {
            let job = &self.jobs[self.find(id).expect("it matches")];
            if let Phase::Dead(reason) = job.phase {
                kinds.entry((job.path.clone(), reason, job.died_of)).or_default().push(job);
            }
        }
        let view = |((path, death, fingerprint), mut jobs): ((_, _, _), Vec<&Job>)| {
            jobs.sort_by_key(|job| job.ended.map(|(_, nth)| nth));
            let (first, last) = (jobs[0], jobs[jobs.len() - 1]);
            let died_at = |job: &Job| job.ended.map_or(0, |(now, _)| now.wall_ms);
            let group = DeadGroup {
                path,
                death,
                fingerprint,
                jobs: jobs.len() as u64,
                first_at: died_at(first),
                last_at: died_at(last),
                example: last.id,
                error: None,
            };
            DeadGroupView { group, error: last.last_error().filter(|_| is_explained(death)) }
        };
        let mut groups: Vec<DeadGroupView> = kinds.into_iter().map(view).collect();
        groups.sort_by_key(|view| std::cmp::Reverse(view.group.jobs));
        groups
    }

    /// A selection by age walks from the ends of lists in order of end, and stops at the first job
    /// that does not match: exact while the wall clock rises; where it went back, later jobs may be
    /// left out.
    pub(super) fn is_selected_exactly(&self, id: JobId, filter: &Filter) -> bool {
        if filter.ended_from.is_none() && filter.ended_before.is_none() {
            return true;
        }
        let job = &self.jobs[self.find(id).expect("it matched")];
        let is_beside = |other: &&Job| {
            other.path == job.path
                && other.state().is_end()
                && match (job.phase, other.phase) {
                    (Phase::Dead(a), Phase::Dead(b)) => a == b && job.died_of == other.died_of,
                    (Phase::Dead(_), _) | (_, Phase::Dead(_)) => false,
                    _ => true,
                }
        };
        let mut ends: Vec<(u64, u64)> = (self.jobs.iter().filter(is_beside))
            .filter_map(|job| job.ended.map(|(now, nth)| (nth, now.wall_ms)))
            .collect();
        ends.sort_unstable();
        ends.windows(2).all(|pair| pair[0].1 <= pair[1].1)
    }

    /// True when the filter's selection is exact.
    pub(super) fn selection_is_exact(&self, action: Action, filter: &Filter) -> bool {
        let all_ages = Filter { ended_from: None, ended_before: None, ..filter.clone() };
        let all = self.matching(action, &all_ages, None);
        all.into_iter().all(|id| self.is_selected_exactly(id, filter))
    }

    fn act_on(
        &mut self,
        action: Action,
        number: usize,
        pace: Option<Pace>,
        nth: u64,
        to: &mut Expected<'_>,
    ) {
        match action {
            Action::Confirm => {
                self.jobs[number].was_confirmed = true;
                self.schedule_or_ready(number, JobChange::Confirmed, to);
            }
            Action::Cancel => {
                self.revoke(number, Some(Revoked::Cancelled), to);
                self.count_attempt(number, AttemptOutcome::Cancelled, None);
                self.end(number, Phase::Cancelled, JobChange::Cancelled, to);
            }
            Action::Revive => {
                let wait_ms = pace.map_or(0, |pace| {
                    let before = u128::from(pace.before) + u128::from(nth);
                    (before * 1_000 / u128::from(pace.per_second)) as u64
                });
                let job = &mut self.jobs[number];
                (job.attempts, job.deliveries, job.unstarted_deliveries) = (0, 0, 0);
                job.worker_losses = 0;
                (job.expires_at, job.ended) = (None, None);
                (job.ready_since, job.was_scheduled) = (self.now.mono_ms, true);
                let phase = match wait_ms {
                    0 => self.take_turn(number, to),
                    ms => Phase::Delayed(self.now.mono_ms + ms),
                };
                self.jobs[number].phase = phase;
                self.hold_unique(number);
                self.emit(number, JobChange::Revived, to);
            }
            Action::Drop => {
                self.emit(number, JobChange::Dropped, to);
                self.jobs.remove(number);
            }
            // The model has no batches.
            Action::CloseBatch => {}
        }
    }
}

/// True of deaths that a worker's error explains.
pub(super) fn is_explained(reason: DeathReason) -> bool {
    matches!(reason, DeathReason::AttemptsExhausted | DeathReason::Buried)
}

fn applies(action: Action, state: JobState) -> bool {
    use JobState::{
        Blocked, Cancelled, Completed, Dead, Expired, Prepared, Ready, Running, Scheduled,
    };
    match action {
        Action::Confirm => state == Prepared,
        Action::Cancel => matches!(state, Prepared | Scheduled | Blocked | Ready | Running),
        Action::Revive => state == Dead,
        Action::Drop => matches!(state, Dead | Completed | Cancelled | Expired),
        Action::CloseBatch => false,
    }
}
