//! The handles of subscriptions. Dropping a handle unsubscribes.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::Stream;
use longshore_protocol::{Path, Value};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout_at};

use super::event::{Event, SubscriptionKey};
use super::subscription_core::{SubscriptionCore, SubscriptionKind, ValueState};
use super::updates::Updates;
use super::writes::WriteError;
use crate::connect::FAR_FUTURE;

/// A subscription that ends when its link or its value is lost. Dropping it unsubscribes. As a
/// `Stream` it has the items of [`next`](ValueSubscription::next).
#[derive(Debug)]
pub struct ValueSubscription {
    handle: Handle,
    over: bool,
}

/// A subscription that is retried at every publisher of the value until it is dropped. As a
/// `Stream` it has the items of [`next`](DurableValue::next).
#[derive(Debug)]
pub struct DurableValue {
    handle: Handle,
}

/// The part that both handles share.
#[derive(Debug)]
struct Handle {
    sub: Arc<SubscriptionCore>,
    updates: Option<Updates>,
}

impl ValueSubscription {
    pub(crate) fn new(sub: Arc<SubscriptionCore>, updates: Option<Updates>) -> ValueSubscription {
        ValueSubscription { handle: Handle { sub, updates }, over: false }
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.handle.sub.path
    }

    /// The key of this subscription's events in [`Updates`].
    pub fn key(&self) -> SubscriptionKey {
        self.handle.sub.key
    }

    /// The last value; also available after the end.
    pub fn last(&self) -> Value {
        self.handle.sub.last().unwrap_or_default()
    }

    /// True until the subscription is lost.
    pub fn is_alive(&self) -> bool {
        self.handle.sub.is_alive()
    }

    /// Waits for the next event: first the current value, then updates in order, then the end.
    /// Returns `None` after the end, and if updates go to a sink
    /// ([`SubscribeOptions::into`](crate::SubscribeOptions::into)). Cancel safe.
    pub async fn next(&mut self) -> Option<Event> {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        if self.over {
            return Poll::Ready(None);
        }
        let event = ready!(self.handle.poll(context));
        self.over = matches!(event, Some(Event::Dead(_)) | None);
        Poll::Ready(event)
    }

    /// Sends a value to the program that publishes this one, without an answer. Never waits. `Ok`
    /// means that the write is queued on the link, not that the program accepted it.
    pub fn write(&self, value: impl Into<Value>) -> Result<(), WriteError> {
        self.handle.sub.write(value.into(), None)
    }

    /// Sends a value to the program that publishes this one, and waits for its answer, at most
    /// `within`. Writes are concurrent: none waits for the answer to another. Not cancel safe: if
    /// the future is dropped, the write may or may not have been made.
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
        DurableValue { handle: Handle { sub, updates } }
    }

    pub(crate) fn sub(&self) -> &Arc<SubscriptionCore> {
        &self.handle.sub
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.handle.sub.path
    }

    /// The key of this subscription's events in [`Updates`].
    pub fn key(&self) -> SubscriptionKey {
        self.handle.sub.key
    }

    /// The last known value; while the subscription is dead, the value before it was lost. `None`
    /// until the subscription is alive for the first time.
    pub fn last(&self) -> Option<Value> {
        self.handle.sub.last()
    }

    /// The current state.
    pub fn state(&self) -> ValueState {
        self.state_sender().map_or(ValueState::Pending, |state| state.borrow().clone())
    }

    /// The state as a watch channel.
    pub fn watch_state(&self) -> watch::Receiver<ValueState> {
        // Every durable subscription has a state sender.
        self.state_sender()
            .map_or_else(|| watch::channel(ValueState::Pending).1, watch::Sender::subscribe)
    }

    /// Waits until the subscription is alive. Cancel safe.
    pub async fn alive(&self) {
        let mut state = self.watch_state();
        // The sender lives as long as this handle.
        let _ = state.wait_for(|state| matches!(state, ValueState::Alive { .. })).await;
    }

    /// Waits for the next event: the current value each time that the subscription becomes alive,
    /// then updates in order, and [`Event::Dead`] when it is lost and will be retried. Returns
    /// `None` only if updates go to a sink. Cancel safe.
    pub async fn next(&mut self) -> Option<Event> {
        poll_fn(|context| self.handle.poll(context)).await
    }

    /// Sends a value to the program that publishes this one, without an answer. Never waits; fails
    /// with [`WriteError::Dead`] while the subscription is dead. `Ok` means that the write is
    /// queued on the link, not that the program accepted it.
    pub fn write(&self, value: impl Into<Value>) -> Result<(), WriteError> {
        self.handle.sub.write(value.into(), None)
    }

    /// Like [`write`](DurableValue::write), but waits up to `within` for a dead subscription to
    /// become alive, then fails with [`WriteError::Dead`]. Cancel safe: a dropped call writes
    /// nothing.
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

    /// Sends a value to the program that publishes this one, and waits for its answer, at most
    /// `within`. Fails at once while the subscription is dead. Writes are concurrent: none waits
    /// for the answer to another. Not cancel safe: if the future is dropped, the write may or may
    /// not have been made.
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
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        match &mut self.updates {
            Some(updates) => updates.poll_one(context).map(|(_, event)| Some(event)),
            None => Poll::Ready(None),
        }
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
            Err(_) => Err(WriteError::TimedOut { after: within }),
        }
    }
}

impl Stream for ValueSubscription {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.poll(context)
    }
}

impl Stream for DurableValue {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.handle.poll(context)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.sub.cancel();
    }
}
