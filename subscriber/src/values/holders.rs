//! The subscriptions of this process that share one subscription on the wire. Mostly there is one,
//! so it stands in the table itself: an update finds it without following a pointer.

use std::sync::Arc;

use longshore_protocol::messages::values::Policy;

use super::behind::Behind;
use super::event::SubscriptionKey;
use super::sub::{Refusals, Sub};

/// One of them.
#[derive(Debug)]
pub(crate) struct Holder {
    pub(crate) sub: Arc<Sub>,
    pub(crate) key: SubscriptionKey,
    /// The table's number of its channel.
    pub(crate) sink: u32,
    /// What becomes of updates that its reader has no room for.
    pub(crate) policy: Policy,
    /// Its reader has no room, and will fetch the newest value, or what is behind.
    pub(crate) marked: bool,
    /// Under `DropOldest`, once there was no room: what has come since its mark.
    pub(crate) behind: Option<Box<Behind>>,
    /// It has been told of its first value.
    pub(crate) stands: bool,
    /// Until it stands: where its refusal goes.
    pub(crate) refusals: Option<Refusals>,
}

#[derive(Debug, Default)]
pub(crate) struct Holders {
    first: Option<Holder>,
    more: Vec<Holder>,
}

impl Holders {
    pub(crate) fn push(&mut self, holder: Holder) {
        if self.first.is_none() {
            self.first = Some(holder);
        } else {
            self.more.push(holder);
        }
    }

    pub(crate) fn remove(&mut self, key: SubscriptionKey) -> Option<Holder> {
        if self.first.as_ref().is_some_and(|first| first.key == key) {
            return std::mem::replace(&mut self.first, self.more.pop());
        }
        let at = self.more.iter().position(|holder| holder.key == key)?;
        Some(self.more.swap_remove(at))
    }

    pub(crate) fn get_mut(&mut self, key: SubscriptionKey) -> Option<&mut Holder> {
        self.iter_mut().find(|holder| holder.key == key)
    }

    pub(crate) fn get(&self, key: SubscriptionKey) -> Option<&Holder> {
        self.first.iter().chain(&self.more).find(|holder| holder.key == key)
    }

    #[inline]
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Holder> {
        self.first.iter_mut().chain(&mut self.more)
    }

    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Holder> + use<> {
        let Holders { first, more } = std::mem::take(self);
        first.into_iter().chain(more)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }
}
