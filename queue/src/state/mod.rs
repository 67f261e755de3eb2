//! The job state machine: every transition of every job, and the assignment of jobs to credits.
//!
//! [`State::apply`] is the only way to change it, and a function of its arguments: no clock, no
//! socket, no disk, no random number of its own, and no iteration over a hash map. The same
//! commands give the same [`State::snapshot_bytes`].
//!
//! - A job is a [row](row) of 96 bytes; cold data stays in the log and is referenced by a
//!   `RecordRef`.
//! - Every change of substate goes through [`transition`]: only there do counters change.
//! - Every transition emits an event: [`events`].
//! - Jobs that a command makes ready are delivered to waiting credits before `apply` returns:
//!   [`dispatch`].
//! - [`delivery_budget`]: while the disk is all but full, a budget limits deliveries.
//! - Only `Tick` runs timers, in bounded steps; `State::next_timer_ms` returns when it has work.
//!   But no job is delivered after its expiry: [`expiry`]; and no key counts after its end:
//!   [`idempotency`], [`unique`].
//! - Jobs with an order key have turns: [`order`]; those with a fair key have shares: [`fair`].
//! - How many run, and start in a period, may be limited: [`limit`].
//! - Jobs may wait for the ends of others: [`graph`]; a [`batch`] ends with its members.
//! - Schedules enqueue jobs by themselves: [`schedule`].

mod act;
mod age_cursor;
mod batch;
mod checkpoints;
mod chunks;
mod dead_letters;
mod delivery_budget;
mod dispatch;
mod drain;
mod enqueue;
mod events;
mod expiry;
mod fair;
mod free_handlers;
mod graph;
mod held_members;
mod history;
mod id_key;
mod idempotency;
mod invariant;
mod key_jobs;
mod key_table;
mod lanes;
mod limit;
mod limits;
mod links;
mod matching;
mod memory;
mod names;
mod order;
mod parents;
mod pause;
mod prepared;
mod profile;
mod queue;
mod queue_paths;
mod read;
mod ready;
mod related;
mod replace;
mod retention;
mod row;
mod rows;
mod rules;
mod schedule;
mod session;
mod settings;
mod settle;
mod slab;
mod slot_index;
mod snapshot;
mod steps;
mod subscribe;
mod timers;
mod transition;
mod unique;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use longshore_protocol::LinkId;

pub use enqueue::refusal_of_damaged;
pub use idempotency::QueueKeys;
pub(crate) use parents::ParentJobs;
pub use read::{LinkUse, QueueUse, Totals, WaitingJobs};
pub use schedule::DueSchedule;
pub use snapshot::{Frozen, Restoring, SnapshotError};

use self::batch::Batches;
use self::dead_letters::DeadLetters;
use self::dispatch::Dispatch;
use self::fair::Shares;
use self::graph::Graph;
use self::idempotency::HeldKeys;
use self::limit::Limits;
use self::links::{Link, ServedPaths};
use self::names::WorkerNames;
use self::order::Orders;
use self::pause::Patterns;
use self::profile::Profiles;
use self::queue::Queue;
use self::queue_paths::QueuePaths;
use self::rows::Rows;
use self::schedule::Schedules;
use self::session::Sessions;
use self::slab::Slab;
use self::timers::Timers;
use self::transition::SideRow;
use self::unique::Uniques;
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
    served: ServedPaths,
    next_token: u64,
    /// The next token at the time when a lease was last revoked: no later lease has been revoked.
    /// Not in snapshots.
    unrevoked_from: u64,
    next_link: u64,
    stale_refused: u64,
    rows: Rows,
    sides: Slab<SideRow>,
    /// Attempts and checkpoints of all side rows.
    side_items: u64,
    /// Ready jobs that came after a younger one, and ended jobs with their own retention: each has
    /// an entry in a sorted set of its queue.
    sorted_jobs: u64,
    names: WorkerNames,
    dead: DeadLetters,
    profiles: Profiles,
    queues: Vec<Queue>,
    paths: QueuePaths,
    timers: Timers,
    keys: HeldKeys,
    orders: Orders,
    shares: Shares,
    uniques: Uniques,
    limits: Limits,
    schedules: Schedules,
    graph: Graph,
    batches: Batches,
    sessions: Sessions,
    links: BTreeMap<LinkId, Link>,
    dispatch: Dispatch,
    /// Patterns of paused queues.
    pauses: Patterns,
    /// Patterns of queues that are closed to new jobs.
    closings: Patterns,
    /// No new jobs are accepted.
    draining: bool,
    /// Jobs that may still be delivered; [`u64::MAX`] for no limit.
    delivery_budget: u64,
}

impl Default for State {
    fn default() -> State {
        State::new()
    }
}

impl State {
    /// An empty state: no jobs, no queues, no links.
    pub fn new() -> State {
        State::with_rules(Rules::STANDARD)
    }

