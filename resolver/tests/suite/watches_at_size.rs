//! Replicas at size. Many watches of one subtree while it changes a thousand times a second:
//! whatever happens to their replica, each ends in the current state, and no replica needs more
//! memory for them than its limits allow. A huge publish: the memory of its paths, and that other
//! publishers need not wait for it. Replicas are processes of their own.
//!
//! `LONGSHORE_LONG=1` has 10,000 watches and 10 s of changes, and a million paths.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::process::{ReplicaProcess, is_replica, serve};
use crate::common::watchers::{WatchView, WatcherGroup, Writer};
use crate::common::*;
use crate::long::long;
use longshore_protocol::frame::{Frame, FrameWriter, Messages};
use longshore_protocol::messages::resolver::{
    Announce, Change, Digest, FromReplica, Group, ToReplica, WatchPaths, Write,
};
use longshore_protocol::{
    Glob, Handshake, LinkTiming, Path, ResolverTiming, Role, SessionId, Terms,
};
use longshore_resolver::{CheckedTerms, Cluster};
use longshore_transport::{LinkOptions, LinkReceiver, LinkSender, dial};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, block_in_place};
use tokio::time::{MissedTickBehavior, interval, sleep};

/// Changes a second.
const RATE: usize = 1_000;
/// Paths that come, go, come back and change.
const PATHS: usize = 500;
/// How often to measure the replica's memory, and to check the watches.
const CHECK_EVERY: Duration = Duration::from_millis(50);
/// The longest time until all watches are up to date: the watchers share this machine.
const SETTLED: Duration = Duration::from_secs(180);
/// A restarted replica knows everything after that time.
const WRITER_TTL: Duration = Duration::from_secs(3);

const MIB: u64 = 1024 * 1024;
/// The most bytes that wait for one connection: 1 MiB, a frame of 256 KiB and one message more, and
/// the spare capacity of their buffers.
const BYTES_PER_LINK: u64 = 2 * MIB;
/// The memory of a watch: its key, its state and its suspended walk.
const BYTES_PER_WATCH: u64 = 1024;
/// The subtree's log of 4,096 changed paths, and the working memory of the process.
const BYTES_PER_REPLICA: u64 = 4 * MIB;

/// The most memory that a replica may have beyond that without watches.
fn bound(links: usize, watches: usize) -> u64 {
    links as u64 * BYTES_PER_LINK + watches as u64 * BYTES_PER_WATCH + BYTES_PER_REPLICA
}

struct Size {
    watches: usize,
    /// So many that both of two replicas have some.
    links: usize,
    lasts: Duration,
}

fn size() -> Size {
    match long() {
        true => Size { watches: 10_000, links: 40, lasts: Duration::from_secs(10) },
        false => Size { watches: 500, links: 25, lasts: Duration::from_secs(2) },
    }
}

fn quick() -> ResolverTiming {
    ResolverTiming {
        writer_ttl: WRITER_TTL,
        retry_wait_min: Duration::from_millis(50),
        retry_wait_max: Duration::from_millis(300),
        ..ResolverTiming::default()
    }
}

#[tokio::test]
#[ignore = "not a scenario: the replica process of the tests below"]
async fn replica() {
    if is_replica() {
        serve().await.unwrap();
    }
}

/// A replica: a new cluster's first, or one that restarts empty.
fn start(address: SocketAddr, fresh: bool) -> ReplicaProcess {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["watches_at_size::replica", "--exact", "--ignored", "--nocapture"]);
    block_in_place(|| ReplicaProcess::start(command, address, fresh, WRITER_TTL)).unwrap()
}

/// Measures a replica's memory: at the start, and at most.
struct MemoryUse {
    before: u64,
    most: u64,
}

impl MemoryUse {
    fn of(replica: &ReplicaProcess) -> MemoryUse {
        let before = replica.resident();
        assert!(before > 0, "it runs");
        MemoryUse { before, most: before }
    }

    fn measure(&mut self, replica: &ReplicaProcess) {
        self.most = self.most.max(replica.resident());
    }

    #[track_caller]
    fn is_within(&self, bound: u64) {
        let more = self.most - self.before;
        println!("{} KiB, and at most {} KiB more", self.before / 1024, more / 1024);
        assert!(more <= bound, "{} KiB more are over {} KiB", more / 1024, bound / 1024);
    }
}

/// Waits until every watch has the current state.
async fn settled(watchers: &WatcherGroup, writer: &Writer, mut measure: impl FnMut()) {
    let (expected, since) = (writer.expected(), Instant::now());
    loop {
        measure();
        let differing = watchers.differing(&expected);
        if differing == 0 {
            return println!(
                "all are current {:?} after the last change was written",
                since.elapsed()
            );
        }
        let one = || watchers.describe_differing(&expected);
        assert!(since.elapsed() < SETTLED, "{differing} watches differ: {}", one());
        sleep(CHECK_EVERY).await;
    }
}

