//! The TCP connection under a link: its options, its raw socket, and the read and write sides of
//! the link's byte stream.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BufMut;
use longshore_protocol::LinkTiming;
use rustls::pki_types::CertificateDer;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::Instant;
use tokio_rustls::TlsStream;

/// Probes that the kernel sends into silence before it gives a connection up.
const KEEPALIVE_PROBES: u32 = 3;

/// Send at once: a frame is a batch already, so waiting for more gains nothing.
pub(crate) fn open_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)
}

/// TCP keepalive, a second safeguard below the heartbeats. The kernel gives up after twice the hang
/// timeout, so that the link, which knows the reason, always ends first.
pub(crate) fn set_keepalive(socket: &OwnedWriteHalf, timing: LinkTiming) -> io::Result<()> {
    let socket = SockRef::from(socket.as_ref());
    // The kernel reports the end of a process at once, and there is no network.
    if socket.local_addr()?.is_unix() {
        return Ok(());
    }
    let patience = (timing.hang * 2).max(Duration::from_secs(1));
    let probe = (patience / (KEEPALIVE_PROBES + 1)).max(Duration::from_secs(1));
    let keepalive = TcpKeepalive::new().with_time(probe).with_interval(probe);
    socket.set_tcp_keepalive(&keepalive.with_retries(KEEPALIVE_PROBES))?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    socket.set_tcp_user_timeout(Some(patience))?;
    Ok(())
}

/// Bounds the kernel's send buffer. The kernel also counts its own overhead, so that about half is
/// the link's data.
pub(crate) fn bound_send_buffer(socket: &OwnedWriteHalf, bytes: usize) -> io::Result<()> {
    SockRef::from(socket.as_ref()).set_send_buffer_size(bytes)
}

/// When the kernel last took and returned a byte; shared by all users of one connection.
#[derive(Debug)]
pub(crate) struct Activity {
    begun: Instant,
    /// Nanoseconds since `begun`.
    received: AtomicU64,
    sent: AtomicU64,
}

impl Activity {
    fn new() -> Activity {
        Activity { begun: Instant::now(), received: AtomicU64::new(0), sent: AtomicU64::new(0) }
    }

    pub(crate) fn received(&self) {
        self.received.store(self.now(), Ordering::Release);
    }

    pub(crate) fn received_at(&self) -> Instant {
        self.begun + Duration::from_nanos(self.received.load(Ordering::Acquire))
    }

    /// When the last byte arrived; `None` before the first.
    pub(crate) fn last_received(&self) -> Option<Instant> {
        let received = self.received.load(Ordering::Acquire);
        (received > 0).then(|| self.begun + Duration::from_nanos(received))
    }

    fn sent(&self) {
        self.sent.store(self.now(), Ordering::Release);
    }

    pub(crate) fn sent_at(&self) -> Instant {
        self.begun + Duration::from_nanos(self.sent.load(Ordering::Acquire))
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// A connection, before and during the handshake.
pub(crate) struct Connection {
    pub(crate) reads: ReadSide,
    pub(crate) writes: WriteSide,
    pub(crate) raw: Arc<OwnedWriteHalf>,
    pub(crate) activity: Arc<Activity>,
    /// The certificate that the other side has proved to own, in DER.
    pub(crate) peer_certificate: Option<CertificateDer<'static>>,
    /// The user of the other side's process, if this is an accepted Unix socket.
    pub(crate) user: Option<u32>,
}

/// The read side of a link's byte stream.
pub(crate) enum ReadSide {
    Plain(OwnedReadHalf),
    Tls(ReadHalf<TlsStream<MeteredStream>>),
}

/// The write side: through TLS, or without it directly to the raw socket.
pub(crate) enum WriteSide {
    Plain(Arc<OwnedWriteHalf>),
    Tls(WriteHalf<TlsStream<MeteredStream>>),
}

impl Connection {
    /// A connection without TLS.
    pub(crate) fn plain(stream: TcpStream) -> Connection {
        let (reads, raw) = stream.into_split();
        let raw = Arc::new(raw);
        Connection {
            reads: ReadSide::Plain(reads),
            writes: WriteSide::Plain(raw.clone()),
            raw,
            activity: Arc::new(Activity::new()),
            peer_certificate: None,
            user: None,
        }
    }

    /// An accepted Unix socket, with the number of its user. It needs no TLS.
    pub(crate) fn unix(stream: TcpStream, user: u32) -> Connection {
        Connection { user: Some(user), ..Connection::plain(stream) }
    }

    /// The same with TLS; `handshake` runs over the stream that it gets.
    pub(crate) async fn tls<F>(
        self,
        handshake: impl FnOnce(MeteredStream) -> F,
    ) -> io::Result<Connection>
    where
        F: Future<Output = io::Result<TlsStream<MeteredStream>>>,
    {
        let Connection { reads, raw, activity, .. } = self;
        let ReadSide::Plain(reads) = reads else { return Err(io::ErrorKind::AlreadyExists.into()) };
        let metered = MeteredStream { reads, raw: raw.clone(), activity: activity.clone() };
        let stream = handshake(metered).await?;
        let certificates = stream.get_ref().1.peer_certificates();
        let peer_certificate = certificates.and_then(<[_]>::first).cloned();
        let (reads, writes) = tokio::io::split(stream);
        Ok(Connection {
            reads: ReadSide::Tls(reads),
            writes: WriteSide::Tls(writes),
            raw,
            activity,
            peer_certificate,
            user: None,
        })
    }
}

impl ReadSide {
    /// Reads at least one byte, or 0 at the end of the stream. Cancel safe.
    pub(crate) async fn read(
        &mut self,
        into: &mut impl BufMut,
        activity: &Activity,
    ) -> io::Result<usize> {
        let read = match self {
            ReadSide::Plain(half) => half.read_buf(into).await?,
            ReadSide::Tls(half) => match half.read_buf(into).await {
                // No close_notify: the process died. The frames show whether anything is missing.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => 0,
                read => read?,
            },
        };
        if read > 0 && matches!(self, ReadSide::Plain(_)) {
            activity.received();
        }
        Ok(read)
    }
}

impl WriteSide {
    /// Writes as much as fits.
    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = match self {
            WriteSide::Plain(raw) => ready!(poll_write_raw(raw, cx, |raw| try_write(raw, slices)))?,
            WriteSide::Tls(half) => ready!(Pin::new(half).poll_write_vectored(cx, slices))?,
        };
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        Poll::Ready(Ok(written))
    }

    /// Flushes the TLS buffer into the kernel.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            WriteSide::Plain(_) => Poll::Ready(Ok(())),
            WriteSide::Tls(half) => Pin::new(half).poll_flush(cx),
        }
    }

    /// Ends this direction of the stream.
    pub(crate) fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            WriteSide::Plain(raw) => Poll::Ready(shutdown(raw, Shutdown::Write)),
            WriteSide::Tls(half) => Pin::new(half).poll_shutdown(cx),
        }
    }
}

