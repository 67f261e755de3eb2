//! Clients that do not read their answers, over real sockets: what they hold up, and what is left of them.

use std::time::Duration;

use longshore_protocol::frame::FrameWriter;
use longshore_protocol::messages::resolver::{ListMatching, ToReplica, WatchPublishers};
use longshore_protocol::{
    Epoch, Glob, Path, PublisherId, PublisherInfo, ResolverTiming, Role, SessionId,
};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::replica_link::{Caller, connect};
use crate::server::connection::REQUESTS_OF_ONE_MAX;
use crate::server::limits::Room;
use crate::{Cluster, PublicationTerms, ReadClient, ResolverServer, ServerOptions, WriteClient};

/// Longer than anything here takes, on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(30);

async fn in_time<T>(what: impl Future<Output = T>) -> T {
    timeout(PATIENCE, what).await.expect("it takes too long")
}

fn glob() -> Glob {
    Glob::new("/**").unwrap()
}

/// A replica with paths enough for long answers, and room for the requests of two connections.
struct Replica {
    cluster: Cluster,
    room: Room,
    reader: ReadClient,
    _writer: WriteClient,
}

impl Replica {
    async fn start() -> Replica {
        let timing =
            ResolverTiming { reader_ttl: Duration::from_secs(4), ..ResolverTiming::default() };
        let options = ServerOptions {
            timing: timing.clone(),
            fresh: true,
            requests_bytes_max: 2 * REQUESTS_OF_ONE_MAX,
            ..ServerOptions::default()
        };
        let server = ResolverServer::bind("127.0.0.1:0".parse().unwrap(), options).await.unwrap();
        let room = server.limits().room;
        let address = server.local_address().to_string();
        let cluster = Cluster { timing, ..Cluster::new([address]) };
        tokio::spawn(server.run(std::future::pending()));
        let publisher = PublisherInfo {
            id: PublisherId([1; 16]),
            epoch: Epoch(1),
            name: "left".into(),
            addresses: vec![([127, 0, 0, 1], 4000).into()],
            later: Default::default(),
        };
        let writer = WriteClient::new(cluster.clone(), publisher, SessionId([1; 16]));
        let name = "x".repeat(200);
        for n in 0..5_000 {
            let path = Path::new(&format!("/{name}/{n}")).unwrap();
            writer.publish(path, &PublicationTerms::default());
        }
        in_time(writer.flushed(1)).await;
        let reader = ReadClient::new(cluster.clone(), SessionId([2; 16]), "a reader");
        Replica { cluster, room, reader, _writer: writer }
    }

    /// Connections and watches.
    async fn load(&self) -> (u64, u64) {
        let status = in_time(self.reader.replica_status()).await.remove(0).1.unwrap();
        (status.connections, status.watches)
    }

    /// Says all of it at a link of its own, and reads nothing. Dropped, the process behind the link has died.
    async fn say(&self, role: Role, requests: impl Iterator<Item = ToReplica>) -> Killed {
        let mut out = FrameWriter::new();
        requests.for_each(|request| request.encode(&mut out));
        let caller = Caller {
            cluster: self.cluster.clone(),
            role,
            session: SessionId([9; 16]),
            name: "raw".into(),
        };
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (said, all_said) = oneshot::channel();
        let replica = self.cluster.replicas[0].clone();
        runtime.spawn(async move {
            let (sender, receiver) = connect(&caller, &replica).await.unwrap().split();
            sender.send(out.finish()).unwrap();
            sender.flushed().await.unwrap();
            said.send(()).unwrap();
            std::future::pending::<()>().await;
            drop(receiver);
        });
        in_time(all_said).await.unwrap();
        Killed(Some(runtime))
    }
}

/// Its sockets are closed with everything that was not read in them.
struct Killed(Option<Runtime>);

impl Drop for Killed {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

#[tokio::test]
async fn of_a_client_that_dies_with_more_asked_than_it_may_nothing_is_left() {
    let replica = Replica::start().await;
    let before = replica.load().await;
    let watch = |watch| ToReplica::WatchPublishers(WatchPublishers { id: 1, watch, glob: glob() });
    let list = |id| ToReplica::ListMatching(ListMatching { id, globs: vec![glob()] });
    // Each counts for 1 KiB at least, and is answered with a MiB that nobody reads.
    let lists = (0..REQUESTS_OF_ONE_MAX as u64 / 1_024 + 2_000).map(list);
    let client = replica.say(Role::ResolverReader, (0..10).map(watch).chain(lists)).await;
    in_time(async {
        while replica.load().await != (before.0 + 1, 10) {
            sleep(Duration::from_millis(10)).await;
        }
        // Until it has taken what it may, and its connection waits for more.
        let mut taken = [0; 2];
        while taken[0] == 0 || taken != replica.room.taken() {
            taken = replica.room.taken();
            sleep(Duration::from_millis(200)).await;
        }
    })
    .await;
    drop(client);
    in_time(async {
        while replica.load().await != before || replica.room.taken() != [0; 2] {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let all = in_time(replica.reader.list_matching(vec![glob()])).await.unwrap();
    assert_eq!(all.paths.len(), 5_000);
}

#[tokio::test]
async fn what_a_writer_reads_takes_no_memory_from_writes() {
    let replica = Replica::start().await;
    let list = |id| ToReplica::ListMatching(ListMatching { id, globs: vec![glob()] });
    let client = replica.say(Role::ResolverWriter, (0..1_000).map(list)).await;
    in_time(async {
        while replica.room.taken()[0] == 0 {
            assert_eq!(replica.room.taken()[1], 0);
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert_eq!(replica.room.taken()[1], 0);
    drop(client);
}
