//! Writes and their answers.

use longshore_protocol::Value;
use tokio::time::{Instant, sleep};

use super::harness::{Harness, path};
use super::*;
use crate::values::WriteError;

#[tokio::test(start_paused = true)]
async fn a_pending_write_does_not_delay_other_writes() {
    let harness = Harness::default();
    harness.publish(1, &[("/a", 1)]);
    let subscription =
        harness.subscriber(1).subscribe(path("/a"), &default_options()).await.unwrap();
    let slow = subscription.write_with_receipt(0u64, seconds(5));
    let fast = async {
        tokio::task::yield_now().await;
        let answers = [
            subscription.write_with_receipt(7u64, seconds(5)).await,
            subscription.write_with_receipt("seven", seconds(5)).await,
        ];
        harness.answer_writes(1);
        answers
    };
    let (slow, fast) = tokio::join!(slow, fast);
    assert_eq!(fast[0], Ok(Value::U64(8)));
    assert!(matches!(&fast[1], Err(WriteError::Refused(no)) if no.reason == "a number!"));
    assert!(slow.is_ok());
    subscription.write(3u64).unwrap();
}

#[tokio::test(start_paused = true)]
async fn writes_in_flight_at_a_disconnect_or_timeout_are_unknown() {
    let harness = Harness::default();
    harness.publish(1, &[("/a", 1)]);
    let subscription =
        harness.subscriber(1).subscribe(path("/a"), &default_options()).await.unwrap();
    let start = Instant::now();
    let late = subscription.write_with_receipt(0u64, seconds(5)).await;
    assert_eq!(late, Err(WriteError::TimedOut { after: seconds(5) }));
    assert!(start.elapsed() < seconds(5) + Duration::from_millis(5));
    let single = harness.subscriber(2).write(path("/a"), Value::U64(0), seconds(5)).await;
    assert_eq!(single, Err(WriteError::TimedOut { after: seconds(5) }), "with the time to link");
    let crash = async {
        settle().await;
        harness.crash(1);
    };
    let (lost, ()) = tokio::join!(subscription.write_with_receipt(0u64, seconds(5)), crash);
    assert_eq!(lost, Err(WriteError::Unknown("the other side closed the link".into())));
    assert_eq!(subscription.write(1u64), Err(WriteError::Dead));
    assert_eq!(subscription.write_with_receipt(1u64, seconds(5)).await, Err(WriteError::Dead));
}

#[tokio::test(start_paused = true)]
async fn a_dead_durable_subscription_refuses_writes_or_waits() {
    let harness = Harness::default();
    harness.publish(1, &[("/a", 1)]);
    let mut durable = harness.subscriber(1).durable_subscribe(path("/a"), &default_options());
    assert_eq!(durable.write(1u64), Err(WriteError::Dead));
    assert_eq!(next_value(&mut durable).await, 1);
    durable.write(1u64).unwrap();
    harness.crash(1);
    settle().await;
    assert_eq!(durable.write(1u64), Err(WriteError::Dead));
    let start = Instant::now();
    assert_eq!(durable.write_within(1u64, seconds(3)).await, Err(WriteError::Dead));
    assert!((3_000..3_010).contains(&start.elapsed().as_millis()));
    let back = async {
        sleep(seconds(3)).await;
        harness.publish(2, &[("/a", 2)]);
    };
    let (written, ()) = tokio::join!(durable.write_within(1u64, seconds(600)), back);
    assert_eq!(written, Ok(()));
}
