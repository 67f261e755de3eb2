//! Messages of a *value* link, between a publisher and subscribers of its live values.
//!
//! The subscriber sends the first message, [`ToValuePublisher::Subscribe`]. The publisher answers
//! each subscription with the value and a number; updates contain only that number and the new
//! value.

mod subscribe;
mod updates;
mod write;

pub use subscribe::{
    Policy, SubscribeValue, Subscribed, SubscriptionEnd, SubscriptionEnded, ValueRefusal,
};
pub use updates::{Updates, UpdatesIter, UpdatesWriter};
pub use write::{WriteRefusal, WriteRefused, WriteValue, Written};

use crate::fields::messages;
use crate::limits::{REASON_BYTES_MAX, VALUE_BATCH_MAX};

messages! {
    /// The tags. 1 is [`crate::messages::HEARTBEAT`].
    pub mod tag {
    }

    /// What a subscriber sends to a publisher of values.
    pub enum ToValuePublisher {
        /// Subscribes to values. Each is answered by [`FromValuePublisher::Subscribed`] or
        /// [`FromValuePublisher::Refused`].
        SUBSCRIBE_VALUES = 90 => Subscribe(
            subscriptions: Vec<SubscribeValue> = at_most("subscriptions", VALUE_BATCH_MAX)
        ),
        /// Ends subscriptions. Each active one is answered by [`FromValuePublisher::Ended`].
        UNSUBSCRIBE_VALUES = 91 => Unsubscribe(
            subscriptions: Vec<u32> = at_most("subscriptions", VALUE_BATCH_MAX)
        ),
        /// Sends a value to the publisher's program.
        WRITE_VALUE = 92 => Write(write: WriteValue),
    }

    /// What a publisher of values sends to a subscriber.
    pub enum FromValuePublisher {
        /// Subscriptions have become active, each with its current value.
        SUBSCRIBED = 110 => Subscribed(
            subscribed: Vec<Subscribed> = at_most("subscriptions", VALUE_BATCH_MAX)
        ),
        /// A subscription was refused; its number is free again.
        VALUE_REFUSED = 111 => Refused {
            /// The subscription.
            subscription: u32,
            /// The reason for programs.
            code: ValueRefusal,
            /// The reason for people.
            reason: String = cut("reason", REASON_BYTES_MAX),
        },
        /// New values, in order.
        UPDATES = 112 => Updates(updates: Updates = body()),
        /// Subscriptions have ended; their numbers are free again.
        ENDED = 113 => Ended(
            ended: Vec<SubscriptionEnded> = at_most("subscriptions", VALUE_BATCH_MAX)
        ),
        /// The answer to a write that requested one.
        VALUE_WRITTEN = 114 => Written(written: Written),
        /// The publisher is about to close the link.
        VALUES_GOODBYE = 115 => Goodbye {
            /// The reason, for people.
            reason: String = cut("reason", REASON_BYTES_MAX),
        },
    }
}
