//! Hostile replicas, beside an honest one and alone.

use std::time::{Duration, Instant};

use crate::common::hostile::{Hostile, HostileKind};
use crate::common::pem::Pem;
use crate::common::*;
use longshore_protocol::ResolverTiming;
use longshore_resolver::{
    CheckedTerms, Cluster, PathAnswer, ReadClient, ReadError, ReplicaHealth, ServerOptions,
    WriteClient,
};
use longshore_transport::{TlsAcceptor, TlsDialer};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Extra time for a machine that is busy with other things.
const SLACK: Duration = Duration::from_secs(10);

fn quick() -> ResolverTiming {
    let second = Duration::from_secs(1);
    ResolverTiming {
        reader_ttl: 10 * second,
        writer_ttl: 4 * second,
        handshake_timeout: second * 3 / 2,
        connect_timeout: second * 3 / 2,
        retry_wait_min: second / 50,
        retry_wait_max: second / 10,
        request_timeout_min: second * 3 / 2,
        ..ResolverTiming::default()
    }
}

/// The longest that one replica can cost in one round, and the wait after it.
fn round() -> Duration {
    let timing = quick();
    timing.connect_timeout
        + timing.handshake_timeout
        + timing.request_timeout_min
        + timing.retry_wait_max
}

async fn honest(options: ServerOptions) -> Replica {
    Replica::start(ServerOptions { timing: quick(), fresh: true, ..options }).await
}

/// Publishes `/jobs`, and waits until the replica has it.
async fn published(cluster: &Cluster) -> WriteClient {
    let writer = writer(cluster, 1);
    writer.publish(path("/jobs"), &CheckedTerms::default());
    in_time(writer.flushed(1)).await;
    writer
}

async fn resolve(reader: &ReadClient) -> Result<(bool, Vec<String>), ReadError> {
    let resolution = in_time(reader.resolve(vec![path("/jobs")])).await?;
    let names = publisher_names(&resolution.answers[0]).into_iter().map(str::to_owned).collect();
    Ok((resolution.complete, names))
}

/// Every new reader gets the right answer in time, until one has tried the hostile replica first.
/// Readers choose at random; where attempts are not counted, a few readers suffice.
async fn readers_are_answered(cluster: Cluster, hostile: &Hostile) {
    for readers in 1.. {
        let since = Instant::now();
        let answer = resolve(&reader(&cluster)).await;
        let kind = hostile.kind;
        let right = (true, vec!["publisher-1".to_owned()]);
        assert_eq!(answer, Ok(right), "{kind:?}");
        assert!(since.elapsed() < round() + SLACK, "{kind:?} costs {:?}", since.elapsed());
        if hostile.attempts().map_or(readers == 8, |attempts| attempts > 0) {
            return;
        }
        assert!(readers < 100, "{kind:?} is never tried");
    }
}

#[tokio::test]
async fn readers_get_answers_from_the_honest_replica_beside_a_hostile_one() {
    let mut kinds = JoinSet::new();
    for kind in HostileKind::PLAIN {
        kinds.spawn(async move {
            let (hostile, honest) =
                (Hostile::start(kind).await, honest(ServerOptions::default()).await);
            let _writer = published(&cluster(quick(), [honest.address])).await;
            let both = cluster(quick(), [hostile.address, honest.address]);
            readers_are_answered(both, &hostile).await;
        });
    }
    kinds.join_all().await;
}

