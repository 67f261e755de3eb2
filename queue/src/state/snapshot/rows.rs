//! Jobs in a snapshot: rows, and the data that several share or only some have.

use longshore_protocol::{Decode, Encode, FrameWriter, JobId, JobOptions, Reader, WireError};

use super::super::State;
use super::super::limit::of_key::urgency;
use super::super::order::age;
use super::super::prepared::Preparation;
use super::super::profile::{KeyNumbers, Profile};
use super::super::row::{NONE, Row, Substate};
use super::super::rows::Links;
use super::super::transition::SideRow;
use super::{index, put_index};
use crate::outcome::RecordRef;

impl State {
    pub(super) fn index_rows(&mut self) {
        let is_used = |slot: &u32| self.rows[*slot].substate != Substate::Free;
        let used = (0..self.rows.allocated()).filter(is_used).count();
        self.rows.reserve_ids(used);
        // Sets are built from sorted lists: inserting millions one by one takes several times as
        // long.
        let (mut mono, mut wall, mut expiring) = (Vec::new(), Vec::new(), Vec::new());
        let (mut blocked, mut waiting, mut candidates) = (Vec::new(), Vec::new(), Vec::new());
        for slot in 0..self.rows.allocated() {
            let row = &self.rows[slot];
            let (substate, when, queue) = (row.substate, row.when, row.queue);
            if substate == Substate::Free {
                continue;
            }
            let priority = self.profiles.options(row.profile).priority;
            let (cost, limit) = (self.cost_of(slot), self.limit_key_of(slot));
            let entry = row.entry;
            if limit != NONE {
                let place = (limit, urgency(&self.profiles)(&self.rows[slot]), slot);
                let key = &mut self.limits.keys[limit];
                match substate {
                    Substate::Limited => waiting.push(place),
                    Substate::Fresh | Substate::Returned => {
                        candidates.push(place);
                        key.ready += cost;
                    }
                    Substate::Running => key.running += cost,
                    _ => {}
                }
            }
            let q = &mut self.queues[queue as usize];
            q.enter(substate, entry);
            match substate {
                Substate::Fresh | Substate::Returned => {
                    match self.profiles.keys(self.rows[slot].profile).share {
                        NONE => {
                            let is_late = q.ready.restored(&self.rows, priority, slot);
                            self.sorted_jobs += u64::from(is_late);
                        }
                        share => self.add_to_share(slot, share),
                    }
                }
                Substate::Timed => wall.push((when, slot)),
                Substate::Delayed | Substate::Retrying | Substate::Prepared => {
                    mono.push((when, slot))
                }
                Substate::Blocked => {
                    let key = self.profiles.keys(self.rows[slot].profile).order;
                    blocked.push((key, age(&self.rows[slot]), slot));
                }
                Substate::Running => {
                    q.extra_units += cost - 1;
                    self.rows.index_token(slot);
                }
                Substate::Dead => self.index_dead(slot),
                Substate::Completed | Substate::Cancelled | Substate::Expired => {
                    self.index_ended(slot)
                }
                Substate::Free | Substate::Limited | Substate::Waiting => {}
            }
            if substate == Substate::Completed && self.rows[slot].session != NONE {
                self.names.add_use(self.rows[slot].session);
            }
            let side = self.rows[slot].side;
            let attempts = self.sides.get(side).map_or(&[][..], |side| &side.attempts);
            attempts.iter().for_each(|attempt| self.names.add_use(attempt.worker));
            expiring.extend(self.expires_at(slot).map(|at| (at, slot)));
            self.rows.used += 1;
            self.rows.index_id(slot);
        }
        let (rows, keys) = (&mut self.rows, &mut self.limits.keys);
        blocked.sort_unstable();
        for (key, _, slot) in blocked {
            let list = &mut self.orders.table[key].blocked;
            list.push_back(rows, Links::Queue, slot);
        }
        waiting.sort_unstable();
        for (key, _, slot) in waiting {
            keys[key].waiting.push_back(rows, Links::Queue, slot);
        }
        candidates.sort_unstable();
        for (key, _, slot) in candidates {
            keys[key].candidates.push_back(rows, Links::Queue, slot);
        }
        self.timers.mono = mono.into_iter().collect();
        self.timers.wall = wall.into_iter().collect();
        self.timers.expiring = expiring.into_iter().collect();
    }
}

