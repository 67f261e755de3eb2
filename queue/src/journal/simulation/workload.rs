//! Actions of producers and workers.

use longshore_protocol::limits::{IDEMPOTENCY_MS_MAX, SMALL_BYTES_MAX};
use longshore_protocol::messages::work::{
    BatchBuilder, Checkpoint, NewSettle, Order, Progress, SettleBatch, SettleBatchBuilder, Source,
    Sources, Started, Tokens,
};
use longshore_protocol::{
    Backoff, Due, FairKey, Idempotency, JobError, JobId, JobKeys, JobOptions, JobState, LinkId,
    NewBatch, NewJob, ParentEnd, Path, PathSet, Role, Token, Unique,
};
use rand::RngExt;

use super::client_model::{LONG_KEY, RequestKind};
use super::harness::{PublisherRun, SimulationHarness};
use super::session::Settle;
use crate::{Command, Poisoned};

/// The queues.
pub(super) const QUEUES: [&str; 3] = ["/a", "/a/b", "/c"];
/// A session's subscriptions: the first exists whenever its link does, the second comes and goes.
const SUBSCRIPTIONS: [u32; 2] = [1, 2];

impl SimulationHarness {
    /// Opens a new link, and resends everything unanswered.
    pub(super) fn attach(
        &mut self,
        run: &mut PublisherRun,
        position: usize,
    ) -> Result<(), Poisoned> {
        let link = LinkId(self.next_link);
        self.next_link += 1;
        let session = &mut self.sessions[position];
        session.link = Some(link);
        session.resent = session.next_settle - 1;
        session.credits.clear();
        // Tools do not repeat requests.
        session.requests.clear();
        let unanswered = session.settles.values().flat_map(|(_, settles)| settles);
        let mut tokens: Vec<Token> = unanswered.map(|settle| settle.token).collect();
        tokens.extend(session.leases.keys());
        tokens.sort_unstable();
        tokens.dedup();
        let (id, role, name) = (session.id, session.role, format!("client {position}"));
        let command = Command::LinkUp {
            link,
            role,
            session: id,
            name,
            identity: format!("cn:{position}"),
            work: None,
            resume: Tokens(tokens),
        };
        run.store.submit(self.now, command)?;
        self.release(run)?;
        let session = &mut self.sessions[position];
        session.check_attached();
        for (&sequence, (batch, _)) in &session.batches {
            let batch = batch.to_batch(sequence).expect("it was read before");
            run.store.submit(self.now, Command::Enqueue { link, batch })?;
        }
        for (body, settles) in session.settles.values() {
            settles.iter().for_each(|settle| self.model.request(settle.job, RequestKind::End));
            let batch = SettleBatch::decode(body.clone()).expect("it was read before");
            run.store.submit(self.now, Command::Settle { link, batch })?;
        }
        if role == Role::Worker {
            let sources = Sources::one("/**".parse().expect("a pattern"));
            let subscription = SUBSCRIPTIONS[0];
            run.store.submit(
                self.now,
                Command::Subscribe { link, subscription, sources, handlers: 2 },
            )?;
        }
        Ok(())
    }

    /// A link is lost, or replaced, at once or later.
    pub(super) fn relink(&mut self, run: &mut PublisherRun) -> Result<(), Poisoned> {
        let position = self.random.random_range(0..self.sessions.len());
        let lost = self.sessions[position].link.take();
        // Sometimes the publisher gets the new link first.
        if let Some(link) = lost
            && self.random.random_bool(0.7)
        {
            run.store.submit(self.now, Command::LinkLost { link })?;
            if self.random.random_bool(0.4) {
                return Ok(());
            }
        }
        self.attach(run, position)
    }

    // Producers.

