//! Many watches of one subtree over some links, each with what it believes; and the writer whose
//! changes they are told of.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use longshore_protocol::{
    Epoch, Glob, Path, PublicationKind, PublisherId, PublisherInfo, SessionId, Terms,
};
use longshore_resolver::{
    Cluster, PathAnswer, PathEvent, PathListed, PublicationTerms, ReadClient, WriteClient,
};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

/// Changes are made in portions, this often.
const PACE: Duration = Duration::from_millis(10);
/// Priorities from among so many.
const PRIORITIES: u16 = 3;

/// What is published at a path, as bits; 0: nothing. Watches are told these.
pub type Is = u8;
const QUEUE: Is = 1;
const VALUE: Is = 2;
const DEFAULT: Is = 4;

/// Path number `n`. Sixteen below each parent, so that the subtree has a second level.
fn path(n: usize) -> Path {
    Path::new(&format!("/load/{:04}/{n:06}", n / 16)).expect("it is a path")
}

fn mark(n: usize) -> Path {
    Path::new(&format!("/load/mark/{n:06}")).expect("it is a path")
}

/// Path number `n` of those that come and go all at once, as long as paths get: 200 bytes.
fn wide(n: usize) -> Path {
    Path::new(&format!("/load/wide/{n:0189}")).expect("it is a path")
}

/// What a path of the subtree is for.
enum Place {
    Number(usize),
    Mark(usize),
    Wide,
}

fn place(path: &Path) -> Place {
    let number = || path.as_str().rsplit('/').next().and_then(|last| last.parse().ok());
    match path.as_str().split('/').nth(2) {
        Some("wide") => Place::Wide,
        Some("mark") => Place::Mark(number().expect("a mark")),
        _ => Place::Number(number().expect("a path that the writer numbered")),
    }
}

/// When each mark was made, and when the last watch was told of it.
#[derive(Default, Debug)]
pub struct Marks {
    made: Mutex<Vec<Instant>>,
    told: Vec<AtomicUsize>,
    all_told_us: Vec<AtomicU64>,
}

impl Marks {
    fn told(&self, n: usize, of: usize) {
        if self.told[n].fetch_add(1, Ordering::Relaxed) + 1 == of {
            let took = self.made.lock()[n].elapsed();
            self.all_told_us[n].store(took.as_micros() as u64, Ordering::Relaxed);
        }
    }

    /// How long each mark took to the last watch, sorted. None while one is under way.
    pub fn took(&self) -> Option<Vec<Duration>> {
        let made = self.made.lock().len();
        let took = |us: &AtomicU64| Duration::from_micros(us.load(Ordering::Relaxed));
        let mut all: Vec<Duration> = self.all_told_us[..made].iter().map(took).collect();
        all.sort_unstable();
        (!all.contains(&Duration::ZERO)).then_some(all)
    }
}

/// What the reader of one watch believes, from nothing but what the watch told it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Belief {
    pub is: Vec<Is>,
    /// How many of those are there that come and go all at once.
    pub wide: BTreeSet<Path>,
    /// It was told that this is all: `Some(false)` by a replica that is warming.
    pub whole: Option<bool>,
    /// The replica that tells.
    pub replica: String,
}

impl Belief {
    pub fn of(paths: usize) -> Belief {
        Belief { is: vec![0; paths], wide: BTreeSet::new(), whole: None, replica: String::new() }
    }

    /// Nothing else than this, and that it is all.
    pub fn is_true(&self, truth: &[Is]) -> bool {
        self.whole == Some(true) && self.is == truth && self.wide.is_empty()
    }

    /// A path is this now. The number of the mark that it is, if it is one.
    pub fn now(&mut self, listed: PathListed) -> Option<usize> {
        let bit = |is: bool, bit: Is| if is { bit } else { 0 };
        let PathListed { path, queue, value, default } = listed;
        let is = bit(queue, QUEUE) | bit(value, VALUE) | bit(default, DEFAULT);
        match place(&path) {
            Place::Number(n) => self.is[n] = is,
            Place::Mark(n) => return Some(n),
            Place::Wide if is == 0 => {
                self.wide.remove(&path);
            }
            Place::Wide => {
                self.wide.insert(path);
            }
        }
        None
    }
}

/// The watches.
pub struct Crowd {
    beliefs: Vec<Arc<Mutex<Belief>>>,
    pub events: Arc<AtomicU64>,
    pub marks: Arc<Marks>,
    /// Ends the watches, and their links, when dropped.
    _readers: JoinSet<()>,
}

impl Crowd {
    /// So many watches of everything below `/load`, over so many links; `paths` there may be, and
    /// marks.
    pub fn start(
        cluster: &Cluster,
        watches: usize,
        links: usize,
        paths: usize,
        marks: usize,
    ) -> Crowd {
        let (mut beliefs, mut readers) = (Vec::new(), JoinSet::new());
        let zeros = |count| (0..count).map(|_| AtomicUsize::new(0)).collect();
        let all_told_us = (0..marks).map(|_| AtomicU64::new(0)).collect();
        let marks = Marks { made: Mutex::default(), told: zeros(marks), all_told_us };
        let (marks, events) = (Arc::new(marks), Arc::new(AtomicU64::new(0)));
        for link in 0..links {
            let client = ReadClient::new(cluster.clone(), SessionId([9; 16]), format!("{link}"));
            for _ in (link..watches).step_by(links) {
                let mut watch = client.watch_paths(vec![Glob::new("/load/**").expect("a glob")]);
                let belief = Arc::new(Mutex::new(Belief::of(paths)));
                beliefs.push(belief.clone());
                let (marks, events) = (marks.clone(), events.clone());
                readers.spawn(async move {
                    while let Ok(event) = watch.next().await {
                        events.fetch_add(1, Ordering::Relaxed);
                        believe(&belief, event, &marks, watches);
                    }
                });
            }
        }
        Crowd { beliefs, events, marks, _readers: readers }
    }

