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
    }
}

fn path_texts(texts: &[&str]) -> Vec<PathText> {
    texts.iter().map(|text| PathText::from(&path(text))).collect()
}

fn digest() -> Digest {
    let mut digest = Digest::default();
    digest.add(&path("/jobs/mail"), false);
    digest.add(&path("/jobs"), true);
    digest
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
        ("watch-publishers", "WatchPublishers 2: /jobs/mail/**", {
            ToReplica::WatchPublishers(WatchPublishers { watch: 2, glob: glob("/jobs/mail/**") })
        }),
        ("unwatch", "Unwatch 2", ToReplica::Unwatch { watch: 2 }),
        (
            "announce",
            "Announce, request 9: publisher p1, one digest of /jobs/mail and default /jobs",
            {
                let (publisher, wanted) = (publisher(1), vec![digest()]);
                ToReplica::Announce(Announce { id: 9, publisher, wanted })
            },
        ),
        ("write", "Write, request 9: publish two paths, unpublish one", {
            let groups = vec![
                Group { change: Change::Publish, paths: path_texts(&["/jobs/mail", "/jobs/sms"]) },
                Group { change: Change::Unpublish, paths: path_texts(&["/jobs/fax"]) },
            ];
            ToReplica::Write(Write { id: 9, groups })
        }),
        ("confirm", "Confirm, request 9", ToReplica::Confirm { id: 9 }),
        ("clear", "Clear, request 9", ToReplica::Clear { id: 9 }),
    ]
}

pub(super) fn from_replica() -> Vec<(&'static str, &'static str, FromReplica)> {
    vec![
        ("resolved", "Resolved, request 9: one of every answer", {
            FromReplica::Resolved(Resolved {
                id: 9,
                last: true,
                complete: true,
                publishers: vec![publisher(1), publisher(2)],
                sets: vec![
                    vec![SetMember { publisher: 0 }, SetMember { publisher: 1 }],
                    vec![SetMember { publisher: 1 }],
                ],
                answers: vec![
                    PathAnswer::NotFound,
                    PathAnswer::Published { set: 0 },
                    PathAnswer::ByDefault { set: 1 },
                    PathAnswer::Refused { reason: "the path is not UTF-8".into() },
                ],
            })
        }),
        ("listed", "Listed, request 9: not the last, from a warming replica", {
            let listed =
                |text, published, default| PathListed { path: path(text), published, default };
            FromReplica::Listed(Listed {
                id: 9,
                last: false,
                complete: false,
                paths: vec![listed("/jobs", false, true), listed("/jobs/mail", true, false)],
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
            };
            FromReplica::Status { id: 9, status }
        }),
        ("publishers", "Publishers of watch 2 at revision 300", {
            FromReplica::Publishers(Publishers {
                watch: 2,
                incarnation: Incarnation([0x33; 16]),
                revision: 300,
                complete: true,
                publishers: vec![publisher(1)],
            })
        }),
        ("watch-refused", "Watch 2 refused", {
            FromReplica::WatchRefused(WatchRefused { watch: 2, reason: "too many".into() })
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
    ]
}
