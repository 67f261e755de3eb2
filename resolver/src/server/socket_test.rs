//! Replicas and clients over real sockets, on loopback, with shortened times.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use longshore_access::{AccessControl, Policy};
use longshore_protocol::frame::{FrameWriter, Messages};
use longshore_protocol::messages::resolver::{FromReplica, RequestRefusal, ToReplica};
use longshore_protocol::{
    Epoch, Glob, Incarnation, Path, PublicationKind, PublisherId, PublisherInfo, ResolverTiming,
    Role, SessionId, Terms,
};
use longshore_transport::{LinkReceiver, LinkSender};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::directory::{Directory, Rules};
use crate::replica_link::{Caller, connect, now};
use crate::server::server_loop::{EVENTS_QUEUED_MAX, ServerLoop};
use crate::{
    CheckedTerms, Cluster, PathAnswer, PathEvent, ReadClient, ReplicaHealth, ReplicaStopped,
    ResolverServer, ServerOptions, WriteClient,
};

/// Longer than any step here takes, on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(20);

fn quick() -> ResolverTiming {
    ResolverTiming {
        reader_ttl: Duration::from_secs(4),
        writer_ttl: Duration::from_secs(4),
        handshake_timeout: Duration::from_secs(2),
        connect_timeout: Duration::from_secs(1),
        retry_wait_min: Duration::from_millis(20),
        retry_wait_max: Duration::from_millis(60),
        request_timeout_min: Duration::from_secs(2),
        ..ResolverTiming::default()
    }
}

pub(crate) struct Replica {
    pub(crate) address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), ReplicaStopped>>,
}

impl Replica {
    pub(crate) async fn start() -> Replica {
        Replica::start_with("127.0.0.1:0".parse().unwrap(), |_| {}).await
    }

    pub(crate) async fn start_with(
        address: SocketAddr,
        adjust: impl FnOnce(&mut ServerOptions),
    ) -> Replica {
        let mut options =
            ServerOptions { timing: quick(), fresh: true, ..ServerOptions::default() };
        adjust(&mut options);
        let server = ResolverServer::bind(address, options).unwrap();
        let address = server.local_address();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(server.run(async {
            let _ = stopped.await;
        }));
        Replica { address, stop, task }
    }

    pub(crate) async fn kill(self) -> SocketAddr {
        self.stop.send(()).unwrap();
        self.task.await.unwrap().unwrap();
        self.address
    }
}

pub(crate) fn cluster<'a>(replicas: impl IntoIterator<Item = &'a Replica>) -> Cluster {
    let replicas = replicas.into_iter().map(|replica| replica.address.to_string());
    Cluster { timing: quick(), ..Cluster::new(replicas) }
}

fn publisher(number: u8) -> PublisherInfo {
    PublisherInfo::new(
        PublisherId([number; 16]),
        Epoch(1),
        format!("publisher-{number}"),
        [([127, 0, 0, 1], 4000 + u16::from(number))],
    )
}

pub(crate) fn writer(cluster: &Cluster, number: u8) -> WriteClient {
    WriteClient::connect(cluster.clone(), publisher(number))
}

pub(crate) fn reader(cluster: &Cluster) -> ReadClient {
    ReadClient::builder().name("a reader").connect(cluster.clone())
}

pub(crate) fn path(text: &str) -> Path {
    Path::new(text).unwrap()
}

fn glob(text: &str) -> Glob {
    Glob::new(text).unwrap()
}

fn publisher_names(answer: &PathAnswer) -> Vec<(String, bool)> {
    match answer {
        PathAnswer::Publishers { set, by_default, .. } => {
            let name = |one: &crate::Publication| (one.publisher.name.clone(), *by_default);
            let mut set: Vec<_> = set.iter().map(name).collect();
            // Publishers are in the order in which they reached the replica.
            set.sort_unstable();
            set
        }
        PathAnswer::NotFound => Vec::new(),
        PathAnswer::Refused(reason) => panic!("{reason}"),
    }
}

