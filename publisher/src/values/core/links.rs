//! Links and their subscriptions.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use longshore_protocol::limits::VALUE_SUBSCRIPTIONS_MAX;
use longshore_protocol::messages::values::{
    FromValuePublisher, Policy, SubscriptionEnd, ValueRefusal,
};
use longshore_protocol::{Frame, FrameWriter, Path, Value};

use super::backlog::{Backlog, BacklogEntry};
use super::{LinkSink, Offer, SlotKey};
use crate::values::limits::{VALUE_BACKLOG_BYTES_MAX, VALUE_BACKLOG_UPDATES_MAX};

/// A link's number at this publisher; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct LinkNumber(pub(crate) u32);

/// How far a new subscription number may exceed the used ones: numbers are dense, but come in any
/// order.
const NUMBERS_AHEAD_MAX: u32 = 65_536;

/// Violations for which a subscriber's link is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Violation {
    #[error("subscription {0} already exists")]
    NumberTaken(u32),
    #[error("subscription {0} is far beyond the last; numbers are to be dense")]
    NumberTooFar(u32),
    #[error("{0} answers wait to be read")]
    UnreadAnswers(usize),
}

/// One subscription of a link, by its number there.
#[derive(Default)]
pub(super) struct Subscription {
    pub(super) state: SubscriptionState,
    /// It is in the link's backlog.
    pub(super) in_backlog: bool,
    /// Updates that wait under `DropOldest`, or the last ones of a removed value; oldest first.
    pub(super) waiting: VecDeque<Value>,
    /// How many of them are still to send in its current turn, under `DropOldest`; 0 between turns.
    pub(super) turn: usize,
}

/// The state of a subscription.
#[derive(Default)]
pub(super) enum SubscriptionState {
    /// The number is unused.
    #[default]
    Free,
    /// The path was requested from a default.
    Requested(Path, Policy),
    /// Its value is to be sent, and then updates.
    Joining(SlotKey, Policy),
    /// It receives updates.
    Active(SlotKey, Policy),
    /// Its value, of that number, was removed before it was sent: it waits to be sent with its end.
    Removed(u32),
    /// Its waiting updates are to be sent, and then its end; of the value with that number.
    Ending(u32, SubscriptionEnd),
}

/// One link.
pub(super) struct Link<O> {
    pub(super) sink: O,
    pub(super) name: Arc<str>,
    pub(super) subscriptions: Vec<Subscription>,
    /// The highest number that it has used, also of a refused subscription.
    pub(super) highest: u32,
    /// The joining or active subscription of a slot.
    pub(super) by_slot: HashMap<u32, u32>,
    pub(super) backlog: Backlog,
    /// Bytes of waiting updates.
    pub(super) backlog_bytes: usize,
    /// Writes without an answer.
    pub(super) writes_open: usize,
    /// The slots whose values it has written to: its writes may wait there longer than it
    /// subscribes.
    pub(super) written: HashSet<u32>,
    /// The link is being ended: nothing more is sent.
    pub(super) ends: bool,
}

/// All links.
pub(super) struct Links<O> {
    links: HashMap<LinkNumber, Link<O>>,
    next: u32,
}

impl<O: LinkSink> Links<O> {
    pub(super) fn new() -> Links<O> {
        Links { links: HashMap::new(), next: 0 }
    }

    pub(super) fn add(&mut self, name: Arc<str>, sink: O) -> LinkNumber {
        let number = LinkNumber(self.next);
        self.next += 1;
        let link = Link {
            sink,
            name,
            subscriptions: Vec::new(),
            highest: 0,
            by_slot: HashMap::new(),
            backlog: Backlog::default(),
            backlog_bytes: 0,
            writes_open: 0,
            written: HashSet::new(),
            ends: false,
        };
        self.links.insert(number, link);
        number
    }

    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    pub(super) fn remove(&mut self, number: LinkNumber) -> Option<Link<O>> {
        self.links.remove(&number)
    }

