//! A snapshot's first block, its links, and fields without a table.

use std::collections::BTreeMap;

use longshore_protocol::{Decode, Encode, FrameWriter, LinkId, Reader, WireError};

use super::super::State;
use super::super::limit::LimitEntry;
use super::super::links::Link;
use super::{Counts, SnapshotError, Table, VERSION, index, put_index};
use crate::time::Now;

impl State {
    pub(super) fn head_block(&self) -> Vec<u8> {
        let mut out = FrameWriter::new();
        out.u8(VERSION);
        out.u64(self.index);
        out.u64(self.now.mono_ms);
        out.u64(self.now.wall_ms);
        out.u64(self.next_token);
        out.u64(self.next_link);
        out.u64(self.stale_refused);
        out.u64(self.delivery_budget);
        out.bool(self.draining);
        out.u64(u64::from(self.limits.next_number));
        put_index(&mut out, self.limits.sweep);
        put_index(&mut out, self.graph.ended.head);
        put_index(&mut out, self.graph.ended.tail);
        out.u64(u64::from(self.batches.next_row));
        put_index(&mut out, self.rows.free);
        Table::ALL.iter().for_each(|&table| out.u64(self.count_of(table)));
        out.into_body().into()
    }

    /// Reads the output of [`State::head_block`]; returns how many entries of each table follow.
    pub(super) fn read_head(&mut self, r: &mut Reader) -> Result<Counts, SnapshotError> {
        let version = r.u8()?;
        if version != VERSION {
            return Err(SnapshotError::Version(version));
        }
        self.index = r.u64()?;
        self.now = Now { mono_ms: r.u64()?, wall_ms: r.u64()? };
        self.next_token = r.u64()?;
        self.unrevoked_from = self.next_token;
        self.next_link = r.u64()?;
        self.stale_refused = r.u64()?;
        self.delivery_budget = r.u64()?;
        self.draining = r.bool()?;
        self.limits.next_number = r.u32()?;
        self.limits.sweep = index(r)?;
        self.graph.ended.head = index(r)?;
        self.graph.ended.tail = index(r)?;
        self.batches.next_row = r.u32()?;
        self.rows.free = index(r)?;
        let mut counts = Counts::default();
        for count in &mut counts {
            *count = r.u64()?;
        }
        Ok(counts)
    }

    /// Entries of a table, free ones included.
    pub(super) fn count_of(&self, table: Table) -> u64 {
        let count = match table {
            Table::Start => usize::from(self.start.is_some()),
            Table::Pauses => self.pauses.all().len(),
            Table::Closings => self.closings.all().len(),
            Table::Queues => self.queues.len(),
            Table::Groups => self.dispatch.groups.allocated(),
            Table::Links => self.links.len(),
            Table::Profiles => self.profiles.table().allocated(),
            Table::WorkerNames => self.names.table().allocated(),
            Table::Sides => self.sides.allocated(),
            Table::DeadLetters => self.dead.table().allocated(),
            Table::Sessions => self.sessions.table.allocated(),
            Table::Subscriptions => self.dispatch.subscriptions.allocated(),
            Table::Rows => self.rows.allocated() as usize,
            Table::Keys => self.keys.table().entries().allocated(),
            Table::Orders => self.orders.table.entries().allocated(),
            Table::Shares => self.shares.table.entries().allocated(),
            Table::Uniques => self.uniques.table.entries().allocated(),
            Table::Limits => self.limits.entries.len(),
            Table::LimitKeys => self.limits.keys.entries().allocated(),
            Table::Schedules => self.schedules.table.allocated(),
            Table::Templates => self.schedules.templates.table.allocated(),
            Table::Edges => self.graph.edges.allocated(),
            Table::Nodes => self.graph.nodes.allocated(),
            Table::Batches => self.batches.table.allocated(),
        };
        count as u64
    }
}

pub(super) fn put_link((id, link): (&LinkId, &Link), out: &mut FrameWriter) {
    id.encode(out);
    put_index(out, link.session);
    out.u64(link.subscriptions.len() as u64);
    for (&number, &index) in &link.subscriptions {
        out.u64(u64::from(number));
        put_index(out, index);
    }
}

pub(super) fn link(r: &mut Reader) -> Result<(LinkId, Link), WireError> {
    let id = LinkId::decode(r)?;
    let session = index(r)?;
    let mut subscriptions = BTreeMap::new();
    for _ in 0..r.count("subscriptions of a link", usize::MAX, 2)? {
        subscriptions.insert(r.u32()?, index(r)?);
    }
    Ok((id, Link { session, subscriptions, patterns: 0 }))
}

pub(super) fn put_limit((&number, entry): (&u32, &LimitEntry), out: &mut FrameWriter) {
    out.u64(u64::from(number));
    entry.encode(out);
}

pub(super) fn limit(r: &mut Reader) -> Result<(u32, LimitEntry), WireError> {
    Ok((r.u32()?, LimitEntry::decode(r)?))
}
