//! Schedules: one job for each occurrence, templates, and what overlaps.

use bytes::Bytes;
use longshore_protocol::messages::work::{
    NewSettle, NextOccurrence, RequestError, RunOutcome, ScheduleOutcome,
};
use longshore_protocol::{
    Due, FrameWriter, Gate, JobId, JobOptions, JobState, LinkId, Missed, NewJob, Overlap, Refusal,
    Schedule, Timing,
};

use super::scenario::*;
use super::snapshots::{naive_parts, parts_of};
use crate::Rules;
use crate::command::{Command, Occurrence, RunOfOccurrence};
use crate::outcome::{Outcomes, Reply};
use crate::state::{State, steps};

const LINK: LinkId = LinkId(1);

fn schedule(name: &str, overlap: Overlap) -> Schedule {
    Schedule {
        name: name.to_owned(),
        path: path(QUEUE),
        timing: Timing::Every { ms: 1_000 },
        starts_at: None,
        ends_at: None,
        jitter_ms: 0,
        missed: Missed::Latest,
        overlap,
        version: None,
    }
}

fn entry_of(job: &NewJob) -> Bytes {
    let mut entry = FrameWriter::new();
    job.encode_entry_head(&mut entry);
    entry.put_shared(job.payload.clone());
    entry.into_body()
}

fn at(due_at: u64) -> Option<NextOccurrence> {
    Some(NextOccurrence { due_at, fires_at: due_at })
}

/// Puts a schedule that is due at once.
fn put(
    scenario: &mut StateScenario,
    schedule: &Schedule,
    job: &NewJob,
) -> Result<ScheduleOutcome, RequestError> {
    let next = at(scenario.now.wall_ms);
    let (entry, schedule) = (entry_of(job), Box::new(schedule.clone()));
    let command = Command::PutSchedule { link: LINK, request: 1, next, entry, schedule };
    set(&scenario.apply(command))
}

fn set(out: &Outcomes) -> Result<ScheduleOutcome, RequestError> {
    let answer = out.replies.iter().find_map(|(_, reply)| match reply {
        Reply::ScheduleSet { result, .. } => Some(result.clone()),
        _ => None,
    });
    answer.expect("it is answered")
}

/// The next occurrence of the only schedule gets the job with that number, if any; the one after it
/// is a second later.
fn occur(scenario: &mut StateScenario, number: u32) -> Outcomes {
    let due = scenario.state.due_schedules().next().expect("it is due");
    let due_at = due.next.due_at;
    let run = Some(RunOfOccurrence { due_at, job: id(number) });
    let schedule = due.number;
    let next = at(due_at + 1_000);
    let occurrences = vec![Occurrence { schedule, due_at, run, missed: 0, next }];
    scenario.later(1_000).apply(Command::Occur { occurrences })
}

fn exists(scenario: &StateScenario, number: u32) -> bool {
    scenario.state.job(&id(number), scenario.now).is_some()
}

fn restored(scenario: &mut StateScenario) {
    let bytes = scenario.state.snapshot_bytes();
    scenario.state = State::restore(&bytes).expect("it was written");
    assert!(scenario.state.snapshot_bytes() == bytes, "restoring changes the bytes");
}

#[test]
fn an_occurrence_that_is_logged_twice_has_one_job() {
    let mut scenario = StateScenario::begin();
    assert_eq!(
        put(&mut scenario, &schedule("a", Overlap::Allow), &plain(900)),
        Ok(ScheduleOutcome::Added)
    );
    let due = scenario.state.due_schedules().next().map(|due| (due.number, due.next.due_at));
    let (schedule, due_at) = due.expect("it is due");
    let occurrence = |number| {
        let run = Some(RunOfOccurrence { due_at, job: id(number) });
        Occurrence { schedule, due_at, run, missed: 0, next: at(due_at + 1_000) }
    };
    // As from a publisher that has logged it, crashed, and plans again from an older state.
    let occurrences = vec![occurrence(1), occurrence(2)];
    scenario.apply(Command::Occur { occurrences });
    restored(&mut scenario);
    scenario.apply(Command::Occur { occurrences: vec![occurrence(3)] });
    assert_eq!([1, 2, 3].map(|number| exists(&scenario, number)), [true, false, false]);
    let known = scenario.state.schedule("a").expect("it is there");
    assert_eq!((known.made, known.last_at, known.last_job), (1, Some(due_at), Some(id(1))));
    assert_eq!(scenario.job(1).info.enqueued_at, due_at);
    assert_eq!(scenario.job(1).info.schedule.as_deref(), Some("a"));
}

