//! Enqueues jobs.

use std::collections::{HashMap, HashSet};

use longshore_protocol::messages::work::{BatchEntry, EnqueueBatch, Enqueued, refusal_at};
use longshore_protocol::{
    Backoff, BatchRefusal, Due, EnqueueOutcome, EntryHead, JobChange, JobId, LinkId, NewBatch,
    Path, Refusal, Runs, WireError,
};

use super::State;
use super::batch::Relative;
use super::fair::ShareName;
use super::idempotency::{KeyUse, NewKeys, same_key, share_of_head};
use super::profile;
use super::queue::Queue;
use super::row::{Row, Substate};
use super::rows::PREFETCH;
use super::unique::UniqueUse;
use crate::command::Command;
use crate::outcome::{Outcomes, QueueId, RecordRef, Reply};

/// Row indexes are `u32`, and one value means none.
pub(super) const JOBS_MAX: u64 = u32::MAX as u64 - 1;

/// A job to add, beside the head of its entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewRow {
    pub(super) entry: RecordRef,
    pub(super) profile: u32,
    pub(super) schedule: Schedule,
    /// The dead job that it replaces.
    pub(super) replaces: Option<JobId>,
}

/// The options that are a job's own, not its profile's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    due: Due,
    expires_at: Option<u64>,
    is_prepared: bool,
}

impl Schedule {
    pub(super) fn of(head: &EntryHead) -> Schedule {
        let options = head.options.as_ref();
        Schedule {
            due: options.map_or(Due::Now, |options| options.due),
            expires_at: options.and_then(|options| options.expires_at),
            is_prepared: options.is_some_and(|options| options.prepared),
        }
    }
}

/// The payload of a new key's job, and the job.
type KeyHolder = ((u32, u32), JobId);

/// Where the jobs of one of a batch's paths go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Destination {
    /// To an existing queue.
    Queue(u32),
    /// To a queue that its first job creates.
    New,
    /// Nowhere.
    Closed(Refusal),
}

impl State {
    /// Applies a batch of jobs. The answer is stored under the batch's number; a batch refused as a
    /// whole uses no number.
    pub(super) fn enqueue(&mut self, link: LinkId, batch: &EnqueueBatch, out: &mut Outcomes) {
        let most = self.rules.batch_payload_bytes;
        let is_too_large = || {
            let heads = batch.entries().filter_map(|entry| entry.head.ok());
            batch.body().len() as u64 > most
                && heads.map(|head| head.payload_len).sum::<usize>() as u64 > most
        };
        self.answer_batch(link, batch.sequence, out, |state, out| {
            if is_too_large() {
                return Err(BatchRefusal::TooLarge);
            }
            Ok(state.apply_batch(batch, out))
        });
    }

    /// Refuses each job of a batch that was not logged. The answer is stored like any other: a
    /// resent batch that was accepted before receives its first answer.
    pub(super) fn refuse_batch(
        &mut self,
        link: LinkId,
        sequence: u64,
        jobs: u32,
        refusal: Refusal,
        out: &mut Outcomes,
    ) {
        let refused = Runs::all(EnqueueOutcome::Refused(refusal), jobs as usize);
        self.answer_batch(link, sequence, out, |_, _| Ok(refused));
    }

    fn answer_batch(
        &mut self,
        link: LinkId,
        sequence: u64,
        out: &mut Outcomes,
        take: impl FnOnce(&mut State, &mut Outcomes) -> Result<Runs<EnqueueOutcome>, BatchRefusal>,
    ) {
        let Some(number) = self.session_of(link) else { return };
        let outcome = match self.check_sequence(number, sequence) {
            Err(refusal) => Err(refusal),
            Ok(Some(known)) => Ok(known),
            Ok(None) => take(self, out).inspect(|outcomes| {
                self.sessions.table[number].next_batch += 1;
                let most = self.rules.answers_retained as usize;
                self.sessions.store_batch_answer(number, sequence, outcomes.clone(), most);
            }),
        };
        out.replies.push((link, Reply::Enqueued(Enqueued { sequence, outcome })));
    }

