//! How long ended jobs stay, and what a queue's settings do to them.

use longshore_protocol::messages::work::{Action, NewSettle, Selection};
use longshore_protocol::{JobChange, JobOptions, LinkId, NewJob, QueueSettings, Refusal};

use super::story::*;
use crate::Rules;
use crate::command::Command;
use crate::outcome::{Outcomes, Reply};
use crate::state::State;

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

fn keep_ms(ms: u64) -> QueueSettings {
    QueueSettings { keep_ms: Some(ms), ..QueueSettings::default() }
}

fn keep_jobs(jobs: u64) -> QueueSettings {
    QueueSettings { keep_jobs: Some(jobs), ..QueueSettings::default() }
}

fn kept_for(number: u32, ms: u64) -> NewJob {
    with(number, JobOptions { keep_ms: Some(ms), ..JobOptions::default() })
}

fn configure_at(
    story: &mut Story,
    text: &str,
    changes: QueueSettings,
    reset: bool,
) -> (Result<QueueSettings, Refusal>, Outcomes) {
    let (link, path) = (LinkId(77), path(text));
    let out = story.apply(Command::Configure { link, request: 5, path, changes, reset });
    match &out.replies[..] {
        [(LinkId(77), Reply::Configured { request: 5, result })] => (result.clone(), out),
        other => panic!("{other:?}"),
    }
}

fn configure(story: &mut Story, changes: QueueSettings) -> QueueSettings {
    configure_at(story, QUEUE, changes, false).0.expect("the queue is taken")
}

/// Enqueues the jobs and cancels them in their order, a millisecond apart.
fn end(story: &mut Story, jobs: &[NewJob]) {
    let producer = story.link("producer");
    story.enqueue(producer, jobs);
    for job in jobs {
        story.act(Action::Cancel, Selection::Ids(vec![job.id]));
        story.later(1);
    }
}

fn ids(numbers: std::ops::RangeInclusive<u32>) -> Selection {
    Selection::Ids(numbers.map(id).collect())
}

fn kept(story: &Story) -> Vec<u32> {
    (1..=20).filter(|&number| story.is_kept(number)).collect()
}

#[test]
fn a_job_that_says_how_long_it_is_kept_holds_up_no_other() {
    let mut story = Story::begin();
    end(&mut story, &[kept_for(1, 100 * DAY_MS), plain(2), kept_for(3, 1_000), kept_for(4, 500)]);
    let begun = story.now.mono_ms - 4;
    for (number, goes_at) in [(4, begun + 3 + 500), (3, begun + 2 + 1_000), (2, begun + 1 + DAY_MS)]
    {
        story.later(goes_at - story.now.mono_ms - 1).apply(Command::Tick);
        assert!(story.is_kept(number), "job {number} went too early");
        assert_eq!(story.state.next_due(story.now), Some(goes_at));
        story.later(1).apply(Command::Tick);
        assert!(!story.is_kept(number));
    }
    assert_eq!(kept(&story), [1]);
}

#[test]
fn nothing_is_kept_of_a_job_or_a_queue_that_keeps_nothing() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    story.enqueue(producer, &[kept_for(1, 0), plain(2), kept_for(3, 5)]);
    let (_, out) = story.act(Action::Cancel, ids(1..=1));
    let told: Vec<_> = out.events.iter().map(|event| event.change).collect();
    assert_eq!(told, [JobChange::Cancelled, JobChange::Forgotten]);
    configure(&mut story, keep_ms(0));
    story.act(Action::Cancel, ids(2..=3));
    assert_eq!(kept(&story), [3], "the job's own word goes first");
    configure(&mut story, keep_jobs(0));
    story.fill(4..=4);
    story.act(Action::Cancel, ids(4..=4));
    assert_eq!(kept(&story), [3], "what ended before goes with the next tick");
    story.apply(Command::Tick);
    assert!(kept(&story).is_empty());
}

#[test]
fn by_number_the_queues_own_go_first_and_then_those_that_go_soonest() {
    let mut story = Story::begin();
    configure(&mut story, keep_jobs(3));
    end(&mut story, &[kept_for(1, DAY_MS), kept_for(2, 60_000), plain(3)]);
    end(&mut story, &[plain(4)]);
    assert_eq!(kept(&story), [1, 2, 4]);
    end(&mut story, &[kept_for(5, DAY_MS)]);
    assert_eq!(kept(&story), [1, 2, 5]);
    end(&mut story, &[kept_for(6, DAY_MS)]);
    assert_eq!(kept(&story), [1, 5, 6]);
    end(&mut story, &[kept_for(7, 1_000)]);
    assert_eq!(kept(&story), [1, 5, 6], "it would go before all others");
}

#[test]
fn settings_hold_for_what_ended_before_them_in_bounded_steps() {
    let mut story = Story::with_rules(Rules { step_jobs: 3, ..Rules::STANDARD });
    let jobs: Vec<_> = (1..=10).map(plain).collect();
    end(&mut story, &jobs);
    configure(&mut story, keep_jobs(2));
    assert_eq!(kept(&story).len(), 10, "not in the command that says so");
    for left in [7, 4, 2] {
        assert_eq!(story.state.next_due(story.now), Some(story.now.mono_ms));
        story.apply(Command::Tick);
        assert_eq!(kept(&story).len(), left);
    }
    assert_eq!(kept(&story), [9, 10]);
    configure(&mut story, keep_ms(60_000));
    story.apply(Command::Tick);
    let until = |story: &Story| story.state.next_due(story.now).unwrap() - story.now.mono_ms;
    assert_eq!(until(&story), 60_000 - 2);
    configure(&mut story, keep_ms(120_000));
    story.apply(Command::Tick);
    assert_eq!(until(&story), 120_000 - 2, "a longer time holds too");
}

