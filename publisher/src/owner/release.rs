//! Routes what has become durable to its links.

use bytes::Bytes;
use longshore_protocol::Path;
use longshore_protocol::messages::work::{Answer, FromPublisher, Tokens};
use longshore_queue::{Assignment, Command, Now, Poisoned, QueueId, Released, Reply, Store};

use super::Owner;
use crate::cold::ColdJob;
use crate::router::EntrySource;

impl Owner {
    /// Routes what has become durable.
    pub(super) fn route(&mut self, released: &mut Released) -> Result<(), Poisoned> {
        for path in released.queues_created.drain(..) {
            self.names.add_queue(&path);
            // While the disk hangs, no queue is published, older ones neither: all are published
            // once it recovers.
            if let (Some(registry), false) = (&self.registry, self.disk.hang.is_hung()) {
                registry.publish(path);
            }
        }
        for queue in released.queues_filled.drain(..) {
            if self.idle.job_added(queue)
                && let (Some(registry), false) = (&self.registry, self.disk.hang.is_hung())
            {
                registry.publish(self.store.state().path(queue).clone());
            }
        }
        for (link, reply) in released.replies.drain(..) {
            match reply {
                Reply::LinkRefused { reason } => self.router.refuse(link, reason),
                mut reply => {
                    match &mut reply {
                        Reply::Paused { .. } | Reply::Drained { .. } => {
                            self.pauses.released(self.store.state());
                        }
                        Reply::Attached(attached) => {
                            attached.reconnect_grace_ms =
                                self.store.lease_timing().reconnect_grace_ms;
                            self.router.attached(link);
                        }
                        _ => {}
                    }
                    self.router.send(link, &message_of(reply));
                }
            }
        }
        for assigned in released.assignments.drain(..) {
            self.router.assign(assigned);
        }
        self.revoked.append(&mut released.revoked);
        self.send_revoked();
        self.notify_waiters();
        for (link, id, query_result) in released.answered.drain(..) {
            self.query_result(link, id, query_result);
        }
        self.send()
    }

    fn send_revoked(&mut self) {
        self.revoked.sort_unstable_by_key(|&(link, reason, token)| (link, reason, token));
        for run in self.revoked.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            let (link, reason, _) = run[0];
            let tokens = Tokens(run.iter().map(|&(_, _, token)| token).collect());
            self.router.send(link, &FromPublisher::Revoked { reason, tokens });
        }
        self.revoked.clear();
    }

    pub(super) fn send(&mut self) -> Result<(), Poisoned> {
        self.follow();
        self.store.flush();
        self.router.send_all(&StoreEntries(&self.store), &mut self.cold);
        self.begin_late_leases();
        let entries = StoreEntries(&self.store);
        self.cold.start(|assigned| entries.is_still_leased_to(assigned));
        self.return_credits()
    }

    /// The lease of a job that is not sent at once begins when it is.
    fn begin_late_leases(&mut self) {
        if self.router.waiting.is_empty() && self.router.sent_late.is_empty() {
            return;
        }
        let now = self.clock.now();
        self.store.jobs_wait(now, self.router.waiting.drain(..));
        self.store.jobs_sent(now, self.router.sent_late.drain(..));
    }

    /// Returns the credits of jobs that were never sent: a worker counts what it receives.
    fn return_credits(&mut self) -> Result<(), Poisoned> {
        if self.router.unsent.is_empty() {
            return Ok(());
        }
        let now = self.clock.now();
        let mut unsent = std::mem::take(&mut self.router.unsent);
        unsent.sort_unstable_by_key(|assigned| (assigned.link, assigned.subscription));
        for run in unsent.chunk_by(|a, b| (a.link, a.subscription) == (b.link, b.subscription)) {
            let (link, subscription) = (run[0].link, run[0].subscription);
            // No subscription has more credits than a `u32` holds.
            let count = run.len() as u32;
            if self.router.has(link) {
                self.store.submit(now, Command::Credit { link, subscription, count })?;
            }
        }
        self.store.flush();
        Ok(())
    }

    /// Entries were read from the disk. A lease may have ended meanwhile; an entry may be damaged.
    pub(super) fn loaded(
        &mut self,
        now: Now,
        load: u64,
        jobs: Vec<ColdJob>,
    ) -> Result<(), Poisoned> {
        for jobs in self.cold.jobs_loaded(load, jobs) {
            self.route_loaded(now, jobs)?;
        }
        Ok(())
    }

    fn route_loaded(&mut self, now: Now, mut jobs: Vec<ColdJob>) -> Result<(), Poisoned> {
        for (assigned, entry) in &mut jobs {
            if !StoreEntries(&self.store).is_still_leased_to(assigned) {
                *entry = None;
            } else if entry.is_none() && self.router.has(assigned.link) {
                // If the link is gone, the lease ends and the job is read again: only a failure
                // while a worker waits for it counts as damage.
                self.store.submit(now, Command::Damaged { token: assigned.token })?;
            }
            if assigned.of_template
                && let Some(template) = entry.take()
            {
                *entry = StoreEntries(&self.store).with_id(assigned, &template);
            }
            if entry.is_none() {
                self.router.unsent.push(*assigned);
            }
        }
        self.router.route_loaded(jobs, &StoreEntries(&self.store));
        Ok(())
    }
}

