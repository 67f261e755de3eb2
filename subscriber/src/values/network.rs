//! What values need of the world: answers of the resolver, and links. Behind traits, so that
//! scenarios play in virtual time.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use longshore_protocol::{Address, Frame, Handshake, Path, PublisherInfo};
use longshore_resolver::{ReadClient, Resolution};
use longshore_transport::{
    LastAddress, LinkOptions, LinkReceiver, LinkSender, SendError, dial_publisher, is_own_address,
};

/// Where publishers are found and dialled.
pub(crate) trait Network: Send + Sync + 'static {
    type FrameSender: FrameSender;
    type FrameReceiver: FrameReceiver;

    fn resolve(
        &self,
        paths: Vec<Path>,
    ) -> impl Future<Output = Result<Resolution, Arc<str>>> + Send;

    /// One try, at every address of the publisher in turn. Dropped, it leaves nothing behind.
    fn dial(
        &self,
        publisher: &PublisherInfo,
    ) -> impl Future<Output = Result<(Self::FrameSender, Self::FrameReceiver), Arc<str>>> + Send;

    /// True of a publisher that advertises an IP address of this machine. A host name is not
    /// resolved for this: it counts as far.
    fn is_local(&self, publisher: &PublisherInfo) -> bool;
}

/// The half of a link that frames come out of.
pub(crate) trait FrameReceiver: Send + 'static {
    /// The next frame, or why there is none any more. Cancel safe.
    fn recv(&mut self) -> impl Future<Output = Result<Bytes, Arc<str>>> + Send;
}

/// The half of a link that frames go into.
pub(crate) trait FrameSender: Send + Sync + 'static {
    fn send(&self, frame: Frame) -> Result<(), SendError>;

    /// Waits until little is queued. Cancel safe.
    fn ready(&self) -> impl Future<Output = ()> + Send;

    /// Much is queued.
    fn is_congested(&self) -> bool;

    fn close(&self, reason: &str);
}

/// While more bytes than this wait to be sent, the rest waits in the table.
const SEND_QUEUE_BYTES: usize = 4 * 1024 * 1024;

/// The world as it is.
#[derive(Debug)]
pub(crate) struct TcpNetwork {
    pub(crate) resolver: ReadClient,
    pub(crate) handshake: Handshake,
    pub(crate) options: LinkOptions,
}

impl Network for TcpNetwork {
    type FrameSender = LinkSender;
    type FrameReceiver = LinkReceiver;

    async fn resolve(&self, paths: Vec<Path>) -> Result<Resolution, Arc<str>> {
        self.resolver.resolve(paths).await.map_err(|error| error.to_string().into())
    }

    async fn dial(
        &self,
        publisher: &PublisherInfo,
    ) -> Result<(LinkSender, LinkReceiver), Arc<str>> {
        let (addresses, last) = (&publisher.addresses, LastAddress::default());
        let dialled =
            dial_publisher(publisher.id, addresses, &last, &self.handshake, &self.options);
        Ok(dialled.await.map_err(|error| error.to_string())?.split())
    }

    fn is_local(&self, publisher: &PublisherInfo) -> bool {
        publisher.addresses.iter().filter_map(Address::ip).any(is_own_address)
    }
}

impl FrameReceiver for LinkReceiver {
    async fn recv(&mut self) -> Result<Bytes, Arc<str>> {
        LinkReceiver::recv(self).await.map_err(|end| end.to_string().into())
    }
}

impl FrameSender for LinkSender {
    fn send(&self, frame: Frame) -> Result<(), SendError> {
        LinkSender::send(self, frame)
    }

    async fn ready(&self) {
        // An end is reported by `recv`.
        if LinkSender::ready(self, SEND_QUEUE_BYTES).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    fn is_congested(&self) -> bool {
        self.queued_bytes() >= SEND_QUEUE_BYTES
    }

    fn close(&self, reason: &str) {
        LinkSender::close(self, reason);
    }
}