    /// The stored answer to the batch of that number; none if it is the next one.
    fn check_sequence(
        &self,
        session: u32,
        sequence: u64,
    ) -> Result<Option<Runs<EnqueueOutcome>>, BatchRefusal> {
        let session = &self.sessions.table[session];
        let next = session.next_batch;
        if sequence == 0 {
            return Err(BatchRefusal::Malformed);
        }
        if sequence < next {
            let known = session.batches.get(sequence);
            return known.map(Some).ok_or(BatchRefusal::UnknownProducer);
        }
        if sequence > next {
            let is_new = next == 1;
            return Err(if is_new {
                BatchRefusal::UnknownProducer
            } else {
                BatchRefusal::SequenceGap
            });
        }
        Ok(None)
    }

    fn apply_batch(&mut self, batch: &EnqueueBatch, out: &mut Outcomes) -> Runs<EnqueueOutcome> {
        let mut destinations: Vec<Destination> =
            batch.paths.iter().map(|path| self.destination(path)).collect();
        // Jobs that expire at once could be gone, or make others go, before those that wait for
        // them are there.
        let mut late = None;
        if batch.atomic {
            match self.judge_atomic(batch, &destinations) {
                Ok(has_parents) => late = has_parents.then(Vec::new),
                Err(refused) => return refused,
            }
        }
        let mut outcomes = Runs::default();
        let mut entries = batch.entries();
        let mut next = Vec::with_capacity(PREFETCH);
        loop {
            next.extend(entries.by_ref().take(PREFETCH));
            if next.is_empty() {
                late.iter().flatten().for_each(|job| self.expire_new(job, out));
                return outcomes;
            }
            let heads = next.iter().filter_map(|entry: &BatchEntry| entry.head.as_ref().ok());
            self.rows.fetch_ids(heads.map(|head| &head.id));
            for entry in next.drain(..) {
                outcomes.push(self.apply_entry(batch, &mut destinations, entry, &mut late, out));
            }
        }
    }

    fn apply_entry(
        &mut self,
        batch: &EnqueueBatch,
        destinations: &mut [Destination],
        entry: BatchEntry,
        late: &mut Option<Vec<JobId>>,
        out: &mut Outcomes,
    ) -> EnqueueOutcome {
        let path = &batch.paths[entry.path];
        let head = match entry.head {
            Ok(head) => head,
            Err(error) => return EnqueueOutcome::Refused(refusal_of_damaged(path, &error)),
        };
        // Further members might come too late.
        if head.batch() == Some(NewBatch::Closed) && !batch.atomic {
            return EnqueueOutcome::Refused(Refusal::BadOptions);
        }
        let at = Command::BATCH_AT + entry.at;
        let record = RecordRef { index: self.index, at, length: entry.length };
        let expires_at = head.options.as_ref().and_then(|options| options.expires_at);
        let id = head.id;
        let outcome = self.enqueue_job(path, head, record, &mut destinations[entry.path], out);
        if expires_at.is_some() && outcome == EnqueueOutcome::Created {
            match late {
                Some(late) => late.push(id),
                None => self.expire_new(&id, out),
            }
        }
        outcome
    }

    /// A new job may have come too late.
    pub(super) fn expire_new(&mut self, job: &JobId, out: &mut Outcomes) {
        if let Some(slot) = self.rows.find(job) {
            self.expire_if_past(slot, out);
        }
    }

    /// Enqueues one job, whose entry is at `entry`.
    #[inline]
    pub(super) fn enqueue_job(
        &mut self,
        path: &Path,
        mut head: EntryHead,
        entry: RecordRef,
        destination: &mut Destination,
        out: &mut Outcomes,
    ) -> EnqueueOutcome {
        if let Some(slot) = self.rows.find(&head.id) {
            return same_id(&head, (self.rows[slot].crc, self.rows[slot].payload_len()));
        }
        let key = self.find_key(path, &head);
        if let KeyUse::Known(answer) = key {
            return answer;
        }
        let unique = self.find_unique(path, &head);
        if let UniqueUse::Held(answer) = unique {
            return answer;
        }
        let fits = in_place(unique, self.admit(*destination, 0, 0, 0));
        let found = (key, unique);
        let fits = fits.and_then(|()| self.admit_keys(path, &head, found));
        if let Err(refusal) =
            fits.and_then(|()| self.admit_relatives(&head, 0, |job| self.relative(job)))
        {
            return EnqueueOutcome::Refused(refusal);
        }
        let queue = match *destination {
            Destination::Queue(queue) => queue,
            _ => {
                // A path that occurs twice in the batch's list refers to one queue.
                let queue = match self.paths.get(path) {
                    Some(queue) => queue,
                    None => self.create_queue(path, out),
                };
                *destination = Destination::Queue(queue);
                queue
            }
        };
        if let Some(idempotency) = head.idempotency() {
            self.hold_key(queue, idempotency, head.id, payload_of(&head));
        }
        let schedule = Schedule::of(&head);
        let profile = match (head.options.take(), &head.keys) {
            (None, None) => profile::DEFAULT,
            (options, keys) => self.profile_of(queue, options, keys.as_deref()),
        };
        let (mut replaces, mut node, mut batch) = (None, None, None);
        if let UniqueUse::Replaces(first) = unique {
            replaces = Some(self.rows[first].id);
            node = self.take_node(first);
            batch = self.enclosing(first);
            self.remove_job(first, JobChange::Replaced, out);
        }
        self.keep_membership(batch, profile);
        self.insert_job(queue, &head, NewRow { entry, profile, schedule, replaces }, out);
        self.pass_node(node, &head.id);
        EnqueueOutcome::Created
    }

