//! The memory that the state uses, from counters: for existing data, not for what was ever
//! allocated.
//!
//! A publisher that accepts new jobs until the system kills it loses nothing, and serves nobody
//! either: it starts, reads all of them, and is killed again. So new jobs are refused in time. The
//! store decides that, before a batch is logged: replay sees the refusal, never the reason, and may
//! run on a machine with another amount of memory.

use super::State;
use super::checkpoints::Checkpoints;
use super::history::Attempt;
use super::profile::Profile;
use super::queue::Queue;
use super::row::Row;
use super::schedule::SCHEDULE_BYTES;
use super::session::Session;
use super::transition::SideRow;

/// A slot in the index of ids or of tokens: 64 bytes for 12 slots, of which seven or more are used.
const INDEX_BYTES: usize = 9;
/// A waiting job's timer, number and time in a `BTreeSet`, whose nodes are at least two thirds
/// full; the rank of a ready or blocked job that came late; or an ended job's removal time.
const WAIT_BYTES: usize = 24;
/// A job's unique options.
const PROFILE_BYTES: usize = size_of::<Profile>() + INDEX_BYTES;
/// A fair key's share: its entry, its text, its places in its level, the options of its jobs.
const SHARE_BYTES: u64 = 800;
/// A limit key: its entry, its rates, its timer, the options of its jobs.
const LIMIT_KEY_BYTES: u64 = 800;
/// A group of dead letters, with its entries in the tables by key and by age: in the worst case one
/// for each dead job.
const KIND_BYTES: usize = 128;
/// A queue's or session's data outside of its table: path, name, group memberships.
const OUTSIDE_BYTES: usize = 512;
/// An attempt or a checkpoint of a job: its list may have room for twice as many.
const ITEM_BYTES: usize = 2 * size_of::<Attempt>();

impl State {
    /// Approximate bytes of memory of jobs, keys, queues and sessions. Excludes the data that an
    /// unfinished snapshot has frozen, up to as much again if all of it changes meanwhile, and
    /// payloads, which are in the log.
    pub fn memory_bytes(&self) -> u64 {
        let jobs = self.rows.used as usize * (size_of::<Row>() + INDEX_BYTES);
        let running = self.rows.tokens() * INDEX_BYTES;
        let due = &self.timers;
        let waiting = due.mono.len()
            + due.wall.len()
            + due.expiring.len()
            + self.sorted_jobs as usize
            + self.orders.blocked.late()
            + self.shares.jobs.len()
            + 2 * (self.limits.waiting.late() + self.limits.candidates.late());
        let waiting = waiting * WAIT_BYTES;
        let sides = self.sides.len() * size_of::<Option<SideRow>>();
        let profiles = self.profiles.table().len() * PROFILE_BYTES;
        let queues = self.queues.len() * (size_of::<Queue>() + OUTSIDE_BYTES);
        let sessions = self.sessions.table.len() * (size_of::<Session>() + OUTSIDE_BYTES);
        let dead = self.dead.table().len() * KIND_BYTES;
        let bytes = jobs + running + waiting + sides + profiles + queues + sessions + dead;
        let items = self.side_items * ITEM_BYTES as u64;
        let keys = self.keys.bytes()
            + self.uniques.bytes()
            + self.graph.bytes()
            + self.batches.bytes()
            + self.orders.bytes()
            + self.shares.table.len() as u64 * SHARE_BYTES
            + self.limits.keys.len() as u64 * LIMIT_KEY_BYTES
            + self.schedules.templates.table.len() as u64 * SCHEDULE_BYTES;
        bytes as u64 + items + keys + self.sessions.answer_bytes
    }
}

impl SideRow {
    /// Its attempts and checkpoints.
    pub(super) fn items(&self) -> u64 {
        let checkpoints = self.checkpoints.as_deref().map_or(0, Checkpoints::len);
        (self.attempts.len() + checkpoints) as u64
    }
}

#[cfg(test)]
mod tests {
    use longshore_protocol::JobId;

    use super::super::checkpoints::StoredCheckpoint;
    use super::*;

    #[test]
    fn memory_of_jobs_matches_their_rows_and_index() {
        let mut state = State::new();
        let empty = state.memory_bytes();
        for n in 0..100_000u32 {
            let mut id = [0; 16];
            id[..4].copy_from_slice(&n.to_be_bytes());
            state.rows.insert(Row { id: JobId(id), ..Row::free() });
        }
        let (used, counted) = (state.rows.memory_bytes() as u64, state.memory_bytes());
        assert!(counted < used * 11 / 10 && used < counted * 11 / 10, "{counted} of {used}");
        // Freed rows are reused.
        (0..50_000).for_each(|slot| state.rows.remove(slot));
        assert_eq!(state.memory_bytes() - empty, (counted - empty) / 2);
    }

    #[test]
    fn attempts_and_checkpoints_fit_their_counted_size() {
        assert!(size_of::<StoredCheckpoint>() <= size_of::<Attempt>());
    }
}
