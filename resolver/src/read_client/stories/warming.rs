//! Replicas that are warming: another is asked before their "no" is believed.

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::*;

#[test]
fn a_no_of_a_warming_replica_is_asked_of_another_before_it_is_believed() {
    for doubtful in [NOT_FOUND, BY_DEFAULT] {
        let mut story = Story::new(3, 7);
        let begun = story.now;
        story.ask(1, 1);
        story.linked();
        let warming = story.replica();
        story.answer(false, doubtful);
        assert!(story.finished.is_empty());
        assert_ne!(story.replica(), warming);
        story.linked();
        story.answer(true, NOT_FOUND);
        let (complete, answers) = story.complete();
        assert!(complete);
        // Somebody's default, told by whoever knows it, is believed once a complete replica has been asked.
        assert_eq!(answers.len(), 1);
        assert_eq!(story.now, begun, "nobody has failed; nobody waits");
    }
}

#[test]
fn a_yes_of_a_warming_replica_is_believed() {
    let mut story = Story::new(3, 7);
    story.ask(1, 1);
    story.linked();
    story.answer(false, FOUND);
    assert_eq!(story.complete(), (false, vec![found(false)]));
    assert_eq!(story.dialled.len(), 1);
}

#[test]
fn when_all_are_warming_or_down_the_answer_says_that_it_is_incomplete() {
    for seed in 0..50 {
        let mut story = Story::new(3, seed);
        story.ask(1, 2);
        for _ in 0..2 {
            story.linked();
            let (id, _) = story.requests.remove(0);
            story.told(resolved(id, true, false, vec![NOT_FOUND, FOUND]));
            assert!(story.finished.is_empty());
        }
        story.unlinked("refused");
        assert_eq!(story.complete(), (false, vec![PathAnswer::NotFound, found(false)]));
        assert_eq!(story.dialled.iter().collect::<BTreeSet<_>>().len(), 3);
    }
}

/// A link is left because one batch waits for another replica; what it was to be asked for others, it is asked first.
#[test]
fn a_batch_that_waits_for_another_replica_does_not_keep_others_from_this_one() {
    let mut story = Story::new(2, 7);
    // More than are on their way at once; the first is answered, and doubted.
    for batch in 1..=10 {
        story.ask(batch, 1);
    }
    story.linked();
    story.answer(false, NOT_FOUND);
    story.ask(11, 1);
    for _ in 2..=10 {
        assert!(!story.hung_up);
        story.answer(true, FOUND);
    }
    assert!(story.hung_up, "it owes nothing");
    assert_eq!(story.finished.len(), 9);
    story.finished.clear();
    story.linked();
    assert_eq!(story.requests.len(), 2, "what came later is asked there too");
}

/// What is asked while a link is to be left goes over it all the same, if whom it is left for no longer waits.
#[test]
fn a_link_that_is_not_left_after_all_takes_what_was_asked_meanwhile() {
    let mut story = Story::new(2, 7);
    story.ask(1, 1);
    story.ask(2, 2);
    story.linked();
    story.answer(false, NOT_FOUND);
    story.ask(3, 3);
    assert_eq!(story.requests.len(), 1);
    story.step(Input::Forget { batch: 1 });
    let lengths: Vec<usize> = story.requests.iter().map(|(_, paths)| *paths).collect();
    assert_eq!((lengths, story.dialled.len()), (vec![2, 3], 1));
}

/// Batches that come at any time, replicas that warm, refuse links or crash: before a batch is told "perhaps", each replica has had its
/// chance to know better; and each batch ends.
#[test]
fn no_batch_ends_in_doubt_before_every_replica_has_had_its_chance() {
    (0..2_000).for_each(doubts_end);
}

fn doubts_end(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let replicas = random.random_range(2..5);
    let mut story = Story::new(replicas, seed);
    // By batch, which has as many paths as its number says: the replicas that have answered, or failed since it was asked.
    let mut chances: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
    let batches = random.random_range(1..25);
    for event in 0.. {
        assert!(event < 5_000, "seed {seed}: {:?} do not end", chances.keys());
        let asked = chances.len() as u64 + story.finished.len() as u64;
        if asked == batches && chances.is_empty() {
            break;
        }
        match random.random_range(0..6) {
            0 | 1 if asked < batches => {
                chances.insert(asked + 1, BTreeSet::new());
                story.ask(asked + 1, asked as usize + 1);
            }
            // The oldest request is answered, or a later one.
            2 | 3 if !story.requests.is_empty() => {
                let at = random.random_range(0..story.requests.len());
                let (id, paths) = story.requests.remove(at);
                let answer = if random.random_bool(0.1) { FOUND } else { NOT_FOUND };
                let link = story.sent_over[&id];
                chances.get_mut(&(paths as u64)).unwrap().insert(story.links[&link]);
                let message = resolved(id, true, false, vec![answer; paths]);
                story.step(Input::Told { link, message });
            }
            4 if !story.links.is_empty() => {
                let replica = story.links[&story.link()];
                chances.values_mut().for_each(|had| had.extend([replica]));
                story.unlinked("it is down");
            }
            5 if !story.links.is_empty() => story.linked(),
            _ => {
                if let Some(deadline) = story.core.next_deadline()
                    && story.requests.is_empty()
                {
                    story.now = story.now.max(deadline);
                    story.step(Input::Tick);
                }
            }
        }
        for (batch, answer) in &story.finished {
            let Some(had) = chances.remove(batch) else { continue };
            let Ok(Answer::Resolved(resolution)) = answer else { continue };
            let no = resolution.answers.contains(&PathAnswer::NotFound);
            assert!(!no || had.len() == replicas, "seed {seed}: batch {batch} had only {had:?}");
        }
    }
}
