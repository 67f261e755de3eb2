//! Subscriptions to values: their start and end.

use crate::fields::{codes, fields};
use crate::path::Path;
use crate::value::Value;

fields! {
    /// A subscription to a value.
    pub struct SubscribeValue {
        /// The subscriber's number for it: the lowest that is free on its link. A number is free if
        /// it was never used, or if the publisher has ended or refused its subscription.
        pub subscription: u32,
        /// The path of the value.
        pub path: Path,
        /// How to handle updates while the subscriber is too slow.
        pub policy: Policy,
    }

    /// An active subscription.
    pub struct Subscribed {
        /// The subscriber's number for it.
        pub subscription: u32,
        /// The publisher's number for it, which identifies its updates on this link until it ends.
        pub number: u32,
        /// The current value at this position among the updates.
        pub value: Value,
    }

    /// A subscription that has ended.
    #[derive(Copy)]
    pub struct SubscriptionEnded {
        /// The subscription.
        pub subscription: u32,
        /// The reason.
        pub end: SubscriptionEnd,
    }
}

codes! {
    /// How to handle a value's updates while a subscriber is too slow.
    /// [`Conflate`](Policy::Conflate) by default.
    Policy, "policy" {
        /// The newest value is sent when there is room; superseded values are dropped. The last
        /// value always arrives.
        Conflate = 1, "conflate";
        /// Up to 1,024 updates are queued, in order; beyond that, the oldest are dropped. The last
        /// value always arrives.
        DropOldest = 2, "drop oldest";
        /// No update is dropped: without room, the subscription ends, and the other subscriptions
        /// of the link continue.
        Disconnect = 3, "disconnect";
    }
}

codes! {
    /// Why a subscription to a value is refused.
    ValueRefusal, "value refusal" {
        /// The publisher has no such value, and no default for it.
        NotHere = 1, "the publisher has no such value; resolve the path again";
        /// The path is a queue.
        IsQueue = 2, "the path is a queue; subscribe to its jobs instead";
        /// The link has reached its limit of subscriptions.
        TooMany = 3, "the link has reached its limit of subscriptions";
        /// The link already has a subscription to this value.
        AlreadySubscribed = 4, "the link has a subscription to this value already";
        /// The program that declared the default declined to create the value.
        Declined = 5, "the publisher's program does not make this value";
        /// The program that declared the default did not answer in time, or has too many open
        /// requests.
        NoAnswer = 6, "the publisher's program did not answer in time; try again";
        /// The publisher's policy does not allow the client to read the path.
        Forbidden = 7, "the publisher's policy does not allow this client to read the value";
    }
}

codes! {
    /// Why a subscription ended.
    SubscriptionEnd, "subscription end" {
        /// The publisher no longer publishes the value.
        Unpublished = 1, "the value is no longer published";
        /// The subscriber unsubscribed.
        Unsubscribed = 2, "unsubscribed";
        /// The subscriber read too slowly, and its policy does not allow dropped updates.
        TooSlow = 3, "updates came faster than they were read, and the policy leaves out none";
    }
}
