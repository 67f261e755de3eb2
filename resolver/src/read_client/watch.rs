//! Watches, as their callers use them.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use futures_core::Stream;
use longshore_protocol::limits::RESOLVER_GLOBS_MAX;
use longshore_protocol::messages::resolver::{PublisherGone, Publishers};
use longshore_protocol::{Glob, Incarnation, PublisherInfo, check_name};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::ReusableBoxFuture;

use crate::read_client::path_view::{PathEvent, PathView, WATCHED_PATHS_MAX, WatchEnded};
use crate::read_client::task::Command;
use crate::replica_link::Caller;

/// All publishers of a watch, as one replica knows them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PublisherSet {
    /// The replica, as `host:port`.
    pub replica: String,
    /// The replica's incarnation.
    pub incarnation: Incarnation,
    /// Its revision; it increases within one incarnation.
    pub revision: u64,
    /// False while the replica is warming: publishers may be missing from the set.
    pub complete: bool,
    /// The publishers, by id.
    pub publishers: Vec<PublisherInfo>,
}

impl PublisherSet {
    pub(super) fn new(replica: &str, received: Publishers) -> PublisherSet {
        PublisherSet {
            replica: replica.to_owned(),
            incarnation: received.tracker.incarnation,
            revision: received.tracker.revision,
            complete: received.complete,
            publishers: received.publishers,
        }
    }

    /// Removes a publisher. False if that changes nothing, or if it comes from another replica than
    /// the set.
    pub(super) fn remove(&mut self, gone: &PublisherGone) -> bool {
        if gone.tracker.incarnation != self.incarnation {
            return false;
        }
        let before = (self.publishers.len(), self.complete);
        self.publishers.retain(|info| info.id != gone.publisher);
        self.revision = self.revision.max(gone.tracker.revision);
        self.complete = gone.complete;
        (self.publishers.len(), self.complete) != before
    }
}

/// Whether there is a new set, and where it is.
type Changed = (bool, watch::Receiver<Option<PublisherSet>>);

async fn changed(mut newest: watch::Receiver<Option<PublisherSet>>) -> Changed {
    (newest.changed().await.is_ok(), newest)
}

/// A watch over publishers. Dropping it ends it.
#[derive(Debug)]
pub struct PublisherWatch {
    number: u32,
    changed: ReusableBoxFuture<'static, Changed>,
    commands: mpsc::UnboundedSender<Command>,
}

impl PublisherWatch {
    pub(super) fn start(
        number: u32,
        glob: Glob,
        commands: mpsc::UnboundedSender<Command>,
    ) -> PublisherWatch {
        let (update, newest) = watch::channel(None);
        let _ = commands.send(Command::Watch { watch: number, glob, update });
        PublisherWatch { number, changed: ReusableBoxFuture::new(changed(newest)), commands }
    }

    /// The publishers once they have changed, or come from another replica; at first, as soon as
    /// any replica has answered. Changes between two calls are merged into the latest state. Cancel
    /// safe.
    pub async fn changed(&mut self) -> PublisherSet {
        poll_fn(|context| self.poll_changed(context)).await
    }

    fn poll_changed(&mut self, context: &mut Context<'_>) -> Poll<PublisherSet> {
        loop {
            let (is_open, mut newest) = ready!(self.changed.poll(context));
            let set = newest.borrow_and_update().clone();
            self.changed.set(changed(newest));
            if !is_open {
                // The client's task has ended, and its runtime with it.
                return Poll::Pending;
            }
            if let Some(set) = set {
                return Poll::Ready(set);
            }
        }
    }
}

/// Never ends.
impl Stream for PublisherWatch {
    type Item = PublisherSet;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<PublisherSet>> {
        self.get_mut().poll_changed(context).map(Some)
    }
}

impl Drop for PublisherWatch {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Unwatch { watch: self.number });
    }
}

/// A watch over paths. Dropping it ends it.
#[derive(Debug)]
pub struct PathWatch {
    number: u32,
    shared: Arc<SharedView>,
    commands: mpsc::UnboundedSender<Command>,
    /// The stream has returned the error.
    ended: bool,
}

/// A view that the client's task writes and the watch reads.
#[derive(Debug)]
pub(super) struct SharedView {
    /// Locked for single steps only.
    view: Mutex<PathView>,
    /// The watch, while it waits. Lock order: after the view, never before.
    reader: Mutex<Option<Waker>>,
}

impl SharedView {
    /// Updates the view and wakes the watch.
    pub(super) fn update<T>(&self, change: impl FnOnce(&mut PathView) -> T) -> T {
        let outcome = change(&mut self.view.lock());
        let reader = self.reader.lock().take();
        reader.into_iter().for_each(Waker::wake);
        outcome
    }
}

