//! Dead letters, grouped by queue, reason and fingerprint, each group a list in the order of death.
//! Counting, listing and acting on one group never touches the others.
//!
//! A filter by age selects a run of a list: from the oldest on, or up to the newest. The wall clock
//! may have gone back in between, so a run ends at the first job that does not match.

use std::collections::BTreeMap;

use longshore_protocol::limits::DEAD_GROUPS_MAX;
use longshore_protocol::messages::work::{DeadGroup, Filter};
use longshore_protocol::{
    DeathReason, Decode, Encode, Fingerprint, FrameWriter, JobState, PathSet, Reader, WireError,
};

use super::State;
use super::age_cursor::AgeCursors;
use super::chunks::Shared;
use super::limits::PAGE_ROWS_MAX;
use super::matching::Selected;
use super::row::{NONE, Row, Substate};
use super::rows::{Links, List};
use super::slab::Slab;
use super::steps;
use crate::outcome::DeadGroupView;

/// Jobs that a count by age examines; 100 in tests, so that a test can exceed it.
const AGE_ROWS_MAX: u32 = if cfg!(test) { 100 } else { PAGE_ROWS_MAX };

/// Queue, code of the reason, fingerprint.
type GroupKey = (u32, u8, Fingerprint);

/// The dead jobs of one group.
#[derive(Clone, Debug)]
pub(super) struct DeadLetterGroup {
    pub(super) queue: u32,
    pub(super) reason: DeathReason,
    pub(super) fingerprint: Fingerprint,
    /// In the order of death.
    pub(super) list: List,
    pub(super) jobs: u64,
    /// Where the next step of an act by age begins. Not in snapshots: it changes which jobs are
    /// examined, not which are found.
    pub(super) cursors: AgeCursors,
}

impl DeadLetterGroup {
    fn group_key(&self) -> GroupKey {
        (self.queue, self.reason.code(), self.fingerprint)
    }
}

/// All groups; none is empty.
#[derive(Clone, Debug, Default)]
pub(super) struct DeadLetters {
    groups: Slab<DeadLetterGroup>,
    by_key: BTreeMap<GroupKey, u32>,
}

impl DeadLetters {
    /// The group with that key; created if missing.
    pub(super) fn group_for(
        &mut self,
        queue: u32,
        reason: DeathReason,
        fingerprint: Fingerprint,
    ) -> u32 {
        let group_key = (queue, reason.code(), fingerprint);
        match self.by_key.get(&group_key) {
            Some(&number) => number,
            None => {
                let list = List::default();
                let cursors = AgeCursors::default();
                let group = DeadLetterGroup { queue, reason, fingerprint, list, jobs: 0, cursors };
                let number = self.groups.insert(group);
                self.by_key.insert(group_key, number);
                number
            }
        }
    }

    pub(super) fn group_mut(&mut self, number: u32) -> &mut DeadLetterGroup {
        &mut self.groups[number]
    }

    /// Removes an empty group.
    pub(super) fn remove(&mut self, number: u32) {
        if let Some(group) = self.groups.remove(number) {
            self.by_key.remove(&group.group_key());
        }
    }

    pub(super) fn get(&self, number: u32) -> Option<&DeadLetterGroup> {
        self.groups.get(number)
    }

    /// The groups of a queue, by reason and fingerprint.
    pub(super) fn of_queue(&self, queue: u32) -> impl Iterator<Item = (u32, &DeadLetterGroup)> {
        let all = (queue, 0, Fingerprint(0))..=(queue, u8::MAX, Fingerprint(u64::MAX));
        self.by_key.range(all).map(|(_, &number)| (number, &self.groups[number]))
    }

    /// The table as it is now, shared.
    pub(super) fn freeze(&mut self) -> (Shared<Option<DeadLetterGroup>>, Shared<u32>) {
        self.groups.freeze()
    }

    pub(super) fn table(&self) -> &Slab<DeadLetterGroup> {
        &self.groups
    }

    /// The groups of a snapshot; none if two have one key. Jobs are counted as they are restored.
    pub(super) fn from_table(groups: Slab<DeadLetterGroup>) -> Option<DeadLetters> {
        let by_key: BTreeMap<GroupKey, u32> =
            groups.iter().map(|(number, group)| (group.group_key(), number)).collect();
        (by_key.len() == groups.len()).then_some(DeadLetters { groups, by_key })
    }

