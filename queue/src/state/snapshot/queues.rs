//! Queues in a snapshot.

use std::cmp::Reverse;

use longshore_protocol::{Decode, Encode, FrameWriter, Path, QueueSettings, Reader, WireError};

use super::super::State;
use super::super::fair::FairLevel;
use super::super::queue::{Member, Queue};
use super::super::rows::List;
use super::{SnapshotError, put_optional};

impl State {
    pub(super) fn index_queues(&mut self) -> Result<(), SnapshotError> {
        for (number, queue) in (0u32..).zip(&mut self.queues) {
            queue.accepts = self.served.accepts(&queue.path);
            queue.pauses = self.pauses.of(&queue.path).count() as u16;
            queue.closings = self.closings.of(&queue.path).count() as u16;
            self.by_path.insert(queue.path.clone(), number);
            self.timers.cleanup.extend(queue.ended.cleanup_at.map(|at| (at, number)));
            for member in &mut queue.groups {
                let sources = &self.dispatch.groups[member.group].sources;
                member.lane = sources.lane_of(&queue.path).ok_or(SnapshotError::Inconsistent(
                    "a queue in a group that does not match it",
                ))?;
            }
        }
        Ok(())
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
        out.u64(self.fair.len() as u64);
        for (priority, level) in &self.fair {
            out.i64(i64::from(priority.0));
            level.encode(out);
        }
        for list in [
            self.prepared,
            self.scheduled,
            self.blocked,
            self.running,
            self.ended.list,
            self.ended.own,
        ] {
            list.encode(out);
        }
        for metric in [
            self.enqueued,
            self.completed,
            self.failed,
            self.died,
            self.redelivered,
            self.stale_refused,
        ] {
            out.u64(metric);
        }
        out.u64(self.groups.len() as u64);
        for member in &self.groups {
            out.u64(u64::from(member.group));
        }
        out.u64(u64::from(self.turn));
        put_optional(out, self.ended.cleanup_at);
        self.settings.encode(out);
    }
}

impl Decode for Queue {
    fn decode(r: &mut Reader) -> Result<Queue, WireError> {
        let mut queue = Queue::new(Path::decode(r)?);
        for _ in 0..r.count("priorities", usize::MAX, 3)? {
            queue.ready.restore_fresh(r.i32()?, List::decode(r)?);
        }
        for _ in 0..r.count("priorities of fair keys", usize::MAX, 3)? {
            queue.fair.insert(Reverse(r.i32()?), FairLevel::decode(r)?);
        }
        for list in [
            &mut queue.prepared,
            &mut queue.scheduled,
            &mut queue.blocked,
            &mut queue.running,
            &mut queue.ended.list,
            &mut queue.ended.own,
        ] {
            *list = List::decode(r)?;
        }
        for metric in [
            &mut queue.enqueued,
            &mut queue.completed,
            &mut queue.failed,
            &mut queue.died,
            &mut queue.redelivered,
            &mut queue.stale_refused,
        ] {
            *metric = r.u64()?;
        }
        let groups = r.count("groups of a queue", usize::MAX, 1)?;
        // The lane follows from the group's sources.
        let mut member = || Ok(Member { group: r.u32()?, lane: 0 });
        queue.groups = (0..groups).map(|_| member()).collect::<Result<_, WireError>>()?;
        queue.turn = r.u32()?;
        queue.ended.cleanup_at = r.option()?;
        queue.settings = QueueSettings::decode(r)?;
        Ok(queue)
    }
}
