//! A value link from its handshake to its end.

use longshore_protocol::FrameWriter;
use longshore_protocol::limits::VALUE_FRAME_BYTES_MIN;
use longshore_protocol::messages::values::FromValuePublisher;
use longshore_transport::{LinkReceiver, LinkSender};
use tracing::debug;

use crate::accept::LinkClient;

use super::limits::VALUE_KERNEL_BYTES_MAX;
use super::link::ClientAccess;
use super::link_handle::LinkHandle;
use super::{Values, link};

/// Values that an ended link leaves while holding the lock once; other tasks run in between.
const LEAVES_PER_LOCK: usize = 1_024;

/// Serves a value link until it ends.
pub(crate) async fn serve(
    values: Values,
    client: LinkClient,
    sender: LinkSender,
    mut receiver: LinkReceiver,
) {
    let LinkClient { handshake, rights, audit, .. } = client;
    let frame_bytes_max = handshake.frame_bytes_max as usize;
    if frame_bytes_max < VALUE_FRAME_BYTES_MIN {
        let reason = format!(
            "a subscriber of values has to take frames of {VALUE_FRAME_BYTES_MIN} bytes; \
             its handshake says {frame_bytes_max}"
        );
        return send_goodbye(&sender, reason);
    }
    if let Err(error) = sender.bound_kernel_buffer(VALUE_KERNEL_BYTES_MAX) {
        debug!(%error, "the kernel's buffer of a value link keeps its own bound");
    }
    let shared = values.shared;
    let handle = LinkHandle::new(sender.clone(), handshake.name.into());
    let number = shared.core.lock().link_up(handle.0.name.clone(), handle.clone());
    let pumping = tokio::spawn(link::pump(shared.clone(), number, handle.clone()));
    let access = ClientAccess { rights, audit };
    match link::read(&shared, number, (&sender, &mut receiver), access).await {
        Ok(end) => debug!(subscriber = %handle.0.name, %end, "a value link has ended"),
        Err(fault) => shared.core.lock().end(number, fault.to_string()),
    }
    // If this side ended the link, its goodbye is still to be sent.
    let _ended = pumping.await;
    let (left, written) = shared.core.lock().link_down(number);
    // Its client may have lost the right to write.
    let written = if sender.was_cut() { written } else { Vec::new() };
    for some in written.chunks(LEAVES_PER_LOCK) {
        shared.core.lock().drop_writes_of(number, some);
        tokio::task::yield_now().await;
    }
    for some in left.chunks(LEAVES_PER_LOCK) {
        shared.core.lock().leave(number, some);
        tokio::task::yield_now().await;
    }
}

fn send_goodbye(sender: &LinkSender, reason: String) {
    let mut out = FrameWriter::new();
    FromValuePublisher::Goodbye { reason: reason.clone() }.encode(&mut out);
    // The link may have ended already.
    let _ = sender.send(out.finish());
    sender.close(reason);
}
