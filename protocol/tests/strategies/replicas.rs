//! All that is said on a resolver link.

use std::net::IpAddr;

use longshore_protocol::limits::*;
use longshore_protocol::messages::resolver::*;
use longshore_protocol::*;
use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::{glob, path, text};

pub(crate) fn publisher() -> impl Strategy<Value = PublisherInfo> {
    let address = prop_oneof![
        any::<(IpAddr, u16)>().prop_map(Address::from),
        ("[a-z0-9_-]{1,20}(\\.[a-z]{2,9}){0,3}", any::<u16>())
            .prop_filter_map("a number is no name", |(name, port)| {
                HostAddress::new(&name, port).ok().map(Address::Host)
            }),
    ];
    let addresses = vec(address, 1..=ADDRESSES_MAX);
    (any::<[u8; 16]>(), any::<u64>(), text(), addresses, later())
        .prop_map(|(id, epoch, name, addresses, later)| PublisherInfo {
            id: PublisherId(id),
            epoch: Epoch(epoch),
            name,
            addresses,
            later,
        })
        .prop_filter("longer than a publisher may be", |info| info.check().is_ok())
}

/// Fields of later versions.
fn later() -> impl Strategy<Value = LaterFields> {
    let bytes = prop_oneof![4 => Just(Vec::new()), 1 => vec(any::<u8>(), 0..=LATER_BYTES_MAX)];
    bytes.prop_map(|bytes| LaterFields::new(&bytes).expect("at most as many as may be"))
}

/// What should be a path, and need not be one.
pub(crate) fn path_texts() -> impl Strategy<Value = PathTexts> {
    let text = prop_oneof![
        path().prop_map(|path| path.as_str().as_bytes().to_vec()),
        vec(any::<u8>(), 0..20),
    ];
    vec(text, 0..6).prop_map(|texts| texts.iter().map(|text| PathText::new(text)).collect())
}

pub(crate) fn digests() -> impl Strategy<Value = Vec<Digest>> {
    let digest = any::<(u64, u128)>().prop_map(|(count, sum)| Digest { count, sum });
    vec(digest, 4).prop_flat_map(|four| {
        select(vec![0usize, 1, 2, 4]).prop_map(move |count| four[..count].to_vec())
    })
}

pub(crate) fn terms() -> impl Strategy<Value = Terms> {
    let homes = btree_set(text(), 0..4).prop_map(|homes| homes.into_iter().collect());
    (select(PublicationKind::ALL), any::<(u32, u16, u16)>(), homes, later()).prop_map(
        |(kind, (flags, priority, weight), homes, later)| Terms {
            kind,
            flags,
            priority,
            weight,
            homes,
            later,
        },
    )
}

fn tracker() -> impl Strategy<Value = Tracker> {
    any::<([u8; 16], u64)>().prop_map(|(incarnation, revision)| Tracker {
        incarnation: Incarnation(incarnation),
        revision,
    })
}

fn listed() -> impl Strategy<Value = PathListed> {
    (path(), any::<[bool; 3]>()).prop_map(|(path, [queue, value, default])| PathListed {
        path,
        queue,
        value,
        default,
    })
}

pub(crate) fn to_replica() -> impl Strategy<Value = ToReplica> {
    let group = (select(Change::ALL), terms(), path_texts()).prop_map(|(change, terms, paths)| {
        let terms = if change.publishes() { terms } else { Terms::default() };
        Group { change, terms, paths }
    });
    prop_oneof![
        (any::<u64>(), path_texts())
            .prop_map(|(id, paths)| ToReplica::Resolve(Resolve { id, paths })),
        (any::<u64>(), path()).prop_map(|(id, path)| ToReplica::List(List { id, path })),
        (any::<u64>(), vec(glob(), 0..4))
            .prop_map(|(id, globs)| ToReplica::ListMatching(ListMatching { id, globs })),
        any::<u64>().prop_map(|id| ToReplica::Status { id }),
        (any::<u64>(), any::<u32>(), glob()).prop_map(|(id, watch, glob)| {
            ToReplica::WatchPublishers(WatchPublishers { id, watch, glob })
        }),
        any::<(u64, u32)>().prop_map(|(id, watch)| ToReplica::Unwatch { id, watch }),
        (any::<u64>(), publisher(), digests()).prop_map(|(id, publisher, wanted)| {
            ToReplica::Announce(Announce { id, publisher, wanted })
        }),
        (any::<u64>(), vec(group, 0..4))
            .prop_map(|(id, groups)| ToReplica::Write(Write { id, groups })),
        any::<u64>().prop_map(|id| ToReplica::Confirm { id }),
        any::<u64>().prop_map(|id| ToReplica::Clear { id }),
        (any::<u64>(), path()).prop_map(|(id, path)| ToReplica::Table(Table { id, path })),
        (any::<(u64, u32)>(), vec(glob(), 0..4)).prop_map(|((id, watch), globs)| {
            ToReplica::WatchPaths(WatchPaths { id, watch, globs })
        }),
        any::<u64>().prop_map(|id| ToReplica::ListPublishers { id }),
        (any::<u64>(), any::<[u8; 16]>()).prop_map(|(id, publisher)| {
            ToReplica::ForgetPublisher { id, publisher: PublisherId(publisher) }
        }),
    ]
}

