//! The send queue of one link, and the state that its sender, its receiver and its writer task
//! share.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures_util::task::AtomicWaker;
use longshore_protocol::frame::FRAME_HEADER_BYTES;
use longshore_protocol::limits::FRAME_BYTES_MAX;
use longshore_protocol::{Frame, FrameWriter, LinkTiming, messages};
use parking_lot::Mutex;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::link::LinkTerms;
use crate::link_end::LinkEnd;
use crate::liveness::{Liveness, LivenessAction};
use crate::oldest_command::OldestCommand;
use crate::sender::SendError;
use crate::socket::{Activity, has_unread, try_write};
use crate::write_stalls::WriteStalls;

/// The longest frame, in bytes, that `send` writes itself; longer ones are worth another core.
const DIRECT_BYTES_MAX: usize = 16 * 1024;
/// Two sends within this time are a burst: they are left to the writer task, which writes many with
/// one system call.
const BURST_GAP: Duration = Duration::from_micros(20);
/// Most parts of one vectored write; the kernel takes no more (IOV_MAX).
pub(crate) const WRITE_PARTS_MAX: usize = 1_024;

/// The shared state of one link.
pub(crate) struct Shared {
    pub(crate) raw: Arc<OwnedWriteHalf>,
    pub(crate) activity: Arc<Activity>,
    pub(crate) peer_address: SocketAddr,
    pub(crate) timing: LinkTiming,
    /// The longest frame body that the other side accepts, in bytes.
    pub(crate) peer_frame_bytes_max: usize,
    /// Most bytes in the queue.
    queue_bytes_max: usize,
    oldest: OldestCommand,
    /// False with TLS: only the writer task can encrypt.
    direct: bool,
    queue: Mutex<SendQueue>,
    end: OnceLock<LinkEnd>,
    /// Wakes the writer task: bytes are queued, the link is closing, or it has ended.
    pub(crate) wake: Notify,
    /// Wakes callers that wait for the queue to drain, or for the end.
    pub(crate) progress: Notify,
    /// Wakes the receiver at the end.
    pub(crate) reader: AtomicWaker,
}

struct SendQueue {
    parts: VecDeque<Bytes>,
    /// Total bytes that `send` took.
    taken: u64,
    /// Total bytes that the kernel took.
    written: u64,
    /// The writer task has been woken and will check for more before it sleeps.
    writer_busy: bool,
    closing: Option<Arc<str>>,
    /// The socket has failed for writing.
    broken: bool,
    liveness: Liveness,
    sent_at: Instant,
    stalls: WriteStalls,
}

impl SendQueue {
    fn bytes(&self) -> usize {
        (self.taken - self.written) as usize
    }

    /// The kernel took `bytes`.
    fn took(&mut self, bytes: usize, now: Instant) {
        self.written += bytes as u64;
        self.sent_at = now;
        self.liveness.sent(now.into_std());
        self.stalls.took(now.into_std());
    }
}

/// The progress of a queue.
pub(crate) struct Position {
    /// Total bytes that `send` took.
    pub(crate) taken: u64,
    /// Total bytes that the kernel took.
    pub(crate) written: u64,
    /// More of them may yet be written.
    pub(crate) open: bool,
}

/// The writer task's next step.
pub(crate) enum Task {
    /// Write the parts that it holds to the socket.
    Write,
    /// Sleep until woken, or until this instant.
    Sleep(Instant),
    /// Everything is written: close gracefully with this reason.
    Finish(Arc<str>),
    /// The link has ended or is dead.
    Stop,
}

impl Shared {
    /// Whether nothing has arrived for that long, read or not.
    pub(crate) fn is_silent_for(&self, silence: Duration) -> bool {
        self.activity.received_at().elapsed() >= silence && !has_unread(&self.raw)
    }

    pub(crate) fn new(
        raw: Arc<OwnedWriteHalf>,
        activity: Arc<Activity>,
        direct: bool,
        terms: &LinkTerms,
    ) -> Shared {
        let now = Instant::now();
        // The handshake's bytes count as this link's first bytes.
        activity.received();
        Shared {
            raw,
            activity,
            peer_address: terms.peer_address,
            timing: terms.timing,
            peer_frame_bytes_max: terms.peer_frame_bytes_max.min(FRAME_BYTES_MAX),
            queue_bytes_max: terms.send_queue_bytes_max,
            oldest: terms.oldest.clone(),
            direct,
            queue: Mutex::new(SendQueue {
                parts: VecDeque::new(),
                taken: 0,
                written: 0,
                writer_busy: false,
                closing: None,
                broken: false,
                liveness: match terms.schedule {
                    Some(schedule) => Liveness::on_schedule(now.into_std(), terms.timing, schedule),
                    None => Liveness::new(now.into_std(), terms.timing),
                },
                sent_at: now,
                stalls: WriteStalls::default(),
            }),
            end: OnceLock::new(),
            wake: Notify::new(),
            progress: Notify::new(),
            reader: AtomicWaker::new(),
        }
    }

