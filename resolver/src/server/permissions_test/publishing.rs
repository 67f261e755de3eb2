//! Who may register as which publisher, and what it may hold.

use super::*;

#[test]
fn a_publisher_belongs_to_its_identity_whatever_the_epoch() {
    let mut replica = Replica::new();
    let all = allow(&["*"], &["/**"]);
    let (me, other) = (access("me", &all), access("other", &all));
    let refused = replica.announce(Client(8), &other, info(2, 1), Vec::new()).unwrap_err();
    assert_eq!(refused.0, RequestRefusal::Forbidden);
    assert!(refused.1.contains("belongs to others"), "{}", refused.1);
    replica.announce(ME, &me, info(2, 7), Vec::new()).unwrap();
    for epoch in [7, 8, EPOCH_MAX] {
        let refused = replica.announce(Client(8), &other, info(2, epoch), Vec::new());
        assert_eq!(refused.unwrap_err().0, RequestRefusal::Forbidden);
    }
    assert!(replica.directory.writer(ME).is_ok(), "nobody took over");
    // Its own mistakes have a bound, too.
    let (code, reason) = replica.announce(ME, &me, info(2, EPOCH_MAX + 1), Vec::new()).unwrap_err();
    assert_eq!(code, RequestRefusal::OverLimit);
    assert!(reason.contains("epoch 4294967296 is over the limit of 4294967295"), "{reason}");
    let everything = ClientAccess::everything();
    let refused = replica.announce(Client(9), &everything, info(4, u64::MAX), Vec::new());
    assert_eq!(refused.unwrap_err().0, RequestRefusal::OverLimit, "without a policy, too");
}

#[test]
fn a_link_is_one_publisher() {
    let mut replica = Replica::new();
    let me = access("me", &allow(&["*"], &["/**"]));
    replica.announce(ME, &me, info(2, 1), Vec::new()).unwrap();
    for _ in 0..2 {
        let (code, reason) = replica.announce(ME, &me, info(5, 1), Vec::new()).unwrap_err();
        assert_eq!(code, RequestRefusal::OverLimit);
        assert!(reason.contains("this link has registered as publisher 02020202"), "{reason}");
        // Nor is the next one another's.
        replica.directory.clear(ME).unwrap();
        replica.announce(ME, &me, info(2, 1), Vec::new()).unwrap();
    }
}

#[test]
fn a_publisher_that_the_policy_does_not_name_publishes_values_for_its_first_identity() {
    let mut replica = Replica::new();
    let all = allow(&["*"], &["/**"]);
    let (me, other) = (access("me", &all), access("other", &all));
    replica.announce(ME, &me, info(5, 1), Vec::new()).unwrap();
    assert_eq!(replica.write(ME, &me, Change::Publish, VALUE, &["/v/a"]), BTreeMap::new());
    for change in [Change::Publish, Change::PublishDefault] {
        let refused = replica.write(ME, &me, change, QUEUE, &["/q/a"]);
        assert!(refused[&0].contains("does not name this publisher"), "{refused:?}");
    }
    let refused = replica.announce(Client(8), &other, info(5, 2), Vec::new()).unwrap_err();
    assert!(refused.1.contains("another identity has registered"), "{}", refused.1);
    assert_eq!(replica.write(ME, &me, Change::Publish, VALUE, &["/v/b"]), BTreeMap::new());
    // A link later it is still the owner, also while it is away.
    replica.directory.client_gone(ME);
    assert!(replica.announce(Client(8), &other, info(5, 2), Vec::new()).is_err());
    replica.announce(Client(10), &me, info(5, 1), Vec::new()).unwrap();
    // Once it is silent for too long nobody knows it.
    replica.directory.tick(replica.now + 2 * TTL);
    replica.announce(Client(8), &other, info(5, 1), Vec::new()).unwrap();
    // A missing publisher's queues are no unnamed publisher's.
    let refused = replica.announce(Client(9), &me, info(3, 2), Vec::new()).unwrap_err();
    assert!(refused.1.contains("has declared queues"), "{}", refused.1);
    assert!(replica.directory.has_missing_queues(PublisherId([3; 16])));
}