impl PathWatch {
    pub(super) fn start(
        number: u32,
        caller: &Caller,
        globs: Vec<Glob>,
        commands: mpsc::UnboundedSender<Command>,
    ) -> PathWatch {
        let view = Mutex::new(PathView::new(WATCHED_PATHS_MAX));
        let shared = Arc::new(SharedView { view, reader: Mutex::default() });
        if let Err(error) = check_name(&caller.name) {
            shared.update(|view| view.end(WatchEnded::Name(error)));
        } else if caller.cluster.replicas.is_empty() {
            shared.update(|view| view.end(WatchEnded::NoReplicas));
        } else if globs.len() > RESOLVER_GLOBS_MAX {
            let (globs, limit) = (globs.len(), RESOLVER_GLOBS_MAX);
            shared.update(|view| view.end(WatchEnded::TooManyGlobs { globs, limit }));
        } else {
            let view = shared.clone();
            let globs = globs.into();
            let _ = commands.send(Command::WatchPaths { watch: number, globs, view });
        }
        PathWatch { number, shared, commands, ended: false }
    }

    /// The next event. Only differences for the reader are returned, whichever replica they come
    /// from; changes between two calls are merged per path. An error ends the watch. Cancel safe.
    pub async fn next(&mut self) -> Result<PathEvent, WatchEnded> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Polls for the next event, as [`next`](PathWatch::next) does.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<PathEvent, WatchEnded>> {
        let mut view = self.shared.view.lock();
        match view.take() {
            Ok(Some(event)) => Poll::Ready(Ok(event)),
            Ok(None) => {
                *self.shared.reader.lock() = Some(context.waker().clone());
                Poll::Pending
            }
            Err(why) => Poll::Ready(Err(why)),
        }
    }
}

/// Ends after an error.
impl Stream for PathWatch {
    type Item = Result<PathEvent, WatchEnded>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let watch = self.get_mut();
        if watch.ended {
            return Poll::Ready(None);
        }
        let event = ready!(watch.poll_next(context));
        watch.ended = event.is_err();
        Poll::Ready(Some(event))
    }
}

impl Drop for PathWatch {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Unwatch { watch: self.number });
    }
}

#[cfg(test)]
mod tests {
    use longshore_protocol::messages::resolver::{Departure, Tracker};
    use longshore_protocol::{Epoch, PublisherId, Role, SessionId};

    use super::*;
    use crate::Cluster;

    fn info(n: u8) -> PublisherInfo {
        let addresses = [([127, 0, 0, 1], 4000)];
        PublisherInfo::new(PublisherId([n; 16]), Epoch(1), "p", addresses)
    }

    fn gone(n: u8, incarnation: u8, complete: bool) -> PublisherGone {
        PublisherGone {
            watches: vec![1],
            tracker: Tracker { incarnation: Incarnation([incarnation; 16]), revision: 9 },
            complete,
            publisher: PublisherId([n; 16]),
            departure: Departure::Silent,
        }
    }

    #[test]
    fn a_departure_applies_only_to_the_set_of_the_same_replica() {
        let tracker = Tracker { incarnation: Incarnation([7; 16]), revision: 3 };
        let publishers = vec![info(1), info(2)];
        let received = Publishers { watch: 1, tracker, complete: true, publishers };
        let mut set = PublisherSet::new("a:1", received);
        assert!(!set.remove(&gone(1, 8, true)), "a departure of another replica is ignored");
        assert!(!set.remove(&gone(3, 7, true)), "it was not there");
        assert!(set.remove(&gone(1, 7, false)));
        assert_eq!(set.publishers, [info(2)]);
        // The set is marked incomplete, since the replica is warming.
        assert_eq!((set.revision, set.complete), (9, false));
    }

    #[tokio::test]
    async fn watch_of_a_cluster_without_replicas_ends() {
        let cluster = Cluster::new([""; 0]);
        let session = SessionId([1; 16]);
        let caller =
            Caller { cluster, role: Role::ResolverReader, session, name: "reader".to_owned() };
        let (commands, _received) = mpsc::unbounded_channel();
        let mut watch = PathWatch::start(1, &caller, vec![Glob::everything()], commands);
        let mut next =
            async || poll_fn(|context| Stream::poll_next(Pin::new(&mut watch), context)).await;
        assert_eq!(next().await, Some(Err(WatchEnded::NoReplicas)));
        assert_eq!(next().await, None);
    }
}