    pub(super) fn get_mut(&mut self, number: LinkNumber) -> Option<&mut Link<O>> {
        self.links.get_mut(&number)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (LinkNumber, &mut Link<O>)> {
        self.links.iter_mut().map(|(number, link)| (*number, link))
    }

    /// Offers a shared frame. False if the link has no room, or a non-empty backlog.
    pub(super) fn offer(&mut self, number: LinkNumber, frame: &Frame, limit: usize) -> bool {
        let Some(link) = self.links.get_mut(&number).filter(|link| !link.ends) else { return true };
        link.backlog.is_empty() && link.sink.offer(frame.clone(), limit) == Offer::Accepted
    }

    /// An update had no room. Returns the value if the link's subscription to it ends.
    pub(super) fn defer_update(
        &mut self,
        number: LinkNumber,
        slot: u32,
        value: &Value,
    ) -> Option<SlotKey> {
        self.links.get_mut(&number).filter(|link| !link.ends)?.defer_update(slot, value)
    }

    /// A value was removed.
    pub(super) fn unpublished(&mut self, number: LinkNumber, key: SlotKey, last: &Value) {
        if let Some(link) = self.links.get_mut(&number) {
            link.unpublished(key, last);
        }
    }
}

impl<O: LinkSink> Link<O> {
    /// Adds an answer to the backlog. The caller has the link pumped.
    pub(super) fn queue_answer(&mut self, entry: BacklogEntry) -> Result<(), Violation> {
        if self.backlog.answers() >= VALUE_SUBSCRIPTIONS_MAX {
            return Err(Violation::UnreadAnswers(self.backlog.answers()));
        }
        self.backlog.push(entry);
        Ok(())
    }

    /// The count of sent entries at which all that waits now is sent.
    pub(super) fn backlog_end(&mut self) -> u64 {
        // Only the first entry may be in the middle of a turn, which began before the newest
        // updates.
        if let Some(BacklogEntry::Subscription(first)) = self.backlog.front()
            && let Some(subscription) = self.subscriptions.get_mut(*first as usize)
            && subscription.turn > 0
        {
            subscription.turn = subscription.waiting.len();
        }
        self.backlog.end()
    }

    /// Adds a subscription to the backlog, unless it is there.
    pub(super) fn queue_subscription(&mut self, number: u32) {
        if let Some(subscription) = self.subscriptions.get_mut(number as usize)
            && !std::mem::replace(&mut subscription.in_backlog, true)
        {
            self.backlog.push(BacklogEntry::Subscription(number));
        }
    }

    /// Refuses a subscription; its number is free again.
    pub(super) fn refuse(
        &mut self,
        subscription: u32,
        code: ValueRefusal,
        reason: Option<Box<str>>,
    ) -> Result<(), Violation> {
        self.free(subscription);
        self.queue_answer(BacklogEntry::Refused { subscription, code, reason })
    }

    pub(super) fn free(&mut self, number: u32) {
        if let Some(subscription) = self.subscriptions.get_mut(number as usize) {
            subscription.state = SubscriptionState::Free;
        }
    }

    /// Checks that a new subscription may have that number.
    pub(super) fn check_number(&mut self, number: u32) -> Result<(), Violation> {
        match self.subscriptions.get(number as usize).map(|subscription| &subscription.state) {
            None if number > self.highest.saturating_add(NUMBERS_AHEAD_MAX) => {
                Err(Violation::NumberTooFar(number))
            }
            None | Some(SubscriptionState::Free) => {
                self.highest = self.highest.max(number);
                Ok(())
            }
            Some(_) => Err(Violation::NumberTaken(number)),
        }
    }

    /// The entry of a number that was checked.
    pub(super) fn entry(&mut self, number: u32) -> &mut Subscription {
        let index = number as usize;
        if index >= self.subscriptions.len() {
            self.subscriptions.resize_with(index + 1, Subscription::default);
        }
        &mut self.subscriptions[index]
    }

