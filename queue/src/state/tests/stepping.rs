//! What a command looks at does not grow with what it leaves alone. Steps are counted, not time.

use longshore_protocol::messages::work::{Action, Filter, NewSettle, Pace, Selection};
use longshore_protocol::{EnqueueOutcome, JobState, LinkId, NewJob, Refusal};

use super::story::*;
use crate::Rules;
use crate::command::Command;
use crate::outcome::Reply;
use crate::state::steps;

fn small_steps() -> Story {
    Story::with_rules(Rules { step_jobs: 10, ..Rules::STANDARD })
}

/// Acts on the jobs that ended from then on and before now, step by step; what each step has looked at.
fn act_by_age(story: &mut Story, action: Action, state: JobState, from: u64) -> Vec<u64> {
    let mut filter = Filter::of(glob(QUEUE)).in_state(Some(state));
    (filter.ended_from, filter.ended_before) = (Some(from), Some(story.now.wall_ms));
    let mut looked_at = Vec::new();
    loop {
        let (link, selection) = (LinkId(900), Selection::Matching(filter.clone()));
        let pace = None::<Pace>;
        steps::taken();
        let out = story.apply(Command::Act { link, request: 1, action, selection, pace });
        looked_at.push(steps::taken());
        let Some((_, Reply::Acted { report, .. })) = out.replies.last() else {
            panic!("no answer")
        };
        if !report.more {
            return looked_at;
        }
    }
}

#[test]
fn an_act_by_age_passes_over_older_dead_letters_once() {
    let mut story = small_steps();
    story.fill(1..=150);
    let (worker, handed) = story.worker("a", QUEUE, 150);
    let bury = |story: &mut Story, nth: std::ops::Range<usize>| {
        for handed in &handed[nth] {
            story.settle(worker, handed.token, &NewSettle::Bury(error("of this")));
        }
    };
    bury(&mut story, 0..100);
    let from = story.later(1).now.wall_ms;
    bury(&mut story, 100..150);
    story.later(1);
    let looked_at = act_by_age(&mut story, Action::Drop, JobState::Dead, from);
    assert_eq!(looked_at.len(), 5);
    assert!(looked_at[0] >= 100, "{looked_at:?}");
    assert!(looked_at[1..].iter().all(|&rows| rows <= 11), "{looked_at:?}");
    assert_eq!(story.counts().dead, 100, "the older ones");
    // A younger age goes on from there, an older one begins anew, and both find what is there.
    let younger = act_by_age(&mut story, Action::Drop, JobState::Dead, from + 1);
    assert_eq!(younger, [0]);
    let all = act_by_age(&mut story, Action::Drop, JobState::Dead, 1);
    assert_eq!((all.len(), story.counts().dead), (10, 0));
}

#[test]
fn an_act_by_age_passes_over_older_ended_jobs_once() {
    let mut story = small_steps();
    story.fill(1..=150);
    let cancel = |story: &mut Story, numbers: std::ops::RangeInclusive<u32>| {
        story.act(Action::Cancel, Selection::Ids(numbers.map(id).collect()));
    };
    cancel(&mut story, 1..=100);
    let from = story.later(1).now.wall_ms;
    cancel(&mut story, 101..=150);
    story.later(1);
    let looked_at = act_by_age(&mut story, Action::Drop, JobState::Cancelled, from);
    assert_eq!(looked_at.len(), 5);
    assert!(looked_at[0] >= 100, "{looked_at:?}");
    assert!(looked_at[1..].iter().all(|&rows| rows <= 11), "{looked_at:?}");
    assert_eq!(story.counts().cancelled, 100);
}

