//! Output commit, leases and restarts, through a store on a simulated disk.

mod full_disk;

use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use longshore_protocol::messages::work::{
    BatchBuilder, FeedPosition, NewSettle, Progress, Request, RequestError, SettleBatch,
    SettleBatchBuilder, Sources, Started,
};
use longshore_protocol::{Glob, JobId, NewJob, Role, SessionId};

use super::*;
use crate::clock::{ClockCore, Reading};
use crate::journal::files::identity;
use crate::journal::simulated_disk::SimulatedDisk;
use crate::journal::{Journal, JournalOptions, inspect};
use crate::{QueueId, Reply};

const PRODUCER: LinkId = LinkId(1);
const WORKER: LinkId = LinkId(2);

fn at(mono_ms: u64) -> Now {
    Now { mono_ms, wall_ms: 1_700_000_000_000 + mono_ms }
}

fn open(disk: &SimulatedDisk, now_ms: u64) -> Store<Journal> {
    open_in(disk, "/data", now_ms)
}

fn open_in(disk: &SimulatedDisk, dir: &str, now_ms: u64) -> Store<Journal> {
    let options = JournalOptions {
        segment_bytes: crate::SEGMENT_BYTES_MIN,
        durability: Durability::Fsync,
        accept_loss: false,
        new_publisher: PublisherId([9; 16]),
        new_journal: PublisherId([8; 16]),
    };
    let (mut replay, dir) = (Replay::new(), FilePath::new(dir));
    let (journal, recovered) =
        Journal::open_on(Arc::new(disk.clone()), dir, options, &mut replay).unwrap();
    let reading = Reading { boot_ms: now_ms, wall_ms: at(now_ms).wall_ms };
    let stamp = ClockCore::start([1; 8], reading, None).stamp();
    let (floor, now) = (epoch_floor(recovered.losses), at(now_ms));
    let options = StoreOptions::default();
    Store::start_above(floor, journal, replay, recovered.publisher, now, stamp, options).unwrap()
}

#[test]
fn secret_is_drawn_once_and_survives_restarts() {
    let (disk, other) = (SimulatedDisk::default(), SimulatedDisk::default());
    let secret = open(&disk, 1_000).state().secret();
    assert!(secret.is_some());
    assert_eq!(open(&disk, 2_000).state().secret(), secret);
    assert_ne!(open(&other, 1_000).state().secret(), secret);
}

fn link<L: crate::Log>(store: &mut Store<L>, now: Now, link: LinkId, session: u8, role: Role) {
    let (session, name) = (SessionId([session; 16]), "test".to_owned());
    store
        .submit(
            now,
            Command::LinkUp {
                link,
                role,
                session,
                name,
                identity: String::new(),
                work: None,
                resume: Tokens::default(),
            },
        )
        .unwrap();
}

fn worker(store: &mut Store, now: Now, number: LinkId, session: u8, credits: u32) {
    link(store, now, number, session, Role::Worker);
    let pattern: Glob = "/jobs/**".parse().unwrap();
    store
        .submit(
            now,
            Command::Subscribe {
                link: number,
                subscription: 1,
                sources: Sources::one(pattern),
                handlers: 1_000,
            },
        )
        .unwrap();
    store.submit(now, Command::Credit { link: number, subscription: 1, count: credits }).unwrap();
}

fn enqueue<L: crate::Log>(store: &mut Store<L>, now: Now, sequence: u64, jobs: u8) {
    let mut batch = BatchBuilder::new();
    for n in 0..jobs {
        let id = JobId::new_v7(sequence, [n; 10]);
        batch.push(&NewJob::new("/jobs/a".parse().unwrap(), id, Bytes::from(vec![n; 100])));
    }
    let batch = batch.seal(false).to_batch(sequence).unwrap();
    store.submit(now, Command::Enqueue { link: PRODUCER, batch }).unwrap();
}

/// Releases everything submitted so far.
async fn all(store: &mut Store) -> Released {
    let mut released = Released::default();
    loop {
        store.released(&mut released).await.unwrap();
        if store.is_released() {
            return released;
        }
    }
}

