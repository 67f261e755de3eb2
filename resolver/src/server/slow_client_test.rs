//! Clients that do not read their answers, over real sockets: what they block, and what is released
//! when they end.

use std::time::Duration;

use longshore_access::{AccessControl, Policy};
use longshore_protocol::frame::FrameWriter;
use longshore_protocol::messages::resolver::{Announce, ListMatching, ToReplica, WatchPublishers};
use longshore_protocol::{
    Epoch, Glob, Path, PublisherId, PublisherInfo, ResolverTiming, Role, SessionId,
};
use longshore_transport::FrameBudget;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};

use crate::replica_link::{Caller, connect};
use crate::server::connection::{FRAME_BYTES_MAX, UNANSWERED_BYTES_MAX};
use crate::{CheckedTerms, Cluster, ReadClient, ResolverServer, ServerOptions, WriteClient};

/// Longer than any step here takes, on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(30);

async fn in_time<T>(what: impl Future<Output = T>) -> T {
    timeout(PATIENCE, what).await.expect("it takes too long")
}

fn glob() -> Glob {
    Glob::new("/**").unwrap()
}

fn publisher(number: u8) -> PublisherInfo {
    let id = PublisherId([number; 16]);
    PublisherInfo::new(id, Epoch(1), format!("publisher-{number}"), [([127, 0, 0, 1], 4000)])
}

/// A policy for clients without an identity, who may do everything, and own publisher 1.
fn policy(further: &str) -> Option<Policy> {
    let id = PublisherId([1; 16]);
    let all = "[[allow]]\nwho = [\"anonymous\"]\ndo = [\"*\"]\npaths = [\"/**\"]\n";
    let text = format!("publishers.\"{id}\" = [\"anonymous\"]\n{further}{all}");
    Some(Policy::parse(&text).unwrap())
}

/// A replica with enough paths for long answers.
struct Replica {
    cluster: Cluster,
    control: AccessControl,
    budget: FrameBudget,
    reader: ReadClient,
    _writer: WriteClient,
}

impl Replica {
    async fn start() -> Replica {
        let timing =
            ResolverTiming { reader_ttl: Duration::from_secs(4), ..ResolverTiming::default() };
        let budget = FrameBudget::default();
        let control = AccessControl::new(policy(""), None);
        let options = ServerOptions {
            timing: timing.clone(),
            fresh: true,
            budget: budget.clone(),
            access_control: control.clone(),
            ..ServerOptions::default()
        };
        let server = ResolverServer::bind("127.0.0.1:0".parse().unwrap(), options).unwrap();
        let address = server.local_address().to_string();
        let cluster = Cluster { timing, ..Cluster::new([address]) };
        tokio::spawn(server.run(std::future::pending()));
        let writer = WriteClient::connect(cluster.clone(), publisher(1));
        let name = "x".repeat(200);
        for n in 0..5_000 {
            let path = Path::new(&format!("/{name}/{n}")).unwrap();
            writer.publish(path, &CheckedTerms::default());
        }
        in_time(writer.flushed(1)).await;
        let reader = ReadClient::builder().name("a reader").connect(cluster.clone());
        Replica { cluster, control, budget, reader, _writer: writer }
    }

    /// Connections and watches.
    async fn load(&self) -> (u64, u64) {
        let status = in_time(self.reader.replica_status()).await.remove(0).1.unwrap();
        (status.connections, status.watches)
    }

    /// A client that sends `first`, then requests beyond its limit, and reads nothing. Returns once
    /// the replica reads no more of them.
    async fn overload(&self, role: Role, first: impl IntoIterator<Item = ToReplica>) -> Killed {
        let before = self.load().await;
        let watch =
            |watch| ToReplica::WatchPublishers(WatchPublishers { id: 1, watch, glob: glob() });
        let list = |id| ToReplica::ListMatching(ListMatching { id, globs: vec![glob()] });
        let mut watches = FrameWriter::new();
        first.into_iter().chain((0..10).map(watch)).for_each(|one| one.encode(&mut watches));
        // Each of 60,000 requests in a frame is answered with a MiB that is never read.
        let mut lists = FrameWriter::new();
        (0..60_000).map(list).for_each(|request| request.encode(&mut lists));
        let (bytes, lists) = (lists.body_len(), lists.into_body());
        let again = |_| {
            let mut out = FrameWriter::new();
            out.put_shared(lists.clone());
            out
        };
        let frames = [watches].into_iter().chain((0..2 * UNANSWERED_BYTES_MAX / bytes).map(again));
        let client = self.send_frames(role, frames.collect()).await;
        in_time(async {
            while self.load().await != (before.0 + 1, 10) {
                sleep(Duration::from_millis(10)).await;
            }
            // Until the replica has taken what it may, and the connection waits for more.
            while self.budget.charged() < UNANSWERED_BYTES_MAX - bytes {
                sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        client
    }

    /// Sends `frames` over a link of its own, and reads nothing. Dropping the result kills the
    /// process behind the link.
    async fn send_frames(&self, role: Role, frames: Vec<FrameWriter>) -> Killed {
        let caller = Caller {
            cluster: self.cluster.clone(),
            role,
            session: SessionId([9; 16]),
            name: "raw".into(),
        };
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let replica = self.cluster.replicas[0].clone();
        runtime.spawn(async move {
            let (sender, receiver) = connect(&caller, &replica).await.unwrap().split();
            // More than the replica reads, so do not wait for it.
            frames.into_iter().for_each(|out| sender.send(out.finish()).unwrap());
            std::future::pending::<()>().await;
            drop(receiver);
        });
        Killed(Some(runtime))
    }
}

/// Closes its sockets with everything unread in them.
struct Killed(Option<Runtime>);

impl Drop for Killed {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

#[tokio::test]
async fn a_client_that_dies_beyond_its_limit_leaves_nothing_behind() {
    let replica = Replica::start().await;
    let before = replica.load().await;
    let client = replica.overload(Role::ResolverReader, []).await;
    // The limit of unanswered bytes, and the frame that waits for it.
    assert!(replica.budget.charged() <= UNANSWERED_BYTES_MAX + FRAME_BYTES_MAX);
    drop(client);
    in_time(async {
        while replica.load().await != before || replica.budget.charged() > 0 {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let all = in_time(replica.reader.list_matching(vec![glob()])).await.unwrap();
    assert_eq!(all.paths.len(), 5_000);
}

#[tokio::test]
async fn a_publisher_beyond_its_limit_that_is_bound_to_others_loses_its_link() {
    let replica = Replica::start().await;
    let before = replica.load().await;
    let announce = Announce { id: 1, publisher: publisher(2), desired: Vec::new() };
    let _client = replica.overload(Role::ResolverWriter, [ToReplica::Announce(announce)]).await;
    let bound = format!("publishers.\"{}\" = [\"cn:owner\"]\n", PublisherId([2; 16]));
    replica.control.replace(policy(&bound), None);
    in_time(async {
        while replica.load().await != before {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}