    /// Why the link ended, if it has.
    pub(crate) fn ended(&self) -> Option<&LinkEnd> {
        self.end.get()
    }

    /// Ends the link, unless it has ended: wakes all waiters and drops the queue.
    pub(crate) fn end(&self, end: LinkEnd) -> LinkEnd {
        let reason = self.end.get_or_init(|| end).clone();
        let dropped = std::mem::take(&mut self.queue.lock().parts);
        drop(dropped);
        self.wake.notify_one();
        self.progress.notify_waiters();
        self.reader.wake();
        reason
    }

    /// Queues a frame, or writes it to the kernel at once when the queue is empty.
    pub(crate) fn send(&self, frame: Frame) -> Result<(), SendError> {
        self.send_within(frame, self.queue_bytes_max)
    }

    /// The same with a queue limit of `limit` bytes, if that is lower.
    pub(crate) fn send_within(&self, frame: Frame, limit: usize) -> Result<(), SendError> {
        let length = frame.len();
        let body = length.saturating_sub(FRAME_HEADER_BYTES);
        if body > self.peer_frame_bytes_max {
            return Err(SendError::TooLong { length: body, limit: self.peer_frame_bytes_max });
        }
        let mut queue = self.queue.lock();
        if self.end.get().is_some() || queue.closing.is_some() || queue.broken {
            return Err(SendError::Closed);
        }
        let queued = queue.bytes();
        let limit = limit.min(self.queue_bytes_max);
        if queued > 0 && queued + length > limit {
            return Err(SendError::Full { queued, limit });
        }
        queue.taken += length as u64;
        queue.parts.extend(frame.into_parts());
        if queue.writer_busy {
            return Ok(());
        }
        if self.direct && length <= DIRECT_BYTES_MAX && self.write_at_once(&mut queue) {
            return Ok(());
        }
        queue.writer_busy = true;
        drop(queue);
        self.wake.notify_one();
        Ok(())
    }

    /// True if the whole queue went to the kernel. The rest is left to the writer task, errors as
    /// well: it will get them again.
    fn write_at_once(&self, queue: &mut SendQueue) -> bool {
        let now = Instant::now();
        if now.saturating_duration_since(queue.sent_at) < BURST_GAP {
            return false;
        }
        let written = with_slices(&queue.parts, |slices| try_write(&self.raw, slices));
        if let Ok(written @ 1..) = written {
            advance(&mut queue.parts, written);
            queue.took(written, now);
        }
        queue.parts.is_empty()
    }

    /// The writer task's next step after it has written `parts`. `parts` receives all that is
    /// queued.
    pub(crate) fn next_task(&self, parts: &mut VecDeque<Bytes>) -> Task {
        debug_assert!(parts.is_empty());
        let mut queue = self.queue.lock();
        if self.end.get().is_some() {
            return Task::Stop;
        }
        if queue.parts.is_empty() && queue.closing.is_none() {
            match self.due(&mut queue) {
                Some(LivenessAction::SendHeartbeat) => {
                    self.queue_heartbeat(&mut queue);
                    // The writer task writes below what the kernel does not take.
                    let _taken = self.direct && self.write_at_once(&mut queue);
                }
                Some(death) => {
                    drop(queue);
                    self.end(death_of(death));
                    return Task::Stop;
                }
                None => {}
            }
        }
        if !queue.parts.is_empty() {
            queue.writer_busy = true;
            std::mem::swap(&mut queue.parts, parts);
            return Task::Write;
        }
        if let Some(reason) = &queue.closing {
            return Task::Finish(reason.clone());
        }
        queue.writer_busy = false;
        Task::Sleep(queue.liveness.next_deadline().into())
    }