#[tokio::test]
async fn nothing_is_released_before_its_sync() {
    let disk = SimulatedDisk::default();
    let mut store = open(&disk, 1_000);
    link(&mut store, at(1_000), PRODUCER, 1, Role::Producer);
    worker(&mut store, at(1_000), WORKER, 2, 10);
    all(&mut store).await;
    disk.block_syncs(true);
    enqueue(&mut store, at(1_001), 1, 3);
    store.query(
        at(1_001),
        PRODUCER,
        7,
        Request::Queues { pattern: "/**".parse().unwrap(), cursor: 0 },
        None,
    );
    let mut released = Released::default();
    for _ in 0..3 {
        let waited = Duration::from_millis(20);
        let early = tokio::time::timeout(waited, store.released(&mut released)).await;
        assert!(early.is_err());
        assert_eq!(released, Released::default());
    }
    assert_eq!(store.metrics(at(1_101)).jobs, 0, "metrics are of what is durable");
    assert_eq!(store.oldest_uncommitted_ms(at(1_101)), 100);
    disk.block_syncs(false);
    let released = all(&mut store).await;
    assert_eq!((released.assignments.len(), released.answered.len()), (3, 1));
    assert!(matches!(released.replies[..], [(PRODUCER, Reply::Enqueued(_))]));
    assert_eq!(released.queues_created.len(), 1);
    assert_eq!(released.queues_filled, [QueueId(0)]);
    assert_eq!(store.metrics(at(1_101)).jobs, 3);
    for assignment in &released.assignments {
        let hot = store.payload(assignment.entry).unwrap();
        assert_eq!(store.reader().read(assignment.entry).unwrap(), hot, "memory and disk agree");
    }
}

#[tokio::test]
async fn query_of_durable_state_needs_no_commit() {
    let disk = SimulatedDisk::default();
    let mut store = open(&disk, 1_000);
    disk.block_syncs(true);
    store.query(
        at(1_001),
        PRODUCER,
        7,
        Request::Queues { pattern: "/**".parse().unwrap(), cursor: 0 },
        None,
    );
    let mut released = Released::default();
    store.released(&mut released).await.unwrap();
    assert_eq!(released.answered.len(), 1);
    disk.block_syncs(false);
}

#[tokio::test]
async fn failed_sync_releases_nothing_and_refuses_later_commands() {
    let disk = SimulatedDisk::default();
    let mut store = open(&disk, 1_000);
    link(&mut store, at(1_000), PRODUCER, 1, Role::Producer);
    all(&mut store).await;
    disk.fail_at(disk.calls() + 2);
    enqueue(&mut store, at(1_001), 1, 3);
    let mut released = Released::default();
    assert!(store.released(&mut released).await.is_err());
    assert_eq!(released, Released::default());
    assert!(store.submit(at(1_002), Command::Tick).is_err());
}

#[tokio::test]
async fn lease_begins_at_release_and_expires_by_time() {
    let disk = SimulatedDisk::default();
    let mut store = open(&disk, 1_000);
    link(&mut store, at(1_000), PRODUCER, 1, Role::Producer);
    worker(&mut store, at(1_000), WORKER, 2, 1);
    enqueue(&mut store, at(1_000), 1, 1);
    let first = all(&mut store).await.assignments[0];
    // The delivery was released at 2,000; its worker renews at 20,000, with turns all along.
    let mut now = 1_900;
    while now < 50_000 {
        now += 100;
        if now == 20_000 {
            assert_eq!(store.renew(at(now), WORKER, &Tokens(vec![first.token])), Tokens::default());
        }
        let next = store.advance(at(now)).unwrap();
        assert!(next.is_some_and(|next| next <= now + ADVANCE_MS));
        assert!(store.state().holds(first.token, WORKER) == (now < 50_000), "{now}");
    }
}

