//! What becomes of leases over restarts, resumptions, and deliveries that come to nothing.

use longshore_protocol::messages::work::NewSettle;
use longshore_protocol::{
    DeathReason, Durability, Epoch, JobOptions, JobState, PublisherId, SettleOutcome, Token,
};

use super::story::*;
use crate::Rules;
use crate::command::{Command, Expired, Secret, Start};
use crate::outcome::Reply;

#[test]
fn a_restart_of_the_publisher_costs_no_attempt_and_leases_resume_over_it() {
    let mut story = Story::begin();
    story.fill(1..=2);
    let (_, handed) = story.worker("a", QUEUE, 2);
    story.start();
    let running: Vec<_> = story.state.running().collect();
    assert_eq!(
        running.iter().map(|lease| lease.token).collect::<Vec<_>>(),
        [handed[0].token, handed[1].token]
    );
    let (link, out) = story.attach("a", &[handed[0].token, handed[1].token]);
    assert_eq!(out.moved, [(handed[0].token, link), (handed[1].token, link)]);
    story.start();
    let restart =
        Expired { token: handed[1].token, started: true, restart: true, timed_out: false };
    story.apply(Command::Expire { leases: vec![restart] });
    assert_eq!((story.state_of(2), story.job(2).info.attempt), (JobState::Ready, 0));
}

#[test]
fn tokens_rise_over_every_restart_by_more_than_a_run_can_lose() {
    let mut story = Story::begin();
    story.fill(1..=2);
    let (_, first) = story.worker("a", QUEUE, 1);
    story.start();
    let (_, second) = story.worker("b", QUEUE, 1);
    assert!(second[0].token.0 >= first[0].token.0 + (1 << 32));
}

#[test]
fn a_resumption_names_the_tokens_that_are_gone() {
    let mut story = Story::begin();
    story.fill(1..=2);
    let (_, of_a) = story.worker("a", QUEUE, 1);
    let (_, of_b) = story.worker("b", QUEUE, 1);
    let (_, out) = story.attach("a", &[of_b[0].token, Token(5), of_a[0].token]);
    let attached = out.replies.iter().find_map(|(_, reply)| match reply {
        Reply::Attached(attached) => Some(attached.clone()),
        _ => None,
    });
    assert_eq!(attached.unwrap().gone.0, [of_b[0].token, Token(5)]);
    assert_eq!(out.moved.len(), 1);
}

#[test]
fn deliveries_that_are_never_started_end_in_the_dead_letters() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    let once = JobOptions { max_attempts: Some(1), ..JobOptions::default() };
    let often = JobOptions { max_attempts: Some(20), ..JobOptions::default() };
    story.enqueue(producer, &[with(1, once)]);
    let (link, mut handed) = story.worker("a", QUEUE, 1);
    for _ in 1..30 {
        assert_eq!(story.state_of(1), JobState::Running);
        story.expire(handed[0].token, false);
        handed = story.credit(link, 1, 1);
    }
    story.expire(handed[0].token, false);
    assert_eq!(story.death_of(1), Some(DeathReason::Undeliverable));
    story.enqueue(producer, &[with(2, often)]);
    handed = story.credit(link, 1, 1);
    for _ in 1..60 {
        story.expire(handed[0].token, false);
        handed = story.credit(link, 1, 1);
    }
    assert_eq!(story.job(2).info.deliveries, 60);
    story.expire(handed[0].token, false);
    assert_eq!(story.death_of(2), Some(DeathReason::Undeliverable));
}

#[test]
fn a_job_that_cannot_be_read_back_is_buried_and_the_rest_goes_on() {
    let mut story = Story::begin();
    story.fill(1..=2);
    let (a, handed) = story.worker("a", QUEUE, 2);
    let out = story.apply(Command::Damaged { token: handed[0].token });
    assert_eq!(out.ended, [handed[0].token]);
    assert_eq!(story.death_of(1), Some(DeathReason::PayloadDamaged));
    assert_eq!(story.complete(a, handed[1].token), SettleOutcome::Accepted);
}

#[test]
fn commands_of_links_that_are_gone_change_nothing() {
    let mut story = Story::begin();
    story.fill(1..=1);
    let (a, handed) = story.worker("a", QUEUE, 1);
    story.attach("a", &[handed[0].token]);
    let before = story.state.rows.held;
    let done = settles(1, &[(handed[0].token, NewSettle::Complete { result: None })]);
    assert!(story.send_settles(a, done).replies.is_empty());
    assert!(story.send(a, batch(1, &[plain(2)])).replies.is_empty());
    assert!(story.credit(a, 1, 5).is_empty());
    assert!(story.subscribe(a, 2, QUEUE).replies.is_empty());
    story.apply(Command::Unsubscribe { link: a, subscription: 1 });
    story.apply(Command::LinkLost { link: a });
    assert_eq!((story.state.rows.held, story.state_of(1)), (before, JobState::Running));
}

#[test]
fn a_first_start_after_everything_was_lost_gives_no_token_of_the_runs_before() {
    for (epoch, first) in [(1, (1 << 32) + 1), (2, 2 << 32), (70, 70 << 32)] {
        let mut story = Story::empty();
        story.apply(Command::Start(Start {
            publisher: PublisherId([7; 16]),
            epoch: Epoch(epoch),
            boot: [1; 16],
            secret: Secret([0x5e; 16]),
            rules: Box::new(Rules::STANDARD),
            durability: Durability::Fsync,
            paths: Vec::new(),
            defaults: vec![path("/jobs")],
        }));
        story.fill(1..=1);
        let (_, handed) = story.worker("a", QUEUE, 1);
        assert_eq!(handed[0].token, Token(first), "epoch {epoch}");
    }
}
