//! Subscriptions to every value that matches a glob, as values are published and withdrawn.
//!
//! One watch over the directory and one reader of updates serve all paths, without a task of their
//! own: they advance while the caller waits for the next event.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;
use hashbrown::HashMap;
use longshore_protocol::messages::resolver::PathListed;
use longshore_protocol::messages::values::Policy;
use longshore_protocol::{Glob, Path, Value};
use longshore_resolver::{PathEvent, WatchEnded};

use super::event::{Event, SubscriptionKey};
use super::handles::DurableValue;
use super::network::{Network, PathSource, TcpNetwork};
use super::subscriber::{GenericSubscriber, SubscribeOptions};
use super::updates::Updates;

/// Most updates of all matching values that wait for the reader; beyond it, the policy decides. As
/// many again may have been taken from there and not been returned.
pub const MATCHING_UPDATES_MAX: usize = 65_536;
/// Most changes of the directory that are read at once; their paths are subscribed together.
const CHANGES_AT_ONCE: usize = 4_096;

/// The values that match a glob ([`Subscriber::durable_subscribe_matching`]). Dropping it
/// unsubscribes. As a `Stream` it has the items of [`next`](MatchingValues::next).
///
/// [`Subscriber::durable_subscribe_matching`]: crate::Subscriber::durable_subscribe_matching
#[derive(Debug)]
pub struct MatchingValues {
    inner: GenericMatching<TcpNetwork>,
}

/// An event of [`MatchingValues`]. Those of one path are between its `Arrived` and its `Gone`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MatchEvent {
    /// Somebody publishes a value at this path. Its first update follows.
    Arrived(Path),
    /// A value: first the current one, then each update.
    Update(Path, Value),
    /// The subscription to this path was lost, for this reason, and is retried. The next `Update`
    /// reports that it is alive again.
    Dead(Path, Arc<str>),
    /// Nobody publishes the path any more.
    Gone(Path),
    /// All paths that one replica of the resolver knows have arrived.
    Whole {
        /// False while the replica is warming: there may be more paths.
        complete: bool,
    },
}

impl MatchingValues {
    pub(crate) fn new(inner: GenericMatching<TcpNetwork>) -> MatchingValues {
        MatchingValues { inner }
    }

    /// Waits for the next event. An error is the last item: more than 1,000,000 paths match, or the
    /// subscriber's name is invalid. Cancel safe.
    pub async fn next(&mut self) -> Option<Result<MatchEvent, WatchEnded>> {
        std::future::poll_fn(|context| self.inner.poll_next(context)).await
    }

    /// The last value of a path; none if it has not arrived, or has no value yet.
    pub fn last(&self, path: &Path) -> Option<Value> {
        self.inner.last(path)
    }
}

impl Stream for MatchingValues {
    type Item = Result<MatchEvent, WatchEnded>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.inner.poll_next(context)
    }
}

/// [`MatchingValues`] over any [`Network`].
pub(crate) struct GenericMatching<N: Network> {
    subscriber: GenericSubscriber<N>,
    glob: Glob,
    options: SubscribeOptions,
    /// None after its end.
    watch: Option<N::PathSource>,
    updates: Updates,
    paths: HashMap<SubscriptionKey, Path>,
    subscriptions: BTreeMap<Path, DurableValue>,
    /// Those of them that the replica does not list, though they are alive: their publishers cannot
    /// reach it. They go once they are lost.
    unlisted: BTreeSet<Path>,
    /// Events that the reader has not taken.
    unread: VecDeque<MatchEvent>,
}

impl<N: Network> GenericMatching<N> {
    pub(crate) fn new(subscriber: GenericSubscriber<N>, glob: Glob, policy: Policy) -> Self {
        let mut globs = vec![glob.clone()];
        if is_of_metrics(&glob) {
            // The directory lists only the defaults of metrics, which are created on demand.
            globs.extend(Glob::new("/sys/*/*"));
        }
        let watch = Some(subscriber.watch(globs));
        let updates = Updates::new(MATCHING_UPDATES_MAX);
        let into = Some(updates.sink());
        GenericMatching {
            subscriber,
            glob,
            options: SubscribeOptions { policy, into, ..SubscribeOptions::default() },
            watch,
            updates,
            paths: HashMap::new(),
            subscriptions: BTreeMap::new(),
            unlisted: BTreeSet::new(),
            unread: VecDeque::new(),
        }
    }

    pub(crate) fn last(&self, path: &Path) -> Option<Value> {
        self.subscriptions.get(path)?.last()
    }

