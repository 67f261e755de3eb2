//! Checkpoints and queries of one publisher, without a link.

use longshore_protocol::limits::CHECKPOINT_BYTES_MAX;

use super::*;

const A: Token = Token(1);
const B: Token = Token(2);

type QueryAnswered = super::QueryAnswered<&'static str>;

fn attached() -> Checkpoints<&'static str, &'static str> {
    let mut checkpoints = Checkpoints::default();
    checkpoints.attached();
    checkpoints
}

/// The next checkpoint to send, as the publisher reads it: token, number, bytes.
fn sent(checkpoints: &mut Checkpoints<&'static str, &'static str>) -> Option<(u64, u64, Vec<u8>)> {
    let CheckpointRequest::Store(body) = checkpoints.next_to_send()? else {
        panic!("a checkpoint")
    };
    let read = Checkpoint::decode(body.clone()).unwrap();
    let bytes = &body[read.at as usize..][..read.length as usize];
    Some((read.token.0, read.sequence, bytes.to_vec()))
}

fn accepted(token: Token, sequence: u64) -> Checkpointed {
    Checkpointed { token, sequence, outcome: CheckpointOutcome::Accepted }
}

fn refused(sequence: u64) -> Checkpointed {
    Checkpointed { token: A, sequence, outcome: CheckpointOutcome::TooLarge }
}

fn reads(token: Token) -> Request {
    Request::Checkpoints { token }
}

#[test]
fn checkpoints_of_each_job_are_numbered_from_one() {
    let mut core = attached();
    core.store(A, "a1".into(), "first of a");
    core.store(B, "b1".into(), "first of b");
    assert_eq!(sent(&mut core), Some((1, 1, b"a1".to_vec())));
    assert_eq!(sent(&mut core), Some((2, 1, b"b1".to_vec())));
    assert_eq!(sent(&mut core), None);
    let answered = core.answered(&accepted(A, 1));
    assert_eq!(answered, Some(StoreAnswered { waiter: "first of a", length: 2 }));
    core.store(A, "a2".into(), "second of a");
    assert_eq!(sent(&mut core), Some((1, 2, b"a2".to_vec())));
    assert!(core.answered(&accepted(B, 1)).is_some());
}

#[test]
fn an_unanswered_checkpoint_is_resent_with_its_number() {
    let mut core = attached();
    core.store(A, "a1".into(), "first");
    let first = sent(&mut core);
    core.detached();
    assert_eq!(sent(&mut core), None, "there is no link");
    core.attached();
    assert_eq!(sent(&mut core), first);
    assert_eq!(sent(&mut core), None);
    assert!(core.answered(&accepted(A, 1)).is_some());
    assert_eq!(core.answered(&accepted(A, 1)), None, "a duplicate answer");
    core.store(A, "a2".into(), "second");
    assert_eq!(
        core.answered(&accepted(A, 1)),
        None,
        "an old answer does not match the next request"
    );
    assert_eq!(sent(&mut core), Some((1, 2, b"a2".to_vec())));
}

#[test]
fn requests_without_a_link_wait_for_one() {
    let mut core = Checkpoints::default();
    core.store(B, "b".into(), "b");
    core.store(A, "a".into(), "a");
    core.query(Token(3), reads(Token(3)), "c");
    assert!(!core.is_ready());
    core.attached();
    assert!(core.is_ready());
    assert_eq!(sent(&mut core), Some((1, 1, b"a".to_vec())));
    assert_eq!(sent(&mut core), Some((2, 1, b"b".to_vec())));
    assert_eq!(core.next_to_send(), Some(CheckpointRequest::Query(1, reads(Token(3)))));
    assert!(!core.is_ready());
}