/// Two replicas, a publisher at both, watches at both.
struct WatchedPair {
    replicas: [ReplicaProcess; 2],
    cluster: Cluster,
    writer: Writer,
    watchers: WatcherGroup,
    memory: MemoryUse,
    size: Size,
}

impl WatchedPair {
    async fn start() -> WatchedPair {
        let (size, replicas) = (size(), [start(LOOPBACK, true), start(LOOPBACK, true)]);
        let cluster = cluster(quick(), replicas.each_ref().map(|replica| replica.address));
        let mut writer = Writer::new(&cluster, PATHS, 1);
        writer.begin();
        in_time(writer.flushed(2)).await;
        let mut memory = MemoryUse::of(&replicas[1]);
        let watchers = WatcherGroup::start(&cluster, size.watches, size.links, PATHS, 0);
        settled(&watchers, &writer, || memory.measure(&replicas[1])).await;
        let watched = WatchedPair { replicas, cluster, writer, watchers, memory, size };
        assert!(watched.at(0) > 0 && watched.at(1) > 0, "all are at one replica");
        watched
    }

    /// The number of watches at that replica.
    fn at(&self, replica: usize) -> usize {
        self.watchers.at(&self.replicas[replica].address.to_string())
    }

    /// Makes changes for a part of the time.
    async fn changes(&mut self, part: u32) {
        let (since, lasts) = (Instant::now(), self.size.lasts / part);
        let mut changes = 0;
        while since.elapsed() < lasts {
            changes += self.writer.run(RATE, CHECK_EVERY).await;
            self.memory.measure(&self.replicas[1]);
        }
        // At least half of the target rate, on a machine that is busy with other things.
        let target = (since.elapsed().as_secs_f64() * RATE as f64) as usize;
        assert!(changes >= target / 2, "{changes} of {target} changes were made");
    }

