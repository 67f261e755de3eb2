//! All that is said on a resolver link.

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use longshore_protocol::limits::*;
use longshore_protocol::messages::resolver::*;
use longshore_protocol::*;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::{glob, path, text};

pub(crate) fn publisher() -> impl Strategy<Value = PublisherInfo> {
    let address = any::<(IpAddr, u16)>().prop_map(|(ip, port)| SocketAddr::new(ip, port));
    (any::<[u8; 16]>(), any::<u64>(), text(), vec(address, 1..=ADDRESSES_MAX)).prop_map(
        |(id, epoch, name, addresses)| PublisherInfo {
            id: PublisherId(id),
            epoch: Epoch(epoch),
            name,
            addresses,
        },
    )
}

/// What should be a path, and need not be one.
pub(crate) fn path_text() -> impl Strategy<Value = PathText> {
    prop_oneof![
        path().prop_map(|path| PathText::from(&path)),
        vec(any::<u8>(), 0..20).prop_map(|bytes| PathText::from(Bytes::from(bytes))),
    ]
}

pub(crate) fn digests() -> impl Strategy<Value = Vec<Digest>> {
    vec(any::<(u64, u128)>().prop_map(|(count, sum)| Digest { count, sum }), 0..4)
}

pub(crate) fn to_replica() -> impl Strategy<Value = ToReplica> {
    let group = (select(Change::ALL), vec(path_text(), 0..6))
        .prop_map(|(change, paths)| Group { change, paths });
    prop_oneof![
        (any::<u64>(), vec(path_text(), 0..6))
            .prop_map(|(id, paths)| ToReplica::Resolve(Resolve { id, paths })),
        (any::<u64>(), path()).prop_map(|(id, path)| ToReplica::List(List { id, path })),
        (any::<u64>(), vec(glob(), 0..4))
            .prop_map(|(id, globs)| ToReplica::ListMatching(ListMatching { id, globs })),
        any::<u64>().prop_map(|id| ToReplica::Status { id }),
        (any::<u32>(), glob())
            .prop_map(|(watch, glob)| ToReplica::WatchPublishers(WatchPublishers { watch, glob })),
        any::<u32>().prop_map(|watch| ToReplica::Unwatch { watch }),
        (any::<u64>(), publisher(), digests()).prop_map(|(id, publisher, wanted)| {
            ToReplica::Announce(Announce { id, publisher, wanted })
        }),
        (any::<u64>(), vec(group, 0..4))
            .prop_map(|(id, groups)| ToReplica::Write(Write { id, groups })),
        any::<u64>().prop_map(|id| ToReplica::Confirm { id }),
        any::<u64>().prop_map(|id| ToReplica::Clear { id }),
    ]
}

pub(crate) fn resolved() -> impl Strategy<Value = Resolved> {
    let set = vec(0u32..2, 0..4);
    let answer = prop_oneof![
        Just(PathAnswer::NotFound),
        (0u32..2).prop_map(|set| PathAnswer::Published { set }),
        (0u32..2).prop_map(|set| PathAnswer::ByDefault { set }),
        text().prop_map(|reason| PathAnswer::Refused { reason }),
    ];
    let lists = (vec(publisher(), 2..4), vec(set, 2..4), vec(answer, 0..8));
    (any::<(u64, bool, bool)>(), lists).prop_map(
        |((id, last, complete), (publishers, sets, answers))| {
            let members = |set: Vec<u32>| -> Vec<SetMember> {
                set.into_iter().map(|publisher| SetMember { publisher }).collect()
            };
            let sets = sets.into_iter().map(members).collect();
            Resolved { id, last, complete, publishers, sets, answers }
        },
    )
}

pub(crate) fn from_replica() -> impl Strategy<Value = FromReplica> {
    let listed = (path(), any::<(bool, bool)>())
        .prop_map(|(path, (published, default))| PathListed { path, published, default });
    let refused = (any::<u32>(), text()).prop_map(|(place, reason)| RefusedPath { place, reason });
    let status = (text(), any::<[u8; 16]>(), any::<bool>(), any::<[u64; 6]>()).prop_map(
        |(name, incarnation, warming, n)| ReplicaStatus {
            name,
            incarnation: Incarnation(incarnation),
            uptime_ms: n[0],
            warming,
            publishers: n[1],
            paths: n[2],
            defaults: n[3],
            connections: n[4],
            watches: n[5],
        },
    );
    prop_oneof![
        resolved().prop_map(FromReplica::Resolved),
        (any::<(u64, bool, bool)>(), vec(listed, 0..6)).prop_map(
            |((id, last, complete), paths)| {
                FromReplica::Listed(Listed { id, last, complete, paths })
            }
        ),
        (any::<u64>(), status).prop_map(|(id, status)| FromReplica::Status { id, status }),
        (any::<(u32, [u8; 16], u64, bool)>(), vec(publisher(), 0..4)).prop_map(
            |((watch, incarnation, revision, complete), publishers)| {
                let incarnation = Incarnation(incarnation);
                FromReplica::Publishers(Publishers {
                    watch,
                    incarnation,
                    revision,
                    complete,
                    publishers,
                })
            }
        ),
        (any::<u32>(), text())
            .prop_map(|(watch, reason)| FromReplica::WatchRefused(WatchRefused { watch, reason })),
        (any::<(u64, u64)>(), digests()).prop_map(|((id, writer_ttl_ms), held)| {
            FromReplica::Announced(Announced { id, held, writer_ttl_ms })
        }),
        (any::<(u64, bool, u64)>(), vec(refused, 0..4)).prop_map(|((id, last, done), refused)| {
            FromReplica::Written(Written { id, last, done, refused })
        }),
        (any::<u64>(), select(RequestRefusal::ALL), text())
            .prop_map(|(id, code, reason)| FromReplica::Refused { id, code, reason }),
    ]
}