#[test]
fn a_default_needs_the_right_on_everything_below_it() {
    let mut replica = Replica::new();
    let rules = allow(&["serve"], &["/jobs/**", "/one/*", "/all/**"]);
    let me = access("me", &(rules + &deny(&["serve"], &["/all/secret/x"])));
    replica.announce(ME, &me, info(2, 1), Vec::new()).unwrap();
    let texts = ["/jobs", "/jobs/a", "/one", "/one/a", "/all", "/all/b", "/all/secret", "/"];
    let refused = replica.write(ME, &me, Change::PublishDefault, QUEUE, &texts);
    assert_eq!(refused.keys().copied().collect::<Vec<_>>(), [2, 3, 4, 6, 7]);
    assert!(refused[&4].contains("everything below /all,"), "{refused:?}");
    // What it may not publish it may still withdraw.
    let refused = replica.write(ME, &me, Change::UnpublishDefault, QUEUE, &texts);
    assert_eq!(refused, BTreeMap::new());
}

#[test]
fn a_publisher_that_returns_with_fewer_rights_loses_the_paths_of_the_others() {
    let before = access("me", &allow(&["*"], &["/**"]));
    let text: Vec<String> = (0..400).map(|n| format!("/jobs/{n}")).collect();
    let texts: Vec<&str> = text.iter().map(String::as_str).collect();
    let rules = allow(&["resolve", "publish"], &["/**"]);
    let after = access("me", &(rules + &allow(&["serve"], &["/jobs/?", "/jobs/3*"])));
    let held = |replica: &mut Replica| {
        let globs = vec![Glob::new("/{jobs,v}/**").unwrap()];
        let request = ToReplica::ListMatching(ListMatching { id: 1, globs });
        let listed = replica.list(&ClientAccess::everything(), request);
        let published = listed.into_iter().map(|listed| listed.path.to_string());
        published.collect::<BTreeSet<String>>()
    };
    let digest = |paths: &BTreeSet<String>| {
        let mut digest = Digest::default();
        for path in paths.iter().filter(|path| *path != "/v/load") {
            let kind = if path.starts_with("/v") { VALUE } else { QUEUE };
            digest.add(KeyHash::of(path, path == "/jobs"), terms(kind).digest());
        }
        digest
    };
    let mut replica = Replica::new();
    replica.announce(ME, &before, info(2, 1), Vec::new()).unwrap();
    assert!(replica.write(ME, &before, Change::Publish, QUEUE, &texts).is_empty());
    assert!(replica.write(ME, &before, Change::Publish, VALUE, &["/v/mine"]).is_empty());
    assert!(replica.write(ME, &before, Change::PublishDefault, QUEUE, &["/jobs"]).is_empty());
    let all = held(&mut replica);
    replica.directory.client_gone(ME);

    // It wants the same as before, so that no digest would differ.
    let desired = vec![digest(&all)];
    let announce = Announce { id: 1, publisher: info(2, 1), desired: desired.clone() };
    let answers = replica.ask(Client(8), &after, ToReplica::Announce(announce));
    let Some((FromReplica::Announced(announced), progress)) = answers.split_last() else {
        panic!("{answers:?}")
    };
    assert!(progress.len() > 3, "in slices: {}", progress.len());
    for part in progress {
        let FromReplica::Written(written) = part else { panic!("{part:?}") };
        assert!(!written.last && written.id == 1 && written.refused.is_empty());
    }
    let allowed = |text: &&String| match text.strip_prefix("/jobs/") {
        Some(number) => number.len() == 1 || number.starts_with('3'),
        None => *text != "/jobs",
    };
    let left: BTreeSet<String> = all.iter().filter(allowed).cloned().collect();
    assert_eq!(left.len(), 10 + 110 + 2);
    assert_eq!(held(&mut replica), left);
    assert_eq!(announced.stored, [digest(&left)], "so it writes again, and is refused");

    // Its heartbeats are not checked again, and neither is a link with the same rights.
    let same = after.with_rights(Arc::new((**after.rights()).clone()));
    for (client, access) in [(Client(8), &after), (Client(10), &same)] {
        let announce = Announce { id: 1, publisher: info(2, 1), desired: vec![digest(&left)] };
        assert_eq!(replica.ask(client, access, ToReplica::Announce(announce)).len(), 1);
    }
    // A right that its link had for a while, and what it published with it, go with the link.
    replica.directory.rights_changed(Client(10));
    assert!(replica.write(Client(10), &before, Change::Publish, QUEUE, &["/jobs/50"]).is_empty());
    assert!(held(&mut replica).contains("/jobs/50"));
    replica.directory.client_gone(Client(10));
    replica.announce(Client(10), &after, info(2, 1), desired.clone()).unwrap();
    assert_eq!(held(&mut replica), left);

    let fewer = access("me", &allow(&["serve"], &["/jobs/7"]));
    let stored = replica.announce(Client(10), &fewer, info(2, 1), desired).unwrap();
    let left: BTreeSet<String> = ["/jobs/7", "/v/load"].map(String::from).into();
    assert_eq!((held(&mut replica), stored), (left.clone(), vec![digest(&left)]));
}