#[tokio::test]
async fn leases_restart_in_full_after_the_publisher_paused() {
    let disk = SimulatedDisk::default();
    let mut store = open(&disk, 1_000);
    link(&mut store, at(1_000), PRODUCER, 1, Role::Producer);
    worker(&mut store, at(1_000), WORKER, 2, 1);
    enqueue(&mut store, at(1_000), 1, 1);
    let assignment = all(&mut store).await.assignments[0];
    store.advance(at(1_100)).unwrap();
    store.advance(at(61_100)).unwrap();
    assert!(store.state().holds(assignment.token, WORKER), "the pause does not count");
    let mut now = 61_100;
    while now < 91_100 {
        assert!(store.state().holds(assignment.token, WORKER));
        now += 250;
        store.advance(at(now)).unwrap();
    }
    assert!(!store.state().holds(assignment.token, WORKER));
}

#[tokio::test]
async fn store_on_a_copy_shares_no_lease_or_token() {
    let disk = SimulatedDisk::default();
    let mut store = open(&disk, 1_000);
    link(&mut store, at(1_000), PRODUCER, 1, Role::Producer);
    worker(&mut store, at(1_000), WORKER, 2, 2);
    enqueue(&mut store, at(1_000), 1, 3);
    let before = all(&mut store).await.assignments;
    assert_eq!(before.len(), 2);
    let other = PublisherId([5; 16]);
    let (from, to) = (FilePath::new("/data"), FilePath::new("/copy"));
    inspect::copy_on(&disk.files(), from, to, other, &mut |_, _| {}).unwrap();

    let mut copy = open_in(&disk, "/copy", 2_000);
    assert_eq!(copy.identity().0, other);
    assert_eq!((copy.state().totals().running, store.state().totals().running), (0, 2));
    // The worker's session tries to resume its leases at the copy, which has none.
    let resume = Tokens(before.iter().map(|one| one.token).collect());
    let (session, name, role) = (SessionId([2; 16]), "test".to_owned(), Role::Worker);
    let link_up = Command::LinkUp {
        link: LinkId(1 << 33),
        role,
        session,
        name,
        identity: String::new(),
        work: None,
        resume,
    };
    copy.submit(at(2_001), link_up).unwrap();
    all(&mut copy).await;
    assert_eq!(copy.state().totals().running, 0);
    worker(&mut copy, at(2_002), LinkId(1 << 34), 3, 5);
    let after = all(&mut copy).await.assignments;
    assert_eq!(after.len(), 3, "every job, and each once");
    assert!(after.iter().all(|one| one.attempt == 1), "a copy costs no attempt");
    // The original goes on over restarts, and never reuses a token of the copy.
    let rise = after[0].token.0 - before[1].token.0;
    assert!(rise > 1_000_000 << 32, "{rise}");
    let epoch_of_copy = copy.identity().1;
    drop((copy, store));
    // Nor once the original has accepted a loss.
    let known = identity::read(&*disk.files(), from).unwrap().unwrap();
    identity::write(&*disk.files(), from, known.after_losses(1).unwrap()).unwrap();
    assert_ne!(open(&disk, 2_500).identity().1, epoch_of_copy);
    let again = open_in(&disk, "/copy", 3_000);
    assert_eq!(again.state().totals().running, 3, "from then on a restart is a restart");
}

#[tokio::test]
async fn lease_of_a_link_lost_before_restart_gets_only_the_grace() {
    let disk = SimulatedDisk::default();
    let mut store = open(&disk, 1_000);
    link(&mut store, at(1_000), PRODUCER, 1, Role::Producer);
    worker(&mut store, at(1_000), WORKER, 2, 1);
    worker(&mut store, at(1_000), LinkId(3), 3, 1);
    enqueue(&mut store, at(1_000), 1, 2);
    let before = all(&mut store).await.assignments;
    let of_link = |link| before.iter().find(|one| one.link == link).unwrap().token;
    let (gone, linked) = (of_link(WORKER), of_link(LinkId(3)));
    store.submit(at(1_500), Command::LinkLost { link: WORKER }).unwrap();
    all(&mut store).await;
    drop(store);

    for starts in 1..=2 {
        let disk = disk.after_power_cut(5);
        // The publisher may end again before its workers are back.
        (1..starts).for_each(|_| drop(open(&disk, 2_000)));
        let mut store = open(&disk, 2_000);
        let running =
            |store: &Store| store.state().running().map(|lease| lease.token).collect::<Vec<_>>();
        let mut now = 2_000;
        while now < 6_800 {
            now += 200;
            store.advance(at(now)).unwrap();
            assert_eq!(running(&store), [gone, linked], "{now}, start {starts}");
        }
        store.advance(at(7_000)).unwrap();
        assert_eq!(running(&store), [linked], "5 s after start {starts}");
    }
}