/// Writes as much as fits without waiting. A single slice, such as a heartbeat, uses the kernel's
/// shorter path.
pub(crate) fn try_write(raw: &OwnedWriteHalf, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    match slices {
        [one] => raw.try_write(one),
        several => raw.try_write_vectored(several),
    }
}

fn poll_write_raw(
    raw: &OwnedWriteHalf,
    cx: &mut Context<'_>,
    mut write: impl FnMut(&OwnedWriteHalf) -> io::Result<usize>,
) -> Poll<io::Result<usize>> {
    loop {
        ready!(raw.as_ref().poll_write_ready(cx))?;
        match write(raw) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            written => return Poll::Ready(written),
        }
    }
}

/// True if the kernel has unread bytes (or an end, or an error), whatever the runtime knows of it.
/// After the process was stopped and continued, or while no caller reads, the other side is not
/// silent.
pub(crate) fn has_unread(raw: &OwnedWriteHalf) -> bool {
    let mut byte = [MaybeUninit::uninit()];
    match SockRef::from(raw.as_ref()).peek(&mut byte) {
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        Ok(_) => true,
    }
}

/// Sends a final message at once, bypassing the runtime, which does not yet know whether a
/// connection just accepted is writable. Received bytes are read first: left unread when the socket
/// closes, they would reset the connection, and the reset could overtake the message. `message` is
/// short, so the socket takes all of it or is broken.
pub(crate) fn send_final(stream: &TcpStream, message: &[u8]) {
    let socket = SockRef::from(stream);
    let _ = socket.recv(&mut [MaybeUninit::uninit(); 4096]);
    let _ = socket.send(message);
    let _ = socket.shutdown(Shutdown::Write);
}

/// Closes one direction or both, at once.
pub(crate) fn shutdown(raw: &OwnedWriteHalf, how: Shutdown) -> io::Result<()> {
    SockRef::from(raw.as_ref()).shutdown(how)
}

/// Aborts the connection: the kernel drops unsent bytes instead of keeping them for a peer that
/// does not read.
pub(crate) fn abort(raw: &OwnedWriteHalf) {
    let socket = SockRef::from(raw.as_ref());
    let _ = socket.set_linger(Some(Duration::ZERO));
    let _ = socket.shutdown(Shutdown::Both);
}

/// Reads and drops bytes until the other side has closed too. Closing a socket that has unread
/// bytes resets the connection, and the reset could overtake the last frames.
pub(crate) async fn drain(raw: &OwnedWriteHalf) {
    let mut scratch = vec![0u8; 16 * 1024];
    loop {
        if raw.as_ref().readable().await.is_err() {
            return;
        }
        match raw.as_ref().try_read(&mut scratch) {
            Ok(0) => return,
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return,
            _ => {}
        }
    }
}

/// The TCP stream below TLS. It records when the kernel takes and returns bytes, which TLS, whose
/// records are 16 KiB, would hide.
pub(crate) struct MeteredStream {
    reads: OwnedReadHalf,
    raw: Arc<OwnedWriteHalf>,
    activity: Arc<Activity>,
}

impl AsyncRead for MeteredStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.reads).poll_read(cx, buffer))?;
        if buffer.filled().len() > before {
            self.activity.received();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for MeteredStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(poll_write_raw(&self.raw, cx, |raw| try_write(raw, slices)))?;
        if written > 0 {
            self.activity.sent();
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(shutdown(&self.raw, Shutdown::Write))
    }
}