    /// For an atomic batch: whether its jobs wait for others, or the answers if one of them is
    /// refused. Nothing has changed then.
    fn judge_atomic(
        &self,
        batch: &EnqueueBatch,
        destinations: &[Destination],
    ) -> Result<bool, Runs<EnqueueOutcome>> {
        let mut new_jobs: HashMap<JobId, ((u32, u32), Relative)> = HashMap::new();
        let mut jobs_by_path: HashMap<&Path, u64> = HashMap::new();
        let mut new_queues = 0;
        let mut new_keys: HashMap<(&Path, String), KeyHolder> = HashMap::new();
        let mut new_orders: HashSet<(&Path, String)> = HashSet::new();
        let mut new_shares: HashSet<(&Path, ShareName)> = HashSet::new();
        let mut new_limits: HashSet<(&Path, String)> = HashSet::new();
        let mut new_uniques: HashSet<(&Path, String)> = HashSet::new();
        let mut removed: HashSet<u32> = HashSet::new();
        let mut new_edges = 0;
        let mut added = NewKeys::default();
        let mut judge = |entry: BatchEntry| {
            let path = &batch.paths[entry.path];
            let head = match entry.head {
                Ok(head) => head,
                Err(error) => return EnqueueOutcome::Refused(refusal_of_damaged(path, &error)),
            };
            let payload = payload_of(&head);
            let known = self.rows.find(&head.id).filter(|slot| !removed.contains(slot));
            let known = known.map(|slot| (self.rows[slot].crc, self.rows[slot].payload_len()));
            if let Some(known) = known.or(new_jobs.get(&head.id).map(|new| new.0)) {
                return same_id(&head, known);
            }
            let key = self.find_key(path, &head);
            let text = head.idempotency().map(|idempotency| (path, idempotency.key.clone()));
            if let Some(&(payload, job)) = text.as_ref().and_then(|text| new_keys.get(text)) {
                return same_key(&head, payload, job);
            }
            if let KeyUse::Known(answer) = key {
                return answer;
            }
            let unique = self.find_unique(path, &head);
            if head.unique().is_some_and(|unique| !new_uniques.insert((path, unique.key.clone()))) {
                return EnqueueOutcome::Refused(Refusal::NotUnique);
            }
            if let UniqueUse::Held(answer) = unique {
                return answer;
            }
            let jobs = jobs_by_path.entry(path).or_default();
            let others = if destinations[entry.path] == Destination::New && *jobs == 0 {
                new_queues
            } else {
                0
            };
            let all_jobs = new_jobs.len() - removed.len();
            let fits =
                in_place(unique, self.admit(destinations[entry.path], *jobs, all_jobs, others));
            let order = head.keys.as_ref().and_then(|keys| Some((path, keys.order.clone()?)));
            // The keys of a job that it replaces are there until the batch is applied.
            let mut keys = self.new_keys(path, &head, (key, unique));
            if order.as_ref().is_some_and(|order| new_orders.contains(order)) {
                keys.orders = 0;
            }
            let share = share_of_head(&head).map(|name| (path, name));
            if share.as_ref().is_some_and(|share| new_shares.contains(share)) {
                keys.shares = 0;
            }
            let limit = head.keys.as_ref().and_then(|keys| Some((path, keys.limit.clone()?)));
            if limit.as_ref().is_some_and(|limit| new_limits.contains(limit)) {
                keys.limits = 0;
            }
            let fits = fits.and_then(|()| self.admit_new_keys(keys, added));
            let find = |job: &JobId| match new_jobs.get(job) {
                Some((_, new)) => Some(*new),
                None if self.rows.find(job).is_none_or(|slot| removed.contains(&slot)) => None,
                None => self.relative(job),
            };
            match fits.and_then(|()| self.admit_relatives(&head, new_edges, find)) {
                Err(refusal) => EnqueueOutcome::Refused(refusal),
                Ok(()) => {
                    new_queues +=
                        usize::from(destinations[entry.path] == Destination::New && *jobs == 0);
                    match unique {
                        UniqueUse::Replaces(first) => drop(removed.insert(first)),
                        _ => *jobs += 1,
                    }
                    let place = (self.index, Command::BATCH_AT + entry.at);
                    new_jobs.insert(
                        head.id,
                        (payload, Relative::of_head(&head, place, self.now.wall_ms)),
                    );
                    new_edges += head.keys.as_ref().map_or(0, |keys| keys.after.len()) as u64;
                    added.held += keys.held;
                    added.orders += keys.orders;
                    added.shares += keys.shares;
                    added.limits += keys.limits;
                    new_limits.extend(limit);
                    new_shares.extend(share);
                    new_orders.extend(order);
                    new_keys.extend(text.map(|text| (text, (payload, head.id))));
                    EnqueueOutcome::Created
                }
            }
        };
        let verdicts: Vec<EnqueueOutcome> = batch.entries().map(&mut judge).collect();
        let is_refused = |verdict: &EnqueueOutcome| matches!(verdict, EnqueueOutcome::Refused(_));
        if !verdicts.iter().any(is_refused) {
            return Ok(new_edges > 0);
        }
        let others = EnqueueOutcome::Refused(Refusal::BatchRefused);
        Err(verdicts.into_iter().map(|v| if is_refused(&v) { v } else { others }).collect())
    }

