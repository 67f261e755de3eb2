//! What tools do to jobs, named or by filter.

use longshore_protocol::messages::work::{ActOutcome, Action, Filter, Pace, Selection};
use longshore_protocol::{Due, JobOptions, JobState, LinkId, NewJob, QueueSettings, Token};

use super::story::*;
use crate::Rules;
use crate::command::Command;
use crate::outcome::Reply;
use JobState::{Cancelled, Completed, Dead, Expired, Prepared, Ready, Running, Scheduled};

/// Jobs 1 to 8, one in each state, in the order of `JobState`'s codes.
const STATES: [JobState; 8] =
    [Scheduled, Ready, Running, Completed, Dead, Cancelled, Prepared, Expired];

fn options(due: Due, prepared: bool, expires_at: Option<u64>) -> JobOptions {
    JobOptions { due, prepared, expires_at, ..JobOptions::default() }
}

/// A publisher with a job in each state, and the token of the one that runs.
fn one_in_each_state() -> (Story, LinkId, Token) {
    let mut story = Story::begin();
    let producer = story.link("producer");
    let later = options(Due::After(60_000), false, None);
    let past = options(Due::Now, false, Some(1));
    let never = options(Due::Now, true, None);
    story.enqueue(producer, &[with(1, later), with(7, never), with(8, past)]);
    story.fill(3..=6);
    let (worker, handed) = story.worker("a", QUEUE, 4);
    story.act_on(Action::Cancel, 6);
    story.complete(worker, handed[1].token);
    let bury = longshore_protocol::messages::work::NewSettle::Bury(error("no good"));
    story.settle(worker, handed[2].token, &bury);
    story.fill(2..=2);
    for (number, state) in (1..).zip(STATES) {
        assert_eq!(story.state_of(number), state);
    }
    (story, worker, handed[0].token)
}

fn ids(numbers: impl IntoIterator<Item = u32>) -> Selection {
    Selection::Ids(numbers.into_iter().map(id).collect())
}

fn all() -> Filter {
    Filter::of(glob(QUEUE))
}

/// To how many jobs it was done, and whether there are more.
fn act(story: &mut Story, action: Action, filter: Filter) -> (u64, bool) {
    let report = story.act(action, Selection::Matching(filter)).0;
    assert!(report.outcomes.is_empty(), "only named jobs have an outcome each");
    (report.done, report.more)
}

fn left(story: &Story) -> Vec<u32> {
    (1..=20).filter(|&number| story.is_kept(number)).collect()
}

#[test]
fn every_action_in_every_state_is_done_or_names_the_state_and_changes_nothing() {
    for (action, fits) in [
        (Action::Confirm, vec![Prepared]),
        (Action::Cancel, vec![Prepared, Scheduled, Ready, Running]),
        (Action::Revive, vec![Dead]),
        (Action::Drop, vec![Dead, Completed, Cancelled, Expired]),
    ] {
        for (number, state) in (1..).zip(STATES) {
            let (mut story, _, _) = one_in_each_state();
            let (counts, job) = (story.counts(), story.job(number));
            let report = story.act_on(action, number);
            let outcome = report.outcomes.iter().next();
            if fits.contains(&state) {
                assert_eq!((outcome, report.done), (Some(ActOutcome::Done), 1));
                assert_ne!(story.counts(), counts, "{action} of a {state} job");
                continue;
            }
            assert_eq!(outcome, Some(ActOutcome::NotInState(state)), "{action} of a {state} job");
            assert_eq!((report.done, report.refused), (0, 1));
            assert_eq!((story.counts(), story.job(number)), (counts, job));
        }
    }
}

#[test]
fn named_jobs_have_their_outcomes_in_their_order() {
    let (mut story, _, _) = one_in_each_state();
    let report = story.act(Action::Drop, ids([2, 99, 4, 5])).0;
    let outcomes: Vec<_> = report.outcomes.iter().collect();
    use ActOutcome::{Done, NotInState, Unknown};
    assert_eq!(outcomes, [NotInState(Ready), Unknown, Done, Done]);
    assert_eq!((report.done, report.refused, report.unknown, report.more), (2, 1, 1, false));
    assert!(!story.is_kept(4) && !story.is_kept(5));
}

