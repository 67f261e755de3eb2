//! Links and their subscriptions.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use longshore_protocol::limits::VALUE_SUBSCRIPTIONS_MAX;
use longshore_protocol::messages::values::{
    FromValuePublisher, Policy, SubscriptionEnd, ValueRefusal,
};
use longshore_protocol::{Frame, FrameWriter, Path, Value};

use super::line::{Entry, Line};
use super::{LinkOutput, Offer, SlotKey};
use crate::values::limits::{VALUE_BACKLOG_BYTES_MAX, VALUE_BACKLOG_UPDATES_MAX};

/// A link's number at this publisher; never another link's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct LinkNumber(pub(crate) u32);

/// Numbers beyond those that were used which a subscriber may take: they are to be dense, but not
/// in any order.
const NUMBERS_AHEAD_MAX: usize = 65_536;

/// What no subscriber may do: its link is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Misuse {
    #[error("subscription {0} stands already")]
    NumberTaken(u32),
    #[error("subscription {0} is far beyond the last; numbers are to be dense")]
    NumberTooFar(u32),
    #[error("{0} answers wait to be read")]
    ReadsNothing(usize),
}

/// One subscription of a link, by its number there.
#[derive(Default)]
pub(super) struct Subscription {
    pub(super) stage: Stage,
    /// It stands in the link's line.
    pub(super) in_line: bool,
    /// Updates that wait under `DropOldest`, or the last ones of a value that is gone; oldest
    /// first.
    pub(super) waiting: VecDeque<Value>,
    /// How many of those are still to be said in the turn that it has, under `DropOldest`; 0
    /// between turns.
    pub(super) turn: usize,
}

/// How far a subscription is.
#[derive(Default)]
pub(super) enum Stage {
    /// There is none of that number.
    #[default]
    Free,
    /// A default was asked for the path.
    Asked(Path, Policy),
    /// To be told the value, and then updates.
    Joining(SlotKey, Policy),
    /// Gets updates.
    Stands(SlotKey, Policy),
    /// To be told what waits, and then that it has ended; of the value with that number.
    Leaves(u32, SubscriptionEnd),
}

/// One link.
pub(super) struct Link<O> {
    pub(super) outlet: O,
    pub(super) name: Arc<str>,
    pub(super) subscriptions: Vec<Subscription>,
    /// The subscription that joins or stands at a slot.
    pub(super) by_slot: HashMap<u32, u32>,
    pub(super) line: Line,
    /// Bytes of updates that wait.
    pub(super) backlog_bytes: usize,
    /// Writes without an answer.
    pub(super) writes_open: usize,
    /// It is being ended: nothing more is said.
    pub(super) ends: bool,
}

/// All links.
pub(super) struct Links<O> {
    links: HashMap<LinkNumber, Link<O>>,
    next: u32,
}

impl<O: LinkOutput> Links<O> {
    pub(super) fn new() -> Links<O> {
        Links { links: HashMap::new(), next: 0 }
    }

