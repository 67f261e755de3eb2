//! The subscriptions of this process that share one subscription on the wire. Mostly there is one,
//! so it stands in the table itself: an update finds it without following a pointer.

use std::sync::Arc;

use longshore_protocol::messages::values::Policy;

use super::backlog::Backlog;
use super::event::SubscriptionKey;
use super::subscription_core::{RefusalSender, SubscriptionCore};

/// One of them.
#[derive(Debug)]
pub(crate) struct LocalSubscription {
    pub(crate) sub: Arc<SubscriptionCore>,
    pub(crate) key: SubscriptionKey,
    /// The table's number of its channel.
    pub(crate) sink: u32,
    /// What becomes of updates that its reader has no room for.
    pub(crate) policy: Policy,
    /// Its reader has no room, and will fetch the newest value, or what is behind.
    pub(crate) lagging: bool,
    /// Under `DropOldest`, once there was no room: what has come since its mark.
    pub(crate) backlog: Option<Box<Backlog>>,
    /// It has been told of its first value.
    pub(crate) active: bool,
    /// Until it stands: where its refusal goes.
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
