//! The accept loop of a publisher's listener.

use std::time::Duration;

use longshore_protocol::Handshake;
use longshore_transport::{LinkReceiver, LinkSender, Listener, Peer};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::values::Values;

/// Serves each link in its own task until `closing`; then waits at most `goodbye` for every link to
/// send its goodbye and end.
pub(crate) async fn accept<F: Future<Output = ()> + Send + 'static>(
    mut listener: Listener,
    values: Values,
    closing: CancellationToken,
    goodbye: Duration,
    mut serve: impl FnMut(Handshake, LinkSender, LinkReceiver) -> F,
) {
    let mut links = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = closing.cancelled() => break,
            link = listener.accept() => {
                let Peer::Client(handshake) = link.peer().clone() else {
                    warn!("a link was accepted without a handshake");
                    continue;
                };
                let (sender, receiver) = link.split();
                links.spawn(serve(handshake, sender, receiver));
            }
            Some(ended) = links.join_next() => {
                if let Err(why) = ended && why.is_panic() {
                    error!(%why, "a link's task panicked");
                }
            }
        }
    }
    listener.refuse_new();
    values.close("the publisher is stopping");
    let all_ended = async { while links.join_next().await.is_some() {} };
    if tokio::time::timeout(goodbye, all_ended).await.is_err() {
        info!("links that did not end after their goodbye are cut");
    }
    listener.close().await;
}