/// The router's view of the store.
struct StoreEntries<'a>(&'a Store);

impl StoreEntries<'_> {
    /// The template of a schedule as the entry of a job that it made; none once the job's lease
    /// has ended.
    fn with_id(&self, assigned: &Assignment, template: &Bytes) -> Option<Bytes> {
        let id = self.0.state().job_of(assigned.token)?;
        let rest = template.get(id.0.len()..)?;
        Some([&id.0, rest].concat().into())
    }
}

impl EntrySource for StoreEntries<'_> {
    fn cached(&self, assigned: &Assignment) -> Option<Bytes> {
        let entry = self.0.payload(assigned.entry)?;
        if assigned.of_template { self.with_id(assigned, &entry) } else { Some(entry) }
    }

    fn is_still_leased_to(&self, assigned: &Assignment) -> bool {
        self.0.state().is_still_leased_to(assigned.token, assigned.link)
    }

    fn path(&self, queue: QueueId) -> Path {
        self.0.state().path(queue).clone()
    }
}

fn message_of(reply: Reply) -> FromPublisher {
    match reply {
        Reply::Attached(attached) => FromPublisher::Attached(attached),
        Reply::LinkRefused { reason } => FromPublisher::Goodbye { reason },
        Reply::Enqueued(answer) => FromPublisher::Enqueued(answer),
        Reply::Settled(answer) => FromPublisher::Settled(answer),
        Reply::Returned(credit) => FromPublisher::Returned(credit),
        Reply::Waiting(waiting) => FromPublisher::Waiting(waiting),
        Reply::SubscribeRefused { subscription, reason } => {
            FromPublisher::SubscribeRefused { subscription, reason }
        }
        Reply::Acted { request, report } => {
            FromPublisher::Answer { id: request, answer: Ok(Answer::Acted(report)) }
        }
        Reply::ActRefused { request, error } => {
            FromPublisher::Answer { id: request, answer: Err(error) }
        }
        Reply::Checkpointed(answer) => FromPublisher::Checkpointed(answer),
        Reply::Replaced { request, outcome } => {
            FromPublisher::Answer { id: request, answer: Ok(Answer::Replaced(outcome)) }
        }
        Reply::Paused { request, report } => {
            FromPublisher::Answer { id: request, answer: report.map(Answer::Paused) }
        }
        Reply::LimitSet { request, result } => {
            FromPublisher::Answer { id: request, answer: result.map(Answer::LimitSet) }
        }
        Reply::ScheduleSet { request, result } => {
            FromPublisher::Answer { id: request, answer: result.map(Answer::ScheduleSet) }
        }
        Reply::ScheduleRun { request, result } => {
            FromPublisher::Answer { id: request, answer: result.map(Answer::ScheduleRun) }
        }
        Reply::Drained { request, result } => {
            FromPublisher::Answer { id: request, answer: result.map(|()| Answer::Done) }
        }
        Reply::Configured { request, result } => {
            FromPublisher::Answer { id: request, answer: Ok(Answer::Configured(result)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use longshore_protocol::messages::work::{BatchBuilder, Sources};
    use longshore_protocol::{JobId, LinkId, NewJob, Role, SessionId};

    use super::*;
    use crate::{Publisher, PublisherOptions};

    const GONE: LinkId = LinkId(7);

    #[tokio::test]
    async fn unreadable_job_of_a_lost_link_is_not_buried() {
        let dir = tempfile::tempdir().unwrap();
        let options = PublisherOptions::new(dir.path());
        let mut owner = Publisher::open(options).await.unwrap().owner;
        let now = owner.clock.now();
        let mut batch = BatchBuilder::new();
        batch.push(&NewJob::new(
            "/jobs/a".parse().unwrap(),
            JobId([1; 16]),
            Bytes::from_static(b"x"),
        ));
        let batch = batch.seal(false).to_batch(1).unwrap();
        let (subscription, sources) = (1, Sources::one("/jobs/a".parse().unwrap()));
        for command in [
            Command::LinkUp {
                link: GONE,
                role: Role::Worker,
                session: SessionId([1; 16]),
                name: "test".to_owned(),
                identity: String::new(),
                work: None,
                resume: Tokens::default(),
            },
            Command::Enqueue { link: GONE, batch },
            Command::Subscribe { link: GONE, subscription, sources, handlers: 1_000 },
            Command::Credit { link: GONE, subscription, count: 1 },
        ] {
            owner.store.submit(now, command).unwrap();
        }
        owner.store.flush();
        let mut released = Released::default();
        while released.assignments.is_empty() {
            owner.store.released(&mut released).await.unwrap();
        }
        let assigned = released.assignments[0];
        owner.store.submit(now, Command::LinkLost { link: GONE }).unwrap();

        // The router no longer has this link.
        owner.route_loaded(now, vec![(assigned, None)]).unwrap();
        let running = owner.store.state().totals().running;
        assert_eq!(running, 1, "its lease ends, and then it is read again");
    }
}
