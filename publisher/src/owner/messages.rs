//! Messages of links: each becomes a command, or a call to the leases.

use std::time::Instant;

use longshore_access::Action;
use longshore_protocol::messages::work::{
    Answer, BatchEntry, EnqueueBatch, FromPublisher, Subscribe, ToPublisher, Tokens,
};
use longshore_protocol::{LinkId, Path, QueueSettings, Refusal, Revoked};
use longshore_queue::{Command, Now, Poisoned, QueueId, refusal_of_damaged};

use super::Owner;
use crate::audited;
use crate::delayed_refusals::RefusedBatch;
use crate::permissions;

impl Owner {
    pub(super) fn message(
        &mut self,
        now: Now,
        link: LinkId,
        message: ToPublisher,
    ) -> Result<(), Poisoned> {
        let command = match message {
            ToPublisher::Enqueue(batch) => return self.enqueue_batch(now, link, batch),
            ToPublisher::Settle(batch) => Command::Settle { link, batch },
            ToPublisher::Checkpoint(checkpoint) => Command::Checkpoint { link, checkpoint },
            ToPublisher::Credit(credit) => {
                Command::Credit { link, subscription: credit.subscription, count: credit.count }
            }
            ToPublisher::Recall(credit) => {
                Command::Recall { link, subscription: credit.subscription, count: credit.count }
            }
            ToPublisher::Subscribe(subscribe) if self.refuses_subscription(link, &subscribe) => {
                return Ok(());
            }
            ToPublisher::Subscribe(subscribe) => Command::Subscribe {
                link,
                subscription: subscribe.subscription,
                sources: subscribe.sources,
                handlers: subscribe.handlers,
            },
            ToPublisher::Unsubscribe(subscription) => Command::Unsubscribe { link, subscription },
            ToPublisher::Started(started) => {
                let stale = self.store.started(now, link, &started);
                self.send_stale(link, stale);
                return Ok(());
            }
            ToPublisher::Progress(progresses) => {
                let stale = self.store.progress(now, link, progresses);
                self.send_stale(link, stale);
                return Ok(());
            }
            ToPublisher::Renew(tokens) => {
                let stale = self.store.renew(now, link, &tokens);
                self.router.send(link, &FromPublisher::Renewed { stale });
                return Ok(());
            }
            ToPublisher::Request { id, request } => return self.request(now, link, id, request),
            ToPublisher::Forget(id) => {
                self.forget(link, id);
                return Ok(());
            }
            ToPublisher::Quieted(quiet) => {
                self.worker_reported_quiet(link, quiet);
                return Ok(());
            }
            // A second `Attach` on a link changes nothing.
            ToPublisher::Attach(_) => return Ok(()),
        };
        self.store.submit(now, command)?;
        Ok(())
    }

    /// A batch of jobs. Refusals for want of room are delayed, as they use up what is left. One
    /// over a quota is refused at once, while there is room: it costs less than if it were
    /// accepted.
    fn enqueue_batch(
        &mut self,
        now: Now,
        link: LinkId,
        batch: EnqueueBatch,
    ) -> Result<(), Poisoned> {
        let (sequence, jobs) = (batch.sequence, batch.len() as u32);
        // What a draining publisher sends to another one needs no room here.
        let stays = |_: &Refusal| !self.store.state().must_go_to_another(link, &batch);
        let no_room = self.refusals.last(link);
        let no_room = no_room.or_else(|| self.store.refusal_of(&batch).filter(stays));
        let batch = self.without_forbidden_jobs(link, batch);
        if let Some(refusal) = no_room {
            self.refusals.push(Instant::now(), RefusedBatch { link, sequence, jobs, refusal });
            return Ok(());
        }
        let batch = batch.and_then(|batch| self.at_home(batch));
        let batch = batch.and_then(|batch| self.without_jobs_over_quota(link, batch));
        match batch.and_then(|batch| self.without_unservable_jobs(batch)) {
            Ok(batch) => self.enqueue(now, link, batch),
            Err(refusal) => {
                self.store.submit(now, Command::Refuse { link, sequence, jobs, refusal })?;
                Ok(())
            }
        }
    }