/// The error of a reader that finds only hostile replicas.
async fn unanswered(cluster: Cluster, hostile: &[Hostile]) {
    let reader = reader(&cluster);
    let since = Instant::now();
    let error = resolve(&reader).await.unwrap_err();
    let took = since.elapsed();
    let ReadError::NoAnswer(failures) = &error else { panic!("{error}") };
    assert_eq!(failures.len(), hostile.len(), "{error}");
    for (failure, hostile) in failures.iter().zip(hostile) {
        assert_eq!(failure.replica, hostile.address.to_string());
        let why = hostile.kind.expected_error();
        assert!(failure.why.contains(why), "{:?}: {}", hostile.kind, failure.why);
        assert!(error.to_string().contains(why), "{error}");
    }
    let timing = quick();
    let waits = (timing.tries - 1) * timing.retry_wait_min;
    assert!(took >= waits, "{took:?} for {hostile:?}", hostile = hostile.len());
    if let [hostile] = hostile {
        assert!(took < timing.tries * round() + SLACK, "{:?}: {took:?}", hostile.kind);
        let expected = timing.tries as usize;
        assert!(
            hostile.attempts().is_none_or(|attempts| attempts == expected),
            "{:?}",
            hostile.kind
        );
        // The client stays usable: the next batch has three rounds again.
        assert!(resolve(&reader).await.is_err());
        let attempts = hostile.attempts();
        assert!(attempts.is_none_or(|attempts| attempts == 2 * expected), "{:?}", hostile.kind);
    }
}

#[tokio::test]
async fn a_hostile_replica_alone_is_tried_in_three_rounds_and_named() {
    let mut kinds = JoinSet::new();
    for kind in HostileKind::PLAIN {
        kinds.spawn(async move {
            let hostile = Hostile::start(kind).await;
            unanswered(cluster(quick(), [hostile.address]), &[hostile]).await;
        });
    }
    kinds.join_all().await;
}

#[tokio::test]
async fn each_of_many_hostile_replicas_is_named_with_its_fault() {
    let mut hostile = Vec::new();
    for kind in HostileKind::PLAIN {
        hostile.push(Hostile::start(kind).await);
    }
    unanswered(cluster(quick(), hostile.iter().map(|hostile| hostile.address)), &hostile).await;
}

