//! One subscription: what its handle, its link and the director share.

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
use super::writes::{Answer, WriteError};

/// Subscriptions that are not held any more, or were not to be, and why.
pub(crate) type LostSubscriptions = Vec<(Arc<SubscriptionCore>, Arc<str>)>;

/// Where subscriptions go that are asked of a publisher together and come to nothing. The channel
/// closes once all are answered. It holds each of them at most once.
pub(crate) type RefusalSender = mpsc::UnboundedSender<(Arc<SubscriptionCore>, Arc<str>)>;

/// How a durable subscription of a value stands. Times are counted from the subscriber's start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ValueState {
    /// It is being made for the first time.
    Pending,
    /// It is held.
    Alive {
        /// Since when.
        since: Duration,
        /// At which publisher.
        publisher: PublisherId,
    },
    /// It is not held, and tried again.
    Dead {
        /// What went wrong last.
        reason: Arc<str>,
        /// Since when.
        since: Duration,
        /// Tries that failed in a row, the loss of the link counted as the first.
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
    /// Locked after the channel, never before.
    missed: Mutex<Missed>,
    /// Nobody wants it any more.
    cancelled: AtomicBool,
}

/// What its reader is to be told once it reads: the newest only, so that a subscription which is
/// lost and made again while nobody reads takes no more room each time.
#[derive(Debug, Default)]
struct Missed {
    /// The channel has its mark.
    lagging: bool,
    /// Its last value before it was lost, and why it was.
    last: Option<Value>,
    dead: Option<Arc<str>>,
}

/// What becomes of it when it is lost.
#[derive(Debug)]
pub(crate) enum SubscriptionKind {
    /// It ends. Who waits for it to be made is told the outcome.
    Once(Mutex<Option<oneshot::Sender<Result<(), SubscribeError>>>>),
    /// It is tried again.
    Durable { tries: Mutex<RetryState>, state: watch::Sender<ValueState> },
}

/// Where it is held. Locked after a link's table, never before.
#[derive(Debug)]
enum Attachment {
    /// Nowhere; the last value that it had.
    Detached(Option<Value>),
    /// In that slot of the link. Until it stands there, its last value is from before.
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

    /// It is to be held in that slot.
    pub(crate) fn attach(&self, link: &Arc<ValueLink>, slot: u32) {
        let mut attachment = self.attachment.lock();
        let before = match std::mem::replace(&mut *attachment, Attachment::Detached(None)) {
            Attachment::Detached(before) | Attachment::Attached { before, .. } => before,
        };
        *attachment = Attachment::Attached { link: link.clone(), slot, before };
    }

    /// It stands. False if nobody wants it any more.
    pub(crate) fn activated(&self, now: Duration, publisher: PublisherId) -> bool {
        if let Attachment::Attached { before, .. } = &mut *self.attachment.lock() {
            *before = None;
        }
        match &self.kind {
            SubscriptionKind::Once(answer) => {
                answer.lock().take().is_none_or(|answer| answer.send(Ok(())).is_ok())
            }
            SubscriptionKind::Durable { tries, state } => {
                tries.lock().succeeded(now);
                state.send_replace(ValueState::Alive { since: now, publisher });
                !self.is_cancelled()
            }
        }
    }

    /// It is held nowhere any more. `last`: its value there, if it stood.
    pub(crate) fn detach(&self, last: Option<Value>) {
        let mut attachment = self.attachment.lock();
        let before = match std::mem::replace(&mut *attachment, Attachment::Detached(None)) {
            Attachment::Detached(before) | Attachment::Attached { before, .. } => before,
        };
        *attachment = Attachment::Detached(last.or(before));
    }

    /// A try came to nothing. Gives the number of tries that failed in a row if it is to be tried
    /// again.
    pub(crate) fn attempt_failed(&self, now: Duration, why: &SubscribeError) -> Option<u32> {
        match &self.kind {
            SubscriptionKind::Once(answer) => {
                if let Some(answer) = answer.lock().take() {
                    // Who asked may have gone.
                    let _ = answer.send(Err(why.clone()));
                }
                None
            }
            SubscriptionKind::Durable { .. } => self.lost(now, why.to_string().into()),
        }
    }

    /// The durable one is dead, for this reason.
    pub(crate) fn lost(&self, now: Duration, reason: Arc<str>) -> Option<u32> {
        let SubscriptionKind::Durable { tries, state } = &self.kind else { return None };
        if self.is_cancelled() {
            return None;
        }
        let (since, attempt) = tries.lock().failed(now);
        state.send_replace(ValueState::Dead { reason, since, attempt });
        Some(attempt)
    }

    pub(crate) fn is_durable(&self) -> bool {
        matches!(self.kind, SubscriptionKind::Durable { .. })
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Nobody wants it any more.
    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        if let Some((link, slot)) = self.attached_slot() {
            link.unsubscribe(slot, self.key);
        }
    }

    /// Takes it back from a link where it does not stand yet. False if it stands there, or is not
    /// there, or came there again since in another party.
    pub(crate) fn withdraw(&self, from: &Arc<ValueLink>, refusals: &RefusalSender) -> bool {
        let Some((link, slot)) = self.attached_slot() else { return false };
        let mut table = link.table.lock();
        let waits = Arc::ptr_eq(&link, from) && table.is_waiting(slot, self.key, refusals);
        if waits {
            table.remove(slot, self.key);
        }
        waits
    }

    /// The last value.
    pub(crate) fn last(&self) -> Option<Value> {
        // What stood at one link may be held at the next by the time that its table is asked.
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

    /// Its reader is behind. True if the channel has no mark of it yet.
    pub(crate) fn set_lagging(&self) -> bool {
        !std::mem::replace(&mut self.missed.lock().lagging, true)
    }

    /// It was lost while its reader was behind.
    pub(crate) fn record_missed(&self, last: Option<Value>, dead: Arc<str>) {
        let mut missed = self.missed.lock();
        missed.last = last.or(missed.last.take());
        missed.dead = Some(dead);
    }

    /// What its reader has missed; then it has not.
    pub(crate) fn take_missed(&self, events: &mut Vec<KeyedEvent>) {
        let Missed { last, dead, .. } = std::mem::take(&mut *self.missed.lock());
        events.extend(last.map(|last| (self.key, Event::Update(last))));
        events.extend(dead.map(|dead| (self.key, Event::Dead(dead))));
        if let Some((link, slot)) = self.attached_slot() {
            let each = |value| events.push((self.key, Event::Update(value)));
            link.table.lock().take_lagging(slot, self.key, each);
        }
    }

    /// Its updates may not be left out, and nobody reads those that are there.
    pub(crate) fn blocks_resubscribe(&self) -> bool {
        self.policy == Policy::Disconnect && self.channel.is_full()
    }

    /// True while it stands.
    pub(crate) fn is_alive(&self) -> bool {
        self.attached_slot().is_some_and(|(link, slot)| link.table.lock().is_active(slot, self.key))
    }

    /// Hands a value to the publisher's program.
    pub(crate) fn write(
        &self,
        value: Value,
        answer: Option<(Answer, Duration)>,
    ) -> Result<(), WriteError> {
        let (link, slot) = self.attached_slot().ok_or(WriteError::Dead)?;
        link.write(slot, self.key, value, answer)
    }

    fn attached_slot(&self) -> Option<(Arc<ValueLink>, u32)> {
        match &*self.attachment.lock() {
            Attachment::Detached(_) => None,
            Attachment::Attached { link, slot, .. } => Some((link.clone(), *slot)),
        }
    }
}