pub(crate) async fn in_time<T>(what: impl Future<Output = T>) -> T {
    timeout(PATIENCE, what).await.expect("it takes too long")
}

#[tokio::test]
async fn paths_published_at_every_replica_are_readable_at_any() {
    let replicas = [Replica::start().await, Replica::start().await, Replica::start().await];
    let cluster = cluster(&replicas);
    let (left, right) = (writer(&cluster, 1), writer(&cluster, 2));
    left.publish(path("/jobs/mail/welcome"), &CheckedTerms::default());
    left.publish(path("/jobs/mail/bye"), &CheckedTerms::default());
    right.publish(path("/jobs/mail/bye"), &CheckedTerms::default());
    right.publish_default(path("/jobs"), &CheckedTerms::default());
    in_time(left.flushed(3)).await;
    in_time(right.flushed(3)).await;

    for replica in &replicas {
        let reader = reader(&self::cluster([replica]));
        let asked = ["/jobs/mail/welcome", "/jobs/mail/bye", "/jobs/else", "/jobsx"].map(path);
        let resolution = in_time(reader.resolve(asked.to_vec())).await.unwrap();
        assert!(resolution.complete);
        let answers: Vec<_> = resolution.answers.iter().map(publisher_names).collect();
        let (one, two) = (String::from("publisher-1"), String::from("publisher-2"));
        assert_eq!(
            answers,
            [
                vec![(one.clone(), false)],
                vec![(one, false), (two.clone(), false)],
                vec![(two, true)],
                vec![],
            ]
        );
        let below = in_time(reader.list(path("/jobs"))).await.unwrap();
        let below: Vec<_> = below.paths.iter().map(|p| (p.path.as_str(), p.published())).collect();
        assert_eq!(below, [("/jobs/mail", false)]);
        let matching = in_time(reader.list_matching(vec![glob("/jobs/**")])).await.unwrap();
        let matching: Vec<_> =
            matching.paths.iter().map(|p| (p.path.as_str(), p.published(), p.default)).collect();
        assert_eq!(
            matching,
            [
                ("/jobs", false, true),
                ("/jobs/mail/bye", true, false),
                ("/jobs/mail/welcome", true, false),
            ]
        );
    }

    let reader = reader(&cluster);
    let mut watch = reader.watch_publishers(glob("/jobs/mail/welcome"));
    let mut both = in_time(watch.changed()).await;
    while both.publishers.len() < 2 {
        both = in_time(watch.changed()).await;
    }
    assert!(both.complete);
    left.unpublish(path("/jobs/mail/welcome"));
    assert_eq!(in_time(watch.changed()).await.publishers, [publisher(2)]);
    in_time(right.close(PATIENCE)).await;
    assert_eq!(in_time(watch.changed()).await.publishers, []);
}

#[tokio::test]
async fn a_hundred_thousand_paths_are_published_and_resolved_in_slices() {
    let replica = Replica::start().await;
    let cluster = cluster([&replica]);
    let writer = writer(&cluster, 1);
    let paths: Vec<Path> = (0..100_000).map(|n| path(&format!("/jobs/{}/{n}", n % 100))).collect();
    writer.publish_all(paths.iter().map(|path| (path.clone(), CheckedTerms::default())));
    in_time(writer.flushed(1)).await;
    let reader = reader(&cluster);
    let resolution = in_time(reader.resolve(paths.clone())).await.unwrap();
    assert_eq!(resolution.answers.len(), paths.len());
    assert!(resolution.answers.iter().all(|answer| publisher_names(answer).len() == 1));
    let all = in_time(reader.list_matching(vec![glob("/jobs/**")])).await.unwrap();
    assert_eq!(all.paths.len(), paths.len());
    assert_eq!(in_time(reader.list(path("/jobs"))).await.unwrap().paths.len(), 100);
    let status = in_time(reader.replica_status()).await.remove(0).1.unwrap();
    assert_eq!((status.paths, status.publishers, status.warming), (100_000, 1, false));
}