    /// A heartbeat has arrived. If it is answered at once, this side's own next one needs no timer
    /// and no wake-up, and carries the TCP acknowledgement.
    pub(crate) fn heartbeat_arrived(&self) {
        let mut queue = self.queue.lock();
        let idle = queue.parts.is_empty() && !queue.writer_busy;
        if !idle || self.end.get().is_some() || queue.closing.is_some() || queue.broken {
            return;
        }
        // With TLS, `due` also updates what was sent.
        let _ = self.due(&mut queue);
        if !queue.liveness.should_answer(Instant::now().into_std()) {
            return;
        }
        self.queue_heartbeat(&mut queue);
        if self.direct && self.write_at_once(&mut queue) {
            return;
        }
        queue.writer_busy = true;
        drop(queue);
        self.wake.notify_one();
    }

    fn queue_heartbeat(&self, queue: &mut SendQueue) {
        let age = self.oldest.age_ms(Instant::now().into_std());
        let mut heartbeat = FrameWriter::with_capacity(16);
        heartbeat.message(messages::HEARTBEAT, |out| age.iter().for_each(|ms| out.u64(*ms)));
        let heartbeat = heartbeat.finish();
        queue.taken += heartbeat.len() as u64;
        queue.parts.extend(heartbeat.into_parts());
    }

    /// The kernel took `bytes` of the writer task's parts.
    pub(crate) fn wrote(&self, bytes: usize) {
        let now = Instant::now();
        self.queue.lock().took(bytes, now);
        self.progress.notify_waiters();
    }

    /// The socket takes none of the writer task's parts. Returns the instant of the next check.
    pub(crate) fn refused(&self) -> Instant {
        let mut queue = self.queue.lock();
        let _ = self.due(&mut queue);
        let now = Instant::now();
        queue.liveness.refused(now.into_std());
        let first = queue.stalls.refused(now.into_std());
        let next = queue.liveness.next_deadline().into();
        drop(queue);
        if first {
            self.progress.notify_waiters();
        }
        next
    }

    /// The reason if the link is dead.
    pub(crate) fn death(&self) -> Option<LinkEnd> {
        let due = self.due(&mut self.queue.lock())?;
        (due != LivenessAction::SendHeartbeat).then(|| death_of(due))
    }

    fn due(&self, queue: &mut SendQueue) -> Option<LivenessAction> {
        let liveness = &mut queue.liveness;
        liveness.received(self.activity.received_at().into_std());
        if !self.direct && self.activity.sent_at() > queue.sent_at {
            queue.sent_at = self.activity.sent_at();
            liveness.sent(queue.sent_at.into_std());
            queue.stalls.took(queue.sent_at.into_std());
        }
        let now = Instant::now().into_std();
        let due = liveness.poll(now)?;
        if matches!(due, LivenessAction::Hung { .. }) && crate::socket::has_unread(&self.raw) {
            liveness.received(now);
            return liveness.poll(now);
        }
        Some(due)
    }

    /// The socket failed for writing: accept nothing more.
    pub(crate) fn break_off(&self) {
        let mut queue = self.queue.lock();
        queue.broken = true;
        queue.parts.clear();
        drop(queue);
        self.progress.notify_waiters();
    }

    /// Accepts nothing more; the link ends once the queue is written.
    pub(crate) fn close(&self, reason: Arc<str>) {
        let mut queue = self.queue.lock();
        if queue.closing.is_none() {
            queue.closing = Some(reason);
        }
        drop(queue);
        self.wake.notify_one();
    }

    /// When the kernel first refused a byte, at or after `moment`; a stall that lasts at `moment`
    /// counts from `moment`.
    pub(crate) fn refused_after(&self, moment: std::time::Instant) -> Option<std::time::Instant> {
        self.queue.lock().stalls.first_after(moment)
    }

    /// Bytes that `send` took and the kernel has not.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.queue.lock().bytes()
    }

    /// The progress of the queue.
    pub(crate) fn position(&self) -> Position {
        let queue = self.queue.lock();
        Position {
            taken: queue.taken,
            written: queue.written,
            open: self.end.get().is_none() && !queue.broken,
        }
    }
}

fn death_of(due: LivenessAction) -> LinkEnd {
    match due {
        LivenessAction::Hung { silent_for } => LinkEnd::Hung { silent_for },
        LivenessAction::SendStalled { stalled_for } => LinkEnd::SendStalled { stalled_for },
        LivenessAction::SendHeartbeat => unreachable!("a heartbeat that is due is no death"),
    }
}