#[test]
fn a_queue_is_made_for_its_settings_and_they_change_one_by_one_or_all_at_once() {
    let mut story = Story::begin();
    let (set, out) = configure_at(&mut story, QUEUE, keep_ms(5), false);
    assert_eq!((set, out.queues_made), (Ok(keep_ms(5)), vec![path(QUEUE)]));
    let attempts = QueueSettings { max_attempts: Some(3), ..QueueSettings::default() };
    let both = QueueSettings { keep_ms: Some(5), ..attempts.clone() };
    assert_eq!(configure(&mut story, attempts.clone()), both);
    assert_eq!(story.state.queue_stats(&glob(QUEUE), story.now)[0].settings, both);
    story.fill(1..=1);
    assert_eq!(story.job(1).info.max_attempts, 3);
    assert_eq!(configure_at(&mut story, QUEUE, keep_ms(7), true).0, Ok(keep_ms(7)));
    assert_eq!(story.job(1).info.max_attempts, JobOptions::MAX_ATTEMPTS);
}

#[test]
fn settings_are_refused_where_jobs_are() {
    let mut story = Story::with_rules(Rules { queues: 1, ..Rules::STANDARD });
    let set = |story: &mut Story, text| configure_at(story, text, keep_ms(1), false).0;
    assert_eq!(set(&mut story, "/"), Err(Refusal::BadPath));
    assert_eq!(set(&mut story, "/sys/x"), Err(Refusal::Reserved));
    assert_eq!(set(&mut story, "/elsewhere"), Err(Refusal::NotHere));
    assert!(story.state.queue_paths().next().is_none(), "a refusal makes no queue");
    assert_eq!(set(&mut story, "/jobs/a"), Ok(keep_ms(1)));
    assert_eq!(set(&mut story, "/jobs/b"), Err(Refusal::TooManyQueues));
    story.start_at(&["/other"], &[]);
    assert_eq!(set(&mut story, "/jobs/a"), Err(Refusal::NotHere), "no longer served");
}

fn keep_dead(ms: u64) -> QueueSettings {
    QueueSettings { keep_dead_ms: Some(ms), ..QueueSettings::default() }
}

/// Jobs with those numbers die of that, now.
fn die(story: &mut Story, numbers: std::ops::RangeInclusive<u32>, of: &str) {
    let jobs = numbers.clone().count() as u32;
    story.fill(numbers.clone());
    let (worker, handed) = story.worker(&format!("worker of {}", numbers.start()), QUEUE, jobs);
    for handed in handed {
        story.settle(worker, handed.token, &NewSettle::Bury(error(of)));
    }
}

#[test]
fn dead_letters_stay_180_days_and_then_go_in_the_order_of_death() {
    let mut story = Story::begin();
    die(&mut story, 1..=2, "a");
    story.later(DAY_MS);
    die(&mut story, 3..=3, "b");
    story.later(DAY_MS);
    die(&mut story, 4..=4, "a");
    story.later(178 * DAY_MS - 1).apply(Command::Tick);
    assert_eq!(story.counts().dead, 4, "not a millisecond early");
    let bytes = story.state.snapshot_bytes();
    story.state = State::restore(&bytes).unwrap();
    for left in [2, 1, 0] {
        let out = story.tick_when_due();
        assert!(out.handed.is_empty());
        assert_eq!(story.counts().dead, left);
        assert_eq!(story.now.mono_ms, 1_000 + (182 - left) * DAY_MS);
    }
    assert_eq!(story.stat_of(QUEUE).died, 4, "what was counted stays counted");
}

#[test]
fn a_queue_sets_how_long_its_dead_letters_stay_those_that_are_there_too() {
    let mut story = Story::begin();
    die(&mut story, 1..=2, "a");
    configure(&mut story, keep_dead(5_000));
    story.later(4_999).apply(Command::Tick);
    assert_eq!(story.counts().dead, 2);
    // A revived one does not go; when it dies again it stays for the whole time.
    assert_eq!(story.act_on(Action::Revive, 1).done, 1);
    let (worker, handed) = story.worker("again", QUEUE, 1);
    story.settle(worker, handed[0].token, &NewSettle::Bury(error("a")));
    story.later(1).apply(Command::Tick);
    assert!(story.is_kept(1) && !story.is_kept(2));
    story.later(4_998).apply(Command::Tick);
    assert!(story.is_kept(1));
    story.later(1).apply(Command::Tick);
    assert!(!story.is_kept(1));
    configure(&mut story, keep_dead(0));
    die(&mut story, 3..=3, "a");
    assert_eq!(
        (story.counts().dead, story.stat_of(QUEUE).died),
        (0, 4),
        "gone at once, and counted"
    );
}

#[test]
fn dead_letters_go_in_bounded_steps() {
    let mut story = Story::with_rules(Rules { step_jobs: 3, ..Rules::STANDARD });
    die(&mut story, 1..=7, "a");
    story.later(180 * DAY_MS);
    for left in [4, 1, 0] {
        assert!(story.state.next_due(story.now).is_some_and(|due| due <= story.now.mono_ms));
        story.apply(Command::Tick);
        assert_eq!(story.counts().dead, left);
    }
}
