//! Access to the resolver and to links, behind traits, so that scenarios run in virtual time.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use longshore_protocol::{Address, Frame, Glob, Handshake, Path, PublisherInfo};
use longshore_resolver::{PathEvent, PathWatch, ReadClient, Resolution, WatchEnded};
use longshore_transport::{
    LastAddress, LinkOptions, LinkReceiver, LinkSender, SendError, dial_publisher, is_own_address,
};

/// Resolves paths and dials publishers.
pub(crate) trait Network: Send + Sync + 'static {
    type FrameSender: FrameSender;
    type FrameReceiver: FrameReceiver;
    type PathSource: PathSource;

    fn resolve(
        &self,
        paths: Vec<Path>,
    ) -> impl Future<Output = Result<Resolution, Arc<str>>> + Send;

    /// Tries every address of the publisher once, in turn. Dropping the future closes the
    /// connection.
    fn dial(
        &self,
        publisher: &PublisherInfo,
    ) -> impl Future<Output = Result<(Self::FrameSender, Self::FrameReceiver), Arc<str>>> + Send;

    /// True if the publisher advertises an IP address of this machine. Host names are not resolved
    /// for this: they count as remote.
    fn is_local(&self, publisher: &PublisherInfo) -> bool;

    /// Watches the paths that match one of `globs`.
    fn watch(&self, globs: Vec<Glob>) -> Self::PathSource;
}

/// A watch over paths.
pub(crate) trait PathSource: Send {
    /// Polls for the next change. An error is the last one.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<PathEvent, WatchEnded>>;
}

/// The receiving half of a link.
pub(crate) trait FrameReceiver: Send + 'static {
    /// The next frame, or the reason why the link ended. Cancel safe.
    fn recv(&mut self) -> impl Future<Output = Result<Bytes, Arc<str>>> + Send;
}

/// The sending half of a link.
pub(crate) trait FrameSender: Send + Sync + 'static {
    fn send(&self, frame: Frame) -> Result<(), SendError>;

    /// Waits until fewer than `below` bytes are in the send queue. Cancel safe.
    fn ready(&self, below: usize) -> impl Future<Output = ()> + Send;

    /// True while the send queue is long.
    fn is_congested(&self) -> bool;

    fn close(&self, reason: &str);
}

/// While the send queue is longer than this, further messages stay in the table.
pub(crate) const SEND_QUEUE_BYTES: usize = 4 * 1024 * 1024;

/// The network over TCP.
#[derive(Debug)]
pub(crate) struct TcpNetwork {
    pub(crate) resolver: ReadClient,
    pub(crate) handshake: Handshake,
    pub(crate) options: LinkOptions,
}

impl Network for TcpNetwork {
    type FrameSender = LinkSender;
    type FrameReceiver = LinkReceiver;
    type PathSource = PathWatch;

    async fn resolve(&self, paths: Vec<Path>) -> Result<Resolution, Arc<str>> {
        self.resolver.resolve(paths).await.map_err(|error| error.to_string().into())
    }

    async fn dial(
        &self,
        publisher: &PublisherInfo,
    ) -> Result<(LinkSender, LinkReceiver), Arc<str>> {
        let last = LastAddress::default();
        let dialled = dial_publisher(publisher, &last, &self.handshake, &self.options);
        Ok(dialled.await.map_err(|error| error.to_string())?.split())
    }

    fn is_local(&self, publisher: &PublisherInfo) -> bool {
        publisher.addresses.iter().filter_map(Address::ip).any(is_own_address)
    }

    fn watch(&self, globs: Vec<Glob>) -> PathWatch {
        self.resolver.watch_paths(globs)
    }
}

impl PathSource for PathWatch {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<PathEvent, WatchEnded>> {
        PathWatch::poll_next(self, context)
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

    async fn ready(&self, below: usize) {
        // `recv` reports the end of the link.
        if LinkSender::ready(self, below).await.is_err() {
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