    fn defer_update(&mut self, slot: u32, value: &Value) -> Option<SlotKey> {
        let &number = self.by_slot.get(&slot)?;
        let subscription = &mut self.subscriptions[number as usize];
        let SubscriptionState::Active(key, policy) = subscription.state else { return None };
        let mut left = None;
        match policy {
            // The newest value is in its slot, so the entry is enough.
            Policy::Conflate => {}
            Policy::DropOldest => {
                let waiting = &mut subscription.waiting;
                self.backlog_bytes += bytes_of(value);
                waiting.push_back(value.clone());
                while waiting.len() > 1
                    && (waiting.len() > VALUE_BACKLOG_UPDATES_MAX
                        || self.backlog_bytes > VALUE_BACKLOG_BYTES_MAX)
                    && let Some(oldest) = waiting.pop_front()
                {
                    self.backlog_bytes -= bytes_of(&oldest);
                    subscription.turn = subscription.turn.saturating_sub(1);
                }
            }
            Policy::Disconnect => {
                subscription.state = SubscriptionState::Ending(slot, SubscriptionEnd::TooSlow);
                self.by_slot.remove(&slot);
                left = Some(key);
            }
        }
        let waits = !self.backlog.is_empty();
        self.queue_subscription(number);
        if !waits {
            self.sink.wait_for_room();
        }
        left
    }

    fn unpublished(&mut self, key: SlotKey, last: &Value) {
        let Some(number) = self.by_slot.remove(&key.slot) else { return };
        let subscription = &mut self.subscriptions[number as usize];
        let (of, policy) = match subscription.state {
            SubscriptionState::Joining(of, _) => {
                debug_assert_eq!(of, key, "a link in a value's set subscribes to that value");
                // Without space for the value the subscription is refused: the link itself must not
                // end for values that it never received.
                if self.backlog_bytes + bytes_of(last) <= VALUE_BACKLOG_BYTES_MAX {
                    self.backlog_bytes += bytes_of(last);
                    subscription.waiting.push_back(last.clone());
                    subscription.state = SubscriptionState::Removed(key.slot);
                }
                return;
            }
            SubscriptionState::Active(of, policy) => (of, policy),
            _ => return,
        };
        debug_assert_eq!(of, key, "a link in a value's set subscribes to that value");
        subscription.state = SubscriptionState::Ending(key.slot, SubscriptionEnd::Unpublished);
        if subscription.in_backlog && policy == Policy::Conflate {
            // The entry stood for the value in the slot, which is removed.
            self.backlog_bytes += bytes_of(last);
            subscription.waiting.push_back(last.clone());
        }
        self.queue_subscription(number);
        if self.backlog_bytes > 2 * VALUE_BACKLOG_BYTES_MAX {
            self.end("it does not read, and too many values have ended meanwhile".to_owned());
        }
    }

    /// Ends a subscription at the subscriber's request. Returns the value that it followed.
    pub(super) fn unsubscribe(&mut self, number: u32) -> Option<SlotKey> {
        let subscription = self.subscriptions.get_mut(number as usize)?;
        let ended = |slot| SubscriptionState::Ending(slot, SubscriptionEnd::Unsubscribed);
        let stood = match subscription.state {
            SubscriptionState::Free
            | SubscriptionState::Removed(_)
            | SubscriptionState::Ending(..) => return None,
            SubscriptionState::Requested(..) => {
                subscription.state = ended(0);
                None
            }
            SubscriptionState::Joining(key, _) | SubscriptionState::Active(key, _) => {
                subscription.state = ended(key.slot);
                let waiting = std::mem::take(&mut subscription.waiting);
                self.backlog_bytes -= waiting.iter().map(bytes_of).sum::<usize>();
                self.forget_slot(key.slot, number);
                Some(key)
            }
        };
        self.queue_subscription(number);
        stood
    }

    /// The slot no longer belongs to that subscription.
    pub(super) fn forget_slot(&mut self, slot: u32, number: u32) {
        if self.by_slot.get(&slot) == Some(&number) {
            self.by_slot.remove(&slot);
        }
    }

    /// Ends the link, with its reason if there is room for it.
    pub(super) fn end(&mut self, reason: String) {
        if !std::mem::replace(&mut self.ends, true) {
            let mut out = FrameWriter::new();
            FromValuePublisher::Goodbye { reason: reason.clone() }.encode(&mut out);
            self.backlog = Backlog::default();
            self.sink.end(reason, Some(out.finish()));
        }
    }
}

/// The bytes that a waiting value counts for: its own, and about those of its bookkeeping.
pub(super) fn bytes_of(value: &Value) -> usize {
    size_of::<Value>() + value.encoded_len().unwrap_or(0)
}
