//! Warming replicas: their negative answers are checked with another one.

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::*;

#[test]
fn a_negative_answer_of_a_warming_replica_is_checked_with_another() {
    for provisional in [NOT_FOUND, BY_DEFAULT] {
        let mut scenario = Scenario::new(3, 7);
        let begun = scenario.now;
        scenario.ask(1, 1);
        scenario.linked();
        let warming = scenario.replica();
        scenario.answer(false, provisional);
        assert!(scenario.finished.is_empty());
        assert_ne!(scenario.replica(), warming);
        scenario.linked();
        scenario.answer(true, NOT_FOUND);
        let (complete, answers) = scenario.complete();
        assert!(complete);
        // A default is accepted once a complete replica has been asked.
        assert_eq!(answers.len(), 1);
        assert_eq!(scenario.now, begun, "no failure and no wait");
    }
}

#[test]
fn a_positive_answer_of_a_warming_replica_is_accepted() {
    let mut scenario = Scenario::new(3, 7);
    scenario.ask(1, 1);
    scenario.linked();
    scenario.answer(false, FOUND);
    assert_eq!(scenario.complete(), (false, vec![found(false)]));
    assert_eq!(scenario.dialled.len(), 1);
}

/// How many publishers the answer to each path has.
fn publishers(answers: &[PathAnswer]) -> Vec<usize> {
    let publishers = |answer: &PathAnswer| match answer {
        PathAnswer::Publishers { set, .. } => set.len(),
        _ => 0,
    };
    answers.iter().map(publishers).collect()
}

#[test]
fn a_complete_answer_replaces_the_positive_one_of_a_warming_replica() {
    let mut scenario = Scenario::new(2, 7);
    scenario.ask(1, 2);
    scenario.linked();
    let (id, _) = scenario.requests.remove(0);
    scenario.received(resolved(id, true, false, vec![FOUND, NOT_FOUND]));
    scenario.linked();
    let (id, _) = scenario.requests.remove(0);
    scenario.received(resolved(id, true, true, vec![BOTH_FOUND, FOUND]));
    let (complete, answers) = scenario.complete();
    assert_eq!((complete, publishers(&answers)), (true, vec![2, 1]));
}

#[test]
fn a_question_for_all_publishers_leaves_a_warming_replica() {
    let mut scenario = Scenario::new(2, 7);
    scenario.ask_for(1, 1, true);
    scenario.linked();
    let warming = scenario.replica();
    scenario.answer(false, FOUND);
    assert!(scenario.finished.is_empty());
    assert_ne!(scenario.replica(), warming);
    scenario.linked();
    scenario.answer(true, BOTH_FOUND);
    let (complete, answers) = scenario.complete();
    assert_eq!((complete, publishers(&answers)), (true, vec![2]));

    // Without a complete replica, the publishers that are known are better than none.
    let mut scenario = Scenario::new(2, 7);
    scenario.ask_for(1, 1, true);
    for _ in 0..2 {
        scenario.linked();
        scenario.answer(false, FOUND);
    }
    assert_eq!(scenario.complete(), (false, vec![found(false)]));
}

#[test]
fn when_all_replicas_are_warming_or_down_the_answer_is_incomplete() {
    for seed in 0..50 {
        let mut scenario = Scenario::new(3, seed);
        scenario.ask(1, 2);
        for _ in 0..2 {
            scenario.linked();
            let (id, _) = scenario.requests.remove(0);
            scenario.received(resolved(id, true, false, vec![NOT_FOUND, FOUND]));
            assert!(scenario.finished.is_empty());
        }
        scenario.unlinked("refused");
        assert_eq!(scenario.complete(), (false, vec![PathAnswer::NotFound, found(false)]));
        assert_eq!(scenario.dialled.iter().collect::<BTreeSet<_>>().len(), 3);
    }
}

