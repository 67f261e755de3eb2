//! Subscribers of values on a simulated network, in virtual time.

mod fault_tolerance;
mod harness;
mod matching;
mod placement;
mod random_disconnects;
mod slow_readers;
mod writes;

use std::time::Duration;

use longshore_protocol::Value;

use super::{DurableValue, Event, SubscribeOptions, ValueState, ValueSubscription};

const TICK: Duration = Duration::from_nanos(1);

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn default_options() -> SubscribeOptions {
    SubscribeOptions::default()
}

/// Lets all tasks run until they wait. No virtual time passes except what the tasks sleep.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// Fails the test if the future takes longer than an hour of virtual time.
async fn within_an_hour<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(seconds(3_600), what).await.expect("it happens within an hour")
}

async fn next_value(subscription: &mut DurableValue) -> u64 {
    loop {
        match within_an_hour(subscription.next()).await {
            Some(Event::Update(Value::U64(n))) => return n,
            Some(Event::Dead(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

async fn expect_update(subscription: &mut ValueSubscription, expected: u64) {
    assert_eq!(
        within_an_hour(subscription.next()).await,
        Some(Event::Update(Value::U64(expected)))
    );
}

async fn end_reason(subscription: &mut ValueSubscription) -> String {
    loop {
        match within_an_hour(subscription.next()).await {
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