    /// The batch, in which paths at which the client may not enqueue are replaced; the refusal of
    /// all its jobs if nothing else is in it, or if it becomes too long.
    fn without_forbidden_jobs(
        &mut self,
        link: LinkId,
        batch: EnqueueBatch,
    ) -> Result<EnqueueBatch, Refusal> {
        let Some(rights) = self.router.rights(link) else { return Ok(batch) };
        let Some(paths) = permissions::limit(rights, Action::Enqueue) else { return Ok(batch) };
        if batch.paths.iter().all(|path| paths.contains(path)) {
            return Ok(batch);
        }
        let paths = paths.clone();
        let is_denied = |path: &Path| !paths.contains(path);
        if let Some(denied) = batch.paths.iter().find(|path| is_denied(path)) {
            let denied = denied.to_string();
            self.log_denied(link, Action::Enqueue, "no job may be enqueued there", || denied);
        }
        let state = self.store.state();
        let is_whole = batch.paths.iter().all(is_denied) && !state.is_draining();
        if is_whole && !state.has_any_of(&batch) {
            return Err(Refusal::Forbidden);
        }
        let refusal_of = |entry: &BatchEntry| {
            let is_refused = is_denied(&batch.paths[entry.path]) && !state.has_id_of(entry);
            is_refused.then_some(Refusal::Forbidden)
        };
        // Not only new jobs: a client learns nothing about keys at such a path.
        batch
            .with_jobs_refused(refusal_of)
            .and_then(|batch| batch.with_paths_refused(Refusal::Forbidden, is_denied))
            .ok_or(Refusal::Forbidden)
    }

    /// The batch without the contents of new jobs at closed queues and at paths that are not here,
    /// which would be in the journal for nothing; or the refusal of all its jobs.
    fn without_unservable_jobs(&self, batch: EnqueueBatch) -> Result<EnqueueBatch, Refusal> {
        let state = self.store.state();
        if batch.paths.iter().all(|path| state.takes_jobs(path)) {
            return Ok(batch);
        }
        let at = |path: &Path| {
            // A job for a live value is refused as such.
            state.refusal_for(path).filter(|_| state.has_queue(path) || !self.names.is_value(path))
        };
        let refusals: Vec<Option<Refusal>> = batch.paths.iter().map(at).collect();
        let whole = batch.clone();
        self.without_new_jobs(batch, |entry| {
            refusals[entry.path].filter(|_| !state.is_held(&whole, entry))
        })
    }

    /// The batch, in which the new jobs that are refused have placeholders, as have those that do
    /// not decode; or the one refusal of all of them, so that nothing needs to be in the journal,
    /// also if the batch becomes too long. Jobs that exist are answered as such, and a publisher
    /// that drains refuses batches itself.
    pub(super) fn without_new_jobs(
        &self,
        batch: EnqueueBatch,
        refusal_of: impl Fn(&BatchEntry) -> Option<Refusal>,
    ) -> Result<EnqueueBatch, Refusal> {
        let state = self.store.state();
        let refusal_of = |entry: &BatchEntry| match &entry.head {
            Ok(_) => refusal_of(entry).filter(|_| !state.knows(&batch, entry)),
            Err(error) => Some(refusal_of_damaged(&batch.paths[entry.path], error)),
        };
        let first = batch.entries().find_map(|entry| refusal_of(&entry));
        let Some(first) = first.filter(|_| !state.is_draining()) else { return Ok(batch) };
        if batch.entries().all(|entry| refusal_of(&entry) == Some(first)) {
            return Err(first);
        }
        batch.with_jobs_refused(refusal_of).ok_or(first)
    }

