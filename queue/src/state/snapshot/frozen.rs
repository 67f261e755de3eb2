//! A state at one moment, to be written to disk while the state itself continues.

use std::collections::VecDeque;
use std::sync::Arc;

use longshore_protocol::{Encode, FrameWriter, Glob};

use super::super::State;
use super::super::batch::Batch;
use super::super::chunks::Shared;
use super::super::dead_letters::DeadLetterGroup as DeadGroup;
use super::super::dispatch::Subscription;
use super::super::fair::Share;
use super::super::graph::{Edge, Node};
use super::super::idempotency::HeldKey;
use super::super::limit::of_key::LimitKey;
use super::super::names::WorkerName;
use super::super::order::OrderKey;
use super::super::profile::Profile;
use super::super::queue::Queue;
use super::super::row::{Row, Substate};
use super::super::schedule::template::Template;
use super::super::schedule::{OCCURRENCE_AT, ScheduleEntry};
use super::super::session::Session;
use super::super::transition::SideRow;
use super::super::unique::UniqueKey;
use super::head::{put_limit, put_link};
use super::{BLOCK_BYTES, FREE, Table};
use crate::command::Start;
use crate::log::Snapshot;
use crate::outcome::RecordRef;

/// A [frozen](State::freeze) copy of a state. The state shares its tables with this copy until they
/// are written: it copies what it changes meanwhile, a chunk of a table at a time.
#[derive(Debug)]
pub struct Frozen {
    index: u64,
    about_bytes: u64,
    epoch: u64,
    start: Option<Arc<Start>>,
    /// Blocks encoded at the freeze.
    ready: VecDeque<Vec<u8>>,
    profiles: FrozenSlab<Profile>,
    names: FrozenSlab<WorkerName>,
    sides: FrozenSlab<SideRow>,
    dead: FrozenSlab<DeadGroup>,
    sessions: FrozenSlab<Session>,
    subscriptions: FrozenSlab<Subscription>,
    rows: Shared<Row>,
    keys: FrozenSlab<HeldKey>,
    orders: FrozenSlab<OrderKey>,
    shares: FrozenSlab<Share>,
    uniques: FrozenSlab<UniqueKey>,
    limit_keys: FrozenSlab<LimitKey>,
    schedules: FrozenSlab<ScheduleEntry>,
    templates: FrozenSlab<Template>,
    edges: FrozenSlab<Edge>,
    nodes: FrozenSlab<Node>,
    batches: FrozenSlab<Batch>,
}

/// A slab's entries, and its free numbers in the order in which they were freed.
type FrozenSlab<T> = (Shared<Option<T>>, Shared<u32>);

/// Approximate bytes in a snapshot of a row, a free row, a side row, a queue, a session, a key, a
/// schedule with its template, a wait for a parent.
const ROW_BYTES: u64 = 68;
const FREE_ROW_BYTES: u64 = 4;
const SIDE_BYTES: u64 = 48;
const QUEUE_BYTES: u64 = 128;
const SESSION_BYTES: u64 = 256;
const KEY_BYTES: u64 = 72;
const SCHEDULE_BYTES: u64 = 256;
const EDGE_BYTES: u64 = 16;

impl State {
    /// The approximate size of its snapshot in bytes, from counters alone.
    pub fn about_snapshot_bytes(&self) -> u64 {
        let used = u64::from(self.rows.used);
        used * ROW_BYTES
            + (u64::from(self.rows.allocated()) - used) * FREE_ROW_BYTES
            + self.sides.len() as u64 * SIDE_BYTES
            + self.queues.len() as u64 * QUEUE_BYTES
            + self.sessions.table.len() as u64 * SESSION_BYTES
            + (self.keys.table().len()
                + self.uniques.table.len()
                + self.orders.table.len()
                + self.shares.table.len()
                + self.limits.keys.len()
                + self.batches.table.len()) as u64
                * KEY_BYTES
            + self.schedules.len() * SCHEDULE_BYTES
            + (self.graph.edges.len() + self.graph.nodes.len()) as u64 * EDGE_BYTES
    }

    /// Freezes the state, to be written later. Costs an allocation for each chunk of a table that
    /// changed since the last freeze, and the bytes of everything that is not in chunks: the head,
    /// at most 2,048 patterns of paused and closed queues, at most 100,000 queues (about 60 bytes
    /// and its path each, some ten for each priority of fair keys; jobs are in rows), the
    /// subscription groups with their waiting subscriptions, and the links that are up. A group is
    /// encoded at once, because it holds the heads of all its queues: copying it on its next change
    /// would take longer.
    pub fn freeze(&mut self) -> Frozen {
        Frozen {
            index: self.index,
            about_bytes: self.about_snapshot_bytes(),
            epoch: self.start.as_ref().map_or(0, |start| start.epoch.0),
            ready: self.write_small_tables(),
            start: self.start.clone(),
            profiles: self.profiles.freeze(),
            names: self.names.freeze(),
            sides: self.sides.freeze(),
            dead: self.dead.freeze(),
            sessions: self.sessions.table.freeze(),
            subscriptions: self.dispatch.subscriptions.freeze(),
            rows: self.rows.freeze(),
            keys: self.keys.freeze(),
            orders: self.orders.table.freeze(),
            shares: self.shares.table.freeze(),
            uniques: self.uniques.table.freeze(),
            limit_keys: self.limits.keys.freeze(),
            schedules: self.schedules.table.freeze(),
            templates: self.schedules.templates.table.freeze(),
            edges: self.graph.edges.freeze(),
            nodes: self.graph.nodes.freeze(),
            batches: self.batches.table.freeze(),
        }
    }

