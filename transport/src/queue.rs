//! What waits to be sent on one link, and the state that its sender, its receiver and its keeper
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

use crate::end::LinkEnd;
use crate::link::Terms;
use crate::liveness::{Due, Liveness};
use crate::oldest::OldestCommand;
use crate::refusals::Refusals;
use crate::sender::SendError;
use crate::socket::{Pulse, try_write};

/// Longest frame, in bytes, that `send` writes itself; longer ones are worth another core.
const DIRECT_BYTES_MAX: usize = 16 * 1024;
/// Two sends within this time are a burst: they are left to the keeper, which writes many with one
/// system call.
const BURST_GAP: Duration = Duration::from_micros(20);
/// Most parts of one vectored write; the kernel takes no more (IOV_MAX).
pub(crate) const WRITE_PARTS_MAX: usize = 1_024;

/// One link's shared state.
pub(crate) struct Shared {
    pub(crate) raw: Arc<OwnedWriteHalf>,
    pub(crate) pulse: Arc<Pulse>,
    pub(crate) peer_address: SocketAddr,
    pub(crate) timing: LinkTiming,
    /// The longest frame body that the other side takes, in bytes.
    pub(crate) peer_frame_bytes_max: usize,
    /// Most bytes in the queue.
    queue_bytes_max: usize,
    oldest: OldestCommand,
    /// False with TLS: only the keeper can encrypt.
    direct: bool,
    queue: Mutex<Queue>,
    end: OnceLock<LinkEnd>,
    /// Wakes the keeper: there is something to write, to close, or the link has ended.
    pub(crate) wake: Notify,
    /// Wakes those who wait for the queue to drain, or for the end.
    pub(crate) progress: Notify,
    /// Wakes the receiver at the end.
    pub(crate) reader: AtomicWaker,
}

struct Queue {
    parts: VecDeque<Bytes>,
    /// Bytes that `send` took, ever.
    taken: u64,
    /// Bytes that the kernel took, ever.
    written: u64,
    /// The keeper has been woken and will look for more before it rests.
    keeper_busy: bool,
    closing: Option<Arc<str>>,
    /// The socket takes no more bytes, ever.
    broken: bool,
    liveness: Liveness,
    sent_at: Instant,
    refusals: Refusals,
}

impl Queue {
    fn bytes(&self) -> usize {
        (self.taken - self.written) as usize
    }

    /// The kernel took so many bytes.
    fn took(&mut self, bytes: usize, now: Instant) {
        self.written += bytes as u64;
        self.sent_at = now;
        self.liveness.sent(now.into_std());
        self.refusals.took(now.into_std());
    }
}

/// Where a queue stands.
pub(crate) struct Position {
    /// Bytes that `send` took, ever.
    pub(crate) taken: u64,
    /// Bytes that the kernel took, ever.
    pub(crate) written: u64,
    /// More of them may yet be written.
    pub(crate) open: bool,
}

/// What the keeper is to do next.
pub(crate) enum Task {
    /// The parts that it holds go to the socket.
    Write,
    /// Nothing until woken, or until this moment.
    Rest(Instant),
    /// Everything is written; say farewell with this reason.
    Finish(Arc<str>),
    /// The link has ended or is dead.
    Stop,
}