#[test]
fn a_job_that_is_named_twice_is_previewed_as_it_goes() {
    use ActOutcome::{Done, NotInState, Unknown};
    let twice = |keep_ms: Option<u64>, action, number: u32| {
        let (mut story, ..) = one_in_each_state();
        let link = story.state.next_link();
        let changes = QueueSettings { keep_ms, ..QueueSettings::default() };
        let path = path(QUEUE);
        story.apply(Command::Configure { link, request: 1, path, changes, reset: false });
        let late = options(Due::Now, true, Some(1));
        let producer = story.link("another producer");
        story.enqueue(producer, &[with(9, late)]);
        // That the preview says the same is looked at by the act of the story.
        let (report, _) = story.act(action, ids([number, number]));
        let mut outcomes = report.outcomes.iter();
        assert_eq!(outcomes.next(), Some(Done), "{action:?} of {number}");
        outcomes.next().expect("each has one")
    };
    for open in [1, 2, 3, 7] {
        assert_eq!(twice(None, Action::Cancel, open), NotInState(Cancelled));
        assert_eq!(twice(Some(0), Action::Cancel, open), Unknown, "it is not kept");
    }
    assert_eq!(twice(None, Action::Revive, 5), NotInState(Ready));
    assert_eq!(twice(None, Action::Drop, 5), Unknown);
    for (number, keep_ms) in [(7, None), (7, Some(0)), (9, None)] {
        assert_eq!(twice(keep_ms, Action::Confirm, number), Done);
    }
    assert_eq!(twice(Some(0), Action::Confirm, 9), Unknown, "it expires, and is not kept");
}

#[test]
fn to_confirm_again_is_done_whatever_has_become_of_the_job() {
    let (mut story, _, _) = one_in_each_state();
    for end in [None, Some(Action::Cancel)] {
        if let Some(action) = end {
            story.act_on(action, 7);
        } else {
            story.act_on(Action::Confirm, 7);
        }
        let before = story.job(7);
        let (report, out) = story.act(Action::Confirm, ids([7]));
        assert_eq!((report.done, story.job(7)), (1, before));
        assert!(out.events.is_empty());
    }
    let snapshot = story.state.snapshot_bytes();
    story.state = crate::state::State::restore(&snapshot).expect("a snapshot");
    assert_eq!(story.act_on(Action::Confirm, 7).done, 1, "over a restart, too");
    assert_eq!(story.act_on(Action::Confirm, 2).refused, 1, "it never was prepared");
}

#[test]
fn a_filter_takes_what_fits_all_its_parts() {
    use longshore_protocol::DeathReason::{AttemptsExhausted, Buried};
    let none = (0, false);
    for (action, filter, done) in [
        (Action::Cancel, all(), 4),
        (Action::Cancel, all().in_state(Running), 1),
        (Action::Cancel, all().in_state(Dead), 0),
        (Action::Cancel, Filter { death: Some(Buried), ..all() }, 0),
        (Action::Cancel, Filter { ended_from: Some(0), ..all() }, 0),
        (Action::Confirm, all(), 1),
        (Action::Revive, Filter { death: Some(Buried), ..all() }, 1),
        (Action::Revive, Filter { death: Some(AttemptsExhausted), ..all() }, 0),
        (Action::Drop, all().in_state(Completed), 1),
        (Action::Drop, all().in_state(Expired), 1),
        (Action::Drop, Filter { death: Some(Buried), ..all() }.in_state(Completed), 0),
        (Action::Drop, Filter::of(glob("/jobs/other")), 0),
    ] {
        let (mut story, _, _) = one_in_each_state();
        assert_eq!(act(&mut story, action, filter.clone()), (done, false), "{filter:?}");
        assert_eq!(act(&mut story, action, filter), none, "once");
    }
}

#[test]
fn without_a_state_only_dead_letters_are_dropped() {
    let (mut story, _, _) = one_in_each_state();
    assert_eq!(act(&mut story, Action::Drop, all()), (1, false));
    assert_eq!(left(&story), [1, 2, 3, 4, 6, 7, 8]);
    let old = Filter { ended_before: Some(u64::MAX), ..all() };
    assert_eq!(act(&mut story, Action::Drop, old), (0, false), "not even by age");
}

#[test]
fn ended_jobs_are_dropped_by_state_and_age_in_bounded_steps() {
    let mut story = Story::with_rules(Rules { step_jobs: 2, ..Rules::STANDARD });
    let producer = story.link("producer");
    let own = |number| with(number, JobOptions { keep_ms: Some(9_000), ..JobOptions::default() });
    let jobs: Vec<NewJob> = (1..=5).map(plain).chain((6..=8).map(own)).collect();
    story.enqueue(producer, &jobs);
    let begun = story.now.wall_ms;
    for number in [1, 6, 2, 7, 3, 8, 4, 5] {
        story.act_on(Action::Cancel, number);
        story.later(10);
    }
    let cancelled = all().in_state(Cancelled);
    let old = Filter { ended_before: Some(begun + 40), ..cancelled.clone() };
    assert_eq!(act(&mut story, Action::Drop, old.clone()), (2, true));
    assert_eq!(act(&mut story, Action::Drop, old), (2, false));
    assert_eq!(left(&story), [3, 4, 5, 8], "those that ended at that time or later stay");
    let between =
        Filter { ended_from: Some(begun + 50), ended_before: Some(begun + 70), ..cancelled };
    assert_eq!(act(&mut story, Action::Drop, between), (2, false));
    assert_eq!(left(&story), [3, 5]);
    let young = Filter { ended_from: Some(begun + 41), ..all().in_state(Cancelled) };
    assert_eq!(act(&mut story, Action::Drop, young), (1, false));
    assert_eq!(left(&story), [3]);
}