pub(crate) fn resolved() -> impl Strategy<Value = Resolved> {
    let set = vec((0u32..2, 0u32..2), 0..4);
    let answer = prop_oneof![
        Just(PathAnswer::NotFound),
        (0u32..2, option::of(0u32..2))
            .prop_map(|(set, default)| PathAnswer::Published { set, default }),
        (0u32..2).prop_map(|set| PathAnswer::ByDefault { set }),
        text().prop_map(|reason| PathAnswer::Refused { reason }),
        (4u8..).prop_map(|kind| PathAnswer::Unknown { kind }),
    ];
    let lists = (vec(publisher(), 2..4), vec(terms(), 2..4), vec(set, 2..4), vec(answer, 0..8));
    (any::<(u64, bool, bool)>(), tracker(), lists).prop_map(
        |((id, last, complete), tracker, (publishers, terms, sets, answers))| {
            let members = |set: Vec<(u32, u32)>| -> Vec<SetMember> {
                let member = |(publisher, terms)| SetMember { publisher, terms };
                set.into_iter().map(member).collect()
            };
            let sets = sets.into_iter().map(members).collect();
            Resolved { id, last, complete, tracker, publishers, terms, sets, answers }
        },
    )
}

pub(crate) fn from_replica() -> impl Strategy<Value = FromReplica> {
    let refused = (any::<u32>(), text()).prop_map(|(place, reason)| RefusedPath { place, reason });
    let status = (text(), any::<[u8; 16]>(), any::<bool>(), any::<[u64; 29]>()).prop_map(
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
            warming_left_ms: n[6],
            hidden: n[7],
            refused_busy: n[8],
            slice_max_us: n[9],
            memory_bytes: n[10],
            publishers_max: n[11],
            paths_max: n[12],
            connections_max: n[13],
            watches_max: n[14],
            requests: Box::new(std::array::from_fn(|kind| n[15 + kind]).into()),
        },
    );
    prop_oneof![
        resolved().prop_map(FromReplica::Resolved),
        (any::<(u64, bool, bool)>(), tracker(), vec(listed(), 0..6)).prop_map(
            |((id, last, complete), tracker, paths)| {
                FromReplica::Listed(Listed { id, last, complete, tracker, paths })
            }
        ),
        (any::<u64>(), status).prop_map(|(id, status)| FromReplica::Status { id, status }),
        (any::<(u32, bool)>(), tracker(), vec(publisher(), 0..4)).prop_map(
            |((watch, complete), tracker, publishers)| {
                FromReplica::Publishers(Publishers { watch, tracker, complete, publishers })
            }
        ),
        (any::<(u64, u64)>(), digests()).prop_map(|((id, writer_ttl_ms), held)| {
            FromReplica::Announced(Announced { id, held, writer_ttl_ms })
        }),
        (any::<(u64, bool, u64)>(), vec(refused, 0..4)).prop_map(|((id, last, done), refused)| {
            FromReplica::Written(Written { id, last, done, refused })
        }),
        (any::<u64>(), select(RequestRefusal::ALL), text())
            .prop_map(|(id, code, reason)| FromReplica::Refused { id, code, reason }),
        answers(),
        pushes(),
    ]
}

fn answers() -> impl Strategy<Value = FromReplica> {
    let head = || any::<(u64, bool, bool)>();
    let column = (text(), any::<u64>()).prop_map(|(name, rows)| Column { name, rows });
    let declared = (vec(path(), 0..3), vec(path(), 0..3), any::<bool>())
        .prop_map(|(defaults, queues, more)| Declared { defaults, queues, more });
    let departure = option::of(select(Departure::ALL));
    let known = (publisher(), any::<[u64; 2]>(), departure, declared).prop_map(
        |(info, [held, silent_ms], departure, declared)| KnownPublisher {
            info,
            held,
            silent_ms,
            departure,
            declared,
        },
    );
    prop_oneof![
        (head(), tracker(), vec(text(), 0..4), vec(column, 0..4)).prop_map(
            |((id, last, complete), tracker, rows, columns)| {
                FromReplica::Table(TableAnswer { id, last, complete, tracker, rows, columns })
            }
        ),
        (any::<(u64, bool)>(), vec(known, 0..4)).prop_map(|((id, last), publishers)| {
            FromReplica::PublishersKnown(PublishersKnown { id, last, publishers })
        }),
    ]
}

fn pushes() -> impl Strategy<Value = FromReplica> {
    prop_oneof![
        (any::<(u32, bool, bool, bool)>(), tracker(), vec(listed(), 0..6)).prop_map(
            |((watch, first, last, complete), tracker, paths)| {
                FromReplica::PathSnapshot(PathSnapshot {
                    watch,
                    first,
                    last,
                    complete,
                    tracker,
                    paths,
                })
            }
        ),
        (vec(any::<u32>(), 0..4), any::<bool>(), tracker(), vec(listed(), 0..6)).prop_map(
            |(watches, complete, tracker, paths)| {
                FromReplica::PathChanges(PathChanges { watches, complete, tracker, paths })
            }
        ),
        (
            vec(any::<u32>(), 0..4),
            any::<bool>(),
            tracker(),
            any::<[u8; 16]>(),
            select(Departure::ALL)
        )
            .prop_map(|(watches, complete, tracker, publisher, departure)| {
                FromReplica::PublisherGone(PublisherGone {
                    watches,
                    tracker,
                    complete,
                    publisher: PublisherId(publisher),
                    departure,
                })
            }),
    ]
}