    fn with_rules(rules: Rules) -> State {
        State {
            rules,
            index: 0,
            now: Now::default(),
            start: None,
            served: ServedPaths::default(),
            next_token: 1,
            unrevoked_from: 1,
            next_link: 1,
            stale_refused: 0,
            rows: Rows::default(),
            sides: Slab::default(),
            side_items: 0,
            sorted_jobs: 0,
            names: WorkerNames::default(),
            dead: DeadLetters::default(),
            profiles: Profiles::default(),
            queues: Vec::new(),
            paths: QueuePaths::default(),
            timers: Timers::default(),
            keys: HeldKeys::default(),
            orders: Orders::default(),
            shares: Shares::default(),
            uniques: Uniques::default(),
            limits: Limits::new(),
            schedules: Schedules::default(),
            graph: Graph::default(),
            batches: Batches::default(),
            sessions: Sessions::default(),
            links: BTreeMap::new(),
            dispatch: Dispatch::default(),
            pauses: Patterns::default(),
            closings: Patterns::default(),
            draining: false,
            delivery_budget: u64::MAX,
        }
    }

    /// Applies the command at `index` of the log, which was logged with the time `now`, and adds
    /// its outcomes to `out`. Indices rise; `now.mono_ms` never falls (a lower one counts as the
    /// one before). An invalid command (an unknown link, token or subscription) changes nothing but
    /// its answer.
    pub fn apply(&mut self, index: u64, now: Now, command: &Command, out: &mut Outcomes) {
        debug_assert!(index > self.index, "indices rise");
        self.index = index;
        self.now = Now { mono_ms: now.mono_ms.max(self.now.mono_ms), wall_ms: now.wall_ms };
        self.begin_limits();
        match command {
            Command::Start(start) => self.apply_start(start),
            Command::LinkUp { link, role, session, name, identity, work, resume } => {
                let client = links::ClientOfLink { name, identity, work: work.as_ref() };
                self.link_up(*link, *role, *session, &client, resume, out);
            }
            Command::Permit { link, work } => self.permit(*link, work.as_ref()),
            Command::LinkLost { link } => self.link_lost(*link),
            Command::Subscribe { link, subscription, sources, handlers } => {
                self.subscribe(*link, *subscription, (sources, *handlers), out);
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
            Command::Expire { leases } => self.end_leases(leases, out),
            Command::Act { link, request, action, selection, pace, within } => {
                let within = within.as_ref();
                let act = act::Act { action: *action, selection, pace: *pace, within };
                self.act(*link, *request, act, out);
            }
            Command::Pause { link, request, gate, pattern, paused } => {
                let report = self.set_gate(*gate, pattern, *paused);
                out.replies.push((*link, Reply::Paused { request: *request, report }));
            }
            Command::SetLimit { link, request, limit } => {
                self.apply_limit(*link, *request, limit, out);
            }
            Command::RemoveLimit { link, request, name } => {
                self.apply_remove_limit(*link, *request, name, out);
            }
            Command::PutSchedule { link, request, next, entry, schedule } => {
                self.apply_put_schedule((*link, *request), schedule, entry, *next, out);
            }
            Command::RemoveSchedule { link, request, name } => {
                self.apply_remove_schedule((*link, *request), name, out);
            }
            Command::PauseSchedule { link, request, name, paused, next } => {
                self.apply_pause_schedule((*link, *request), name, *paused, *next, out);
            }
            Command::RunSchedule { link, request, name, job } => {
                self.apply_run_schedule((*link, *request), name, *job, out);
            }
            Command::Occur { occurrences } => self.apply_occurrences(occurrences, out),
            Command::Drain { link, request, draining } => {
                self.draining = *draining;
                out.replies.push((*link, Reply::Drained { request: *request, result: Ok(()) }));
            }
            Command::Damaged { token } => self.damaged(*token, out),
            Command::Tick => self.tick(out),
            Command::Refuse { link, sequence, jobs, refusal } => {
                self.refuse_batch(*link, *sequence, *jobs, *refusal, out);
            }
            Command::DeliveryBudget { budget } => self.set_delivery_budget(*budget),
            Command::Checkpoint { link, checkpoint } => self.checkpoint(*link, checkpoint, out),
            Command::Replace { link, request, id, entry } => {
                self.replace(*link, *request, id, entry, out);
            }
            Command::Configure { link, request, path, changes, reset } => {
                let change = settings::Change { path, changes, reset: *reset };
                self.configure(*link, *request, &change, out);
            }
        }
        self.settle_batches(out);
        self.settle_parents(out);
        self.settle_turns(out);
        self.dispatch_jobs(out);
        // Parents have cancelled members, or members have expired at their delivery.
        self.settle_batches(out);
    }
}
