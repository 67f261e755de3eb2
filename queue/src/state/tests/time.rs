//! What time does, and in what steps.

use longshore_protocol::{Due, JobOptions, JobState};

use super::story::*;
use crate::Rules;
use crate::command::Command;

fn after(number: u32, ms: u64) -> longshore_protocol::NewJob {
    with(number, JobOptions { due: Due::After(ms), ..JobOptions::default() })
}

#[test]
fn due_jobs_become_ready_in_bounded_steps() {
    let mut story = Story::with_rules(Rules { step_jobs: 3, ..Rules::STANDARD });
    let producer = story.link("producer");
    let jobs: Vec<_> = (1..=8).map(|n| after(n, 100)).collect();
    story.enqueue(producer, &jobs);
    assert_eq!(story.state.next_due(story.now), Some(story.now.mono_ms + 100));
    story.later(100);
    for ready in [3, 6, 8] {
        assert!(story.state.next_due(story.now).unwrap() <= story.now.mono_ms);
        story.apply(Command::Tick);
        assert_eq!(story.counts().ready, ready);
    }
    assert!(story.state.next_due(story.now).is_none_or(|due| due > story.now.mono_ms));
}

#[test]
fn a_delay_counts_in_monotonic_time_and_an_appointment_in_wall_time() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    let at = story.now.wall_ms + 1_000;
    let jobs = [after(1, 1_000), with(2, JobOptions { due: Due::At(at), ..Default::default() })];
    story.enqueue(producer, &jobs);
    story.now.wall_ms += 1_000;
    assert_eq!(story.state.next_due(story.now), Some(story.now.mono_ms));
    story.apply(Command::Tick);
    assert_eq!((story.state_of(1), story.state_of(2)), (JobState::Scheduled, JobState::Ready));
    story.now.wall_ms -= 50_000;
    story.now.mono_ms += 1_000;
    story.apply(Command::Tick);
    assert_eq!(story.state_of(1), JobState::Ready);
    let past = JobOptions { due: Due::At(1), ..Default::default() };
    story.enqueue(producer, &[after(3, 0), with(4, past)]);
    assert_eq!(story.counts().ready, 4, "what is due already is ready at once");
}

#[test]
fn monotonic_time_never_falls_whatever_a_command_says() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    story.now.mono_ms -= 500;
    story.enqueue(producer, &[after(1, 100)]);
    assert_eq!(story.state.last_now().mono_ms, story.now.mono_ms + 500);
    assert_eq!(story.state.next_due(story.now), Some(story.now.mono_ms + 600));
}

#[test]
fn completed_jobs_are_kept_a_day() {
    let mut story = Story::with_rules(Rules { step_jobs: 2, ..Rules::STANDARD });
    story.fill(1..=5);
    let (a, handed) = story.worker("a", QUEUE, 5);
    for handed in &handed {
        story.complete(a, handed.token);
        story.later(1);
    }
    let day = 24 * 3_600_000;
    story.later(day - 6).apply(Command::Tick);
    assert_eq!(story.counts().completed, 5);
    for (ms, left) in [(1, 4), (4, 2), (0, 0)] {
        story.later(ms).apply(Command::Tick);
        assert_eq!(story.counts().completed, left);
    }
}

#[test]
fn the_newest_ended_jobs_are_kept_up_to_a_number() {
    let mut story = Story::with_rules(Rules { ended_per_queue: 3, ..Rules::STANDARD });
    story.fill(1..=5);
    let (a, handed) = story.worker("a", QUEUE, 5);
    handed.iter().for_each(|handed| {
        story.complete(a, handed.token);
    });
    let kept: Vec<_> = (1..=5).filter(|&number| story.is_kept(number)).collect();
    assert_eq!(kept, [3, 4, 5]);
    let stat = &story.state.queue_stats(&glob(QUEUE), story.now)[0];
    assert_eq!((stat.completed, stat.counts.completed), (5, 3), "ever, and kept");
}

#[test]
fn the_oldest_ready_job_tells_how_long_it_has_waited() {
    let mut story = Story::begin();
    story.fill(1..=1);
    story.later(500);
    let producer = story.link("producer");
    story.enqueue(producer, &[plain(2)]);
    let oldest =
        |story: &Story| story.state.queue_stats(&glob(QUEUE), story.now)[0].oldest_ready_ms;
    assert_eq!(oldest(&story), Some(500));
    let (_, handed) = story.worker("a", QUEUE, 1);
    assert_eq!(oldest(&story), Some(0));
    story.later(70);
    story.expire(handed[0].token, false);
    assert_eq!(oldest(&story), Some(70));
}
