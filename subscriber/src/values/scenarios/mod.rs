//! Subscribers of values in a world of the test's making, in virtual time.

mod chapter;
mod disconnects;
mod holding;
mod reading;
mod world;
mod writing;

use std::time::Duration;

use longshore_protocol::Value;

use super::{DurableValue, Event, SubscribeOptions, ValueState, ValueSubscription};

const TICK: Duration = Duration::from_nanos(1);

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn plain() -> SubscribeOptions {
    SubscribeOptions::default()
}

/// Lets everybody come to rest; no time passes but what tasks themselves wait for.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// What happens within an hour; what does not would never.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(seconds(3_600), what).await.expect("it happens within an hour")
}

async fn next_value(subscription: &mut DurableValue) -> u64 {
    loop {
        match soon(subscription.next()).await {
            Some(Event::Update(Value::U64(n))) => return n,
            Some(Event::Dead(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

async fn update(subscription: &mut ValueSubscription, expected: u64) {
    assert_eq!(soon(subscription.next()).await, Some(Event::Update(Value::U64(expected))));
}

async fn death(subscription: &mut ValueSubscription) -> String {
    loop {
        match soon(subscription.next()).await {
            Some(Event::Dead(reason)) => return reason.to_string(),
            Some(Event::Update(_)) => {}
            None => panic!("ended without a reason"),
        }
    }
}

fn attempts(state: &ValueState) -> u32 {
    match state {
        ValueState::Dead { attempt, .. } => *attempt,
        _ => 0,
    }
}
