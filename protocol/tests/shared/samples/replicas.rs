//! What is said to and by the replicas of a resolver.

use longshore_protocol::messages::resolver::*;
use longshore_protocol::*;

use super::{glob, path};

fn publisher(n: u8) -> PublisherInfo {
    PublisherInfo {
        id: PublisherId([n; 16]),
        epoch: Epoch(7),
        name: format!("p{n}"),
        addresses: vec![
            ([10, 0, 0, n], 4_600).into(),
            ([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(n)], 4_600).into(),
        ],
        later: Default::default(),
    }
}

fn path_texts(texts: &[&str]) -> PathTexts {
    texts.iter().map(|text| PathText::new(text.as_bytes())).collect()
}

fn digest() -> Digest {
    let mut digest = Digest::default();
    digest.add(KeyHash::of("/jobs/mail", false), homes().digest());
    digest.add(KeyHash::of("/jobs", true), Terms::default().digest());
    digest
}

fn homes() -> Terms {
    Terms { homes: vec!["p1".into(), "p2".into()], ..Terms::default() }
}

fn value() -> Terms {
    let kind = PublicationKind::Value;
    Terms { kind, flags: 1 << 31, priority: 10, weight: 300, ..Terms::default() }
}

fn tracker() -> Tracker {
    Tracker { incarnation: Incarnation([0x33; 16]), revision: 300 }
}

fn listed(text: &str, queue: bool, value: bool, default: bool) -> PathListed {
    PathListed { path: path(text), queue, value, default }
}

pub(super) fn to_replica() -> Vec<(&'static str, &'static str, ToReplica)> {
    vec![
        ("resolve", "Resolve, request 9: two paths", {
            let paths = path_texts(&["/jobs/mail", "/jobs/sms"]);
            ToReplica::Resolve(Resolve { id: 9, paths })
        }),
        ("list", "List, request 9: below /jobs", {
            ToReplica::List(List { id: 9, path: path("/jobs") })
        }),
        ("list-matching", "ListMatching, request 9: two globs", {
            let globs = vec![glob("/jobs/**"), glob("/logs/*")];
            ToReplica::ListMatching(ListMatching { id: 9, globs })
        }),
        ("status", "ReplicaStatus, request 9", ToReplica::Status { id: 9 }),
        ("watch-publishers", "WatchPublishers, request 9: watch 2 over /jobs/mail/**", {
            let glob = glob("/jobs/mail/**");
            ToReplica::WatchPublishers(WatchPublishers { id: 9, watch: 2, glob })
        }),
        ("unwatch", "Unwatch, request 9: watch 2", ToReplica::Unwatch { id: 9, watch: 2 }),
        (
            "announce",
            "Announce, request 9: publisher p1, one digest of /jobs/mail and default /jobs",
            {
                let (publisher, wanted) = (publisher(1), vec![digest()]);
                ToReplica::Announce(Announce { id: 9, publisher, wanted })
            },
        ),
        (
            "announce-simple",
            "Announce, request 9: p3 at a host name, with a later field, no digests",
            {
                let publisher = PublisherInfo {
                    addresses: vec!["p3.example:4600".parse().expect("an address")],
                    later: LaterFields::new(b"\x07later").expect("few bytes"),
                    ..publisher(3)
                };
                ToReplica::Announce(Announce { id: 9, publisher, wanted: Vec::new() })
            },
        ),
        ("write-later", "Write, request 9: publish a queue on terms with a later field", {
            let later = LaterFields::new(b"\x07later").expect("few bytes");
            let terms = Terms { later, ..homes() };
            let paths = path_texts(&["/jobs/mail"]);
            let groups = vec![Group { change: Change::Publish, terms, paths }];
            ToReplica::Write(Write { id: 9, groups })
        }),
        ("write", "Write, request 9: publish two queues and a value, unpublish one path", {
            let group =
                |change, terms, paths: &[&str]| Group { change, terms, paths: path_texts(paths) };
            let groups = vec![
                group(Change::Publish, homes(), &["/jobs/mail", "/jobs/sms"]),
                group(Change::Publish, value(), &["/sys/p1/jobs"]),
                group(Change::Unpublish, Terms::default(), &["/jobs/fax"]),
            ];
            ToReplica::Write(Write { id: 9, groups })
        }),
        ("confirm", "Confirm, request 9", ToReplica::Confirm { id: 9 }),
        ("clear", "Clear, request 9", ToReplica::Clear { id: 9 }),
        ("table", "Table, request 9: below /jobs", {
            ToReplica::Table(Table { id: 9, path: path("/jobs") })
        }),
        ("watch-paths", "WatchPaths 3, request 9: two globs", {
            let globs = vec![glob("/jobs/**"), glob("/logs/*")];
            ToReplica::WatchPaths(WatchPaths { id: 9, watch: 3, globs })
        }),
        ("list-publishers", "ListPublishers, request 9", ToReplica::ListPublishers { id: 9 }),
        (
            "forget-publisher",
            "ForgetPublisher, request 9: p1",
            ToReplica::ForgetPublisher { id: 9, publisher: PublisherId([1; 16]) },
        ),
    ]
}

