//! Messages of a *value* link: between a publisher and those who follow its live values.
//!
//! The subscriber speaks first, by [`ToValuePublisher::Subscribe`]. The publisher answers each
//! subscription with the value and the number by which it calls it from then on; updates name that
//! number and nothing else.

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
        /// These values are to be followed. Each is answered by [`FromValuePublisher::Subscribed`]
        /// or [`FromValuePublisher::Refused`].
        SUBSCRIBE_VALUES = 90 => Subscribe(subscriptions: Vec<SubscribeValue> = at_most("subscriptions", VALUE_BATCH_MAX)),
        /// These subscriptions are wanted no more. Each that stands is answered by
        /// [`FromValuePublisher::Ended`].
        UNSUBSCRIBE_VALUES = 91 => Unsubscribe(subscriptions: Vec<u32> = at_most("subscriptions", VALUE_BATCH_MAX)),
        /// A value for the publisher's program to take.
        WRITE_VALUE = 92 => Write(write: WriteValue),
    }

    /// What a publisher of values sends to a subscriber.
    pub enum FromValuePublisher {
        /// These subscriptions stand, each with its value as it is now.
        SUBSCRIBED = 110 => Subscribed(subscribed: Vec<Subscribed> = at_most("subscriptions", VALUE_BATCH_MAX)),
        /// A subscription was not made; its number is free again.
        VALUE_REFUSED = 111 => Refused {
            /// Which.
            subscription: u32,
            /// For programs.
            code: ValueRefusal,
            /// For people.
            reason: String = cut("reason", REASON_BYTES_MAX),
        },
        /// New values, in their order.
        UPDATES = 112 => Updates(updates: Updates = body()),
        /// These subscriptions have ended; their numbers are free again.
        ENDED = 113 => Ended(ended: Vec<SubscriptionEnded> = at_most("subscriptions", VALUE_BATCH_MAX)),
        /// The answer to a write that asked for one.
        VALUE_WRITTEN = 114 => Written(written: Written),
        /// The publisher is about to close the link, and why.
        VALUES_GOODBYE = 115 => Goodbye {
            /// Why, for people.
            reason: String = cut("reason", REASON_BYTES_MAX),
        },
    }
}
