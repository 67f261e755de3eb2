//! Subscriptions to values: how they begin and end.

use crate::fields::{codes, fields};
use crate::path::Path;
use crate::value::Value;

fields! {
    /// A value to follow.
    pub struct SubscribeValue {
        /// The subscriber's number for it: the lowest that is free on its link. Free are those
        /// never used, and those that the publisher has ended or refused.
        pub subscription: u32,
        /// Where.
        pub path: Path,
        /// What becomes of updates that the subscriber is too slow for.
        pub policy: Policy,
    }

    /// A subscription that stands.
    pub struct Subscribed {
        /// The subscriber's number for it.
        pub subscription: u32,
        /// The publisher's number for it: what its updates on this link are called by until it
        /// ends.
        pub number: u32,
        /// The value as it is at this place among the updates.
        pub value: Value,
    }

    /// A subscription that stands no more.
    #[derive(Copy)]
    pub struct SubscriptionEnded {
        /// Which.
        pub subscription: u32,
        /// Why.
        pub end: SubscriptionEnd,
    }
}

codes! {
    /// What becomes of a value's updates that a subscriber is too slow for.
    /// [`Conflate`](Policy::Conflate) unless told otherwise.
    Policy, "policy" {
        /// The newest value is sent when there is room; what it supersedes is left out. The last
        /// value always arrives.
        Conflate = 1, "conflate";
        /// Up to 1,024 updates wait, in order; when there are more, the oldest are left out. The
        /// last value always arrives.
        DropOldest = 2, "drop oldest";
        /// None is left out: when there is no more room, the subscription ends, and others of the
        /// link go on.
        Disconnect = 3, "disconnect";
    }
}

codes! {
    /// Why a value cannot be followed.
    ValueRefusal, "value refusal" {
        /// The publisher has no such value, and no default for it.
        NotHere = 1, "the publisher has no such value; resolve the path again";
        /// The path holds jobs.
        IsQueue = 2, "the path is a queue; follow its jobs instead";
        /// The link has as many subscriptions as it may.
        TooMany = 3, "the link has as many subscriptions as it may";
        /// The link has a subscription to this value.
        AlreadySubscribed = 4, "the link has a subscription to this value already";
        /// The program that declared the default did not want to make it.
        Declined = 5, "the publisher's program does not make this value";
        /// The program that declared the default did not answer in time, or has too much to answer.
        NoAnswer = 6, "the publisher's program did not answer in time; try again";
    }
}

codes! {
    /// Why a subscription ended.
    SubscriptionEnd, "subscription end" {
        /// The value is no longer published here.
        Unpublished = 1, "the value is no longer published";
        /// The subscriber wanted it no more.
        Unsubscribed = 2, "unsubscribed";
        /// It was not read as fast as the value changed, and its policy leaves out no update.
        TooSlow = 3, "updates came faster than they were read, and the policy leaves out none";
    }
}
