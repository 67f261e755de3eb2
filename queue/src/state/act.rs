//! Actions of tools: confirm, cancel, revive, drop. Named jobs have an outcome each; for filters
//! see [`matching`](super::matching).

use longshore_protocol::messages::work::{ActOutcome, Action, ActionReport, Pace, Selection};
use longshore_protocol::{
    AttemptOutcome, JobChange, JobId, JobState, LinkId, PathSet, Revoked, Token,
};

use super::State;
use super::matching::Selected;
use super::row::{NONE, Substate};
use crate::outcome::{Outcomes, Reply};

/// The parameters of an `Act`.
#[derive(Clone, Copy)]
pub(super) struct Act<'a> {
    pub(super) action: Action,
    pub(super) selection: &'a Selection,
    /// How fast revived jobs become ready; none for at once.
    pub(super) pace: Option<Pace>,
    /// The queues on which the tool may act; none for all.
    pub(super) within: Option<&'a PathSet>,
}

impl State {
    pub(super) fn act(&mut self, link: LinkId, request: u64, act: Act<'_>, out: &mut Outcomes) {
        let report = match act.selection {
            Selection::Ids(ids) => {
                let mut report = ActionReport::default();
                for id in ids {
                    let (outcome, slot) = self.outcome_of(act.action, id, act.within);
                    if outcome == ActOutcome::Done {
                        self.act_on(act, slot, report.done, out);
                    }
                    tally(&mut report, outcome);
                }
                report
            }
            Selection::Matching(filter) => {
                self.act_on_matching(act, &Selected { filter, within: act.within }, out)
            }
        };
        out.replies.push((link, Reply::Acted { request, report }));
    }

    /// The result of an action without performing it, and without a pace: the only dry run. For a
    /// filter: how many jobs it matches in total, not only in one step; by age it examines about
    /// 100,000 jobs, and sets `more` beyond that. For named jobs: the outcome of each by itself. So
    /// a name given twice counts twice, dead jobs with one unique key all do, of which one would be
    /// revived, and jobs that the action would push out of retention are not considered.
    pub fn preview(
        &self,
        action: Action,
        selection: &Selection,
        within: Option<&PathSet>,
    ) -> ActionReport {
        let mut report = ActionReport::default();
        match selection {
            Selection::Ids(ids) => {
                let outcome = |id| self.outcome_of(action, id, within).0;
                ids.iter().for_each(|id| tally(&mut report, outcome(id)));
            }
            Selection::Matching(filter) => {
                let selected = Selected { filter, within };
                (report.done, report.more) = self.count_matching(action, &selected);
            }
        }
        report
    }

    /// The action's outcome for a named job, and the job's row. A job of a queue that the tool may
    /// not act on is unknown, so that it does not learn of it.
    fn outcome_of(
        &self,
        action: Action,
        id: &JobId,
        within: Option<&PathSet>,
    ) -> (ActOutcome, u32) {
        let is_permitted = |slot: &u32| {
            let path = &self.queues[self.rows[*slot].queue as usize].path;
            within.is_none_or(|within| within.contains(path))
        };
        let Some(slot) = self.rows.find(id).filter(is_permitted) else {
            return (ActOutcome::Unknown, NONE);
        };
        let outcome = match self.rows[slot].substate.state() {
            None => ActOutcome::Unknown,
            Some(_) if action == Action::CloseBatch && self.is_closable(slot) => ActOutcome::Done,
            Some(state) if applies(action, state) => match self.rival(action, slot) {
                Some(holder) => ActOutcome::NotUnique(holder),
                None => ActOutcome::Done,
            },
            Some(_) if action == Action::Revive && self.is_open_after_death(slot) => {
                ActOutcome::Done
            }
            // A repeated request: its answer was lost.
            Some(_) if action == Action::Confirm && self.was_confirmed(slot) => ActOutcome::Done,
            Some(state) => ActOutcome::NotInState(state),
        };
        (outcome, slot)
    }

    /// The job that holds the unique key of one to be revived.
    pub(super) fn rival(&self, action: Action, slot: u32) -> Option<JobId> {
        if action == Action::Revive { self.rival_of(slot) } else { None }
    }

    /// Performs the action on a job that it applies to, as number `before` of the command.
    pub(super) fn act_on(&mut self, act: Act<'_>, slot: u32, before: u64, out: &mut Outcomes) {
        match act.action {
            Action::Confirm => self.confirm_job(slot, out),
            Action::Cancel => self.cancel_job(slot, out),
            Action::Revive => {
                let wait_ms = act.pace.map_or(0, |pace| wait_ms(pace, before));
                self.revive_job(slot, wait_ms, out);
            }
            Action::Drop => self.remove_job(slot, JobChange::Dropped, out),
            Action::CloseBatch => self.close_batch(slot),
        }
    }

    pub(super) fn cancel_job(&mut self, slot: u32, out: &mut Outcomes) {
        if self.rows[slot].substate == Substate::Running {
            let token = Token(self.rows[slot].when);
            let session = &self.sessions.table[self.rows[slot].session];
            if session.is_up {
                out.revoked.push((session.link, Revoked::Cancelled, token));
            }
            self.revoke_lease(slot, out);
            self.consume_attempt(slot, AttemptOutcome::Cancelled, None);
        }
        self.end_job(slot, Substate::Cancelled, JobChange::Cancelled, out);
    }

    /// Revives a dead job with all its attempts; it no longer expires. Its history stays. Of a
    /// batch, also an open one, it revives the dead members.
    pub(super) fn revive_job(&mut self, slot: u32, wait_ms: u64, out: &mut Outcomes) {
        if let Some(batch) = self.batch_of(slot) {
            return self.revive_batch(slot, batch, out);
        }
        self.count_revived_member(slot);
        let row = &mut self.rows[slot];
        (row.attempts, row.deliveries, row.unstarted_deliveries) = (0, 0, 0);
        if row.side != NONE {
            let side = self.side_mut(slot);
            (side.expires_at, side.worker_losses) = (None, 0);
            self.revive_unique(slot);
        }
        if wait_ms == 0 {
            self.return_job(slot, JobChange::Revived, out);
        } else {
            let due_ms = self.now.mono_ms.saturating_add(wait_ms);
            self.schedule_job(slot, Substate::Delayed, due_ms, JobChange::Revived, out);
        }
    }
}

/// Whether the action applies to jobs in that state.
pub(super) fn applies(action: Action, state: JobState) -> bool {
    use JobState::{
        Blocked, Cancelled, Completed, Dead, Expired, Prepared, Ready, Running, Scheduled,
    };
    match action {
        Action::Confirm => state == Prepared,
        Action::Cancel => matches!(state, Prepared | Scheduled | Blocked | Ready | Running),
        Action::Revive => state == Dead,
        Action::Drop => matches!(state, Dead | Completed | Cancelled | Expired),
        // Only what is known to be a batch.
        Action::CloseBatch => false,
    }
}

/// The wait of a job that is revived after `before` others of the same command.
fn wait_ms(pace: Pace, before: u64) -> u64 {
    let before = u128::from(pace.before) + u128::from(before);
    u64::try_from(before * 1_000 / u128::from(pace.per_second.max(1))).unwrap_or(u64::MAX)
}

fn tally(report: &mut ActionReport, outcome: ActOutcome) {
    match outcome {
        ActOutcome::Done => report.done += 1,
        ActOutcome::NotInState(_) | ActOutcome::NotUnique(_) => report.refused += 1,
        ActOutcome::Unknown => report.unknown += 1,
    }
    report.outcomes.push(outcome);
}
