//! What the model does not cover: limits that it never reaches, pages, and clocks that go back.

use bytes::Bytes;
use longshore_protocol::limits::{PAUSES_MAX, PAYLOAD_BYTES_MAX, WAIT_MS_MAX};
use longshore_protocol::messages::work::{
    Action, Filter, JobsQuery, NewSettle, ReplaceOutcome, RequestError, Selection, Sources,
};
use longshore_protocol::{
    Due, Durability, Epoch, FrameWriter, Gate, JobId, JobOptions, JobState, LinkId, NewJob, Path,
    PublisherId, Refusal, Token,
};

use super::scenario::*;
use crate::Rules;
use crate::command::{Command, Secret, Start};
use crate::outcome::{Assignment, Reply};
use crate::state::rows::random_of;
use crate::state::schedule::head_of;

#[test]
fn sessions_are_limited_and_idle_ones_make_room() {
    let mut scenario = StateScenario::with_rules(Rules { sessions: 2, ..Rules::STANDARD });
    scenario.link("a");
    let b = scenario.link("b");
    let (_, out) = scenario.attach("third", &[]);
    assert!(matches!(out.replies[0].1, Reply::LinkRefused { .. }));
    scenario.apply(Command::LinkLost { link: b });
    let (_, out) = scenario.attach("third", &[]);
    assert!(matches!(out.replies[0].1, Reply::Attached(_)));
}

#[test]
fn pauses_are_limited() {
    let mut scenario = StateScenario::begin();
    scenario.fill(1..=1);
    let stop = |scenario: &mut StateScenario, gate, pattern: &str, paused| {
        let (link, pattern) = (LinkId(900), glob(pattern));
        let out = scenario.apply(Command::Pause { link, request: 5, gate, pattern, paused });
        match &out.replies[0].1 {
            Reply::Paused { report, .. } => report.clone().map(|report| report.changed),
            other => panic!("{other:?}"),
        }
    };
    for n in 0..PAUSES_MAX {
        assert_eq!(stop(&mut scenario, Gate::Delivery, &format!("/jobs/{n}"), true), Ok(true));
    }
    let refused = stop(&mut scenario, Gate::Delivery, QUEUE, true);
    assert_eq!(refused, Err(RequestError::TooManyPauses));
    assert_eq!(scenario.worker("a", QUEUE, 1).1.len(), 1, "the queue is not paused");
    assert_eq!(
        stop(&mut scenario, Gate::Enqueue, QUEUE, true),
        Ok(true),
        "closings have their own limit"
    );
    assert_eq!(stop(&mut scenario, Gate::Delivery, "/jobs/7", true), Ok(false), "it is there");
    assert_eq!(stop(&mut scenario, Gate::Delivery, "/jobs/7", false), Ok(true));
    assert_eq!(stop(&mut scenario, Gate::Delivery, QUEUE, true), Ok(true));
}

#[test]
fn oversized_replacement_leaves_the_job_dead() {
    let mut scenario = StateScenario::begin();
    scenario.fill(1..=1);
    let (worker, jobs) = scenario.worker("a", QUEUE, 1);
    scenario.settle(worker, jobs[0].token, &NewSettle::Bury(error("broken")));
    let mut entry = FrameWriter::with_capacity(64);
    let large = NewJob { payload: Bytes::from(vec![0; PAYLOAD_BYTES_MAX + 1]), ..plain(9) };
    large.encode_entry_head(&mut entry);
    entry.put_shared(large.payload);
    let (link, request, id) = (LinkId(900), 5, id(1));
    let entry = entry.into_body();
    let out = scenario.apply(Command::Replace { link, request, id, entry });
    let Reply::Replaced { outcome, .. } = &out.replies[0].1 else { panic!("{:?}", out.replies) };
    assert_eq!((*outcome, scenario.job(1).info.state), (ReplaceOutcome::TooLarge, JobState::Dead));
}

#[test]
fn credits_are_bounded_by_the_lease_limit_of_a_session() {
    let mut scenario = StateScenario::begin();
    let (a, _) = scenario.worker("a", QUEUE, 60_000);
    scenario.subscribe(a, 2, "/jobs/other");
    scenario.credit(a, 2, 60_000);
    let credits = |text: &str| {
        let (_, group) = scenario
            .state
            .dispatch
            .groups
            .iter()
            .find(|(_, g)| g.sources.sources == Sources::one(glob(text)))?;
        Some(group.credits)
    };
    assert_eq!((credits(QUEUE), credits("/jobs/other")), (Some(60_000), Some(5_536)));
}

