//! The state machine over a log: commands in, durable outcomes out.

mod admission;
mod opening;
mod options;
mod pending_outcomes;
mod queries;
mod released;
mod replay;
mod reports;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use bytes::Bytes;
use hashbrown::HashMap;
use longshore_protocol::messages::work::{
    Answer, EnqueueBatch, Progress, Request, Started, Tokens,
};
use longshore_protocol::{Durability, Epoch, JobId, LinkId, PublisherId, Refusal, Token};

use self::admission::Admission;
#[cfg(test)]
pub(crate) use self::opening::epoch_floor;
pub use self::options::{Opened, StoreOptions};
use self::pending_outcomes::PendingOutcomes;
pub use self::released::{Asked, Released, StoreMetrics};
pub use self::replay::Replay;
use self::reports::ProgressReports;
use crate::clock::BootStamp;
use crate::journal::{Budget, Journal, Space, SpaceLevel};
use crate::leases::{EXPIRED_MAX, LeaseTiming, Leases};
use crate::log::{Log, Poisoned, Reader};
use crate::payloads::PayloadCache;
use crate::tail::Tail;
use crate::{Command, Expired, Handed, JobView, Now, RecordRef, RunningLease, Start, State};

/// While leases run, or the disk is short of room, a store wants a turn at least this often, in
/// milliseconds.
pub const TURN_MS: u64 = 250;
/// A publisher that was told no time for longer than this, in milliseconds, though it had leases,
/// stood still: they get their full length anew.
pub const PAUSE_MS: u64 = 1_000;
/// What every entry has beside its payload, in bytes: id, flags, checksum, lengths.
const ENTRY_BYTES: u64 = 24;

/// The state machine over a log: it applies a command in memory at once, and holds back what that
/// brings about until the command is durable.
///
/// One task owns a store. It calls [`Store::submit`] and the others as things arrive,
/// [`Store::turn`] after each round of input and when the deadline that it gave has come,
/// [`Store::flush`] once a round is in, and waits on [`Store::released`].
/// **Nothing that a store gives out in [`Released`] could be taken back by a power cut**, at its
/// level of durability.
#[derive(Debug)]
pub struct Store<L: Log = Journal> {
    log: L,
    state: State,
    publisher: PublisherId,
    epoch: Epoch,
    durability: Durability,
    pending: PendingOutcomes,
    leases: Leases,
    reports: ProgressReports,
    tail: Tail,
    cache: PayloadCache,
    memory_max: u64,
    payload_bytes: u64,
    /// Released and not yet begun: their leases begin with the next call that says what time it is.
    ungranted: Vec<Handed>,
    /// Leases resumed before they began.
    moved_early: HashMap<Token, LinkId>,
    /// Soft verbs refused for a stale token since the start.
    soft_stale: u64,
    /// The last time that was told, in milliseconds of the publisher's own life.
    latest_ms: u64,
    expired: Vec<Expired>,
    ended: Vec<Token>,
}

impl<L: Log> Store<L> {
    /// Goes on from what is all of `log`: logs the start and waits until it is durable. Blocks.
    pub fn start(
        log: L,
        replay: Replay,
        publisher: PublisherId,
        now: Now,
        boot: BootStamp,
        options: StoreOptions,
    ) -> Result<Store<L>, Poisoned> {
        Store::start_above(Epoch(0), log, replay, publisher, now, boot, options)
    }