#[test]
fn an_identity_registers_as_many_paths_as_its_quota_allows_with_all_its_publishers() {
    let mut replica = Replica::new();
    let of = |name: &str| access(name, &allow(&["serve", "publish"], &["/**"]));
    let (mine, yours) = (of("me"), of("you"));
    replica.paths_max = Some(3);
    for (client, access, number) in [(ME, &mine, 2), (Client(4), &mine, 4), (Client(5), &yours, 5)]
    {
        replica.announce(client, access, info(number, 1), Vec::new()).unwrap();
    }
    let publish = |replica: &mut Replica, client, access, texts: &[&str]| {
        replica.write(client, access, Change::Publish, VALUE, texts)
    };
    assert_eq!(publish(&mut replica, ME, &mine, &["/x/1", "/x/2"]), BTreeMap::new());
    // Two publishers of one identity share its quota, and what is there may be written again.
    let refused = publish(&mut replica, Client(4), &mine, &["/x/1", "/x/1", "/x/2"]);
    assert_eq!(refused.keys().copied().collect::<Vec<_>>(), [2]);
    let why = &refused[&2];
    assert!(
        why.contains("have 3 paths here, the quota") && why.contains("raise `registered_paths`")
    );
    assert_eq!(
        publish(&mut replica, Client(5), &yours, &["/x/1", "/x/2", "/x/3"]),
        BTreeMap::new()
    );
    // A withdrawn path makes room, as does a publisher that leaves.
    let gone = replica.write(ME, &mine, Change::Unpublish, VALUE, &["/x/2"]);
    assert_eq!(gone, BTreeMap::new());
    assert_eq!(publish(&mut replica, Client(4), &mine, &["/x/3"]), BTreeMap::new());
    assert_eq!(publish(&mut replica, Client(4), &mine, &["/x/4"]).len(), 1);
    replica.directory.clear(ME).unwrap();
    assert_eq!(publish(&mut replica, Client(4), &mine, &["/x/4", "/x/5"]).len(), 1);
    // What is over a lowered quota stays, and without one there is none.
    replica.paths_max = Some(1);
    assert_eq!(publish(&mut replica, Client(4), &mine, &["/x/3", "/x/5"]).len(), 1);
    replica.paths_max = None;
    assert_eq!(publish(&mut replica, Client(4), &mine, &["/x/5"]), BTreeMap::new());
}