    pub(super) fn enqueue(&mut self, run: &mut PublisherRun) -> Result<(), Poisoned> {
        let Some((position, link)) = self.link_of(Role::Producer) else { return Ok(()) };
        // A closed batch with its members, few of them, so that it ends within the run.
        let is_closed = self.relates_jobs && self.once_in(3);
        let count = match is_closed {
            true => self.random.random_range(2..4),
            false if self.random.random_bool(0.1) => 60,
            false => self.random.random_range(1..6),
        };
        // A batch is about as long as its longest payload, not a multiple of it.
        let most = self.payload_max * 3 / (count + 2);
        let (mut batch, mut ids) = (BatchBuilder::new(), Vec::new());
        for _ in 0..count {
            let path = self.one_of(&QUEUES).parse().expect("a path");
            let mut job = self.job(path, most);
            let kind = self.random.random_range(0..9);
            let is_unique = self.relates_jobs && matches!(kind, 3 | 4);
            // A prepared one has others with its key refused, for as long as nobody confirms it.
            job.options.prepared &= !is_unique || self.once_in(8);
            let job = match kind {
                _ if is_closed => closed(job, ids.first().copied()),
                5..8 if self.relates_jobs => self.related(job),
                0..3 => self.with_key(job),
                _ if !is_unique => job,
                3 => job.unique(Unique::by_key(self.one_of(&["a", "b"])).replace()),
                _ => job.latest(self.one_of(&["a", "b"])),
            };
            ids.push(job.id);
            self.model.submit(&job);
            batch.push(&job);
        }
        let sealed = batch.seal(is_closed || self.random.random_bool(0.2));
        let session = &mut self.sessions[position];
        let sequence = session.next_batch;
        session.next_batch += 1;
        let batch = sealed.to_batch(sequence).expect("within the limits");
        session.batches.insert(sequence, (sealed, ids));
        run.store.submit(self.now, Command::Enqueue { link, batch }).map(drop)
    }

    /// A new job.
    pub(super) fn job(&mut self, path: Path, most: usize) -> NewJob {
        self.next_job += 1;
        let mut random = [0; 10];
        random[2..].copy_from_slice(&self.next_job.to_be_bytes());
        let id = JobId::new_v7(self.now.wall_ms, random);
        let due = match self.random.random_range(0..10) {
            0 => Due::After(2_000),
            1 => Due::At(self.now.wall_ms + 2_000),
            _ => Due::Now,
        };
        let backoffs = [Backoff::Fixed(100), Backoff::Fixed(0), Backoff::List(vec![10, 5_000])];
        let options = JobOptions {
            priority: if self.once_in(4) { self.random.random_range(-1..3) } else { 0 },
            due,
            prepared: self.once_in(8),
            expires_at: self.once_in(8).then(|| self.now.wall_ms + 3_000),
            max_attempts: self.once_in(3).then(|| self.random.random_range(1..4)),
            lease_ms: self.once_in(3).then(|| self.one_of(&[1_000, 60_000, 12 * 3_600_000])),
            run_timeout_ms: self.once_in(4).then(|| self.one_of(&[0, 400, 2_000])),
            backoff: self.once_in(4).then(|| self.one_of(&backoffs)),
            keep_ms: (self.once_in(3) || self.workers_keep_up && !self.once_in(12)).then_some(0),
            keep_result: self.once_in(2),
        };
        let relates = self.relates_jobs;
        let order = (relates && self.once_in(6)).then(|| self.one_of(&["x", "y"]).to_owned());
        let fair = (relates && self.once_in(6)).then(|| FairKey {
            key: self.one_of(&["many", "few"]).to_owned(),
            weight: self.one_of(&[1, 3]),
        });
        let limit = (relates && self.once_in(4)).then(|| self.one_of(&["m", "n"]).to_owned());
        let cost = (relates && self.once_in(6)).then(|| self.one_of(&[2, 3]));
        let keys = JobKeys { order, fair, limit, cost, ..JobKeys::default() };
        let keys = (!keys.is_empty()).then(|| Box::new(keys));
        NewJob { options, keys, ..NewJob::new(path, id, self.bytes(most)) }
    }

