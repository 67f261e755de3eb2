//! The whole state as bytes, and back. What can be worked out from the rest is not written: sets by time, ids, tokens,
//! counters of states, heads. Lists are written as their links, so that the restored state goes on exactly as this one.

mod dispatch;
mod queues;
mod rows;
mod sessions;

use std::collections::BTreeMap;

use longshore_protocol::limits::PAUSES_MAX;
use longshore_protocol::{Decode, Encode, FrameWriter, Glob, LinkId, Reader, WireError};

use super::State;
use super::dead_letters::DeadLetters;
use super::limits::Limits;
use super::links::{Link, Served};
use super::names::Names;
use super::profile::{DEFAULT, Profile, Profiles};
use super::row::{NONE, Place, Row};
use super::rows::List;
use super::slab::Slab;
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
        out.bool(self.held);
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
        state.held = r.bool()?;
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
