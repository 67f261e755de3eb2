//! Batches of jobs: receipts, ids, sequence numbers, refusals.

use bytes::Bytes;
use longshore_protocol::messages::work::NewSettle;
use longshore_protocol::{
    BatchRefusal, EnqueueOutcome, JobOptions, JobState, NewJob, Refusal, SettleOutcome, Token,
};

use super::story::*;
use crate::Rules;
use crate::command::Command;
use crate::outcome::Reply;

use EnqueueOutcome::{Created, Existing, Refused};

fn at(number: u32, text: &str) -> NewJob {
    NewJob { path: path(text), ..plain(number) }
}

fn other_payload(number: u32) -> NewJob {
    NewJob { payload: Bytes::from_static(b"another payload"), ..plain(number) }
}

#[test]
fn the_same_id_again_is_the_same_job_and_another_payload_a_conflict() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    assert_eq!(story.enqueue(producer, &[plain(1)]), [Created]);
    let again = [plain(1), other_payload(1), at(1, "/jobs/other"), plain(2), plain(2)];
    let conflict = Refused(Refusal::IdConflict);
    assert_eq!(story.enqueue(producer, &again), [Existing, conflict, Existing, Created, Existing]);
    assert_eq!(story.counts().ready, 2);
    assert_eq!(story.state.totals().queues, 1, "an existing job makes no queue");
}

#[test]
fn an_id_stays_taken_as_long_as_its_job_is_kept() {
    let rules = Rules { ended_per_queue: 1, ..Rules::STANDARD };
    let mut story = Story::with_rules(rules);
    story.fill(1..=2);
    let (a, handed) = story.worker("a", QUEUE, 2);
    let producer = story.link("producer");
    story.complete(a, handed[0].token);
    assert_eq!(story.enqueue(producer, &[plain(1)]), [Existing]);
    story.complete(a, handed[1].token);
    assert!(!story.is_kept(1), "the newest one is kept");
    assert_eq!(story.enqueue(producer, &[plain(1), plain(2)]), [Created, Existing]);
}

#[test]
fn a_thousand_producers_race_one_id_and_one_wins() {
    let mut story = Story::begin();
    let mut created = 0;
    for n in 0..1_000 {
        let producer = story.link(&format!("p{n}"));
        created += usize::from(story.enqueue(producer, &[plain(1)]) == [Created]);
    }
    assert_eq!((created, story.counts().ready), (1, 1));
}

#[test]
fn batches_come_without_a_gap_and_resent_ones_are_recognised() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    let mut send = |sequence, number| {
        receipts(&story.send(producer, batch(sequence, &[plain(number)])))
            .map(|outcomes| outcomes.iter().collect::<Vec<_>>())
    };
    assert_eq!(send(2, 2), Err(BatchRefusal::UnknownProducer), "nobody knows what 1 was");
    assert_eq!(send(0, 2), Err(BatchRefusal::Malformed));
    assert_eq!(send(1, 1), Ok(vec![Created]));
    assert_eq!(send(3, 3), Err(BatchRefusal::SequenceGap));
    assert_eq!(send(1, 1), Ok(vec![Created]));
    for sequence in 2..=65 {
        assert_eq!(send(sequence, sequence as u32), Ok(vec![Created]));
    }
    assert_eq!(send(2, 2), Ok(vec![Created]), "the last 64 are kept");
    assert_eq!(send(1, 1), Err(BatchRefusal::UnknownProducer), "the one before is not");
    assert_eq!(story.counts().ready, 65);
}

#[test]
fn a_producer_is_known_for_an_hour_after_its_link() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    story.enqueue(producer, &[plain(1)]);
    story.apply(Command::LinkLost { link: producer });
    story.later(3_599_999).apply(Command::Tick);
    let producer = story.link("producer");
    assert_eq!(story.enqueue(producer, &[plain(2)]), [Created]);
    story.apply(Command::LinkLost { link: producer });
    story.tick_when_due();
    let (producer, out) = story.attach("producer", &[]);
    let Reply::Attached(attached) = &out.replies[0].1 else { panic!("a link is answered") };
    assert_eq!(attached.next_batch, 1, "it is new here");
    let refused = receipts(&story.send(producer, batch(3, &[plain(3)])));
    assert_eq!(refused, Err(BatchRefusal::UnknownProducer));
}