    /// Whether one more job fits, after this many of the batch: for its queue, for all queues, and
    /// in how many other new queues.
    fn admit(
        &self,
        destination: Destination,
        to_queue: u64,
        to_all: usize,
        new_queues: usize,
    ) -> Result<(), Refusal> {
        let open = match destination {
            Destination::Closed(refusal) => return Err(refusal),
            Destination::Queue(queue) => self.queues[queue as usize].open_jobs(),
            Destination::New if (self.queues.len() + new_queues) as u64 >= self.rules.queues => {
                return Err(Refusal::TooManyQueues);
            }
            Destination::New => 0,
        };
        let all = u64::from(self.rows.used) + to_all as u64;
        if open + to_queue >= self.rules.jobs_per_queue || all >= self.rules.jobs.min(JOBS_MAX) {
            return Err(Refusal::QueueFull);
        }
        Ok(())
    }

    /// Whether the path has a queue that is open here, or may get one.
    pub fn takes_jobs(&self, path: &Path) -> bool {
        self.refusal_for(path).is_none()
    }

    /// Why no new job of that path is accepted, whatever it is.
    pub fn refusal_for(&self, path: &Path) -> Option<Refusal> {
        match self.destination(path) {
            Destination::Closed(refusal) => Some(refusal),
            Destination::Queue(_) | Destination::New => None,
        }
    }

    pub(super) fn destination(&self, path: &Path) -> Destination {
        let destination = self.destination_if_open(path);
        let is_closed = match destination {
            Destination::Closed(_) => false,
            Destination::Queue(queue) => self.queues[queue as usize].closings > 0,
            Destination::New => self.closings.of(path).next().is_some(),
        };
        if is_closed { Destination::Closed(Refusal::QueueClosed) } else { destination }
    }

    /// Where the path's jobs would go if no queue were closed.
    pub(super) fn destination_if_open(&self, path: &Path) -> Destination {
        if path.is_root() {
            return Destination::Closed(Refusal::BadPath);
        }
        if path.is_reserved() {
            return Destination::Closed(refusal_at(path));
        }
        match self.paths.get(path) {
            Some(queue) if self.queues[queue as usize].accepts => Destination::Queue(queue),
            None if self.served.accepts(path) => Destination::New,
            _ => Destination::Closed(Refusal::NotHere),
        }
    }

