//! A value link's tasks: one reads messages, one sends the backlog once there is room. They decide
//! nothing.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use longshore_access::{Action, Rights};
use longshore_protocol::messages::HEARTBEAT;
use longshore_protocol::messages::values::{SubscribeValue, ToValuePublisher};
use longshore_protocol::{Messages, Path, WireError};
use longshore_transport::{LinkAudit, LinkEnd, LinkReceiver, LinkSender};
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

/// What a link's client may do.
pub(super) struct ClientAccess {
    pub(super) rights: watch::Receiver<Arc<Rights>>,
    pub(super) audit: LinkAudit,
}

impl ClientAccess {
    /// Checks paths against the present rights. `denied` receives the last one that is denied.
    fn checks<'a>(
        &self,
        action: Action,
        denied: &'a Cell<Option<Path>>,
    ) -> impl Fn(&Path) -> bool + use<'a> {
        let rights = self.rights.borrow().clone();
        move |path| {
            let may = rights.may(action, path);
            if !may {
                denied.set(Some(path.clone()));
            }
            may
        }
    }

    /// Records in the audit log what was denied. A refusal of many paths names one of them.
    fn record(&self, action: Action, denied: &Cell<Option<Path>>) {
        if let Some(path) = denied.take() {
            let what = match action {
                Action::Write => "write a value",
                _ => "subscribe to a value",
            };
            self.audit.refuse(action, || (path.to_string(), what.to_owned()));
        }
    }
}

/// Reads until the link ends. A malformed or forbidden message is the error.
pub(super) async fn read(
    shared: &Shared,
    number: LinkNumber,
    (sender, receiver): (&LinkSender, &mut LinkReceiver),
    access: ClientAccess,
) -> Result<LinkEnd, LinkError> {
    loop {
        let body = match receiver.recv().await {
            Ok(body) => body,
            Err(end) => return Ok(end),
        };
        for message in Messages::new(body) {
            let (tag, body) = message?;
            // The client may have lost rights.
            if sender.was_cut() {
                break;
            }
            if tag == HEARTBEAT {
                continue;
            }
            match ToValuePublisher::decode(tag, body)? {
                Some(ToValuePublisher::Subscribe(requests)) => {
                    subscribe(shared, number, requests, &access).await?;
                }
                Some(ToValuePublisher::Unsubscribe(numbers)) => {
                    for some in numbers.chunks(SUBSCRIBES_PER_LOCK) {
                        shared.core.lock().unsubscribe(number, some);
                        tokio::task::yield_now().await;
                    }
                }
                Some(ToValuePublisher::Write(write)) => {
                    let denied = Cell::default();
                    let may = access.checks(Action::Write, &denied);
                    shared.with(|core| core.write(number, write, may, now()))?;
                    access.record(Action::Write, &denied);
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
    access: &ClientAccess,
) -> Result<(), Violation> {
    let mut requests = requests.into_iter();
    while requests.len() > 0 {
        subscribe_some(shared, number, requests.by_ref().take(SUBSCRIBES_PER_LOCK), access)?;
        tokio::task::yield_now().await;
    }
    Ok(())
}

fn subscribe_some(
    shared: &Shared,
    number: LinkNumber,
    mut requests: impl Iterator<Item = SubscribeValue>,
    access: &ClientAccess,
) -> Result<(), Violation> {
    let denied = Cell::default();
    let may = access.checks(Action::Read, &denied);
    let is_queue = |path: &Path| shared.directory.is_queue(path);
    let all = shared.with(|core| {
        let all = requests.try_for_each(|one| core.subscribe(number, one, &may, is_queue, now()));
        core.pump_all();
        all
    });
    access.record(Action::Read, &denied);
    all
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