    fn write_small_tables(&self) -> VecDeque<Vec<u8>> {
        let mut blocks = VecDeque::from([self.head_block()]);
        let (entries, free) = self.dispatch.groups.parts();
        write_all(Table::Pauses as u8, &mut blocks, self.pauses.all(), Glob::encode);
        write_all(Table::Closings as u8, &mut blocks, self.closings.all(), Glob::encode);
        write_all(Table::Queues as u8, &mut blocks, self.queues.iter(), Queue::encode);
        write_all(Table::Limits as u8, &mut blocks, self.limits.entries.iter(), put_limit);
        write_all(Table::Groups as u8, &mut blocks, entries, Option::encode);
        write_all(Table::Groups as u8 | FREE, &mut blocks, free, put_number);
        write_all(Table::Links as u8, &mut blocks, self.links.iter(), put_link);
        blocks
    }
}

impl Snapshot for Frozen {
    fn index(&self) -> u64 {
        self.index
    }

    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn about_bytes(&self) -> u64 {
        self.about_bytes
    }

    fn parts(&self, each: &mut dyn FnMut(RecordRef)) {
        // The entries of jobs with a template are in no command.
        let has_entry = |row: &&Row| row.substate != Substate::Free && row.entry.at < OCCURRENCE_AT;
        self.rows.iter().filter(has_entry).for_each(|row| each(row.entry));
        self.templates.0.iter().flatten().for_each(|template| each(template.entry));
        for side in self.sides.0.iter().flatten() {
            side.parts(each);
        }
    }

    fn next_block(&mut self, out: &mut Vec<u8>) -> bool {
        if let Some(block) = self.ready.pop_front() {
            out.extend_from_slice(&block);
            return true;
        }
        if let Some(start) = self.start.take() {
            write_block(Table::Start as u8, out, |block| start.encode(block));
            return true;
        }
        next_of_slab(Table::Profiles, &mut self.profiles, out)
            || next_of_slab(Table::WorkerNames, &mut self.names, out)
            || next_of_slab(Table::Sides, &mut self.sides, out)
            || next_of_slab(Table::DeadLetters, &mut self.dead, out)
            || next_of_slab(Table::Sessions, &mut self.sessions, out)
            || next_of_slab(Table::Subscriptions, &mut self.subscriptions, out)
            || next_of(Table::Rows as u8, &mut self.rows, out, Row::encode)
            || next_of_slab(Table::Keys, &mut self.keys, out)
            || next_of_slab(Table::Orders, &mut self.orders, out)
            || next_of_slab(Table::Shares, &mut self.shares, out)
            || next_of_slab(Table::Uniques, &mut self.uniques, out)
            || next_of_slab(Table::LimitKeys, &mut self.limit_keys, out)
            || next_of_slab(Table::Schedules, &mut self.schedules, out)
            || next_of_slab(Table::Templates, &mut self.templates, out)
            || next_of_slab(Table::Edges, &mut self.edges, out)
            || next_of_slab(Table::Nodes, &mut self.nodes, out)
            || next_of_slab(Table::Batches, &mut self.batches, out)
    }
}

impl SideRow {
    /// Every part of the log that a job's side row refers to.
    fn parts(&self, each: &mut dyn FnMut(RecordRef)) {
        let SideRow {
            attempts,
            worker_losses: _,
            result,
            checkpoints,
            replaces: _,
            preparation: _,
            expires_at: _,
            unique: _,
            template: _,
            node: _,
            batch: _,
        } = self;
        let errors = attempts.iter().filter_map(|attempt| attempt.error);
        errors.for_each(|(error, _)| each(error));
        result.iter().for_each(|&result| each(result));
        let stored = checkpoints.iter().flat_map(|checkpoints| &checkpoints.list);
        stored.for_each(|checkpoint| each(checkpoint.bytes));
    }
}

fn next_of_slab<T: Encode>(
    table: Table,
    (entries, free): &mut FrozenSlab<T>,
    out: &mut Vec<u8>,
) -> bool {
    next_of(table as u8, entries, out, Option::encode)
        || next_of(table as u8 | FREE, free, out, put_number)
}

fn next_of<T>(
    tag: u8,
    shared: &mut Shared<T>,
    out: &mut Vec<u8>,
    encode: impl Fn(&T, &mut FrameWriter),
) -> bool {
    if shared.is_empty() {
        return false;
    }
    write_block(tag, out, |block| {
        shared.take_while(|entry| {
            encode(entry, block);
            block.body_len() < BLOCK_BYTES
        });
    });
    true
}

fn write_all<T>(
    tag: u8,
    blocks: &mut VecDeque<Vec<u8>>,
    entries: impl Iterator<Item = T>,
    encode: impl Fn(T, &mut FrameWriter),
) {
    let mut entries = entries.peekable();
    while entries.peek().is_some() {
        let mut out = Vec::new();
        write_block(tag, &mut out, |block| {
            while block.body_len() < BLOCK_BYTES
                && let Some(entry) = entries.next()
            {
                encode(entry, block);
            }
        });
        blocks.push_back(out);
    }
}

fn put_number(&number: &u32, out: &mut FrameWriter) {
    out.u64(u64::from(number));
}

fn write_block(tag: u8, out: &mut Vec<u8>, entries: impl FnOnce(&mut FrameWriter)) {
    let mut block = FrameWriter::with_capacity(BLOCK_BYTES + 1_024);
    block.u8(tag);
    entries(&mut block);
    out.extend_from_slice(&block.into_body());
}
