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

async fn next_value(subscription: &mut DurableValue) -> u64 {
    loop {
        match subscription.next().await {
            Some(Event::Update(Value::U64(n))) => return n,
            Some(Event::Dead(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

async fn update(subscription: &mut ValueSubscription, expected: u64) {
    assert_eq!(subscription.next().await, Some(Event::Update(Value::U64(expected))));
}

async fn death(subscription: &mut ValueSubscription) -> String {
    loop {
        match subscription.next().await {
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
