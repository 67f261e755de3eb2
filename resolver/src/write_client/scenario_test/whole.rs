//! A replica that may lack something is never said to hold everything. Every scenario looks, after
//! every step; these are those in which nothing but the answer to a comparison tells.

use super::replica::with_each;
use super::*;
use crate::write_client::changes::CHANGES_MAX;
use crate::write_client::core::CONFIRM_QUIET;

/// A publisher that is faster than the replica, by more than is kept.
#[test]
fn changes_that_were_forgotten_while_older_ones_were_on_their_way() {
    with_each(|| {
        let mut scenario = Scenario::published(10);
        scenario.pass(CONFIRM_QUIET);
        scenario.hangs = true;
        scenario.want([key("/on/its/way")], true);
        scenario.hangs = false;
        let answer = scenario.newest_request();
        scenario.wanted.set_one(key("/forgotten"), Some(&PublicationTerms::default()));
        for n in 0..CHANGES_MAX / 2 + 1_024 {
            let key = key(&format!("/busy/{}", n % 100));
            scenario.wanted.set_one(key.clone(), Some(&terms(1)));
            scenario.wanted.set_one(key, None);
        }
        // The replica is told of nothing twice: it did take in the write to which it answers now.
        let on_its_way = [&key("/on/its/way").path].into_iter().collect();
        let group = Group { change: Change::Publish, terms: Terms::default(), paths: on_its_way };
        scenario.replica.as_mut().unwrap().write(scenario.link, &[group]).unwrap();
        scenario.step(Input::Tick);
        assert_eq!(scenario.sent.last(), Some(&Sent::Announce), "behind what is on its way");
        scenario.step(Input::Told(written_all(answer, 1)));
        assert!(
            !scenario.core.is_whole() && scenario.core.lacking() > 0,
            "the comparison will tell"
        );
        scenario.settle();
        assert!(scenario.core.is_whole() && scenario.holds_all());
    });
}

#[test]
fn a_replica_that_has_just_said_that_it_knows_nothing_of_the_publisher() {
    let mut scenario = Scenario::published(10);
    // It was stopped for so long that the replica has hidden it, and yet its link stands.
    let silent = scenario.now + 3 * HALF_TTL;
    scenario.replica.as_mut().unwrap().tick(silent);
    scenario.now = silent;
    scenario.lost = true;
    // A heartbeat, of which nothing is lost; or a comparison.
    scenario.step(Input::Tick);
    let no = FromReplica::Refused {
        id: scenario.newest_request(),
        code: RequestRefusal::NotAnnounced,
        reason: "who?".into(),
    };
    scenario.inbox.clear();
    scenario.step(Input::Told(no));
    assert_eq!(scenario.sent.last(), Some(&Sent::Announce));
    assert!(!scenario.core.is_whole() && scenario.core.lacking() == 1);
    let announces = scenario.count(Sent::Announce);
    scenario.step(Input::Tick);
    assert_eq!(scenario.count(Sent::Announce), announces, "one at a time");
    scenario.settle();
    assert!(scenario.core.is_whole() && scenario.holds_all());
}

#[test]
fn a_request_that_the_replica_ended_early() {
    with_each(|| {
        let mut scenario = Scenario::published(10);
        scenario.pass(CONFIRM_QUIET);
        scenario.hangs = true;
        scenario.want(keys(30), true);
        let id = scenario.newest_request();
        // Of twenty it has done none, and it says that this is all.
        scenario.step(Input::Told(written_all(id, 5)));
        assert_eq!(scenario.sent.last(), Some(&Sent::Announce));
        assert!(!scenario.core.is_whole() && scenario.core.lacking() > 0);
        scenario.hangs = false;
        scenario.cut();
        assert!(scenario.core.lacking() > 0, "the comparison was lost with its link");
        scenario.pass(Duration::from_secs(12) + CONFIRM_QUIET);
        assert!(scenario.core.is_whole() && scenario.holds_all());
    });
}

fn written_all(id: u64, done: u64) -> FromReplica {
    FromReplica::Written(Written { id, last: true, done, refused: Vec::new() })
}
