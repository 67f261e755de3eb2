//! The whole state as bytes, and back. What can be worked out from the rest is not written: sets by time, ids, tokens,
//! counters of states, heads. Lists are written as their links, so that the restored state goes on exactly as this one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use longshore_protocol::limits::{ATTEMPTS_MAX, BATCH_JOBS_MAX, PAUSES_MAX, SETTLES_MAX};
use longshore_protocol::messages::work::{Order, Sources};
use longshore_protocol::{
    Decode, Encode, FrameWriter, Glob, JobId, JobOptions, LinkId, Path, QueueSettings, Reader,
    Role, Runs, SessionId, WireError,
};

use super::State;
use super::dead_letters::DeadLetters;
use super::dispatch::{Group, Subscription};
use super::lanes::Lanes;
use super::limits::{ANSWERS_KEPT, LOST_KEPT, Limits};
use super::links::{Link, Served};
use super::names::Names;
use super::prepared::Preparation;
use super::profile::{DEFAULT, Profile, Profiles};
use super::queue::{Member, Queue, count};
use super::row::{NONE, Place, Row};
use super::rows::{List, hash_id};
use super::session::{Answers, Session};
use super::slab::Slab;
use super::transition::Side;
use crate::outcome::RecordRef;
use crate::time::Now;

/// The format of the bytes.
const VERSION: u8 = 2;

