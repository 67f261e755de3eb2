//! What tools do to jobs: cancel, revive, drop.

use longshore_protocol::messages::work::{Action, ActionReport, Filter, Selection};
use longshore_protocol::{AttemptOutcome, Glob, JobChange, JobState, LinkId, Revoked, Token};

use super::State;
use super::row::{NONE, Place};
use crate::outcome::{Outcomes, Reply};

impl State {
    pub(super) fn act(
        &mut self,
        link: LinkId,
        request: u64,
        action: Action,
        selection: &Selection,
        out: &mut Outcomes,
    ) {
        let report = match selection {
            Selection::Ids(ids) => {
                let mut report = ActionReport::default();
                for id in ids {
                    match self.rows.find(id) {
                        None => report.unknown += 1,
                        Some(slot) if !applies(action, self.rows[slot].place) => {
                            report.refused += 1;
                        }
                        Some(slot) => {
                            self.act_on(action, slot, out);
                            report.done += 1;
                        }
                    }
                }
                report
            }
            Selection::Matching(filter) if is_of_dead(action, filter) => {
                self.act_on_dead(action, filter, out)
            }
            Selection::Matching(Filter { pattern, state, .. }) => {
                self.act_on_matching(action, pattern, *state, out)
            }
        };
        out.replies.push((link, Reply::Acted { request, report }));
    }

    /// What an action would do, without doing it. Of a filter: to how many jobs in all, not only in one step.
    pub fn preview(&self, action: Action, selection: &Selection) -> ActionReport {
        let mut report = ActionReport::default();
        match selection {
            Selection::Ids(ids) => {
                for id in ids {
                    match self.rows.find(id).map(|slot| applies(action, self.rows[slot].place)) {
                        None => report.unknown += 1,
                        Some(false) => report.refused += 1,
                        Some(true) => report.done += 1,
                    }
                }
            }
            Selection::Matching(filter) if is_of_dead(action, filter) => {
                (report.done, report.more) = self.count_dead(filter);
            }
            Selection::Matching(Filter { pattern, state, .. }) => {
                for queue in self.queues_matching(pattern) {
                    report.done += self.applicable(action, queue, *state);
                }
            }
        }
        report
    }

    fn act_on_matching(
        &mut self,
        action: Action,
        pattern: &Glob,
        state: Option<JobState>,
        out: &mut Outcomes,
    ) -> ActionReport {
        let mut report = ActionReport::default();
        for queue in self.queues_matching(pattern) {
            while let Some(slot) = self.first_applicable(action, queue, state) {
                if report.done >= self.limits.step_jobs as u64 {
                    report.more = true;
                    return report;
                }
                self.act_on(action, slot, out);
                report.done += 1;
            }
        }
        report
    }

    /// Dead letters are acted on kind by kind, each in the order of death.
    fn act_on_dead(&mut self, action: Action, filter: &Filter, out: &mut Outcomes) -> ActionReport {
        let (slots, more) = self.dead_matching(filter, self.limits.step_jobs);
        slots.iter().for_each(|&slot| self.act_on(action, slot, out));
        ActionReport { done: slots.len() as u64, more, ..ActionReport::default() }
    }

    fn act_on(&mut self, action: Action, slot: u32, out: &mut Outcomes) {
        match action {
            Action::Cancel => {
                if self.rows[slot].place == Place::Running {
                    let token = Token(self.rows[slot].when);
                    let session = &self.sessions.table[self.rows[slot].session];
                    if session.is_up {
                        out.revoked.push((session.link, Revoked::Cancelled, token));
                    }
                    self.take_lease(slot, out);
                    self.consume_attempt(slot, AttemptOutcome::Cancelled, None);
                }
                self.end_job(slot, Place::Cancelled, JobChange::Cancelled, out);
            }
            Action::Revive => {
                let row = &mut self.rows[slot];
                (row.attempts, row.deliveries, row.lost) = (0, 0, 0);
                self.return_job(slot, JobChange::Revived, out);
            }
            Action::Confirm => self.confirm_job(slot, out),
            Action::Drop => self.forget_job(slot, JobChange::Dropped, out),
        }
    }

    /// A job of the queue that the action applies to: the ready ones first, then the scheduled, then the running.
    fn first_applicable(&self, action: Action, queue: u32, state: Option<JobState>) -> Option<u32> {
        let q = &self.queues[queue as usize];
        let wants = |s: JobState| state.is_none_or(|wanted| wanted == s);
        let slot = match action {
            Action::Cancel => {
                let ready = q.ready.next(&self.rows).filter(|_| wants(JobState::Ready));
                let ready = ready.map_or(NONE, |(_, slot)| slot);
                let scheduled = if wants(JobState::Scheduled) { q.scheduled.head } else { NONE };
                let running = if wants(JobState::Running) { q.running.head } else { NONE };
                let prepared = if wants(JobState::Prepared) { q.prepared.head } else { NONE };
                [ready, scheduled, prepared, running].into_iter().find(|&slot| slot != NONE)?
            }
            Action::Confirm if wants(JobState::Prepared) => q.prepared.head,
            Action::Revive | Action::Drop | Action::Confirm => NONE,
        };
        (slot != NONE).then_some(slot)
    }

    fn applicable(&self, action: Action, queue: u32, state: Option<JobState>) -> u64 {
        let c = &self.queues[queue as usize].counts;
        let by_state = [
            (JobState::Ready, c.ready, Place::Fresh),
            (JobState::Scheduled, c.scheduled + c.retrying, Place::Delayed),
            (JobState::Prepared, c.prepared, Place::Prepared),
            (JobState::Running, c.running, Place::Running),
        ];
        let chosen = by_state.into_iter().filter(|&(s, _, place)| {
            state.is_none_or(|wanted| wanted == s) && applies(action, place)
        });
        chosen.map(|(_, jobs, _)| jobs).sum()
    }
}

/// True when the filter takes dead letters: without a state, nothing else is revived or dropped.
fn is_of_dead(action: Action, filter: &Filter) -> bool {
    matches!(action, Action::Revive | Action::Drop)
        && filter.state.is_none_or(|state| state == JobState::Dead)
}

fn applies(action: Action, place: Place) -> bool {
    let state = place.state();
    match action {
        Action::Cancel => {
            use JobState::{Prepared, Ready, Running, Scheduled};
            matches!(state, Some(Prepared | Scheduled | Ready | Running))
        }
        Action::Revive | Action::Drop => state == Some(JobState::Dead),
        Action::Confirm => state == Some(JobState::Prepared),
    }
}