    pub(super) fn add(&mut self, name: Arc<str>, outlet: O) -> LinkNumber {
        let number = LinkNumber(self.next);
        self.next += 1;
        let link = Link {
            outlet,
            name,
            subscriptions: Vec::new(),
            by_slot: HashMap::new(),
            line: Line::default(),
            backlog_bytes: 0,
            writes_open: 0,
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

    /// Offers a frame that was written for many. False if the link has no room, or something before
    /// it.
    pub(super) fn offer(&mut self, number: LinkNumber, frame: &Frame, limit: usize) -> bool {
        let Some(link) = self.links.get_mut(&number).filter(|link| !link.ends) else { return true };
        link.line.is_empty() && link.outlet.offer(frame.clone(), limit) == Offer::Taken
    }

    /// There was no room for this update. Gives the value that the link follows no more for it.
    pub(super) fn line_up(
        &mut self,
        number: LinkNumber,
        slot: u32,
        value: &Value,
    ) -> Option<SlotKey> {
        self.links.get_mut(&number).filter(|link| !link.ends)?.line_up(slot, value)
    }

    /// A value is gone.
    pub(super) fn unpublished(&mut self, number: LinkNumber, key: SlotKey, last: &Value) {
        if let Some(link) = self.links.get_mut(&number) {
            link.unpublished(key, last);
        }
    }
}

impl<O: LinkOutput> Link<O> {
    /// Puts something into the line; what waits for room is told.
    pub(super) fn say(&mut self, entry: Entry) -> Result<(), Misuse> {
        if self.line.answers() >= VALUE_SUBSCRIPTIONS_MAX {
            return Err(Misuse::ReadsNothing(self.line.answers()));
        }
        self.line.push(entry);
        Ok(())
    }

    /// Puts a subscription into the line, unless it stands there.
    pub(super) fn say_of(&mut self, number: u32) {
        if let Some(subscription) = self.subscriptions.get_mut(number as usize)
            && !std::mem::replace(&mut subscription.in_line, true)
        {
            self.line.push(Entry::Subscription(number));
        }
    }

    /// Refuses a subscription, whose number is free again.
    pub(super) fn refuse(
        &mut self,
        subscription: u32,
        code: ValueRefusal,
        reason: Option<Box<str>>,
    ) -> Result<(), Misuse> {
        self.free(subscription);
        self.say(Entry::Refused { subscription, code, reason })
    }

    pub(super) fn free(&mut self, number: u32) {
        if let Some(subscription) = self.subscriptions.get_mut(number as usize) {
            subscription.stage = Stage::Free;
        }
    }

    /// The place for a new subscription of that number.
    pub(super) fn place(&mut self, number: u32) -> Result<&mut Subscription, Misuse> {
        let place = number as usize;
        if place >= self.subscriptions.len() {
            if place > self.subscriptions.len() + NUMBERS_AHEAD_MAX {
                return Err(Misuse::NumberTooFar(number));
            }
            self.subscriptions.resize_with(place + 1, Subscription::default);
        }
        let subscription = &mut self.subscriptions[place];
        match subscription.stage {
            Stage::Free => Ok(subscription),
            _ => Err(Misuse::NumberTaken(number)),
        }
    }

    fn line_up(&mut self, slot: u32, value: &Value) -> Option<SlotKey> {
        let &number = self.by_slot.get(&slot)?;
        let subscription = &mut self.subscriptions[number as usize];
        let Stage::Stands(key, policy) = subscription.stage else { return None };
        let mut left = None;
        match policy {
            // The newest value is in its slot: the mark is enough.
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
                subscription.stage = Stage::Leaves(slot, SubscriptionEnd::TooSlow);
                self.by_slot.remove(&slot);
                left = Some(key);
            }
        }
        let waits = !self.line.is_empty();
        self.say_of(number);
        if !waits {
            self.outlet.wait_for_room();
        }
        left
    }

    fn unpublished(&mut self, key: SlotKey, last: &Value) {
        let Some(number) = self.by_slot.remove(&key.slot) else { return };
        let subscription = &mut self.subscriptions[number as usize];
        let Stage::Stands(of, policy) = subscription.stage else { return };
        debug_assert_eq!(of, key, "who is in a value's set has a subscription to that value");
        subscription.stage = Stage::Leaves(key.slot, SubscriptionEnd::Unpublished);
        if subscription.in_line && policy == Policy::Conflate {
            // The mark was for the value in the slot, which goes.
            self.backlog_bytes += bytes_of(last);
            subscription.waiting.push_back(last.clone());
        }
        self.say_of(number);
        if self.backlog_bytes > 2 * VALUE_BACKLOG_BYTES_MAX {
            self.end("it does not read, and too many values have ended meanwhile".to_owned());
        }
    }

    /// Ends a subscription that the subscriber wants no more. Gives the value that it stood at.
    pub(super) fn unsubscribe(&mut self, number: u32) -> Option<SlotKey> {
        let subscription = self.subscriptions.get_mut(number as usize)?;
        let ended = |slot| Stage::Leaves(slot, SubscriptionEnd::Unsubscribed);
        let stood = match subscription.stage {
            Stage::Free | Stage::Leaves(..) => return None,
            Stage::Asked(..) => {
                subscription.stage = ended(0);
                None
            }
            Stage::Joining(key, _) => {
                subscription.stage = ended(key.slot);
                self.forget_slot(key.slot, number);
                None
            }
            Stage::Stands(key, _) => {
                subscription.stage = ended(key.slot);
                let waiting = std::mem::take(&mut subscription.waiting);
                self.backlog_bytes -= waiting.iter().map(bytes_of).sum::<usize>();
                self.forget_slot(key.slot, number);
                Some(key)
            }
        };
        self.say_of(number);
        stood
    }

    /// The slot is not that subscription's any more.
    pub(super) fn forget_slot(&mut self, slot: u32, number: u32) {
        if self.by_slot.get(&slot) == Some(&number) {
            self.by_slot.remove(&slot);
        }
    }

    /// Ends the link, with a word of why as far as there is room for it.
    pub(super) fn end(&mut self, reason: String) {
        if !std::mem::replace(&mut self.ends, true) {
            let mut out = FrameWriter::new();
            FromValuePublisher::Goodbye { reason: reason.clone() }.encode(&mut out);
            self.line = Line::default();
            self.outlet.end(reason, Some(out.finish()));
        }
    }
}

/// What a value that waits is counted for: its bytes, and about as many as the books take.
pub(super) fn bytes_of(value: &Value) -> usize {
    size_of::<Value>() + value.encoded_len().unwrap_or(0)
}