    pub(super) fn is_known_as(&self, number: u32, group: &DeadLetterGroup) -> bool {
        self.by_key.get(&group.group_key()) == Some(&number)
            && self.by_key.len() == self.groups.len()
    }
}

/// The jobs of a group that match an age.
struct AgeRange {
    jobs: u64,
    first: u32,
    last: u32,
    /// How many jobs were examined.
    examined: u32,
    /// The group was not examined to its end.
    more: bool,
}

impl State {
    /// Groups of dead letters, largest first, at most 1,000; and whether others, or further jobs of
    /// these, may match. A filter by age examines at most 100,000 jobs in total, or one of each
    /// group.
    pub fn dead_groups(
        &self,
        filter: &Filter,
        within: Option<&PathSet>,
    ) -> (Vec<DeadGroupView>, bool) {
        let mut found = self.age_ranges(&Selected { filter, within });
        let mut more = found.iter().any(|(_, range)| range.more);
        found.retain(|(_, range)| range.jobs > 0);
        let path = |group: &DeadLetterGroup| &self.queues[group.queue as usize].path;
        let order = |(a, one): &(&DeadLetterGroup, AgeRange),
                     (b, other): &(&DeadLetterGroup, AgeRange)| {
            let most_first = other.jobs.cmp(&one.jobs);
            let rest = (path(a), a.reason.code(), a.fingerprint);
            most_first.then_with(|| rest.cmp(&(path(b), b.reason.code(), b.fingerprint)))
        };
        if found.len() > DEAD_GROUPS_MAX {
            found.select_nth_unstable_by(DEAD_GROUPS_MAX, order);
            found.truncate(DEAD_GROUPS_MAX);
            more = true;
        }
        found.sort_unstable_by(order);
        (
            found.into_iter().map(|(group, range)| self.dead_group_view(group, &range)).collect(),
            more,
        )
    }

    /// Dead jobs that match the filter's queue, reason, fingerprint and age, and that the action
    /// takes, at most `most`; and whether there are more. At most 100,000 that it does not take are
    /// examined; `more` is set beyond that. The caller checks the filter's states. Jobs older than
    /// the filter's age are skipped once: each group stores where the next step begins.
    pub(super) fn dead_matching(
        &self,
        filter: &Selected<'_>,
        most: usize,
        mut takes: impl FnMut(u32) -> bool,
    ) -> (Vec<u32>, bool) {
        let (mut found, mut rows_left) = (Vec::new(), self.rules.step_rows);
        for (_, group) in self.dead_groups_matching(filter) {
            let jobs = self.walk_group(group, filter).inspect(|_| steps::count(1));
            for slot in jobs.skip_while(|&slot| is_before(&self.rows[slot], filter)) {
                if !matches_age(&self.rows[slot], filter) {
                    break;
                }
                if found.len() >= most || rows_left == 0 {
                    return (found, true);
                }
                if takes(slot) {
                    found.push(slot);
                } else {
                    rows_left -= 1;
                }
            }
        }
        (found, false)
    }

    /// The number of jobs that `dead_matching` would find in total. By age it examines at most
    /// 100,000 jobs, or one of each group, and sets `more` beyond that.
    pub(super) fn count_dead(&self, filter: &Selected<'_>) -> (u64, bool) {
        let ranges = self.age_ranges(filter);
        let more = ranges.iter().any(|(_, range)| range.more);
        (ranges.iter().map(|(_, range)| range.jobs).sum(), more)
    }

    /// Adds a job to its group, and stores the group's number in its row.
    pub(super) fn enter_dead_letters(&mut self, slot: u32, reason: DeathReason) {
        let fingerprint = self.fingerprint_of_death(slot, reason);
        let number = self.dead.group_for(self.rows[slot].queue, reason, fingerprint);
        let died = self.now.mono_ms;
        let row = &mut self.rows[slot];
        row.session = number;
        row.set_ended_mono_ms(died);
        let queue = row.queue;
        let group = self.dead.group_mut(number);
        group.jobs += 1;
        if group.list.is_empty() {
            self.queues[queue as usize].ended.oldest_dead.insert((died, number));
        }
        group.list.push_back(&mut self.rows, Links::Main, slot);
    }

