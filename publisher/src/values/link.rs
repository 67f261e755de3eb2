//! What a value link says, and what is said to it once there is room. Decides nothing.

use std::sync::Arc;
use std::time::Duration;

use longshore_protocol::messages::HEARTBEAT;
use longshore_protocol::messages::values::{SubscribeValue, ToValuePublisher};
use longshore_protocol::{Messages, WireError};
use longshore_transport::{LinkEnd, LinkReceiver};
use tokio::time::timeout;

use super::core::{LinkNumber, Misuse};
use super::limits::{SUBSCRIBES_AT_A_TIME, VALUE_QUEUE_BYTES_MAX};
use super::wire::Wire;
use super::{Shared, now};

/// How long a link that is ended has to take what it was told last.
const FAREWELL_WAIT: Duration = Duration::from_secs(1);

/// Why a link is ended from here.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("malformed message: {0}")]
    Malformed(#[from] WireError),
    #[error(transparent)]
    Misuse(#[from] Misuse),
}

/// Reads until the link ends. What is wrong with what it says is the error.
pub(super) async fn read(
    shared: &Shared,
    number: LinkNumber,
    receiver: &mut LinkReceiver,
) -> Result<LinkEnd, Fault> {
    loop {
        let body = match receiver.recv().await {
            Ok(body) => body,
            Err(end) => return Ok(end),
        };
        for message in Messages::new(body) {
            let (tag, body) = message?;
            if tag == HEARTBEAT {
                continue;
            }
            match ToValuePublisher::decode(tag, body)? {
                Some(ToValuePublisher::Subscribe(wanted)) => {
                    subscribe(shared, number, wanted).await?;
                }
                Some(ToValuePublisher::Unsubscribe(numbers)) => {
                    for some in numbers.chunks(SUBSCRIBES_AT_A_TIME) {
                        shared.core.lock().unsubscribe(number, some);
                        tokio::task::yield_now().await;
                    }
                }
                Some(ToValuePublisher::Write(write)) => {
                    shared.with(|core| core.write(number, write, now()))?;
                }
                None => {}
            }
        }
    }
}

async fn subscribe(
    shared: &Shared,
    number: LinkNumber,
    wanted: Vec<SubscribeValue>,
) -> Result<(), Misuse> {
    let mut wanted = wanted.into_iter().peekable();
    while wanted.peek().is_some() {
        shared.with(|core| {
            let mut some = wanted.by_ref().take(SUBSCRIBES_AT_A_TIME);
            let all = some.try_for_each(|one| {
                core.subscribe(number, one, |path| shared.directory.is_queue(path), now())
            });
            core.pump_all();
            all
        })?;
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// Says what stands in the link's line whenever there is room, until the link has ended.
pub(super) async fn pump(shared: Arc<Shared>, number: LinkNumber, wire: Wire) {
    let sender = &wire.0.sender;
    let room = async {
        loop {
            wire.0.waits.notified().await;
            if sender.ready(VALUE_QUEUE_BYTES_MAX / 2).await.is_err() {
                return;
            }
            shared.core.lock().pump(number);
        }
    };
    tokio::select! {
        () = room => {}
        () = wire.0.ending.cancelled() => {
            if timeout(FAREWELL_WAIT, sender.closed()).await.is_err() {
                sender.cut("it did not take its farewell");
            }
        }
        _ = sender.closed() => {}
    }
}
