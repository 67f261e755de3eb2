//! Live values: followed at one publisher each, over one link to each publisher.
//!
//! The cores have no clock, socket or randomness of their own: `choice` (which publishers, in which
//! order), `retries` (when to try again), `table` with `sinks`, `holders` and `kept` (what a link
//! holds, and where its updates go), `writes`. `race` tries publishers beside each other, `party`
//! one after the other; `director` and `link` are the tasks around them; `net` is the world that
//! they act on.

/// What counts as for ever: a clock cannot count to any end.
const FOR_EVER: std::time::Duration = std::time::Duration::from_secs(30 * 365 * 24 * 3_600);

mod behind;
mod choice;
mod director;
mod event;
mod holders;
mod kept;
mod link;
mod net;
mod party;
mod race;
mod retries;
mod sinks;
mod sub;
mod subscriber;
mod subscription;
mod table;
mod updates;
mod writes;

pub use event::{Event, KeyedEvent, SubscriptionKey};
pub use sub::ValueState;
pub use subscriber::{
    CallError, SUBSCRIBE_WAIT, SubscribeError, SubscribeOptions, Subscriber, SubscriberOptions,
};
pub use subscription::{DurableValue, ValueSubscription};
pub use updates::{UPDATES_BYTES_MAX, UPDATES_MAX, Updates, UpdatesSink};
pub use writes::{WRITE_QUEUE_BYTES_MAX, WriteError};

#[cfg(test)]
mod scenarios;