/// Why bytes are not a snapshot. Use an older snapshot and replay from there.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Written by a version that this one does not know.
    #[error("snapshot of format {0}; this version reads format {VERSION}")]
    Version(u8),
    /// The bytes are cut off, or a field is out of its range.
    #[error("damaged snapshot: {0}")]
    Damaged(#[from] WireError),
    /// The parts do not fit together.
    #[error("damaged snapshot: {0}")]
    Inconsistent(&'static str),
}

impl State {
    /// The state as bytes: the same commands give the same bytes.
    pub fn snapshot_bytes(&self) -> Vec<u8> {
        let mut out = FrameWriter::with_capacity(1024 + self.rows.made() as usize * 64);
        out.u8(VERSION);
        out.u64(self.index);
        out.u64(self.now.mono_ms);
        out.u64(self.now.wall_ms);
        self.start.encode(&mut out);
        out.u64(self.next_token);
        out.u64(self.next_link);
        out.u64(self.stale_refused);
        out.u64(self.pauses.patterns().len() as u64);
        self.pauses.patterns().for_each(|pattern| pattern.encode(&mut out));
        put_slab(&mut out, self.profiles.table());
        put_slab(&mut out, self.names.table());
        put_slab(&mut out, &self.sides);
        put_slab(&mut out, self.dead.table());
        self.queues.encode(&mut out);
        put_slab(&mut out, &self.sessions.table);
        put_slab(&mut out, &self.dispatch.subscriptions);
        put_slab(&mut out, &self.dispatch.groups);
        out.u64(self.links.len() as u64);
        for (id, link) in &self.links {
            id.encode(&mut out);
            put_place(&mut out, link.session);
            out.u64(link.subscriptions.len() as u64);
            for (&number, &place) in &link.subscriptions {
                out.u64(u64::from(number));
                put_place(&mut out, place);
            }
        }
        put_place(&mut out, self.rows.free);
        out.u64(u64::from(self.rows.made()));
        for slot in 0..self.rows.made() {
            self.rows[slot].encode(&mut out);
        }
        out.into_body().into()
    }

    /// The state that was written. It goes on exactly as the one that wrote it.
    ///
    /// # Errors
    /// When the bytes are not a snapshot that this version can read. They are trusted to be what was written: a checksum
    /// is the caller's.
    pub fn restore(bytes: &[u8]) -> Result<State, SnapshotError> {
        State::restore_with_limits(bytes, Limits::STANDARD)
    }

    pub(super) fn restore_with_limits(
        bytes: &[u8],
        limits: Limits,
    ) -> Result<State, SnapshotError> {
        let mut reader = Reader::new(bytes.to_vec().into());
        let r = &mut reader;
        let version = r.u8()?;
        if version != VERSION {
            return Err(SnapshotError::Version(version));
        }
        let mut state = State::with_limits(limits);
        state.index = r.u64()?;
        state.now = Now { mono_ms: r.u64()?, wall_ms: r.u64()? };
        state.start = r.option()?;
        state.served = state.start.as_ref().map(Served::of).unwrap_or_default();
        state.next_token = r.u64()?;
        state.next_link = r.u64()?;
        state.stale_refused = r.u64()?;
        for _ in 0..r.count("pauses", PAUSES_MAX, 1)? {
            state.pauses.insert(Glob::decode(r)?);
        }
        let profiles: Slab<Profile> = slab(r)?;
        profiles.get(DEFAULT).ok_or(SnapshotError::Inconsistent("no default options"))?;
        state.profiles = Profiles::from_table(profiles);
        state.names = Names::from_table(slab(r)?);
        state.sides = slab(r)?;
        state.dead = DeadLetters::from_table(slab(r)?)
            .ok_or(SnapshotError::Inconsistent("kinds of dead letters"))?;
        state.queues = r.list("queues", usize::MAX)?;
        state.sessions.table = slab(r)?;
        state.dispatch.subscriptions = slab(r)?;
        state.dispatch.groups = slab(r)?;
        for _ in 0..r.count("links", usize::MAX, 1)? {
            let id = LinkId::decode(r)?;
            let session = place(r)?;
            let mut subscriptions = BTreeMap::new();
            for _ in 0..r.count("subscriptions of a link", usize::MAX, 1)? {
                subscriptions.insert(r.u32()?, place(r)?);
            }
            state.links.insert(id, Link { session, subscriptions });
        }
        state.rows.free = place(r)?;
        for _ in 0..r.count("rows", u32::MAX as usize, 2)? {
            let row = Row::decode(r)?;
            state.rows.push(row);
        }
        if !r.is_empty() {
            return Err(SnapshotError::Inconsistent("bytes after the end"));
        }
        state.check_numbers()?;
        state.index_queues()?;
        state.index_rows();
        state.index_sessions();
        state.index_groups();
        Ok(state)
    }

    /// Every number leads to something that is there.
    fn check_numbers(&self) -> Result<(), SnapshotError> {
        let wrong = |what| Err(SnapshotError::Inconsistent(what));
        let is_row = |slot: u32| slot == NONE || slot < self.rows.made();
        let is_list = |list: &List| is_row(list.head) && is_row(list.tail);
        if !is_row(self.rows.free) {
            return wrong("the free row");
        }
        for slot in 0..self.rows.made() {
            let row = &self.rows[slot];
            let ends = row.place.is_kept();
            if ![row.prev, row.next].into_iter().all(is_row)
                || !ends && ![row.queue_prev, row.queue_next].into_iter().all(is_row)
            {
                return wrong("a link of a list");
            }
            if row.place == Place::Free {
                continue;
            }
            if row.queue as usize >= self.queues.len()
                || self.profiles.table().get(row.profile).is_none()
                || row.side != NONE && self.sides.get(row.side).is_none()
                || row.place == Place::Running && self.sessions.table.get(row.session).is_none()
                || row.place == Place::Completed && !self.names.is_known(row.session)
                || row.place == Place::Dead && self.dead.get(row.session).is_none()
                || row.entry.length < u32::from(row.head_len)
            {
                return wrong("a row");
            }
        }
        for (_, side) in self.sides.iter() {
            if side.attempts.iter().any(|attempt| !self.names.is_known(attempt.worker)) {
                return wrong("an attempt");
            }
        }
        for (_, group) in self.dead.table().iter() {
            if !is_list(&group.list) || group.queue as usize >= self.queues.len() {
                return wrong("dead letters");
            }
        }
        for queue in &self.queues {
            let lists = [queue.prepared, queue.scheduled, queue.running];
            let lists = lists.into_iter().chain([queue.kept.list, queue.kept.own]);
            let fresh = queue.ready.fresh_lists().map(|(_, list)| list);
            if !lists.chain(fresh).all(|list| is_list(&list))
                || queue
                    .groups
                    .iter()
                    .any(|member| self.dispatch.groups.get(member.group).is_none())
            {
                return wrong("a queue");
            }
        }
        let is_session = |session: u32| self.sessions.table.get(session).is_some();
        let is_subscription = |place: &u32| self.dispatch.subscriptions.get(*place).is_some();
        let queues = self.queues.len() as u32;
        for (_, session) in self.sessions.table.iter() {
            if !is_list(&session.held)
                || !self.names.is_known(session.name)
                || session.lost.values().any(|&queue| queue >= queues)
            {
                return wrong("a session");
            }
        }
        for (_, s) in self.dispatch.subscriptions.iter() {
            if !is_session(s.session) || self.dispatch.groups.get(s.group).is_none() {
                return wrong("a subscription");
            }
        }
        for (_, group) in self.dispatch.groups.iter() {
            if !group.waiting.iter().chain(&group.untold).all(is_subscription) {
                return wrong("a group");
            }
        }
        for link in self.links.values() {
            if !is_session(link.session) || !link.subscriptions.values().all(is_subscription) {
                return wrong("a link");
            }
        }
        Ok(())
    }

    fn index_queues(&mut self) -> Result<(), SnapshotError> {
        for (number, queue) in (0u32..).zip(&mut self.queues) {
            queue.accepts = self.served.takes(&queue.path);
            queue.pauses = self.pauses.of(&queue.path).count() as u16;
            self.by_path.insert(queue.path.clone(), number);
            self.due.collect.extend(queue.kept.collect_at.map(|at| (at, number)));
            for member in &mut queue.groups {
                let sources = &self.dispatch.groups[member.group].sources;
                member.lane = Lanes::lane_of(sources, &queue.path).ok_or(
                    SnapshotError::Inconsistent("a queue in a group that does not match it"),
                )?;
            }
        }
        Ok(())
    }

    fn index_rows(&mut self) {
        for slot in 0..self.rows.made() {
            let row = &self.rows[slot];
            let (id, place, when, queue) = (row.id, row.place, row.when, row.queue);
            if place == Place::Free {
                continue;
            }
            let priority = self.profiles.options(row.profile).priority;
            let q = &mut self.queues[queue as usize];
            count(&mut q.counts, row);
            match place {
                Place::Fresh => q.ready.restored_fresh(),
                Place::Returned => q.ready.add(&mut self.rows, priority, slot, place),
                Place::Delayed | Place::Timed | Place::Retrying | Place::Prepared => {
                    self.due.jobs(place).insert((when, slot));
                }
                Place::Running => self.rows.index_token(slot),
                Place::Dead => self.dead.group_mut(self.rows[slot].session).jobs += 1,
                Place::Completed | Place::Cancelled | Place::Expired => self.index_kept(slot),
                Place::Free => {}
            }
            if place == Place::Completed {
                self.names.hold(self.rows[slot].session);
            }
            let side = self.rows[slot].side;
            let attempts = self.sides.get(side).map_or(&[][..], |side| &side.attempts);
            attempts.iter().for_each(|attempt| self.names.hold(attempt.worker));
            self.watch_expiry(slot);
            self.rows.held += 1;
            self.rows.index_id(hash_id(&id), slot);
        }
    }

    fn index_sessions(&mut self) {
        for (number, session) in self.sessions.table.iter() {
            self.sessions.by_id.insert(session.id, number);
            self.names.hold(session.name);
            self.sessions.leaving.extend(session.forget_at.map(|at| (at, number)));
        }
        let running = (0..self.rows.made()).filter(|&slot| self.rows[slot].place == Place::Running);
        for session in running.map(|slot| self.rows[slot].session) {
            self.sessions.table[session].held_count += 1;
        }
    }

    fn index_groups(&mut self) {
        for (number, group) in self.dispatch.groups.iter() {
            self.dispatch.by_sources.insert(group.sources.clone(), number);
        }
        for (_, subscription) in self.dispatch.subscriptions.iter() {
            let group = &mut self.dispatch.groups[subscription.group];
            group.subscriptions += 1;
            group.credits += u64::from(subscription.credit);
            self.sessions.table[subscription.session].credits += subscription.credit;
        }
        for queue in 0..self.queues.len() as u32 {
            self.bring_up_to_date(queue);
        }
        // Nothing else makes jobs and credits wait for each other.
        let groups = self.dispatch.groups.iter();
        let stalled = groups.filter(|(_, group)| group.ready > 0 && group.credits > 0);
        self.dispatch.stalled = stalled.map(|(number, _)| number).collect();
    }
}

fn put_slab<T: Encode>(out: &mut FrameWriter, slab: &Slab<T>) {
    let (places, free) = slab.parts();
    places.encode(out);
    out.u64(free.len() as u64);
    for &number in free {
        out.u64(u64::from(number));
    }
}

fn slab<T: Decode>(r: &mut Reader) -> Result<Slab<T>, SnapshotError> {
    let places: Vec<Option<T>> = {
        let count = r.count("places", u32::MAX as usize, 1)?;
        (0..count).map(|_| r.option()).collect::<Result<_, _>>()?
    };
    let count = r.count("free places", u32::MAX as usize, 1)?;
    let free = (0..count).map(|_| r.u32()).collect::<Result<_, _>>()?;
    Slab::from_parts(places, free).ok_or(SnapshotError::Inconsistent("free places"))
}

/// A row, session or subscription; `NONE` is 0.
fn put_place(out: &mut FrameWriter, number: u32) {
    out.u64(u64::from(number.wrapping_add(1)));
}

fn place(r: &mut Reader) -> Result<u32, WireError> {
    Ok(r.u32()?.wrapping_sub(1))
}

fn put_optional(out: &mut FrameWriter, at: Option<u64>) {
    at.encode(out);
}

impl Encode for List {
    fn encode(&self, out: &mut FrameWriter) {
        put_place(out, self.head);
        put_place(out, self.tail);
    }
}

impl Decode for List {
    fn decode(r: &mut Reader) -> Result<List, WireError> {
        Ok(List { head: place(r)?, tail: place(r)? })
    }
}

impl Encode for RecordRef {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.index);
        out.u64(u64::from(self.at));
        out.u64(u64::from(self.length));
    }
}