    /// The same, with an epoch above `floor` whatever the log says: starts may have gone with what
    /// was dropped.
    pub(crate) fn start_above(
        floor: Epoch,
        log: L,
        replay: Replay,
        publisher: PublisherId,
        now: Now,
        boot: BootStamp,
        options: StoreOptions,
    ) -> Result<Store<L>, Poisoned> {
        let Replay { state, tail, .. } = replay;
        let last = state.last_start().map_or(Epoch(0), |last| last.epoch);
        // A copy: the publisher that it was made of lives on, and goes on giving tokens.
        let is_copy = state.last_start().is_some_and(|last| last.publisher != publisher);
        let epoch = Epoch(last.max(floor).0 + 1);
        let mut store = Store {
            log,
            publisher,
            epoch,
            durability: options.durability,
            pending: PendingOutcomes::default(),
            leases: Leases::new(options.leases),
            reports: ProgressReports::default(),
            tail,
            cache: PayloadCache::new(options.cache_bytes),
            memory_max: options.memory_max,
            payload_bytes: 0,
            ungranted: Vec::new(),
            moved_early: HashMap::new(),
            soft_stale: 0,
            latest_ms: now.mono_ms.max(state.last_now().mono_ms),
            expired: Vec::new(),
            ended: Vec::new(),
            state,
        };
        let start = Start {
            publisher,
            epoch,
            boot: boot.to_bytes(),
            secret: store.state.secret().unwrap_or(options.secret),
            rules: Box::new(options.rules),
            durability: options.durability,
            paths: options.paths,
            defaults: options.defaults,
        };
        // The start ends every link. A lease whose link was lost before has a worker that is gone,
        // not one that will be back once the publisher is: it gets the grace, not the window.
        store.pending.outcomes.wants_events = store.tail.is_recording();
        let has_link = |lease: &RunningLease| store.state.is_up(lease.link);
        let (mut linked, mut lost): (Vec<_>, Vec<_>) = store.state.running().partition(has_link);
        let index = store.submit(now, Command::Start(start))?;
        store.tail.begin(index, epoch);
        if is_copy {
            // Those who hold these leases hold them of the other publisher. The jobs run here, too,
            // at no attempt's cost.
            let ended = |lease: RunningLease| Expired {
                token: lease.token,
                started: false,
                restart: true,
                timed_out: false,
            };
            let leases: Vec<Expired> = linked.drain(..).chain(lost.drain(..)).map(ended).collect();
            for leases in leases.chunks(EXPIRED_MAX) {
                store.submit(now, Command::Expire { leases: leases.to_vec() })?;
            }
        }
        store.log.sync();
        store.log.flush();
        let appended = store.log.appended();
        block_on(store.log.committed_beyond(appended - 1))?;
        // Nobody is there yet to be told anything.
        let mut nobody = Released::default();
        store.release(store.log.committed(), &mut nobody);
        let now_ms = store.latest_ms;
        for RunningLease { token, link, lease_ms, run_timeout_ms } in linked {
            store.leases.restarted(now_ms, token, link, lease_ms, run_timeout_ms);
        }
        for RunningLease { token, link, lease_ms, run_timeout_ms } in lost {
            store.leases.granted(now_ms, token, link, lease_ms, run_timeout_ms);
        }
        Ok(store)
    }

    /// Whose jobs these are, and which start of it this is.
    pub fn identity(&self) -> (PublisherId, Epoch) {
        (self.publisher, self.epoch)
    }

    /// The state with everything applied, durable or not: what is told of it must be durable.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Takes a command, and gives its index; what it brings about is released once it is durable.
    /// What the disk has no room for is refused instead: of jobs each one, for good; of
    /// checkpoints, replacements, long acts, and settles with results over
    /// [`SMALL_BYTES_MAX`](longshore_protocol::limits::SMALL_BYTES_MAX), the whole command, for
    /// now.
    pub fn submit(&mut self, now: Now, command: Command) -> Result<u64, Poisoned> {
        let now = self.observe_time(now);
        let (head, raw) = command.encode();
        let budget = self.budget();
        let bytes = admission::logged_bytes(head.len() + raw.len());
        match admission::admit(&command, bytes, &self.state, &budget, self.memory_max) {
            Admission::Log => {}
            Admission::LogInstead(other) => return self.submit(now, other),
            Admission::Answer(link, reply) => {
                // Nothing has changed, so nothing is logged. The answer waits its turn.
                self.pending.outcomes.replies.push((link, reply));
                self.pending.mark_boundary(self.log.appended(), now.mono_ms, self.state.totals());
                return Ok(self.log.appended());
            }
        }
        self.lower_handouts(now, &command, budget.after_append(bytes))?;
        self.append(now, command, head, raw)
    }

    /// What may be appended.
    fn budget(&self) -> Budget {
        self.log.budget(self.state.leases())
    }

    /// Before a command that may hand out jobs: no more of them than the disk has room for the ends
    /// of.
    fn lower_handouts(
        &mut self,
        now: Now,
        command: &Command,
        budget: Budget,
    ) -> Result<(), Poisoned> {
        let added = match command {
            Command::Credit { count, .. } => u64::from(*count),
            Command::Handouts { .. } => return Ok(()),
            _ => 0,
        };
        let most = self.state.handouts().min(self.state.waiting_credits() + added);
        let budget = budget.handouts();
        if most > budget { self.limit_handouts(now, budget) } else { Ok(()) }
    }