/// Calls `write` with the first parts, as many as one vectored write takes.
pub(crate) fn with_slices<T>(
    parts: &VecDeque<Bytes>,
    write: impl FnOnce(&[IoSlice<'_>]) -> T,
) -> T {
    const FEW: usize = 16;
    if parts.len() <= FEW {
        let mut slices = [IoSlice::new(&[]); FEW];
        write(fill(&mut slices, parts))
    } else {
        let mut slices = [IoSlice::new(&[]); WRITE_PARTS_MAX];
        write(fill(&mut slices, parts))
    }
}

fn fill<'a, 'b>(slices: &'b mut [IoSlice<'a>], parts: &'a VecDeque<Bytes>) -> &'b [IoSlice<'a>] {
    let mut count = 0;
    for (slice, part) in slices.iter_mut().zip(parts) {
        *slice = IoSlice::new(part);
        count += 1;
    }
    &slices[..count]
}

/// Drops the first `written` bytes.
pub(crate) fn advance(parts: &mut VecDeque<Bytes>, mut written: usize) {
    while written > 0 {
        let Some(first) = parts.front_mut() else {
            return;
        };
        if written < first.len() {
            first.advance(written);
            return;
        }
        written -= first.len();
        parts.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use futures_util::FutureExt as _;
    use longshore_protocol::{Handshake, Role, SessionId};
    use proptest::prelude::*;
    use tokio::net::TcpStream;

    use super::*;
    use crate::link::{LinkGuard, Peer};
    use crate::sender::LinkSender;
    use crate::socket::Connection;

    /// A link without a writer task: the test reports what the kernel takes and refuses.
    fn without_writer() -> (LinkSender, Arc<Shared>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        let peer_address = stream.peer_addr().unwrap();
        let Connection { raw, activity, .. } =
            Connection::plain(TcpStream::from_std(stream).unwrap());
        let terms = LinkTerms {
            peer: Peer::Client(Handshake::new(
                Role::Values,
                SessionId([1; 16]),
                "s",
                LinkTiming::VALUES,
            )),
            peer_address,
            version: 1,
            features: 0,
            timing: LinkTiming::VALUES,
            own_frame_bytes_max: FRAME_BYTES_MAX,
            peer_frame_bytes_max: FRAME_BYTES_MAX,
            send_queue_bytes_max: FRAME_BYTES_MAX,
            oldest: OldestCommand::default(),
            budget: None,
            client: None,
            schedule: None,
        };
        let shared = Arc::new(Shared::new(raw, activity, false, &terms));
        (LinkSender { guard: Arc::new(LinkGuard { shared: shared.clone() }) }, shared)
    }

    #[tokio::test(start_paused = true)]
    async fn a_stall_that_ended_before_an_instant_does_not_count_after_it() {
        const SECOND: Duration = Duration::from_secs(1);
        let (sender, shared) = without_writer();
        for n in 0..10 {
            let mut out = FrameWriter::new();
            out.message(50, |out| out.u64(n));
            sender.send(out.finish()).unwrap();
        }
        shared.refused();
        // The kernel takes a few bytes every second, and never all.
        for _ in 0..10 {
            tokio::time::advance(SECOND).await;
            shared.wrote(1);
        }
        let asked = Instant::now().into_std();
        let mut refused = std::pin::pin!(sender.refused_after(asked));
        let waits = refused.as_mut().now_or_never().is_none();
        assert!(waits, "nothing was refused since");
        tokio::time::advance(3 * SECOND).await;
        shared.refused();
        tokio::time::advance(SECOND).await;
        assert_eq!(refused.await, Ok(asked + 3 * SECOND));
        let later = Instant::now().into_std();
        assert_eq!(sender.refused_after(later).await, Ok(later), "it is stalled");
    }

    proptest! {
        #[test]
        fn after_any_partial_write_the_rest_follows(
            lengths in prop::collection::vec(1usize..50, 0..40),
            writes in prop::collection::vec(1usize..200, 1..20),
        ) {
            let mut parts: VecDeque<Bytes> = lengths
                .iter()
                .enumerate()
                .map(|(i, length)| Bytes::from(vec![i as u8; *length]))
                .collect();
            let whole = parts.iter().flatten().copied().collect::<Vec<u8>>();
            let mut out = Vec::new();
            let mut writes = writes.iter().cycle();
            while !parts.is_empty() {
                let written = with_slices(&parts, |slices| {
                    let offered: Vec<u8> = slices.iter().flat_map(|s| s.iter().copied()).collect();
                    let written = (*writes.next().unwrap_or(&1)).min(offered.len());
                    out.extend_from_slice(&offered[..written]);
                    written
                });
                advance(&mut parts, written);
            }
            prop_assert_eq!(out, whole);
        }
    }
}