#[tokio::test]
async fn refused_settles_are_counted_once_durable() {
    let disk = SimulatedDisk::default();
    let mut store = open(&disk, 1_000);
    worker(&mut store, at(1_000), WORKER, 2, 1);
    let mut batch = SettleBatchBuilder::new();
    batch.push(Token(7), &NewSettle::Release);
    let batch = SettleBatch::decode(batch.seal(1)).unwrap();
    store.submit(at(1_001), Command::Settle { link: WORKER, batch }).unwrap();
    assert_eq!(store.metrics(at(1_001)).stale_refused, 0);
    all(&mut store).await;
    assert_eq!(store.metrics(at(1_002)).stale_refused, 1);
}

/// A log whose commits the test controls.
#[derive(Default)]
struct ManualLog {
    appended: u64,
    committed: Arc<std::sync::atomic::AtomicU64>,
}

impl crate::Log for ManualLog {
    fn append(&mut self, _: Now, _: u8, _: Bytes, _: Bytes) -> Result<u64, Poisoned> {
        self.appended += 1;
        Ok(self.appended)
    }

    fn sync(&mut self) {
        // Only a start is synced: it is durable at once.
        self.committed.store(self.appended, std::sync::atomic::Ordering::Relaxed);
    }

    fn flush(&mut self) {}

    fn appended(&self) -> u64 {
        self.appended
    }

    fn committed(&self) -> u64 {
        self.committed.load(std::sync::atomic::Ordering::Relaxed)
    }

    async fn committed_beyond(&mut self, index: u64) -> Result<u64, Poisoned> {
        if self.committed() <= index {
            std::future::pending::<()>().await;
        }
        Ok(self.committed())
    }

    fn uncommitted_bytes(&self) -> usize {
        0
    }

    fn reader(&self) -> LogReader {
        struct NoRecords;
        impl crate::Records for NoRecords {
            fn block(&self, at: crate::RecordRef) -> Result<crate::BodyBlock, crate::LogReadError> {
                Err(crate::LogReadError::NotFound { index: at.index })
            }
        }
        LogReader::new(Arc::new(NoRecords))
    }

    fn metrics(&self) -> crate::LogMetrics {
        crate::LogMetrics::default()
    }
}

#[tokio::test]
async fn each_commit_releases_only_its_own_commands() {
    let log = ManualLog::default();
    let committed = Arc::clone(&log.committed);
    let reading = Reading { boot_ms: 0, wall_ms: at(0).wall_ms };
    let stamp = ClockCore::start([1; 8], reading, None).stamp();
    let id = PublisherId([9; 16]);
    let mut store =
        Store::start(log, Replay::new(), id, at(0), stamp, StoreOptions::default()).unwrap();
    let everything = || Request::Queues { pattern: "/**".parse().unwrap(), cursor: 0 };
    link(&mut store, at(0), PRODUCER, 1, Role::Producer);
    for request in 1..=6 {
        enqueue(&mut store, at(request), request, 2);
        store.query(at(request), PRODUCER, request, everything(), None);
    }
    // The start is command 1 and the link 2; the request with number n waits for command n + 2.
    let mut reported = 0;
    for durable in [3, 4, 7, 8] {
        committed.store(durable, std::sync::atomic::Ordering::Relaxed);
        let mut released = Released::default();
        store.released(&mut released).await.unwrap();
        let numbers: Vec<u64> = released.answered.iter().map(|&(_, number, _)| number).collect();
        assert_eq!(numbers, Vec::from_iter(reported + 1..=durable - 2));
        assert_eq!(store.tail().len() as u64, 2 * (durable - 2), "events, too");
        reported = durable - 2;
    }
}