#[test]
fn jobs_share_a_template_that_outlives_its_schedule() {
    let mut scenario = StateScenario::begin();
    let job = NewJob { options: JobOptions { priority: 3, ..JobOptions::default() }, ..plain(900) };
    put(&mut scenario, &schedule("a", Overlap::Allow), &job).expect("a schedule");
    let put_at = scenario.index;
    occur(&mut scenario, 1);
    occur(&mut scenario, 2);
    let (one, two) = (scenario.job(1), scenario.job(2));
    assert_eq!(one.entry, two.entry);
    assert_eq!((one.entry.index, one.info.priority), (put_at, 3));
    assert_eq!(one.info.payload_len, job.payload.len() as u64);
    let remove = Command::RemoveSchedule { link: LINK, request: 1, name: "a".to_owned() };
    assert_eq!(set(&scenario.apply(remove.clone())), Ok(ScheduleOutcome::Changed));
    assert_eq!(set(&scenario.apply(remove)), Ok(ScheduleOutcome::Unknown));
    restored(&mut scenario);
    let parts = |scenario: &mut StateScenario| {
        let parts = parts_of(&scenario.state.freeze());
        assert_eq!(parts, naive_parts(&scenario.state));
        parts.into_iter().filter(|part| part.index == put_at).count()
    };
    assert_eq!(parts(&mut scenario), 1, "the template is named once");
    let (worker, delivered) = scenario.worker("w", QUEUE, 10);
    assert!(delivered.iter().all(|delivered| delivered.of_template));
    assert_eq!(delivered.iter().map(|delivered| delivered.entry.index).max(), Some(put_at));
    assert_eq!(scenario.state.job_of(delivered[0].token), Some(id(1)));
    for delivered in delivered {
        scenario.complete(worker, delivered.token);
    }
    assert_eq!(parts(&mut scenario), 1, "ended jobs show their payload");
    scenario.later(25 * 3_600_000).apply(Command::Tick);
    assert_eq!(parts(&mut scenario), 0);
}

#[test]
fn overlap_is_skipped_allowed_or_buffered() {
    for (overlap, made, overlapped) in
        [(Overlap::Skip, 1, 3), (Overlap::Allow, 4, 0), (Overlap::Buffer, 2, 2)]
    {
        let mut scenario = StateScenario::begin();
        put(&mut scenario, &schedule("a", overlap), &plain(900)).expect("a schedule");
        let (worker, _) = scenario.worker("w", QUEUE, 100);
        let token = occur(&mut scenario, 1).assignments[0].token;
        (2..=4).for_each(|number| drop(occur(&mut scenario, number)));
        let known = scenario.state.schedule("a").expect("it is there");
        assert_eq!((known.made, known.overlapped), (made, overlapped), "{overlap}");
        if overlap == Overlap::Buffer {
            assert_eq!(scenario.job(2).info.state, JobState::Blocked);
            restored(&mut scenario);
            let (_, out) = scenario.settle(worker, token, &NewSettle::Complete { result: None });
            assert_eq!(scenario.state.job_of(out.assignments[0].token), Some(id(2)));
        }
        // A job that retries has not ended; a dead one has.
        if overlap == Overlap::Skip {
            scenario.settle(worker, token, &fail());
            assert!(occur(&mut scenario, 5).events.is_empty());
            let dead = scenario.tick_at_next_timer().assignments;
            if let Some(delivered) = dead.first() {
                scenario.settle(worker, delivered.token, &NewSettle::Bury(error("no")));
            }
            occur(&mut scenario, 6);
            assert!(exists(&scenario, 6));
        }
    }
}