#[test]
fn a_filter_cancels_in_bounded_steps_and_says_whether_there_are_more() {
    let mut story = Story::with_rules(Rules { step_jobs: 3, ..Rules::STANDARD });
    story.fill(1..=6);
    assert_eq!(act(&mut story, Action::Cancel, all()), (3, true));
    assert_eq!(act(&mut story, Action::Cancel, all()), (3, false), "that was all");
}

#[test]
fn who_is_revived_at_a_pace_becomes_ready_one_after_the_other() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    let prepared: Vec<_> = (1..=5).map(|n| with(n, options(Due::Now, true, None))).collect();
    story.enqueue(producer, &prepared);
    story.tick_when_due();
    assert_eq!(story.counts().dead, 5);
    let pace = Some(Pace { per_second: 3, before: 1 });
    let selection = ids(1..=4);
    let revive =
        Command::Act { link: LinkId(9), request: 2, action: Action::Revive, selection, pace };
    let out = story.apply(revive);
    let Reply::Acted { request: 2, report } = &out.replies[0].1 else { panic!("{out:?}") };
    assert_eq!(report.done, 4);
    let due = |number| story.job(number).info.due_at.map(|at| at - story.now.wall_ms);
    assert_eq!([1, 2, 3, 4].map(due), [Some(333), Some(666), Some(1_000), Some(1_333)]);
    assert_eq!((story.counts().scheduled, story.counts().retrying), (4, 0));
    let pace = Some(Pace { per_second: 3_000, before: 0 });
    let (action, selection) = (Action::Revive, Selection::Matching(all()));
    story.apply(Command::Act { link: LinkId(9), request: 3, action, selection, pace });
    assert_eq!(story.state_of(5), Ready, "the first at once");
    story.later(333).apply(Command::Tick);
    assert_eq!((story.state_of(1), story.state_of(2)), (Ready, Scheduled));
}

#[test]
fn a_revived_job_no_longer_expires() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    let at = story.now.wall_ms + 5_000;
    story.enqueue(producer, &[with(1, options(Due::Now, true, Some(at)))]);
    assert_eq!(story.job(1).info.expires_at, Some(at));
    story.tick_when_due();
    assert_eq!(story.state_of(1), Dead, "nobody looks at its time before it is confirmed");
    story.act_on(Action::Revive, 1);
    assert_eq!((story.state_of(1), story.job(1).info.expires_at), (Ready, None));
    story.apply(Command::Tick);
    assert_eq!(story.state_of(1), Ready);
}

#[test]
fn a_confirmation_that_comes_too_late_lets_the_job_expire() {
    let mut story = Story::begin();
    let producer = story.link("producer");
    let at = story.now.wall_ms + 5_000;
    let jobs = [Due::Now, Due::After(9)].map(|due| options(due, true, Some(at)));
    story.enqueue(producer, &[with(1, jobs[0].clone()), with(2, jobs[1].clone())]);
    story.later(5_000).apply(Command::Tick);
    assert_eq!(story.state_of(1), Prepared);
    let (report, out) = story.act(Action::Confirm, ids([1, 2]));
    let told: Vec<_> = out.events.iter().map(|event| (event.change, event.state)).collect();
    use longshore_protocol::JobChange;
    let expired = (JobChange::Expired, Some(Expired));
    let confirmed = |state| (JobChange::Confirmed, Some(state));
    assert_eq!(told, [confirmed(Ready), expired, confirmed(Scheduled), expired]);
    assert_eq!((report.done, story.counts().expired), (2, 2));
}

#[test]
fn a_running_job_that_is_cancelled_is_taken_from_its_worker() {
    let (mut story, worker, token) = one_in_each_state();
    let (_, out) = story.act(Action::Cancel, ids([3]));
    assert_eq!(out.revoked, [(worker, longshore_protocol::Revoked::Cancelled, token)]);
    assert_eq!(story.job(3).info.attempt, 1, "its attempt counts");
    let late = story.complete(worker, token);
    assert_eq!(late, longshore_protocol::SettleOutcome::StaleToken);
}
