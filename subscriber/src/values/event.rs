//! What a subscription tells.

use std::sync::Arc;

use longshore_protocol::Value;

/// Which subscription of a [`crate::Subscriber`] an update is for; no two have the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SubscriptionKey(pub(crate) u64);

/// What a subscription tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The value: first as it was when the subscription was made, then each new one.
    Update(Value),
    /// The subscription is not held any more, and why. The end of one that is not durable; a
    /// durable one is tried again, and its next update says that it is held.
    Dead(Arc<str>),
}

/// What [`crate::Updates`] hands out, in order.
pub type KeyedEvent = (SubscriptionKey, Event);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_and_its_key_are_six_words() {
        assert_eq!(size_of::<KeyedEvent>(), 48);
    }
}
