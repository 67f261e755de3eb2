//! The events of a subscription.

use std::sync::Arc;

use longshore_protocol::Value;

/// Identifies a subscription of a [`crate::Subscriber`]. Unique within the subscriber.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SubscriptionKey(pub(crate) u64);

/// An event of a subscription.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A value: first the current one, then each update.
    Update(Value),
    /// The subscription was lost, for this reason. A subscription that is not durable ends; a
    /// durable one is retried, and its next `Update` reports that it is alive again.
    Dead(Arc<str>),
}

/// An item of [`crate::Updates`].
pub type KeyedEvent = (SubscriptionKey, Event);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keyed_event_takes_48_bytes() {
        assert_eq!(size_of::<KeyedEvent>(), 48);
    }
}
