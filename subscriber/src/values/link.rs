//! The task of one link to one publisher of values, from the handshake to the end. It moves frames
//! and time between the connection and the subscription table.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use longshore_protocol::limits::FRAME_MESSAGES_MAX;
use longshore_protocol::messages::values::{FromValuePublisher, ToValuePublisher};
use longshore_protocol::{Frame, FrameWriter, Messages, PublisherId, Value};
use longshore_transport::SendError;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::event::SubscriptionKey;
use super::network::{FrameReceiver, FrameSender, SEND_QUEUE_BYTES};
use super::subscription_core::{LostSubscriptions, RefusalSender, SubscriptionCore};
use super::table::{ProtocolViolation, SubscriptionTable};
use super::writes::{AnswerSender, WriteError};

/// How long a link without subscriptions stays open, so that a caller that reads one value after
/// another dials once.
pub(crate) const IDLE_CLOSE_AFTER: Duration = Duration::from_secs(2);
/// The end reason of a link that was closed because it was idle.
pub(crate) const IDLE_REASON: &str = "closed: the link had no subscription";
/// A frame is sent once it has this many bytes.
const FRAME_BYTES: usize = 1024 * 1024;

/// The state that a link's task shares with the handles of its subscriptions.
#[derive(Debug)]
pub(crate) struct ValueLink {
    pub(crate) publisher: PublisherId,
    pub(crate) table: Mutex<SubscriptionTable>,
    wake: Notify,
}

/// How a link ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ValueLinkEnd {
    /// It had no subscription for a while.
    Idle,
    /// The connection was lost, or the publisher violated the protocol.
    Lost(Arc<str>),
}

impl ValueLink {
    pub(crate) fn new(publisher: PublisherId) -> Arc<ValueLink> {
        let table = Mutex::new(SubscriptionTable::new(publisher));
        Arc::new(ValueLink { publisher, table, wake: Notify::new() })
    }

    pub(crate) fn is_open(&self) -> bool {
        self.table.lock().closed().is_none()
    }

    /// Adds subscriptions. Those that the table or the publisher refuses are sent to `refusals`.
    pub(crate) fn subscribe(
        self: &Arc<ValueLink>,
        now: Duration,
        subs: &[Arc<SubscriptionCore>],
        refusals: &RefusalSender,
    ) {
        for some in subs.chunks(1_024) {
            // Locks per chunk, so that the link's task can read frames in between.
            let mut table = self.table.lock();
            for sub in some {
                if let Err(reason) = table.add(now, self, sub, refusals) {
                    let _ = refusals.send((sub.clone(), reason));
                }
            }
        }
        self.wake.notify_one();
    }

    pub(crate) fn unsubscribe(&self, sub: &SubscriptionCore) {
        let mut table = self.table.lock();
        // Read with the table locked: the slot may change until it is requested.
        if let Some((_, slot)) = sub.attached_slot() {
            table.remove(slot, sub.key);
        }
        drop(table);
        self.wake.notify_one();
    }

    pub(crate) fn write(
        &self,
        slot: u32,
        key: SubscriptionKey,
        value: Value,
        answer: Option<(AnswerSender, Duration)>,
    ) -> Result<(), WriteError> {
        let mut table = self.table.lock();
        if !table.is_active(slot, key) {
            return Err(WriteError::Dead);
        }
        table.writes.push(slot, value, answer)?;
        drop(table);
        self.wake.notify_one();
        Ok(())
    }

    /// Closes the table if it has no subscriptions, and returns whether it did.
    fn close_if_idle(&self) -> bool {
        let mut table = self.table.lock();
        if table.is_idle() {
            table.end(&IDLE_REASON.into());
        }
        table.is_idle()
    }
}

/// Serves the link until it ends. Calls `lost` with durable subscriptions whose value the publisher
/// no longer publishes. The caller ends the table.
pub(crate) async fn serve(
    link: &Arc<ValueLink>,
    wire: impl FrameSender,
    mut receiving: impl FrameReceiver,
    started: Instant,
    lost: impl Fn(LostSubscriptions),
) -> ValueLinkEnd {
    let mut idle_since = None;
    let mut unsent = None;
    loop {
        let ready_below = match send(link, &wire, &mut unsent) {
            Ok(ready_below) => ready_below,
            Err(error) => return ValueLinkEnd::Lost(error.to_string().into()),
        };
        let (idle, lost_here) = {
            let mut table = link.table.lock();
            (table.is_idle(), table.take_lost())
        };
        if !lost_here.is_empty() {
            lost(lost_here);
        }
        idle_since = if idle { idle_since.or(Some(Instant::now())) } else { None };
        let idle_ends = idle_since.map(|since| since + IDLE_CLOSE_AFTER);
        tokio::select! {
            frame = receiving.recv() => match frame {
                Ok(frame) => {
                    let taken = link.table.lock().take_frame(started.elapsed(), frame);
                    if let Err(broken) = taken {
                        let reason = broken.to_string();
                        wire.close(&reason);
                        return ValueLinkEnd::Lost(reason.into());
                    }
                }
                Err(reason) => return ValueLinkEnd::Lost(reason),
            },
            () = link.wake.notified() => {}
            () = wire.ready(ready_below.unwrap_or_default()), if ready_below.is_some() => {}
            () = sleep_until(idle_ends.unwrap_or_else(Instant::now)), if idle_ends.is_some() => {
                if idle_ends.is_some_and(|at| at <= Instant::now()) && link.close_if_idle() {
                    wire.close(IDLE_REASON);
                    return ValueLinkEnd::Idle;
                }
            }
        }
    }
}

/// Sends the table's messages. If the connection is congested and messages remain, returns how
/// short its send queue has to be before the next call. `unsent` is a frame that found no room.
fn send(
    link: &ValueLink,
    wire: &impl FrameSender,
    unsent: &mut Option<Frame>,
) -> Result<Option<usize>, SendError> {
    loop {
        if wire.is_congested() {
            return Ok(Some(SEND_QUEUE_BYTES));
        }
        let next = unsent.take().or_else(|| next_frame(&mut link.table.lock()));
        let Some(frame) = next else { return Ok(None) };
        match wire.send(frame.clone()) {
            Ok(()) => {}
            // The queue's own limit may be lower than `SEND_QUEUE_BYTES`. Only an empty queue takes
            // a frame of any length.
            Err(SendError::Full { .. }) => {
                *unsent = Some(frame);
                return Ok(Some(1));
            }
            Err(error) => return Err(error),
        }
    }
}

/// The next frame of the table's messages, if there are any.
fn next_frame(table: &mut SubscriptionTable) -> Option<Frame> {
    let (mut frame, mut messages) = (FrameWriter::new(), 0);
    while frame.body_len() < FRAME_BYTES
        && messages < FRAME_MESSAGES_MAX
        && let Some(message) = table.outgoing()
    {
        ToValuePublisher::encode(&message, &mut frame);
        messages += 1;
    }
    (!frame.is_empty()).then(|| frame.finish())
}

impl SubscriptionTable {
    /// Handles all messages of a frame.
    pub(crate) fn take_frame(
        &mut self,
        now: Duration,
        frame: Bytes,
    ) -> Result<(), ProtocolViolation> {
        let bytes = frame.len();
        for message in Messages::new(frame) {
            let (tag, body) = message?;
            if let Some(message) = FromValuePublisher::decode(tag, body)? {
                self.handle(now, message, bytes)?;
            }
        }
        self.deliver_staged(bytes);
        Ok(())
    }
}