#[test]
fn listings_page_through_all_jobs_of_a_state() {
    let mut scenario = StateScenario::begin();
    scenario.fill(1..=2_500);
    let filter = Filter::of(glob(QUEUE)).in_state(JobState::Ready);
    let mut query = JobsQuery { limit: 5_000, ..JobsQuery::of(filter) };
    let mut found = Vec::new();
    loop {
        let (page, next) = scenario.state.jobs(&query, None, scenario.now);
        assert!(page.len() <= 1_000);
        found.extend(page.into_iter().map(|view| view.info.id));
        let Some(next) = next else { break };
        query.cursor = next;
    }
    assert_eq!(found, (1..=2_500).map(id).collect::<Vec<_>>());
    let filter = Filter::of(glob(QUEUE)).in_state(JobState::Dead);
    query = JobsQuery { filter, cursor: 0, ..query };
    assert_eq!(scenario.state.jobs(&query, None, scenario.now), (Vec::new(), None));
}

/// In tests a count by age examines 100 jobs.
#[test]
fn count_of_dead_letters_by_age_is_a_lower_bound_and_hides_no_group() {
    let mut scenario = StateScenario::begin();
    scenario.fill(1..=110);
    let producer = scenario.link("producer");
    let other = |number| NewJob { path: path("/jobs/other"), ..plain(number) };
    scenario.enqueue(producer, &(201..=320).map(other).collect::<Vec<_>>());
    let (worker, delivered) = scenario.worker("a", "/jobs/*", 1_000);
    let bury = |scenario: &mut StateScenario, jobs: &[Assignment]| {
        for job in jobs {
            scenario.settle(worker, job.token, &NewSettle::Bury(error("of this")));
        }
    };
    bury(&mut scenario, &delivered[..108]);
    bury(&mut scenario, &delivered[110..]);
    let from = scenario.later(1).now.wall_ms;
    bury(&mut scenario, &delivered[108..109]);
    let before = scenario.later(1).now.wall_ms;
    bury(&mut scenario, &delivered[109..110]);
    let ended = |pattern: &str, ended_from, ended_before| Filter {
        ended_from,
        ended_before,
        ..Filter::of(glob(pattern)).in_state(JobState::Dead)
    };
    let (groups, more) = scenario.state.dead_groups(&ended("/jobs/*", None, Some(from)), None);
    let groups: Vec<(&str, u64)> =
        groups.iter().map(|view| (view.group.path.as_str(), view.group.jobs)).collect();
    assert_eq!((groups, more), (vec![(QUEUE, 50), ("/jobs/other", 50)], true));

    let count = |scenario: &StateScenario, selection: &Selection| {
        let report = scenario.state.preview(Action::Drop, selection, None);
        (report.done, report.more)
    };
    let both = Selection::Matching(ended(QUEUE, Some(from), Some(before)));
    assert_eq!(count(&scenario, &both), (0, true), "older ones are before them");
    let (link, request, action) = (LinkId(900), 1, Action::Drop);
    let act = Command::Act { link, request, action, selection: both, pace: None, within: None };
    scenario.apply(act);
    assert_eq!(scenario.counts().dead, 109);
    // The act has skipped the older ones, and a count does not examine them again.
    let last = Selection::Matching(ended(QUEUE, Some(from), Some(before + 1)));
    assert_eq!(count(&scenario, &last), (1, false));
}

#[test]
fn renamed_session_makes_attempts_under_its_new_name() {
    let mut scenario = StateScenario::begin();
    scenario.fill(1..=2);
    let (a, delivered) = scenario.worker("ann", QUEUE, 1);
    scenario.complete(a, delivered[0].token);
    let link = scenario.state.next_link();
    scenario.apply(Command::LinkUp {
        link,
        role: longshore_protocol::Role::Worker,
        session: session("ann"),
        name: "anna".to_owned(),
        identity: String::new(),
        work: None,
        resume: Default::default(),
    });
    scenario.subscribe(link, 1, QUEUE);
    let delivered = scenario.credit(link, 1, 1);
    assert_eq!(scenario.job(2).info.worker.as_deref(), Some("anna"));
    scenario.complete(link, delivered[0].token);
    let workers: Vec<_> =
        (1..=2).map(|n| scenario.job(n).info.attempts[0].worker.clone()).collect();
    assert_eq!(workers, ["ann", "anna"]);
}