    /// Counts a dead job of a snapshot in its group.
    pub(super) fn index_dead(&mut self, slot: u32) {
        let row = &self.rows[slot];
        let group = self.dead.group_mut(row.session);
        group.jobs += 1;
        if group.list.head == slot {
            let died = row.ended_mono_ms();
            self.queues[row.queue as usize].ended.oldest_dead.insert((died, row.session));
        }
    }

    pub(super) fn leave_dead_letters(&mut self, slot: u32) {
        let row = &mut self.rows[slot];
        let (number, died) = (std::mem::replace(&mut row.session, NONE), row.ended_mono_ms());
        (row.queue_prev, row.queue_next) = (NONE, NONE);
        let group = self.dead.group_mut(number);
        let was_oldest = group.list.head == slot;
        group.cursors.on_remove(slot, self.rows[slot].prev);
        group.list.unlink(&mut self.rows, Links::Main, slot);
        group.jobs -= 1;
        if was_oldest {
            let oldest_dead = &mut self.queues[group.queue as usize].ended.oldest_dead;
            oldest_dead.remove(&(died, number));
            if group.list.head != NONE {
                let next = self.rows[group.list.head].ended_mono_ms();
                oldest_dead.insert((next, number));
            }
        }
        if group.jobs == 0 {
            self.dead.remove(number);
        }
    }

    /// A dead job's reason and fingerprint.
    pub(super) fn kind_of_death(&self, row: &Row) -> Option<(DeathReason, Fingerprint)> {
        let is_dead = row.substate == Substate::Dead;
        let group = is_dead.then(|| self.dead.get(row.session)).flatten();
        group.map(|group| (group.reason, group.fingerprint))
    }

    /// A dead job's reason.
    pub(super) fn death_of(&self, row: &Row) -> Option<DeathReason> {
        self.kind_of_death(row).map(|(reason, _)| reason)
    }

    /// The fingerprint of the worker's error for deaths that it explains, and that of an empty
    /// error for others.
    fn fingerprint_of_death(&self, slot: u32, reason: DeathReason) -> Fingerprint {
        let last = self.side(&self.rows[slot]).and_then(|side| side.attempts.last());
        let error = last.filter(|_| is_explained(reason)).and_then(|attempt| attempt.error);
        error.map_or_else(|| Fingerprint::of_parts("", ""), |(_, fingerprint)| fingerprint)
    }

    fn dead_groups_matching(
        &self,
        filter: &Selected<'_>,
    ) -> impl Iterator<Item = (u32, &DeadLetterGroup)> {
        let (reason, fingerprint) = (filter.death, filter.fingerprint);
        let queues = self.queues_selected(filter).into_iter();
        queues.flat_map(|queue| self.dead.of_queue(queue)).filter(move |(_, group)| {
            reason.is_none_or(|expected| expected == group.reason)
                && fingerprint.is_none_or(|expected| expected == group.fingerprint)
        })
    }

    /// Advances each group's cursor to the filter's age, from the cursor of an age that is no
    /// younger.
    pub(super) fn advance_dead_cursors(&mut self, filter: &Selected<'_>) {
        let Some(from) = filter.ended_from.filter(|_| !is_newest_first(filter)) else { return };
        let kinds: Vec<u32> = self.dead_groups_matching(filter).map(|(number, _)| number).collect();
        for number in kinds {
            let group = self.dead.group_mut(number);
            group.cursors = group.cursors.advance(from, group.list.head, &self.rows);
        }
    }

    /// The jobs of a group: newest first when only young ones are selected; else without those
    /// that the group's cursor has passed.
    fn walk_group(&self, group: &DeadLetterGroup, filter: &Filter) -> impl Iterator<Item = u32> {
        let newest_first = is_newest_first(filter);
        let first = match filter.ended_from {
            _ if newest_first => group.list.tail,
            Some(from) => group.cursors.start(from, group.list.head, &self.rows),
            None => group.list.head,
        };
        let step = move |slot: u32| {
            let row = &self.rows[slot];
            if newest_first { row.prev } else { row.next }
        };
        std::iter::successors(non_empty(first), move |&slot| non_empty(step(slot)))
    }

