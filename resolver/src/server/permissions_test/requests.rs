//! Every request, by every right.

use super::*;

/// A request, and the actions of which one is enough for it to be served.
type Case = (&'static str, &'static [Action], fn(&mut Replica, &ClientAccess) -> bool);

const CASES: [Case; 14] = [
    ("resolve", &[Action::Resolve], |replica, access| {
        let answer = replica.resolve(access, &["/q/mail"]);
        !answer.publishers.is_empty()
    }),
    ("resolve a default", &[Action::Resolve], |replica, access| {
        !replica.resolve(access, &["/d/new"]).publishers.is_empty()
    }),
    ("list", &[Action::Resolve], |replica, access| {
        let request = ToReplica::List(List { id: 1, path: path("/q") });
        !replica.list(access, request).is_empty()
    }),
    ("list by globs", &[Action::Resolve], |replica, access| {
        !replica.list(access, all_paths()).is_empty()
    }),
    ("table", &[Action::Resolve], |replica, access| {
        let table = Table { id: 1, path: Path::root() };
        let answers = replica.ask(ME, access, ToReplica::Table(table));
        answers.iter().any(|answer| {
            let FromReplica::Table(part) = answer else { panic!("{answer:?}") };
            !part.rows.is_empty() || !part.columns.is_empty()
        })
    }),
    ("watch publishers", &[Action::Resolve], |replica, access| {
        replica.directory.set_scope(ME, access.scope.clone());
        let watch = WatchPublishers { id: 1, watch: 1, glob: Glob::everything() };
        assert!(replica.ask(ME, access, ToReplica::WatchPublishers(watch)).is_empty());
        let pushes = replica.pushes(ME);
        let [FromReplica::Publishers(all)] = &pushes[..] else { panic!("{pushes:?}") };
        !all.publishers.is_empty()
    }),
    ("watch paths", &[Action::Resolve], |replica, access| {
        replica.directory.set_scope(ME, access.scope.clone());
        let watch = WatchPaths { id: 1, watch: 1, globs: vec![Glob::everything()] };
        assert!(replica.ask(ME, access, ToReplica::WatchPaths(watch)).is_empty());
        let pushes = replica.pushes(ME);
        let [FromReplica::PathSnapshot(all)] = &pushes[..] else { panic!("{pushes:?}") };
        !all.paths.is_empty()
    }),
    ("list publishers", &[Action::Resolve, Action::Inspect, Action::Operate], |replica, access| {
        !replica.publishers(access).is_empty()
    }),
    ("status", &[Action::Inspect], |replica, access| {
        match &replica.ask(ME, access, ToReplica::Status { id: 1 })[..] {
            [FromReplica::Status { .. }] => true,
            [FromReplica::Refused { code: RequestRefusal::Forbidden, reason, .. }] => {
                assert!(reason.ends_with("allow `token:me` to inspect /sys"), "{reason}");
                false
            }
            other => panic!("{other:?}"),
        }
    }),
    ("forget a publisher", &[Action::Operate], |replica, access| {
        let publisher = PublisherId([3; 16]);
        let answers = replica.ask(ME, access, ToReplica::ForgetPublisher { id: 1, publisher });
        let forgotten = !replica.directory.has_missing_queues(publisher);
        match &answers[..] {
            [FromReplica::Written(answer)] => assert!(forgotten && answer.done == 1),
            [FromReplica::Refused { code: RequestRefusal::Forbidden, reason, .. }] => {
                assert!(reason.ends_with("allow `token:me` to operate /sys"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
        forgotten
    }),
    ("serve a queue", &[Action::Serve], |replica, access| {
        publishes(replica, access, Change::Publish, PublicationKind::Queue, "/q/new")
    }),
    ("publish a value", &[Action::Publish], |replica, access| {
        publishes(replica, access, Change::Publish, PublicationKind::Value, "/v/new")
    }),
    ("serve by default", &[Action::Serve], |replica, access| {
        publishes(replica, access, Change::PublishDefault, PublicationKind::Queue, "/q")
    }),
    ("publish by default", &[Action::Publish], |replica, access| {
        publishes(replica, access, Change::PublishDefault, PublicationKind::Value, "/")
    }),
];

fn publishes(
    replica: &mut Replica,
    access: &ClientAccess,
    change: Change,
    kind: PublicationKind,
    text: &str,
) -> bool {
    let before = replica.list(&ClientAccess::everything(), all_paths());
    let announced = replica.announce(ME, access, info(2, 1), Vec::new());
    if let Err((code, reason)) = announced {
        assert_eq!(code, RequestRefusal::Forbidden, "{reason}");
        assert!(reason.contains("`token:me` to register"), "{reason}");
        return false;
    }
    let refused = replica.write(ME, access, change, kind, &[text]);
    let after = replica.list(&ClientAccess::everything(), all_paths());
    if let Some(reason) = refused.get(&0) {
        assert!(reason.starts_with("Forbidden: "), "{reason}");
    }
    assert_eq!(refused.is_empty(), before != after);
    refused.is_empty()
}

/// 14 requests × 12 rights × allowed, elsewhere, denied; and all rights, none, no policy.
#[test]
fn every_request_needs_its_right_on_its_path() {
    let mut served = 0;
    for (name, needed, request) in CASES {
        let mut is_served = |rules: &str| {
            let is_served = request(&mut Replica::new(), &access("me", rules));
            served += usize::from(is_served);
            is_served
        };
        for action in Action::ALL {
            let own = allow(&[action.name()], &["/**"]);
            assert_eq!(is_served(&own), needed.contains(&action), "{name}, by {action} alone");
            let elsewhere = allow(&[action.name()], &["/elsewhere/**"]);
            assert!(!is_served(&elsewhere), "{name}, by {action} elsewhere");
            let denied = allow(&["*"], &["/**"]) + &deny(&[action.name()], &["/**"]);
            let expected = needed != [action];
            assert_eq!(is_served(&denied), expected, "{name}, by all but {action}");
        }
        assert!(is_served(&allow(&["*"], &["/**"])), "{name}, by all rights");
        assert!(!is_served(""), "{name}, without any");
        assert!(request(&mut Replica::new(), &ClientAccess::everything()), "{name}, no policy");
    }
    assert!(served > 100, "{served}");
}
