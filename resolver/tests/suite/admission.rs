//! Far more connections than a replica accepts: accepted ones are served, the others are refused at
//! once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;
use crate::long::long;
use longshore_protocol::messages::resolver::{FromReplica, Resolve, ToReplica};
use longshore_protocol::{HandshakeRefusal, ResolverTiming, Role};
use longshore_resolver::{CheckedTerms, PathAnswer, ServerOptions};
use longshore_transport::{DialError, LinkOptions, LinkReceiver, LinkSender, dial};
use tokio::task::JoinSet;
use tokio::time::interval;

/// The connections of a replica, and those available to readers.
const CONNECTIONS: usize = 768;
const READERS: usize = CONNECTIONS - CONNECTIONS / 8 - 8;
/// How often each served reader sends a request.
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

/// Opens so many connections at once, on a thread of their own, each of which has to be refused
/// with `Busy`; returns the longest time that took.
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
        while let Some(refused) = dialling.join_next().await {
            let (link, took) = refused.unwrap();
            longest = longest.max(took);
            match link.unwrap_err() {
                DialError::Refused { code: HandshakeRefusal::Busy, .. } => {}
                error => panic!("not refused as busy: {error}"),
            }
        }
        longest
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_excess_diallers_are_refused_at_once_while_others_are_served() {
    let excess = if long() { 10_000 } else { 2_000 };
    let replica = Replica::start(ServerOptions {
        fresh: true,
        connections_max: CONNECTIONS,
        ..ServerOptions::default()
    })
    .await;
    let cluster = cluster(ResolverTiming::default(), [replica.address]);
    let early = writer(&cluster, 1);
    early.publish(path("/jobs"), &CheckedTerms::default());
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
    // Writers and tools are admitted meanwhile, as many as have reserved slots.
    let late = writer(&cluster, 2);
    late.publish(path("/late"), &CheckedTerms::default());
    in_time(late.flushed(1)).await;
    let mut tool = in_time(served(&replica, Role::Tool)).await;
    let FromReplica::Status { status, .. } =
        in_time(ask(&mut tool, &ToReplica::Status { id: 1 })).await
    else {
        panic!("no status")
    };
    assert!(status.connections >= READERS as u64, "{status:?}");

    // A dialler with default options is refused before it gives up.
    let longest = in_time(flood).await.unwrap();
    let patience = LinkOptions::default().handshake_timeout;
    assert!(longest < patience, "the last of {excess} was refused after {longest:?}");
    over.store(true, Ordering::Relaxed);
    links.extend(in_time(asking.join_all()).await);
    for link in &mut links {
        resolved(link).await;
    }
    assert_eq!(links.len(), READERS);
    println!("{excess} refused within {longest:?}");
}

#[tokio::test]
async fn a_replica_with_one_slot_reserves_none() {
    let options = ServerOptions { fresh: true, connections_max: 1, ..ServerOptions::default() };
    let replica = Replica::start(options).await;
    let cluster = cluster(ResolverTiming::default(), [replica.address]);
    let resolution = in_time(reader(&cluster).resolve(vec![path("/jobs")])).await.unwrap();
    assert_eq!(resolution.answers, [PathAnswer::NotFound]);
}

#[tokio::test]
async fn the_reserved_slots_are_configurable() {
    let replica = Replica::start(ServerOptions {
        fresh: true,
        connections_max: 4,
        writers_reserved: Some(1),
        tools_reserved: Some(0),
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
