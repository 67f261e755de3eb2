//! The memory that the state takes, from counters: what is there, not what was ever allocated for
//! it.
//!
//! A publisher that takes new jobs until the system kills it loses nothing, and serves nobody
//! either: it starts, reads all of them back, and is killed again. So new jobs are refused in time.
//! The store decides that, before a batch is logged: replay sees the refusal, never the reason, and
//! may run on a machine with another amount of memory.

use super::State;
use super::checkpoints::Checkpoints;
use super::history::Attempt;
use super::profile::Profile;
use super::queue::Queue;
use super::row::Row;
use super::session::Session;
use super::transition::Side;

/// A place in the index of ids or of tokens: 64 bytes for 12 places, of which seven or more are
/// used.
const INDEX_BYTES: usize = 9;
/// A job that waits for a time: number and time in a `BTreeSet`, whose nodes are two thirds full or
/// more.
const WAIT_BYTES: usize = 24;
/// A job's options that no other job has, with their place in the table by value.
const PROFILE_BYTES: usize = 2 * size_of::<Profile>() + 32;
/// A kind of dead letters, with its places in the tables by kind and by age: in the worst case one
/// for each dead job.
const KIND_BYTES: usize = 128;
/// What a queue and a session have outside of their tables: path, name, members of groups.
const OUTSIDE_BYTES: usize = 512;
/// An attempt or a checkpoint of a job: its list may have room for twice as many.
const ITEM_BYTES: usize = 2 * size_of::<Attempt>();

impl State {
    /// Bytes of memory that jobs, queues and sessions take, about. Neither what a snapshot under
    /// way has frozen, up to as much again if all of it changes meanwhile, nor payloads, which are
    /// in the log.
    pub fn memory_bytes(&self) -> u64 {
        let jobs = self.rows.held as usize * (size_of::<Row>() + INDEX_BYTES);
        let running = self.rows.tokens() * INDEX_BYTES;
        let due = &self.due;
        let waiting = (due.mono.len() + due.wall.len() + due.expiring.len()) * WAIT_BYTES;
        let sides = self.sides.len() * size_of::<Option<Side>>();
        let profiles = self.profiles.table().len() * PROFILE_BYTES;
        let queues = self.queues.len() * (size_of::<Queue>() + OUTSIDE_BYTES);
        let sessions = self.sessions.table.len() * (size_of::<Session>() + OUTSIDE_BYTES);
        let dead = self.dead.table().len() * KIND_BYTES;
        let bytes = jobs + running + waiting + sides + profiles + queues + sessions + dead;
        bytes as u64 + self.side_items * ITEM_BYTES as u64 + self.sessions.answer_bytes
    }
}

impl Side {
    /// Attempts and checkpoints that it keeps.
    pub(super) fn items(&self) -> u64 {
        let checkpoints = self.checkpoints.as_deref().map_or(0, Checkpoints::len);
        (self.attempts.len() + checkpoints) as u64
    }
}

#[cfg(test)]
mod tests {
    use longshore_protocol::JobId;

    use super::super::checkpoints::Kept;
    use super::*;

    #[test]
    fn jobs_are_counted_at_what_their_rows_and_their_index_take() {
        let mut state = State::new();
        let empty = state.memory_bytes();
        for n in 0..100_000u32 {
            let mut id = [0; 16];
            id[..4].copy_from_slice(&n.to_be_bytes());
            state.rows.insert(Row { id: JobId(id), ..Row::free() });
        }
        let (taken, counted) = (state.rows.memory_bytes() as u64, state.memory_bytes());
        assert!(counted < taken * 11 / 10 && taken < counted * 11 / 10, "{counted} of {taken}");
        // Freed rows are there to be used again.
        (0..50_000).for_each(|slot| state.rows.remove(slot));
        assert_eq!(state.memory_bytes() - empty, (counted - empty) / 2);
    }

    #[test]
    fn an_item_takes_no_more_than_is_counted_for_it() {
        assert!(size_of::<Kept>() <= size_of::<Attempt>());
    }
}