#[test]
fn memory_counts_ready_jobs_that_came_late_and_own_retention() {
    let mut scenario = StateScenario::begin();
    let producer = scenario.link("producer");
    let late = |n: u32| JobOptions { due: Due::After(u64::from(200 - n)), ..Default::default() };
    let jobs: Vec<_> = (1..=100).map(|n| with(n, late(n))).collect();
    scenario.enqueue(producer, &jobs);
    let scheduled = scenario.state.memory_bytes();
    scenario.later(200).apply(Command::Tick);
    assert_eq!(scenario.counts().ready, 100);
    // The first is in a list: its timer needs no entry any more.
    let entry = scheduled - scenario.state.memory_bytes();
    assert!((1..100).contains(&entry), "{entry}");

    let own = JobOptions { keep_ms: Some(1_000), ..JobOptions::default() };
    scenario.enqueue(producer, &(101..=200).map(|n| with(n, own.clone())).collect::<Vec<_>>());
    let ready = scenario.state.memory_bytes();
    scenario.act(Action::Cancel, Selection::Ids((101..=200).map(id).collect()));
    assert_eq!(scenario.state.memory_bytes(), ready + 100 * entry);
}

#[test]
fn first_start_after_total_loss_reuses_no_token() {
    for (epoch, first) in [(1, (1 << 32) + 1), (2, 2 << 32), (70, 70 << 32)] {
        let mut scenario = StateScenario::empty();
        scenario.apply(Command::Start(Start {
            publisher: PublisherId([7; 16]),
            epoch: Epoch(epoch),
            boot: [1; 16],
            secret: Secret([0x5e; 16]),
            rules: Box::new(Rules::STANDARD),
            durability: Durability::Fsync,
            paths: Vec::new(),
            defaults: vec![path("/jobs")],
        }));
        scenario.fill(1..=1);
        let (_, delivered) = scenario.worker("a", QUEUE, 1);
        assert_eq!(delivered[0].token, Token(first), "epoch {epoch}");
    }
}

#[test]
fn jobs_that_differ_only_in_times_share_a_profile() {
    let mut scenario = StateScenario::begin();
    let producer = scenario.link("producer");
    let options = JobOptions { prepared: true, due: Due::After(17), ..JobOptions::default() };
    scenario.enqueue(producer, &[plain(1), with(2, options)]);
    assert_eq!(scenario.state.profiles.table().len(), 1);
}

#[test]
fn jitter_differs_between_jobs_and_attempts() {
    let randoms: std::collections::BTreeSet<u64> = (1..=1_000)
        .flat_map(|number| (1..=10).map(move |attempt| random_of(&id(number), attempt)))
        .collect();
    assert_eq!(randoms.len(), 10_000);
    let upper = randoms.iter().filter(|&&random| random > u64::MAX / 2).count();
    assert!((4_700..5_300).contains(&upper), "{upper} of 10,000 in the upper half");
    // Old logs replay to the same waits only while this number is unchanged.
    assert_eq!(random_of(&id(1), 1), 3_114_907_332_918_154_815);
}

#[test]
fn monotonic_time_never_falls() {
    let mut scenario = StateScenario::begin();
    let producer = scenario.link("producer");
    scenario.now.mono_ms -= 500;
    scenario.enqueue(
        producer,
        &[with(1, JobOptions { due: Due::After(100), ..JobOptions::default() })],
    );
    assert_eq!(scenario.state.last_now().mono_ms, scenario.now.mono_ms + 500);
    assert_eq!(scenario.state.next_timer_ms(scenario.now), Some(scenario.now.mono_ms + 600));
}

#[test]
fn oldest_ready_job_shows_its_waiting_time() {
    let mut scenario = StateScenario::begin();
    scenario.fill(1..=1);
    scenario.later(500);
    let producer = scenario.link("producer");
    scenario.enqueue(producer, &[plain(2)]);
    let oldest = |scenario: &StateScenario| {
        scenario.state.all_queue_stats(&glob(QUEUE), scenario.now)[0].oldest_ready_ms
    };
    assert_eq!(oldest(&scenario), Some(500));
    let (_, delivered) = scenario.worker("a", QUEUE, 1);
    assert_eq!(oldest(&scenario), Some(0));
    scenario.later(70);
    scenario.expire(delivered[0].token, false);
    assert_eq!(oldest(&scenario), Some(70));
}

/// Clients check them; one in another language may not. No smaller payload would help it.
#[test]
fn times_over_their_limits_are_bad_options() {
    let over = Some(WAIT_MS_MAX + 1);
    for options in [
        JobOptions { keep_ms: over, ..JobOptions::default() },
        JobOptions { run_timeout_ms: over, ..JobOptions::default() },
    ] {
        let job = NewJob::new(Path::new("/a").unwrap(), JobId([1; 16]), "x");
        let job = NewJob { options, ..job };
        let mut out = FrameWriter::new();
        job.encode_entry_head(&mut out);
        out.put(&job.payload);
        let entry = out.into_body();
        assert_eq!(head_of(&entry).err(), Some(Refusal::BadOptions));
    }
}