#[test]
fn one_refusal_refuses_an_atomic_batch_and_the_batch_is_answered_as_such() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    let jobs = [plain(1), at(2, "/elsewhere/x"), plain(1), other_payload(1), at(5, "/jobs/new")];
    let batch_refused = Refused(Refusal::BatchRefused);
    let expected = [
        batch_refused,
        Refused(Refusal::NotHere),
        batch_refused,
        Refused(Refusal::IdConflict),
        batch_refused,
    ];
    let first = receipts(&story.send(producer, atomic(1, &jobs))).unwrap();
    assert_eq!(first.iter().collect::<Vec<_>>(), expected);
    assert_eq!((story.state.totals().jobs, story.state.totals().queues), (0, 0));
    assert_eq!(receipts(&story.send(producer, atomic(1, &jobs))).unwrap(), first);
    let good = [plain(1), plain(1), at(5, "/jobs/new")];
    let taken = receipts(&story.send(producer, atomic(2, &good))).unwrap();
    assert_eq!(taken.iter().collect::<Vec<_>>(), [Created, Existing, Created]);
}

#[test]
fn jobs_go_where_the_start_says_and_nowhere_else() {
    let mut story = Story::begin();
    story.start_at(&["/one/two"], &["/jobs", "/deep/er"]);
    let producer = story.link("producer");
    let not_here = Refused(Refusal::NotHere);
    for (number, (text, outcome)) in (1..).zip([
        ("/one/two", Created),
        ("/one/two/three", not_here),
        ("/one", not_here),
        ("/jobs", Created),
        ("/jobs/a/b", Created),
        ("/jobsx", not_here),
        ("/deep", not_here),
        ("/deep/er/still", Created),
        ("/sys/x", Refused(Refusal::Reserved)),
        ("/", Refused(Refusal::BadPath)),
    ]) {
        assert_eq!(story.enqueue(producer, &[at(number, text)]), [outcome], "{text}");
    }
}

#[test]
fn a_default_at_the_root_takes_every_path_but_the_reserved_ones() {
    let mut story = Story::begin();
    story.start_at(&[], &["/"]);
    let producer = story.link("producer");
    let jobs = [at(1, "/anything"), at(2, "/sys/x"), at(3, "/")];
    let refused = [Refused(Refusal::Reserved), Refused(Refusal::BadPath)];
    assert_eq!(story.enqueue(producer, &jobs), [Created, refused[0], refused[1]]);
}

#[test]
fn a_queue_that_is_no_longer_named_is_served_and_takes_no_more() {
    let mut story = Story::begin();
    story.fill(1..=1);
    story.start_at(&[], &["/other"]);
    let producer = story.link("producer");
    let outcomes = story.enqueue(producer, &[plain(1), plain(2)]);
    assert_eq!(outcomes, [Existing, Refused(Refusal::NotHere)]);
    let (a, handed) = story.worker("a", QUEUE, 1);
    assert_eq!(story.complete(a, handed[0].token), SettleOutcome::Accepted);
}

#[test]
fn full_queues_too_many_queues_and_too_many_sessions_are_refused() {
    let rules = Rules { jobs_per_queue: 2, queues: 2, sessions: 2, ..Rules::STANDARD };
    let mut story = Story::with_rules(rules);
    let producer = story.link("producer");
    let full = Refused(Refusal::QueueFull);
    let jobs = [plain(1), plain(2), plain(3), at(4, "/jobs/b"), at(5, "/jobs/c")];
    let outcomes = story.enqueue(producer, &jobs);
    let too_many = Refused(Refusal::TooManyQueues);
    assert_eq!(outcomes, [Created, Created, full, Created, too_many]);
    let (a, handed) = story.worker("a", QUEUE, 1);
    let (_, out) = story.attach("third", &[]);
    assert!(matches!(out.replies[0].1, Reply::LinkRefused { .. }));
    story.complete(a, handed[0].token);
    assert_eq!(story.enqueue(producer, &[plain(3)]), [Created], "an ended job takes no room");
    story.apply(Command::LinkLost { link: a });
    let (_, out) = story.attach("third", &[]);
    assert!(matches!(out.replies[0].1, Reply::Attached(_)), "the idle one makes room");
}