/// The link is left because one batch waits for another replica; but first the replica answers the
/// requests of the others.
#[test]
fn a_batch_that_waits_for_another_replica_does_not_hold_up_others() {
    let mut scenario = Scenario::new(2, 7);
    // More than may be in flight; the first is answered, and doubtful.
    for batch in 1..=10 {
        scenario.ask(batch, 1);
    }
    scenario.linked();
    scenario.answer(false, NOT_FOUND);
    scenario.ask(11, 1);
    for _ in 2..=10 {
        assert!(!scenario.closed);
        scenario.answer(true, FOUND);
    }
    assert!(scenario.closed, "no answer is awaited");
    assert_eq!(scenario.finished.len(), 9);
    scenario.finished.clear();
    scenario.linked();
    assert_eq!(scenario.requests.len(), 2, "later batches are sent there too");
}

/// Batches asked while a link is to be left go over it all the same, if the batch it is left for is
/// forgotten.
#[test]
fn a_link_that_is_not_left_after_all_takes_later_batches() {
    let mut scenario = Scenario::new(2, 7);
    scenario.ask(1, 1);
    scenario.ask(2, 2);
    scenario.linked();
    scenario.answer(false, NOT_FOUND);
    scenario.ask(3, 3);
    assert_eq!(scenario.requests.len(), 1);
    scenario.step(Event::Forget { batch: 1 });
    let lengths: Vec<usize> = scenario.requests.iter().map(|(_, paths)| *paths).collect();
    assert_eq!((lengths, scenario.dialled.len()), (vec![2, 3], 1));
}

/// Batches at any time, replicas that warm, refuse links or crash: before a batch ends with a
/// doubtful answer, each replica was tried; and each batch ends.
#[test]
fn no_batch_ends_in_doubt_before_every_replica_was_tried() {
    (0..2_000).for_each(doubts_end);
}

fn doubts_end(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let replicas = random.random_range(2..5);
    let mut scenario = Scenario::new(replicas, seed);
    // By batch, which has as many paths as its number: the replicas that have answered, or failed
    // since it was asked.
    let mut chances: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
    let batches = random.random_range(1..25);
    for event in 0.. {
        assert!(event < 5_000, "seed {seed}: {:?} do not end", chances.keys());
        let outstanding = chances.len() as u64 + scenario.finished.len() as u64;
        if outstanding == batches && chances.is_empty() {
            break;
        }
        match random.random_range(0..6) {
            0 | 1 if outstanding < batches => {
                chances.insert(outstanding + 1, BTreeSet::new());
                scenario.ask(outstanding + 1, outstanding as usize + 1);
            }
            // The oldest request is answered, or a later one.
            2 | 3 if !scenario.requests.is_empty() => {
                let at = random.random_range(0..scenario.requests.len());
                let (id, paths) = scenario.requests.remove(at);
                let answer = if random.random_bool(0.1) { FOUND } else { NOT_FOUND };
                let link = scenario.sent_over[&id];
                chances.get_mut(&(paths as u64)).unwrap().insert(scenario.links[&link]);
                let message = resolved(id, true, false, vec![answer; paths]);
                scenario.step(Event::Received { link, message });
            }
            4 if !scenario.links.is_empty() => {
                let replica = scenario.links[&scenario.link()];
                chances.values_mut().for_each(|had| had.extend([replica]));
                scenario.unlinked("it is down");
            }
            5 if !scenario.links.is_empty() => scenario.linked(),
            _ => {
                if let Some(deadline) = scenario.core.next_deadline()
                    && scenario.requests.is_empty()
                {
                    scenario.now = scenario.now.max(deadline);
                    scenario.step(Event::Tick);
                }
            }
        }
        for (batch, answer) in &scenario.finished {
            let Some(had) = chances.remove(batch) else { continue };
            let Ok(Answer::Resolved(resolution)) = answer else { continue };
            let no = resolution.answers.contains(&PathAnswer::NotFound);
            assert!(!no || had.len() == replicas, "seed {seed}: batch {batch} had only {had:?}");
        }
    }
}
