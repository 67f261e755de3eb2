//! Dead letters, by what they died of: a list in the order of death for each queue, reason and
//! fingerprint. Counting them, listing kinds, and acting on one kind never looks at the others.
//!
//! Filters by age cut these lists: who died before a time is a run from the oldest on, who died
//! later a run up to the newest. The wall clock may have fallen in between, so a run ends at the
//! first that does not fit.

use std::collections::BTreeMap;

use longshore_protocol::limits::DEAD_GROUPS_MAX;
use longshore_protocol::messages::work::{DeadGroup, Filter};
use longshore_protocol::{
    DeathReason, Decode, Encode, Fingerprint, FrameWriter, JobState, Reader, WireError,
};

use super::State;
use super::begin::Begin;
use super::chunks::Shared;
use super::limits::PAGE_ROWS_MAX;
use super::row::{NONE, Place, Row};
use super::rows::{Links, List};
use super::slab::Slab;
use super::steps;
use crate::outcome::DeadGroupView;

/// Queue, code of the reason, fingerprint.
type Kind = (u32, u8, Fingerprint);

/// Dead jobs of one kind.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) queue: u32,
    pub(super) reason: DeathReason,
    pub(super) fingerprint: Fingerprint,
    /// In the order of death.
    pub(super) list: List,
    pub(super) jobs: u64,
    /// Found by an act by age, for its next step. Not in snapshots: it changes what is looked at,
    /// not what is found.
    pub(super) begin: Begin,
}

impl Group {
    fn kind(&self) -> Kind {
        (self.queue, self.reason.code(), self.fingerprint)
    }
}

/// All kinds that there are; none is empty.
#[derive(Clone, Debug, Default)]
pub(super) struct DeadLetters {
    groups: Slab<Group>,
    by_kind: BTreeMap<Kind, u32>,
}

impl DeadLetters {
    /// The group of that kind; made if it is not there.
    pub(super) fn group_for(
        &mut self,
        queue: u32,
        reason: DeathReason,
        fingerprint: Fingerprint,
    ) -> u32 {
        let kind = (queue, reason.code(), fingerprint);
        match self.by_kind.get(&kind) {
            Some(&number) => number,
            None => {
                let list = List::default();
                let begin = Begin::default();
                let group = Group { queue, reason, fingerprint, list, jobs: 0, begin };
                let number = self.groups.insert(group);
                self.by_kind.insert(kind, number);
                number
            }
        }
    }

    pub(super) fn group_mut(&mut self, number: u32) -> &mut Group {
        &mut self.groups[number]
    }

    /// The group is empty.
    pub(super) fn remove(&mut self, number: u32) {
        if let Some(group) = self.groups.remove(number) {
            self.by_kind.remove(&group.kind());
        }
    }

    pub(super) fn get(&self, number: u32) -> Option<&Group> {
        self.groups.get(number)
    }

    /// The groups of a queue, by reason and fingerprint.
    pub(super) fn of_queue(&self, queue: u32) -> impl Iterator<Item = (u32, &Group)> {
        let all = (queue, 0, Fingerprint(0))..=(queue, u8::MAX, Fingerprint(u64::MAX));
        self.by_kind.range(all).map(|(_, &number)| (number, &self.groups[number]))
    }

    /// The table as it is now, shared.
    pub(super) fn freeze(&mut self) -> (Shared<Option<Group>>, Shared<u32>) {
        self.groups.freeze()
    }

    pub(super) fn table(&self) -> &Slab<Group> {
        &self.groups
    }

    /// The groups of a snapshot; none if two are of one kind. Jobs are counted as they are
    /// restored.
    pub(super) fn from_table(groups: Slab<Group>) -> Option<DeadLetters> {
        let by_kind: BTreeMap<Kind, u32> =
            groups.iter().map(|(number, group)| (group.kind(), number)).collect();
        (by_kind.len() == groups.len()).then_some(DeadLetters { groups, by_kind })
    }

    pub(super) fn is_known_as(&self, number: u32, group: &Group) -> bool {
        self.by_kind.get(&group.kind()) == Some(&number) && self.by_kind.len() == self.groups.len()
    }
}

/// Part of a group, by age.
struct Part {
    jobs: u64,
    first: u32,
    last: u32,
    /// It was not looked at to its end.
    more: bool,
}