    pub(super) fn create_queue(&mut self, path: &Path, out: &mut Outcomes) -> u32 {
        let queue = self.queues.len() as u32;
        let mut made = Queue::new(path.clone());
        made.pauses = self.pauses.of(path).count() as u16;
        made.closings = self.closings.of(path).count() as u16;
        self.queues.push(made);
        self.paths.insert(path.clone(), queue);
        self.add_limits_of(queue, path);
        self.join_groups(queue);
        out.queues_created.push(path.clone());
        queue
    }

    /// Adds a new job to its queue. The caller [expires](State::expire_new) it if it is late.
    #[inline]
    pub(super) fn insert_job(
        &mut self,
        queue: u32,
        head: &EntryHead,
        new: NewRow,
        out: &mut Outcomes,
    ) {
        let NewRow { entry, profile, schedule, replaces } = new;
        let Schedule { due, expires_at, is_prepared } = schedule;
        let slot = self.rows.insert(Row {
            id: head.id,
            entry,
            crc: head.crc,
            // Id, options and headers are bounded: 13 KiB at most.
            head_len: (entry.length - head.payload_len as u32) as u16,
            enqueued_wall_ms: self.now.wall_ms,
            queue,
            profile,
            ..Row::free()
        });
        if let Some(unique) = head.keys.as_ref().and_then(|keys| keys.unique.as_ref()) {
            self.hold_unique(slot, unique);
        }
        let into = &mut self.queues[queue as usize];
        into.enqueued += 1;
        if into.jobs() == 0 {
            out.queues_filled.push(QueueId(queue));
        }
        if replaces.is_some() {
            self.side_mut(slot).replaces = replaces;
        }
        if expires_at.is_some() {
            self.side_mut(slot).expires_at = expires_at;
        }
        self.count_new_member(slot);
        let parents = head.keys.as_ref().map_or(&[][..], |keys| &keys.after);
        if let Some(kind) = head.batch() {
            self.enter_batch(slot, kind);
        } else if !parents.is_empty() {
            self.enter_waiting(slot, parents);
        } else if is_prepared {
            self.enter_prepared(slot, due);
        } else {
            self.schedule_or_ready(slot, due, Substate::Fresh);
        }
        self.emit(slot, JobChange::Created, out);
    }
}

/// A known id: the same job if the payload's length and checksum are the same.
fn same_id(head: &EntryHead, known: (u32, u32)) -> EnqueueOutcome {
    if payload_of(head) == known {
        EnqueueOutcome::Existing
    } else {
        EnqueueOutcome::Refused(Refusal::IdConflict)
    }
}

/// A job that takes the place of another needs no more room.
fn in_place(unique: UniqueUse, fits: Result<(), Refusal>) -> Result<(), Refusal> {
    let is_in_place = matches!(unique, UniqueUse::Replaces(_));
    fits.or_else(|refusal| if is_in_place && refusal == Refusal::QueueFull { Ok(()) } else { fits })
}

/// Checksum and length of a payload: what distinguishes it from another one.
pub(super) fn payload_of(head: &EntryHead) -> (u32, u32) {
    (head.crc, head.payload_len as u32)
}

/// The refusal of a job that does not decode: at a reserved path, as a placeholder is, the path's.
pub fn refusal_of_damaged(path: &Path, error: &WireError) -> Refusal {
    if path.is_reserved() { refusal_at(path) } else { refusal_of(error) }
}

/// True of what a [`WireError`] calls one of the job's keys.
fn is_of_key(what: &str) -> bool {
    what.starts_with("idempotency") || what.ends_with(" key") || what.starts_with("parents")
}

/// The refusal of what does not decode as a job, wherever it goes.
pub(super) fn refusal_of(error: &WireError) -> Refusal {
    match error {
        WireError::OverLimit { what, .. }
            if is_of_key(what) || what.ends_with("in milliseconds") =>
        {
            Refusal::BadOptions
        }
        // The options have one list with a limit; everything else over a limit is payload or
        // headers.
        WireError::OverLimit { limit, what, .. }
            if *limit == Backoff::LIST_MAX as u64 && !what.starts_with("header") =>
        {
            Refusal::BadOptions
        }
        WireError::OverLimit { .. } => Refusal::TooLarge,
        _ => Refusal::BadOptions,
    }
}
