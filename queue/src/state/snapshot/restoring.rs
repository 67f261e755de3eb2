//! Restores a state from a snapshot, block by block.

use std::sync::Arc;

use bytes::Bytes;
use longshore_protocol::{Decode, Glob, Reader};

use super::super::State;
use super::super::dead_letters::{DeadLetterGroup as DeadGroup, DeadLetters};
use super::super::enqueue::JOBS_MAX;
use super::super::fair::{Share, Shares};
use super::super::idempotency::{HeldKey, HeldKeys};
use super::super::limit::of_key::LimitKey;
use super::super::links::ServedPaths;
use super::super::names::{WorkerName, WorkerNames};
use super::super::order::{OrderKey, Orders};
use super::super::profile::{DEFAULT, Profile, Profiles};
use super::super::row::Row;
use super::super::schedule::template::{Template, Templates};
use super::super::schedule::{ScheduleEntry, Schedules};
use super::super::slab::Slab;
use super::super::unique::{UniqueKey, Uniques};
use super::{Counts, FREE, SnapshotError, Table, head};

/// A state under construction from the blocks of its snapshot. It allocates for the data that has
/// arrived, never for announced counts.
#[derive(Debug)]
pub struct Restoring {
    state: State,
    /// The counts of the first block; none before it.
    counts: Option<Counts>,
    // Tables that the state stores with an index.
    profiles: Slab<Profile>,
    names: Slab<WorkerName>,
    dead: Slab<DeadGroup>,
    keys: Slab<HeldKey>,
    orders: Slab<OrderKey>,
    shares: Slab<Share>,
    uniques: Slab<UniqueKey>,
    limit_keys: Slab<LimitKey>,
    schedules: Slab<ScheduleEntry>,
    templates: Slab<Template>,
}

impl Default for Restoring {
    fn default() -> Restoring {
        Restoring::new()
    }
}

impl Restoring {
    /// Before the first block.
    pub fn new() -> Restoring {
        Restoring {
            state: State::new(),
            counts: None,
            profiles: Slab::default(),
            names: Slab::default(),
            dead: Slab::default(),
            keys: Slab::default(),
            orders: Slab::default(),
            shares: Slab::default(),
            uniques: Slab::default(),
            limit_keys: Slab::default(),
            schedules: Slab::default(),
            templates: Slab::default(),
        }
    }

    /// Decodes the next block.
    ///
    /// # Errors
    /// When it is not a valid next block. The blocks decoded so far are then useless.
    pub fn block(&mut self, block: Bytes) -> Result<(), SnapshotError> {
        let r = &mut Reader::new(block);
        if self.counts.is_none() {
            self.counts = Some(self.state.read_head(r)?);
            return if r.is_empty() { Ok(()) } else { Err(inconsistent("bytes after the head")) };
        }
        let tag = r.u8()?;
        let table = Table::ALL.into_iter().find(|&table| table as u8 == tag & !FREE);
        let table = table.ok_or(inconsistent("a table that is not known"))?;
        if tag & FREE == 0 { self.read_entries(table, r) } else { self.read_free(table, r) }
    }

    fn read_entries(&mut self, table: Table, r: &mut Reader) -> Result<(), SnapshotError> {
        let state = &mut self.state;
        while !r.is_empty() {
            match table {
                Table::Start if state.start.is_some() => {
                    return Err(inconsistent("a second start"));
                }
                Table::Start => state.start = Some(Arc::new(Decode::decode(r)?)),
                Table::Pauses => {
                    if !state.pauses.insert(Glob::decode(r)?) {
                        return Err(inconsistent("a pause that is there already"));
                    }
                }
                Table::Closings => {
                    if !state.closings.insert(Glob::decode(r)?) {
                        return Err(inconsistent("a closing that is there already"));
                    }
                }
                Table::Queues => state.queues.push(Decode::decode(r)?),
                Table::Groups => state.dispatch.groups.push_entry(r.option()?),
                Table::Links => {
                    let (id, link) = head::link(r)?;
                    if state.links.insert(id, link).is_some() {
                        return Err(inconsistent("a link that is there already"));
                    }
                }
                Table::Profiles => self.profiles.push_entry(r.option()?),
                Table::WorkerNames => self.names.push_entry(r.option()?),
                Table::Sides => state.sides.push_entry(r.option()?),
                Table::DeadLetters => self.dead.push_entry(r.option()?),
                Table::Sessions => state.sessions.table.push_entry(r.option()?),
                Table::Subscriptions => state.dispatch.subscriptions.push_entry(r.option()?),
                Table::Rows if u64::from(state.rows.allocated()) >= JOBS_MAX => {
                    return Err(inconsistent("more rows than there may be"));
                }
                Table::Rows => state.rows.push(Row::decode(r)?),
                Table::Keys => self.keys.push_entry(r.option()?),
                Table::Orders => self.orders.push_entry(r.option()?),
                Table::Shares => self.shares.push_entry(r.option()?),
                Table::Uniques => self.uniques.push_entry(r.option()?),
                Table::LimitKeys => self.limit_keys.push_entry(r.option()?),
                Table::Schedules => self.schedules.push_entry(r.option()?),
                Table::Templates => self.templates.push_entry(r.option()?),
                Table::Edges => state.graph.edges.push_entry(r.option()?),
                Table::Nodes => state.graph.nodes.push_entry(r.option()?),
                Table::Batches => state.batches.table.push_entry(r.option()?),
                Table::Limits => {
                    let (number, entry) = head::limit(r)?;
                    let is_new = number < state.limits.next_number;
                    if !is_new || state.limits.entries.insert(number, entry).is_some() {
                        return Err(inconsistent("a limit"));
                    }
                }
            }
        }
        Ok(())
    }

