//! The half of a link that frames come out of.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use bytes::{BufMut, Bytes};
use longshore_protocol::frame::MESSAGE_HEADER_BYTES;
use longshore_protocol::messages::HEARTBEAT;

use crate::end::LinkEnd;
use crate::frames::FrameReader;
use crate::link::Hold;
use crate::queue::Shared;
use crate::socket::ReadSide;

/// Gives out the other side's frames. Once it and all senders are dropped the link closes.
///
/// It reads the socket in the task of its caller. While nobody calls [`recv`](LinkReceiver::recv) the kernel's buffers fill and the
/// other side has to wait; heartbeats go on all the same.
pub struct LinkReceiver {
    pub(crate) hold: Arc<Hold>,
    pub(crate) reads: ReadSide,
    pub(crate) frames: FrameReader,
}

impl LinkReceiver {
    /// The body of the next frame, without its length. Heartbeats are swallowed. After an end every call returns it again.
    ///
    /// Cancel safe: a call that is dropped loses nothing.
    ///
    /// A short frame is a slice of a buffer of at most 128 KiB that others share. Who keeps a few bytes of it for long
    /// should copy them.
    pub async fn recv(&mut self) -> Result<Bytes, LinkEnd> {
        loop {
            let shared = &self.hold.shared;
            if let Some(end) = shared.ended() {
                return Err(end.clone());
            }
            match self.frames.next() {
                Ok(Some(body)) => {
                    if body.first() == Some(&HEARTBEAT) {
                        shared.heard_heartbeat();
                    }
                    if !is_bare_heartbeat(&body) {
                        return Ok(body);
                    }
                    continue;
                }
                Ok(None) => {}
                Err(end) => return Err(shared.end(end)),
            }
            let mut spare = self.frames.spare();
            let room = spare.remaining_mut();
            let read = tokio::select! {
                biased;
                read = self.reads.read(&mut spare, &shared.pulse) => read,
                () = ended(shared) => continue,
            };
            match read {
                Ok(0) => return Err(shared.end(self.frames.end_of_stream())),
                Ok(read) => self.frames.filled(read, room),
                Err(error) => return Err(shared.end(LinkEnd::io(error))),
            }
        }
    }
}

async fn ended(shared: &Shared) {
    poll_fn(|cx| {
        shared.reader.register(cx.waker());
        if shared.ended().is_some() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// A frame with nothing in it but a bare heartbeat, or with nothing at all. A heartbeat that carries a number is for the
/// layer above.
fn is_bare_heartbeat(body: &[u8]) -> bool {
    body.is_empty() || (body.len() == MESSAGE_HEADER_BYTES && body == [HEARTBEAT, 0, 0, 0, 0])
}

impl std::fmt::Debug for LinkReceiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shared = &self.hold.shared;
        f.debug_struct("LinkReceiver")
            .field("peer_address", &shared.peer_address)
            .field("ended", &shared.ended())
            .finish()
    }
}
