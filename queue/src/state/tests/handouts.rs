//! While the disk is all but full: batches are refused without their jobs, and a budget bounds hand-outs.

use longshore_protocol::messages::work::NewSettle;
use longshore_protocol::{
    BatchRefusal, EnqueueOutcome, JobState, LinkId, Refusal, Runs, SettleOutcome,
};

use super::story::*;
use crate::command::Command;
use crate::outcome::Outcomes;
use crate::state::State;

const NO_SPACE: EnqueueOutcome = EnqueueOutcome::Refused(Refusal::NoSpace);

impl Story {
    fn limit(&mut self, budget: u64) -> Outcomes {
        self.apply(Command::Handouts { budget })
    }

    fn refuse(
        &mut self,
        link: LinkId,
        sequence: u64,
        jobs: u32,
    ) -> Result<Runs<EnqueueOutcome>, BatchRefusal> {
        let out = self.apply(Command::Refuse { link, sequence, jobs, refusal: Refusal::NoSpace });
        receipts(&out)
    }
}

#[test]
fn a_refused_batch_uses_up_its_number_and_is_answered_again_as_before() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    assert_eq!(story.enqueue(producer, &[plain(1)]), [EnqueueOutcome::Created]);
    assert_eq!(story.refuse(producer, 3, 1), Err(BatchRefusal::SequenceGap));
    assert_eq!(story.refuse(producer, 0, 1), Err(BatchRefusal::Malformed));
    let refused = Ok(Runs::all(NO_SPACE, 2));
    assert_eq!(story.refuse(producer, 2, 2), refused);
    // Sent again: as a batch that would fit by now, and as one that does not.
    assert_eq!(receipts(&story.send(producer, batch(2, &[plain(2), plain(3)]))), refused);
    assert_eq!(story.refuse(producer, 2, 2), refused);
    // One that was taken is not refused afterwards.
    assert_eq!(story.refuse(producer, 1, 1), Ok(Runs::all(EnqueueOutcome::Created, 1)));
    assert_eq!(story.enqueue(producer, &[plain(2)]), [EnqueueOutcome::Created]);
    assert_eq!(story.counts().ready, 2);
    let stranger = LinkId(900);
    let out = story.apply(Command::Refuse {
        link: stranger,
        sequence: 1,
        jobs: 1,
        refusal: Refusal::NoSpace,
    });
    assert!(out.replies.is_empty(), "a link that is not there is not answered");
}

#[test]
fn no_more_jobs_are_handed_out_than_the_budget_allows() {
    let mut story = Story::begin();
    story.fill(1..=6);
    story.limit(3);
    let (a, handed) = story.worker("a", QUEUE, 2);
    assert_eq!((handed.len(), story.state.handouts()), (2, 1));
    let (b, handed_b) = story.worker("b", "/jobs/**", 5);
    assert_eq!((handed_b.len(), story.state.handouts(), story.state.waiting_credits()), (1, 0, 4));
    // What ends gives nothing back: that is for whoever knows the room.
    assert_eq!(story.complete(a, handed[0].token), SettleOutcome::Accepted);
    let released = story.settle(a, handed[1].token, &NewSettle::Release);
    assert_eq!((released.0, released.1.handed.len()), (SettleOutcome::Accepted, 0));
    // New jobs, new queues, what comes due: all ready, and there.
    let producer = story.link("producer");
    let mut other = plain(7);
    other.path = path("/jobs/other");
    assert_eq!(story.enqueue(producer, &[other]), [EnqueueOutcome::Created]);
    assert_eq!(story.state_of(7), JobState::Ready);
    assert!(story.credit(a, 1, 5).is_empty());
    story.state.invariant().unwrap();
    let raised = story.limit(2).handed;
    assert_eq!(raised.len(), 2);
    let unlimited = story.limit(u64::MAX).handed;
    assert_eq!((unlimited.len(), story.state.handouts()), (3, u64::MAX));
    assert!(raised.iter().chain(&unlimited).any(|handed| handed.link == b));
}

#[test]
fn a_budget_lasts_over_a_restart_and_a_snapshot() {
    let mut story = Story::begin();
    story.fill(1..=3);
    story.limit(1);
    story.start();
    assert_eq!(story.worker("a", QUEUE, 2).1.len(), 1);
    story.state = State::restore(&story.state.snapshot_bytes()).unwrap();
    story.state.invariant().unwrap();
    assert_eq!((story.state.handouts(), story.state.waiting_credits()), (0, 1));
    assert_eq!(story.limit(9).handed.len(), 1);
    assert_eq!(story.state.handouts(), 8);
}
