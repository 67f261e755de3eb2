//! A replica that may lack something is never said to hold everything. Every story looks, after every step; these are those in which
//! nothing but the answer to a comparison tells.

use super::replica::with_each;
use super::*;
use crate::write_client::changes::CHANGES_MAX;
use crate::write_client::core::CONFIRM_QUIET;

/// A publisher that is faster than the replica, by more than is kept.
#[test]
fn changes_that_were_forgotten_while_older_ones_were_on_their_way() {
    with_each(|| {
        let mut story = Story::published(10);
        story.pass(CONFIRM_QUIET);
        story.hangs = true;
        story.want([key("/on/its/way")], true);
        story.hangs = false;
        let answer = story.newest_request();
        story.wanted.set_one(key("/forgotten"), Some(&PublicationTerms::default()));
        for n in 0..CHANGES_MAX / 2 + 1_024 {
            let key = key(&format!("/busy/{}", n % 100));
            story.wanted.set_one(key.clone(), Some(&terms(1)));
            story.wanted.set_one(key, None);
        }
        // The replica is told of nothing twice: it did take in the write to which it answers now.
        let on_its_way = [&key("/on/its/way").path].into_iter().collect();
        let group = Group { change: Change::Publish, terms: Terms::default(), paths: on_its_way };
        story.replica.as_mut().unwrap().write(story.link, &[group]).unwrap();
        story.step(Input::Tick);
        assert_eq!(story.sent.last(), Some(&Sent::Announce), "behind what is on its way");
        story.step(Input::Told(written_all(answer, 1)));
        assert!(!story.core.is_whole() && story.core.lacking() > 0, "the comparison will tell");
        story.settle();
        assert!(story.core.is_whole() && story.holds_all());
    });
}

#[test]
fn a_replica_that_has_just_said_that_it_knows_nothing_of_the_publisher() {
    let mut story = Story::published(10);
    // It was stopped for so long that the replica has hidden it, and yet its link stands.
    let silent = story.now + 3 * HALF_TTL;
    story.replica.as_mut().unwrap().tick(silent);
    story.now = silent;
    story.lost = true;
    // A heartbeat, of which nothing is lost; or a comparison.
    story.step(Input::Tick);
    let no = FromReplica::Refused {
        id: story.newest_request(),
        code: RequestRefusal::NotAnnounced,
        reason: "who?".into(),
    };
    story.inbox.clear();
    story.step(Input::Told(no));
    assert_eq!(story.sent.last(), Some(&Sent::Announce));
    assert!(!story.core.is_whole() && story.core.lacking() == 1);
    let announces = story.count(Sent::Announce);
    story.step(Input::Tick);
    assert_eq!(story.count(Sent::Announce), announces, "one at a time");
    story.settle();
    assert!(story.core.is_whole() && story.holds_all());
}

#[test]
fn a_request_that_the_replica_ended_early() {
    with_each(|| {
        let mut story = Story::published(10);
        story.pass(CONFIRM_QUIET);
        story.hangs = true;
        story.want(keys(30), true);
        let id = story.newest_request();
        // Of twenty it has done none, and it says that this is all.
        story.step(Input::Told(written_all(id, 5)));
        assert_eq!(story.sent.last(), Some(&Sent::Announce));
        assert!(!story.core.is_whole() && story.core.lacking() > 0);
        story.hangs = false;
        story.cut();
        assert!(story.core.lacking() > 0, "the comparison was lost with its link");
        story.pass(Duration::from_secs(12) + CONFIRM_QUIET);
        assert!(story.core.is_whole() && story.holds_all());
    });
}

fn written_all(id: u64, done: u64) -> FromReplica {
    FromReplica::Written(Written { id, last: true, done, refused: Vec::new() })
}