    /// Credits that wait for want of room get jobs once there is some.
    fn raise_handouts(&mut self, now: Now) -> Result<(), Poisoned> {
        let (left, waiting) = (self.state.handouts(), self.state.waiting_credits());
        let budget = self.budget().handouts();
        match left {
            u64::MAX => Ok(()),
            _ if budget > waiting => self.limit_handouts(now, u64::MAX),
            _ if left < waiting && left < budget => self.limit_handouts(now, budget),
            _ => Ok(()),
        }
    }

    fn limit_handouts(&mut self, now: Now, budget: u64) -> Result<(), Poisoned> {
        let command = Command::Handouts { budget };
        let (head, raw) = command.encode();
        self.append(now, command, head, raw).map(drop)
    }

    fn append(
        &mut self,
        now: Now,
        command: Command,
        head: Bytes,
        raw: Bytes,
    ) -> Result<u64, Poisoned> {
        match &command {
            Command::LinkUp { link, .. } => self.leases.link_up(*link),
            Command::LinkLost { link } => self.leases.link_lost(now.mono_ms, *link),
            _ => {}
        }
        let index = self.log.append(now, command.kind(), head, raw)?;
        // Checkpoints are not kept in memory: they are read again only when an attempt fails.
        match &command {
            Command::Enqueue { batch, .. } => {
                self.cache.keep(index, Command::BATCH_AT, batch.body());
                self.count_entries(batch.body().len(), batch.len());
            }
            Command::Replace { entry, .. } => {
                // A part of a request, of whatever length that is: a slice would hold on to all of
                // it.
                let entry = Bytes::copy_from_slice(entry);
                self.cache.keep(index, Command::REPLACE_ENTRY_AT, &entry);
                self.count_entries(entry.len(), 1);
            }
            _ => {}
        }
        self.state.apply(index, now, &command, &mut self.pending.outcomes);
        for (token, link) in self.pending.outcomes.moved.drain(..) {
            if !self.leases.moved(now.mono_ms, token, link) {
                self.moved_early.insert(token, link);
            }
        }
        self.pending.mark_boundary(index, now.mono_ms, self.state.totals());
        Ok(index)
    }

    /// Forgets a link that ended without a `LinkLost`: a newer one of its session has taken its
    /// leases, or it was refused.
    pub fn link_replaced(&mut self, now: Now, link: LinkId) {
        let now = self.observe_time(now);
        self.leases.link_lost(now.mono_ms, link);
    }

    /// Hands what was submitted on, to become durable.
    pub fn flush(&mut self) {
        self.log.flush();
    }

    /// Asks for something; the answer reflects all that was submitted before, and is released once
    /// that is durable.
    pub fn ask(&mut self, now: Now, link: LinkId, id: u64, request: Request) {
        let now = self.observe_time(now);
        if matches!(request, Request::Feed { .. }) {
            self.record_events(true);
        }
        let answer = queries::answer(&self.state, &self.reports, now, link, request);
        self.pending.answered.push((link, id, answer));
        self.pending.mark_boundary(self.log.appended(), now.mono_ms, self.state.totals());
    }

    /// Says [`Answer::Done`] to that link and number once everything submitted is durable: then
    /// what was read of it may be told.
    pub fn say_when_durable(&mut self, now: Now, link: LinkId, id: u64) {
        let now = self.observe_time(now);
        self.pending.answered.push((link, id, Asked::Ready(Answer::Done)));
        self.pending.mark_boundary(self.log.appended(), now.mono_ms, self.state.totals());
    }

    /// Lets leases of that link run on, and gives the tokens that hold none there.
    pub fn renew(&mut self, now: Now, link: LinkId, tokens: &Tokens) -> Tokens {
        let now = self.observe_time(now);
        let leases = &mut self.leases;
        let stale = tokens.0.iter().filter(|&&token| !leases.renewed(now.mono_ms, token, link));
        let stale = stale.copied().collect();
        self.count_stale(stale)
    }