#[test]
fn two_acts_by_age_that_take_turns_pass_over_older_jobs_once_each() {
    let mut story = small_steps();
    story.fill(1..=200);
    let cancel = |story: &mut Story, numbers: std::ops::RangeInclusive<u32>| {
        story.act(Action::Cancel, Selection::Ids(numbers.map(id).collect()));
    };
    cancel(&mut story, 1..=100);
    let older = story.later(1).now.wall_ms;
    cancel(&mut story, 101..=150);
    let younger = story.later(1).now.wall_ms;
    cancel(&mut story, 151..=200);
    story.later(1);
    let before = story.now.wall_ms;
    let mut step = |from| {
        let mut filter = Filter::of(glob(QUEUE)).in_state(Some(JobState::Cancelled));
        (filter.ended_from, filter.ended_before) = (Some(from), Some(before));
        let (link, selection) = (LinkId(900), Selection::Matching(filter));
        steps::taken();
        let (action, pace) = (Action::Drop, None::<Pace>);
        story.apply(Command::Act { link, request: 1, action, selection, pace });
        steps::taken()
    };
    let looked_at: Vec<u64> =
        (0..8).map(|n| step(if n % 2 == 0 { younger } else { older })).collect();
    assert!(looked_at[0] >= 150 && looked_at[1] >= 100, "{looked_at:?}");
    assert!(looked_at[2..].iter().all(|&rows| rows <= 11), "{looked_at:?}");
    assert_eq!(story.counts().cancelled, 120);
}

#[test]
fn losing_a_link_costs_the_same_in_a_large_group() {
    let mut story = Story::begin();
    let links: Vec<LinkId> = (0..200).map(|n| story.worker(&format!("w{n}"), QUEUE, 1).0).collect();
    for (lost, link) in [links[0], links[199], links[100]].into_iter().enumerate() {
        steps::taken();
        story.apply(Command::LinkLost { link });
        assert!(steps::taken() <= 1, "the {lost}th");
    }
    // Turns go on in their order, without those that left.
    story.fill(1..=3);
    let holders: Vec<LinkId> = story.state.running().map(|lease| lease.link).collect();
    assert_eq!(holders, links[1..4]);
}

#[test]
fn a_session_more_is_refused_once_answers_take_their_memory_and_none_is_let_go_of() {
    let rules = Rules { answer_bytes: 3_000, jobs_per_queue: 1, ..Rules::STANDARD };
    let mut story = Story::with_rules(rules);
    let producer = story.link("producer");
    // Every other job is of a queue that is not served: no two outcomes in a row are the same.
    let elsewhere = |number: u32| NewJob { path: path("/elsewhere"), ..plain(number) };
    let jobs: Vec<NewJob> =
        (0..100).map(|n| if n % 2 == 0 { plain(1) } else { elsewhere(1_000 + n) }).collect();
    for _ in 0..64 {
        let outcomes = story.enqueue(producer, &jobs);
        assert_eq!(outcomes[1], EnqueueOutcome::Refused(Refusal::NotHere));
    }
    let kept = story.state.sessions.answer_bytes;
    assert!((6_400..16_000).contains(&kept), "a byte for each outcome, and a little: {kept}");
    let first = receipts(&story.send(producer, batch(1, &jobs))).expect("the first is kept");
    assert_eq!((first.len(), first.iter().next()), (100, Some(EnqueueOutcome::Created)));
    let (_, out) = story.attach("another", &[]);
    let Some((_, Reply::LinkRefused { reason })) = out.replies.first() else { panic!("{out:?}") };
    assert!(reason.contains("of at most 0 MiB") && reason.contains("an hour"), "{reason}");
    let (_, out) = story.attach("producer", &[]);
    assert!(matches!(&out.replies[..], [(_, Reply::Attached(_))]), "one that is known comes back");
    // An hour after its link it is forgotten, and there is room.
    let link = story.state.next_link();
    story.apply(Command::LinkLost { link: LinkId(link.0 - 1) });
    story.later(3_600_000).apply(Command::Tick);
    assert_eq!(story.state.sessions.answer_bytes, 0);
    let (_, out) = story.attach("another", &[]);
    assert!(matches!(&out.replies[..], [(_, Reply::Attached(_))]));
}
