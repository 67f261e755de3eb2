//! Queues that somebody pauses, and lets go on.

use longshore_protocol::limits::PAUSES_MAX;
use longshore_protocol::messages::work::{
    Action, NewSettle, Order, PauseReport, RequestError, Sources, Waiting,
};
use longshore_protocol::{
    Due, EnqueueOutcome, Gate, Glob, JobOptions, JobState, LinkId, NewJob, QueueSettings, Refusal,
    SettleOutcome,
};

use super::sources::sources;
use super::story::*;
use crate::command::Command;
use crate::outcome::{Outcomes, Reply};
use crate::state::State;

const CLOSED: EnqueueOutcome = EnqueueOutcome::Refused(Refusal::QueueClosed);

impl Story {
    pub(super) fn pause(&mut self, pattern: &str) -> (PauseReport, Outcomes) {
        let (report, out) = self.stop(Gate::Delivery, pattern, true);
        (report.expect("there is room for a pause"), out)
    }

    pub(super) fn resume(&mut self, pattern: &str) -> (PauseReport, Outcomes) {
        let (report, out) = self.stop(Gate::Delivery, pattern, false);
        (report.expect("a resumption is never refused"), out)
    }

    fn close(&mut self, pattern: &str) -> PauseReport {
        self.stop(Gate::Enqueue, pattern, true).0.expect("there is room for a closing")
    }

    fn open(&mut self, pattern: &str) -> PauseReport {
        self.stop(Gate::Enqueue, pattern, false).0.expect("an opening is never refused")
    }

    fn stop(
        &mut self,
        gate: Gate,
        pattern: &str,
        paused: bool,
    ) -> (Result<PauseReport, RequestError>, Outcomes) {
        let (link, pattern) = (LinkId(900), glob(pattern));
        let out = self.apply(Command::Pause { link, request: 5, gate, pattern, paused });
        let Some((LinkId(900), Reply::Paused { request: 5, report })) = out.replies.first() else {
            panic!("a pause is answered first, and to the one who asked")
        };
        (report.clone(), out)
    }
}

fn at(number: u32, text: &str) -> NewJob {
    NewJob { path: path(text), ..plain(number) }
}

fn report(queues: u64, changed: bool, still_by: &[&str]) -> PauseReport {
    let still_by = still_by.iter().map(|text| glob(text)).collect();
    PauseReport { queues, changed, still_by }
}

fn waiting(out: &Outcomes) -> Vec<Waiting> {
    let told = out.replies.iter().filter_map(|(_, reply)| match reply {
        Reply::Waiting(waiting) => Some(*waiting),
        _ => None,
    });
    told.collect()
}

#[test]
fn a_paused_queue_goes_on_accepting_and_a_closed_one_on_delivering() {
    let mut story = Story::begin();
    story.fill(1..=1);
    story.pause(QUEUE);
    story.close("/jobs/other");
    let producer = story.link("producer");
    let (a, handed) = story.worker("a", "/jobs/*", 9);
    assert!(handed.is_empty());
    let outcomes = story.enqueue(producer, &[plain(1), plain(2), at(3, "/jobs/other")]);
    assert_eq!(outcomes, [EnqueueOutcome::Existing, EnqueueOutcome::Created, CLOSED]);
    assert_eq!((story.counts().ready, story.is_kept(3)), (2, false));
    assert_eq!(story.close(QUEUE), report(1, true, &[]));
    let (_, out) = story.resume(QUEUE);
    assert_eq!(numbers(&story, &out.handed), [1, 2], "what it has");
    // What runs in a closed queue comes back as ever, and a dead one may be replaced there.
    let (_, out) = story.settle(a, out.handed[0].token, &NewSettle::Release);
    assert_eq!(out.handed.len(), 1);
    assert_eq!(story.enqueue(producer, &[plain(2), plain(4)]), [EnqueueOutcome::Existing, CLOSED]);
    assert_eq!(story.open(QUEUE), report(1, true, &[]));
    assert_eq!(story.enqueue(producer, &[plain(4)]), [EnqueueOutcome::Created]);
}

#[test]
fn a_closing_refuses_the_whole_of_an_atomic_batch() {
    let mut story = Story::begin();
    story.fill(1..=1);
    story.close("/jobs/m*");
    let producer = story.link("producer");
    let out = story.send(producer, atomic(1, &[at(2, "/jobs/other"), plain(3), at(4, "/jobs/mm")]));
    let others = EnqueueOutcome::Refused(Refusal::BatchRefused);
    let outcomes: Vec<_> = receipts(&out).unwrap().iter().collect();
    assert_eq!(outcomes, [others, CLOSED, CLOSED]);
    assert!(out.queues_made.is_empty() && !story.is_kept(2));
    assert_eq!(receipts(&story.send(producer, atomic(1, &[]))).unwrap().iter().count(), 3);
}

