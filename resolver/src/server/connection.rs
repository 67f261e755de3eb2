//! One connection: forwards its frames to the server loop, in order.

use std::pin::pin;
use std::sync::Arc;

use longshore_access::Rights;
use longshore_protocol::Role;
use longshore_protocol::frame::Messages;
use longshore_transport::{Link, LinkEnd, LinkReceiver, LinkSender};
use tokio::sync::{Semaphore, mpsc, watch};

use crate::directory::Client;
use crate::replica_link::now;
use crate::server::access::ClientAccess;
use crate::server::server_loop::Event;

/// The longest frame that a client may send, in bytes: several of the largest requests.
pub(super) const FRAME_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Bytes of unanswered frames of one connection: four of the longest. Above that it is not read.
pub(super) const UNANSWERED_BYTES_MAX: usize = 4 * FRAME_BYTES_MAX;
/// The smallest charge for a frame: it bounds their number.
const FRAME_BYTES_COUNTED_MIN: usize = 1024;

/// Serves a link until it ends.
pub(super) async fn serve(client: Client, link: Link, events: mpsc::Sender<Event>) {
    let peer = link.peer_address();
    let (writes, name) = match link.handshake() {
        Some(handshake) => (handshake.role == Role::ResolverWriter, handshake.name.clone()),
        None => (false, String::new()),
    };
    let (identity, mut rights) = (link.identity().cloned(), link.rights());
    let (sender, receiver) = link.split();
    let access = Arc::new(ClientAccess::new(identity, peer, rights.borrow_and_update().clone()));
    let joined = Event::Joined { client, sender: sender.clone(), writes, access };
    if events.send(joined).await.is_err() {
        return;
    }
    tracing::debug!(%peer, name, writes, "connected");
    let end = forward(client, &sender, receiver, rights, &events).await;
    tracing::debug!(%peer, name, ?end, "disconnected");
    let _ = events.send(Event::Left { client }).await;
}

/// `None` when the server loop is gone.
async fn forward(
    client: Client,
    sender: &LinkSender,
    mut receiver: LinkReceiver,
    mut rights: watch::Receiver<Arc<Rights>>,
    events: &mpsc::Sender<Event>,
) -> Option<LinkEnd> {
    let unanswered = Arc::new(Semaphore::new(UNANSWERED_BYTES_MAX));
    loop {
        let frame = tokio::select! {
            biased;
            rights = changed(&mut rights) => {
                events.send(Event::Rights { client, rights }).await.ok()?;
                continue;
            }
            frame = receiver.recv() => match frame {
                Ok(frame) => frame,
                Err(end) => return Some(end),
            },
        };
        let at = now();
        let bytes = frame.len().clamp(FRAME_BYTES_COUNTED_MIN, UNANSWERED_BYTES_MAX) as u32;
        // The server loop releases nothing of a client that never reads: only its link's end is
        // certain. Its rights still change: it may lose the publisher that it is registered as.
        let mut acquired = pin!(unanswered.clone().acquire_many_owned(bytes));
        let permit = loop {
            tokio::select! {
                biased;
                rights = changed(&mut rights) => {
                    events.send(Event::Rights { client, rights }).await.ok()?;
                }
                permit = &mut acquired => break permit.ok()?,
                end = sender.closed() => return Some(end),
            }
        };
        events
            .send(Event::Frame { client, messages: Messages::new(frame), at, permit })
            .await
            .ok()?;
    }
}

/// The next rights; pending for ever once they change no more. Cancel safe.
async fn changed(rights: &mut watch::Receiver<Arc<Rights>>) -> Arc<Rights> {
    match rights.changed().await {
        Ok(()) => rights.borrow_and_update().clone(),
        Err(_) => std::future::pending().await,
    }
}