#[test]
fn only_the_last_checkpoint_waits_behind_an_abandoned_one() {
    let mut core = attached();
    core.store(A, "1".into(), "abandoned");
    sent(&mut core);
    core.store(A, "2".into(), "abandoned, and never sent");
    core.store(A, "3".into(), "waiting");
    assert_eq!(sent(&mut core), None, "one at a time");
    assert!(core.answered(&accepted(A, 1)).is_some());
    assert_eq!(sent(&mut core), Some((1, 2, b"3".to_vec())));
    assert_eq!(core.answered(&accepted(A, 2)).map(|a| a.waiter), Some("waiting"));
}

#[test]
fn a_refused_checkpoint_does_not_use_up_its_number() {
    let mut core = attached();
    core.store(A, "1".into(), "refused");
    sent(&mut core);
    assert!(core.answered(&refused(1)).is_some());
    core.store(A, "2".into(), "taken");
    assert_eq!(sent(&mut core), Some((1, 1, b"2".to_vec())));
}

#[test]
fn an_oversized_checkpoint_is_truncated_in_memory() {
    let mut core = attached();
    core.store(A, vec![0; 10 * CHECKPOINT_BYTES_MAX].into(), "too large");
    assert_eq!(sent(&mut core).unwrap().2.len(), CHECKPOINT_BYTES_MAX + 1);
}

#[test]
fn removing_a_job_returns_its_waiters() {
    let mut core = attached();
    assert_eq!(core.remove(A), None);
    core.store(A, "1".into(), "under way");
    core.store(A, "2".into(), "next");
    core.query(A, reads(A), "reading");
    let waiters = Waiters { stores: vec!["under way", "next"], reads: vec!["reading"] };
    assert_eq!(core.remove(A), Some(waiters));
    assert_eq!(core.next_to_send(), None);
    assert_eq!(core.answered(&accepted(A, 1)), None);
    assert_eq!(core.remove(A), None);
}

#[test]
fn a_query_waits_for_the_checkpoint_in_flight() {
    let mut core = attached();
    core.store(A, "1".into(), "abandoned");
    sent(&mut core);
    core.query(A, reads(A), "reading");
    assert_eq!(core.next_to_send(), None);
    core.answered(&accepted(A, 1)).unwrap();
    assert_eq!(core.next_to_send(), Some(CheckpointRequest::Query(1, reads(A))));
    assert_eq!(
        core.query_answered(1),
        Some(QueryAnswered { token: A, waiter: "reading", own_count: 1 })
    );
    assert_eq!(core.query_answered(1), None);
}

#[test]
fn an_unanswered_query_is_resent_with_a_new_number() {
    let mut core = attached();
    core.query(A, reads(A), "abandoned");
    assert_eq!(core.next_to_send(), Some(CheckpointRequest::Query(1, reads(A))));
    core.query(A, reads(A), "reading");
    assert_eq!(core.next_to_send(), Some(CheckpointRequest::Query(2, reads(A))));
    assert_eq!(core.query_answered(1), None, "the answer to the abandoned query");
    core.attached();
    assert_eq!(core.next_to_send(), Some(CheckpointRequest::Query(3, reads(A))));
    assert_eq!(core.query_answered(2), None);
    assert_eq!(core.query_answered(3).map(|answered| answered.waiter), Some("reading"));
}

#[test]
fn queries_beyond_the_limit_of_a_link_wait() {
    let mut core = attached();
    let most = REQUESTS_OPEN_MAX as u64;
    for token in 1..=most + 1 {
        core.query(Token(token), reads(Token(token)), "x");
        core.query(Token(token), reads(Token(token)), "x, once more");
    }
    for number in 1..=most {
        assert_eq!(
            core.next_to_send(),
            Some(CheckpointRequest::Query(number, reads(Token(number))))
        );
    }
    assert!(!core.is_ready());
    assert_eq!(core.next_to_send(), None);
    core.query_answered(7).unwrap();
    assert!(core.is_ready());
    assert_eq!(
        core.next_to_send(),
        Some(CheckpointRequest::Query(most + 1, reads(Token(most + 1))))
    );
}
