//! Links that attach, subscribe and leave.

use std::sync::Arc;
use std::time::Instant;

use longshore_protocol::Path;
use longshore_protocol::limits::VALUE_SUBSCRIPTIONS_MAX;
use longshore_protocol::messages::values::{Policy, SubscribeValue, ValueRefusal};

use super::links::SubscriptionState;
use super::{Core, LinkNumber, LinkSink, SlotKey, Violation};

impl<O: LinkSink> Core<O> {
    /// A link has attached; it ends at once if every link was ended.
    pub(crate) fn link_up(&mut self, name: Arc<str>, sink: O) -> LinkNumber {
        let number = self.links.add(name, sink);
        if let Some(reason) = self.closed.clone() {
            self.end(number, reason);
        }
        number
    }

    /// A link has ended. Returns its subscribed values for [`Core::leave`], and those that it has
    /// written to for [`Core::drop_writes_of`]; both are passed a chunk at a time.
    pub(crate) fn link_down(&mut self, number: LinkNumber) -> (Vec<SlotKey>, Vec<SlotKey>) {
        let Some(link) = self.links.remove(number) else { return (Vec::new(), Vec::new()) };
        let subscribed = |subscription: &super::links::Subscription| match subscription.state {
            SubscriptionState::Joining(key, _) | SubscriptionState::Active(key, _) => Some(key),
            _ => None,
        };
        let current = |slot: &u32| {
            let generation = self.slots.get(*slot as usize)?.generation;
            Some(SlotKey { slot: *slot, generation })
        };
        let left = link.subscriptions.iter().filter_map(subscribed).collect();
        (left, link.written.iter().filter_map(current).collect())
    }

    /// An ended link leaves these values.
    pub(crate) fn leave(&mut self, number: LinkNumber, keys: &[SlotKey]) {
        for key in keys {
            self.move_to_set(*key, number, false);
        }
    }

    /// A link subscribes; the answer goes to its backlog.
    pub(crate) fn subscribe(
        &mut self,
        number: LinkNumber,
        request: SubscribeValue,
        may_read: impl FnOnce(&Path) -> bool,
        is_queue: impl FnOnce(&Path) -> bool,
        now: Instant,
    ) -> Result<(), Violation> {
        let SubscribeValue { subscription, path, policy } = request;
        let Some(link) = self.links.get_mut(number) else { return Ok(()) };
        if subscription as usize >= VALUE_SUBSCRIPTIONS_MAX {
            link.refuse(subscription, ValueRefusal::TooMany, None)?;
            self.links_to_pump.push(number);
            return Ok(());
        }
        // A number that is refused takes no memory.
        link.check_number(subscription)?;
        if !may_read(&path) {
            link.refuse(subscription, ValueRefusal::Forbidden, None)?;
            self.links_to_pump.push(number);
            return Ok(());
        }
        if let Some(&slot) = self.by_path.get(&path) {
            let generation = self.slots.get(slot as usize).map_or(0, |slot| slot.generation);
            self.join(number, subscription, SlotKey { slot, generation }, policy);
            return Ok(());
        }
        let refusal = match self.request_from_default(&path, (number, subscription), now) {
            Ok(true) => {
                if let Some(link) = self.links.get_mut(number) {
                    link.entry(subscription).state = SubscriptionState::Requested(path, policy);
                }
                return Ok(());
            }
            Ok(false) if is_queue(&path) => ValueRefusal::IsQueue,
            Ok(false) => ValueRefusal::NotHere,
            Err(refusal) => refusal,
        };
        if let Some(link) = self.links.get_mut(number) {
            link.refuse(subscription, refusal, None)?;
            self.links_to_pump.push(number);
        }
        Ok(())
    }

    /// A link unsubscribes.
    pub(crate) fn unsubscribe(&mut self, number: LinkNumber, subscriptions: &[u32]) {
        for subscription in subscriptions {
            let Some(link) = self.links.get_mut(number) else { return };
            if let Some(key) = link.unsubscribe(*subscription) {
                self.move_to_set(key, number, false);
            }
        }
        self.pump(number);
    }

    /// Pumps every link with new backlog entries.
    pub(crate) fn pump_all(&mut self) {
        self.links_to_pump.sort_unstable();
        self.links_to_pump.dedup();
        self.pump_pending_links();
    }

    /// A subscription joins a value.
    pub(super) fn join(
        &mut self,
        number: LinkNumber,
        subscription: u32,
        key: SlotKey,
        policy: Policy,
    ) {
        let Some(link) = self.links.get_mut(number) else { return };
        let other = link.by_slot.get(&key.slot).and_then(|other| {
            match link.subscriptions.get(*other as usize)?.state {
                SubscriptionState::Joining(of, _) | SubscriptionState::Active(of, _) => {
                    (of == key).then_some(*other)
                }
                _ => None,
            }
        });
        if other.is_some() {
            if let Err(violation) = link.refuse(subscription, ValueRefusal::AlreadySubscribed, None)
            {
                link.end(violation.to_string());
            }
        } else {
            link.entry(subscription).state = SubscriptionState::Joining(key, policy);
            link.by_slot.insert(key.slot, subscription);
            link.queue_subscription(subscription);
            // Before it is active: `unpublish` must find it. No shared frame is sent to a link with
            // a backlog.
            self.move_to_set(key, number, true);
        }
        self.links_to_pump.push(number);
    }
}
