//! The subscriptions of this process that share one subscription on the wire. Usually there is one,
//! so it is stored in the table itself: an update reaches it without following a pointer.

use std::sync::Arc;

use longshore_protocol::messages::values::Policy;

use super::backlog::Backlog;
use super::event::SubscriptionKey;
use super::subscription_core::{RefusalSender, SubscriptionCore};

/// A subscription of this process.
#[derive(Debug)]
pub(crate) struct LocalSubscription {
    pub(crate) sub: Arc<SubscriptionCore>,
    pub(crate) key: SubscriptionKey,
    /// The index of its channel in [`Sinks`](super::sinks::Sinks).
    pub(crate) sink: u32,
    /// What to do with updates that its reader has no room for.
    pub(crate) policy: Policy,
    /// Its reader had no room, and will fetch the latest value, or the backlog.
    pub(crate) lagging: bool,
    /// Under `DropOldest`: the updates since the reader had no room.
    pub(crate) backlog: Option<Box<Backlog>>,
    /// Its first value was delivered.
    pub(crate) active: bool,
    /// Receives its refusal, until it is active.
    pub(crate) refusals: Option<RefusalSender>,
}

#[derive(Debug, Default)]
pub(crate) struct LocalSubscriptions {
    first: Option<LocalSubscription>,
    more: Vec<LocalSubscription>,
}

impl LocalSubscriptions {
    pub(crate) fn push(&mut self, local: LocalSubscription) {
        if self.first.is_none() {
            self.first = Some(local);
        } else {
            self.more.push(local);
        }
    }

    pub(crate) fn remove(&mut self, key: SubscriptionKey) -> Option<LocalSubscription> {
        if self.first.as_ref().is_some_and(|first| first.key == key) {
            return std::mem::replace(&mut self.first, self.more.pop());
        }
        let at = self.more.iter().position(|local| local.key == key)?;
        Some(self.more.swap_remove(at))
    }

    pub(crate) fn get_mut(&mut self, key: SubscriptionKey) -> Option<&mut LocalSubscription> {
        self.iter_mut().find(|local| local.key == key)
    }

    pub(crate) fn get(&self, key: SubscriptionKey) -> Option<&LocalSubscription> {
        self.first.iter().chain(&self.more).find(|local| local.key == key)
    }

    #[inline]
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut LocalSubscription> {
        self.first.iter_mut().chain(&mut self.more)
    }

    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = LocalSubscription> + use<> {
        let LocalSubscriptions { first, more } = std::mem::take(self);
        first.into_iter().chain(more)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }
}
