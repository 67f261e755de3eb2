//! Waiting until subscribers have what was published, and parting with those that do not take it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep_until;

use super::wire::Wire;
use super::{Shared, now};

/// What a flush has come to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FlushReport {
    /// Links whose kernel buffers hold all that was committed before.
    pub flushed: usize,
    /// The names of the subscribers that were disconnected because they did not take it in time. A
    /// durable one comes back by itself.
    pub disconnected: Vec<String>,
    /// Links that ended meanwhile for other reasons.
    pub ended: usize,
}

/// How much longer one link has to take its part: what was committed before the flush and is not in
/// its kernel buffer. Pure: it is told the time.
///
/// - The time runs from the first byte of the part that the kernel refuses. A byte that stands
///   refused when the flush is asked for is one: then it runs from the call.
/// - What was refused before the call, and taken since, is not held against it: neither the time
///   until then, nor that it was.
/// - It is for the whole part. Bytes that are taken meanwhile give no more of it: who takes, but
///   not fast enough, is parted with as well.
/// - What was queued on the link behind the part while it was taken, at most the link's queue, is
///   waited for with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    asked_at: Instant,
    timeout: Option<Duration>,
}

impl Patience {
    /// A part that is waited for since `asked_at`.
    pub(super) fn new(asked_at: Instant, timeout: Option<Duration>) -> Patience {
        Patience { asked_at, timeout }
    }

    /// From when on refused bytes count.
    pub(super) fn asked_at(&self) -> Instant {
        self.asked_at
    }

    /// When it ends, for a link of which the kernel first refused a byte of the part at
    /// `refused_at`. While it refuses none there is no end: then it is this process that is slow.
    pub(super) fn ends_at(&self, refused_at: Instant) -> Option<Instant> {
        refused_at.max(self.asked_at).checked_add(self.timeout?)
    }
}

enum Part {
    Flushed,
    Ended,
    Late(Arc<str>),
}

pub(super) async fn flush(shared: &Arc<Shared>, timeout: Option<Duration>) -> FlushReport {
    let patience = Patience::new(now(), timeout);
    let mut parts = JoinSet::new();
    let lines = shared.core.lock().lines();
    for (wire, end) in lines {
        parts.spawn(take_part(wire, end, patience));
    }
    let mut report = FlushReport::default();
    while let Some(part) = parts.join_next().await {
        match part {
            Ok(Part::Flushed) => report.flushed += 1,
            Ok(Part::Ended) | Err(_) => report.ended += 1,
            Ok(Part::Late(name)) => report.disconnected.push(name.as_ref().to_owned()),
        }
    }
    report
}

/// Waits until a link has what stands in its line up to `end`, and its queue; or disconnects it.
async fn take_part(wire: Wire, end: u64, patience: Patience) -> Part {
    let sender = &wire.0.sender;
    let taken = async {
        loop {
            let mut advanced = std::pin::pin!(wire.0.advanced.notified());
            advanced.as_mut().enable();
            if wire.0.gone.load(Ordering::Acquire) >= end {
                break;
            }
            tokio::select! {
                () = advanced => {}
                _ = sender.closed() => return Part::Ended,
            }
        }
        match sender.flushed().await {
            Ok(()) => Part::Flushed,
            Err(_) => Part::Ended,
        }
    };
    let mut taken = std::pin::pin!(taken);
    let late = async {
        let Ok(refused_at) = sender.refused_after(patience.asked_at()).await else {
            return std::future::pending().await;
        };
        match patience.ends_at(refused_at) {
            Some(at) => sleep_until(at.into()).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        part = &mut taken => return part,
        () = late => {}
    }
    // A process that was stopped and continued finds the deadline passed before its sockets were
    // looked at: they have one more turn.
    let two_turns = async {
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
    };
    tokio::select! {
        biased;
        part = &mut taken => return part,
        () = two_turns => {}
    }
    let reason = format!("it did not take what was flushed within {:?}", patience.timeout);
    tracing::info!(subscriber = %wire.0.name, %reason, "a value link is cut");
    sender.cut(reason);
    Part::Late(wire.0.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn patience_counts_from_the_first_refused_byte_of_the_part() {
        let start = Instant::now();
        let patience = Patience::new(start, Some(SECOND));
        assert_eq!(patience.ends_at(start + 5 * SECOND), Some(start + 6 * SECOND));
        assert_eq!(patience.ends_at(start), Some(start + SECOND));
        assert_eq!(Patience::new(start, None).ends_at(start), None);
    }
}