/// The honest replica gets the path at once, the other is degraded, with the reason.
async fn writers_go_on(cluster: Cluster, hostile: &Hostile) {
    let kind = hostile.kind;
    let since = Instant::now();
    let writer = published(&cluster).await;
    let flushed_after = since.elapsed();
    assert!(flushed_after < round() + SLACK, "{kind:?}: {flushed_after:?}");
    let degraded = async {
        loop {
            let state = writer.status().remove(0);
            if let ReplicaHealth::Degraded { .. } = state.health {
                break state;
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    let state = timeout(3 * round() + SLACK, degraded).await;
    let state = state.unwrap_or_else(|_| panic!("{kind:?}: {:?}", writer.status()));
    assert!(
        state.last_error.as_ref().is_some_and(|why| why.contains(kind.expected_error())),
        "{state:?}"
    );
    assert_eq!((state.replica, state.pending), (hostile.address.to_string(), 1), "{kind:?}");
    assert!(hostile.attempts().is_none_or(|attempts| attempts >= 3), "{kind:?}");
    let honest = writer.status().remove(1);
    assert!(matches!(honest.health, ReplicaHealth::Connected { .. }), "{kind:?}: {honest:?}");
    assert_eq!(honest.pending, 0);
    // Later paths arrive as well.
    writer.publish(path("/jobs/more"), &CheckedTerms::default());
    in_time(writer.flushed(1)).await;
}

#[tokio::test]
async fn writers_reach_the_honest_replica_and_report_the_other_as_degraded() {
    let mut kinds = JoinSet::new();
    for kind in HostileKind::PLAIN {
        kinds.spawn(async move {
            let (hostile, honest) =
                (Hostile::start(kind).await, honest(ServerOptions::default()).await);
            writers_go_on(cluster(quick(), [hostile.address, honest.address]), &hostile).await;
        });
    }
    kinds.join_all().await;
}

/// The same guarantees for a replica that TLS separates from its clients.
async fn is_skipped(
    kind: HostileKind,
    theirs: &TlsAcceptor,
    honest: TlsAcceptor,
    ours: &TlsDialer,
) {
    let tls = |addresses: Vec<_>| cluster(quick(), addresses).tls(ours.clone());
    let honest =
        self::honest(ServerOptions { tls: Some(honest), ..ServerOptions::default() }).await;
    let _writer = published(&tls(vec![honest.address])).await;
    let hostile = || Hostile::secured(kind, theirs.clone());

    let beside = hostile().await;
    readers_are_answered(tls(vec![beside.address, honest.address]), &beside).await;
    let beside = hostile().await;
    writers_go_on(tls(vec![beside.address, honest.address]), &beside).await;
    let alone = hostile().await;
    unanswered(tls(vec![alone.address]), &[alone]).await;
}

#[tokio::test]
async fn a_replica_with_an_unknown_certificate_is_skipped() {
    let (ours, strange) = (Pem::new(), Pem::new().acceptor(None));
    is_skipped(HostileKind::Stranger, &strange, ours.acceptor(None), &ours.dialer(None, None))
        .await;
}

#[tokio::test]
async fn a_replica_that_refuses_the_clients_certificate_is_skipped() {
    let (servers, clients, others) = (Pem::new(), Pem::new(), Pem::new());
    let theirs = servers.acceptor(Some(&others));
    // The honest replica requires no client certificate, or accepts this one.
    is_skipped(
        HostileKind::Demanding,
        &theirs,
        servers.acceptor(None),
        &servers.dialer(None, None),
    )
    .await;
    let (honest, ours) = (servers.acceptor(Some(&clients)), servers.dialer(None, Some(&clients)));
    is_skipped(HostileKind::Demanding, &theirs, honest, &ours).await;
}

#[tokio::test]
async fn a_negative_answer_of_a_warming_replica_is_checked_and_marked() {
    let minute = ResolverTiming { writer_ttl: Duration::from_secs(60), ..quick() };
    let warming = ServerOptions { timing: minute, fresh: false, ..ServerOptions::default() };
    let (warming, honest) = (Replica::start(warming).await, honest(ServerOptions::default()).await);
    let _writer = published(&cluster(quick(), [honest.address])).await;
    let both = cluster(quick(), [warming.address, honest.address]);
    for _ in 0..8 {
        let right = (true, vec!["publisher-1".to_owned()]);
        assert_eq!(resolve(&reader(&both)).await, Ok(right));
    }
    let alone = reader(&cluster(quick(), [warming.address]));
    let since = Instant::now();
    let resolution = in_time(alone.resolve(vec![path("/jobs")])).await.unwrap();
    assert_eq!(
        (resolution.complete, &resolution.answers[..]),
        (false, &[PathAnswer::NotFound][..])
    );
    assert!(since.elapsed() < 3 * round() + SLACK);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_replica_does_not_count_as_hanging() {
    const PATHS: usize = 100_000;
    const CLIENTS: usize = 16;
    const BATCHES: usize = 2;
    // The shortest timeout of any request; a batch of so many paths has five seconds.
    let timing = ResolverTiming { request_timeout_min: Duration::from_secs(1), ..quick() };
    let replica = honest(ServerOptions::default()).await;
    let relay = crate::common::relay::Relay::to(replica.address).await;
    let cluster = cluster(timing, [relay.address]);
    let paths: Vec<_> = (0..PATHS).map(|n| path(&format!("/jobs/{}/{n}", n % 100))).collect();

    let mut busy = JoinSet::new();
    for _ in 0..CLIENTS {
        let (reader, paths) = (reader(&cluster), paths.clone());
        busy.spawn(async move {
            for _ in 0..BATCHES {
                assert_eq!(reader.resolve(paths.clone()).await.unwrap().answers.len(), PATHS);
            }
        });
    }
    let writing = writer(&cluster, 1);
    writing.publish_all(paths.iter().map(|path| (path.clone(), CheckedTerms::default())));
    let (small, mut asked) = (reader(&cluster), 0);
    let done = async {
        busy.join_all().await;
        writing.flushed(1).await;
    };
    let mut done = std::pin::pin!(timeout(2 * PATIENCE, done));
    loop {
        tokio::select! {
            ended = &mut done => break ended.expect("it takes too long"),
            answer = small.resolve(vec![path("/jobs/1/1")]) => {
                answer.unwrap();
                asked += 1;
            }
        }
    }
    assert!(asked > 0);
    // A timeout would have abandoned its connection and made another.
    assert_eq!(relay.connections(), CLIENTS + 2, "{:?}", writing.status());
}
