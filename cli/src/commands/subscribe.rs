//! `longshore value subscribe`: prints live values as they change.

use std::collections::BTreeSet;

use longshore::values::{DurableValue, Event, MatchEvent, Policy, Subscriber, ValueState};
use longshore::{Glob, Path, Value};
use serde_json::json;

use super::{Context, value_text, warn_if_incomplete};
use crate::arguments::Subscribe;
use crate::failure::AlreadyReported;
use crate::output::{Output, printable};
use crate::signals::StopSignal;

pub(crate) async fn run(arguments: Subscribe, mut context: Context) -> anyhow::Result<()> {
    let stop = StopSignal::listen()?;
    let Subscribe { pattern, count, once } = arguments;
    let subscriber = Subscriber::connect(context.cluster());
    match pattern.literal() {
        Some(path) if once => {
            let mut subscription = tokio::select! {
                subscription = subscriber.subscribe(path.clone()) => subscription?,
                () = stop.requested() => return stop.ended(true),
            };
            let first = tokio::select! {
                first = subscription.next() => first,
                () = stop.requested() => return stop.ended(true),
            };
            match first {
                Some(Event::Update(value)) => print(&mut context.output, &path, &value),
                Some(Event::Dead(why)) => anyhow::bail!("{path}: {why}"),
                None => anyhow::bail!("{path}: the subscription ended before its value arrived"),
            }
        }
        Some(path) => {
            let value = subscriber.durable_subscribe(path);
            follow_one(value, count, stop, context).await
        }
        None => follow_matching(subscriber, pattern, count, once, stop, context).await,
    }
}

fn print(output: &mut Output, path: &Path, value: &Value) -> anyhow::Result<()> {
    if output.is_json() {
        let value = value_text::to_json(value);
        output.json(&json!({ "path": path.as_str(), "value": value }))?;
    } else {
        output.line(format!("{} {value}", printable(path.as_str())))?;
    }
    Ok(())
}

/// Follows one value, and reports changes of the subscription's state.
async fn follow_one(
    mut value: DurableValue,
    count: Option<u64>,
    stop: StopSignal,
    mut context: Context,
) -> anyhow::Result<()> {
    let mut left = count.unwrap_or(u64::MAX);
    let path = value.path().clone();
    let mut state = value.watch_state();
    while left > 0 {
        tokio::select! {
            event = value.next() => match event {
                Some(Event::Update(value)) => {
                    print(&mut context.output, &path, &value)?;
                    left -= 1;
                }
                // The state has the details.
                Some(Event::Dead(_)) => {}
                None => return Ok(()),
            },
            changed = state.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
                match &*state.borrow_and_update() {
                    ValueState::Pending => {}
                    ValueState::Alive { publisher, .. } => {
                        report!("{path}: subscribed at publisher {}", publisher.prefix());
                    }
                    ValueState::Dead { reason, attempt: 1, .. } => {
                        report!("{path}: {reason}; retrying until it is available");
                    }
                    ValueState::Dead { .. } => {}
                }
            }
            () = stop.requested() => return stop.ended(count.is_some()),
        }
    }
    Ok(())
}

/// Follows all values that match a pattern, as they are added and removed. With `once`, prints the
/// current value of each, and ends.
async fn follow_matching(
    subscriber: Subscriber,
    pattern: Glob,
    count: Option<u64>,
    once: bool,
    stop: StopSignal,
    mut context: Context,
) -> anyhow::Result<()> {
    let mut matching = subscriber.durable_subscribe_matching(pattern.clone(), Policy::Conflate);
    let mut left = count.unwrap_or(u64::MAX);
    // Of those that are to be printed once: which have not been.
    let mut pending = BTreeSet::new();
    let (mut is_complete, mut any) = (false, false);
    while left > 0 && !(once && is_complete && pending.is_empty()) {
        let event = tokio::select! {
            event = matching.next() => event.transpose()?,
            () = stop.requested() => return stop.ended(once || count.is_some()),
        };
        match event {
            Some(MatchEvent::Arrived(path)) => {
                any = true;
                pending.insert(path);
            }
            Some(MatchEvent::Update(path, value)) => {
                if pending.remove(&path) || !once {
                    print(&mut context.output, &path, &value)?;
                    left -= 1;
                }
            }
            Some(MatchEvent::Dead(path, why)) => {
                pending.remove(&path);
                report!("{path}: {why}");
            }
            Some(MatchEvent::Gone(path)) => {
                pending.remove(&path);
            }
            Some(MatchEvent::Whole { complete }) => {
                is_complete = true;
                warn_if_incomplete(complete);
            }
            None => break,
        }
    }
    if once && !any {
        report_error!("no publisher has a value that matches '{pattern}'");
        return Err(AlreadyReported.into());
    }
    Ok(())
}