    pub(crate) fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<MatchEvent, WatchEnded>>> {
        loop {
            if let Some(event) = self.unread.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if self.watch.is_none() {
                return Poll::Ready(None);
            }
            // Updates first: what was received before a departure is not lost.
            let updates = self.updates.poll_fill(context);
            let waits_for_updates = updates.is_pending();
            let mut lost = Vec::new();
            if let Poll::Ready(updates) = updates {
                for (key, event) in updates.drain(..) {
                    // Unknown after its path has gone.
                    let Some(path) = self.paths.get(&key).cloned() else { continue };
                    match event {
                        Event::Update(value) => {
                            self.unread.push_back(MatchEvent::Update(path, value));
                        }
                        Event::Dead(reason) => {
                            self.unread.push_back(MatchEvent::Dead(path.clone(), reason));
                            lost.extend(self.unlisted.take(&path));
                        }
                    }
                }
                lost.iter().for_each(|path| self.remove(path));
            }
            match self.read_changes(context) {
                // Updates of paths that have gone leave nothing unread, and wake nobody again.
                Ok(Poll::Pending) if self.unread.is_empty() && waits_for_updates => {
                    return Poll::Pending;
                }
                Ok(_) => {}
                Err(why) => {
                    self.end();
                    return Poll::Ready(Some(Err(why)));
                }
            }
        }
    }

    /// Reads the changes of the directory that are there; ready if there may be more.
    fn read_changes(&mut self, context: &mut Context<'_>) -> Result<Poll<()>, WatchEnded> {
        let (mut arrived, mut state) = (BTreeSet::new(), Poll::Ready(()));
        for _ in 0..CHANGES_AT_ONCE {
            let Some(watch) = &mut self.watch else { break };
            let Poll::Ready(change) = watch.poll_next(context) else {
                state = Poll::Pending;
                break;
            };
            match change? {
                PathEvent::Now(listed) => {
                    let values = values_of(&self.glob, &listed);
                    values.iter().for_each(|path| _ = self.unlisted.remove(path));
                    if values.is_empty() {
                        // It may have had a value before.
                        arrived.remove(&listed.path);
                        self.remove(&listed.path);
                    }
                    let new = |path: &Path| !self.subscriptions.contains_key(path);
                    arrived.extend(values.into_iter().filter(new));
                }
                PathEvent::Gone(path) => {
                    arrived.retain(|new| !is_of(new, &path));
                    self.remove(&path);
                }
                PathEvent::Whole { complete } => {
                    self.subscribe(std::mem::take(&mut arrived));
                    self.unread.push_back(MatchEvent::Whole { complete });
                }
                PathEvent::SnapshotBegins { .. } => {}
                PathEvent::Refused { replica, reason } => {
                    tracing::warn!(%replica, %reason, "watch refused; trying another replica");
                }
            }
        }
        self.subscribe(arrived);
        Ok(state)
    }

    fn subscribe(&mut self, arrived: BTreeSet<Path>) {
        self.unread.extend(arrived.iter().cloned().map(MatchEvent::Arrived));
        let paths: Vec<Path> = arrived.into_iter().collect();
        for value in self.subscriber.durable_subscribe_all(paths, &self.options) {
            self.paths.insert(value.key(), value.path().clone());
            self.subscriptions.insert(value.path().clone(), value);
        }
    }

    /// Unsubscribes from a path that has gone, and from metrics that were created below it. One
    /// that is alive stays: its publisher is there, and would have ended it.
    fn remove(&mut self, gone: &Path) {
        let removed: Vec<Path> = match gone.is_reserved() {
            true => self.subscriptions.keys().filter(|path| is_of(path, gone)).cloned().collect(),
            false => vec![gone.clone()],
        };
        for path in removed {
            if self.subscriptions.get(&path).is_some_and(|value| value.sub().is_alive()) {
                self.unlisted.insert(path);
                continue;
            }
            if let Some(value) = self.subscriptions.remove(&path) {
                self.paths.remove(&value.key());
                self.unread.push_back(MatchEvent::Gone(path));
            }
        }
    }

    /// The watch has ended: nothing is subscribed any more.
    fn end(&mut self) {
        self.watch = None;
        self.paths.clear();
        self.subscriptions.clear();
        self.unlisted.clear();
    }
}

fn is_of_metrics(glob: &Glob) -> bool {
    glob.as_str().starts_with("/sys/")
}

/// True if the directory's entry `listed` stands for the value at `path`.
fn is_of(path: &Path, listed: &Path) -> bool {
    path == listed || (listed.is_reserved() && path.is_at_or_below(listed))
}

/// The values to subscribe for an entry of the directory. Metrics are created on demand at and
/// below their default.
fn values_of(glob: &Glob, listed: &PathListed) -> Vec<Path> {
    let mut values = Vec::new();
    if listed.value {
        values.push(listed.path.clone());
    }
    if listed.default && listed.path.is_reserved() && is_of_metrics(glob) {
        let below: &[&str] = match listed.path.segments().nth(1) {
            Some("publishers") => &["", "/queues", "/workers"],
            _ => &[""],
        };
        let path = |name| Path::new(&format!("{}{name}", listed.path)).ok();
        values.extend(below.iter().filter_map(path));
    }
    values.retain(|path| glob.matches(path));
    values
}

impl<N: Network> std::fmt::Debug for GenericMatching<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let paths = self.subscriptions.len();
        f.debug_struct("Matching").field("glob", &self.glob).field("paths", &paths).finish()
    }
}
