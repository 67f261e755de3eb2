//! A replica accepts every request: paths with terms of their own make them long.

use std::net::SocketAddr;

use longshore_protocol::limits::{HOMES_MAX, RESOLVER_BATCH_BYTES_MAX, TERMS_BYTES_MAX};

use super::*;
use crate::write_client::pending_changes::{PendingChanges, WRITE_PATHS_MAX};
use crate::{Cluster, ResolverServer, ServerOptions, WriteClient};

/// The longest possible terms, different for each number.
fn long_terms(n: usize) -> CheckedTerms {
    // Each has its length in a byte, and the rest takes 48 bytes at most.
    let home_bytes = (TERMS_BYTES_MAX - 48) / HOMES_MAX - 1;
    let home = |home| format!("{home:02}-{n:0width$}", width = home_bytes - 3);
    let names = (0..HOMES_MAX).map(home).collect();
    let homes = Homes::new([("/".parse().unwrap(), names)]).unwrap();
    CheckedTerms::new(Terms { homes, flags: u32::MAX, priority: u16::MAX, ..Terms::default() })
        .unwrap()
}

/// The longest possible path.
fn long_path(n: usize) -> Path {
    let segment = "s".repeat(240);
    Path::new(&format!("/{n:056}/{segment}/{segment}/{segment}/{segment}")).unwrap()
}

/// Builds all requests: their lengths, and the number of their paths.
fn requests(desired: &DesiredState, pending: &mut PendingChanges) -> (Vec<usize>, usize) {
    let (mut lengths, mut paths) = (Vec::new(), 0);
    while pending.any(desired.summary()) {
        let Some(batch) = pending.next(desired) else { continue };
        assert!(batch.keys.len() <= WRITE_PATHS_MAX);
        paths += batch.keys.len();
        let write = ToReplica::Write(Write { id: u64::MAX, groups: batch.groups });
        lengths.push(len(|out| write.encode(out)));
    }
    (lengths, paths)
}

/// The bytes of the frame's head, its number, and the number of groups.
const HEAD_BYTES: usize = 32;

#[test]
fn requests_stay_within_their_limit_even_with_terms_of_each_paths_own() {
    for (terms_of, count) in [(0_usize, 2_000_usize), (1, 2_000), (300, 2_000)] {
        let (mut desired, mut pending) = (DesiredState::default(), PendingChanges::new());
        for n in 0..count {
            let terms = long_terms(if terms_of == 0 { n } else { n % terms_of });
            desired.set_one(Key { path: long_path(n), default: false }, Some(&terms));
        }
        let keys = desired.keys().len();
        // As changes; by bucket, which alone would be too long; and as refused keys.
        for how in ["changed", "rewritten", "refused"] {
            match how {
                "rewritten" => assert!(pending.rewrite(&desired, &[Digest::default()], &[])),
                "refused" => {
                    let mut at = 0;
                    while at < crate::write_client::buckets::POSITIONS {
                        let (some, next) = desired.keys().keys_at(at);
                        for (default, entry) in some {
                            let key = Key { path: entry.path.clone(), default };
                            assert!(pending.refuse(entry.hash, key, entry.terms.clone()));
                        }
                        at = next;
                    }
                    pending.retry();
                }
                _ => {}
            }
            let (lengths, paths) = requests(&desired, &mut pending);
            assert_eq!(paths, keys, "{how}: each once");
            let longest = lengths.iter().max().unwrap();
            assert!(*longest <= RESOLVER_BATCH_BYTES_MAX + HEAD_BYTES, "{how}: {longest} bytes");
            // Nor many more than that takes: a bucket that is divided leaves room in the requests
            // of its halves.
            let all: usize = lengths.iter().sum();
            let most = 4 * all.div_ceil(RESOLVER_BATCH_BYTES_MAX) + 2 * count / WRITE_PATHS_MAX;
            assert!(lengths.len() <= most, "{how}: {} requests for {all} bytes", lengths.len());
        }
    }
}

/// The replica's own limit of a frame is decisive.
#[tokio::test]
async fn a_replica_accepts_a_thousand_paths_on_terms_of_their_own() {
    let server = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = ResolverServer::bind(server, ServerOptions::default()).unwrap();
    let replica = server.local_address().to_string();
    tokio::spawn(server.run(std::future::pending()));
    let publisher =
        PublisherInfo::new(PublisherId([1; 16]), Epoch(1), "left", [([127, 0, 0, 1], 4000)]);
    let writer = WriteClient::connect(Cluster::new([replica]), publisher);
    writer.publish_all((0..400).map(|n| (long_path(n), long_terms(n))));
    let deadline = Duration::from_secs(60);
    tokio::time::timeout(deadline, writer.flushed(1)).await.expect("by bucket");
    writer.publish_all((400..1_400).map(|n| (long_path(n), long_terms(n))));
    tokio::time::timeout(deadline, writer.flushed(1)).await.expect("as changes");
    let state = writer.status().remove(0);
    assert_eq!((state.refused, state.last_error), (0, None));
}