    /// Checks everything after the writer has stopped; `replicas` are left, and have everything.
    async fn finish(&mut self, replicas: usize) {
        in_time(self.writer.flushed(replicas)).await;
        settled(&self.watchers, &self.writer, || self.memory.measure(&self.replicas[1])).await;
        // Watches receive no priorities, but the check includes that the replica has them, too.
        let wrong = in_time(self.writer.wrongly_resolved(&self.cluster)).await;
        assert!(wrong.is_empty(), "paths {wrong:?} are resolved otherwise than published");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_watcher_ends_in_the_current_state_after_the_loss_of_a_replica() {
    let mut watched = WatchedPair::start().await;
    watched.changes(2).await;
    watched.replicas[0].kill();
    watched.changes(2).await;
    watched.finish(1).await;
    assert_eq!(watched.at(1), watched.size.watches);
    watched.memory.is_within(bound(watched.size.links, watched.size.watches));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_watcher_ends_in_the_current_state_after_an_empty_restart_of_its_replica() {
    let mut watched = WatchedPair::start().await;
    watched.changes(3).await;
    watched.replicas[0].kill();
    watched.replicas[0] = start(watched.replicas[0].address, false);
    watched.changes(3).await;
    in_time(watched.writer.flushed(2)).await;
    watched.memory.is_within(bound(watched.size.links, watched.size.watches));
    // Now no other replica is left.
    watched.replicas[1].kill();
    watched.changes(3).await;
    watched.finish(1).await;
    assert_eq!(watched.at(0), watched.size.watches);
}

/// A raw link with watches of everything below `/load`, numbered from 0, that is not read.
struct SlowWatcher {
    sender: LinkSender,
    receiver: LinkReceiver,
    views: Vec<WatchView>,
    /// Snapshots that have begun, over all watches.
    begun: usize,
}

impl SlowWatcher {
    async fn start(address: SocketAddr, watches: usize, hang: Duration) -> SlowWatcher {
        let timing = LinkTiming { heartbeat: hang / 4, hang };
        let handshake = Handshake::new(Role::ResolverReader, SessionId([7; 16]), "slow", timing);
        let options = LinkOptions { timing, ..LinkOptions::default() };
        let (sender, receiver) =
            in_time(dial(address, &handshake, &options)).await.unwrap().split();
        for watch in 0..watches as u32 {
            let globs = vec![Glob::new("/load/**").unwrap()];
            let mut out = FrameWriter::new();
            ToReplica::WatchPaths(WatchPaths { id: 1, watch, globs }).encode(&mut out);
            sender.send(out.finish()).unwrap();
        }
        SlowWatcher { sender, receiver, views: vec![WatchView::of(PATHS); watches], begun: 0 }
    }

    /// Reads the next frame.
    async fn read(&mut self) {
        let frame = in_time(self.receiver.recv()).await.expect("the link is up");
        for message in Messages::new(frame) {
            let (tag, body) = message.unwrap();
            match FromReplica::decode(tag, body).unwrap() {
                Some(FromReplica::PathSnapshot(part)) => {
                    let view = &mut self.views[part.watch as usize];
                    if part.first {
                        self.begun += 1;
                        *view = WatchView::of(PATHS);
                    }
                    for listed in part.paths {
                        view.now(listed);
                    }
                    view.caught_up = part.last.then_some(part.complete);
                }
                Some(FromReplica::PathChanges(changes)) => {
                    for watch in changes.watches {
                        let view = &mut self.views[watch as usize];
                        for listed in changes.paths.iter().cloned() {
                            view.now(listed);
                        }
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Relays one connection to the server, and after the handshake nothing back; it closes neither
/// side.
async fn one_way(server: SocketAddr) -> (SocketAddr, AbortHandle) {
    let listener = TcpListener::bind(LOOPBACK).await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let (near, _) = listener.accept().await.unwrap();
        let far = TcpStream::connect(server).await.unwrap();
        let ((mut near_reads, mut near_writes), (mut far_reads, mut far_writes)) =
            (near.into_split(), far.into_split());
        let mut welcome = vec![0; 4_096];
        let there = async {
            let _ = tokio::io::copy(&mut near_reads, &mut far_writes).await;
        };
        let back = async {
            let bytes = far_reads.read(&mut welcome).await.unwrap();
            near_writes.write_all(&welcome[..bytes]).await.unwrap();
        };
        tokio::join!(there, back);
        std::future::pending::<()>().await;
    });
    (address, task.abort_handle())
}

/// Connections of the replica, including this reader's.
async fn connections(cluster: &Cluster) -> usize {
    reader(cluster).replica_status().await.remove(0).1.unwrap().connections as usize
}

/// Watches of each unread link: their snapshots alone exceed a link and its sockets' buffers, and
/// some of the watches are not even added until it is read.
const UNREAD: usize = 2_000;
/// Paths of 200 bytes that come and go at once, and how often: far more than a log retains.
const WAVE: usize = 2_500;
const WAVES: usize = 20;

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_that_does_not_read_costs_bounded_memory_and_delays_no_other() {
    let replica = start(LOOPBACK, true);
    let cluster = cluster(quick(), [replica.address]);
    let mut writer = Writer::new(&cluster, PATHS, 2);
    writer.begin();
    in_time(writer.come_and_go(WAVE)).await;
    let mut memory = MemoryUse::of(&replica);

    let hang = Duration::from_secs(2);
    let (stuck_address, stuck) = one_way(replica.address).await;
    let _stuck = SlowWatcher::start(stuck_address, UNREAD, hang).await;
    let mut slow = SlowWatcher::start(replica.address, UNREAD, 4 * PATIENCE).await;
    let (watches, links) = (50, 5);
    let watchers = WatcherGroup::start(&cluster, watches, links, PATHS, 1);
    settled(&watchers, &writer, || memory.measure(&replica)).await;

    // The others receive everything while the slow ones have read nothing. The first changes are no
    // longer in the log at the end.
    writer.run(RATE, Duration::from_millis(500)).await;
    for _ in 0..WAVES {
        in_time(writer.come_and_go(WAVE)).await;
        memory.measure(&replica);
    }
    writer.run(RATE, Duration::from_millis(500)).await;
    in_time(writer.flushed(1)).await;
    settled(&watchers, &writer, || memory.measure(&replica)).await;
    memory.is_within(bound(links + 2, 2 * UNREAD + watches));

    // A client that takes nothing for its link's hang timeout is disconnected by the replica:
    // neither side closes that link.
    let since = Instant::now();
    let others = ["slow", "the writer", "this reader"].len() + links;
    while connections(&cluster).await != others {
        assert!(since.elapsed() < hang + PATIENCE, "the stuck link is still connected");
        sleep(CHECK_EVERY).await;
    }
    stuck.abort();

    // A client that begins to read starts over, and ends in the current state too.
    let expected = writer.expected();
    while !slow.views.iter().all(|view| view.is_current(&expected)) {
        slow.read().await;
    }
    assert!(slow.begun > UNREAD, "none of {UNREAD} has started over");
    println!("{} snapshots for {UNREAD} slow watches", slow.begun);
    slow.sender.close("enough");
    settled(&watchers, &writer, || memory.measure(&replica)).await;
    memory.is_within(bound(links + 2, 2 * UNREAD + watches));
}

/// The most memory of a path in a replica, all indexes included.
const BYTES_PER_PATH: u64 = 150;
/// Paths of 30 bytes that one publisher has.
const HUGE: usize = 250_000;
const HUGE_LONG: usize = 1_000_000;
/// In 99 of 100 cases a path of another publisher is registered within this time, on an otherwise
/// idle machine.
const OTHER_PUBLISH_MAX: Duration = Duration::from_millis(50);
/// How often that publisher registers one; each waits for a slice of the huge publish, of 2 ms, and
/// a turn of its own. The time counts from when it was due, so that one slow registration does not
/// hide those after it.
const OTHER_PUBLISH_EVERY: Duration = Duration::from_millis(10);
/// Paths of one request, which may have a mebibyte.
const PATHS_PER_REQUEST: usize = 25_000;
/// Requests in flight.
const REQUESTS_IN_FLIGHT: usize = 8;

/// Requests of the maximum size that publish so many paths.
fn requests(count: usize) -> Vec<Frame> {
    let path = |n: usize| path(&format!("/jobs/{:04}/job-{n:015}", n / 1_000));
    assert_eq!(path(0).as_str().len(), 30);
    let request = |id: usize| {
        let paths: Vec<Path> =
            (id * PATHS_PER_REQUEST..(id + 1) * PATHS_PER_REQUEST).map(path).collect();
        let (change, paths) = (Change::Publish, paths.iter().collect());
        let groups = vec![Group { change, terms: Terms::default(), paths }];
        let mut out = FrameWriter::new();
        ToReplica::Write(Write { id: id as u64, groups }).encode(&mut out);
        out.finish()
    };
    (0..count / PATHS_PER_REQUEST).map(request).collect()
}

/// Publishes them as fast as a replica accepts them. Returns the link.
async fn publish_huge(replica: SocketAddr, requests: Vec<Frame>) -> (LinkSender, LinkReceiver) {
    let link = dial(replica, &handshake(Role::ResolverWriter), &LinkOptions::default()).await;
    let mut link = link.unwrap().split();
    let desired = vec![Digest::default()];
    let announce = Announce { id: 1, publisher: publisher(1), desired };
    let answer = in_time(ask(&mut link, &ToReplica::Announce(announce))).await;
    assert!(matches!(answer, FromReplica::Announced(_)), "{answer:?}");
    let (mut sent, mut done) = (0, 0);
    while done < requests.len() {
        while sent < requests.len().min(done + REQUESTS_IN_FLIGHT) {
            link.0.send(requests[sent].clone()).unwrap();
            sent += 1;
        }
        for message in Messages::new(in_time(link.1.recv()).await.unwrap()) {
            let (tag, body) = message.unwrap();
            match FromReplica::decode(tag, body).unwrap() {
                Some(FromReplica::Written(written)) => {
                    assert_eq!(written.refused, []);
                    done += usize::from(written.last);
                }
                other => panic!("{other:?}"),
            }
        }
    }
    link
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_huge_publish_has_bounded_memory_and_does_not_delay_other_publishers() {
    let count = if long() { HUGE_LONG } else { HUGE };
    let replica = start(LOOPBACK, true);
    let cluster = cluster(quick(), [replica.address]);
    let (other, terms) = (writer(&cluster, 2), CheckedTerms::default());
    // The replica's memory for any request at all is not counted.
    let before = (0..1_000).map(|n| (path(&format!("/other/before/{n}")), terms.clone()));
    other.publish_all(before);
    in_time(other.flushed(1)).await;
    let mut memory = MemoryUse::of(&replica);

    let mut publishing = tokio::spawn(publish_huge(replica.address, requests(count)));
    let mut due = interval(OTHER_PUBLISH_EVERY);
    due.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (began, mut took) = (Instant::now(), Vec::new());
    let _link = loop {
        let since = due.tick().await;
        other.publish(path(&format!("/other/{}", took.len())), &terms);
        let done = tokio::select! {
            () = other.flushed(1) => None,
            done = &mut publishing => Some(done.unwrap()),
        };
        // The last one has waited for as long as the rest of it.
        in_time(other.flushed(1)).await;
        took.push(since.elapsed());
        memory.measure(&replica);
        if let Some(link) = done {
            break link;
        }
    };
    let registered = began.elapsed();
    let status = reader(&cluster).replica_status().await.remove(0).1.unwrap();
    assert_eq!(status.paths as usize, 1_000 + count + took.len());
    took.sort();
    let p99 = took[took.len() * 99 / 100];
    println!(
        "{count} paths in {registered:?}; meanwhile {} of another publisher, p99 {p99:?}, \
         at most {:?}",
        took.len(),
        took[took.len() - 1],
    );
    assert!(!long() || p99 <= OTHER_PUBLISH_MAX, "p99 is {p99:?}");
    println!("{} bytes a path", (replica.resident() - memory.before) / count as u64);
    // At any time, also while its tables grow.
    memory.is_within(BYTES_PER_PATH * count as u64);
}
