//! The jobs that a filter matches and an action applies to, in bounded steps.
//!
//! Each queue has lists of its jobs by state, so other queues' jobs are not examined. Ended jobs
//! are in the order in which they ended: a filter by age selects a run from the oldest on, or up to
//! the newest. The wall clock may have gone back in between, so a run ends at the first job that
//! does not match.

use std::ops::Deref;

use longshore_protocol::messages::work::{Action, ActionReport, Filter};
use longshore_protocol::{JobState, PathSet};

use super::State;
use super::act::{Act, applies};
use super::row::{NONE, Row};
use super::steps;
use crate::outcome::Outcomes;

/// States of jobs that have not ended, in the order in which an act handles them.
const OPEN: [JobState; 5] = [
    JobState::Blocked,
    JobState::Ready,
    JobState::Scheduled,
    JobState::Prepared,
    JobState::Running,
];
/// States of ended jobs that a queue retains for a time.
const ENDED: [JobState; 3] = [JobState::Completed, JobState::Cancelled, JobState::Expired];

/// The states of the jobs that a filter selects.
struct MatchingStates {
    open: Vec<JobState>,
    ended: Vec<JobState>,
    dead: bool,
}

impl MatchingStates {
    /// The states that the action applies to and the filter allows. If dead jobs are among them,
    /// other ended jobs are excluded: without a state only dead jobs are dropped, so that nobody
    /// drops results by accident.
    fn of(action: Action, filter: &Filter) -> MatchingStates {
        let takes = |state: &JobState| {
            let is_dead = *state == JobState::Dead;
            applies(action, *state)
                && filter.state.is_none_or(|expected| expected == *state)
                && (is_dead || filter.death.is_none() && filter.fingerprint.is_none())
                && (state.is_end() || filter.matches_end_time(None))
        };
        let dead = takes(&JobState::Dead);
        MatchingStates {
            open: OPEN.into_iter().filter(takes).collect(),
            ended: if dead { Vec::new() } else { ENDED.into_iter().filter(takes).collect() },
            dead,
        }
    }
}

/// A filter, and the queues that its client may select; none for all.
#[derive(Clone, Copy)]
pub(super) struct Selected<'a> {
    pub(super) filter: &'a Filter,
    pub(super) within: Option<&'a PathSet>,
}

impl Deref for Selected<'_> {
    type Target = Filter;

    fn deref(&self) -> &Filter {
        self.filter
    }
}

impl State {
    /// The numbers of the selected queues, in the order of their creation.
    pub(super) fn queues_selected(&self, selected: &Selected<'_>) -> Vec<u32> {
        self.queues_within(&selected.filter.pattern, selected.within)
    }

    /// Acts on at most 10,000 of the jobs that the filter matches.
    pub(super) fn act_on_matching(
        &mut self,
        act: Act<'_>,
        filter: &Selected<'_>,
        out: &mut Outcomes,
    ) -> ActionReport {
        let states = MatchingStates::of(act.action, filter);
        let mut report = ActionReport::default();
        let most = self.rules.step_jobs as usize;
        for queue in self.queues_selected(filter) {
            for &state in &states.open {
                while let Some(slot) = self.first_open(queue, state) {
                    if report.done >= most as u64 {
                        report.more = true;
                        return report;
                    }
                    self.act_on(act, slot, report.done, out);
                    report.done += 1;
                }
            }
        }
        let mut refused = 0;
        let (ended, more) = if states.dead {
            self.advance_dead_cursors(filter);
            let takes = |slot| {
                let is_refused = self.rival(act.action, slot).is_some();
                refused += u64::from(is_refused);
                !is_refused
            };
            self.dead_matching(filter, most, takes)
        } else {
            self.advance_ended_cursors(&states.ended, filter);
            self.ended_matching(&states.ended, filter, most)
        };
        report.refused = refused;
        for slot in ended {
            // Another one of the step may have taken its unique key.
            if self.rival(act.action, slot).is_some() {
                report.refused += 1;
                continue;
            }
            self.act_on(act, slot, report.done, out);
            report.done += 1;
        }
        report.more = more;
        report
    }

    /// How many jobs the filter matches, and whether there are more than could be examined.
    pub(super) fn count_matching(&self, action: Action, filter: &Selected<'_>) -> (u64, bool) {
        let states = MatchingStates::of(action, filter);
        if states.dead {
            return self.count_dead(filter);
        }
        let by_age = filter.ended_from.is_some() || filter.ended_before.is_some();
        if by_age && !states.ended.is_empty() {
            let (found, more) = self.ended_matching(&states.ended, filter, usize::MAX);
            return (found.len() as u64, more);
        }
        let queues = self.queues_selected(filter);
        let queues = queues.into_iter().map(|queue| &self.queues[queue as usize]);
        let of =
            |state: &JobState| queues.clone().map(|queue| queue.selectable(*state)).sum::<u64>();
        (states.open.iter().chain(&states.ended).map(of).sum(), false)
    }

