//! Answers of replicas to the read client over real sockets: tables, known publishers, and watches
//! over paths.

use std::collections::BTreeSet;

use longshore_protocol::{Glob, Path, Terms};

use crate::server::socket_test::{Replica, cluster, in_time, path, reader, writer};
use crate::{PathAnswer, PathEvent, PathWatch, PublicationTerms, ReadError, ServerOptions};

/// Everything up to the next `Whole` event: the paths that are there now, and those that are gone.
async fn until_whole(watch: &mut PathWatch) -> (BTreeSet<Path>, BTreeSet<Path>) {
    let (mut now, mut gone) = (BTreeSet::new(), BTreeSet::new());
    loop {
        match in_time(watch.next()).await.unwrap() {
            PathEvent::Now(listed) => now.insert(listed.path),
            PathEvent::Gone(path) => gone.insert(path),
            PathEvent::Whole { complete: true } => return (now, gone),
            PathEvent::SnapshotBegins { .. } => continue,
            other => panic!("{other:?}"),
        };
    }
}

#[tokio::test]
async fn tables_terms_and_publishers_are_answered() {
    let replicas = [Replica::start().await];
    let cluster = cluster(&replicas);
    let (writer, reader) = (writer(&cluster, 1), reader(&cluster));
    for text in ["/jobs/east/mail", "/jobs/west/mail", "/jobs/west/sha"] {
        writer.publish(path(text), &PublicationTerms::default());
    }
    in_time(writer.flushed(1)).await;

    let table = in_time(reader.table(path("/jobs"))).await.unwrap();
    assert_eq!(table.rows, ["east", "west"]);
    let columns: Vec<_> = table.columns.iter().map(|one| (one.name.as_str(), one.rows)).collect();
    assert_eq!(columns, [("mail", 2), ("sha", 1)]);

    let resolution = in_time(reader.resolve(vec![path("/jobs/west/sha")])).await.unwrap();
    let [PathAnswer::Publishers { set, .. }] = &resolution.answers[..] else {
        panic!("no publisher")
    };
    assert_eq!((set[0].publisher.name.as_str(), &set[0].terms), ("publisher-1", &Terms::default()));

    let replica = replicas[0].address.to_string();
    let known = in_time(reader.publishers_known(&replica)).await.unwrap();
    assert_eq!((known.len(), known[0].held, known[0].departure), (1, 3, None));
}

#[tokio::test]
async fn unanswered_replicas_are_listed_with_the_publishers() {
    let replicas = [Replica::start().await];
    let mut cluster = cluster(&replicas);
    // The system accepts connections to it, but no process answers.
    let hangs = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let hangs = (hangs.local_addr().unwrap().to_string(), hangs);
    cluster.replicas.push(hangs.0.clone());
    let (writer, reader) = (writer(&cluster, 1), reader(&cluster));
    writer.publish(path("/jobs/a"), &PublicationTerms::default());
    in_time(writer.flushed(1)).await;
    let roll = in_time(reader.publisher_roll(&Glob::everything())).await.unwrap();
    assert_eq!((roll.registered.len(), roll.missing.len()), (1, 0));
    let unanswered: Vec<_> = roll.unanswered.iter().map(|one| one.replica.as_str()).collect();
    assert_eq!(unanswered, [hangs.0.as_str()]);
}

#[tokio::test]
async fn a_replica_full_of_readers_still_answers_tools() {
    let full = |options: &mut ServerOptions| {
        (options.connections_max, options.tools_kept) = (2, Some(1));
    };
    let replica = Replica::start_with("127.0.0.1:0".parse().unwrap(), full).await;
    let cluster = cluster([&replica]);
    let reads = reader(&cluster);
    in_time(reads.list(path("/"))).await.unwrap();

    let operator = reader(&cluster);
    let outstanding = cluster.replicas[0].as_str();
    assert_eq!(in_time(operator.publishers_known(outstanding)).await, Ok(Vec::new()));
    drop(reads);
    replica.kill().await;
}

#[tokio::test]
async fn more_globs_than_the_limit_are_refused_by_the_client() {
    let replicas = [Replica::start().await];
    let cluster = cluster(&replicas);
    let (writer, reader) = (writer(&cluster, 1), reader(&cluster));
    writer.publish(path("/jobs/255"), &PublicationTerms::default());
    in_time(writer.flushed(1)).await;
    let globs = |count: usize| (0..count).map(|n| Glob::new(&format!("/jobs/{n}")).unwrap());
    let listing = in_time(reader.list_matching(globs(256).collect())).await.unwrap();
    assert_eq!(listing.paths.len(), 1);
    let error = in_time(reader.list_matching(globs(257).collect())).await.unwrap_err();
    assert_eq!(error, ReadError::TooManyGlobs { globs: 257, limit: 256 });
    let expected = "a list of 257 globs is over the limit of 256; list them in parts";
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn a_watch_over_paths_moves_to_the_other_replica_and_yields_differences() {
    let [left, right] = [Replica::start().await, Replica::start().await];
    // Only the left one has /jobs/old.
    let at_left = writer(&cluster([&left]), 1);
    at_left.publish(path("/jobs/old"), &PublicationTerms::default());
    at_left.publish(path("/jobs/both"), &PublicationTerms::default());
    in_time(at_left.flushed(1)).await;
    let at_right = writer(&cluster([&right]), 1);
    at_right.publish(path("/jobs/both"), &PublicationTerms::default());
    at_right.publish(path("/jobs/new"), &PublicationTerms::default());
    in_time(at_right.flushed(1)).await;

    let replicas = [left, right];
    let mut watch = reader(&cluster(&replicas)).watch_paths(vec![Glob::new("/jobs/**").unwrap()]);
    let PathEvent::SnapshotBegins { replica } = in_time(watch.next()).await.unwrap() else {
        panic!("a snapshot begins first")
    };
    let at = replicas.iter().position(|one| one.address.to_string() == replica).unwrap();
    let paths = |texts: &[&str]| texts.iter().map(|text| path(text)).collect::<BTreeSet<Path>>();
    let own = ["/jobs/old", "/jobs/new"];
    let (first, second) = (own[at], own[1 - at]);
    assert_eq!(until_whole(&mut watch).await, (paths(&["/jobs/both", first]), paths(&[])));
    let [left, right] = replicas;
    let stays = match at {
        0 => (left.kill().await, right).1,
        _ => (right.kill().await, left).1,
    };
    assert_eq!(until_whole(&mut watch).await, (paths(&[second]), paths(&[first])));
    let writer = if at == 0 { at_right } else { at_left };
    writer.publish(path("/jobs/newer"), &PublicationTerms::default());
    let now = in_time(watch.next()).await.unwrap();
    assert!(matches!(now, PathEvent::Now(listed) if listed.path == path("/jobs/newer")));
    stays.kill().await;
}
