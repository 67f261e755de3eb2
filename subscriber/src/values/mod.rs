//! Live values. Each subscription follows a value at one publisher; each publisher has one link.
//!
//! | Module | Content |
//! |---|---|
//! | [`subscriber`], [`handles`], [`event`], [`call`] | the API |
//! | [`matching`] | subscriptions to all values that match a glob |
//! | [`connection_manager`] | resolves, ranks and connects; schedules retries |
//! | [`ranking`], [`retries`] | pure: the order of publishers, the time of the next attempt |
//! | [`subscribe_batch`], [`race`] | tasks: one publisher after another, and several in parallel |
//! | [`link`] | the task of one link |
//! | [`table`], [`local_subscriptions`], [`retained`], [`writes`] | pure: the state of one link |
//! | [`sinks`], [`updates`], [`backlog`] | the way of updates from a link to its readers |
//! | [`subscription_core`] | one subscription, shared by handle, link and connection manager |
//! | [`network`] | the resolver and links behind traits |

mod backlog;
mod call;
mod connection_manager;
mod event;
mod handles;
mod link;
mod local_subscriptions;
mod matching;
mod network;
mod race;
mod ranking;
mod retained;
mod retries;
mod sinks;
mod subscribe_batch;
mod subscriber;
mod subscription_core;
mod table;
mod updates;
mod writes;

pub use call::CallError;
pub use event::{Event, KeyedEvent, SubscriptionKey};
pub use handles::{DurableValue, ValueSubscription};
pub use matching::{MATCHING_UPDATES_MAX, MatchEvent, MatchingValues};
pub use subscriber::{
    SUBSCRIBE_WAIT, SubscribeError, SubscribeOptions, Subscriber, SubscriberBuilder,
};
pub use subscription_core::ValueState;
pub use updates::{UPDATES_BYTES_MAX, UPDATES_MAX, Updates, UpdatesSink};
pub use writes::{WRITE_QUEUE_BYTES_MAX, WriteError};

#[cfg(test)]
mod scenarios;
