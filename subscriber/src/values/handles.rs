//! The handles of subscriptions. Dropped, each ends its subscription.

use std::sync::Arc;
use std::time::Duration;

use longshore_protocol::{Path, Value};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout_at};

use super::event::{Event, SubscriptionKey};
use super::subscription_core::{SubscriptionCore, SubscriptionKind, ValueState};
use super::updates::Updates;
use super::writes::WriteError;
use crate::connect::FAR_FUTURE;

/// A value that is followed until it is lost. Dropped, the subscription ends.
#[derive(Debug)]
pub struct ValueSubscription {
    handle: Handle,
    over: bool,
}

/// A value that is followed until this is dropped, at whichever publisher has it.
#[derive(Debug)]
pub struct DurableValue {
    handle: Handle,
}

/// What both are.
#[derive(Debug)]
struct Handle {
    sub: Arc<SubscriptionCore>,
    updates: Option<Updates>,
    /// Read, and not yet given out; the next at the end.
    read: Vec<Event>,
}

impl ValueSubscription {
    pub(crate) fn new(sub: Arc<SubscriptionCore>, updates: Option<Updates>) -> ValueSubscription {
        ValueSubscription { handle: Handle { sub, updates, read: Vec::new() }, over: false }
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.handle.sub.path
    }

    /// What [`Updates`] call it.
    pub fn key(&self) -> SubscriptionKey {
        self.handle.sub.key
    }

    /// The last value; also after the end.
    pub fn last(&self) -> Value {
        self.handle.sub.last().unwrap_or_default()
    }

    /// True until it is lost.
    pub fn is_alive(&self) -> bool {
        self.handle.sub.is_alive()
    }

    /// Waits for what happens next: first the value as it was found, then updates in order, then
    /// the end. `None` after the end, and if updates go elsewhere
    /// ([`SubscribeOptions::into`](crate::SubscribeOptions::into)). Cancel safe.
    pub async fn next(&mut self) -> Option<Event> {
        if self.over {
            return None;
        }
        let event = self.handle.next().await;
        self.over = matches!(event, Some(Event::Dead(_)) | None);
        event
    }

    /// Hands a value to the program that publishes this one, without an answer. Never waits. `Ok`
    /// says that it will be sent while the link holds, not that it was taken.
    pub fn write(&self, value: impl Into<Value>) -> Result<(), WriteError> {
        self.handle.sub.write(value.into(), None)
    }

    /// Hands a value to the program that publishes this one, and waits for its answer, at most
    /// `within`. Writes go side by side: none waits for the answer to another. Not cancel safe: of
    /// a call that was dropped, the write may have been made or not.
    pub async fn write_with_receipt(
        &self,
        value: impl Into<Value>,
        within: Duration,
    ) -> Result<Value, WriteError> {
        self.handle.write_with_receipt(value.into(), within).await
    }
}

impl DurableValue {
    pub(crate) fn new(sub: Arc<SubscriptionCore>, updates: Option<Updates>) -> DurableValue {
        DurableValue { handle: Handle { sub, updates, read: Vec::new() } }
    }

    pub(crate) fn sub(&self) -> &Arc<SubscriptionCore> {
        &self.handle.sub
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.handle.sub.path
    }

    /// What [`Updates`] call it.
    pub fn key(&self) -> SubscriptionKey {
        self.handle.sub.key
    }

    /// The last value that is known; while the subscription is dead, that from before. `None`
    /// before it was held for the first time.
    pub fn last(&self) -> Option<Value> {
        self.handle.sub.last()
    }

    /// How it stands.
    pub fn state(&self) -> ValueState {
        self.state_sender().map_or(ValueState::Pending, |state| state.borrow().clone())
    }

    /// The same, to be watched.
    pub fn watch_state(&self) -> watch::Receiver<ValueState> {
        // A durable subscription has one.
        self.state_sender()
            .map_or_else(|| watch::channel(ValueState::Pending).1, watch::Sender::subscribe)
    }

    /// Waits until it is held. Cancel safe.
    pub async fn alive(&self) {
        let mut state = self.watch_state();
        // Its sender lives as long as this handle.
        let _ = state.wait_for(|state| matches!(state, ValueState::Alive { .. })).await;
    }

    /// Waits for what happens next: each time that it is held the value as it was found, then
    /// updates in order; [`Event::Dead`] when it is lost, and then it is tried again. `None` only
    /// if updates go elsewhere. Cancel safe.
    pub async fn next(&mut self) -> Option<Event> {
        self.handle.next().await
    }

    /// Hands a value to the program that publishes this one, without an answer. Never waits;
    /// refused with [`WriteError::Dead`] while the subscription is dead. `Ok` says that it will be
    /// sent while the link holds, not that it was taken.
    pub fn write(&self, value: impl Into<Value>) -> Result<(), WriteError> {
        self.handle.sub.write(value.into(), None)
    }

    /// The same, but while the subscription is dead this waits for it to be held again, at most
    /// `within`; then it is [`WriteError::Dead`]. Cancel safe: nothing is kept, and a call that was
    /// dropped writes nothing.
    pub async fn write_within(
        &self,
        value: impl Into<Value>,
        within: Duration,
    ) -> Result<(), WriteError> {
        let value = value.into();
        let until = Instant::now() + within.min(FAR_FUTURE);
        let mut state = self.watch_state();
        loop {
            state.mark_unchanged();
            match self.handle.sub.write(value.clone(), None) {
                Err(WriteError::Dead) => {}
                outcome => return outcome,
            }
            if timeout_at(until, state.changed()).await.is_err() {
                return Err(WriteError::Dead);
            }
        }
    }

    /// Hands a value to the program that publishes this one, and waits for its answer, at most
    /// `within`. Refused at once while the subscription is dead. Writes go side by side: none waits
    /// for the answer to another. Not cancel safe: of a call that was dropped, the write may have
    /// been made or not.
    pub async fn write_with_receipt(
        &self,
        value: impl Into<Value>,
        within: Duration,
    ) -> Result<Value, WriteError> {
        self.handle.write_with_receipt(value.into(), within).await
    }

    fn state_sender(&self) -> Option<&watch::Sender<ValueState>> {
        match &self.handle.sub.kind {
            SubscriptionKind::Durable { state, .. } => Some(state),
            SubscriptionKind::Once(_) => None,
        }
    }
}

impl Handle {
    async fn next(&mut self) -> Option<Event> {
        if self.read.is_empty() {
            let batch = self.updates.as_mut()?.fill().await;
            self.read.extend(batch.drain(..).rev().map(|(_, event)| event));
        }
        self.read.pop()
    }

    async fn write_with_receipt(
        &self,
        value: Value,
        within: Duration,
    ) -> Result<Value, WriteError> {
        let until = Instant::now() + within.min(FAR_FUTURE);
        let (answer, answered) = oneshot::channel();
        self.sub.write(value, Some((answer, within)))?;
        match timeout_at(until, answered).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(WriteError::Unknown("the runtime has stopped".into())),
            Err(_) => Err(WriteError::Unknown(format!("no answer within {within:?}"))),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.sub.cancel();
    }
}