    /// Notes that these attempts begin, or have run for a while already: losing their lease costs
    /// an attempt from now on, and the time of their run timeout has begun. Gives the tokens that
    /// hold no lease of that link.
    pub fn started(&mut self, now: Now, link: LinkId, started: &Started) -> Tokens {
        let now = self.observe_time(now);
        let leases = &mut self.leases;
        let mut is_stale =
            |token, running_ms| !leases.started(now.mono_ms, token, link, running_ms);
        let stale = started.iter().filter(|&(token, running_ms)| is_stale(token, running_ms));
        let stale = stale.map(|(token, _)| token).collect();
        self.count_stale(stale)
    }

    /// Notes how far attempts are: whoever asks for the job is told. Gives the tokens that hold no
    /// lease of that link.
    pub fn progress(&mut self, now: Now, link: LinkId, progress: Vec<Progress>) -> Tokens {
        let now = self.observe_time(now);
        let mut stale = Vec::new();
        for progress in progress {
            match self.leases.holds(progress.token, link) {
                true => self.reports.record(progress, now.wall_ms),
                false => stale.push(progress.token),
            }
        }
        self.count_stale(stale)
    }

    /// Ends leases and makes due jobs ready; gives when to come again, in milliseconds of the
    /// publisher's own life, if nothing else happens before.
    pub fn turn(&mut self, now: Now) -> Result<Option<u64>, Poisoned> {
        let now = self.observe_time(now);
        self.leases.expired(now.mono_ms, &mut self.expired);
        if !self.expired.is_empty() {
            let leases = std::mem::take(&mut self.expired);
            self.submit(now, Command::Expire { leases })?;
        }
        if self.state.next_due(now).is_some_and(|due| due <= now.mono_ms) {
            self.submit(now, Command::Tick)?;
        }
        self.raise_handouts(now)?;
        if self.log.wants_snapshot(self.state.about_snapshot_bytes()) {
            self.log.snapshot(Box::new(self.state.freeze()));
        }
        let ends = self.leases.next_deadline();
        let is_short = self.space().level.is_short();
        let often = (is_short || !self.leases.is_empty()).then(|| now.mono_ms + TURN_MS);
        let next = [ends, often, self.state.next_due(now)].into_iter().flatten().min();
        Ok(next.map(|at| at.max(now.mono_ms)))
    }

    /// How long leases outlive what held them.
    pub fn lease_timing(&self) -> LeaseTiming {
        self.leases.timing()
    }

    /// Gives every lease its full length anew from now on, and every lost link its grace: as after
    /// a pause.
    pub fn leases_anew(&mut self, now: Now) {
        let now = self.observe_time(now);
        self.leases.paused(now.mono_ms);
    }

    /// Waits for more to become durable and adds to `out` all that was held back for it. Cancel
    /// safe: what is not in `out` comes with the next call. After a failure, what was durable
    /// before it is still given, then the failure.
    pub async fn released(&mut self, out: &mut Released) -> Result<(), Poisoned> {
        self.log.flush();
        let mut committed = self.log.committed();
        if self.pending.oldest().is_none_or(|oldest| oldest > committed) {
            committed = self.log.committed_beyond(committed).await?;
        }
        self.release(committed, out);
        Ok(())
    }

    /// Keeps what happens to jobs in [`Store::tail`] from the next command on, or no longer. On
    /// when a store is opened, so that clients can go on over a restart; asking for a feed turns it
    /// on.
    pub fn record_events(&mut self, enabled: bool) {
        self.pending.outcomes.wants_events = enabled;
        match enabled {
            true => self.tail.record_beyond(self.log.appended()),
            false => self.tail.stop(),
        }
    }

    /// The last events, all of them durable: those that have been released, and those of the runs
    /// before.
    pub fn tail(&self) -> &Tail {
        &self.tail
    }

    /// An entry, if it is in memory.
    pub fn payload(&self, entry: RecordRef) -> Option<Bytes> {
        self.cache.get(entry)
    }

    /// Reads what is not in memory; blocks, so it belongs on threads that may.
    pub fn reader(&self) -> Reader {
        self.log.reader()
    }

    /// Why each of these jobs would be refused for want of memory or of room on the disk; none if
    /// there is enough.
    pub fn refusal_of(&self, batch: &EnqueueBatch) -> Option<Refusal> {
        let bytes = admission::bytes_of(batch);
        admission::refusal(bytes, &self.state, &self.budget(), self.memory_max)
    }

