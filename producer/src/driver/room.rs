//! The calls that wait for room in a stream.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::futures::Notified;
use tokio::sync::{Mutex, MutexGuard, Notify};

/// Calls get room in the order in which they came. Otherwise single jobs would take it as it
/// becomes free, and an atomic batch, which needs a lot at once, would never have enough.
#[derive(Default)]
pub(crate) struct Room {
    /// Notified when jobs of the stream have finished.
    freed: Notify,
    /// Held by the first in the line.
    first: Mutex<()>,
    /// Calls in the line, the first included.
    in_line: AtomicUsize,
}

/// A place in the line. Dropping it leaves the line.
pub(crate) struct Place<'a> {
    room: &'a Room,
    _first: Option<MutexGuard<'a, ()>>,
}

impl Room {
    /// True if a call that comes now has to wait for others.
    pub(crate) fn has_line(&self) -> bool {
        self.in_line.load(Ordering::SeqCst) > 0
    }

    /// Waits in the line until all earlier calls have left it. Cancel safe.
    pub(crate) async fn stand_in_line(&self) -> Place<'_> {
        self.in_line.fetch_add(1, Ordering::SeqCst);
        // Before the wait: dropped during it, it leaves the line, too.
        let mut place = Place { room: self, _first: None };
        place._first = Some(self.first.lock().await);
        place
    }

    /// When jobs of the stream next finish. Enable it before trying for room.
    pub(crate) fn freed(&self) -> Notified<'_> {
        self.freed.notified()
    }

    pub(crate) fn notify_freed(&self) {
        self.freed.notify_waiters();
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.room.in_line.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    #[test]
    fn the_line_is_in_order_and_may_be_left() {
        let room = Room::default();
        let context = &mut Context::from_waker(Waker::noop());
        assert!(!room.has_line());
        let mut first = Box::pin(room.stand_in_line());
        let Poll::Ready(place) = first.as_mut().poll(context) else { panic!("nobody waits") };
        {
            let mut left = pin!(room.stand_in_line());
            assert!(left.as_mut().poll(context).is_pending());
        }
        let mut second = pin!(room.stand_in_line());
        let mut third = pin!(room.stand_in_line());
        assert!(second.as_mut().poll(context).is_pending());
        assert!(third.as_mut().poll(context).is_pending());
        drop(place);
        assert!(third.as_mut().poll(context).is_pending(), "the second comes before");
        let Poll::Ready(place) = second.as_mut().poll(context) else { panic!("it is first") };
        drop(place);
        let Poll::Ready(place) = third.as_mut().poll(context) else { panic!("it is first") };
        assert!(room.has_line());
        drop(place);
        assert!(!room.has_line());
    }
}