#[test]
fn a_queue_that_would_be_closed_is_not_made() {
    let mut story = Story::begin();
    story.close("/jobs/**");
    story.close("/elsewhere");
    let bytes = story.state.snapshot_bytes();
    story.state = State::restore(&bytes).unwrap();
    assert_eq!(story.state.snapshot_bytes(), bytes);
    let producer = story.link("producer");
    let out = story.send(producer, batch(1, &[plain(1), at(2, "/elsewhere"), at(3, "/jobs/sys")]));
    let outcomes: Vec<_> = receipts(&out).unwrap().iter().collect();
    let not_here = EnqueueOutcome::Refused(Refusal::NotHere);
    assert_eq!(outcomes, [CLOSED, not_here, CLOSED]);
    assert!(out.queues_made.is_empty());
    assert_eq!(story.close("/jobs/mail"), report(0, true, &["/jobs/**"]));
    assert_eq!(story.open("/jobs/**"), report(0, true, &[]), "a pattern stands for queues");
    assert_eq!(story.enqueue(producer, &[plain(1)]), [CLOSED], "by the other pattern, still");
    story.open("/jobs/mail");
    assert_eq!(story.enqueue(producer, &[plain(1)]), [EnqueueOutcome::Created]);
}

#[test]
fn a_queue_that_is_made_while_its_pattern_is_stopped_is_stopped_from_the_start() {
    let mut story = Story::begin();
    story.pause("/jobs/**");
    story.close("/jobs/n*");
    let (changes, reset) = (QueueSettings::default(), false);
    let (link, request, path) = (LinkId(900), 6, path("/jobs/new"));
    let out = story.apply(Command::Configure { link, request, path, changes, reset });
    assert_eq!(out.queues_made.len(), 1, "its settings may be set before it is opened");
    let stat = story.stat_of("/jobs/new");
    assert_eq!((stat.paused_by, stat.closed_by), (vec![glob("/jobs/**")], vec![glob("/jobs/n*")]));
    let producer = story.link("producer");
    assert_eq!(story.enqueue(producer, &[at(1, "/jobs/new")]), [CLOSED]);
    assert_eq!(story.open("/jobs/n*"), report(1, true, &[]));
    assert_eq!(story.enqueue(producer, &[at(1, "/jobs/new")]), [EnqueueOutcome::Created]);
    assert!(story.worker("a", "/jobs/*", 1).1.is_empty());
    assert_eq!(story.resume("/jobs/**").1.handed.len(), 1);
}

#[test]
fn a_paused_queue_hands_out_nothing_until_it_goes_on() {
    let mut story = Story::begin();
    story.fill(1..=3);
    story.pause(QUEUE);
    let (a, handed) = story.worker("a", QUEUE, 2);
    assert!(handed.is_empty());
    assert_eq!(story.counts().ready, 3, "they wait as they did");
    let (_, out) = story.resume(QUEUE);
    assert_eq!(numbers(&story, &out.handed), [1, 2]);
    assert_eq!(out.handed[0].link, a);
}

#[test]
fn all_but_taking_and_handing_out_goes_on_while_paused() {
    let mut story = Story::begin();
    story.fill(1..=6);
    let producer = story.link("producer");
    let later = JobOptions { due: Due::After(500), ..JobOptions::default() };
    story.enqueue(producer, &[with(7, later)]);
    let (a, handed) = story.worker("a", QUEUE, 9);
    let (tokens, _): (Vec<_>, Vec<_>) = handed.iter().map(|h| (h.token, h.queue)).unzip();
    story.pause(QUEUE);
    assert_eq!(story.complete(a, tokens[0]), SettleOutcome::Accepted);
    for (nth, verdict) in [(1, fail()), (2, NewSettle::Release), (3, NewSettle::Snooze { ms: 50 })]
    {
        let (outcome, out) = story.settle(a, tokens[nth], &verdict);
        assert_eq!((outcome, out.handed.len()), (SettleOutcome::Accepted, 0));
    }
    assert_eq!(story.act_on(Action::Cancel, 5).done, 1);
    assert!(story.expire(tokens[5], true).handed.is_empty());
    let out = story.later(20 * 60_000).apply(Command::Tick);
    assert!(out.handed.is_empty(), "retry, snooze and delay have come due, and wait");
    let ready: Vec<u32> = (1..=7).filter(|&n| story.state_of(n) == JobState::Ready).collect();
    assert_eq!(ready, [2, 3, 4, 6, 7]);
    let (_, out) = story.resume(QUEUE);
    assert_eq!(numbers(&story, &out.handed), [2, 3, 4], "the credits that are left, oldest first");
}

