//! One connection: hands its requests to the desk, in their order.

use std::sync::Arc;

use bytes::Bytes;
use longshore_protocol::Role;
use longshore_protocol::frame::Messages;
use longshore_protocol::messages::resolver::{Group, ToReplica, tag};
use longshore_transport::{Link, LinkEnd, LinkReceiver, LinkSender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::directory::{Client, Matching};
use crate::replica_link::now;
use crate::server::desk::Said;
use crate::server::job::Refusal;
use crate::server::limits::{Room, Taken};

/// Longest frame that a client may send, in bytes: some of the largest requests.
pub(super) const FRAME_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Memory of the requests that one connection may have unanswered, in bytes: twice the largest. Beyond, it is not read.
pub(super) const REQUESTS_OF_ONE_MAX: usize = 16 * 1024 * 1024;
/// What a request counts at least: bounds how many there can be.
const REQUEST_BYTES_MIN: usize = 1024;

/// Serves a link until it ends.
pub(super) async fn serve(client: Client, link: Link, said: mpsc::Sender<Said>, room: Room) {
    let peer = link.peer_address();
    let (writes, name) = match link.hello() {
        Some(hello) => (hello.role == Role::ResolverWriter, hello.name.clone()),
        None => (false, String::new()),
    };
    let (sender, receiver) = link.split();
    let joined = Said::Joined { client, sender: sender.clone(), writes };
    if said.send(joined).await.is_err() {
        return;
    }
    tracing::debug!(%peer, name, writes, "connected");
    let of_all =
        |request: &ToReplica, held, bytes| room.take(writes && is_write(request), held, bytes);
    let end = forward(client, &sender, receiver, &said, &of_all).await;
    tracing::debug!(%peer, name, ?end, "disconnected");
    let _ = said.send(Said::Left { client }).await;
}

/// None when the desk is gone.
async fn forward(
    client: Client,
    sender: &LinkSender,
    mut receiver: LinkReceiver,
    said: &mpsc::Sender<Said>,
    of_all: &impl Fn(&ToReplica, usize, usize) -> Option<Taken>,
) -> Option<LinkEnd> {
    let own = Arc::new(Semaphore::new(REQUESTS_OF_ONE_MAX));
    loop {
        let frame = match receiver.recv().await {
            Ok(frame) => frame,
            Err(end) => return Some(end),
        };
        let at = now();
        for message in Messages::new(frame) {
            let request = match message {
                Ok((tag, body)) => match read(tag, body.clone()) {
                    Some(request) => request.map(|request| (memory(&request, &body), request)),
                    None => continue,
                },
                // What comes after it cannot be found.
                Err(error) => Err(Refusal::malformed(0, &error)),
            };
            let bytes = request.as_ref().map_or(REQUEST_BYTES_MIN, |(bytes, _)| *bytes);
            let held = REQUESTS_OF_ONE_MAX - own.available_permits();
            // The desk gives nothing back to a client that does not read, and may never: only its link's end is sure to come.
            let own = tokio::select! {
                biased;
                own = own.clone().acquire_many_owned(bytes as u32) => own.ok()?,
                end = sender.closed() => return Some(end),
            };
            let (request, of_all) = match request {
                Ok((_, request)) => match of_all(&request, held, bytes) {
                    Some(of_all) => (Ok(request), Some(of_all)),
                    None => (Err(Refusal::busy(request.id())), None),
                },
                Err(refusal) => (Err(refusal), None),
            };
            said.send(Said::Request { client, request, at, held: Held { own, of_all } })
                .await
                .ok()?;
        }
    }
}

/// What an unanswered request holds of its connection's memory, and of that of all.
#[derive(Debug)]
pub(super) struct Held {
    #[expect(dead_code, reason = "given back when it is dropped")]
    own: OwnedSemaphorePermit,
    #[expect(dead_code, reason = "given back when it is dropped")]
    of_all: Option<Taken>,
}

#[cfg(test)]
impl Held {
    /// Of a request that came by no connection.
    pub(super) fn nothing() -> Held {
        let none = Arc::new(Semaphore::new(0)).try_acquire_many_owned(0);
        Held { own: none.expect("there are always none"), of_all: None }
    }
}

/// About what a request takes in memory, in bytes: the frame that it keeps, and what it was read into.
fn memory(request: &ToReplica, body: &Bytes) -> usize {
    let read = match request {
        ToReplica::Resolve(ask) => ask.paths.overhead(),
        ToReplica::Write(write) => {
            write.groups.iter().map(|group| size_of::<Group>() + group.paths.overhead()).sum()
        }
        // Paths and globs are read into memory of their own.
        ToReplica::CheckChanged(ask) => 2 * size_of_val(&ask.tracked[..]),
        ToReplica::ListMatching(ask) => Matching::memory(&ask.globs),
        ToReplica::WatchPaths(watch) => Matching::memory(&watch.globs),
        ToReplica::WatchPublishers(watch) => Matching::memory(std::slice::from_ref(&watch.glob)),
        ToReplica::Announce(announce) => size_of_val(&announce.wanted[..]),
        _ => 0,
    };
    (body.len() + read).clamp(REQUEST_BYTES_MIN, REQUESTS_OF_ONE_MAX)
}

/// Whether it is for a publisher that writes. Whatever else a writer asks is a read like any other.
fn is_write(request: &ToReplica) -> bool {
    matches!(
        request,
        ToReplica::Announce(_)
            | ToReplica::Write(_)
            | ToReplica::Confirm { .. }
            | ToReplica::Clear { .. }
    )
}

/// The request, or why it is refused. None for what is no request: nobody waits for an answer to it.
fn read(tag: u8, body: Bytes) -> Option<Result<ToReplica, Refusal>> {
    match ToReplica::decode(tag, body.clone()) {
        Ok(Some(request)) => Some(Ok(request)),
        Ok(None) if tag::REQUESTS.contains(&tag) => {
            Some(Err(Refusal::unknown(ToReplica::id_of_damaged(&body), tag)))
        }
        Ok(None) => None,
        Err(error) => Some(Err(Refusal::malformed(ToReplica::id_of_damaged(&body), &error))),
    }
}

#[cfg(test)]
mod tests {
    use longshore_protocol::Glob;
    use longshore_protocol::messages::resolver::ListMatching;

    use super::*;

    #[test]
    fn globs_count_by_what_they_stand_for_and_not_by_their_length() {
        let list = |text: String| {
            let globs = vec![Glob::new(&text).unwrap()];
            memory(&ToReplica::ListMatching(ListMatching { id: 1, globs }), &Bytes::new())
        };
        // Two alternatives each: 256 of nine parts and an end.
        let braces = list("/{a,b}".repeat(8) + "/c");
        assert!(braces > 256 * 10 * 200, "{braces}");
        assert!(braces < 256 * 10 * 300, "{braces}");
        assert_eq!(list("/**".into()), REQUEST_BYTES_MIN);
    }
}
