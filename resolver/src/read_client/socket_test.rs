//! Answers of replicas to the read client over real sockets: tables, known publishers, and watches
//! over paths.

use longshore_protocol::Glob;

use crate::server::socket_test::{Replica, cluster, in_time, path, reader, writer};
use crate::{CheckedTerms, PathAnswer, ReadError, ServerOptions};

#[tokio::test]
async fn silent_replicas_are_listed_with_the_publishers() {
    let replicas = [Replica::start().await];
    let mut cluster = cluster(&replicas);
    // The system accepts connections to it, but no process answers.
    let hangs = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let hangs = (hangs.local_addr().unwrap().to_string(), hangs);
    cluster.replicas.push(hangs.0.clone());
    let (writer, reader) = (writer(&cluster, 1), reader(&cluster));
    writer.publish(path("/jobs/a"), &CheckedTerms::default());
    in_time(writer.flushed(1)).await;
    let roll = in_time(reader.cluster_publishers(&Glob::everything())).await.unwrap();
    assert_eq!((roll.registered.len(), roll.missing.len()), (1, 0));
    let silent_replicas: Vec<_> =
        roll.silent_replicas.iter().map(|one| one.replica.as_str()).collect();
    assert_eq!(silent_replicas, [hangs.0.as_str()]);
}

#[tokio::test]
async fn a_publisher_that_one_replica_does_not_know_is_found() {
    let replicas = [Replica::start().await, Replica::start().await];
    let writer = writer(&cluster(&replicas[..1]), 1);
    writer.publish(path("/jobs/a"), &CheckedTerms::default());
    in_time(writer.flushed(1)).await;
    // Each begins with one of the two.
    for _ in 0..8 {
        let reader = reader(&cluster(&replicas));
        let paths = ["/jobs/none", "/jobs/a"].map(path);
        let resolution = in_time(reader.resolve(paths.into())).await.unwrap();
        let [PathAnswer::NotFound, PathAnswer::Publishers { .. }] = &resolution.answers[..] else {
            panic!("{resolution:?}");
        };
        assert!(resolution.complete);
    }
}

#[tokio::test]
async fn a_replica_full_of_readers_still_answers_tools() {
    let full = |options: &mut ServerOptions| {
        (options.connections_max, options.tools_reserved) = (2, Some(1));
    };
    let replica = Replica::start_with("127.0.0.1:0".parse().unwrap(), full).await;
    let cluster = cluster([&replica]);
    let reads = reader(&cluster);
    in_time(reads.list(path("/"))).await.unwrap();

    let operator = reader(&cluster);
    let outstanding = cluster.replicas[0].as_str();
    assert!(in_time(operator.publishers_known(outstanding)).await.unwrap().is_empty());
    drop(reads);
    replica.kill().await;
}

#[tokio::test]
async fn more_globs_than_the_limit_are_refused_by_the_client() {
    let replicas = [Replica::start().await];
    let cluster = cluster(&replicas);
    let (writer, reader) = (writer(&cluster, 1), reader(&cluster));
    writer.publish(path("/jobs/255"), &CheckedTerms::default());
    in_time(writer.flushed(1)).await;
    let globs = |count: usize| (0..count).map(|n| Glob::new(&format!("/jobs/{n}")).unwrap());
    let listing = in_time(reader.list_matching(globs(256).collect())).await.unwrap();
    assert_eq!(listing.paths.len(), 1);
    let error = in_time(reader.list_matching(globs(257).collect())).await.unwrap_err();
    assert_eq!(error, ReadError::TooManyGlobs { globs: 257, limit: 256 });
    let expected = "a list of 257 globs is over the limit of 256; list them in parts";
    assert_eq!(error.to_string(), expected);
}
