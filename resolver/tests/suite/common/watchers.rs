//! Many watches of one subtree over some links, each with its own view; and the writer whose
//! changes they receive.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use longshore_protocol::{Epoch, Glob, Path, PublicationKind, PublisherId, PublisherInfo, Terms};
use longshore_resolver::{
    CheckedTerms, Cluster, PathAnswer, PathEvent, PathListed, ReadClient, WriteClient,
};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

/// Changes are made in batches, this often.
const PACE: Duration = Duration::from_millis(10);
/// The number of different priorities.
const PRIORITIES: u16 = 3;

/// The state of a path as bits, as watches receive it; 0: not there.
pub type PathState = u8;
const QUEUE: PathState = 1;
const VALUE: PathState = 2;
const DEFAULT: PathState = 4;

/// Path number `n`. Sixteen below each parent, so that the subtree has a second level.
fn path(n: usize) -> Path {
    Path::new(&format!("/load/{:04}/{n:06}", n / 16)).expect("it is a path")
}

fn probe(n: usize) -> Path {
    Path::new(&format!("/load/probe/{n:06}")).expect("it is a path")
}

/// Path number `n` of those that come and go all at once, of the maximum usual length: 200 bytes.
fn wide(n: usize) -> Path {
    Path::new(&format!("/load/wide/{n:0189}")).expect("it is a path")
}

/// The purpose of a path of the subtree.
enum PathKind {
    Number(usize),
    Probe(usize),
    Wide,
}

fn path_kind(path: &Path) -> PathKind {
    let number = || path.as_str().rsplit('/').next().and_then(|last| last.parse().ok());
    match path.as_str().split('/').nth(2) {
        Some("wide") => PathKind::Wide,
        Some("probe") => PathKind::Probe(number().expect("a probe")),
        _ => PathKind::Number(number().expect("a path that the writer numbered")),
    }
}

/// When each probe was published, and when the last watch received it.
#[derive(Default, Debug)]
pub struct Probes {
    made: Mutex<Vec<Instant>>,
    received: Vec<AtomicUsize>,
    all_received_us: Vec<AtomicU64>,
}

impl Probes {
    fn received(&self, n: usize, of: usize) {
        if self.received[n].fetch_add(1, Ordering::Relaxed) + 1 == of {
            let took = self.made.lock()[n].elapsed();
            self.all_received_us[n].store(took.as_micros() as u64, Ordering::Relaxed);
        }
    }

    /// The time that each probe took to the last watch, sorted. `None` while one is in flight.
    pub fn took(&self) -> Option<Vec<Duration>> {
        let made = self.made.lock().len();
        let took = |us: &AtomicU64| Duration::from_micros(us.load(Ordering::Relaxed));
        let mut all: Vec<Duration> = self.all_received_us[..made].iter().map(took).collect();
        all.sort_unstable();
        (!all.contains(&Duration::ZERO)).then_some(all)
    }
}

/// The view of one watch's reader, built only from the watch's events.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchView {
    pub is: Vec<PathState>,
    /// The wide paths that are there.
    pub wide: BTreeSet<Path>,
    /// The last `Whole` event: `Some(false)` from a warming replica.
    pub caught_up: Option<bool>,
    /// The replica of the watch.
    pub replica: String,
}

impl WatchView {
    pub fn of(paths: usize) -> WatchView {
        WatchView {
            is: vec![0; paths],
            wide: BTreeSet::new(),
            caught_up: None,
            replica: String::new(),
        }
    }

    /// Whether the view equals `expected`, and is complete.
    pub fn is_current(&self, expected: &[PathState]) -> bool {
        self.caught_up == Some(true) && self.is == expected && self.wide.is_empty()
    }

    /// Sets the state of a path. Returns its number if it is a probe.
    pub fn now(&mut self, listed: PathListed) -> Option<usize> {
        let bit = |is: bool, bit: PathState| if is { bit } else { 0 };
        let PathListed { path, queue, value, default } = listed;
        let is = bit(queue, QUEUE) | bit(value, VALUE) | bit(default, DEFAULT);
        match path_kind(&path) {
            PathKind::Number(n) => self.is[n] = is,
            PathKind::Probe(n) => return Some(n),
            PathKind::Wide if is == 0 => {
                self.wide.remove(&path);
            }
            PathKind::Wide => {
                self.wide.insert(path);
            }
        }
        None
    }
}