    /// How many of the watches believe something else than this, or have not been told that it is
    /// all.
    pub fn astray(&self, truth: &[Is]) -> usize {
        let astray = |belief: &&Arc<Mutex<Belief>>| !belief.lock().is_true(truth);
        self.beliefs.iter().filter(astray).count()
    }

    /// One of those that are astray, and what it has wrong: for people.
    pub fn one_astray(&self, truth: &[Is]) -> String {
        for (watch, belief) in self.beliefs.iter().enumerate() {
            let belief = belief.lock();
            let wrong: Vec<(usize, Is, Is)> = (0..truth.len())
                .filter(|&n| belief.is[n] != truth[n])
                .map(|n| (n, belief.is[n], truth[n]))
                .collect();
            if !belief.is_true(truth) {
                let Belief { whole, replica, wide, .. } = &*belief;
                return format!(
                    "watch {watch} at {replica}, whole {whole:?}, {} too many: (path, believed, true) {wrong:?}",
                    wide.len()
                );
            }
        }
        String::from("none")
    }

    /// How many are told by that replica.
    pub fn at(&self, replica: &str) -> usize {
        self.beliefs.iter().filter(|belief| belief.lock().replica == replica).count()
    }
}

fn believe(belief: &Mutex<Belief>, event: PathEvent, marks: &Marks, watches: usize) {
    let mut belief = belief.lock();
    match event {
        PathEvent::SnapshotBegins { replica } => {
            belief.replica = replica;
            belief.whole = None;
        }
        PathEvent::Now(listed) => {
            if let Some(mark) = belief.now(listed) {
                marks.told(mark, watches);
            }
        }
        PathEvent::Gone(path) => {
            let gone = PathListed { path, queue: false, value: false, default: false };
            belief.now(gone);
        }
        PathEvent::Whole { complete } => belief.whole = Some(complete),
        PathEvent::Refused { reason, .. } => panic!("refused: {reason}"),
    }
}

/// What is published, by one publisher, and what of it is so.
pub struct Writer {
    client: WriteClient,
    random: StdRng,
    terms: Vec<PublicationTerms>,
    /// By path, what is published there, on which of the terms.
    queue_or_value: Vec<Option<usize>>,
    default: Vec<bool>,
    marks: usize,
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
        let terms = terms.map(|terms| PublicationTerms::new(terms).expect("they are right"));
        Writer {
            client: WriteClient::new(cluster.clone(), publisher, SessionId([1; 16])),
            random: StdRng::seed_from_u64(seed),
            terms: terms.collect(),
            queue_or_value: vec![None; paths],
            default: vec![false; paths],
            marks: 0,
        }
    }

    /// About half of the paths are published at first.
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
                self.client.publish_default(path(n), &PublicationTerms::default());
                self.default[n] = true;
            }
            1..6 if self.queue_or_value[n].is_some() => {
                self.client.unpublish(path(n));
                self.queue_or_value[n] = None;
            }
            _ => self.publish_something(n),
        }
    }

    /// So many changes a second, for so long. Says how many there were.
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

    /// One more path beside them that stays, if there is to be another mark.
    pub fn mark(&mut self, marks: &Marks) {
        if self.marks < marks.told.len() {
            marks.made.lock().push(Instant::now());
            self.client.publish(mark(self.marks), &self.terms[0]);
            self.marks += 1;
        }
    }

    /// So many paths of 200 bytes come, and go again.
    pub async fn come_and_go(&self, paths: usize) {
        self.client.publish_all((0..paths).map(|n| (wide(n), self.terms[0].clone())));
        self.flushed(1).await;
        self.client.unpublish_all((0..paths).map(wide));
        self.flushed(1).await;
    }

    /// Until so many replicas hold everything.
    pub async fn flushed(&self, replicas: usize) {
        self.client.flushed(replicas).await;
    }

    /// What watches are to be told of each path.
    pub fn truth(&self) -> Vec<Is> {
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

    /// Which paths a resolver answers otherwise than they are published, all terms included.
    pub async fn resolved_wrong(&self, cluster: &Cluster) -> Vec<usize> {
        let client = ReadClient::new(cluster.clone(), SessionId([8; 16]), "the truth");
        let all = (0..self.queue_or_value.len()).map(path).collect();
        let answers = client.resolve(all).await.expect("it answers").answers;
        let wrong = |&n: &usize| {
            let wanted = self.queue_or_value[n].map(|which| &*self.terms[which]);
            match (&answers[n], wanted) {
                (PathAnswer::NotFound, None) => self.default[n],
                (PathAnswer::Publishers { set, .. }, None) => !self.default[n] || set.len() != 1,
                (PathAnswer::Publishers { set, .. }, Some(wanted)) => {
                    set.len() != 1 || set[0].terms != *wanted
                }
                _ => true,
            }
        };
        (0..self.queue_or_value.len()).filter(wrong).collect()
    }
}