#[tokio::test]
async fn a_replica_whose_directory_panics_ends_with_the_reason() {
    let options = ServerOptions { timing: quick(), fresh: true, ..ServerOptions::default() };
    let address = "127.0.0.1:0".parse().unwrap();
    let mut server = ResolverServer::bind(address, options).unwrap();
    // Its first publisher gets a deadline beyond the clock's range: the test's stand-in for a
    // defect.
    let rules = Rules::small(Duration::MAX);
    let directory = Directory::new(now(), Incarnation([1; 16]), rules);
    let (events, received) = mpsc::channel(EVENTS_QUEUED_MAX);
    server.server_loop = ServerLoop::new("left".into(), directory, received, events.downgrade());
    server.events = events;
    let address = server.local_address();
    let running = tokio::spawn(server.run(std::future::pending()));
    let cluster = Cluster { timing: quick(), ..Cluster::new([address.to_string()]) };
    let left = writer(&cluster, 1);
    left.publish(path("/jobs"), &CheckedTerms::default());
    let ended = in_time(running).await.unwrap().unwrap_err();
    assert!(ended.why.contains("overflow when adding duration"), "{ended}");
}

/// A raw link, which sends what no client of ours would.
struct Raw {
    sender: LinkSender,
    receiver: LinkReceiver,
}

impl Raw {
    async fn reader(replica: &Replica) -> Raw {
        let caller = Caller {
            cluster: cluster([replica]),
            role: Role::ResolverReader,
            session: SessionId([9; 16]),
            name: "raw".into(),
        };
        let link = in_time(connect(&caller, &replica.address.to_string())).await.unwrap();
        let (sender, receiver) = link.split();
        Raw { sender, receiver }
    }

    /// Sends a frame, and waits for `count` answers.
    async fn ask(&mut self, out: FrameWriter, count: usize) -> Vec<FromReplica> {
        self.sender.send(out.finish()).unwrap();
        let mut answers = Vec::new();
        while answers.len() < count {
            let frame = in_time(self.receiver.recv()).await.unwrap();
            for message in Messages::new(frame) {
                let (tag, body) = message.unwrap();
                answers.extend(FromReplica::decode(tag, body).unwrap());
            }
        }
        answers
    }
}

#[tokio::test]
async fn a_request_of_a_later_version_is_refused_and_unknown_messages_are_skipped() {
    let replica = Replica::start().await;
    let mut raw = Raw::reader(&replica).await;
    let mut out = FrameWriter::new();
    // Not a request: it gets no answer.
    out.message(99, |out| out.u64(6));
    // A request whose fields after its number are unknown here.
    out.message(69, |out| {
        out.u64(7);
        out.string("something new");
    });
    ToReplica::Status { id: 8 }.encode(&mut out);
    let answers = raw.ask(out, 2).await;
    let [FromReplica::Refused { id: 7, code, reason }, FromReplica::Status { id: 8, .. }] =
        &answers[..]
    else {
        panic!("{answers:?}")
    };
    assert_eq!(*code, RequestRefusal::UnknownRequest);
    assert!(reason.contains("tag 69"), "{reason}");
}

/// A policy for clients without an identity, who own publisher 1.
fn policy(resolve: &[&str], serve: &[&str]) -> Option<Policy> {
    policy_with(resolve, serve, "")
}

/// The same with further rules.
fn policy_with(resolve: &[&str], serve: &[&str], further: &str) -> Option<Policy> {
    let id = PublisherId([1; 16]);
    let rule = |action: &str, paths: &[&str]| {
        format!("[[allow]]\nwho = [\"anonymous\"]\ndo = [{action:?}]\npaths = {paths:?}\n")
    };
    let rules = rule("resolve", resolve) + &rule("serve", serve) + &rule("publish", &["/v/**"]);
    let text = format!("publishers.\"{id}\" = [\"anonymous\"]\n{further}{rules}");
    Some(Policy::parse(&text).unwrap())
}

