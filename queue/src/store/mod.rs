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
use longshore_protocol::{Durability, Epoch, JobId, LinkId, PathSet, PublisherId, Refusal, Token};

use self::admission::Admission;
#[cfg(test)]
pub(crate) use self::opening::epoch_floor;
pub use self::options::{Opened, StoreOptions};
use self::pending_outcomes::PendingOutcomes;
pub use self::released::{PendingAnswer, Released, StoreMetrics};
pub use self::replay::Replay;
use self::reports::ProgressReports;
use crate::clock::BootStamp;
use crate::journal::{Budget, Journal, Space, SpaceLevel};
use crate::leases::{LEASE_ENDS_MAX, LeaseTiming, Leases};
use crate::log::{Log, LogReader, Poisoned};
use crate::payloads::PayloadCache;
use crate::tail::Tail;
use crate::{Assignment, Command, JobView, LeaseEnd, Now, RecordRef, RunningLease, Start, State};

/// While leases run, or the disk is short of room, a store must be advanced at least this often, in
/// milliseconds.
pub const ADVANCE_MS: u64 = 250;
/// If a publisher with leases gets no call for longer than this, in milliseconds, it was paused:
/// the leases get their full length again.
pub const PAUSE_MS: u64 = 1_000;
/// Room that a command with occurrences needs.
const OCCURRENCES_BYTES: u64 = 64 * 1024;
/// Bytes of every entry beside its payload: id, flags, checksum, lengths.
const ENTRY_BYTES: u64 = 24;

/// The state machine over a log. It applies a command in memory at once, and delays the outcomes
/// until the command is durable.
///
/// One task owns a store. It calls [`Store::submit`] and similar methods as input arrives,
/// [`Store::advance`] after each round of input and at the returned deadline, [`Store::flush`]
/// after a round, and awaits [`Store::released`]. **A power cut cannot revoke anything in
/// [`Released`]**, at the store's level of durability.
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
    /// Released deliveries whose leases begin with the next call that passes the time.
    ungranted: Vec<Assignment>,
    /// Leases resumed before they began.
    moved_early: HashMap<Token, LinkId>,
    /// Soft verbs refused for a stale token since the start.
    soft_stale: u64,
    /// The latest time of any call, in milliseconds of the publisher's monotonic time.
    latest_ms: u64,
    ended_leases: Vec<LeaseEnd>,
    ended: Vec<Token>,
}

impl<L: Log> Store<L> {
    /// Starts on the replayed state of `log`: logs the start and waits until it is durable. Blocks.
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

