//! Handles publishers' answers to batches.

use longshore_protocol::messages::work::Enqueued;
use longshore_protocol::{BatchRefusal, EnqueueOutcome, Path, PublisherId, Refusal, Runs};

use super::Core;
use super::action::Action;
use super::batch::Batch;
use super::ids::{LinkNumber, Time};
use super::limits::{GAPS_MAX, NOT_HOME_MAX, RESOLVE_INTERVAL_MIN, WARMING_RETRY};
use super::peer::{InFlight, LinkState};
use crate::outcome::{BatchOutcome, EnqueueError};

impl<T: Default + Clone> Core<T> {
    /// A publisher's answer to a batch.
    pub(crate) fn answered(
        &mut self,
        now: Time,
        publisher: PublisherId,
        link: LinkNumber,
        answer: Enqueued,
    ) {
        let Some(peer) = self.peers.get_mut(&publisher) else { return };
        let LinkState::Up { link: current, durability, .. } = peer.link else { return };
        if current != link {
            return;
        }
        let found = peer.unanswered.iter().position(|f| f.sequence == answer.sequence);
        let found = found.and_then(|at| peer.take(at));
        peer.answer_received(now);
        // The batch has timed out and was finished.
        let Some(InFlight { mut batch, arrived, sequence }) = found else {
            if answer.outcome.is_ok() {
                peer.accepted = peer.accepted.max(answer.sequence);
            }
            return;
        };
        peer.used_at = now;
        let mut is_stopping = false;
        match answer.outcome {
            Ok(outcomes) if outcomes.len() == batch.ids.len() => {
                peer.accepted = peer.accepted.max(sequence);
                if let LinkState::Up { answered, .. } = &mut peer.link {
                    *answered = true;
                }
                let has = |refusal| {
                    outcomes.runs().iter().any(|(o, _)| *o == EnqueueOutcome::Refused(refusal))
                };
                let (not_here, not_home) = (has(Refusal::NotHere), has(Refusal::NotHome));
                if not_here || not_home {
                    self.forget_homes(&batch, publisher);
                    self.resolve_paths_again(now, batch.jobs.paths());
                }
                if not_home && batch.not_home < NOT_HOME_MAX && is_refused_whole(&outcomes) {
                    return self.send_to_new_home(now, batch);
                }
                let may_be_at = batch.may_be_at;
                let end = BatchOutcome::Answered { publisher, durability, outcomes, may_be_at };
                self.finish(batch, end);
            }
            Ok(_) => {
                self.unknown(
                    batch,
                    publisher,
                    "its answer has the wrong number of outcomes".into(),
                );
                self.close(now, publisher, "an answer with the wrong number of outcomes");
            }
            Err(BatchRefusal::SequenceGap | BatchRefusal::UnknownProducer) if arrived => {
                // The publisher had received it, and no longer remembers its receipt.
                self.unknown(batch, publisher, BatchRefusal::UnknownProducer.to_string().into());
                self.close(now, publisher, "the publisher no longer knows this producer");
            }
            // If the very first batch is missing, the later ones are refused as of an unknown
            // producer.
            Err(refusal @ (BatchRefusal::SequenceGap | BatchRefusal::UnknownProducer)) => {
                // The batches after it on this link are missing as well: requeue them in order.
                let later = peer.take_after(sequence);
                batch.gaps += 1;
                if batch.gaps > GAPS_MAX {
                    self.fail(batch, EnqueueError::BatchRefused { publisher, refusal });
                } else {
                    self.queue_unsent(batch);
                }
                later.into_iter().for_each(|batch| self.queue_unsent(batch));
                // The sequence numbers diverge: a new link reports the next one.
                self.close(now, publisher, "a batch is missing at the publisher");
            }
            Err(BatchRefusal::Draining) => {
                if let LinkState::Up { stopping, .. } = &mut peer.link {
                    *stopping = true;
                    peer.stopping_since = Some(now);
                }
                is_stopping = true;
                if arrived {
                    // The refusal is for this copy; the publisher holds an earlier one, and reports
                    // it once it is available again.
                    let at = peer.unanswered.partition_point(|f| f.sequence < sequence);
                    peer.unanswered_bytes += batch.bytes;
                    peer.unanswered.insert(at, InFlight { sequence, batch, arrived });
                } else {
                    self.queue_unsent(batch);
                }
                // Other publishers may have replaced it.
                self.resolve_paths_of(now, publisher);
            }
            Err(refusal @ (BatchRefusal::Malformed | BatchRefusal::TooLarge)) => {
                self.fail(batch, EnqueueError::BatchRefused { publisher, refusal });
            }
        }
        if is_stopping {
            self.order_links_of(now, publisher);
        }
        self.tick(now);
    }

    /// The publisher refused jobs for its own reasons: it may have been the home of their paths as
    /// their only publisher, and is not any more.
    fn forget_homes(&mut self, batch: &Batch<T>, publisher: PublisherId) {
        for path in batch.jobs.paths() {
            if let Some(entry) = self.routing.paths.get_mut(path) {
                entry.only_publisher = entry.only_publisher.filter(|only| *only != publisher);
            }
        }
    }

    /// Sends a batch to the home that the next answer for its paths names: none of its jobs was
    /// accepted.
    fn send_to_new_home(&mut self, now: Time, mut batch: Batch<T>) {
        for path in batch.jobs.paths() {
            self.routing.set_home(path, None);
            match batch.not_home {
                0 => self.routing.request_resolve(path),
                // The replica may learn later what the publisher knows.
                _ => self.routing.resolve_again_at(path, now + WARMING_RETRY),
            }
        }
        batch.not_home += 1;
        // A route without publishers or paths: its batches move on after the next answer.
        batch.route = self.routing.route_for(now, Vec::new(), Vec::new(), true);
        self.queue_unsent(batch);
        self.tick(now);
    }

    pub(super) fn close(&mut self, now: Time, publisher: PublisherId, reason: &'static str) {
        let link = self.peers.get(&publisher).and_then(|peer| peer.link_number());
        if let Some(link) = link {
            self.actions.push_back(Action::Close { publisher, link, reason });
            self.link_down(now, publisher, reason.into());
        }
    }

    /// Resolves paths again that a publisher does not have.
    pub(super) fn resolve_paths_again(&mut self, now: Time, paths: &[Path]) {
        for path in paths {
            let answered_at = self.routing.paths.get(path).and_then(|entry| entry.answered_at);
            if answered_at.is_some_and(|at| at + RESOLVE_INTERVAL_MIN <= now) {
                self.routing.request_resolve(path);
            }
        }
    }
}

/// True if no job of a batch was accepted because the publisher is not the home of their paths.
fn is_refused_whole(outcomes: &Runs<EnqueueOutcome>) -> bool {
    let is_refused = |outcome: &EnqueueOutcome| {
        matches!(outcome, EnqueueOutcome::Refused(Refusal::NotHome | Refusal::BatchRefused))
    };
    outcomes.runs().iter().all(|(outcome, _)| is_refused(outcome))
}