impl Decode for RecordRef {
    fn decode(r: &mut Reader) -> Result<RecordRef, WireError> {
        Ok(RecordRef { index: r.u64()?, at: r.u32()?, length: r.u32()? })
    }
}

impl Encode for Side {
    fn encode(&self, out: &mut FrameWriter) {
        self.attempts.encode(out);
        self.result.encode(out);
        out.bool(self.checkpoints.is_some());
        if let Some(checkpoints) = &self.checkpoints {
            checkpoints.encode(out);
        }
        self.replaces.encode(out);
        self.preparation.encode(out);
        self.expires_at.encode(out);
    }
}

impl Decode for Side {
    fn decode(r: &mut Reader) -> Result<Side, WireError> {
        Ok(Side {
            attempts: r.list("attempts", ATTEMPTS_MAX)?,
            result: r.option()?,
            checkpoints: r.option()?.map(Box::new),
            replaces: r.option()?,
            preparation: r.option()?,
            expires_at: r.option()?,
        })
    }
}

impl Encode for Preparation {
    fn encode(&self, out: &mut FrameWriter) {
        let due = match *self {
            Preparation::Open(due) => Some(due),
            Preparation::Confirmed => None,
        };
        // A due is written as the options have it.
        due.map(|due| JobOptions { due, ..JobOptions::default() }).encode(out);
    }
}