    /// True of a job that matches every part of a filter but its queues: for listings.
    pub(super) fn matches(&self, row: &Row, filter: &Filter) -> bool {
        let Some(state) = row.substate.state() else { return false };
        if filter.state.is_some_and(|expected| expected != state) {
            return false;
        }
        if filter.death.is_some() || filter.fingerprint.is_some() {
            let kind = self.kind_of_death(row);
            let fits_death = |expected| kind.is_some_and(|(reason, _)| reason == expected);
            let fits_error =
                |expected| kind.is_some_and(|(_, fingerprint)| fingerprint == expected);
            if !filter.death.is_none_or(fits_death) || !filter.fingerprint.is_none_or(fits_error) {
                return false;
            }
        }
        filter.matches_end_time(state.is_end().then_some(row.when))
    }

    /// The job of the queue in that state that is handled first.
    fn first_open(&self, queue: u32, state: JobState) -> Option<u32> {
        let q = &self.queues[queue as usize];
        let slot = match state {
            JobState::Ready => self.next_ready(queue).map_or(NONE, |(_, slot)| slot),
            JobState::Blocked => q.blocked.head,
            JobState::Scheduled => q.scheduled.head,
            JobState::Prepared => q.prepared.head,
            JobState::Running => q.running.head,
            _ => NONE,
        };
        non_empty(slot)
    }

    /// Retained jobs in those states that match the filter's queues and age, at most `most`; and
    /// whether there are more. Once one is found, at most 100,000 are examined in total; `more` is
    /// set beyond that.
    fn ended_matching(
        &self,
        states: &[JobState],
        filter: &Selected<'_>,
        most: usize,
    ) -> (Vec<u32>, bool) {
        let mut found = Vec::new();
        let mut rows_left = self.rules.step_rows;
        // The run up to the newest when only young ones are selected.
        let newest_first = filter.ended_from.is_some() && filter.ended_before.is_none();
        if states.is_empty() {
            return (found, false);
        }
        for queue in self.queues_selected(filter) {
            let q = &self.queues[queue as usize];
            let mut jobs_left: u64 = states.iter().map(|&state| q.selectable(state)).sum();
            for (list, cursors) in [q.ended.list, q.ended.own].into_iter().zip(q.ended.age_cursors)
            {
                let first = match filter.ended_from {
                    Some(from) if !newest_first => cursors.start(from, list.head, &self.rows),
                    _ if newest_first => list.tail,
                    _ => list.head,
                };
                let mut has_begun = false;
                for slot in self.by_end(first, newest_first) {
                    steps::count(1);
                    if jobs_left == 0 {
                        break;
                    }
                    if rows_left == 0 && !found.is_empty() {
                        return (found, true);
                    }
                    rows_left = rows_left.saturating_sub(1);
                    let row = &self.rows[slot];
                    let is_before = filter.ended_from.is_some_and(|from| row.when < from);
                    let is_own = row.substate.state().is_some_and(|state| states.contains(&state));
                    if !has_begun && !newest_first && is_before {
                        jobs_left -= u64::from(is_own);
                        continue;
                    }
                    if !filter.matches_end_time(Some(row.when)) {
                        break;
                    }
                    has_begun = true;
                    if !is_own {
                        continue;
                    }
                    if found.len() >= most {
                        return (found, true);
                    }
                    jobs_left -= 1;
                    found.push(slot);
                }
            }
        }
        (found, false)
    }

    /// Advances the cursors of each queue's lists to the filter's age, from the cursor of an age
    /// that is no younger.
    fn advance_ended_cursors(&mut self, states: &[JobState], filter: &Selected<'_>) {
        let Some(from) = filter.ended_from.filter(|_| filter.ended_before.is_some()) else {
            return;
        };
        if states.is_empty() {
            return;
        }
        for queue in self.queues_selected(filter) {
            let ended = &mut self.queues[queue as usize].ended;
            for (list, cursors) in [ended.list, ended.own].into_iter().zip(&mut ended.age_cursors) {
                *cursors = cursors.advance(from, list.head, &self.rows);
            }
        }
    }

    fn by_end(&self, first: u32, newest_first: bool) -> impl Iterator<Item = u32> {
        std::iter::successors(non_empty(first), move |&slot| {
            let row = &self.rows[slot];
            non_empty(if newest_first { row.prev } else { row.next })
        })
    }
}

fn non_empty(slot: u32) -> Option<u32> {
    (slot != NONE).then_some(slot)
}
