//! A replica that may lack something is never reported as up to date. Every scenario checks that
//! after every step; in these only the answer to a comparison shows it.

use super::replica::with_each;
use super::*;
use crate::write_client::change_log::CHANGES_MAX;
use crate::write_client::core::CONFIRM_QUIET;

/// A publisher that is faster than the replica, by more changes than are retained.
#[test]
fn changes_dropped_while_older_ones_were_in_flight_are_found_by_comparing() {
    with_each(|| {
        let mut scenario = Scenario::published(10);
        scenario.pass(CONFIRM_QUIET);
        scenario.hangs = true;
        scenario.set_desired([key("/on/its/way")], true);
        scenario.hangs = false;
        let answer = scenario.newest_request();
        scenario.desired.set_one(key("/forgotten"), Some(&CheckedTerms::default()));
        let busy: Vec<_> = (0..100).map(|n| key(&format!("/busy/{n}"))).collect();
        for key in busy.iter().cycle().take(CHANGES_MAX as usize / 2 + 1_024) {
            let key = key.clone();
            scenario.desired.set_one(key.clone(), Some(&terms(1)));
            scenario.desired.set_one(key, None);
        }
        // Nothing is sent twice: the replica did handle the write that it answers now.
        let on_its_way = [&key("/on/its/way").path].into_iter().collect();
        let group = Group { change: Change::Publish, terms: Terms::default(), paths: on_its_way };
        scenario.replica.as_mut().unwrap().write(scenario.link, &[group]).unwrap();
        scenario.step(Event::Tick);
        assert_eq!(scenario.sent.last(), Some(&Sent::Announce), "behind the requests in flight");
        scenario.step(Event::Received(written_all(answer, 1)));
        assert!(
            !scenario.core.is_up_to_date() && scenario.core.pending() > 0,
            "the comparison will show"
        );
        scenario.settle();
        assert!(scenario.core.is_up_to_date() && scenario.is_in_sync());
    });
}

#[test]
fn a_replica_that_has_forgotten_the_publisher_is_not_up_to_date() {
    let mut scenario = Scenario::published(10);
    // The client was stopped for so long that the replica has hidden it, but its link remains.
    let silent = scenario.now + 3 * HALF_TTL;
    scenario.replica.as_mut().unwrap().tick(silent);
    scenario.now = silent;
    scenario.lost = true;
    // A heartbeat, which carries no paths; or a comparison.
    scenario.step(Event::Tick);
    let no = FromReplica::Refused {
        id: scenario.newest_request(),
        code: RequestRefusal::NotAnnounced,
        reason: "unknown".into(),
    };
    scenario.inbox.clear();
    scenario.step(Event::Received(no));
    assert_eq!(scenario.sent.last(), Some(&Sent::Announce));
    assert!(!scenario.core.is_up_to_date() && scenario.core.pending() == 1);
    let announces = scenario.count(Sent::Announce);
    scenario.step(Event::Tick);
    assert_eq!(scenario.count(Sent::Announce), announces, "one at a time");
    scenario.settle();
    assert!(scenario.core.is_up_to_date() && scenario.is_in_sync());
}

#[test]
fn a_request_that_the_replica_ended_early_is_not_up_to_date() {
    with_each(|| {
        let mut scenario = Scenario::published(10);
        scenario.pass(CONFIRM_QUIET);
        scenario.hangs = true;
        scenario.set_desired(keys(30), true);
        let id = scenario.newest_request();
        // It has handled none of the 20 new paths, and marks its answer as the last.
        scenario.step(Event::Received(written_all(id, 5)));
        assert_eq!(scenario.sent.last(), Some(&Sent::Announce));
        assert!(!scenario.core.is_up_to_date() && scenario.core.pending() > 0);
        scenario.hangs = false;
        scenario.lose_link();
        assert!(scenario.core.pending() > 0, "the comparison was lost with its link");
        scenario.pass(Duration::from_secs(12) + CONFIRM_QUIET);
        assert!(scenario.core.is_up_to_date() && scenario.is_in_sync());
    });
}

fn written_all(id: u64, done: u64) -> FromReplica {
    FromReplica::Written(Written { id, last: true, done, refused: Vec::new() })
}
