//! Queues in a snapshot.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use longshore_protocol::{
    Decode, Encode, FrameWriter, LimitScope, Path, QueueSettings, Reader, WireError,
};

use super::super::State;
use super::super::fair::FairLevel;
use super::super::limit::of_queue::{Held, QueueLimit};
use super::super::queue::{Member, Queue};
use super::super::rows::List;
use super::{SnapshotError, put_optional};

impl State {
    pub(super) fn index_queues(&mut self) -> Result<(), SnapshotError> {
        for (number, queue) in (0u32..).zip(&mut self.queues) {
            queue.accepts = self.served.accepts(&queue.path);
            queue.pauses = self.pauses.of(&queue.path).count() as u16;
            queue.closings = self.closings.of(&queue.path).count() as u16;
            self.paths.insert(queue.path.clone(), number);
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

impl State {
    /// Counts what runs under shared limits, and checks the limits of queues, and their lines.
    pub(super) fn index_limits(&mut self) -> Result<(), SnapshotError> {
        let mut lines: BTreeMap<u32, usize> = BTreeMap::new();
        for (number, queue) in (0u32..).zip(&mut self.queues) {
            let mut own = queue.limits.iter().map(|own| own.limit);
            for (&limit, entry) in &mut self.limits.entries {
                if !entry.limit.pattern.matches(&queue.path) {
                    continue;
                }
                match entry.limit.scope {
                    LimitScope::Key => queue.key_limits.push(limit),
                    scope if own.next() == Some(limit) => {
                        if scope == LimitScope::Shared {
                            entry.running += queue.running_units();
                        }
                    }
                    _ => return Err(SnapshotError::Inconsistent("a limit of a queue")),
                }
            }
            if own.next().is_some() {
                return Err(SnapshotError::Inconsistent("the limits of a queue"));
            }
            let Some(held) = queue.held else { continue };
            self.limits.queue_timers.extend(held.until.map(|at| (at, number)));
            match self.limits.entries.get(&held.limit) {
                Some(entry) if entry.limit.scope == LimitScope::Shared => {
                    *lines.entry(held.limit).or_default() += 1;
                }
                Some(_) if queue.limits.iter().any(|own| own.limit == held.limit) => {}
                _ => return Err(SnapshotError::Inconsistent("what holds a queue back")),
            }
        }
        for (&number, entry) in &self.limits.entries {
            let is_held = |queue: &u32| {
                let queue = self.queues.get(*queue as usize);
                queue.and_then(|queue| queue.held).is_some_and(|held| held.limit == number)
            };
            let queues: BTreeSet<u32> = entry.line.iter().copied().filter(is_held).collect();
            let held = lines.get(&number).copied().unwrap_or(0);
            if [queues.len(), entry.line.len()] != [held; 2] {
                return Err(SnapshotError::Inconsistent("the line of a limit"));
            }
            if held > 0 {
                self.limits.lines.insert(number);
            }
        }
        Ok(())
    }
}

impl Encode for Queue {
    fn encode(&self, out: &mut FrameWriter) {
        self.path.encode(out);
        let ready = self.ready.lists();
        out.u64(ready.clone().count() as u64);
        for (priority, list) in ready {
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
        out.u64(self.limits.len() as u64);
        for own in &self.limits {
            out.u64(u64::from(own.limit));
            out.u64(own.arrival);
        }
        self.held.encode(out);
        self.settings.encode(out);
    }
}

impl Decode for Queue {
    fn decode(r: &mut Reader) -> Result<Queue, WireError> {
        let mut queue = Queue::new(Path::decode(r)?);
        for _ in 0..r.count("priorities", usize::MAX, 3)? {
            queue.ready.restore_list(r.i32()?, List::decode(r)?);
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
        let count = r.count("limits of a queue", usize::MAX, 2)?;
        let mut own = || Ok(QueueLimit { limit: r.u32()?, arrival: r.u64()? });
        queue.limits = (0..count).map(|_| own()).collect::<Result<_, WireError>>()?;
        queue.held = r.option()?;
        queue.settings = QueueSettings::decode(r)?;
        Ok(queue)
    }
}

impl Encode for Held {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(u64::from(self.limit));
        self.until.encode(out);
    }
}

impl Decode for Held {
    fn decode(r: &mut Reader) -> Result<Held, WireError> {
        Ok(Held { limit: r.u32()?, until: r.option()? })
    }
}