    /// Refuses a subscription that takes nothing, or names a queue that the client may not work on.
    fn refuses_subscription(&mut self, link: LinkId, subscribe: &Subscribe) -> bool {
        let Some(rights) = self.router.rights(link) else { return false };
        let Some(reason) = permissions::refused_subscription(rights, subscribe) else {
            return false;
        };
        self.log_denied(link, Action::Work, &reason, || audited::patterns_of(&subscribe.sources));
        let subscription = subscribe.subscription;
        self.router.send(link, &FromPublisher::SubscribeRefused { subscription, reason });
        true
    }

    /// Submits a batch. Jobs for the path of a live value are refused; the others are not.
    fn enqueue(&mut self, now: Now, link: LinkId, batch: EnqueueBatch) -> Result<(), Poisoned> {
        // A path of a queue never holds a value, and a queue is never removed. So most batches need
        // no lock on the names.
        if batch.paths.iter().all(|path| self.store.state().has_queue(path)) {
            self.store.submit(now, Command::Enqueue { link, batch })?;
            return Ok(());
        }
        let names = self.names.clone();
        names.make_queues(|is_value| {
            let values: Vec<bool> = batch.paths.iter().map(is_value).collect();
            let state = self.store.state();
            let refusal_of = |entry: &BatchEntry| {
                let is_refused = values[entry.path] && !state.has_id_of(entry);
                is_refused.then_some(Refusal::IsValue)
            };
            let command = if !values.contains(&true) {
                Command::Enqueue { link, batch }
            } else if let Some(batch) = batch.with_jobs_refused(refusal_of) {
                Command::Enqueue { link, batch }
            } else {
                let (sequence, jobs) = (batch.sequence, batch.len() as u32);
                Command::Refuse { link, sequence, jobs, refusal: Refusal::IsValue }
            };
            self.submit_and_list_new_queues(now, command)
        })
    }

    /// Changes a queue's settings, and creates the queue if it is missing.
    pub(super) fn configure(
        &mut self,
        now: Now,
        (link, request): (LinkId, u64),
        path: Path,
        (changes, reset): (QueueSettings, bool),
    ) -> Result<(), Poisoned> {
        if !self.store.state().has_queue(&path) && self.refuse_queue_over_quota(link, &path) {
            self.answer(link, request, Ok(Answer::Configured(Err(Refusal::OverQuota))));
            return Ok(());
        }
        let names = self.names.clone();
        names.make_queues(|is_value| {
            if is_value(&path) {
                let refusal = Answer::Configured(Err(Refusal::IsValue));
                self.answer(link, request, Ok(refusal));
                return Ok(Vec::new());
            }
            let command = Command::Configure { link, request, path, changes, reset };
            self.submit_and_list_new_queues(now, command)
        })
    }

    /// Submits a command; returns the paths of the queues that it created.
    pub(super) fn submit_and_list_new_queues(
        &mut self,
        now: Now,
        command: Command,
    ) -> Result<Vec<Path>, Poisoned> {
        let known = QueueId(self.store.state().queues_len());
        self.store.submit(now, command)?;
        Ok(self.store.state().queue_uses(known).map(|made| made.path.clone()).collect())
    }

    /// Submits the refusals whose time has come.
    pub(super) fn refuse(&mut self, now: Now) -> Result<(), Poisoned> {
        for RefusedBatch { link, sequence, jobs, refusal } in self.refused_batches.drain(..) {
            self.store.submit(now, Command::Refuse { link, sequence, jobs, refusal })?;
        }
        Ok(())
    }

    /// A message about a lease that the worker does not hold: the worker learns at once that it
    /// lost the lease, not with its settle.
    fn send_stale(&mut self, link: LinkId, tokens: Tokens) {
        if !tokens.0.is_empty() {
            self.router.send(link, &FromPublisher::Revoked { reason: Revoked::LeaseLost, tokens });
        }
    }
}