    /// The job with an idempotency key that others have, too, and so their payload. Long keys last
    /// longer than a run, and clients know who has them; short ones end within it.
    fn with_key(&mut self, job: NewJob) -> NewJob {
        let is_long = !self.once_in(4);
        let number = self.next_job / 16;
        let key = if is_long { format!("{LONG_KEY}{number}") } else { format!("short {number}") };
        let for_ms = Some(if is_long { IDEMPOTENCY_MS_MAX } else { 500 });
        let payload = key.clone().into_bytes().into();
        let mut job = NewJob { payload, ..job };
        job.keys_mut().idempotency = Some(Idempotency { key, for_ms });
        job
    }

    /// A batch, a member of one, or a job after another.
    fn related(&mut self, job: NewJob) -> NewJob {
        let options = JobOptions { due: Due::Now, prepared: false, ..job.options.clone() };
        let job = NewJob { options, ..job };
        let (jobs, batches) = (self.model.latest(false, 30), self.model.latest(true, 8));
        let kind = self.random.random_range(0..6);
        let job = match kind {
            0 | 1 => {
                let batch = self.one_of(&[NewBatch::Open, NewBatch::Open, NewBatch::Closed]);
                NewJob { keys: None, ..job }.batch(batch)
            }
            2 if !jobs.is_empty() => job.after_end(self.one_of(&jobs), self.one_of(ParentEnd::ALL)),
            _ => job,
        };
        let joins = kind > 1 && !batches.is_empty();
        if joins { job.in_batch(self.one_of(&batches)) } else { job }
    }

    // Workers.

    pub(super) fn credit(&mut self, run: &mut PublisherRun) -> Result<(), Poisoned> {
        let Some((position, link)) = self.link_of(Role::Worker) else { return Ok(()) };
        let most = if self.workers_keep_up { 60 } else { 10 };
        let (subscription, count) =
            (self.one_of(&SUBSCRIPTIONS), self.random.random_range(1..most));
        *self.sessions[position].credits.entry(subscription).or_default() += u64::from(count);
        run.store.submit(self.now, Command::Credit { link, subscription, count }).map(drop)
    }

    pub(super) fn recall(&mut self, run: &mut PublisherRun) -> Result<(), Poisoned> {
        let Some((_, link)) = self.link_of(Role::Worker) else { return Ok(()) };
        let (subscription, count) = (self.one_of(&SUBSCRIPTIONS), self.random.random_range(1..20));
        run.store.submit(self.now, Command::Recall { link, subscription, count }).map(drop)
    }

    /// The second subscription ends, begins, or is renewed with other sources; or the link's rights
    /// change, which still include all queues.
    pub(super) fn change_sources(&mut self, run: &mut PublisherRun) -> Result<(), Poisoned> {
        let Some((_, link)) = self.link_of(Role::Worker) else { return Ok(()) };
        if self.random.random_bool(0.3) {
            let work = self.random.random_bool(0.5).then(PathSet::everything);
            return run.store.submit(self.now, Command::Permit { link, work }).map(drop);
        }
        let subscription = SUBSCRIPTIONS[1];
        run.store.submit(self.now, Command::Unsubscribe { link, subscription })?;
        if self.random.random_bool(0.3) {
            return Ok(());
        }
        let order = self.one_of(Order::ALL);
        let source = |(pattern, weight): (&str, u16)| {
            let pattern = pattern.parse().expect("a pattern");
            Source { pattern, weight }
        };
        let patterns = [("/c", 1), ("/a/**", 3)].map(source).into();
        let sources = Sources { order, patterns };
        run.store
            .submit(self.now, Command::Subscribe { link, subscription, sources, handlers: 2 })
            .map(drop)
    }