impl Decode for Preparation {
    fn decode(r: &mut Reader) -> Result<Preparation, WireError> {
        let options: Option<JobOptions> = r.option()?;
        Ok(options.map_or(Preparation::Confirmed, |options| Preparation::Open(options.due)))
    }
}

impl Encode for Profile {
    fn encode(&self, out: &mut FrameWriter) {
        self.options.encode(out);
        out.u64(self.jobs);
    }
}

impl Decode for Profile {
    fn decode(r: &mut Reader) -> Result<Profile, WireError> {
        Ok(Profile { options: JobOptions::decode(r)?, jobs: r.u64()? })
    }
}

impl Encode for Queue {
    fn encode(&self, out: &mut FrameWriter) {
        self.path.encode(out);
        let fresh = self.ready.fresh_lists();
        out.u64(fresh.clone().count() as u64);
        for (priority, list) in fresh {
            out.i64(i64::from(priority));
            list.encode(out);
        }
        for list in [self.prepared, self.scheduled, self.running, self.kept.list, self.kept.own] {
            list.encode(out);
        }
        for figure in [
            self.enqueued,
            self.completed,
            self.failed,
            self.died,
            self.redelivered,
            self.stale_refused,
        ] {
            out.u64(figure);
        }
        out.u64(self.groups.len() as u64);
        for member in &self.groups {
            out.u64(u64::from(member.group));
        }
        out.u64(u64::from(self.turn));
        put_optional(out, self.kept.collect_at);
        self.settings.encode(out);
    }
}