impl Shared {
    pub(crate) fn new(
        raw: Arc<OwnedWriteHalf>,
        pulse: Arc<Pulse>,
        direct: bool,
        terms: &Terms,
    ) -> Shared {
        let now = Instant::now();
        // The handshake's bytes are this link's first signs of life.
        pulse.received();
        Shared {
            raw,
            pulse,
            peer_address: terms.peer_address,
            timing: terms.timing,
            peer_frame_bytes_max: terms.peer_frame_bytes_max.min(FRAME_BYTES_MAX),
            queue_bytes_max: terms.send_queue_bytes_max,
            oldest: terms.oldest.clone(),
            direct,
            queue: Mutex::new(Queue {
                parts: VecDeque::new(),
                taken: 0,
                written: 0,
                keeper_busy: false,
                closing: None,
                broken: false,
                liveness: match terms.beat {
                    Some(beat) => Liveness::in_time(now.into_std(), terms.timing, beat),
                    None => Liveness::new(now.into_std(), terms.timing),
                },
                sent_at: now,
                refusals: Refusals::default(),
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

    /// Ends the link, unless it has ended: everybody learns it at once, and what was queued is
    /// dropped.
    pub(crate) fn end(&self, end: LinkEnd) -> LinkEnd {
        let reason = self.end.get_or_init(|| end).clone();
        let dropped = std::mem::take(&mut self.queue.lock().parts);
        drop(dropped);
        self.wake.notify_one();
        self.progress.notify_waiters();
        self.reader.wake();
        reason
    }

    /// Queues a frame, or hands it to the kernel at once when nothing is before it.
    pub(crate) fn send(&self, frame: Frame) -> Result<(), SendError> {
        self.send_within(frame, self.queue_bytes_max)
    }

    /// The same, if no more than `limit` bytes are queued then.
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
        if queue.keeper_busy {
            return Ok(());
        }
        if self.direct && length <= DIRECT_BYTES_MAX && self.write_at_once(&mut queue) {
            return Ok(());
        }
        queue.keeper_busy = true;
        drop(queue);
        self.wake.notify_one();
        Ok(())
    }

    /// True if the whole queue went to the kernel. What did not is the keeper's, errors as well: it
    /// meets them again.
    fn write_at_once(&self, queue: &mut Queue) -> bool {
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

    /// What the keeper is to do, now that `parts`, what it held, is written. It gets all that is
    /// queued.
    pub(crate) fn next_task(&self, parts: &mut VecDeque<Bytes>) -> Task {
        debug_assert!(parts.is_empty());
        let mut queue = self.queue.lock();
        if self.end.get().is_some() {
            return Task::Stop;
        }
        if queue.parts.is_empty() && queue.closing.is_none() {
            match self.due(&mut queue) {
                Some(Due::SendHeartbeat) => {
                    self.queue_heartbeat(&mut queue);
                    // What the kernel does not take is written below.
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
            queue.keeper_busy = true;
            std::mem::swap(&mut queue.parts, parts);
            return Task::Write;
        }
        if let Some(reason) = &queue.closing {
            return Task::Finish(reason.clone());
        }
        queue.keeper_busy = false;
        Task::Rest(queue.liveness.next_deadline().into())
    }

    /// A heartbeat has come. Answered at once, this side's own next one needs no timer and no
    /// wake-up, and carries the acknowledgement.
    pub(crate) fn heard_heartbeat(&self) {
        let mut queue = self.queue.lock();
        let idle = queue.parts.is_empty() && !queue.keeper_busy;
        if !idle || self.end.get().is_some() || queue.closing.is_some() || queue.broken {
            return;
        }
        // What TLS has sent is known only then.
        let _ = self.due(&mut queue);
        if !queue.liveness.answers(Instant::now().into_std()) {
            return;
        }
        self.queue_heartbeat(&mut queue);
        if self.direct && self.write_at_once(&mut queue) {
            return;
        }
        queue.keeper_busy = true;
        drop(queue);
        self.wake.notify_one();
    }

    fn queue_heartbeat(&self, queue: &mut Queue) {
        let age = self.oldest.age_ms(Instant::now().into_std());
        let mut heartbeat = FrameWriter::with_capacity(16);
        heartbeat.message(messages::HEARTBEAT, |out| age.iter().for_each(|ms| out.u64(*ms)));
        let heartbeat = heartbeat.finish();
        queue.taken += heartbeat.len() as u64;
        queue.parts.extend(heartbeat.into_parts());
    }

    /// The kernel took `bytes` of what the keeper holds.
    pub(crate) fn wrote(&self, bytes: usize) {
        let now = Instant::now();
        self.queue.lock().took(bytes, now);
        self.progress.notify_waiters();
    }

    /// The socket takes nothing of what the keeper holds: the moment at which to look again.
    pub(crate) fn refused(&self) -> Instant {
        let mut queue = self.queue.lock();
        let _ = self.due(&mut queue);
        let now = Instant::now();
        queue.liveness.refused(now.into_std());
        let first = queue.refusals.refused(now.into_std());
        let next = queue.liveness.next_deadline().into();
        drop(queue);
        if first {
            self.progress.notify_waiters();
        }
        next
    }

    /// Whether the link is dead.
    pub(crate) fn death(&self) -> Option<LinkEnd> {
        let due = self.due(&mut self.queue.lock())?;
        (due != Due::SendHeartbeat).then(|| death_of(due))
    }

    fn due(&self, queue: &mut Queue) -> Option<Due> {
        let liveness = &mut queue.liveness;
        liveness.received(self.pulse.received_at().into_std());
        if !self.direct && self.pulse.sent_at() > queue.sent_at {
            queue.sent_at = self.pulse.sent_at();
            liveness.sent(queue.sent_at.into_std());
            queue.refusals.took(queue.sent_at.into_std());
        }
        let now = Instant::now().into_std();
        let due = liveness.poll(now)?;
        if matches!(due, Due::Hung { .. }) && crate::socket::has_unread(&self.raw) {
            liveness.received(now);
            return liveness.poll(now);
        }
        Some(due)
    }

    /// The socket failed for writing: nothing more is taken.
    pub(crate) fn break_off(&self) {
        let mut queue = self.queue.lock();
        queue.broken = true;
        queue.parts.clear();
        drop(queue);
        self.progress.notify_waiters();
    }

    /// Takes nothing more; the link ends once what is queued was written.
    pub(crate) fn close(&self, reason: Arc<str>) {
        let mut queue = self.queue.lock();
        if queue.closing.is_none() {
            queue.closing = Some(reason);
        }
        drop(queue);
        self.wake.notify_one();
    }

    /// When the kernel first refused a byte, at or after `moment`; one that stands refused then
    /// counts from then.
    pub(crate) fn refused_after(&self, moment: std::time::Instant) -> Option<std::time::Instant> {
        self.queue.lock().refusals.first_after(moment)
    }

    /// Bytes that `send` took and the kernel has not.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.queue.lock().bytes()
    }

    /// Where the queue stands.
    pub(crate) fn position(&self) -> Position {
        let queue = self.queue.lock();
        Position {
            taken: queue.taken,
            written: queue.written,
            open: self.end.get().is_none() && !queue.broken,
        }
    }
}

fn death_of(due: Due) -> LinkEnd {
    match due {
        Due::Hung { silent_for } => LinkEnd::Hung { silent_for },
        Due::SendStalled { stalled_for } => LinkEnd::SendStalled { stalled_for },
        Due::SendHeartbeat => unreachable!("a heartbeat that is due is no death"),
    }
}

/// Runs `write` over the first parts, as many as one vectored write takes.
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
    use crate::link::{Hold, Peer};
    use crate::sender::LinkSender;
    use crate::socket::Connection;

    /// A link that nobody keeps: what the kernel takes and refuses is the test's to say.
    fn unkept() -> (LinkSender, Arc<Shared>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        let peer_address = stream.peer_addr().unwrap();
        let Connection { raw, pulse, .. } = Connection::plain(TcpStream::from_std(stream).unwrap());
        let terms = Terms {
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
            beat: None,
        };
        let shared = Arc::new(Shared::new(raw, pulse, false, &terms));
        (LinkSender { hold: Arc::new(Hold { shared: shared.clone() }) }, shared)
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_refused_and_taken_before_a_moment_is_not_held_against_what_follows_it() {
        const SECOND: Duration = Duration::from_secs(1);
        let (sender, shared) = unkept();
        for n in 0..10 {
            let mut out = FrameWriter::new();
            out.message(50, |out| out.u64(n));
            sender.send(out.finish()).unwrap();
        }
        shared.refused();
        // It takes a few bytes every second, and never all.
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
        assert_eq!(sender.refused_after(later).await, Ok(later), "it stands refused");
    }

    proptest! {
        #[test]
        fn whatever_part_is_written_the_rest_follows_it(
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
