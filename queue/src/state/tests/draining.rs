//! A publisher that is to be removed.

use longshore_protocol::messages::work::{DrainReport, EnqueueBatch};
use longshore_protocol::{BatchRefusal, EnqueueOutcome, LinkId, Refusal, Runs};

use super::story::*;
use crate::command::Command;
use crate::outcome::Reply;
use crate::state::State;

impl Story {
    fn drain(&mut self, draining: bool) -> DrainReport {
        let link = LinkId(900);
        let out = self.apply(Command::Drain { link, request: 5, draining });
        match out.replies.first() {
            Some((LinkId(900), Reply::Drained { request: 5, report: Ok(report) })) => *report,
            other => panic!("a drain is answered first, and to the one who asked: {other:?}"),
        }
    }

    fn outcome_of(
        &mut self,
        link: LinkId,
        batch: EnqueueBatch,
    ) -> Result<Runs<EnqueueOutcome>, BatchRefusal> {
        let out = self.send(link, batch);
        let answer = out.replies.into_iter().find_map(|(_, reply)| match reply {
            Reply::Enqueued(answer) => Some(answer.outcome),
            _ => None,
        });
        answer.expect("a batch is answered")
    }
}

#[test]
fn a_drained_publisher_refuses_new_batches_whole_and_hands_out_what_it_has() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    let jobs = |numbers: std::ops::Range<u32>| numbers.map(plain).collect::<Vec<_>>();
    let first = batch(1, &jobs(1..4));
    let created = story.outcome_of(producer, first.clone());
    let report = DrainReport { changed: true, open: 3, ..DrainReport::default() };
    assert_eq!(story.drain(true), report);

    // Two that were under way: none is a gap, and none has used up a number.
    for sequence in [2, 3, 2] {
        let refused = story.outcome_of(producer, batch(sequence, &jobs(4..6)));
        assert_eq!(refused, Err(BatchRefusal::Draining), "batch {sequence}");
    }
    assert_eq!(story.outcome_of(producer, first), created, "its answer was lost on the way");
    let stranger = story.link("stranger");
    assert_eq!(story.outcome_of(stranger, batch(7, &jobs(4..6))), Err(BatchRefusal::Draining));

    // The same jobs from a new run of the producer: elsewhere they would be run a second time.
    let again = story.link("again");
    let outcomes = story.outcome_of(again, batch(1, &jobs(1..3))).unwrap();
    assert!(outcomes.iter().all(|outcome| outcome == EnqueueOutcome::Existing));
    assert_eq!(story.outcome_of(again, batch(2, &jobs(3..5))), Err(BatchRefusal::Draining));

    let (worker, held) = story.worker("w", "/**", 2);
    story.complete(worker, held[0].token);
    let report = DrainReport { changed: false, open: 2, kept: 1, ..DrainReport::default() };
    assert_eq!(story.drain(true), report);
    let report = DrainReport { changed: true, ..report };
    assert_eq!(story.drain(false), report);
    let outcomes = story.outcome_of(producer, batch(2, &jobs(4..6))).unwrap();
    assert!(outcomes.iter().all(|outcome| outcome == EnqueueOutcome::Created));
}

#[test]
fn a_drain_holds_over_snapshots_and_starts() {
    let mut story = Story::begin();
    story.drain(true);
    story.state = State::restore(&story.state.snapshot_bytes()).unwrap();
    story.start();
    assert!(story.state.is_draining());
    assert!(!story.drain(true).changed);
}

#[test]
fn a_batch_that_the_disk_has_no_room_for_goes_elsewhere_too() {
    let mut story = Story::begin();
    let link = story.link("producer");
    story.drain(true);
    let refusal = Refusal::NoSpace;
    let out = story.apply(Command::Refuse { link, sequence: 1, jobs: 3, refusal });
    let Some((_, Reply::Enqueued(answer))) = out.replies.first() else { panic!("{out:?}") };
    assert_eq!(answer.outcome, Err(BatchRefusal::Draining));
}