impl Encode for Row {
    fn encode(&self, out: &mut FrameWriter) {
        out.u8(self.substate as u8);
        put_index(out, self.next);
        if self.substate == Substate::Free {
            return;
        }
        put_index(out, self.prev);
        // The list of a key is built anew, from its jobs sorted.
        let is_of_key = self.substate.is_of_key();
        put_index(out, if is_of_key { NONE } else { self.queue_prev });
        put_index(out, if is_of_key { NONE } else { self.queue_next });
        self.id.encode(out);
        self.entry.encode(out);
        out.u32_fixed(self.crc);
        out.u64(u64::from(self.head_len));
        out.u64(u64::from(self.delivered));
        out.u64(self.enqueued_wall_ms);
        out.u64(self.when);
        out.u64(u64::from(self.queue));
        out.u64(u64::from(self.profile));
        put_index(out, self.session);
        put_index(out, self.side);
        for count in [self.attempts, self.deliveries] {
            out.u64(u64::from(count));
        }
        out.u8(self.unstarted_deliveries);
    }
}

impl Decode for Row {
    fn decode(r: &mut Reader) -> Result<Row, WireError> {
        let invalid = r.invalid("substate of a job");
        let at = Substate::from_code(r.u8()?).ok_or(invalid)?;
        let next = index(r)?;
        if at == Substate::Free {
            return Ok(Row { next, ..Row::free() });
        }
        Ok(Row {
            substate: at,
            next,
            prev: index(r)?,
            queue_prev: index(r)?,
            queue_next: index(r)?,
            id: JobId::decode(r)?,
            entry: RecordRef::decode(r)?,
            crc: r.u32_fixed()?,
            head_len: r.u16()?,
            delivered: r.u32()?,
            enqueued_wall_ms: r.u64()?,
            when: r.u64()?,
            queue: r.u32()?,
            profile: r.u32()?,
            session: index(r)?,
            side: index(r)?,
            attempts: r.u16()?,
            deliveries: r.u16()?,
            unstarted_deliveries: r.u8()?,
        })
    }
}

impl Encode for SideRow {
    fn encode(&self, out: &mut FrameWriter) {
        self.attempts.encode(out);
        out.u8(self.worker_losses);
        self.result.encode(out);
        out.bool(self.checkpoints.is_some());
        if let Some(checkpoints) = &self.checkpoints {
            checkpoints.encode(out);
        }
        self.replaces.encode(out);
        self.preparation.encode(out);
        self.expires_at.encode(out);
        self.unique.encode(out);
        self.template.encode(out);
        self.node.encode(out);
        self.batch.encode(out);
    }
}

impl Decode for SideRow {
    fn decode(r: &mut Reader) -> Result<SideRow, WireError> {
        Ok(SideRow {
            attempts: r.list("attempts", usize::MAX)?,
            worker_losses: r.u8()?,
            result: r.option()?,
            checkpoints: r.option()?.map(Box::new),
            replaces: r.option()?,
            preparation: r.option()?,
            expires_at: r.option()?,
            unique: r.option()?,
            template: r.option()?,
            node: r.option()?,
            batch: r.option()?,
        })
    }
}

impl Encode for Preparation {
    fn encode(&self, out: &mut FrameWriter) {
        let due = match *self {
            Preparation::Open(due) => Some(due),
            Preparation::Confirmed => None,
        };
        // Encoded like a job's options.
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
        put_index(out, self.keys.order);
        put_index(out, self.keys.share);
        put_index(out, self.keys.limit);
        put_index(out, self.keys.batch);
        out.bool(self.keys.has_parents);
        out.u64(u64::from(self.keys.cost));
        out.u64(self.jobs);
    }
}

impl Decode for Profile {
    fn decode(r: &mut Reader) -> Result<Profile, WireError> {
        let options = JobOptions::decode(r)?;
        let (order, share) = (index(r)?, index(r)?);
        let (limit, batch) = (index(r)?, index(r)?);
        let has_parents = r.bool()?;
        let no_cost = r.invalid("cost of a job");
        let cost = r.u16()?;
        if cost == 0 {
            return Err(no_cost);
        }
        let keys = KeyNumbers { order, share, limit, cost, batch, has_parents };
        Ok(Profile { options, keys, jobs: r.u64()? })
    }
}