#[tokio::test]
async fn session_that_changes_links_leaks_no_link_rows() {
    let disk = SimulatedDisk::default();
    let mut store = open(&disk, 1_000);
    link(&mut store, at(1_000), PRODUCER, 1, Role::Producer);
    worker(&mut store, at(1_000), LinkId(10), 2, 1);
    enqueue(&mut store, at(1_000), 1, 1);
    let mut lease = all(&mut store).await.assignments[0];
    for number in 11..100 {
        let (session, name, now) = (SessionId([2; 16]), "test".to_owned(), at(1_000 + number));
        let (link, role, resume) = (LinkId(number), Role::Worker, Tokens(vec![lease.token]));
        store
            .submit(
                now,
                Command::LinkUp {
                    link,
                    role,
                    session,
                    name,
                    identity: String::new(),
                    work: None,
                    resume,
                },
            )
            .unwrap();
        // The transport reports the older link's end afterwards.
        store.link_replaced(now, lease.link);
        lease.link = link;
        all(&mut store).await;
        assert!(store.state().holds(lease.token, link));
        assert_eq!(store.renew(now, link, &Tokens(vec![lease.token])), Tokens::default());
        assert_eq!(store.leases.links(), 2, "the producer's and the worker's");
    }
}

#[tokio::test]
async fn durable_outcomes_wait_until_they_are_released() {
    let disk = SimulatedDisk::default();
    let mut store = open(&disk, 1_000);
    assert!(store.is_released());
    link(&mut store, at(1_000), PRODUCER, 1, Role::Producer);
    store.flush();
    while store.committed() < store.appended() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(!store.is_released(), "its answer was not released");
    store.released(&mut Released::default()).await.unwrap();
    assert!(store.is_released());
}

/// A session's first batch.
fn one_job(n: u8) -> longshore_protocol::messages::work::EnqueueBatch {
    let mut batch = BatchBuilder::new();
    batch.push(&NewJob::new("/jobs/a".parse().unwrap(), JobId([n; 16]), Bytes::from(vec![n; 100])));
    batch.seal(false).to_batch(1).unwrap()
}

#[tokio::test]
async fn accepted_loss_never_reuses_tokens_links_or_epochs() {
    let dir = tempfile::tempdir().unwrap();
    let opened = |accept_loss| {
        let options =
            StoreOptions { accept_loss, segment_bytes: 1 << 20, ..StoreOptions::default() };
        Store::open(dir.path(), options)
    };
    let mut issued = Vec::new();
    for session in 1..=3 {
        let (mut store, mut clock, opened) = opened(false).unwrap();
        let now = clock.now();
        let (producer, worker_link) =
            (LinkId(opened.epoch.0 << 32 | 1), LinkId(opened.epoch.0 << 32 | 2));
        link(&mut store, now, producer, 100 + session, Role::Producer);
        store.submit(now, Command::Enqueue { link: producer, batch: one_job(session) }).unwrap();
        worker(&mut store, now, worker_link, session, 10);
        let released = all(&mut store).await;
        issued.push((opened.epoch, released.assignments.iter().map(|one| one.token).max()));
    }
    assert!(issued.windows(2).all(|pair| pair[0] < pair[1]), "{issued:?}");

    // The first start stays; the second one has a flipped bit, so both later starts are dropped.
    let segment = dir
        .path()
        .join("segments")
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .min()
        .unwrap();
    let mut bytes = std::fs::read(&segment).unwrap();
    let first_start = 8 + u32::from_le_bytes(*bytes[4096..].first_chunk().unwrap()) as usize;
    bytes[4096 + first_start + 50] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    assert!(opened(false).is_err(), "damage is never ignored silently");
    let (mut store, mut clock, after) = opened(true).unwrap();
    assert!(after.dropped.is_some());
    let (last_epoch, last_token) = issued[2];
    assert!(after.epoch > last_epoch, "{:?} after {last_epoch:?}", after.epoch);
    let now = clock.now();
    link(&mut store, now, LinkId(after.epoch.0 << 32 | 1), 100, Role::Producer);
    let producer = LinkId(after.epoch.0 << 32 | 1);
    store.submit(now, Command::Enqueue { link: producer, batch: one_job(9) }).unwrap();
    worker(&mut store, now, LinkId(after.epoch.0 << 32 | 2), 9, 10);
    let released = all(&mut store).await;
    assert!(released.assignments.iter().all(|one| Some(one.token) > last_token), "{last_token:?}");
    assert!(!released.assignments.is_empty());
}

