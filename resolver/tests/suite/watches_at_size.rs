//! Replicas at size. Many watches of one subtree while it changes a thousand times a second:
//! whatever becomes of the replica that tells them, each ends with what is true, and no replica
//! needs more memory for it than its limits say. A huge publish: what its paths take of memory, and
//! that other publishers need not wait for it. Replicas are processes of their own.
//!
//! `LONGSHORE_LONG=1` has 10,000 watches and 10 s of changes, and a million paths.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::crowd::{Belief, Crowd, Writer};
use crate::common::process::{ReplicaProcess, is_replica, serve};
use crate::common::*;
use crate::long::long;
use longshore_protocol::frame::{Frame, FrameWriter, Messages};
use longshore_protocol::messages::resolver::{
    Announce, Change, Digest, FromReplica, Group, ToReplica, WatchPaths, Write,
};
use longshore_protocol::{
    Glob, Handshake, LinkTiming, Path, ResolverTiming, Role, SessionId, Terms,
};
use longshore_resolver::{Cluster, PublicationTerms};
use longshore_transport::{LinkOptions, LinkReceiver, LinkSender, dial};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, block_in_place};
use tokio::time::{MissedTickBehavior, interval, sleep};

/// Changes a second.
const RATE: usize = 1_000;
/// Paths that come, go, come back and change.
const PATHS: usize = 500;
/// How often the replica's memory is looked at, and whether everybody has been told.
const LOOK: Duration = Duration::from_millis(50);
/// How long everybody may take to be told: the watchers, too, share this machine.
const SETTLED: Duration = Duration::from_secs(180);
/// A replica that was started again knows everything after as long.
const WRITER_TTL: Duration = Duration::from_secs(3);

const MIB: u64 = 1024 * 1024;
/// What waits for one connection, at most: 1 MiB, a frame of 256 KiB and one message more, and what
/// their buffers have in reserve.
const OF_A_LINK: u64 = 2 * MIB;
/// Of a watch: its key, its stage and where it rests.
const OF_A_WATCH: u64 = 1024;
/// The subtree's log of 4,096 changed paths, and what the process takes for its work.
const OF_A_REPLICA: u64 = 4 * MIB;

/// How much more memory a replica may have than without watches.
fn bound(links: usize, watches: usize) -> u64 {
    links as u64 * OF_A_LINK + watches as u64 * OF_A_WATCH + OF_A_REPLICA
}

struct Size {
    watches: usize,
    /// So many that some choose each of two replicas.
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
#[ignore = "no scenario: the replica of those below, when they start it"]
async fn replica() {
    if is_replica() {
        serve().await.unwrap();
    }
}

/// A replica; a new cluster's first, or one that comes back knowing nothing.
fn start(address: SocketAddr, fresh: bool) -> ReplicaProcess {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["watches_at_size::replica", "--exact", "--ignored", "--nocapture"]);
    block_in_place(|| ReplicaProcess::start(command, address, fresh, WRITER_TTL)).unwrap()
}

/// Looks at a replica's memory: how much it had before, and at most.
struct Weight {
    before: u64,
    most: u64,
}

impl Weight {
    fn of(replica: &ReplicaProcess) -> Weight {
        let before = replica.resident();
        assert!(before > 0, "it runs");
        Weight { before, most: before }
    }

    fn look(&mut self, replica: &ReplicaProcess) {
        self.most = self.most.max(replica.resident());
    }

    #[track_caller]
    fn is_within(&self, bound: u64) {
        let more = self.most - self.before;
        println!("{} KiB, and at most {} KiB more", self.before / 1024, more / 1024);
        assert!(more <= bound, "{} KiB more are over {} KiB", more / 1024, bound / 1024);
    }
}

