//! The heart: every transition of every job, and which credit gets which job.
//!
//! [`State::apply`] is the only way in, and it is a function of its arguments: no clock, no socket,
//! no disk, no random number of its own, and no iteration over a hash map. The same commands give
//! the same [`State::snapshot_bytes`].
//!
//! - A job is a [row](row) of 96 bytes; what is cold stays in the log and is named by a
//!   `RecordRef`.
//! - Every change of place goes through [`transition`]: there, and nowhere else, do counters
//!   change.
//! - Every move also says what happened, to those who follow along: [`events`].
//! - What a command makes ready is handed to waiting credits before `apply` returns: [`dispatch`].
//! - [`handouts`]: while the disk is all but full, a budget bounds how many jobs are handed out.
//! - Only `Tick` looks for what is due, in bounded steps; `State::next_due` says when it has
//!   something to do. But no job is handed out, or enters ready, past its time: [`expiry`].

mod act;
mod begin;
mod checkpoints;
mod chunks;
mod dead_letters;
mod dispatch;
mod drain;
mod due;
mod enqueue;
mod events;
mod expiry;
mod handouts;
mod history;
mod id_key;
mod invariant;
mod keep;
mod lanes;
mod limits;
mod links;
mod matching;
mod memory;
mod names;
mod pause;
mod prepared;
mod profile;
mod queue;
mod read;
mod ready;
mod replace;
mod row;
mod rows;
mod rules;
mod session;
mod settings;
mod settle;
mod slab;
mod slot_index;
mod snapshot;
mod steps;
mod subscribe;
mod transition;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use longshore_protocol::{LinkId, Path};

pub use read::{LinkUse, QueueUse, Totals};
pub use snapshot::{Frozen, Restoring, SnapshotError};

use self::dead_letters::DeadLetters;
use self::dispatch::Dispatch;
use self::due::DueJobs;
use self::links::{Link, Served};
use self::names::Names;
use self::pause::Patterns;
use self::profile::Profiles;
use self::queue::Queue;
use self::rows::Rows;
use self::session::Sessions;
use self::slab::Slab;
use self::transition::Side;
use crate::command::{Command, Start};
use crate::outcome::{Outcomes, Reply};
use crate::rules::Rules;
use crate::time::Now;

/// A publisher's queues.
#[derive(Clone, Debug)]
pub struct State {
    rules: Rules,
    /// The last command's index and time.
    index: u64,
    now: Now,
    start: Option<Arc<Start>>,
    served: Served,
    next_token: u64,
    /// Since this token was due, no lease has ended against its holder's will: those from it on are
    /// sure. Not in snapshots.
    sure_from: u64,
    next_link: u64,
    stale_refused: u64,
    rows: Rows,
    sides: Slab<Side>,
    /// Attempts and checkpoints of all sides.
    side_items: u64,
    names: Names,
    dead: DeadLetters,
    profiles: Profiles,
    queues: Vec<Queue>,
    /// Only looked up, never walked.
    by_path: HashMap<Path, u32>,
    due: DueJobs,
    sessions: Sessions,
    links: BTreeMap<LinkId, Link>,
    dispatch: Dispatch,
    /// Patterns of paused queues.
    pauses: Patterns,
    /// Patterns of queues that are closed to new jobs.
    closings: Patterns,
    /// No new jobs are taken.
    draining: bool,
    /// Jobs that may still be handed out; [`u64::MAX`] for any number.
    handouts: u64,
}

impl Default for State {
    fn default() -> State {
        State::new()
    }
}

impl State {
    /// No jobs, no queues, no links.
    pub fn new() -> State {
        State::with_rules(Rules::STANDARD)
    }

    fn with_rules(rules: Rules) -> State {
        State {
            rules,
            index: 0,
            now: Now::default(),
            start: None,
            served: Served::default(),
            next_token: 1,
            sure_from: 1,
            next_link: 1,
            stale_refused: 0,
            rows: Rows::default(),
            sides: Slab::default(),
            side_items: 0,
            names: Names::default(),
            dead: DeadLetters::default(),
            profiles: Profiles::default(),
            queues: Vec::new(),
            by_path: HashMap::new(),
            due: DueJobs::default(),
            sessions: Sessions::default(),
            links: BTreeMap::new(),
            dispatch: Dispatch::default(),
            pauses: Patterns::default(),
            closings: Patterns::default(),
            draining: false,
            handouts: u64::MAX,
        }
    }

    /// Applies the command at `index` of the log, which was logged with the time `now`, and adds
    /// what it brought about to `out`. Indices rise; `now.mono_ms` never falls (a lower one counts
    /// as the one before). A command that does not fit (an unknown link, token or subscription)
    /// changes nothing but what its answer says.
    pub fn apply(&mut self, index: u64, now: Now, command: &Command, out: &mut Outcomes) {
        debug_assert!(index > self.index, "indices rise");
        self.index = index;
        self.now = Now { mono_ms: now.mono_ms.max(self.now.mono_ms), wall_ms: now.wall_ms };
        match command {
            Command::Start(start) => self.begin(start),
            Command::LinkUp { link, role, session, name, resume } => {
                self.link_up(*link, *role, *session, name, resume, out);
            }
            Command::LinkLost { link } => self.link_lost(*link),
            Command::Subscribe { link, subscription, sources } => {
                self.subscribe(*link, *subscription, sources, out);
            }
            Command::Unsubscribe { link, subscription } => self.unsubscribe(*link, *subscription),
            Command::Credit { link, subscription, count } => {
                self.credit(*link, *subscription, *count);
            }
            Command::Recall { link, subscription, count } => {
                self.recall(*link, *subscription, *count, out);
            }
            Command::Enqueue { link, batch } => self.enqueue(*link, batch, out),
            Command::Settle { link, batch } => self.settle(*link, batch, out),
            Command::Expire { leases } => self.expire(leases, out),
            Command::Act { link, request, action, selection, pace } => {
                let act = act::Act { action: *action, selection, pace: *pace };
                self.act(*link, *request, act, out);
            }
            Command::Pause { link, request, gate, pattern, paused } => {
                let report = self.change_stops(*gate, pattern, *paused);
                out.replies.push((*link, Reply::Paused { request: *request, report }));
            }
            Command::Drain { link, request, draining } => {
                self.draining = *draining;
                out.replies.push((*link, Reply::Drained { request: *request, result: Ok(()) }));
            }
            Command::Damaged { token } => self.damaged(*token, out),
            Command::Tick => self.tick(out),
            Command::Refuse { link, sequence, jobs, refusal } => {
                self.refuse_batch(*link, *sequence, *jobs, *refusal, out);
            }
            Command::Handouts { budget } => self.limit_handouts(*budget),
            Command::Checkpoint { link, checkpoint } => self.checkpoint(*link, checkpoint, out),
            Command::Replace { link, request, id, entry } => {
                self.replace(*link, *request, id, entry, out);
            }
            Command::Configure { link, request, path, changes, reset } => {
                let change = settings::Change { path, changes, reset: *reset };
                self.configure(*link, *request, &change, out);
            }
        }
        self.hand_out(out);
    }
}
