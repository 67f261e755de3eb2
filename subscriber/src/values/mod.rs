//! Live values: followed at one publisher each, over one link to each publisher.
//!
//! The cores have no clock, socket or randomness of their own: `ranking` (which publishers, in which
//! order), `retries` (when to try again), `table` with `sinks`, `holders` and `kept` (what a link
//! holds, and where its updates go), `writes`. `race` tries publishers beside each other, `batch`
//! one after the other; `manager` and `link` are the tasks around them; `net` is the world that
//! they act on.

mod backlog;
mod connection_manager;
mod event;
mod handles;
mod link;
mod local_subscriptions;
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

pub use event::{Event, KeyedEvent, SubscriptionKey};
pub use handles::{DurableValue, ValueSubscription};
pub use subscriber::{
    CallError, SUBSCRIBE_WAIT, SubscribeError, SubscribeOptions, Subscriber, SubscriberOptions,
};
pub use subscription_core::ValueState;
pub use updates::{UPDATES_BYTES_MAX, UPDATES_MAX, Updates, UpdatesSink};
pub use writes::{WRITE_QUEUE_BYTES_MAX, WriteError};

#[cfg(test)]
mod scenarios;