impl State {
    /// Kinds of dead letters, those with most jobs first, and whether there are more than 1,000. A
    /// filter by age has at most 100,000 jobs looked at in all: beyond that there is more, too.
    pub fn dead_groups(&self, filter: &Filter) -> (Vec<DeadGroupView>, bool) {
        let (mut found, mut more) = (Vec::new(), false);
        let mut rows_left = PAGE_ROWS_MAX;
        for (_, group) in self.dead_kinds(filter) {
            let part = self.part_of(group, filter, &mut rows_left);
            more |= part.more;
            if part.jobs > 0 {
                found.push((group, part));
            }
        }
        let path = |group: &Group| &self.queues[group.queue as usize].path;
        let order = |(a, one): &(&Group, Part), (b, other): &(&Group, Part)| {
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
        (found.into_iter().map(|(group, part)| self.dead_group_view(group, &part)).collect(), more)
    }

    /// Dead jobs that the filter's queue, reason, fingerprint and age take, at most `most`; and
    /// whether there are more. What it says of states is the caller's. Jobs older than the filter's
    /// age are passed over once: each kind keeps where the next step begins.
    pub(super) fn dead_matching(&self, filter: &Filter, most: usize) -> (Vec<u32>, bool) {
        let (mut found, newest_first) = (Vec::new(), is_newest_first(filter));
        for (_, group) in self.dead_kinds(filter) {
            let first = match filter.ended_from {
                Some(from) if !newest_first => group.begin.first(from, group.list.head, &self.rows),
                _ if newest_first => group.list.tail,
                _ => group.list.head,
            };
            let jobs = self.walk_from(first, filter).inspect(|_| steps::count(1));
            for slot in jobs.skip_while(|&slot| is_before(&self.rows[slot], filter)) {
                if !fits(&self.rows[slot], filter) {
                    break;
                }
                if found.len() >= most {
                    return (found, true);
                }
                found.push(slot);
            }
        }
        (found, false)
    }

    /// How many `dead_matching` would give in all. By age, at most 100,000 jobs are looked at:
    /// beyond that there are more.
    pub(super) fn count_dead(&self, filter: &Filter) -> (u64, bool) {
        let (mut jobs, mut more, mut rows_left) = (0, false, PAGE_ROWS_MAX);
        for (_, group) in self.dead_kinds(filter) {
            let part = self.part_of(group, filter, &mut rows_left);
            jobs += part.jobs;
            more |= part.more;
        }
        (jobs, more)
    }

    /// Into the group of its kind, whose number the row then holds.
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
            self.queues[queue as usize].kept.oldest_dead.insert((died, number));
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
            self.queues[row.queue as usize].kept.oldest_dead.insert((died, row.session));
        }
    }

    pub(super) fn leave_dead_letters(&mut self, slot: u32) {
        let row = &mut self.rows[slot];
        let (number, died) = (std::mem::replace(&mut row.session, NONE), row.ended_mono_ms());
        (row.queue_prev, row.queue_next) = (NONE, NONE);
        let group = self.dead.group_mut(number);
        let was_oldest = group.list.head == slot;
        group.begin.leaves(slot, self.rows[slot].prev);
        group.list.unlink(&mut self.rows, Links::Main, slot);
        group.jobs -= 1;
        if was_oldest {
            let oldest_dead = &mut self.queues[group.queue as usize].kept.oldest_dead;
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

    /// What a dead job died of.
    pub(super) fn kind_of_death(&self, row: &Row) -> Option<(DeathReason, Fingerprint)> {
        let is_dead = row.place == Place::Dead;
        let group = is_dead.then(|| self.dead.get(row.session)).flatten();
        group.map(|group| (group.reason, group.fingerprint))
    }

    /// Why it is dead.
    pub(super) fn death_of(&self, row: &Row) -> Option<DeathReason> {
        self.kind_of_death(row).map(|(reason, _)| reason)
    }

    /// Deaths that a worker explained have its error's fingerprint, the others that of an empty
    /// error.
    fn fingerprint_of_death(&self, slot: u32, reason: DeathReason) -> Fingerprint {
        let last = self.side(&self.rows[slot]).and_then(|side| side.attempts.last());
        let error = last.filter(|_| is_explained(reason)).and_then(|attempt| attempt.error);
        error.map_or_else(|| Fingerprint::of_parts("", ""), |(_, fingerprint)| fingerprint)
    }

    fn dead_kinds(&self, filter: &Filter) -> impl Iterator<Item = (u32, &Group)> {
        let (reason, fingerprint) = (filter.death, filter.fingerprint);
        let queues = self.queues_matching(&filter.pattern).into_iter();
        queues.flat_map(|queue| self.dead.of_queue(queue)).filter(move |(_, group)| {
            reason.is_none_or(|wanted| wanted == group.reason)
                && fingerprint.is_none_or(|wanted| wanted == group.fingerprint)
        })
    }

    /// Finds where the filter's age begins in each kind, from where it began for an age that is no
    /// younger.
    pub(super) fn find_dead_begins(&mut self, filter: &Filter) {
        let Some(from) = filter.ended_from.filter(|_| !is_newest_first(filter)) else { return };
        let kinds: Vec<u32> = self.dead_kinds(filter).map(|(number, _)| number).collect();
        for number in kinds {
            let group = self.dead.group_mut(number);
            group.begin = group.begin.find(from, group.list.head, &self.rows);
        }
    }

    /// The jobs of a group: newest first when only young ones are asked for.
    fn walk_group(&self, group: &Group, filter: &Filter) -> impl Iterator<Item = u32> {
        let newest_first = is_newest_first(filter);
        self.walk_from(if newest_first { group.list.tail } else { group.list.head }, filter)
    }

    fn walk_from(&self, first: u32, filter: &Filter) -> impl Iterator<Item = u32> {
        let newest_first = is_newest_first(filter);
        let step = move |slot: u32| {
            let row = &self.rows[slot];
            if newest_first { row.prev } else { row.next }
        };
        std::iter::successors(some(first), move |&slot| some(step(slot)))
    }

    fn part_of(&self, group: &Group, filter: &Filter, rows_left: &mut u32) -> Part {
        if filter.ended_from.is_none() && filter.ended_before.is_none() {
            let List { head, tail } = group.list;
            return Part { jobs: group.jobs, first: head, last: tail, more: false };
        }
        let mut part = Part { jobs: 0, first: NONE, last: NONE, more: false };
        for slot in self.walk_group(group, filter) {
            if *rows_left == 0 {
                part.more = true;
                break;
            }
            *rows_left -= 1;
            if part.jobs == 0 && is_before(&self.rows[slot], filter) {
                continue;
            }
            if !fits(&self.rows[slot], filter) {
                break;
            }
            part.jobs += 1;
            part.first = if part.first == NONE { slot } else { part.first };
            part.last = slot;
        }
        if is_newest_first(filter) {
            std::mem::swap(&mut part.first, &mut part.last);
        }
        part
    }

    fn dead_group_view(&self, group: &Group, part: &Part) -> DeadGroupView {
        let (first, last) = (&self.rows[part.first], &self.rows[part.last]);
        let said = self.side(last).and_then(|side| side.attempts.last()?.error);
        let said = said.filter(|_| is_explained(group.reason));
        let group = DeadGroup {
            path: self.queues[group.queue as usize].path.clone(),
            death: group.reason,
            fingerprint: group.fingerprint,
            jobs: part.jobs,
            first_at: first.when,
            last_at: last.when,
            example: last.id,
            error: None,
        };
        DeadGroupView { group, error: said.map(|(at, _)| at) }
    }
}

/// True of deaths that a worker's error is the cause of.
fn is_explained(reason: DeathReason) -> bool {
    matches!(reason, DeathReason::AttemptsExhausted | DeathReason::Buried)
}

fn is_newest_first(filter: &Filter) -> bool {
    filter.ended_from.is_some() && filter.ended_before.is_none()
}

/// True of a job that died before the run that the filter asks for begins.
fn is_before(row: &Row, filter: &Filter) -> bool {
    !is_newest_first(filter) && filter.ended_from.is_some_and(|from| row.when < from)
}

fn some(slot: u32) -> Option<u32> {
    (slot != NONE).then_some(slot)
}

fn fits(row: &Row, filter: &Filter) -> bool {
    debug_assert!(row.place.state() == Some(JobState::Dead), "only the dead are in these lists");
    filter.takes_end(Some(row.when))
}

impl Encode for Group {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(u64::from(self.queue));
        self.reason.encode(out);
        self.fingerprint.encode(out);
        self.list.encode(out);
    }
}

impl Decode for Group {
    fn decode(r: &mut Reader) -> Result<Group, WireError> {
        Ok(Group {
            queue: r.u32()?,
            reason: DeathReason::decode(r)?,
            fingerprint: Fingerprint::decode(r)?,
            list: List::decode(r)?,
            jobs: 0,
            begin: Begin::default(),
        })
    }
}