    /// What the disk still has room for. Cheap: for those who would not enqueue what will be
    /// refused.
    pub fn space(&self) -> Space {
        let budget = self.budget();
        let level = match budget.short {
            _ if self.state.handouts() == 0 => SpaceLevel::NoHandouts,
            true => SpaceLevel::NoEnqueues,
            false => SpaceLevel::Open,
        };
        Space { level, headroom: budget.headroom() }
    }

    /// The last index that was submitted.
    pub fn appended(&self) -> u64 {
        self.log.appended()
    }

    /// The last index that is durable.
    pub fn committed(&self) -> u64 {
        self.log.committed()
    }

    /// True when nothing is held back: all that was submitted is durable, and was released.
    pub fn is_released(&self) -> bool {
        self.pending.oldest().is_none()
    }

    /// Bytes submitted and not yet durable: over
    /// [`UNCOMMITTED_BYTES_MAX`](crate::UNCOMMITTED_BYTES_MAX) no more input should be taken.
    pub fn uncommitted_bytes(&self) -> usize {
        self.log.uncommitted_bytes()
    }

    /// When the oldest command came that is not yet durable, by the monotonic clock in
    /// milliseconds.
    pub fn oldest_uncommitted(&self) -> Option<u64> {
        self.pending.oldest_beyond(self.log.committed())
    }

    /// Age of the oldest command that is not yet durable, in milliseconds; 0 for none.
    pub fn oldest_uncommitted_ms(&self, now: Now) -> u64 {
        self.oldest_uncommitted().map_or(0, |since| now.mono_ms.saturating_sub(since))
    }

    /// A job with everything submitted applied, durable or not: what is told of it must be durable.
    pub fn job(&self, now: Now, id: &JobId) -> Option<JobView> {
        let mut view = self.state.job(id, now)?;
        self.reports.add_to(&mut view);
        Some(view)
    }

    /// Metrics of what is durable.
    pub fn metrics(&self, now: Now) -> StoreMetrics {
        let log = self.log.metrics();
        StoreMetrics {
            durability: self.durability,
            jobs: self.pending.totals.jobs,
            queues: self.pending.totals.queues,
            committed_index: self.log.committed(),
            oldest_uncommitted_ms: self.oldest_uncommitted_ms(now),
            journal_bytes: log.bytes,
            written_bytes: log.written_bytes,
            payload_bytes: self.payload_bytes,
            syncs: log.syncs,
            stale_refused: self.pending.totals.stale_refused + self.soft_stale,
            level: self.space().level,
            ballast_bytes: log.ballast_bytes,
            memory_bytes: self.state.memory_bytes(),
            memory_max: self.memory_max,
        }
    }

    /// Takes note of the time: leases released before it begin, and a pause gives every lease its
    /// full length anew.
    fn observe_time(&mut self, now: Now) -> Now {
        let mono_ms = now.mono_ms.max(self.latest_ms);
        if mono_ms - self.latest_ms > PAUSE_MS && !self.leases.is_empty() {
            self.leases.paused(mono_ms);
        }
        self.latest_ms = mono_ms;
        self.begin_leases();
        Now { mono_ms, wall_ms: now.wall_ms }
    }

    fn begin_leases(&mut self) {
        for handed in self.ungranted.drain(..) {
            let link = match self.moved_early.is_empty() {
                true => handed.link,
                false => self.moved_early.remove(&handed.token).unwrap_or(handed.link),
            };
            let Handed { token, lease_ms, run_timeout_ms, .. } = handed;
            self.leases.granted(self.latest_ms, token, link, lease_ms, run_timeout_ms);
        }
        // After the leases of the same release have begun: some of them may have ended with it.
        for token in self.ended.drain(..) {
            self.leases.ended(token);
            self.reports.forget(token);
        }
    }

    fn release(&mut self, committed: u64, out: &mut Released) {
        let before = out.handed.len();
        self.pending.release(committed, out, &mut self.tail, &mut self.ended);
        self.ungranted.extend(&out.handed[before..]);
    }

    fn count_entries(&mut self, bytes: usize, entries: usize) {
        self.payload_bytes += (bytes as u64).saturating_sub(ENTRY_BYTES * entries as u64);
    }

    fn count_stale(&mut self, stale: Vec<Token>) -> Tokens {
        self.soft_stale += stale.len() as u64;
        Tokens(stale)
    }
}

/// Waits for a future on a thread of its own: a start is not part of any runtime.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Unpark>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}