    /// The same, with an epoch above `floor` whatever the log contains: starts may have been
    /// dropped.
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
        // In a copy: the original publisher lives on, and goes on issuing tokens.
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
            ended_leases: Vec::new(),
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
        // The start ends every link. If a lease's link was lost before, its worker is gone and will
        // not reconnect after the restart: the lease gets the grace, not the window. A link
        // that an earlier start ended was up until then: its worker may still be dialling.
        store.pending.outcomes.wants_events = store.tail.is_recording();
        let is_lost = |lease: &RunningLease| lease.worker_is_lost;
        let (mut lost, mut linked): (Vec<_>, Vec<_>) = store.state.running().partition(is_lost);
        let index = store.submit(now, Command::Start(start))?;
        store.tail.begin(index, epoch);
        if is_copy {
            // These leases belong to workers of the original publisher. The jobs run here too,
            // without costing an attempt.
            let ended = |lease: RunningLease| LeaseEnd {
                token: lease.token,
                started: false,
                uncounted: true,
                timed_out: false,
            };
            let leases: Vec<LeaseEnd> = linked.drain(..).chain(lost.drain(..)).map(ended).collect();
            for leases in leases.chunks(LEASE_ENDS_MAX) {
                store.submit(now, Command::Expire { leases: leases.to_vec() })?;
            }
        }
        store.log.sync();
        store.log.flush();
        let appended = store.log.appended();
        block_on(store.log.committed_beyond(appended - 1))?;
        // No client is connected yet.
        let mut discarded = Released::default();
        store.release(store.log.committed(), &mut discarded);
        let now_ms = store.latest_ms;
        for RunningLease { token, link, lease_ms, run_timeout_ms, .. } in linked {
            store.leases.restarted(now_ms, token, link, lease_ms, run_timeout_ms);
        }
        for RunningLease { token, link, lease_ms, run_timeout_ms, .. } in lost {
            store.leases.granted(now_ms, token, link, lease_ms, run_timeout_ms);
        }
        Ok(store)
    }

    /// The publisher's id, and the epoch of this start.
    pub fn identity(&self) -> (PublisherId, Epoch) {
        (self.publisher, self.epoch)
    }

    /// The state with everything applied, durable or not: report only durable parts of it.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Applies a command and returns its index; its outcomes are released once it is durable. If
    /// the disk has no room, it is refused instead: each job of a batch, permanently; checkpoints,
    /// replacements, long actions, and settles with results over
    /// [`SMALL_BYTES_MAX`](longshore_protocol::limits::SMALL_BYTES_MAX), as a whole and
    /// temporarily.
    pub fn submit(&mut self, now: Now, command: Command) -> Result<u64, Poisoned> {
        let now = self.observe_time(now);
        let (head, raw) = command.encode();
        let budget = self.budget();
        let bytes = admission::logged_bytes(head.len() + raw.len());
        match admission::admit(&command, bytes, &self.state, &budget, self.memory_max) {
            Admission::Log => {}
            Admission::LogInstead(other) => return self.submit(now, other),
            Admission::Answer(link, reply) => {
                // Nothing has changed, so nothing is logged. The answer keeps its order.
                self.pending.outcomes.replies.push((link, reply));
                self.pending.mark_boundary(self.log.appended(), now.mono_ms, self.state.totals());
                return Ok(self.log.appended());
            }
        }
        self.lower_deliveries(now, &command, budget.after_append(bytes))?;
        self.append(now, command, head, raw)
    }

    /// The budget of the next append.
    fn budget(&self) -> Budget {
        self.log.budget(self.state.leases())
    }

    /// Limits deliveries before a command that may deliver jobs, so that the disk has room for the
    /// ends of their leases.
    fn lower_deliveries(
        &mut self,
        now: Now,
        command: &Command,
        budget: Budget,
    ) -> Result<(), Poisoned> {
        let added = match command {
            Command::Credit { count, .. } => u64::from(*count),
            Command::DeliveryBudget { .. } => return Ok(()),
            _ => 0,
        };
        let most = self.state.delivery_budget().min(self.state.waiting_credits() + added);
        let budget = budget.deliveries();
        if most > budget { self.limit_deliveries(now, budget) } else { Ok(()) }
    }

    /// Raises the limit of deliveries once there is room for waiting credits.
    fn raise_deliveries(&mut self, now: Now) -> Result<(), Poisoned> {
        let (left, waiting) = (self.state.delivery_budget(), self.state.waiting_credits());
        let budget = self.budget().deliveries();
        match left {
            u64::MAX => Ok(()),
            _ if budget > waiting => self.limit_deliveries(now, u64::MAX),
            _ if left < waiting && left < budget => self.limit_deliveries(now, budget),
            _ => Ok(()),
        }
    }

    fn limit_deliveries(&mut self, now: Now, budget: u64) -> Result<(), Poisoned> {
        let command = Command::DeliveryBudget { budget };
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
        // Checkpoints are not cached: they are read again only after an attempt fails.
        match &command {
            Command::Enqueue { batch, .. } => {
                self.cache.insert(index, Command::BATCH_AT, batch.body());
                self.count_entries(batch.body().len(), batch.len());
            }
            Command::Replace { entry, .. } => {
                // A slice would keep the whole request in memory, whatever its length.
                let entry = Bytes::copy_from_slice(entry);
                self.cache.insert(index, Command::REPLACE_ENTRY_AT, &entry);
                self.count_entries(entry.len(), 1);
            }
            Command::PutSchedule { entry, .. } => {
                // The first job may come at once; later ones read it from the disk.
                let entry = Bytes::copy_from_slice(entry);
                self.cache.insert(index, Command::SCHEDULE_ENTRY_AT, &entry);
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

    /// Forgets a link that ended without a `LinkLost`: a newer link of its session took its leases,
    /// or it was refused.
    pub fn link_replaced(&mut self, now: Now, link: LinkId) {
        let now = self.observe_time(now);
        self.leases.link_lost(now.mono_ms, link);
    }

    /// Passes submitted commands to the log's writer.
    pub fn flush(&mut self) {
        self.log.flush();
    }

    /// Answers a query; the answer reflects everything submitted before, and is released once that
    /// is durable.
    /// Jobs of queues that are not `within` are not shown; none for all.
    pub fn query(
        &mut self,
        now: Now,
        link: LinkId,
        id: u64,
        request: Request,
        within: Option<&PathSet>,
    ) {
        let now = self.observe_time(now);
        if matches!(request, Request::Feed { .. }) {
            self.record_events(true);
        }
        let answer = queries::answer(&self.state, &self.reports, now, link, request, within);
        self.pending.answered.push((link, id, answer));
        self.pending.mark_boundary(self.log.appended(), now.mono_ms, self.state.totals());
    }

    /// Answers that link and request once everything submitted is durable: with what the caller has
    /// read from the state, or so that it may report that then.
    pub fn answer_when_durable(&mut self, now: Now, link: LinkId, id: u64, answer: Answer) {
        let now = self.observe_time(now);
        self.pending.answered.push((link, id, PendingAnswer::Ready(answer)));
        self.pending.mark_boundary(self.log.appended(), now.mono_ms, self.state.totals());
    }

    /// Renews leases of that link, and returns the tokens that have no lease there.
    pub fn renew(&mut self, now: Now, link: LinkId, tokens: &Tokens) -> Tokens {
        let now = self.observe_time(now);
        let leases = &mut self.leases;
        let stale = tokens.0.iter().filter(|&&token| !leases.renewed(now.mono_ms, token, link));
        let stale = stale.copied().collect();
        self.count_soft_stale(stale)
    }

    /// Records that these attempts start, or have run for a while: from now on losing their lease
    /// costs an attempt, and their run timeout counts. Returns the tokens that have no lease on
    /// that link.
    pub fn started(&mut self, now: Now, link: LinkId, started: &Started) -> Tokens {
        let now = self.observe_time(now);
        let leases = &mut self.leases;
        let mut is_stale =
            |token, running_ms| !leases.started(now.mono_ms, token, link, running_ms);
        let stale = started.iter().filter(|&(token, running_ms)| is_stale(token, running_ms));
        let stale = stale.map(|(token, _)| token).collect();
        self.count_soft_stale(stale)
    }

    /// Records the progress of attempts, which queries of the job show. Returns the tokens that
    /// have no lease on that link.
    pub fn progress(&mut self, now: Now, link: LinkId, progress: Vec<Progress>) -> Tokens {
        let now = self.observe_time(now);
        let mut stale = Vec::new();
        for progress in progress {
            match self.leases.holds(progress.token, link) {
                true => self.reports.record(progress, now.wall_ms),
                false => stale.push(progress.token),
            }
        }
        self.count_soft_stale(stale)
    }

    /// Ends leases and makes due jobs ready; returns the next deadline, in milliseconds of the
    /// publisher's monotonic time, if nothing else happens before.
    pub fn advance(&mut self, now: Now) -> Result<Option<u64>, Poisoned> {
        let now = self.observe_time(now);
        self.leases.take_ended(now.mono_ms, &mut self.ended_leases);
        if !self.ended_leases.is_empty() {
            let leases = std::mem::take(&mut self.ended_leases);
            self.submit(now, Command::Expire { leases })?;
        }
        if self.state.next_timer_ms(now).is_some_and(|due| due <= now.mono_ms) {
            self.submit(now, Command::Tick)?;
        }
        self.raise_deliveries(now)?;
        if self.log.wants_snapshot(self.state.about_snapshot_bytes()) {
            self.log.snapshot(Box::new(self.state.freeze()));
        }
        let ends = self.leases.next_deadline();
        let is_short = self.space().level.is_short();
        let often = (is_short || !self.leases.is_empty()).then(|| now.mono_ms + ADVANCE_MS);
        let next = [ends, often, self.state.next_timer_ms(now)].into_iter().flatten().min();
        Ok(next.map(|at| at.max(now.mono_ms)))
    }

    /// The configured lease timing.
    pub fn lease_timing(&self) -> LeaseTiming {
        self.leases.timing()
    }

    /// These jobs wait at the publisher, for their links or for the disk; until they are sent, the
    /// ends of their leases count nothing.
    pub fn jobs_wait(&mut self, now: Now, jobs: impl IntoIterator<Item = (LinkId, Token)>) {
        self.observe_time(now);
        jobs.into_iter().for_each(|(link, token)| self.leases.waits(token, link));
    }

    /// These jobs waited, and are sent: their leases begin now.
    pub fn jobs_sent(&mut self, now: Now, jobs: impl IntoIterator<Item = (LinkId, Token)>) {
        let now = self.observe_time(now);
        jobs.into_iter().for_each(|(link, token)| self.leases.sent(now.mono_ms, token, link));
    }

    /// The link has ended: jobs that wait for it are ready again, and it counts nothing.
    pub fn return_unsent(&mut self, now: Now, link: LinkId) -> Result<(), Poisoned> {
        let now = self.observe_time(now);
        loop {
            let mut leases = Vec::new();
            self.leases.unsent_of(link, &mut leases);
            if leases.is_empty() {
                return Ok(());
            }
            self.submit(now, Command::Expire { leases })?;
        }
    }

    /// The disk worked again after links were refused: workers have the restart window to resume
    /// their leases.
    pub fn hang_ended(&mut self, now: Now) {
        let now = self.observe_time(now);
        self.leases.hang_ended(now.mono_ms);
    }

    /// Restarts every lease at its full length, and every lost link's grace, as after a pause.
    pub fn restart_leases(&mut self, now: Now) {
        let now = self.observe_time(now);
        self.leases.paused(now.mono_ms);
    }

    /// Waits for the next commit and adds the outcomes of committed commands to `out`. Cancel safe:
    /// the next call returns what is not in `out`. After a failure, commits before it are still
    /// released, then the failure is returned.
    pub async fn released(&mut self, out: &mut Released) -> Result<(), Poisoned> {
        self.log.flush();
        let mut committed = self.log.committed();
        if self.pending.oldest().is_none_or(|oldest| oldest > committed) {
            committed = self.log.committed_beyond(committed).await?;
        }
        self.release(committed, out);
        Ok(())
    }

    /// Starts or stops recording job events in [`Store::tail`], from the next command on. It is on
    /// when a store is opened, so that feeds resume over a restart; querying a feed turns it on.
    pub fn record_events(&mut self, enabled: bool) {
        self.pending.outcomes.wants_events = enabled;
        match enabled {
            true => self.tail.record_beyond(self.log.appended()),
            false => self.tail.stop(),
        }
    }

    /// The last events, all of them durable: released ones, and those of previous runs.
    pub fn tail(&self) -> &Tail {
        &self.tail
    }

    /// An entry, if it is in memory.
    pub fn payload(&self, entry: RecordRef) -> Option<Bytes> {
        self.cache.get(entry)
    }

    /// Reads parts that are not cached. It blocks, so call it on threads that may block.
    pub fn reader(&self) -> LogReader {
        self.log.reader()
    }

    /// Why each of these jobs would be refused for lack of memory or disk space; none if there is
    /// enough.
    pub fn refusal_of(&self, batch: &EnqueueBatch) -> Option<Refusal> {
        let bytes = admission::bytes_of(batch);
        admission::refusal(bytes, &self.state, &self.budget(), self.memory_max)
    }

    /// Whether it takes jobs of schedules: it has room for jobs, and does not drain. Otherwise
    /// their occurrences wait, as if the publisher were down.
    pub fn takes_occurrences(&self) -> bool {
        let budget = self.budget();
        !self.state.is_draining()
            && admission::refusal(OCCURRENCES_BYTES, &self.state, &budget, self.memory_max)
                .is_none()
    }

    /// What the disk still has room for. Cheap: lets callers skip enqueues that would be refused.
    pub fn space(&self) -> Space {
        let budget = self.budget();
        let level = match budget.short {
            _ if self.state.delivery_budget() == 0 => SpaceLevel::NoDeliveries,
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

    /// Whether everything submitted is durable and released.
    pub fn is_released(&self) -> bool {
        self.pending.oldest().is_none()
    }

    /// Bytes submitted and not yet durable. Over
    /// [`UNCOMMITTED_BYTES_MAX`](crate::UNCOMMITTED_BYTES_MAX) the caller should stop taking input.
    pub fn uncommitted_bytes(&self) -> usize {
        self.log.uncommitted_bytes()
    }

    /// When the oldest command that is not yet durable was submitted, in monotonic milliseconds.
    pub fn oldest_uncommitted(&self) -> Option<u64> {
        self.pending.oldest_beyond(self.log.committed())
    }

    /// Age of the oldest command that is not yet durable, in milliseconds; 0 for none.
    pub fn oldest_uncommitted_ms(&self, now: Now) -> u64 {
        self.oldest_uncommitted().map_or(0, |since| now.mono_ms.saturating_sub(since))
    }

    /// A job with everything submitted applied, durable or not: report only durable parts of it.
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

    /// Records the time: leases released before it begin, and after a pause every lease gets its
    /// full length again.
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
        for assignment in self.ungranted.drain(..) {
            let link = match self.moved_early.is_empty() {
                true => assignment.link,
                false => self.moved_early.remove(&assignment.token).unwrap_or(assignment.link),
            };
            let Assignment { token, lease_ms, run_timeout_ms, .. } = assignment;
            self.leases.granted(self.latest_ms, token, link, lease_ms, run_timeout_ms);
        }
        // After the leases of the same release have begun: some of them may have ended with it.
        for token in self.ended.drain(..) {
            self.leases.ended(token);
            self.reports.forget(token);
        }
    }

    fn release(&mut self, committed: u64, out: &mut Released) {
        let before = out.assignments.len();
        self.pending.release(committed, out, &mut self.tail, &mut self.ended);
        self.ungranted.extend(&out.assignments[before..]);
    }

    fn count_entries(&mut self, bytes: usize, entries: usize) {
        self.payload_bytes += (bytes as u64).saturating_sub(ENTRY_BYTES * entries as u64);
    }

    fn count_soft_stale(&mut self, stale: Vec<Token>) -> Tokens {
        self.soft_stale += stale.len() as u64;
        Tokens(stale)
    }
}

/// Waits for a future on the current thread: a start runs outside any runtime.
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