impl Decode for Queue {
    fn decode(r: &mut Reader) -> Result<Queue, WireError> {
        let mut queue = Queue::new(Path::decode(r)?);
        for _ in 0..r.count("priorities", usize::MAX, 3)? {
            queue.ready.restore_fresh(r.i32()?, List::decode(r)?);
        }
        for list in [
            &mut queue.prepared,
            &mut queue.scheduled,
            &mut queue.running,
            &mut queue.kept.list,
            &mut queue.kept.own,
        ] {
            *list = List::decode(r)?;
        }
        for figure in [
            &mut queue.enqueued,
            &mut queue.completed,
            &mut queue.failed,
            &mut queue.died,
            &mut queue.redelivered,
            &mut queue.stale_refused,
        ] {
            *figure = r.u64()?;
        }
        let groups = r.count("groups of a queue", usize::MAX, 1)?;
        // Which lane it is in follows from the group's sources.
        let mut member = || Ok(Member { group: r.u32()?, lane: 0 });
        queue.groups = (0..groups).map(|_| member()).collect::<Result<_, WireError>>()?;
        queue.turn = r.u32()?;
        queue.kept.collect_at = r.option()?;
        queue.settings = QueueSettings::decode(r)?;
        Ok(queue)
    }
}

impl Encode for Session {
    fn encode(&self, out: &mut FrameWriter) {
        self.id.encode(out);
        self.link.encode(out);
        out.bool(self.is_up);
        self.role.encode(out);
        out.u64(u64::from(self.name));
        self.held.encode(out);
        out.u64(self.next_batch);
        put_answers(out, &self.batches);
        out.u64(self.next_settle);
        put_answers(out, &self.settles);
        out.u64(self.lost.len() as u64);
        for (&token, &queue) in &self.lost {
            out.u64(token);
            out.u64(u64::from(queue));
        }
        put_optional(out, self.forget_at);
    }
}

impl Decode for Session {
    fn decode(r: &mut Reader) -> Result<Session, WireError> {
        let mut session = Session::new(SessionId::decode(r)?, LinkId::decode(r)?);
        session.is_up = r.bool()?;
        session.role = Role::decode(r)?;
        session.name = r.u32()?;
        session.held = List::decode(r)?;
        session.next_batch = r.u64()?;
        session.batches = answers(r, BATCH_JOBS_MAX)?;
        session.next_settle = r.u64()?;
        session.settles = answers(r, SETTLES_MAX)?;
        for _ in 0..r.count("lost leases", LOST_KEPT, 2)? {
            session.lost.insert(r.u64()?, r.u32()?);
        }
        session.forget_at = r.option()?;
        Ok(session)
    }
}

fn put_answers<T: Encode>(out: &mut FrameWriter, answers: &Answers<T>) {
    out.u64(answers.kept.len() as u64);
    for (sequence, outcomes) in &answers.kept {
        out.u64(*sequence);
        outcomes.encode(out);
    }
}

