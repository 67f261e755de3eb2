//! Links come and go, and subscribe.

use std::sync::Arc;
use std::time::Instant;

use longshore_protocol::Path;
use longshore_protocol::limits::VALUE_SUBSCRIPTIONS_MAX;
use longshore_protocol::messages::values::{Policy, SubscribeValue, ValueRefusal};

use super::links::Stage;
use super::{Core, LinkNumber, LinkOutput, Misuse, SlotKey};

impl<O: LinkOutput> Core<O> {
    /// A link has come.
    pub(crate) fn link_up(&mut self, name: Arc<str>, outlet: O) -> LinkNumber {
        self.links.add(name, outlet)
    }

    /// A link has gone. What it followed is given to [`Core::leave`], some at a time.
    pub(crate) fn link_down(&mut self, number: LinkNumber) -> Vec<SlotKey> {
        let Some(link) = self.links.remove(number) else { return Vec::new() };
        let stand = |subscription: &super::links::Subscription| match subscription.stage {
            Stage::Stands(key, _) => Some(key),
            _ => None,
        };
        link.subscriptions.iter().filter_map(stand).collect()
    }

    /// A link that has gone follows these no more.
    pub(crate) fn leave(&mut self, number: LinkNumber, keys: &[SlotKey]) {
        for key in keys {
            self.move_to_set(*key, number, false);
        }
    }

    /// A link subscribes; the answer goes into its line.
    pub(crate) fn subscribe(
        &mut self,
        number: LinkNumber,
        wanted: SubscribeValue,
        is_queue: impl FnOnce(&Path) -> bool,
        now: Instant,
    ) -> Result<(), Misuse> {
        let SubscribeValue { subscription, path, policy } = wanted;
        let Some(link) = self.links.get_mut(number) else { return Ok(()) };
        if subscription as usize >= VALUE_SUBSCRIPTIONS_MAX {
            link.refuse(subscription, ValueRefusal::TooMany, None)?;
            self.lined_up.push(number);
            return Ok(());
        }
        let place = link.place(subscription)?;
        if let Some(&slot) = self.by_path.get(&path) {
            let generation = self.slots.get(slot as usize).map_or(0, |held| held.generation);
            self.join(number, subscription, SlotKey { slot, generation }, policy);
            return Ok(());
        }
        place.stage = Stage::Asked(path.clone(), policy);
        let refusal = match self.ask(&path, (number, subscription), now) {
            Ok(true) => return Ok(()),
            Ok(false) if is_queue(&path) => ValueRefusal::IsQueue,
            Ok(false) => ValueRefusal::NotHere,
            Err(refusal) => refusal,
        };
        if let Some(link) = self.links.get_mut(number) {
            link.refuse(subscription, refusal, None)?;
            self.lined_up.push(number);
        }
        Ok(())
    }

    /// A link wants these no more.
    pub(crate) fn unsubscribe(&mut self, number: LinkNumber, subscriptions: &[u32]) {
        for subscription in subscriptions {
            let Some(link) = self.links.get_mut(number) else { return };
            if let Some(key) = link.unsubscribe(*subscription) {
                self.move_to_set(key, number, false);
            }
        }
        self.pump(number);
    }

    /// Says all that was put into lines.
    pub(crate) fn pump_all(&mut self) {
        self.lined_up.sort_unstable();
        self.lined_up.dedup();
        self.pump_lined_up();
    }

    /// A subscription is to stand at a value.
    pub(super) fn join(
        &mut self,
        number: LinkNumber,
        subscription: u32,
        key: SlotKey,
        policy: Policy,
    ) {
        let Some(link) = self.links.get_mut(number) else { return };
        let other = link.by_slot.get(&key.slot).and_then(|other| {
            match link.subscriptions.get(*other as usize)?.stage {
                Stage::Joining(of, _) | Stage::Stands(of, _) => (of == key).then_some(*other),
                _ => None,
            }
        });
        if other.is_some() {
            if let Err(misuse) = link.refuse(subscription, ValueRefusal::AlreadySubscribed, None) {
                link.end(misuse.to_string());
            }
        } else if let Some(joins) = link.subscriptions.get_mut(subscription as usize) {
            joins.stage = Stage::Joining(key, policy);
            link.by_slot.insert(key.slot, subscription);
            link.say_of(subscription);
        }
        self.lined_up.push(number);
    }
}