/// Waits until every watch believes what is true.
async fn settled(crowd: &Crowd, writer: &Writer, mut look: impl FnMut()) {
    let (truth, since) = (writer.truth(), Instant::now());
    loop {
        look();
        let astray = crowd.astray(&truth);
        if astray == 0 {
            return println!("all true {:?} after the last change was written", since.elapsed());
        }
        let one = || crowd.one_astray(&truth);
        assert!(since.elapsed() < SETTLED, "{astray} watches are astray: {}", one());
        sleep(LOOK).await;
    }
}

/// Two replicas, a publisher at both, watches at both.
struct Watched {
    replicas: [ReplicaProcess; 2],
    cluster: Cluster,
    writer: Writer,
    crowd: Crowd,
    weight: Weight,
    size: Size,
}

impl Watched {
    async fn start() -> Watched {
        let (size, replicas) = (size(), [start(LOOPBACK, true), start(LOOPBACK, true)]);
        let cluster = cluster(quick(), replicas.each_ref().map(|replica| replica.address));
        let mut writer = Writer::new(&cluster, PATHS, 1);
        writer.begin();
        in_time(writer.flushed(2)).await;
        let mut weight = Weight::of(&replicas[1]);
        let crowd = Crowd::start(&cluster, size.watches, size.links, PATHS, 0);
        settled(&crowd, &writer, || weight.look(&replicas[1])).await;
        let watched = Watched { replicas, cluster, writer, crowd, weight, size };
        assert!(watched.at(0) > 0 && watched.at(1) > 0, "all are at one replica");
        watched
    }

    /// How many watches that replica tells.
    fn at(&self, replica: usize) -> usize {
        self.crowd.at(&self.replicas[replica].address.to_string())
    }

    /// Changes for a part of the time.
    async fn changes(&mut self, part: u32) {
        let (since, lasts) = (Instant::now(), self.size.lasts / part);
        let mut changes = 0;
        while since.elapsed() < lasts {
            changes += self.writer.run(RATE, LOOK).await;
            self.weight.look(&self.replicas[1]);
        }
        // At least half of what was asked for, on a machine that is busy with other things.
        let wanted = (since.elapsed().as_secs_f64() * RATE as f64) as usize;
        assert!(changes >= wanted / 2, "{changes} of {wanted} changes were made");
    }

