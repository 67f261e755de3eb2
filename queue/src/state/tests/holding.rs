//! While the disk is all but full: batches are refused without their jobs, and nothing is handed out.

use longshore_protocol::messages::work::NewSettle;
use longshore_protocol::{
    BatchRefusal, EnqueueOutcome, JobState, LinkId, Refusal, Runs, SettleOutcome,
};

use super::story::*;
use crate::command::Command;
use crate::outcome::{Outcomes, Reply};
use crate::state::State;

const NO_SPACE: EnqueueOutcome = EnqueueOutcome::Refused(Refusal::NoSpace);

impl Story {
    fn hold(&mut self, on: bool) -> Outcomes {
        self.apply(Command::Hold { on })
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
fn during_a_hold_nothing_is_handed_out_and_everything_else_goes_on() {
    let mut story = Story::begin();
    story.fill(1..=4);
    let (a, handed) = story.worker("a", QUEUE, 2);
    assert_eq!(handed.len(), 2);
    assert!(!story.state.is_held());
    story.hold(true);
    assert!(story.state.is_held());
    assert!(story.credit(a, 1, 5).is_empty());
    let (b, handed_b) = story.worker("b", "/jobs/**", 1);
    assert!(handed_b.is_empty());
    assert_eq!(story.complete(a, handed[0].token), SettleOutcome::Accepted);
    let released = story.settle(a, handed[1].token, &NewSettle::Release);
    assert_eq!(released.0, SettleOutcome::Accepted);
    assert!(released.1.handed.is_empty());
    // New jobs, new queues, what comes due: all ready, and there.
    let producer = story.link("producer");
    let mut other = plain(5);
    other.path = path("/jobs/other");
    assert_eq!(story.enqueue(producer, &[other]), [EnqueueOutcome::Created]);
    assert_eq!(story.state_of(5), JobState::Ready);
    assert_eq!((story.counts().ready, story.counts().running), (3, 0));
    let again = story.hold(true);
    assert!(again.handed.is_empty() && again.replies.is_empty());
    let lifted = story.hold(false);
    assert_eq!(lifted.handed.len(), 4, "as many as there are, in their order");
    assert!(lifted.handed.iter().any(|handed| handed.link == b));
    assert!(story.hold(false).handed.is_empty());
}

#[test]
fn a_worker_without_credit_is_told_of_jobs_once_the_hold_is_lifted() {
    let mut story = Story::begin();
    story.hold(true);
    let (a, _) = story.worker("a", QUEUE, 1);
    story.apply(Command::Recall { link: a, subscription: 1, count: 1 });
    story.fill(1..=3);
    let lifted = story.hold(false);
    let told = lifted.replies.iter().any(|(link, reply)| {
        matches!(reply, Reply::Waiting(waiting) if waiting.jobs == 3) && *link == a
    });
    assert!(told, "{:?}", lifted.replies);
}

#[test]
fn a_hold_lasts_over_a_restart_and_a_snapshot_until_it_is_lifted() {
    let mut story = Story::begin();
    story.fill(1..=2);
    story.hold(true);
    story.start();
    story.state = State::restore(&story.state.snapshot_bytes()).unwrap();
    story.state.invariant().unwrap();
    assert!(story.state.is_held());
    assert!(story.worker("a", QUEUE, 2).1.is_empty());
    assert_eq!(story.hold(false).handed.len(), 2);
}
