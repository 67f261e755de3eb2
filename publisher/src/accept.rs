//! The accept loop of a publisher's listener.

use std::sync::Arc;
use std::time::Duration;

use longshore_access::{Identity, Rights};
use longshore_protocol::Handshake;
use longshore_transport::{LinkAudit, LinkReceiver, LinkSender, Listener, Peer};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::values::Values;

/// The client of a link.
pub(crate) struct LinkClient {
    pub(crate) handshake: Handshake,
    /// Who it is; none without a certificate and a token.
    pub(crate) identity: Option<Arc<Identity>>,
    /// What it may do. They only grow: a link that has lost a right is cut.
    pub(crate) rights: watch::Receiver<Arc<Rights>>,
    pub(crate) audit: LinkAudit,
}

/// Serves each link in its own task until `closing`; then waits at most `goodbye` for every link to
/// send its goodbye and end.
pub(crate) async fn accept<F: Future<Output = ()> + Send + 'static>(
    mut listener: Listener,
    values: Values,
    closing: CancellationToken,
    goodbye: Duration,
    mut serve: impl FnMut(LinkClient, LinkSender, LinkReceiver) -> F,
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
                let (identity, rights) = (link.identity().cloned(), link.rights());
                let audit = listener.audit_of(&link);
                let client = LinkClient { handshake, identity, rights, audit };
                let (sender, receiver) = link.split();
                links.spawn(serve(client, sender, receiver));
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