#[test]
fn a_resumption_takes_just_its_own_pattern_away() {
    let mut story = Story::begin();
    story.fill_path("/jobs/a/x", 1..=1);
    story.fill_path("/jobs/a/y", 2..=2);
    story.fill_path("/jobs/b", 3..=3);
    assert_eq!(story.pause("/jobs/**").0, report(3, true, &[]));
    assert_eq!(story.pause("/jobs/a/*").0, report(2, true, &["/jobs/**"]));
    assert_eq!(story.pause("/jobs/{a/x,none}").0, report(1, true, &["/jobs/**", "/jobs/a/*"]));
    let none = report(0, true, &["/jobs/**", "/jobs/{a/x,none}"]);
    assert_eq!(story.pause("/jobs/none").0, none, "for a queue that may come");
    assert_eq!(story.pause("/jobs/a/*").0, report(2, false, &["/jobs/**", "/jobs/{a/x,none}"]));
    let (_, handed) = story.worker("a", "/jobs/**", 10);
    assert!(handed.is_empty());

    assert_eq!(story.resume("/jobs/a/x").0, report(1, false, &PAUSES_OF_X));
    assert_eq!(paused_by(&story, "/jobs/a/x"), PAUSES_OF_X.map(glob));
    let (went_on, out) = story.resume("/jobs/**");
    assert_eq!(went_on, report(3, true, &["/jobs/a/*", "/jobs/{a/x,none}"]));
    assert_eq!(numbers(&story, &out.handed), [3]);
    let (went_on, out) = story.resume("/jobs/a/*");
    assert_eq!(went_on, report(2, true, &["/jobs/{a/x,none}"]));
    assert_eq!(numbers(&story, &out.handed), [2]);
    let (went_on, out) = story.resume("/jobs/{a/x,none}");
    assert_eq!(went_on, report(1, true, &[]));
    assert_eq!(numbers(&story, &out.handed), [1]);
    assert!(paused_by(&story, "/jobs/a/x").is_empty());
}

const PAUSES_OF_X: [&str; 3] = ["/jobs/**", "/jobs/a/*", "/jobs/{a/x,none}"];

fn paused_by(story: &Story, text: &str) -> Vec<Glob> {
    story.stat_of(text).paused_by
}

#[test]
fn pauses_outlive_restarts_and_snapshots() {
    let mut story = Story::begin();
    story.fill(1..=2);
    story.pause("/jobs/*");
    story.start();
    story.state = State::restore(&story.state.snapshot_bytes()).unwrap();
    let (_, handed) = story.worker("a", QUEUE, 5);
    assert!(handed.is_empty());
    story.fill(3..=3);
    let (went_on, out) = story.resume("/jobs/*");
    assert_eq!((went_on, out.handed.len()), (report(1, true, &[]), 3));
}

#[test]
fn a_paused_source_stands_back_and_its_turn_comes_again() {
    let (high, low) = ("/jobs/high", "/jobs/low");
    for (order, before, after) in [
        (Order::Strict, [1, 2, 3, 4], [11, 12, 13, 14]),
        (Order::Weighted, [1, 2, 3, 4], [11, 12, 13, 5]),
        (Order::Age, [1, 2, 3, 4], [5, 6, 7, 8]),
    ] {
        let mut story = Story::begin();
        story.fill_path(low, 1..=9);
        story.fill_path(high, 11..=19);
        story.pause(high);
        let (a, handed) = story.taker("a", sources(order, &[(high, 3), (low, 1)]), 4);
        assert_eq!(numbers(&story, &handed), before, "{order:?}");
        story.resume(high);
        let mut found = story.credit(a, 1, 4);
        found.sort_by_key(|handed| std::cmp::Reverse(handed.queue));
        assert_eq!(numbers(&story, &found), after, "{order:?}");
    }
}

#[test]
fn a_paused_queues_jobs_do_not_wait_for_credit() {
    let mut story = Story::begin();
    story.fill(1..=3);
    story.fill_path("/jobs/other", 11..=12);
    story.pause(QUEUE);
    let link = story.link("a");
    let sources = Sources::one(glob("/jobs/**"));
    let out = story.apply(Command::Subscribe { link, subscription: 1, sources });
    assert_eq!(waiting(&out), [Waiting { subscription: 1, jobs: 2 }]);
    story.credit(link, 1, 2);
    let (_, out) = story.resume(QUEUE);
    assert_eq!(waiting(&out), [Waiting { subscription: 1, jobs: 3 }]);
}

#[test]
fn there_are_only_so_many_pauses_and_one_more_is_refused() {
    let mut story = Story::begin();
    story.fill(1..=1);
    for n in 0..PAUSES_MAX {
        assert!(story.pause(&format!("/jobs/{n}")).0.changed);
    }
    let (refused, _) = story.stop(Gate::Delivery, QUEUE, true);
    assert_eq!(refused, Err(RequestError::TooManyPauses));
    assert_eq!(story.worker("a", QUEUE, 1).1.len(), 1, "nothing was paused");
    assert!(story.close(QUEUE).changed, "closings have a room of their own");
    assert!(!story.pause("/jobs/7").0.changed, "one that is there needs no room");
    story.resume("/jobs/7");
    assert!(story.pause(QUEUE).0.changed);
}

#[test]
fn a_pause_of_queues_that_are_not_there_yet_is_named_to_whoever_asks_for_one_of_them() {
    let mut story = Story::begin();
    story.pause("/orders/**");
    assert_eq!(story.resume("/orders/eu").0, report(0, false, &["/orders/**"]));
    assert_eq!(story.resume("/orders/*").0, report(0, false, &[]), "a pattern stands for queues");
    assert_eq!(story.state.pauses().map(Glob::as_str).collect::<Vec<_>>(), ["/orders/**"]);
    assert_eq!(story.resume("/orders/**").0, report(0, true, &[]));
    assert_eq!(story.state.pauses().len(), 0);
}
