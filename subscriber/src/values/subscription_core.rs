//! The state of one subscription, shared by its handle, its link and the connection manager.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use longshore_protocol::messages::values::Policy;
use longshore_protocol::{Path, PublisherId, Value};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};

use super::event::{Event, KeyedEvent, SubscriptionKey};
use super::link::ValueLink;
use super::retries::RetryState;
use super::subscriber::SubscribeError;
use super::updates::UpdateChannel;
use super::writes::{AnswerSender, WriteError};

/// Subscriptions that were lost or refused, with the reason.
pub(crate) type LostSubscriptions = Vec<(Arc<SubscriptionCore>, Arc<str>)>;

/// Receives the refusals of subscriptions that were requested together. The channel closes once all
/// are answered, and holds each subscription at most once.
pub(crate) type RefusalSender = mpsc::UnboundedSender<(Arc<SubscriptionCore>, Arc<str>)>;

/// The state of a durable subscription. Times count from the subscriber's start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ValueState {
    /// The first attempt is in progress.
    Pending,
    /// The publisher sends updates.
    Alive {
        /// Since this time.
        since: Duration,
        /// The publisher.
        publisher: PublisherId,
    },
    /// The subscription is lost, and is being retried.
    Dead {
        /// The last error.
        reason: Arc<str>,
        /// Since this time.
        since: Duration,
        /// Consecutive failed attempts. The loss of the link counts as the first.
        attempt: u32,
    },
}

#[derive(Debug)]
pub(crate) struct SubscriptionCore {
    pub(crate) key: SubscriptionKey,
    pub(crate) path: Path,
    pub(crate) policy: Policy,
    pub(crate) channel: Arc<UpdateChannel>,
    pub(crate) kind: SubscriptionKind,
    attachment: Mutex<Attachment>,
    /// Lock order: after the channel, never before.
    missed: Mutex<Missed>,
    /// The handle was dropped.
    cancelled: AtomicBool,
}

/// What the reader missed while it was slow. Only the newest is retained, so that a subscription
/// that is lost and retried while the value has no reader does not use more memory each time.
#[derive(Debug, Default)]
pub(crate) struct Missed {
    /// The channel lists this subscription as lagging.
    lagging: bool,
    /// The last value before the loss, and the reason of the loss.
    last: Option<Value>,
    dead: Option<Arc<str>>,
}

/// What happens when the subscription is lost.
#[derive(Debug)]
pub(crate) enum SubscriptionKind {
    /// It ends. The sender reports the outcome of the first attempt.
    Once(Mutex<Option<oneshot::Sender<Result<(), SubscribeError>>>>),
    /// It is retried.
    Durable { retry: Mutex<RetryState>, state: watch::Sender<ValueState> },
}

/// The link that serves the subscription. Lock order: after a link's table, never before.
#[derive(Debug)]
enum Attachment {
    /// No link; with the last value.
    Detached(Option<Value>),
    /// A slot of a link's table. Until the slot is active, the last value is `before`.
    Attached { link: Arc<ValueLink>, slot: u32, before: Option<Value> },
}

impl SubscriptionCore {
    pub(crate) fn new(
        key: u64,
        path: Path,
        policy: Policy,
        channel: Arc<UpdateChannel>,
        kind: SubscriptionKind,
    ) -> Arc<SubscriptionCore> {
        let (key, attachment, missed) =
            (SubscriptionKey(key), Mutex::new(Attachment::Detached(None)), Mutex::default());
        let cancelled = AtomicBool::new(false);
        Arc::new(SubscriptionCore {
            key,
            path,
            policy,
            channel,
            kind,
            attachment,
            missed,
            cancelled,
        })
    }

    /// Assigns the subscription to a slot of a link.
    pub(crate) fn attach(&self, link: &Arc<ValueLink>, slot: u32) {
        let mut attachment = self.attachment.lock();
        let before = match std::mem::replace(&mut *attachment, Attachment::Detached(None)) {
            Attachment::Detached(before) | Attachment::Attached { before, .. } => before,
        };
        *attachment = Attachment::Attached { link: link.clone(), slot, before };
    }

    /// Another slot of its link's table is assigned to the subscription.
    pub(crate) fn move_to_slot(&self, to: u32) {
        if let Attachment::Attached { slot, .. } = &mut *self.attachment.lock() {
            *slot = to;
        }
    }

    /// The publisher accepted the subscription. Returns false if no subscription needs it any more.
    pub(crate) fn activated(&self, now: Duration, publisher: PublisherId) -> bool {
        if let Attachment::Attached { before, .. } = &mut *self.attachment.lock() {
            *before = None;
        }
        match &self.kind {
            SubscriptionKind::Once(answer) => {
                answer.lock().take().is_none_or(|answer| answer.send(Ok(())).is_ok())
            }
            SubscriptionKind::Durable { retry, state } => {
                retry.lock().succeeded(now);
                state.send_replace(ValueState::Alive { since: now, publisher });
                !self.is_cancelled()
            }
        }
    }