    pub(super) fn settle(&mut self, run: &mut PublisherRun) -> Result<(), Poisoned> {
        let Some((position, link)) = self.link_of(Role::Worker) else { return Ok(()) };
        let mut batch = SettleBatchBuilder::new();
        let mut settles = Vec::new();
        let most = if self.workers_keep_up { 40 } else { 6 };
        for _ in 0..self.random.random_range(1..most) {
            let lease = self.sessions[position].leases.pop_first();
            let Some((token, (job, checkpoints))) = lease else { break };
            let error = JobError { kind: "Bad".to_owned(), message: "x".repeat(200) };
            let others = if self.workers_keep_up { 30 } else { 10 };
            let (settle, end) = match self.random.random_range(0..others) {
                0..5 | 10.. => {
                    let result = self.random.random_bool(0.5).then(|| self.bytes(5_000));
                    (NewSettle::Complete { result }, Some(JobState::Completed))
                }
                5 | 6 => (NewSettle::Fail(error), None),
                7 => (NewSettle::Release, None),
                8 if self.once_in(2) => (NewSettle::Throttle { ms: 300 }, None),
                8 => (NewSettle::Snooze { ms: 1_000 }, None),
                _ => (NewSettle::Bury(error), Some(JobState::Dead)),
            };
            batch.push(token, &settle);
            self.model.request(job, RequestKind::End);
            let is_large = match &settle {
                NewSettle::Complete { result: Some(result) } => result.len() > SMALL_BYTES_MAX,
                _ => false,
            };
            settles.push(Settle { token, job, end, checkpoints, is_large });
        }
        if settles.is_empty() {
            return Ok(());
        }
        let session = &mut self.sessions[position];
        let body = batch.seal(session.next_settle);
        session.settles.insert(session.next_settle, (body.clone(), settles));
        session.next_settle += 1;
        let batch = SettleBatch::decode(body).expect("within the limits");
        run.store.submit(self.now, Command::Settle { link, batch }).map(drop)
    }

    pub(super) fn checkpoint(&mut self, run: &mut PublisherRun) -> Result<(), Poisoned> {
        let Some((position, link)) = self.link_of(Role::Worker) else { return Ok(()) };
        let bytes = self.bytes(6_000);
        let Some(mut lease) = self.sessions[position].leases.first_entry() else { return Ok(()) };
        let token = *lease.key();
        lease.get_mut().1 += 1;
        let body = Checkpoint::body_of(token, lease.get().1, &bytes);
        let checkpoint = Checkpoint::decode(body).expect("within the limits");
        run.store.submit(self.now, Command::Checkpoint { link, checkpoint }).map(drop)
    }

    /// Reports that are not logged: renewals, starts, progress.
    pub(super) fn report(&mut self, run: &mut PublisherRun) {
        let Some((position, link)) = self.link_of(Role::Worker) else { return };
        let tokens: Vec<Token> = self.sessions[position].leases.keys().copied().collect();
        let progress = |&token| Progress { token, percent: 50, message: String::new() };
        let progress = tokens.iter().take(3).map(progress).collect();
        run.store.renew(self.now, link, &Tokens(tokens.clone()));
        let started = Started { tokens: Tokens(tokens), running_ms: Vec::new() };
        run.store.started(self.now, link, &started);
        run.store.progress(self.now, link, progress);
    }

    /// Buries jobs whose entry could not be read, and returns the credit.
    pub(super) fn bury_unreadable(&mut self, run: &mut PublisherRun) -> Result<(), Poisoned> {
        for (link, subscription, token) in std::mem::take(&mut self.unreadable) {
            run.store.submit(self.now, Command::Damaged { token })?;
            let count = 1;
            if let Some(session) = self.sessions.iter_mut().find(|it| it.link == Some(link)) {
                *session.credits.entry(subscription).or_default() += 1;
            }
            run.store.submit(self.now, Command::Credit { link, subscription, count })?;
        }
        Ok(())
    }
}

/// A closed batch, or a member of it.
fn closed(job: NewJob, batch: Option<JobId>) -> NewJob {
    let options = JobOptions { due: Due::Now, prepared: false, ..job.options.clone() };
    let job = NewJob { options, keys: None, ..job };
    match batch {
        Some(batch) => job.in_batch(batch),
        None => job.batch(NewBatch::Closed),
    }
}
