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
/// send its goodbye and end. From `refusing` on, new links are refused.
pub(crate) async fn accept<F: Future<Output = ()> + Send + 'static>(
    mut listener: Listener,
    values: Values,
    (refusing, closing): (CancellationToken, CancellationToken),
    goodbye: Duration,
    mut serve: impl FnMut(LinkClient, LinkSender, LinkReceiver) -> F,
) {
    let mut links = JoinSet::new();
    let mut refuses = false;
    loop {
        tokio::select! {
            biased;
            () = closing.cancelled() => break,
            () = refusing.cancelled(), if !refuses => {
                refuses = true;
                listener.refuse_new();
            }
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

#[cfg(test)]
mod tests {
    use longshore_protocol::{HandshakeRefusal, LinkTiming, Role, SessionId};
    use longshore_transport::{DialError, LinkOptions, ListenerOptions, ServerInfo, dial};

    use super::*;
    use crate::values::{PathKinds, ValueOptions, ValueRegistry};

    #[tokio::test]
    async fn stopping_publisher_refuses_new_links_before_it_closes_the_others() {
        let info = ServerInfo { instance: [1; 16], epoch: 1, name: "p".into(), serves: |_| true };
        let any_port = "127.0.0.1:0".parse().unwrap();
        let listener = Listener::bind(any_port, info, ListenerOptions::default()).unwrap();
        let address = listener.local_address();
        let names = Arc::new(PathKinds::default());
        let values = Values::new(ValueRegistry::new(None, names, None, ValueOptions::default()));
        let (refusing, closing) = (CancellationToken::new(), CancellationToken::new());
        let serve = |_, sender: LinkSender, mut receiver: LinkReceiver| async move {
            while receiver.recv().await.is_ok() {}
            drop(sender);
        };
        let stops = (refusing.clone(), closing.clone());
        let accepting = tokio::spawn(accept(listener, values, stops, Duration::ZERO, serve));
        let handshake = Handshake::new(Role::Tool, SessionId([1; 16]), "t", LinkTiming::WORK);
        let options = LinkOptions::default();
        let _open = dial(address, &handshake, &options).await.unwrap();
        refusing.cancel();
        let refused = dial(address, &handshake, &options).await.map(drop);
        let stopping = HandshakeRefusal::Stopping;
        assert!(
            matches!(refused, Err(DialError::Refused { code, .. }) if code == stopping),
            "{refused:?}"
        );
        assert!(!accepting.is_finished());
        closing.cancel();
        accepting.await.unwrap();
    }
}