/// The watches.
pub struct WatcherGroup {
    views: Vec<Arc<Mutex<WatchView>>>,
    pub events: Arc<AtomicU64>,
    pub probes: Arc<Probes>,
    /// Ends the watches, and their links, when dropped.
    _readers: JoinSet<()>,
}

impl WatcherGroup {
    /// So many watches of everything below `/load`, over so many links; for up to `paths` paths,
    /// and probes.
    pub fn start(
        cluster: &Cluster,
        watches: usize,
        links: usize,
        paths: usize,
        probes: usize,
    ) -> WatcherGroup {
        let (mut views, mut readers) = (Vec::new(), JoinSet::new());
        let zeros = |count| (0..count).map(|_| AtomicUsize::new(0)).collect();
        let all_received_us = (0..probes).map(|_| AtomicU64::new(0)).collect();
        let probes = Probes { made: Mutex::default(), received: zeros(probes), all_received_us };
        let (probes, events) = (Arc::new(probes), Arc::new(AtomicU64::new(0)));
        for link in 0..links {
            let client = ReadClient::builder().name(format!("{link}")).connect(cluster.clone());
            for _ in (link..watches).step_by(links) {
                let mut watch = client.watch_paths(vec![Glob::new("/load/**").expect("a glob")]);
                let view = Arc::new(Mutex::new(WatchView::of(paths)));
                views.push(view.clone());
                let (probes, events) = (probes.clone(), events.clone());
                readers.spawn(async move {
                    while let Ok(event) = watch.next().await {
                        events.fetch_add(1, Ordering::Relaxed);
                        apply(&view, event, &probes, watches);
                    }
                });
            }
        }
        WatcherGroup { views, events, probes, _readers: readers }
    }

    /// The number of watches whose view differs from this, or is incomplete.
    pub fn differing(&self, expected: &[PathState]) -> usize {
        let differing = |view: &&Arc<Mutex<WatchView>>| !view.lock().is_current(expected);
        self.views.iter().filter(differing).count()
    }

    /// One of the differing views, for people.
    pub fn describe_differing(&self, expected: &[PathState]) -> String {
        for (watch, view) in self.views.iter().enumerate() {
            let view = view.lock();
            let wrong: Vec<(usize, PathState, PathState)> = (0..expected.len())
                .filter(|&n| view.is[n] != expected[n])
                .map(|n| (n, view.is[n], expected[n]))
                .collect();
            if !view.is_current(expected) {
                let WatchView { caught_up, replica, wide, .. } = &*view;
                return format!(
                    "watch {watch} at {replica}, caught up {caught_up:?}, {} too many: \
                     (path, actual, expected) {wrong:?}",
                    wide.len()
                );
            }
        }
        String::from("none")
    }

    /// The number of watches at that replica.
    pub fn at(&self, replica: &str) -> usize {
        self.views.iter().filter(|view| view.lock().replica == replica).count()
    }
}

fn apply(view: &Mutex<WatchView>, event: PathEvent, probes: &Probes, watches: usize) {
    let mut view = view.lock();
    match event {
        PathEvent::SnapshotBegins { replica } => {
            view.replica = replica;
            view.caught_up = None;
        }
        PathEvent::Now(listed) => {
            if let Some(probe) = view.now(listed) {
                probes.received(probe, watches);
            }
        }
        PathEvent::Gone(path) => {
            let gone = PathListed { path, queue: false, value: false, default: false };
            view.now(gone);
        }
        PathEvent::Whole { complete } => view.caught_up = Some(complete),
        PathEvent::Refused { reason, .. } => panic!("refused: {reason}"),
    }
}

/// A publisher, and what it publishes.
pub struct Writer {
    client: WriteClient,
    random: StdRng,
    terms: Vec<CheckedTerms>,
    /// The index of its terms by path, if it is published.
    queue_or_value: Vec<Option<usize>>,
    default: Vec<bool>,
    probes: usize,
}