fn answers<T>(r: &mut Reader, limit: usize) -> Result<Answers<T>, WireError>
where
    T: Decode + Copy + PartialEq,
{
    let mut kept = VecDeque::new();
    for _ in 0..r.count("answers", ANSWERS_KEPT, 2)? {
        kept.push_back((r.u64()?, Runs::decode(r, "outcomes", limit)?));
    }
    Ok(Answers { kept })
}

impl Encode for Subscription {
    fn encode(&self, out: &mut FrameWriter) {
        self.link.encode(out);
        for number in [self.session, self.number, self.group, self.credit] {
            out.u64(u64::from(number));
        }
    }
}

impl Decode for Subscription {
    fn decode(r: &mut Reader) -> Result<Subscription, WireError> {
        Ok(Subscription {
            link: LinkId::decode(r)?,
            session: r.u32()?,
            number: r.u32()?,
            group: r.u32()?,
            credit: r.u32()?,
        })
    }
}

impl Encode for Group {
    fn encode(&self, out: &mut FrameWriter) {
        self.sources.encode(out);
        if self.sources.order == Order::Weighted {
            self.lanes.balances().for_each(|balance| out.i64(balance));
        }
        out.u64(self.waiting.len() as u64);
        for &place in &self.waiting {
            out.u64(u64::from(place));
        }
        out.u64(self.untold.len() as u64);
        for &place in &self.untold {
            out.u64(u64::from(place));
        }
    }
}

impl Decode for Group {
    fn decode(r: &mut Reader) -> Result<Group, WireError> {
        let mut group = Group::new(Sources::decode(r)?);
        if group.sources.order == Order::Weighted {
            let unbalanced = r.invalid("balances that do not belong to their weights");
            let lanes = 0..group.lanes.balances().len();
            let balances = lanes.map(|_| r.i64()).collect::<Result<Vec<_>, _>>()?;
            if !group.lanes.restore_balances(&balances) {
                return Err(unbalanced);
            }
        }
        let waiting = r.count("waiting subscriptions", usize::MAX, 1)?;
        group.waiting = (0..waiting).map(|_| r.u32()).collect::<Result<VecDeque<_>, _>>()?;
        let untold = r.count("untold subscriptions", usize::MAX, 1)?;
        group.untold = (0..untold).map(|_| r.u32()).collect::<Result<BTreeSet<_>, _>>()?;
        Ok(group)
    }
}

impl Encode for Row {
    fn encode(&self, out: &mut FrameWriter) {
        out.u8(self.place as u8);
        put_place(out, self.next);
        if self.place == Place::Free {
            return;
        }
        put_place(out, self.prev);
        put_place(out, self.queue_prev);
        put_place(out, self.queue_next);
        self.id.encode(out);
        self.entry.encode(out);
        out.u32_fixed(self.crc);
        out.u64(u64::from(self.head_len));
        out.u64(u64::from(self.delivered));
        out.u64(self.enqueued_wall_ms);
        out.u64(self.when);
        out.u64(u64::from(self.queue));
        out.u64(u64::from(self.profile));
        put_place(out, self.session);
        put_place(out, self.side);
        for count in [self.attempts, self.deliveries] {
            out.u64(u64::from(count));
        }
        out.u8(self.lost);
    }
}

impl Decode for Row {
    fn decode(r: &mut Reader) -> Result<Row, WireError> {
        let no_place = r.invalid("place of a job");
        let at = Place::from_code(r.u8()?).ok_or(no_place)?;
        let next = place(r)?;
        if at == Place::Free {
            return Ok(Row { next, ..Row::free() });
        }
        Ok(Row {
            place: at,
            next,
            prev: place(r)?,
            queue_prev: place(r)?,
            queue_next: place(r)?,
            id: JobId::decode(r)?,
            entry: RecordRef::decode(r)?,
            crc: r.u32_fixed()?,
            head_len: r.u16()?,
            delivered: r.u32()?,
            enqueued_wall_ms: r.u64()?,
            when: r.u64()?,
            queue: r.u32()?,
            profile: r.u32()?,
            session: place(r)?,
            side: place(r)?,
            attempts: r.u16()?,
            deliveries: r.u16()?,
            lost: r.u8()?,
        })
    }
}
