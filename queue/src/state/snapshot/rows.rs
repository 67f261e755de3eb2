//! Jobs in a snapshot: rows, and what several of them share or only some have.

use longshore_protocol::{Decode, Encode, FrameWriter, JobId, JobOptions, Reader, WireError};

use super::super::State;
use super::super::prepared::Preparation;
use super::super::profile::Profile;
use super::super::queue::count;
use super::super::row::{Place, Row};
use super::super::transition::Side;
use super::{place, put_place};
use crate::outcome::RecordRef;

impl State {
    pub(super) fn index_rows(&mut self) {
        let is_held = |slot: &u32| self.rows[*slot].place != Place::Free;
        let held = (0..self.rows.made()).filter(is_held).count();
        self.rows.reserve_ids(held);
        // Sets are made of sorted lists: putting millions in one by one takes several times as
        // long.
        let (mut mono, mut wall, mut expiring) = (Vec::new(), Vec::new(), Vec::new());
        for slot in 0..self.rows.made() {
            let row = &self.rows[slot];
            let (place, when, queue) = (row.place, row.when, row.queue);
            if place == Place::Free {
                continue;
            }
            let priority = self.profiles.options(row.profile).priority;
            let q = &mut self.queues[queue as usize];
            count(&mut q.counts, row);
            match place {
                Place::Fresh => q.ready.restored_fresh(),
                Place::Returned => q.ready.add(&mut self.rows, priority, slot, place),
                Place::Timed => wall.push((when, slot)),
                Place::Delayed | Place::Retrying | Place::Prepared => mono.push((when, slot)),
                Place::Running => self.rows.index_token(slot),
                Place::Dead => self.index_dead(slot),
                Place::Completed | Place::Cancelled | Place::Expired => self.index_kept(slot),
                Place::Free => {}
            }
            if place == Place::Completed {
                self.names.hold(self.rows[slot].session);
            }
            let side = self.rows[slot].side;
            let attempts = self.sides.get(side).map_or(&[][..], |side| &side.attempts);
            attempts.iter().for_each(|attempt| self.names.hold(attempt.worker));
            expiring.extend(self.expires_at(slot).map(|at| (at, slot)));
            self.rows.held += 1;
            self.rows.index_id(slot);
        }
        self.due.mono = mono.into_iter().collect();
        self.due.wall = wall.into_iter().collect();
        self.due.expiring = expiring.into_iter().collect();
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

impl Encode for Side {
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
    }
}

impl Decode for Side {
    fn decode(r: &mut Reader) -> Result<Side, WireError> {
        Ok(Side {
            attempts: r.list("attempts", usize::MAX)?,
            worker_losses: r.u8()?,
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