#[test]
fn epochs_rise_over_losses_at_the_same_offset() {
    let dir = tempfile::tempdir().unwrap();
    let opened = |accept_loss| {
        let options =
            StoreOptions { accept_loss, segment_bytes: 1 << 20, ..StoreOptions::default() };
        Store::open(dir.path(), options).map(|(.., opened)| opened)
    };
    opened(false).unwrap();
    let mut last = opened(false).unwrap().epoch;
    for _ in 0..4 {
        let segments = dir.path().join("segments").read_dir().unwrap();
        let segment = segments.map(|entry| entry.unwrap().path()).min().unwrap();
        let mut bytes = std::fs::read(&segment).unwrap();
        // Damages the second start, which is the last.
        let first_start = 8 + u32::from_le_bytes(*bytes[4096..].first_chunk().unwrap()) as usize;
        bytes[4096 + first_start + 50] ^= 1;
        std::fs::write(&segment, bytes).unwrap();
        let after = opened(true).unwrap();
        assert!(after.dropped.is_some() && after.epoch > last, "{:?} after {last:?}", after.epoch);
        last = after.epoch;
    }
}

fn indexes(store: &Store, after: Option<FeedPosition>) -> Result<Vec<u64>, RequestError> {
    let (mut cursor, mut events) = (store.tail().cursor(after)?, Vec::new());
    store.tail().read(&mut cursor, usize::MAX, |_| true, &mut events)?;
    Ok(events.iter().map(|event| event.index).collect())
}

#[tokio::test]
async fn events_are_published_only_once_durable() {
    let disk = SimulatedDisk::default();
    let mut store = open(&disk, 1_000);
    link(&mut store, at(1_000), PRODUCER, 1, Role::Producer);
    all(&mut store).await;
    let before = store.tail().position();
    assert_eq!(before, FeedPosition { epoch: Epoch(1), index: store.committed() });
    disk.block_syncs(true);
    enqueue(&mut store, at(1_001), 1, 3);
    store.flush();
    let everything = "/**".parse().unwrap();
    store.query(
        at(1_001),
        PRODUCER,
        7,
        Request::Feed { pattern: everything, after: Some(before) },
        None,
    );
    let mut released = Released::default();
    let waited = tokio::time::timeout(Duration::from_millis(20), store.released(&mut released));
    assert!(waited.await.is_err());
    assert_eq!((store.tail().position(), store.tail().len()), (before, 0));
    assert_eq!(released.answered, [], "nor is the feed opened");
    disk.block_syncs(false);
    let released = all(&mut store).await;
    assert!(matches!(released.answered[..], [(PRODUCER, 7, PendingAnswer::Feed { .. })]));
    assert_eq!(indexes(&store, Some(before)), Ok(vec![store.committed(); 3]));
}

