//! Limits that change while a replica serves: a lower one refuses new requests and drops nothing, a
//! higher one accepts more.

use std::time::{Duration, Instant};

use crate::common::*;
use longshore_protocol::{Glob, ResolverTiming};
use longshore_resolver::{
    CheckedTerms, Cluster, Limits, LimitsHandle, ReadError, ReplicaStatus, ResolverServer,
    ServerOptions,
};
use tokio::time::sleep;

fn quick() -> ResolverTiming {
    ResolverTiming {
        writer_ttl: Duration::from_secs(2),
        retry_wait_min: Duration::from_millis(10),
        retry_wait_max: Duration::from_millis(20),
        ..ResolverTiming::default()
    }
}

struct Served {
    cluster: Cluster,
    handle: LimitsHandle,
    limits: Limits,
}

impl Served {
    async fn start(connections_max: usize) -> Served {
        let options =
            ServerOptions { timing: quick(), fresh: true, connections_max, ..Default::default() };
        let limits = Limits { writers_reserved: 0, tools_reserved: 0, ..Limits::from(&options) };
        let options =
            ServerOptions { writers_reserved: Some(0), tools_reserved: Some(0), ..options };
        let server = ResolverServer::bind(LOOPBACK, options).unwrap();
        let cluster = cluster(quick(), [server.local_address()]);
        let handle = server.limits();
        tokio::spawn(server.run(std::future::pending()));
        Served { cluster, handle, limits }
    }

    async fn set(&mut self, change: impl FnOnce(&mut Limits)) {
        change(&mut self.limits);
        assert!(self.handle.set(self.limits).await, "it serves");
    }

    async fn status(&self) -> ReplicaStatus {
        reader(&self.cluster).replica_status().await.remove(0).1.unwrap()
    }
}

async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "never: {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_lower_limit_of_paths_refuses_new_ones_and_keeps_the_others() {
    let mut served = Served::start(768).await;
    let (writer, terms) = (writer(&served.cluster, 1), CheckedTerms::default());
    ["/a", "/b"].iter().for_each(|text| writer.publish(path(text), &terms));
    in_time(writer.flushed(1)).await;
    served.set(|limits| limits.paths_max = 1).await;
    assert_eq!(served.status().await.paths_max, 1);
    writer.publish(path("/c"), &terms);
    let is_refused = || writer.status()[0].refused == 1 && writer.status()[0].pending == 0;
    eventually("/c is refused", is_refused).await;
    let reader = reader(&served.cluster);
    let found = async || {
        let paths = ["/a", "/b", "/c"].map(path).to_vec();
        let answers = in_time(reader.resolve(paths)).await.unwrap().answers;
        answers.iter().map(|answer| publisher_names(answer).len()).collect::<Vec<_>>()
    };
    assert_eq!(found().await, [1, 1, 0]);

    // Refused paths are sent again every half `writer_ttl`.
    served.set(|limits| limits.paths_max = 3).await;
    eventually("/c is taken", || writer.status()[0].refused == 0).await;
    in_time(writer.flushed(1)).await;
    assert_eq!(found().await, [1, 1, 1]);
}

#[tokio::test]
async fn a_lower_limit_of_watches_refuses_new_ones_and_keeps_the_others() {
    let mut served = Served::start(768).await;
    let reader = reader(&served.cluster);
    let glob = || Glob::new("/**").unwrap();
    let (mut first, mut second) =
        (reader.watch_publishers(glob()), reader.watch_publishers(glob()));
    in_time(first.changed()).await;
    in_time(second.changed()).await;
    served.set(|limits| limits.watches_max = 1).await;
    let _third = reader.watch_publishers(glob());
    // The server loop handles the requests of one connection in order.
    in_time(reader.resolve(vec![path("/a")])).await.unwrap();
    let status = served.status().await;
    assert_eq!((status.watches, status.watches_max), (2, 1));

    let writer = writer(&served.cluster, 1);
    writer.publish(path("/a"), &CheckedTerms::default());
    while in_time(first.changed()).await.publishers.is_empty() {}
    while in_time(second.changed()).await.publishers.is_empty() {}
}

#[tokio::test]
async fn a_lower_limit_of_connections_refuses_new_ones_and_keeps_the_others() {
    let mut served = Served::start(2).await;
    let ask = async |reader: &longshore_resolver::ReadClient| {
        in_time(reader.resolve(vec![path("/a")])).await.map(drop)
    };
    let [first, second, third] = [(); 3].map(|()| reader(&served.cluster));
    ask(&first).await.unwrap();
    served.set(|limits| limits.connections_max = 1).await;
    let Err(ReadError::NoAnswer(failures)) = ask(&second).await else { panic!("one too many") };
    assert!(failures[0].why.contains("1 of 1 connections are taken"), "{}", failures[0].why);
    served.set(|limits| limits.connections_max = 4).await;
    ask(&second).await.unwrap();
    ask(&third).await.unwrap();
    let status = served.status().await;
    assert_eq!((status.connections, status.connections_max), (4, 4));
    assert!(status.refused_busy > 0, "refused diallers are counted");
    served.set(|limits| limits.connections_max = 1).await;
    for reader in [&first, &second, &third] {
        ask(reader).await.unwrap();
    }
}