    /// The writer is still; `replicas` are left, and hold everything.
    async fn ends(&mut self, replicas: usize) {
        in_time(self.writer.flushed(replicas)).await;
        settled(&self.crowd, &self.writer, || self.weight.look(&self.replicas[1])).await;
        // Watches are told no priorities, but they count as true only if the replica has those,
        // too.
        let wrong = in_time(self.writer.resolved_wrong(&self.cluster)).await;
        assert!(wrong.is_empty(), "paths {wrong:?} are resolved otherwise than published");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_watcher_ends_in_the_true_state_though_one_replica_is_gone_for_good() {
    let mut watched = Watched::start().await;
    watched.changes(2).await;
    watched.replicas[0].kill();
    watched.changes(2).await;
    watched.ends(1).await;
    assert_eq!(watched.at(1), watched.size.watches);
    watched.weight.is_within(bound(watched.size.links, watched.size.watches));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_watcher_ends_in_the_true_state_though_its_replica_is_replaced_by_one_that_knows_nothing()
 {
    let mut watched = Watched::start().await;
    watched.changes(3).await;
    watched.replicas[0].kill();
    watched.replicas[0] = start(watched.replicas[0].address, false);
    watched.changes(3).await;
    in_time(watched.writer.flushed(2)).await;
    watched.weight.is_within(bound(watched.size.links, watched.size.watches));
    // Now there is nobody else whom they could ask.
    watched.replicas[1].kill();
    watched.changes(3).await;
    watched.ends(1).await;
    assert_eq!(watched.at(0), watched.size.watches);
}

/// A link by hand, with watches of everything below `/load` numbered from 0. It is not read.
struct Slow {
    sender: LinkSender,
    receiver: LinkReceiver,
    beliefs: Vec<Belief>,
    /// Snapshots that were begun, over all watches.
    begun: usize,
}

impl Slow {
    async fn start(address: SocketAddr, watches: usize, hang: Duration) -> Slow {
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
        Slow { sender, receiver, beliefs: vec![Belief::of(PATHS); watches], begun: 0 }
    }

    /// Reads the next frame.
    async fn read(&mut self) {
        let frame = in_time(self.receiver.recv()).await.expect("the link stands");
        for message in Messages::new(frame) {
            let (tag, body) = message.unwrap();
            match FromReplica::decode(tag, body).unwrap() {
                Some(FromReplica::PathSnapshot(part)) => {
                    let belief = &mut self.beliefs[part.watch as usize];
                    if part.first {
                        self.begun += 1;
                        *belief = Belief::of(PATHS);
                    }
                    for listed in part.paths {
                        belief.now(listed);
                    }
                    belief.whole = part.last.then_some(part.complete);
                }
                Some(FromReplica::PathChanges(changes)) => {
                    for watch in changes.watches {
                        let belief = &mut self.beliefs[watch as usize];
                        for listed in changes.paths.iter().cloned() {
                            belief.now(listed);
                        }
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Lets one connection through to the server, and after the handshake nothing back from it any
/// more; it closes neither side.
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

/// Connections of the replica, that which asks among them.
async fn connections(cluster: &Cluster) -> usize {
    reader(cluster).replica_status().await.remove(0).1.unwrap().connections as usize
}

/// Watches that each link asks for that is not read: their snapshots alone are more than a link and
/// its sockets hold, and some of the watches are not even made until it is read.
const UNREAD: usize = 2_000;
/// Paths of 200 bytes that come and go at once, and how often: far more than a log keeps.
const WAVE: usize = 2_500;
const WAVES: usize = 30;

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_that_does_not_read_costs_a_bounded_part_of_the_memory_and_nobody_else_anything()
{
    let replica = start(LOOPBACK, true);
    let cluster = cluster(quick(), [replica.address]);
    let mut writer = Writer::new(&cluster, PATHS, 2);
    writer.begin();
    in_time(writer.come_and_go(WAVE)).await;
    let mut weight = Weight::of(&replica);

    let hang = Duration::from_secs(2);
    let (stuck_address, stuck) = one_way(replica.address).await;
    let _stuck = Slow::start(stuck_address, UNREAD, hang).await;
    let mut slow = Slow::start(replica.address, UNREAD, 4 * PATIENCE).await;
    let (watches, links) = (50, 5);
    let crowd = Crowd::start(&cluster, watches, links, PATHS, 1);
    settled(&crowd, &writer, || weight.look(&replica)).await;

    // The others are told of everything while the slow ones have read nothing. What changes first
    // is forgotten again by the end.
    writer.run(RATE, Duration::from_millis(500)).await;
    for _ in 0..WAVES {
        in_time(writer.come_and_go(WAVE)).await;
        weight.look(&replica);
    }
    writer.run(RATE, Duration::from_millis(500)).await;
    in_time(writer.flushed(1)).await;
    settled(&crowd, &writer, || weight.look(&replica)).await;
    weight.is_within(bound(links + 2, 2 * UNREAD + watches));

    // Who takes nothing for as long as its link may be silent is disconnected, by the replica:
    // nobody closes that link.
    let since = Instant::now();
    let others = ["slow", "the writer", "who asks"].len() + links;
    while connections(&cluster).await != others {
        assert!(since.elapsed() < hang + PATIENCE, "the link that is stuck stands");
        sleep(LOOK).await;
    }
    stuck.abort();

    // Who begins to read is started over, and ends in the true state too.
    let truth = writer.truth();
    while !slow.beliefs.iter().all(|belief| belief.is_true(&truth)) {
        slow.read().await;
    }
    assert!(slow.begun > UNREAD, "none of {UNREAD} was started over");
    println!("{} snapshots for {UNREAD} slow watches", slow.begun);
    slow.sender.close("enough");
    settled(&crowd, &writer, || weight.look(&replica)).await;
    weight.is_within(bound(links + 2, 2 * UNREAD + watches));
}

/// What a path may take of a replica's memory, all indexes included.
const OF_A_PATH: u64 = 150;
/// Paths of 30 bytes that one publisher has.
const HUGE: usize = 250_000;
const HUGE_LONG: usize = 1_000_000;
/// In 99 of 100 cases a path of another publisher is registered as soon as this, where nobody else
/// uses the machine.
const ANOTHERS: Duration = Duration::from_millis(50);
/// How often it registers one; each waits for a slice of the other one's, of 2 ms, and a turn of
/// its own. It is counted from when it was due: who waits for one does not leave out those after
/// it.
const ANOTHER_EVERY: Duration = Duration::from_millis(10);
/// Paths of one request, which may have a mebibyte.
const A_REQUEST: usize = 25_000;
/// Requests that are not waited for.
const UNDER_WAY: usize = 8;

/// Requests, as long as they may be, that publish so many paths.
fn requests(count: usize) -> Vec<Frame> {
    let path = |n: usize| path(&format!("/jobs/{:04}/job-{n:015}", n / 1_000));
    assert_eq!(path(0).as_str().len(), 30);
    let request = |id: usize| {
        let paths: Vec<Path> = (id * A_REQUEST..(id + 1) * A_REQUEST).map(path).collect();
        let (change, paths) = (Change::Publish, paths.iter().collect());
        let groups = vec![Group { change, terms: Terms::default(), paths }];
        let mut out = FrameWriter::new();
        ToReplica::Write(Write { id: id as u64, groups }).encode(&mut out);
        out.finish()
    };
    (0..count / A_REQUEST).map(request).collect()
}

/// Makes them as fast as a replica takes them. The link on which it did.
async fn publish_huge(replica: SocketAddr, requests: Vec<Frame>) -> (LinkSender, LinkReceiver) {
    let link = dial(replica, &handshake(Role::ResolverWriter), &LinkOptions::default()).await;
    let mut link = link.unwrap().split();
    let wanted = vec![Digest::default()];
    let announce = Announce { id: 1, publisher: publisher(1), wanted };
    let answer = in_time(ask(&mut link, &ToReplica::Announce(announce))).await;
    assert!(matches!(answer, FromReplica::Announced(_)), "{answer:?}");
    let (mut sent, mut done) = (0, 0);
    while done < requests.len() {
        while sent < requests.len().min(done + UNDER_WAY) {
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
async fn a_huge_publish_takes_its_memory_and_no_other_publishers_time() {
    let count = if long() { HUGE_LONG } else { HUGE };
    let replica = start(LOOPBACK, true);
    let cluster = cluster(quick(), [replica.address]);
    let (other, terms) = (writer(&cluster, 2), PublicationTerms::default());
    // What the replica needs for any request at all is no part of a path.
    let before = (0..1_000).map(|n| (path(&format!("/other/before/{n}")), terms.clone()));
    other.publish_all(before);
    in_time(other.flushed(1)).await;
    let mut weight = Weight::of(&replica);

    let mut publishing = tokio::spawn(publish_huge(replica.address, requests(count)));
    let mut due = interval(ANOTHER_EVERY);
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
        weight.look(&replica);
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
        "{count} paths in {registered:?}; meanwhile {} of another publisher, p99 {p99:?}, at most {:?}",
        took.len(),
        took[took.len() - 1],
    );
    assert!(!long() || p99 <= ANOTHERS, "p99 is {p99:?}");
    println!("{} bytes a path", (replica.resident() - weight.before) / count as u64);
    // At any time: while its tables grow, too.
    weight.is_within(OF_A_PATH * count as u64);
}
