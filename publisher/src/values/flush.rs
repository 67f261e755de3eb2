//! Waits until subscribers have what was committed, and disconnects those that do not accept it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep_until;

use super::link_handle::LinkHandle;
use super::{Shared, now};

/// The result of a flush.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FlushReport {
    /// Links whose kernel buffers hold everything committed before.
    pub flushed: usize,
    /// The names of the subscribers that were disconnected because they were too slow. A durable
    /// one reconnects by itself.
    pub disconnected: Vec<String>,
    /// Links that ended meanwhile for other reasons.
    pub ended: usize,
}

/// How long one link has to accept its part: what was committed before the flush and is not in its
/// kernel buffer. Pure: the time is an argument.
///
/// - The time runs from the first byte of the part that the kernel refuses. If a byte is already
///   refused at the call, it runs from the call.
/// - Refusals before the call that have ended by then do not count.
/// - It applies to the whole part. Progress does not extend it: a link that is too slow is
///   disconnected too.
/// - Frames queued on the link behind the part meanwhile, at most the link's queue, are waited for
///   with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlushDeadline {
    requested_at: Instant,
    timeout: Option<Duration>,
}

impl FlushDeadline {
    /// For a flush that began at `requested_at`.
    pub(super) fn new(requested_at: Instant, timeout: Option<Duration>) -> FlushDeadline {
        FlushDeadline { requested_at, timeout }
    }

    /// Refused bytes count from this time on.
    pub(super) fn requested_at(&self) -> Instant {
        self.requested_at
    }

    /// The deadline of a link whose kernel first refused a byte of the part at `refused_at`.
    /// Without a refusal there is none: then this process is slow.
    pub(super) fn ends_at(&self, refused_at: Instant) -> Option<Instant> {
        refused_at.max(self.requested_at).checked_add(self.timeout?)
    }
}

enum LinkFlush {
    Flushed,
    Ended,
    TimedOut(Arc<str>),
}

pub(super) async fn flush(shared: &Arc<Shared>, timeout: Option<Duration>) -> FlushReport {
    let deadline = FlushDeadline::new(now(), timeout);
    let mut parts = JoinSet::new();
    let backlog_ends = shared.core.lock().backlog_ends();
    for (handle, end) in backlog_ends {
        parts.spawn(flush_link(handle, end, deadline));
    }
    let mut report = FlushReport::default();
    while let Some(part) = parts.join_next().await {
        match part {
            Ok(LinkFlush::Flushed) => report.flushed += 1,
            Ok(LinkFlush::Ended) | Err(_) => report.ended += 1,
            Ok(LinkFlush::TimedOut(name)) => report.disconnected.push(name.as_ref().to_owned()),
        }
    }
    report
}

/// Waits until a link has sent its backlog up to `end`, and its queue; or disconnects it.
async fn flush_link(handle: LinkHandle, end: u64, deadline: FlushDeadline) -> LinkFlush {
    let sender = &handle.0.sender;
    let flushed = async {
        loop {
            let mut advanced = std::pin::pin!(handle.0.advanced.notified());
            advanced.as_mut().enable();
            if handle.0.sent.load(Ordering::Acquire) >= end {
                break;
            }
            tokio::select! {
                () = advanced => {}
                _ = sender.closed() => return LinkFlush::Ended,
            }
        }
        match sender.flushed().await {
            Ok(()) => LinkFlush::Flushed,
            Err(_) => LinkFlush::Ended,
        }
    };
    let mut flushed = std::pin::pin!(flushed);
    let late = async {
        let Ok(refused_at) = sender.refused_after(deadline.requested_at()).await else {
            return std::future::pending().await;
        };
        match deadline.ends_at(refused_at) {
            Some(at) => sleep_until(at.into()).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        part = &mut flushed => return part,
        () = late => {}
    }
    // A process that was stopped and continued sees the deadline pass before its sockets are
    // polled: they get one more turn.
    let two_turns = async {
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
    };
    tokio::select! {
        biased;
        part = &mut flushed => return part,
        () = two_turns => {}
    }
    let reason = format!("it did not take what was flushed within {:?}", deadline.timeout);
    tracing::info!(subscriber = ?handle.0.name, %reason, "a value link is cut");
    sender.cut(reason);
    LinkFlush::TimedOut(handle.0.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn deadline_runs_from_the_first_refused_byte() {
        let start = Instant::now();
        let deadline = FlushDeadline::new(start, Some(SECOND));
        assert_eq!(deadline.ends_at(start + 5 * SECOND), Some(start + 6 * SECOND));
        assert_eq!(deadline.ends_at(start), Some(start + SECOND));
        assert_eq!(FlushDeadline::new(start, None).ends_at(start), None);
    }
}