#[test]
fn an_atomic_batch_that_would_overfill_is_refused_as_a_whole() {
    let rules = Rules { jobs_per_queue: 2, queues: 2, ..Rules::STANDARD };
    let mut story = Story::with_rules(rules);
    let producer = story.link("producer");
    let batch_refused = Refused(Refusal::BatchRefused);
    let jobs = [plain(1), plain(2), plain(3)];
    let answer = receipts(&story.send(producer, atomic(1, &jobs))).unwrap();
    let expected = [batch_refused, batch_refused, Refused(Refusal::QueueFull)];
    assert_eq!(answer.iter().collect::<Vec<_>>(), expected);
    let jobs = [at(1, "/jobs/a"), at(2, "/jobs/b"), at(3, "/jobs/a"), at(4, "/jobs/c")];
    let answer = receipts(&story.send(producer, atomic(2, &jobs))).unwrap();
    assert_eq!(answer.iter().last(), Some(Refused(Refusal::TooManyQueues)));
    assert_eq!(story.state.totals().jobs, 0);
}

#[test]
fn a_result_is_kept_if_the_job_asked_for_it_and_refused_over_its_limit() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    let keeps = JobOptions { keep_result: true, ..JobOptions::default() };
    story.enqueue(producer, &[with(1, keeps), plain(2)]);
    let (a, handed) = story.worker("a", QUEUE, 2);
    let large = NewSettle::Complete { result: Some(vec![0; (1 << 20) + 1].into()) };
    let (outcome, out) = story.settle(a, handed[0].token, &large);
    assert_eq!(outcome, SettleOutcome::ResultTooLarge);
    assert!(out.ended.is_empty());
    assert_eq!(story.state_of(1), JobState::Running, "the lease still runs");
    let result = NewSettle::Complete { result: Some(Bytes::from_static(b"42")) };
    for handed in &handed {
        let (outcome, out) = story.settle(a, handed.token, &result);
        assert_eq!((outcome, out.ended), (SettleOutcome::Accepted, vec![handed.token]));
    }
    let kept = story.job(1).result.expect("it asked for it");
    let (_, _, settle) = &story.log[kept.index as usize - 1];
    let (head, raw) = settle.encode();
    let body = [head, raw].concat();
    let (from, to) = (kept.at as usize, (kept.at + kept.length) as usize);
    assert_eq!(&body[from..to], b"42");
    assert_eq!(story.job(2).result, None);
}

#[test]
fn an_entry_is_found_where_the_log_has_it() {
    let mut story = Story::begin();
    story.fill(1..=3);
    let entry = story.job(2).entry;
    let (_, _, command) = &story.log[entry.index as usize - 1];
    let (head, raw) = command.encode();
    let body = Bytes::from([head, raw].concat());
    let entry = body.slice(entry.at as usize..(entry.at + entry.length) as usize);
    let read = longshore_protocol::Entry::read(entry).unwrap();
    assert_eq!((read.id, read.payload), (id(2), plain(2).payload));
}

#[test]
fn settles_may_come_with_gaps_and_out_of_order_and_old_ones_are_forgotten() {
    let mut story = Story::begin();
    story.fill(1..=100);
    let (a, handed) = story.worker("a", QUEUE, 100);
    let done = NewSettle::Complete { result: None };
    let mut send = |sequence: u64, token: Token| {
        let out = story.send_settles(a, settles(sequence, &[(token, done.clone())]));
        settled(&out).outcomes.iter().collect::<Vec<_>>()
    };
    let accepted = vec![SettleOutcome::Accepted];
    assert_eq!(send(70, handed[0].token), accepted);
    assert_eq!(send(7, handed[1].token), accepted, "within the last 64, and new");
    assert_eq!(send(7, handed[2].token), accepted, "the answer of before");
    assert_eq!(send(6, handed[2].token), [], "too old to be told from a resent one");
    assert_eq!(story.state.job(&id(3), story.now).unwrap().info.state, JobState::Running);
    assert_eq!(story.counts().completed, 2);
}
