//! Far more connections than a replica takes: those it serves are served, the others are told so at
//! once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;
use crate::long::long;
use longshore_protocol::messages::resolver::{FromReplica, Resolve, ToReplica};
use longshore_protocol::{HandshakeRefusal, ResolverTiming, Role};
use longshore_resolver::{PathAnswer, PublicationTerms, ServerOptions};
use longshore_transport::{DialError, LinkOptions, LinkReceiver, LinkSender, dial};
use tokio::task::JoinSet;
use tokio::time::interval;

/// What a replica takes, and what it keeps for others than readers.
const CONNECTIONS: usize = 768;
const READERS: usize = CONNECTIONS - CONNECTIONS / 8 - 8;
/// Until each of so many diallers is told that it is one too many. They and the replica share this
/// machine, which has about 0.15 ms of work with each: more of them are given more time.
const AT_ONCE: (Duration, usize) = (Duration::from_secs(1), 2_000);

/// How often each served reader asks.
const PACE: Duration = Duration::from_millis(2);

fn patient() -> LinkOptions {
    let minute = Duration::from_secs(60);
    LinkOptions { connect_timeout: minute, handshake_timeout: minute, ..LinkOptions::default() }
}

type Served = (LinkSender, LinkReceiver);

async fn served(replica: &Replica, role: Role) -> Served {
    dial(replica.address, &handshake(role), &patient()).await.unwrap().split()
}

async fn resolved(link: &mut Served) {
    let request =
        ToReplica::Resolve(Resolve { id: 1, paths: [&path("/jobs")].into_iter().collect() });
    let FromReplica::Resolved(resolved) = in_time(ask(link, &request)).await else {
        panic!("no answer to the question")
    };
    assert_eq!(resolved.publishers.len(), 1, "{resolved:?}");
}

/// So many connect at once, on a thread of their own, and each is told `Busy`; how long that took
/// at most.
fn flood(address: SocketAddr, excess: usize) -> Duration {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut dialling = JoinSet::new();
        for _ in 0..excess {
            dialling.spawn(async move {
                let since = Instant::now();
                let link = dial(address, &handshake(Role::ResolverReader), &patient()).await;
                (link.map(drop), since.elapsed())
            });
        }
        let mut longest = Duration::ZERO;
        while let Some(told) = dialling.join_next().await {
            let (link, took) = told.unwrap();
            longest = longest.max(took);
            match link.unwrap_err() {
                DialError::Refused { code: HandshakeRefusal::Busy, .. } => {}
                error => panic!("not told: {error}"),
            }
        }
        longest
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_thousands_that_connect_at_once_each_is_told_busy_and_the_served_go_on() {
    let excess = if long() { 10_000 } else { 2_000 };
    let replica = Replica::start(ServerOptions {
        fresh: true,
        connections_max: CONNECTIONS,
        ..ServerOptions::default()
    })
    .await;
    let cluster = cluster(ResolverTiming::default(), [replica.address]);
    let early = writer(&cluster, 1);
    early.publish(path("/jobs"), &PublicationTerms::default());
    in_time(early.flushed(1)).await;
    let mut links = Vec::new();
    for _ in 0..READERS {
        links.push(in_time(served(&replica, Role::ResolverReader)).await);
    }

    let over = Arc::new(AtomicBool::new(false));
    let mut asking = JoinSet::new();
    for mut link in links.drain(..8) {
        let over = over.clone();
        asking.spawn(async move {
            let mut pace = interval(PACE);
            while !over.load(Ordering::Relaxed) {
                pace.tick().await;
                resolved(&mut link).await;
            }
            link
        });
    }
    let address = replica.address;
    let flood = tokio::task::spawn_blocking(move || flood(address, excess));
    // Others than readers get in meanwhile, as many as are kept for them.
    let late = writer(&cluster, 2);
    late.publish(path("/late"), &PublicationTerms::default());
    in_time(late.flushed(1)).await;
    let mut tool = in_time(served(&replica, Role::Tool)).await;
    let FromReplica::Status { status, .. } =
        in_time(ask(&mut tool, &ToReplica::Status { id: 1 })).await
    else {
        panic!("no status")
    };
    assert!(status.connections >= READERS as u64, "{status:?}");

    let longest = in_time(flood).await.unwrap();
    let at_once = AT_ONCE.0 * (excess / AT_ONCE.1) as u32;
    assert!(longest <= at_once, "the last of {excess} was told after {longest:?}");
    over.store(true, Ordering::Relaxed);
    links.extend(in_time(asking.join_all()).await);
    for link in &mut links {
        resolved(link).await;
    }
    assert_eq!(links.len(), READERS);
    println!("{excess} told within {longest:?}");
}

#[tokio::test]
async fn a_small_replica_keeps_no_place_that_it_does_not_have() {
    let options = ServerOptions { fresh: true, connections_max: 1, ..ServerOptions::default() };
    let replica = Replica::start(options).await;
    let cluster = cluster(ResolverTiming::default(), [replica.address]);
    let resolution = in_time(reader(&cluster).resolve(vec![path("/jobs")])).await.unwrap();
    assert_eq!(resolution.answers, [PathAnswer::NotFound]);
}

#[tokio::test]
async fn what_is_kept_can_be_set() {
    let replica = Replica::start(ServerOptions {
        fresh: true,
        connections_max: 4,
        writers_kept: Some(1),
        tools_kept: Some(0),
        ..ServerOptions::default()
    })
    .await;
    let mut links = Vec::new();
    for _ in 0..3 {
        links.push(in_time(served(&replica, Role::ResolverReader)).await);
    }
    for role in [Role::ResolverReader, Role::Tool] {
        let refused =
            in_time(dial(replica.address, &handshake(role), &patient())).await.unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("3 of 4") && text.contains("`resolver writer`"), "{text}");
    }
    links.push(in_time(served(&replica, Role::ResolverWriter)).await);
}