impl Writer {
    pub fn new(cluster: &Cluster, paths: usize, seed: u64) -> Writer {
        let publisher = PublisherInfo::new(
            PublisherId([1; 16]),
            Epoch(1),
            "publisher-1",
            [([127, 0, 0, 1], 4001)],
        );
        let kinds = [PublicationKind::Queue, PublicationKind::Value];
        let terms = kinds.into_iter().flat_map(|kind| {
            (0..PRIORITIES).map(move |priority| Terms { kind, priority, ..Terms::default() })
        });
        let terms = terms.map(|terms| CheckedTerms::new(terms).expect("they are right"));
        Writer {
            client: WriteClient::connect(cluster.clone(), publisher),
            random: StdRng::seed_from_u64(seed),
            terms: terms.collect(),
            queue_or_value: vec![None; paths],
            default: vec![false; paths],
            probes: 0,
        }
    }

    /// Publishes about half of the paths at first.
    pub fn begin(&mut self) {
        for n in 0..self.queue_or_value.len() {
            if self.random.random() {
                self.publish_something(n);
            }
        }
    }

    fn publish_something(&mut self, n: usize) {
        let which = self.random.random_range(0..self.terms.len());
        self.client.publish(path(n), &self.terms[which]);
        self.queue_or_value[n] = Some(which);
    }

    /// A path comes, goes or comes back, or is published on other terms; now and then a default.
    fn change(&mut self) {
        let n = self.random.random_range(0..self.queue_or_value.len());
        match self.random.random_range(0..10) {
            0 if self.default[n] => {
                self.client.unpublish_default(path(n));
                self.default[n] = false;
            }
            0 => {
                self.client.publish_default(path(n), &CheckedTerms::default());
                self.default[n] = true;
            }
            1..6 if self.queue_or_value[n].is_some() => {
                self.client.unpublish(path(n));
                self.queue_or_value[n] = None;
            }
            _ => self.publish_something(n),
        }
    }

    /// Makes so many changes a second, for so long. Returns their number.
    pub async fn run(&mut self, rate: usize, lasts: Duration) -> usize {
        let (began, mut done) = (Instant::now(), 0);
        let mut pace = interval(PACE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
        while began.elapsed() < lasts {
            pace.tick().await;
            let due = (began.elapsed().as_secs_f64() * rate as f64) as usize;
            while done < due {
                self.change();
                done += 1;
            }
        }
        done
    }

    /// Publishes one more path, which stays, if there is to be another probe.
    pub fn probe(&mut self, probes: &Probes) {
        if self.probes < probes.received.len() {
            probes.made.lock().push(Instant::now());
            self.client.publish(probe(self.probes), &self.terms[0]);
            self.probes += 1;
        }
    }

    /// Publishes so many paths of 200 bytes, and removes them.
    pub async fn come_and_go(&self, paths: usize) {
        self.client.publish_all((0..paths).map(|n| (wide(n), self.terms[0].clone())));
        self.flushed(1).await;
        self.client.unpublish_all((0..paths).map(wide));
        self.flushed(1).await;
    }

    /// Waits until so many replicas have everything.
    pub async fn flushed(&self, replicas: usize) {
        self.client.flushed(replicas).await;
    }

    /// The states that watches have to receive.
    pub fn expected(&self) -> Vec<PathState> {
        let is = |n: usize| {
            let kind = self.queue_or_value[n].map(|which| self.terms[which].kind);
            let published = match kind {
                Some(PublicationKind::Queue) => QUEUE,
                Some(PublicationKind::Value) => VALUE,
                None => 0,
            };
            published | if self.default[n] { DEFAULT } else { 0 }
        };
        (0..self.queue_or_value.len()).map(is).collect()
    }

    /// The paths that a resolver answers otherwise than they are published, all terms included.
    pub async fn wrongly_resolved(&self, cluster: &Cluster) -> Vec<usize> {
        let client = ReadClient::builder().name("checker").connect(cluster.clone());
        let all = (0..self.queue_or_value.len()).map(path).collect();
        let answers = client.resolve(all).await.expect("it answers").answers;
        let wrong = |&n: &usize| {
            let expected = self.queue_or_value[n].map(|which| &*self.terms[which]);
            match (&answers[n], expected) {
                (PathAnswer::NotFound, None) => self.default[n],
                (PathAnswer::Publishers { set, .. }, None) => !self.default[n] || set.len() != 1,
                (PathAnswer::Publishers { set, .. }, Some(expected)) => {
                    set.len() != 1 || set[0].terms != *expected
                }
                _ => true,
            }
        };
        (0..self.queue_or_value.len()).filter(wrong).collect()
    }
}