#[tokio::test]
async fn a_change_of_the_policy_reaches_open_links_and_published_paths() {
    let control = AccessControl::new(policy(&["/a/**"], &["/**"]), None);
    let replica = Replica::start_with("127.0.0.1:0".parse().unwrap(), |options| {
        options.access_control = control.clone();
    });
    let replica = replica.await;
    let cluster = cluster([&replica]);
    let (writer, stranger, reader) = (writer(&cluster, 1), writer(&cluster, 2), reader(&cluster));
    for text in ["/a/1", "/b/1", "/b/2"] {
        writer.publish(path(text), &CheckedTerms::default());
    }
    stranger.publish(path("/a/2"), &CheckedTerms::default());
    in_time(writer.flushed(1)).await;
    // A publisher that the policy does not name holds no queues.
    in_time(stranger.flushed(1)).await;
    assert_eq!(stranger.status()[0].refused, 1);

    let mut watch = reader.watch_paths(vec![glob("/**")]);
    let mut watched = BTreeSet::new();
    let mut watched_are = async |expected: &[&str]| {
        let expected: BTreeSet<Path> = expected.iter().map(|text| path(text)).collect();
        while watched != expected {
            match in_time(watch.next()).await.unwrap() {
                PathEvent::Now(listed) => watched.insert(listed.path),
                PathEvent::Gone(path) => watched.remove(&path),
                _ => continue,
            };
        }
    };
    watched_are(&["/a/1"]).await;
    let status = in_time(reader.replica_status()).await.remove(0).1.unwrap_err();
    assert!(status.to_string().contains("to inspect /sys"), "{status}");

    control.replace(policy(&["/a/**", "/b/**"], &["/**"]), None);
    watched_are(&["/a/1", "/b/1", "/b/2"]).await;
    // Its link is cut; when it is back, its path is gone, and refused.
    control.replace(policy(&["/a/**", "/b/**"], &["/a/**", "/b/1"]), None);
    watched_are(&["/a/1", "/b/1"]).await;
    while writer.status()[0].refused == 0 {
        in_time(tokio::time::sleep(Duration::from_millis(5))).await;
    }
    in_time(writer.flushed(1)).await;
    replica.kill().await;
}

#[tokio::test]
async fn a_publisher_that_is_bound_to_others_loses_its_link() {
    let control = AccessControl::new(policy(&["/**"], &["/**"]), None);
    let replica = Replica::start_with("127.0.0.1:0".parse().unwrap(), |options| {
        options.access_control = control.clone();
    });
    let replica = replica.await;
    let cluster = cluster([&replica]);
    let (own, values) = (writer(&cluster, 1), writer(&cluster, 2));
    let value = Terms { kind: PublicationKind::Value, ..Terms::default() };
    own.publish(path("/a"), &CheckedTerms::default());
    values.publish(path("/v/a"), &CheckedTerms::new(value).unwrap());
    for writer in [&own, &values] {
        in_time(writer.flushed(1)).await;
    }
    let before = own.status()[0].health;
    assert!(matches!(before, ReplicaHealth::Connected { .. }), "{before:?}");
    let bound = format!("publishers.\"{}\" = [\"cn:owner\"]\n", PublisherId([2; 16]));
    control.replace(policy_with(&["/**"], &["/**"], &bound), None);
    while !values.status()[0].last_error.as_ref().is_some_and(|why| why.contains("belongs to")) {
        in_time(tokio::time::sleep(Duration::from_millis(5))).await;
    }
    assert_eq!(
        own.status()[0].health,
        before,
        "the entry of another publisher takes nothing from it"
    );
    replica.kill().await;
}
