//! What links say: each verb becomes its command, or a call to the leases.

use std::time::Instant;

use longshore_protocol::messages::work::{
    Answer, EnqueueBatch, FromPublisher, ToPublisher, Tokens,
};
use longshore_protocol::{LinkId, Path, QueueSettings, Refusal, Revoked};
use longshore_queue::{Command, Now, Poisoned, QueueId};

use super::Owner;
use crate::refusals::Refused;

impl Owner {
    pub(super) fn message(
        &mut self,
        now: Now,
        link: LinkId,
        message: ToPublisher,
    ) -> Result<(), Poisoned> {
        let command = match message {
            ToPublisher::Enqueue(batch) => {
                let refusal = self.refusals.last(link).or_else(|| self.store.refusal_of(&batch));
                let Some(refusal) = refusal else { return self.enqueue(now, link, batch) };
                let (sequence, jobs) = (batch.sequence, batch.len() as u32);
                self.refusals.put(Instant::now(), Refused { link, sequence, jobs, refusal });
                return Ok(());
            }
            ToPublisher::Settle(batch) => Command::Settle { link, batch },
            ToPublisher::Checkpoint(checkpoint) => Command::Checkpoint { link, checkpoint },
            ToPublisher::Credit(credit) => {
                Command::Credit { link, subscription: credit.subscription, count: credit.count }
            }
            ToPublisher::Recall(credit) => {
                Command::Recall { link, subscription: credit.subscription, count: credit.count }
            }
            ToPublisher::Subscribe(subscribe) => Command::Subscribe {
                link,
                subscription: subscribe.subscription,
                sources: subscribe.sources,
            },
            ToPublisher::Unsubscribe(subscription) => Command::Unsubscribe { link, subscription },
            ToPublisher::Started(started) => {
                let stale = self.store.started(now, link, &started);
                self.say_stale(link, stale);
                return Ok(());
            }
            ToPublisher::Progress(progresses) => {
                let stale = self.store.progress(now, link, progresses);
                self.say_stale(link, stale);
                return Ok(());
            }
            ToPublisher::Renew(tokens) => {
                let stale = self.store.renew(now, link, &tokens);
                self.router.say(link, &FromPublisher::Renewed { stale });
                return Ok(());
            }
            ToPublisher::Request { id, request } => return self.request(now, link, id, request),
            ToPublisher::Forget(id) => {
                self.forget(link, id);
                return Ok(());
            }
            ToPublisher::Quieted(quiet) => {
                self.quieted(link, quiet);
                return Ok(());
            }
            // Once is enough; a second one on a link that stands changes nothing.
            ToPublisher::Attach(_) => return Ok(()),
        };
        self.store.submit(now, command)?;
        Ok(())
    }

    /// Takes a batch; jobs that go where a live value is are refused, the others are not.
    fn enqueue(&mut self, now: Now, link: LinkId, batch: EnqueueBatch) -> Result<(), Poisoned> {
        // What is a queue holds no value, and stays a queue: most batches look no further, and make
        // nobody wait.
        if batch.paths.iter().all(|path| self.store.state().has_queue(path)) {
            self.store.submit(now, Command::Enqueue { link, batch })?;
            return Ok(());
        }
        let names = self.names.clone();
        names.make_queues(|is_value| {
            let command = if !batch.paths.iter().any(is_value) {
                Command::Enqueue { link, batch }
            } else if let Some(batch) = batch.with_values_marked(is_value) {
                Command::Enqueue { link, batch }
            } else {
                let (sequence, jobs) = (batch.sequence, batch.len() as u32);
                Command::Refuse { link, sequence, jobs, refusal: Refusal::IsValue }
            };
            self.submit_and_tell_queues(now, command)
        })
    }

    /// Changes a queue's settings, and makes it if it is not there.
    pub(super) fn configure(
        &mut self,
        now: Now,
        (link, request): (LinkId, u64),
        path: Path,
        (changes, reset): (QueueSettings, bool),
    ) -> Result<(), Poisoned> {
        let names = self.names.clone();
        names.make_queues(|is_value| {
            if is_value(&path) {
                let refused = Answer::Configured(Err(Refusal::IsValue));
                self.answer(link, request, Ok(refused));
                return Ok(Vec::new());
            }
            let command = Command::Configure { link, request, path, changes, reset };
            self.submit_and_tell_queues(now, command)
        })
    }

    /// Gives the paths of the queues that the command made.
    fn submit_and_tell_queues(
        &mut self,
        now: Now,
        command: Command,
    ) -> Result<Vec<Path>, Poisoned> {
        let known = QueueId(self.store.state().queues_len());
        self.store.submit(now, command)?;
        Ok(self.store.state().queue_uses(known).map(|made| made.path.clone()).collect())
    }

    /// Refuses the batches that are due to be.
    pub(super) fn refuse(&mut self, now: Now) -> Result<(), Poisoned> {
        for Refused { link, sequence, jobs, refusal } in self.refused.drain(..) {
            self.store.submit(now, Command::Refuse { link, sequence, jobs, refusal })?;
        }
        Ok(())
    }

    /// What a worker says of a lease that it does not hold ends what it does for it: it learns so
    /// at once, not with its settle.
    fn say_stale(&mut self, link: LinkId, tokens: Tokens) {
        if !tokens.0.is_empty() {
            self.router.say(link, &FromPublisher::Revoked { reason: Revoked::LeaseLost, tokens });
        }
    }
}