#[test]
fn the_highest_version_counts_and_an_older_one_changes_nothing() {
    let mut scenario = StateScenario::begin();
    let with = |version| Schedule { version, ..schedule("a", Overlap::Skip) };
    let other = NewJob { payload: Bytes::from_static(b"other"), ..plain(900) };
    let mut put = |version, job: &NewJob| put(&mut scenario, &with(version), job);
    assert_eq!(put(Some(2), &plain(900)), Ok(ScheduleOutcome::Added));
    assert_eq!(put(Some(2), &plain(900)), Ok(ScheduleOutcome::Unchanged));
    assert_eq!(put(Some(2), &plain(901)), Ok(ScheduleOutcome::VersionTaken(2)), "another payload");
    assert_eq!(put(Some(1), &other), Ok(ScheduleOutcome::Older(2)));
    assert_eq!(put(None, &other), Ok(ScheduleOutcome::Changed), "by hand");
    assert_eq!(put(Some(2), &other), Ok(ScheduleOutcome::Unchanged), "the version stayed");
    assert_eq!(put(Some(3), &other), Ok(ScheduleOutcome::Changed));
    assert_eq!(put(Some(2), &other), Ok(ScheduleOutcome::Older(3)));
    let headers = longshore_protocol::Headers(vec![("a".to_owned(), "b".to_owned())]);
    let with_header = NewJob { headers, ..other.clone() };
    assert_eq!(put(Some(3), &with_header), Ok(ScheduleOutcome::VersionTaken(3)));
}

#[test]
fn a_deploy_moves_no_occurrence_unless_its_times_change() {
    let mut scenario = StateScenario::begin();
    put(&mut scenario, &schedule("a", Overlap::Skip), &plain(900)).expect("a schedule");
    let next = |scenario: &StateScenario| scenario.state.schedule("a").and_then(|known| known.next);
    let before = next(&scenario);
    scenario.later(300);
    put(&mut scenario, &schedule("a", Overlap::Allow), &plain(900)).expect("a schedule");
    assert_eq!(next(&scenario), before);
    let timing = Timing::Every { ms: 2_000 };
    let slower = Schedule { timing, ..schedule("a", Overlap::Allow) };
    put(&mut scenario, &slower, &plain(900)).expect("a schedule");
    assert_eq!(next(&scenario), at(scenario.now.wall_ms));
    let missed = scenario.state.schedule("a").map(|known| known.missed);
    assert_eq!(missed, Some(1), "the occurrence that was due gets no job");
}

