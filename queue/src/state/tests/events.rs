//! What happened to a job, said once, in order, with where it stands since. That events and jobs never differ is checked after
//! every command of every story; here is what each change is called.

use longshore_protocol::messages::work::{Action, Filter, NewSettle, Selection};
use longshore_protocol::{Backoff, Due, JobChange, JobOptions, JobState};

use super::story::*;
use crate::Rules;
use crate::command::{Command, Expired};
use crate::outcome::Outcomes;
use JobState::{Cancelled, Completed, Dead, Ready, Running, Scheduled};

/// JobChange, state since, and attempt of each event.
fn told(out: &Outcomes) -> Vec<(JobChange, Option<JobState>, u16)> {
    out.events.iter().map(|event| (event.change, event.state, event.attempt)).collect()
}

fn policy(backoff: Backoff) -> JobOptions {
    JobOptions { backoff: Some(backoff), max_attempts: Some(2), ..JobOptions::default() }
}

#[test]
fn a_job_is_created_delivered_completed_and_forgotten() {
    let mut story = Story::begin();
    let (a, _) = story.worker("a", QUEUE, 1);
    let producer = story.link("producer");
    let out = story.send(producer, batch(1, &[plain(1), plain(2)]));
    let created = (JobChange::Created, Some(Ready), 0);
    assert_eq!(told(&out), [created, created, (JobChange::Delivered, Some(Running), 1)]);
    let (token, job) = (out.handed[0].token, out.events[2].job);
    assert_eq!(job, id(1));
    assert_eq!(story.state.path(out.events[2].queue), &path(QUEUE));
    let (_, out) = story.settle(a, token, &NewSettle::Complete { result: None });
    assert_eq!(told(&out), [(JobChange::Completed, Some(Completed), 1)]);
    assert_eq!(told(&story.tick_when_due()), [(JobChange::Forgotten, None, 1)]);
    let out = story.send(producer, batch(1, &[plain(1), plain(2)]));
    assert!(out.events.is_empty(), "said again, nothing happens");
}

#[test]
fn who_ends_a_job_over_the_limit_is_told_of_the_end_before_the_oldest_is_forgotten() {
    let mut story = Story::with_rules(Rules { ended_per_queue: 1, ..Rules::STANDARD });
    story.fill(1..=2);
    let (a, handed) = story.worker("a", QUEUE, 2);
    story.complete(a, handed[0].token);
    let (_, out) = story.settle(a, handed[1].token, &NewSettle::Complete { result: None });
    let expected = [(JobChange::Completed, Some(Completed), 1), (JobChange::Forgotten, None, 1)];
    assert_eq!(told(&out), expected);
    assert_eq!((out.events[0].job, out.events[1].job), (id(2), id(1)));
}

#[test]
fn scheduled_jobs_come_due_and_failures_say_what_follows() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    let later = JobOptions { due: Due::After(50), ..policy(Backoff::Fixed(10)) };
    let out = story.send(producer, batch(1, &[with(1, later)]));
    assert_eq!(told(&out), [(JobChange::Created, Some(Scheduled), 0)]);
    assert!(!out.events[0].retrying);
    let (a, _) = story.worker("a", QUEUE, 9);
    let out = story.tick_when_due();
    let delivered = |attempt| (JobChange::Delivered, Some(Running), attempt);
    assert_eq!(told(&out), [(JobChange::CameDue, Some(Ready), 0), delivered(1)]);
    let (_, out) = story.settle(a, out.handed[0].token, &fail());
    assert_eq!(told(&out), [(JobChange::Failed, Some(Scheduled), 1)]);
    assert!(out.events[0].retrying);
    let out = story.tick_when_due();
    assert_eq!(told(&out), [(JobChange::CameDue, Some(Ready), 1), delivered(2)]);
    let (_, out) = story.settle(a, out.handed[0].token, &fail());
    assert_eq!(told(&out), [(JobChange::Failed, Some(Dead), 2)]);

    story.enqueue(producer, &[with(2, policy(Backoff::Fixed(0)))]);
    let token = story.state.running().next().unwrap().token;
    let (_, out) = story.settle(a, token, &fail());
    assert_eq!(told(&out), [(JobChange::Failed, Some(Ready), 1), delivered(2)], "no wait");
}

