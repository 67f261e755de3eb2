//! K0: between a producer's batch and its answer.

use longshore_protocol::{BatchRefusal, EnqueueOutcome, LinkId};

use super::super::story::*;
use super::HOUR_MS;
use crate::command::Command;

#[test]
fn k0_a_resent_batch_yields_each_job_once() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    let jobs = [plain(1), plain(2)];
    let first = receipts(&story.send(producer, batch(1, &jobs)));
    let producer = story.link("producer");
    let again = receipts(&story.send(producer, batch(1, &jobs)));
    assert_eq!(first, again);
    assert_eq!(first.unwrap().iter().collect::<Vec<_>>(), [EnqueueOutcome::Created; 2]);
    assert_eq!(story.counts().ready, 2);
}

#[test]
fn k0_a_batch_that_never_arrived_is_taken_when_it_is_sent_again_over_a_restart() {
    let mut story = Story::begin();
    story.link("producer");
    story.start();
    let producer = story.link("producer");
    let outcomes = receipts(&story.send(producer, batch(1, &[plain(1)]))).unwrap();
    assert!(outcomes.iter().eq([EnqueueOutcome::Created]));
    story.start();
    let producer = story.link("producer");
    let again = receipts(&story.send(producer, batch(1, &[plain(1)]))).unwrap();
    assert_eq!((again, story.counts().ready), (outcomes, 1));
}

#[test]
fn k0_a_producer_that_stood_still_until_it_was_forgotten_makes_no_job_twice() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    story.send(producer, batch(1, &[plain(1)]));
    story.send(producer, batch(2, &[plain(2)]));
    story.apply(Command::LinkLost { link: producer });
    story.later(2 * HOUR_MS).apply(Command::Tick);
    let producer = story.link("producer");
    let refused = receipts(&story.send(producer, batch(2, &[plain(2)])));
    assert_eq!(refused.unwrap_err(), BatchRefusal::UnknownProducer, "never silent acceptance");
    let again = receipts(&story.send(producer, batch(1, &[plain(1), plain(2), plain(3)])));
    let (existing, created) = (EnqueueOutcome::Existing, EnqueueOutcome::Created);
    assert!(again.unwrap().iter().eq([existing, existing, created]));
    assert_eq!(story.counts().ready, 3);
}

#[test]
fn k0_a_thousand_producers_that_race_one_id_make_one_job() {
    let mut story = Story::begin();
    let producers: Vec<LinkId> = (0..1_000).map(|n| story.link(&format!("producer-{n}"))).collect();
    let (_, mut handed) = story.worker("a", QUEUE, 1_000);
    let mut found = Vec::new();
    for producer in &producers {
        let out = story.send(*producer, batch(1, &[plain(1)]));
        found.extend(receipts(&out).unwrap().iter());
        handed.extend(out.handed);
    }
    let created = found.iter().filter(|outcome| **outcome == EnqueueOutcome::Created).count();
    let existing = found.iter().filter(|outcome| **outcome == EnqueueOutcome::Existing).count();
    assert_eq!((created, existing, handed.len()), (1, 999, 1));
    let stat = story.stat_of(QUEUE);
    assert_eq!((stat.enqueued, stat.counts.running), (1, 1));
}