#[test]
fn a_paused_schedule_does_not_come_due_and_runs_by_hand() {
    let mut scenario = StateScenario::begin();
    put(&mut scenario, &schedule("a", Overlap::Skip), &plain(900)).expect("a schedule");
    let pause = |paused, next| {
        let name = "a".to_owned();
        Command::PauseSchedule { link: LINK, request: 1, name, paused, next }
    };
    assert_eq!(set(&scenario.apply(pause(true, None))), Ok(ScheduleOutcome::Changed));
    assert_eq!(set(&scenario.apply(pause(true, None))), Ok(ScheduleOutcome::Unchanged));
    assert_eq!(scenario.state.due_schedules().count(), 0);
    put(&mut scenario, &schedule("a", Overlap::Allow), &plain(900)).expect("a schedule");
    assert_eq!(scenario.state.due_schedules().count(), 0, "a deploy resumes nothing");
    let mut run = |name: &str, number| {
        let (name, job) = (name.to_owned(), id(number));
        let out = scenario.apply(Command::RunSchedule { link: LINK, request: 1, name, job });
        match &out.replies[0].1 {
            Reply::ScheduleRun { result, .. } => *result,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(run("a", 1), Ok(RunOutcome::Enqueued(id(1))));
    assert_eq!(run("a", 1), Ok(RunOutcome::Refused(Refusal::NotUnique)), "its id is known");
    assert_eq!(run("b", 2), Ok(RunOutcome::Unknown));
    assert_eq!(set(&scenario.apply(pause(false, at(7)))), Ok(ScheduleOutcome::Changed));
    assert_eq!(scenario.state.due_schedules().count(), 1);
}

#[test]
fn a_refused_occurrence_is_counted_with_its_reason() {
    let mut scenario = StateScenario::begin();
    put(&mut scenario, &schedule("a", Overlap::Skip), &plain(900)).expect("a schedule");
    let (gate, pattern) = (Gate::Enqueue, glob(QUEUE));
    scenario.apply(Command::Pause { link: LINK, request: 5, gate, pattern, paused: true });
    occur(&mut scenario, 1);
    let known = scenario.state.schedule("a").expect("it is there");
    assert_eq!((known.made, known.refused, known.last_at), (0, 1, None));
    assert_eq!(known.last_refusal, Some(Refusal::QueueClosed));
    assert!(!exists(&scenario, 1));
}

#[test]
fn templates_and_schedules_have_limits() {
    let mut scenario = StateScenario::with_rules(Rules { schedules: 1, ..Rules::STANDARD });
    let refused = Ok(ScheduleOutcome::Refused(Refusal::BadOptions));
    let with = |options| NewJob { options, ..plain(900) };
    let default = JobOptions::default;
    for bad in [
        with(JobOptions { due: Due::After(1), ..default() }),
        with(JobOptions { prepared: true, ..default() }),
        with(JobOptions { expires_at: Some(1), ..default() }),
    ] {
        assert_eq!(put(&mut scenario, &schedule("a", Overlap::Skip), &bad), refused);
    }
    let elsewhere = Schedule { path: path("/elsewhere"), ..schedule("a", Overlap::Skip) };
    let not_here = Ok(ScheduleOutcome::Refused(Refusal::NotHere));
    assert_eq!(put(&mut scenario, &elsewhere, &plain(900)), not_here);
    let first = schedule("a", Overlap::Skip);
    assert_eq!(put(&mut scenario, &first, &plain(900)), Ok(ScheduleOutcome::Added));
    let second = schedule("b", Overlap::Skip);
    assert_eq!(put(&mut scenario, &second, &plain(900)), Err(RequestError::TooManySchedules));
}

#[test]
fn the_next_occurrence_is_found_without_a_scan_of_10_000_schedules() {
    let mut scenario = StateScenario::begin();
    let apply = |scenario: &mut StateScenario, command| {
        // Without the full scan of each command.
        scenario.index += 1;
        scenario.state.apply(scenario.index, scenario.now, &command, &mut Outcomes::default());
    };
    for n in 0..10_000u64 {
        let schedule = Box::new(schedule(&format!("s{n}"), Overlap::Skip));
        let next = at(scenario.now.wall_ms + n);
        let entry = entry_of(&plain(900));
        apply(
            &mut scenario,
            Command::PutSchedule { link: LINK, request: 1, next, entry, schedule },
        );
    }
    scenario.state.invariant().expect("it is whole");
    let due: Vec<u64> = scenario.state.due_schedules().map(|due| due.next.fires_at).collect();
    assert!(due.is_sorted() && due.len() == 10_000);
    let mut occur = |from: usize, count: usize| {
        let due = scenario.state.due_schedules().take(count);
        let occurrences = due.enumerate().map(|(n, due)| {
            let job = JobId(((from + n + 1) as u128).to_be_bytes());
            let due_at = due.next.due_at;
            let run = Some(RunOfOccurrence { due_at, job });
            Occurrence { schedule: due.number, due_at, run, missed: 0, next: at(due_at + 60_000) }
        });
        let command = Command::Occur { occurrences: occurrences.collect() };
        steps::take();
        apply(&mut scenario, command);
        steps::take()
    };
    assert!(occur(0, 1) <= 4);
    occur(1, 1_000);
    let counts = scenario.counts();
    assert_eq!(counts.ready, 1_001);
    scenario.state.invariant().expect("it is whole");
}