#[test]
fn a_delivery_given_back_says_how() {
    let mut story = Story::begin();
    story.fill(1..=1);
    let (a, handed) = story.worker("a", QUEUE, 20);
    let delivered = (JobChange::Delivered, Some(Running), 1);
    let token = handed[0].token;
    let (_, out) = story.settle(a, token, &NewSettle::Release);
    assert_eq!(told(&out), [(JobChange::Released, Some(Ready), 0), delivered]);
    let (_, out) = story.settle(a, out.handed[0].token, &NewSettle::Snooze { ms: 0 });
    assert_eq!(told(&out), [(JobChange::Snoozed, Some(Ready), 0), delivered]);
    let out = story.expire(out.handed[0].token, false);
    assert_eq!(told(&out), [(JobChange::LeaseLost, Some(Ready), 0), delivered]);
    let token = out.handed[0].token;
    let restart = Expired { token, started: true, restart: true, timed_out: false };
    let out = story.apply(Command::Expire { leases: vec![restart] });
    assert_eq!(told(&out), [(JobChange::LeaseLost, Some(Ready), 0), delivered]);
    let (b, out) = story.attach("a", &[]);
    assert_eq!(told(&out), [(JobChange::LeaseLost, Some(Ready), 0)], "not listed by who resumes");
    story.subscribe(b, 1, QUEUE);
    let handed = story.credit(b, 1, 20);
    let (_, out) = story.settle(b, handed[0].token, &NewSettle::Snooze { ms: 5 });
    assert_eq!(told(&out), [(JobChange::Snoozed, Some(Scheduled), 0)]);
    let token = story.tick_when_due().handed[0].token;
    let out = story.expire(token, true);
    let second = (JobChange::Delivered, Some(Running), 2);
    assert_eq!(told(&out), [(JobChange::LeaseLost, Some(Ready), 1), second], "it had begun");
}

#[test]
fn every_way_into_the_dead_letters_has_its_name_and_so_have_the_ways_out() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    let once = JobOptions { max_attempts: Some(1), ..JobOptions::default() };
    let jobs: Vec<_> = (1..=4).map(|number| with(number, once.clone())).collect();
    story.enqueue(producer, &jobs);
    let (a, handed) = story.worker("a", QUEUE, 4);
    let (_, out) = story.settle(a, handed[0].token, &NewSettle::Bury(error("never")));
    assert_eq!(told(&out), [(JobChange::Buried, Some(Dead), 1)]);
    let out = story.apply(Command::Damaged { token: handed[1].token });
    assert_eq!(told(&out), [(JobChange::Damaged, Some(Dead), 0)]);
    let out = story.expire(handed[2].token, true);
    assert_eq!(told(&out), [(JobChange::LeaseLost, Some(Dead), 1)]);
    let (_, out) = story.act(Action::Cancel, Selection::Ids(vec![id(4)]));
    assert_eq!(told(&out), [(JobChange::Cancelled, Some(Cancelled), 1)]);
    let (_, out) = story.act(Action::Revive, Selection::Ids(vec![id(1)]));
    assert_eq!(told(&out), [(JobChange::Revived, Some(Ready), 0)]);
    let (_, out) = story.act(Action::Drop, Selection::Matching(Filter::of(glob(QUEUE))));
    assert_eq!(told(&out), [(JobChange::Dropped, None, 1), (JobChange::Dropped, None, 0)]);
}

#[test]
fn who_does_not_want_events_has_none() {
    let mut story = Story::begin();
    story.fill(1..=3);
    let mut out = Outcomes::default();
    let command = &story.log[2].2;
    let mut state = crate::state::State::new();
    for (index, now, command) in &story.log {
        state.apply(*index, *now, command, &mut out);
    }
    assert!(matches!(command, Command::Enqueue { .. }));
    assert!(out.events.is_empty() && state.totals().jobs == 3);
}