    fn read_free(&mut self, table: Table, r: &mut Reader) -> Result<(), SnapshotError> {
        let state = &mut self.state;
        while !r.is_empty() {
            let number = r.u32()?;
            match table {
                Table::Groups => state.dispatch.groups.push_free(number),
                Table::Profiles => self.profiles.push_free(number),
                Table::WorkerNames => self.names.push_free(number),
                Table::Sides => state.sides.push_free(number),
                Table::DeadLetters => self.dead.push_free(number),
                Table::Sessions => state.sessions.table.push_free(number),
                Table::Subscriptions => state.dispatch.subscriptions.push_free(number),
                Table::Keys => self.keys.push_free(number),
                Table::Orders => self.orders.push_free(number),
                Table::Shares => self.shares.push_free(number),
                Table::Uniques => self.uniques.push_free(number),
                Table::LimitKeys => self.limit_keys.push_free(number),
                Table::Schedules => self.schedules.push_free(number),
                Table::Templates => self.templates.push_free(number),
                Table::Edges => state.graph.edges.push_free(number),
                Table::Nodes => state.graph.nodes.push_free(number),
                Table::Batches => state.batches.table.push_free(number),
                Table::Start
                | Table::Pauses
                | Table::Closings
                | Table::Queues
                | Table::Limits
                | Table::Links
                | Table::Rows => {
                    return Err(inconsistent("free numbers of a table without any"));
                }
            }
        }
        Ok(())
    }

    /// The state, once every block was decoded. It continues exactly like the frozen one.
    ///
    /// # Errors
    /// When blocks are missing, or contradict each other.
    pub fn finish(self) -> Result<State, SnapshotError> {
        let Restoring { mut state, counts, profiles, names, dead, keys, orders, .. } = self;
        let (shares, uniques, limit_keys) = (self.shares, self.uniques, self.limit_keys);
        let (schedules, templates) = (self.schedules, self.templates);
        let counts = counts.ok_or(inconsistent("no start block"))?;
        let are_whole = [profiles.is_whole(), names.is_whole(), dead.is_whole(), keys.is_whole()];
        let are_whole = are_whole.into_iter().chain([orders.is_whole(), shares.is_whole()]);
        let are_whole = are_whole.into_iter().chain([
            uniques.is_whole(),
            limit_keys.is_whole(),
            schedules.is_whole(),
            templates.is_whole(),
            state.sides.is_whole(),
            state.sessions.table.is_whole(),
            state.dispatch.subscriptions.is_whole(),
            state.dispatch.groups.is_whole(),
            state.graph.edges.is_whole(),
            state.graph.nodes.is_whole(),
            state.batches.table.is_whole(),
        ]);
        if !are_whole.into_iter().all(|is_whole| is_whole) {
            return Err(inconsistent("free numbers"));
        }
        profiles.get(DEFAULT).ok_or(inconsistent("no default options"))?;
        state.profiles = Profiles::from_table(profiles);
        state.names = WorkerNames::from_table(names);
        state.dead = DeadLetters::from_table(dead).ok_or(inconsistent("kinds of dead letters"))?;
        state.keys =
            HeldKeys::from_entries(keys).ok_or(inconsistent("a key that is there twice"))?;
        state.orders = Orders::from_entries(orders).ok_or(inconsistent("an order key twice"))?;
        state.shares = Shares::from_entries(shares).ok_or(inconsistent("a share twice"))?;
        state.uniques = Uniques::from_entries(uniques)
            .ok_or(inconsistent("a unique key that is there twice"))?;
        state.limits.set_keys(limit_keys).ok_or(inconsistent("a limit key twice"))?;
        state.schedules = Schedules::from_tables(schedules, Templates::from_table(templates))
            .ok_or(inconsistent("schedules"))?;
        if !Table::ALL.iter().zip(counts).all(|(&table, count)| state.count_of(table) == count) {
            return Err(inconsistent("a table is not all there"));
        }
        state.served = state.start.as_deref().map(ServedPaths::of).unwrap_or_default();
        if let Some(start) = &state.start {
            state.rows.set_key(&start.secret.0);
            state.rules = (*start.rules).clone();
        }
        state.side_items = state.sides.iter().map(|(_, side)| side.items()).sum();
        state.check_numbers()?;
        state.batches.index_sweeps();
        state.check_graph().map_err(inconsistent)?;
        state.check_batches().map_err(inconsistent)?;
        state.index_released();
        state.check_held().map_err(inconsistent)?;
        state.count_profiles_of_keys();
        state.count_shares();
        state.index_queues()?;
        state.index_rows();
        state.index_limits()?;
        state.count_jobs_of_uniques();
        state.count_jobs_of_templates()?;
        state.index_sessions();
        state.index_groups();
        Ok(state)
    }
}

fn inconsistent(what: &'static str) -> SnapshotError {
    SnapshotError::Inconsistent(what)
}