    /// Removes the subscription from its link. `last` is its value there, if it was active.
    pub(crate) fn detach(&self, last: Option<Value>) {
        let mut attachment = self.attachment.lock();
        let before = match std::mem::replace(&mut *attachment, Attachment::Detached(None)) {
            Attachment::Detached(before) | Attachment::Attached { before, .. } => before,
        };
        *attachment = Attachment::Detached(last.or(before));
    }

    /// An attempt failed. Returns the number of consecutive failures if the subscription is to be
    /// retried.
    pub(crate) fn attempt_failed(&self, now: Duration, why: &SubscribeError) -> Option<u32> {
        match &self.kind {
            SubscriptionKind::Once(answer) => {
                if let Some(answer) = answer.lock().take() {
                    // The caller may have stopped waiting.
                    let _ = answer.send(Err(why.clone()));
                }
                None
            }
            SubscriptionKind::Durable { .. } => self.lost(now, why.to_string().into()),
        }
    }

    /// A durable subscription is dead. Returns the number of consecutive failures if it is to be
    /// retried.
    pub(crate) fn lost(&self, now: Duration, reason: Arc<str>) -> Option<u32> {
        let SubscriptionKind::Durable { retry, state } = &self.kind else { return None };
        if self.is_cancelled() {
            return None;
        }
        let (since, attempt) = retry.lock().failed(now);
        state.send_replace(ValueState::Dead { reason, since, attempt });
        Some(attempt)
    }

    pub(crate) fn is_durable(&self) -> bool {
        matches!(self.kind, SubscriptionKind::Durable { .. })
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Marks the subscription as unused, and unsubscribes.
    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        if let Some((link, _)) = self.attached_slot() {
            link.unsubscribe(self);
        }
    }

    /// Withdraws the subscription from a link where it is not active yet. Returns false if it is
    /// active there, is not there, or was requested there again by another batch.
    pub(crate) fn withdraw(&self, from: &Arc<ValueLink>, refusals: &RefusalSender) -> bool {
        let mut table = from.table.lock();
        let Some((link, slot)) = self.attached_slot() else { return false };
        let waits = Arc::ptr_eq(&link, from) && table.is_waiting(slot, self.key, refusals);
        if waits {
            table.remove(slot, self.key);
        }
        waits
    }

    /// The last value.
    pub(crate) fn last(&self) -> Option<Value> {
        // The subscription may move to another link between the two locks.
        for _ in 0..3 {
            let (link, slot) = match &*self.attachment.lock() {
                Attachment::Detached(last) => return last.clone(),
                Attachment::Attached { before: Some(before), .. } => return Some(before.clone()),
                Attachment::Attached { link, slot, .. } => (link.clone(), *slot),
            };
            if let Some(last) = link.table.lock().last(slot, self.key) {
                return last;
            }
        }
        None
    }

    /// Marks the reader as lagging. Returns true if the channel does not list it yet.
    pub(crate) fn set_lagging(&self) -> bool {
        !std::mem::replace(&mut self.missed.lock().lagging, true)
    }

    /// The subscription was lost while its reader was lagging.
    pub(crate) fn record_missed(&self, last: Option<Value>, dead: Arc<str>) {
        let mut missed = self.missed.lock();
        missed.last = last.or(missed.last.take());
        missed.dead = Some(dead);
    }

    /// Takes what the reader missed of links that have ended. The channel, which is locked, lists
    /// this subscription no more.
    pub(crate) fn take_missed(&self) -> Missed {
        std::mem::take(&mut *self.missed.lock())
    }

    /// Passes what the reader missed, up to now. If it lags behind another link meanwhile, that is
    /// passed by the next read: after what waits in the channel.
    pub(crate) fn pass_missed(&self, missed: Missed, events: &mut Vec<KeyedEvent>) {
        let Missed { last, dead, .. } = missed;
        events.extend(last.map(|last| (self.key, Event::Update(last))));
        events.extend(dead.map(|dead| (self.key, Event::Dead(dead))));
        if let Some((link, slot)) = self.attached_slot() {
            let mut table = link.table.lock();
            if !self.missed.lock().lagging {
                let each = |value| events.push((self.key, Event::Update(value)));
                table.take_lagging(slot, self.key, each);
            }
        }
    }

    /// True if the policy does not allow dropping updates and the reader's queue is full.
    pub(crate) fn blocks_resubscribe(&self) -> bool {
        self.policy == Policy::Disconnect && self.channel.is_full()
    }

    /// True while the subscription is active.
    pub(crate) fn is_alive(&self) -> bool {
        self.attached_slot().is_some_and(|(link, slot)| link.table.lock().is_active(slot, self.key))
    }

    /// Writes a value to the publisher's program.
    pub(crate) fn write(
        &self,
        value: Value,
        answer: Option<(AnswerSender, Duration)>,
    ) -> Result<(), WriteError> {
        let (link, slot) = self.attached_slot().ok_or(WriteError::Dead)?;
        link.write(slot, self.key, value, answer)
    }

    /// Its link and slot. The slot may change until it is requested, unless the table is locked.
    pub(crate) fn attached_slot(&self) -> Option<(Arc<ValueLink>, u32)> {
        match &*self.attachment.lock() {
            Attachment::Detached(_) => None,
            Attachment::Attached { link, slot, .. } => Some((link.clone(), *slot)),
        }
    }
}