pub(super) fn from_replica() -> Vec<(&'static str, &'static str, FromReplica)> {
    vec![
        ("resolved", "Resolved, request 9: one of every answer", {
            FromReplica::Resolved(Resolved {
                id: 9,
                last: true,
                complete: true,
                tracker: tracker(),
                publishers: vec![publisher(1), publisher(2)],
                terms: vec![homes(), value()],
                sets: vec![
                    vec![
                        SetMember { publisher: 0, terms: 0 },
                        SetMember { publisher: 1, terms: 0 },
                    ],
                    vec![SetMember { publisher: 1, terms: 1 }],
                ],
                answers: vec![
                    PathAnswer::NotFound,
                    PathAnswer::Published { set: 0, default: Some(1) },
                    PathAnswer::Published { set: 1, default: None },
                    PathAnswer::ByDefault { set: 1 },
                    PathAnswer::Refused { reason: "the path is not UTF-8".into() },
                    PathAnswer::Unknown { kind: 4 },
                ],
            })
        }),
        ("listed", "Listed, request 9: not the last, from a warming replica", {
            FromReplica::Listed(Listed {
                id: 9,
                last: false,
                complete: false,
                tracker: tracker(),
                paths: vec![
                    listed("/jobs", false, false, true),
                    listed("/jobs/mail", true, false, false),
                    listed("/sys/p1/jobs", false, true, false),
                    listed("/sys", false, false, false),
                ],
            })
        }),
        ("status", "ReplicaStatus, request 9", {
            let status = ReplicaStatus {
                name: "r1".into(),
                incarnation: Incarnation([0x33; 16]),
                uptime_ms: 60_000,
                warming: true,
                publishers: 2,
                paths: 1_000,
                defaults: 1,
                connections: 12,
                watches: 4,
                warming_left_ms: 59_000,
                hidden: 1,
                refused_busy: 300,
                slice_max_us: 2_100,
                memory_bytes: 90_000_000,
                publishers_max: 16_384,
                paths_max: 16_000_000,
                connections_max: 768,
                watches_max: 16_384,
                requests: Box::new([900, 30, 2, 8, 4, 5, 1, 7, 100, 70, 6, 3, 300].into()),
            };
            FromReplica::Status { id: 9, status }
        }),
        ("publishers", "Publishers of watch 2 at revision 300", {
            FromReplica::Publishers(Publishers {
                watch: 2,
                tracker: tracker(),
                complete: true,
                publishers: vec![publisher(1)],
            })
        }),
        ("announced", "Announced, request 9: one digest, writer_ttl 120 s", {
            let held = vec![digest()];
            FromReplica::Announced(Announced { id: 9, held, writer_ttl_ms: 120_000 })
        }),
        ("written", "Written, request 9: done, path 2 refused", {
            let refused = vec![RefusedPath { place: 2, reason: "too deep".into() }];
            FromReplica::Written(Written { id: 9, last: true, done: 3, refused })
        }),
        ("refused", "Request 9 refused: NotAnnounced", {
            let (code, reason) = (RequestRefusal::NotAnnounced, "announce first".into());
            FromReplica::Refused { id: 9, code, reason }
        }),
        ("refused-unknown", "Request 9 refused: UnknownRequest", {
            let (code, reason) = (RequestRefusal::UnknownRequest, "tag 69".into());
            FromReplica::Refused { id: 9, code, reason }
        }),
        ("table-answer", "Table, request 9: two rows, one column of both", {
            FromReplica::Table(TableAnswer {
                id: 9,
                last: true,
                complete: true,
                tracker: tracker(),
                rows: vec!["mail".into(), "sms".into()],
                columns: vec![Column { name: "welcome".into(), rows: 2 }],
            })
        }),
        ("path-snapshot", "Snapshot of watch 3, whole in one message", {
            FromReplica::PathSnapshot(PathSnapshot {
                watch: 3,
                first: true,
                last: true,
                complete: true,
                tracker: tracker(),
                paths: vec![listed("/jobs/mail", true, false, false)],
            })
        }),
        ("path-changes", "Changes for watches 3 and 4: one path came, one is gone", {
            FromReplica::PathChanges(PathChanges {
                watches: vec![3, 4],
                complete: true,
                tracker: tracker(),
                paths: vec![
                    listed("/jobs/sms", true, false, false),
                    listed("/jobs/mail", false, false, false),
                ],
            })
        }),
        ("publisher-gone", "Publisher p1 gone from watches 2 and 5: silent", {
            FromReplica::PublisherGone(PublisherGone {
                watches: vec![2, 5],
                tracker: tracker(),
                complete: true,
                publisher: PublisherId([1; 16]),
                departure: Departure::Silent,
            })
        }),
        ("publishers-known", "PublishersKnown, request 9: one seen, one missing", {
            let known = |n, departure, declared| KnownPublisher {
                info: publisher(n),
                held: 1_000,
                silent_ms: 30_000,
                departure,
                declared,
            };
            let declared = Declared {
                defaults: vec![path("/jobs")],
                queues: vec![path("/other/mail")],
                more: true,
            };
            let publishers = vec![
                known(1, None, Declared::default()),
                known(2, Some(Departure::Stopped), declared),
            ];
            FromReplica::PublishersKnown(PublishersKnown { id: 9, last: true, publishers })
        }),
    ]
}