    /// The matching groups, each with its jobs that match an age. Small groups are examined first,
    /// and each may use an even share of what is left, so that no large one hides another.
    fn age_ranges(&self, filter: &Selected<'_>) -> Vec<(&DeadLetterGroup, AgeRange)> {
        let groups = self.dead_groups_matching(filter).map(|(_, group)| group);
        if filter.ended_from.is_none() && filter.ended_before.is_none() {
            let whole = |group: &DeadLetterGroup| {
                let List { head, tail } = group.list;
                AgeRange { jobs: group.jobs, first: head, last: tail, examined: 0, more: false }
            };
            return groups.map(|group| (group, whole(group))).collect();
        }
        let mut groups: Vec<&DeadLetterGroup> = groups.collect();
        groups.sort_by_key(|group| group.jobs);
        let (mut rows_left, mut groups_left) = (AGE_ROWS_MAX, groups.len() as u32);
        let range_of = |group| {
            let range = self.age_range_of(group, filter, (rows_left / groups_left).max(1));
            rows_left = rows_left.saturating_sub(range.examined);
            groups_left -= 1;
            (group, range)
        };
        groups.into_iter().map(range_of).collect()
    }

    fn age_range_of(&self, group: &DeadLetterGroup, filter: &Filter, most: u32) -> AgeRange {
        let mut range = AgeRange { jobs: 0, first: NONE, last: NONE, examined: 0, more: false };
        for slot in self.walk_group(group, filter) {
            if range.examined == most {
                range.more = true;
                break;
            }
            range.examined += 1;
            if range.jobs == 0 && is_before(&self.rows[slot], filter) {
                continue;
            }
            if !matches_age(&self.rows[slot], filter) {
                break;
            }
            range.jobs += 1;
            range.first = if range.first == NONE { slot } else { range.first };
            range.last = slot;
        }
        if is_newest_first(filter) {
            std::mem::swap(&mut range.first, &mut range.last);
        }
        range
    }

    fn dead_group_view(&self, group: &DeadLetterGroup, range: &AgeRange) -> DeadGroupView {
        let (first, last) = (&self.rows[range.first], &self.rows[range.last]);
        let error = self.side(last).and_then(|side| side.attempts.last()?.error);
        let error = error.filter(|_| is_explained(group.reason));
        let group = DeadGroup {
            path: self.queues[group.queue as usize].path.clone(),
            death: group.reason,
            fingerprint: group.fingerprint,
            jobs: range.jobs,
            first_at: first.when,
            last_at: last.when,
            example: last.id,
            error: None,
        };
        DeadGroupView { group, error: error.map(|(at, _)| at) }
    }
}

/// True of deaths that a worker's error explains.
fn is_explained(reason: DeathReason) -> bool {
    matches!(reason, DeathReason::AttemptsExhausted | DeathReason::Buried)
}

fn is_newest_first(filter: &Filter) -> bool {
    filter.ended_from.is_some() && filter.ended_before.is_none()
}

/// True of a job that died before the run that the filter selects.
fn is_before(row: &Row, filter: &Filter) -> bool {
    !is_newest_first(filter) && filter.ended_from.is_some_and(|from| row.when < from)
}

fn non_empty(slot: u32) -> Option<u32> {
    (slot != NONE).then_some(slot)
}

fn matches_age(row: &Row, filter: &Filter) -> bool {
    debug_assert!(
        row.substate.state() == Some(JobState::Dead),
        "only dead jobs are in these lists"
    );
    filter.matches_end_time(Some(row.when))
}

impl Encode for DeadLetterGroup {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(u64::from(self.queue));
        self.reason.encode(out);
        self.fingerprint.encode(out);
        self.list.encode(out);
    }
}

impl Decode for DeadLetterGroup {
    fn decode(r: &mut Reader) -> Result<DeadLetterGroup, WireError> {
        Ok(DeadLetterGroup {
            queue: r.u32()?,
            reason: DeathReason::decode(r)?,
            fingerprint: Fingerprint::decode(r)?,
            list: List::decode(r)?,
            jobs: 0,
            cursors: AgeCursors::default(),
        })
    }
}