#[tokio::test]
async fn feed_resumes_after_a_power_cut_and_reports_rewinds() {
    let disk = SimulatedDisk::default();
    let mut store = open(&disk, 1_000);
    link(&mut store, at(1_000), PRODUCER, 1, Role::Producer);
    all(&mut store).await;
    let start = store.tail().position();
    enqueue(&mut store, at(1_001), 1, 2);
    all(&mut store).await;
    let (seen, reported) = (store.tail().position(), indexes(&store, Some(start)).unwrap());
    drop(store);
    let disk = disk.after_power_cut(5);
    drop(open(&disk, 2_000));
    let store = open(&disk, 3_000);
    assert_eq!(indexes(&store, Some(start)), Ok(reported), "the same events again");
    assert_eq!(indexes(&store, Some(seen)), Ok(vec![]));
    // As if more events had been sent and lost: the second start has their index.
    let lost = FeedPosition { index: seen.index + 1, ..seen };
    assert_eq!(indexes(&store, Some(lost)), Err(RequestError::Rewound));
}

#[tokio::test]
async fn soft_verbs_for_foreign_leases_are_refused_and_counted() {
    let disk = SimulatedDisk::default();
    let mut store = open(&disk, 1_000);
    link(&mut store, at(1_000), PRODUCER, 1, Role::Producer);
    worker(&mut store, at(1_000), WORKER, 2, 1);
    enqueue(&mut store, at(1_000), 1, 1);
    let token = all(&mut store).await.assignments[0].token;
    let progress = |token| vec![Progress { token, percent: 5, message: "reading".to_owned() }];
    let started = |token| Started { tokens: Tokens(vec![token]), running_ms: vec![] };
    let (lease, other) = (Tokens(vec![token]), Tokens(vec![Token(7)]));
    // The lease's own link, and an unknown token.
    assert_eq!(store.started(at(1_001), WORKER, &started(token)), Tokens::default());
    assert_eq!(store.progress(at(1_001), WORKER, progress(token)), Tokens::default());
    assert_eq!(store.started(at(1_001), WORKER, &started(Token(7))), other);
    assert_eq!(store.progress(at(1_001), WORKER, progress(Token(7))), other);
    assert_eq!(store.renew(at(1_001), WORKER, &other), other);
    // Another link.
    assert_eq!(store.started(at(1_002), PRODUCER, &started(token)), lease);
    assert_eq!(store.progress(at(1_002), PRODUCER, progress(token)), lease);
    assert_eq!(store.renew(at(1_002), PRODUCER, &lease), lease);
    assert_eq!(store.metrics(at(1_002)).stale_refused, 6);
    // The report is removed with the lease.
    assert_eq!(store.reports.len(), 1);
    let mut batch = SettleBatchBuilder::new();
    batch.push(token, &NewSettle::Release);
    let batch = SettleBatch::decode(batch.seal(1)).unwrap();
    store.submit(at(1_003), Command::Settle { link: WORKER, batch }).unwrap();
    all(&mut store).await;
    assert_eq!(store.renew(at(1_004), WORKER, &lease), lease);
    assert_eq!(store.reports.len(), 0);
}

/// As on a slow link that ends again and again.
#[tokio::test]
async fn jobs_that_were_not_sent_return_uncounted_with_their_link() {
    let disk = SimulatedDisk::default();
    let mut store = open(&disk, 1_000);
    link(&mut store, at(1_000), PRODUCER, 1, Role::Producer);
    enqueue(&mut store, at(1_000), 1, 1);
    // Far more than a job may lose deliveries.
    for n in 0..200 {
        let (now, number) = (at(2_000 + n), LinkId(100 + n));
        worker(&mut store, now, number, 2, 1);
        store.flush();
        let delivered = all(&mut store).await.assignments;
        assert_eq!(delivered.len(), 1, "after {n} links");
        store.jobs_wait(now, [(number, delivered[0].token)]);
        store.return_unsent(now, number).unwrap();
        store.submit(now, Command::LinkLost { link: number }).unwrap();
        store.flush();
    }
    all(&mut store).await;
    let job = store.job(at(3_000), &JobId::new_v7(1, [0; 10])).expect("it is there");
    assert_eq!(job.info.state, longshore_protocol::JobState::Ready);
}
