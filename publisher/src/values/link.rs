//! A value link's tasks: one reads messages, one sends the backlog once there is room. They decide
//! nothing.

use std::sync::Arc;
use std::time::Duration;

use longshore_access::{Action, Rights};
use longshore_protocol::messages::HEARTBEAT;
use longshore_protocol::messages::values::{SubscribeValue, ToValuePublisher};
use longshore_protocol::{Messages, Path, WireError};
use longshore_transport::{LinkEnd, LinkReceiver};
use tokio::sync::watch;
use tokio::time::timeout;

use super::core::{LinkNumber, Violation};
use super::limits::{SUBSCRIBES_PER_LOCK, VALUE_QUEUE_BYTES_MAX};
use super::link_handle::LinkHandle;
use super::{Shared, now};

/// How long a link that is being ended has to send its goodbye.
const GOODBYE_WAIT: Duration = Duration::from_secs(1);

/// Why this side ends a link.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    #[error("malformed message: {0}")]
    Malformed(#[from] WireError),
    #[error(transparent)]
    Violation(#[from] Violation),
}

/// Reads until the link ends. A malformed or forbidden message is the error.
pub(super) async fn read(
    shared: &Shared,
    number: LinkNumber,
    receiver: &mut LinkReceiver,
    rights: &watch::Receiver<Arc<Rights>>,
) -> Result<LinkEnd, LinkError> {
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
                Some(ToValuePublisher::Subscribe(requests)) => {
                    let rights = rights.borrow().clone();
                    subscribe(shared, number, requests, &rights).await?;
                }
                Some(ToValuePublisher::Unsubscribe(numbers)) => {
                    for some in numbers.chunks(SUBSCRIBES_PER_LOCK) {
                        shared.core.lock().unsubscribe(number, some);
                        tokio::task::yield_now().await;
                    }
                }
                Some(ToValuePublisher::Write(write)) => {
                    let rights = rights.borrow().clone();
                    let may = |path: &Path| rights.may(Action::Write, path);
                    shared.with(|core| core.write(number, write, may, now()))?;
                }
                None => {}
            }
        }
    }
}

async fn subscribe(
    shared: &Shared,
    number: LinkNumber,
    requests: Vec<SubscribeValue>,
    rights: &Rights,
) -> Result<(), Violation> {
    let may = |path: &Path| rights.may(Action::Read, path);
    let mut requests = requests.into_iter().peekable();
    while requests.peek().is_some() {
        shared.with(|core| {
            let mut some = requests.by_ref().take(SUBSCRIBES_PER_LOCK);
            let all = some.try_for_each(|one| {
                core.subscribe(number, one, may, |path| shared.directory.is_queue(path), now())
            });
            core.pump_all();
            all
        })?;
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// Pumps the link's backlog whenever there is room, until the link has ended.
pub(super) async fn pump(shared: Arc<Shared>, number: LinkNumber, handle: LinkHandle) {
    let sender = &handle.0.sender;
    let room = async {
        loop {
            handle.0.waits.notified().await;
            if sender.ready(VALUE_QUEUE_BYTES_MAX / 2).await.is_err() {
                return;
            }
            shared.core.lock().pump(number);
        }
    };
    tokio::select! {
        () = room => {}
        () = handle.0.ending.cancelled() => {
            if timeout(GOODBYE_WAIT, sender.closed()).await.is_err() {
                sender.cut("the goodbye was not sent in time");
            }
        }
        _ = sender.closed() => {}
    }
}
