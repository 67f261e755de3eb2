//! One connection: hands its requests to the desk, in their order.

use std::sync::Arc;

use bytes::Bytes;
use longshore_protocol::Role;
use longshore_protocol::frame::Messages;
use longshore_protocol::messages::resolver::{ToReplica, tag};
use longshore_transport::{Link, LinkEnd, LinkReceiver};
use tokio::sync::{Semaphore, mpsc};

use crate::directory::Client;
use crate::replica_link::now;
use crate::server::desk::Said;
use crate::server::job::Refusal;

/// Most bytes of requests that one connection may have unanswered: a longest frame and some. Beyond, it is not read.
const REQUEST_BYTES_MAX: usize = 32 * 1024 * 1024;
/// What a request counts at least: bounds how many there can be.
const REQUEST_BYTES_MIN: usize = 1024;

/// Serves a link until it ends.
pub(super) async fn serve(client: Client, link: Link, said: mpsc::Sender<Said>) {
    let peer = link.peer_address();
    let (writes, name) = match link.hello() {
        Some(hello) => (hello.role == Role::ResolverWriter, hello.name.clone()),
        None => (false, String::new()),
    };
    let (sender, receiver) = link.split();
    if said.send(Said::Joined { client, sender, writes }).await.is_err() {
        return;
    }
    tracing::debug!(%peer, name, writes, "connected");
    let end = forward(client, receiver, &said).await;
    tracing::debug!(%peer, name, ?end, "disconnected");
    let _ = said.send(Said::Left { client }).await;
}

/// None when the desk is gone.
async fn forward(
    client: Client,
    mut receiver: LinkReceiver,
    said: &mpsc::Sender<Said>,
) -> Option<LinkEnd> {
    let room = Arc::new(Semaphore::new(REQUEST_BYTES_MAX));
    loop {
        let frame = match receiver.recv().await {
            Ok(frame) => frame,
            Err(end) => return Some(end),
        };
        let at = now();
        for message in Messages::new(frame) {
            let (bytes, request) = match message {
                Ok((tag, body)) => match read(tag, body.clone()) {
                    Some(request) => (body.len(), request),
                    None => continue,
                },
                // What comes after it cannot be found.
                Err(error) => (0, Err(Refusal::malformed(0, &error))),
            };
            let bytes = bytes.clamp(REQUEST_BYTES_MIN, REQUEST_BYTES_MAX);
            let permit = room.clone().acquire_many_owned(bytes as u32).await.ok()?;
            said.send(Said::Request { client, request, at, permit }).await.ok()?;
        }
    }
}

/// The request, or why it is refused. None for what is no request: nobody waits for an answer to it.
fn read(tag: u8, body: Bytes) -> Option<Result<ToReplica, Refusal>> {
    match ToReplica::decode(tag, body.clone()) {
        Ok(Some(request)) => Some(Ok(request)),
        Ok(None) if tag::REQUESTS.contains(&tag) => {
            Some(Err(Refusal::unknown(ToReplica::id_of_damaged(tag, &body), tag)))
        }
        Ok(None) => None,
        Err(error) => Some(Err(Refusal::malformed(ToReplica::id_of_damaged(tag, &body), &error))),
    }
}
