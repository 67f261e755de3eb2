//! Schedules: who may change them, where they live, and what their jobs are.

use bytes::Bytes;
use longshore_access::{AccessControl, Policy};
use longshore_protocol::messages::work::{
    Answer, NextOccurrence, Occurrences, Request, RequestError, RunOutcome, ScheduleInfo,
    ScheduleOutcome,
};
use longshore_protocol::{
    Entry, FrameWriter, Homes, JobId, LinkId, Missed, NewJob, Overlap, Refusal, Role, Schedule,
    Timing,
};
use longshore_publisher::{OpenError, Publisher, PublisherOptions};
use longshore_queue::{Command, Released, Store, StoreOptions};

use crate::client::*;

fn every(name: &str, path: &str, ms: u64) -> Schedule {
    Schedule {
        name: name.to_owned(),
        path: path.parse().unwrap(),
        timing: Timing::Every { ms },
        starts_at: None,
        ends_at: None,
        jitter_ms: 0,
        missed: Missed::Latest,
        overlap: Overlap::Allow,
        version: None,
    }
}

fn entry() -> Bytes {
    let job = NewJob::new("/a".parse().unwrap(), JobId::default(), "payload");
    let mut entry = FrameWriter::new();
    job.encode_entry_head(&mut entry);
    entry.put_shared(job.payload.clone());
    entry.into_body()
}

async fn put(client: &mut Client, schedule: Schedule) -> ScheduleOutcome {
    match client.ask(Request::PutSchedule { schedule, entry: entry() }).await {
        Answer::ScheduleSet(outcome) => outcome,
        other => panic!("{other:?}"),
    }
}

async fn known(client: &mut Client) -> Vec<ScheduleInfo> {
    let request = Request::Schedules { name: None, after: String::new(), limit: 1_000 };
    match client.ask(request).await {
        Answer::Schedules(page) => page.schedules,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn occurrences_are_delivered_with_the_payload_and_ids_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let running = running(PublisherOptions::new(dir.path())).await;
    let mut client = Client::attach(&running, Role::Worker, 1).await;
    client.subscribe_with(2);
    assert_eq!(put(&mut client, every("t", "/jobs/ticks", 1_000)).await, ScheduleOutcome::Added);
    let mut seen: Vec<(JobId, u64)> = Vec::new();
    while seen.len() < 2 {
        for delivered in client.delivered().await {
            let entry = Entry::read(delivered.entry).unwrap();
            assert_eq!(entry.payload, "payload");
            assert_eq!(delivered.times.enqueued_at, delivered.times.scheduled_at);
            seen.push((entry.id, delivered.times.enqueued_at));
        }
    }
    assert_ne!(seen[0].0, seen[1].0);
    assert_eq!((seen[1].1 - seen[0].1) % 1_000, 0, "on its grid");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_is_refused_away_from_its_home_and_keeps_it() {
    let dir = tempfile::tempdir().unwrap();
    let options = |home: &str| {
        let mut options = PublisherOptions::new(dir.path());
        options.name = "pa".into();
        options.homes = Homes::new([("/shop".parse().unwrap(), vec![home.to_owned()])]).unwrap();
        options
    };
    let before = running(options("pb")).await;
    let mut client = Client::attach(&before, Role::Tool, 1).await;
    let not_home = ScheduleOutcome::Refused(Refusal::NotHome);
    assert_eq!(put(&mut client, every("a", "/shop/a", 60_000)).await, not_home);
    assert_eq!(put(&mut client, every("b", "/other", 60_000)).await, ScheduleOutcome::Added);
    before.stop().await;
    let own = running(options("pa")).await;
    let mut client = Client::attach(&own, Role::Tool, 2).await;
    assert_eq!(put(&mut client, every("a", "/shop/a", 60_000)).await, ScheduleOutcome::Added);
    let names: Vec<String> =
        known(&mut client).await.into_iter().map(|known| known.schedule.name).collect();
    assert_eq!(names, ["a", "b"]);
    own.stop().await;
    let refused = Publisher::open(options("pb")).await.map(drop).unwrap_err();
    assert!(matches!(refused, OpenError::KeysOfAnotherHome { schedules: 1, .. }), "{refused}");
    assert!(!refused.to_string().contains("keys end by"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_schedule_is_refused_with_the_reason() {
    let running = fresh().await;
    let mut client = Client::attach(&running, Role::Tool, 1).await;
    let all = Schedule { missed: Missed::All, overlap: Overlap::Skip, ..every("a", "/a", 1_000) };
    let cron = |expression: &str, zone: &str| {
        let (expression, zone) = (expression.to_owned(), zone.to_owned());
        Schedule { timing: Timing::Cron { expression, zone }, ..every("a", "/a", 1_000) }
    };
    let ended = Schedule { ends_at: Some(1), ..every("a", "/a", 1_000) };
    for (schedule, why) in [
        (all, "only if these may overlap"),
        (cron("* * * *", "UTC"), "five fields"),
        (cron("* * * * *", "Mars/One"), "no time zone"),
        (cron("0 0 30 2 *", "UTC"), "never comes due"),
        (ended.clone(), "never comes due"),
    ] {
        match put(&mut client, schedule).await {
            ScheduleOutcome::Invalid(reason) => assert!(reason.contains(why), "{reason}"),
            other => panic!("{why}: {other:?}"),
        }
    }
    let preview = |schedule, count| Request::PreviewSchedule {
        schedule,
        created_at: Some(0),
        after: Some(10_500),
        count,
    };
    let times = Answer::Occurrences(Occurrences::Times(vec![11_000, 12_000]));
    assert_eq!(client.ask(preview(every("a", "/a", 1_000), 2)).await, times);
    let never = client.ask(preview(ended, 2)).await;
    assert!(matches!(never, Answer::Occurrences(Occurrences::Invalid(_))), "{never:?}");
    let too_many = client.try_ask(preview(every("a", "/a", 1_000), 101)).await;
    assert_eq!(too_many, Err(RequestError::OverLimit));
    assert!(known(&mut client).await.is_empty());
    running.stop().await;
}

/// As after an upgrade of the system that took a zone away: the journal has schedules with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_whose_zone_is_missing_is_tried_again_and_not_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, mut clock, _) = Store::open(dir.path(), StoreOptions::default()).unwrap();
    let now = clock.now();
    let (link, request, due_at) = (LinkId(1), 1, now.wall_ms - 5_000);
    for name in ["due", "paused"] {
        let (expression, zone) = ("* * * * *".to_owned(), "Mars/One".to_owned());
        let timing = Timing::Cron { expression, zone };
        let schedule = Box::new(Schedule { timing, ..every(name, "/a", 1_000) });
        let next = Some(NextOccurrence { due_at, fires_at: due_at });
        let put = Command::PutSchedule { link, request, next, entry: entry(), schedule };
        store.submit(now, put).unwrap();
    }
    let name = "paused".to_owned();
    let pause = Command::PauseSchedule { link, request, name, paused: true, next: None };
    store.submit(now, pause).unwrap();
    while !store.is_released() {
        store.released(&mut Released::default()).await.unwrap();
    }
    drop(store);
    let running = running(PublisherOptions::new(dir.path())).await;
    let mut client = Client::attach(&running, Role::Tool, 1).await;
    let pause = |paused| Request::PauseSchedule { name: "paused".to_owned(), paused };
    match client.ask(pause(false)).await {
        Answer::ScheduleSet(ScheduleOutcome::Invalid(why)) => {
            assert!(why.contains("'Mars/One' is no time zone of this publisher"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    let unchanged = Answer::ScheduleSet(ScheduleOutcome::Unchanged);
    assert_eq!(client.ask(pause(true)).await, unchanged);
    let [due, paused] = &known(&mut client).await[..] else { panic!() };
    let next = due.next.unwrap();
    assert_eq!((next.due_at, due.made, due.missed), (due_at, 0, 0));
    assert!(next.fires_at >= now.wall_ms + 60_000, "{next:?}");
    assert_eq!((paused.paused, paused.next), (true, None));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_who_may_act_and_enqueue_changes_a_schedule() {
    let policy = |paths: &str, actions: &str| {
        let text =
            format!("[[allow]]\nwho = [\"anonymous\"]\ndo = [{actions}]\npaths = [{paths}]\n");
        Policy::parse(&text).unwrap()
    };
    let dir = tempfile::tempdir().unwrap();
    let control = AccessControl::new(Some(policy("\"/a\", \"/b\"", "\"*\"")), None);
    let access_control = control.clone();
    let options = PublisherOptions { access_control, ..PublisherOptions::new(dir.path()) };
    let running = running(options).await;
    let mut client = Client::attach(&running, Role::Tool, 1).await;
    assert_eq!(put(&mut client, every("a", "/a", 60_000)).await, ScheduleOutcome::Added);
    assert_eq!(put(&mut client, every("b", "/b", 60_000)).await, ScheduleOutcome::Added);
    // To act is not enough: its jobs would be enqueued.
    control.replace(Some(policy("\"/b\"", "\"act\", \"inspect\"")), None);
    let mut client = Client::attach(&running, Role::Tool, 2).await;
    let names: Vec<String> =
        known(&mut client).await.into_iter().map(|known| known.schedule.name).collect();
    assert_eq!(names, ["b"]);
    let name = || "a".to_owned();
    let entry = entry();
    let preview = |name: &str, path: &str| Request::PreviewSchedule {
        schedule: every(name, path, 60_000),
        created_at: None,
        after: None,
        count: 1,
    };
    for request in [
        Request::PutSchedule { schedule: every("c", "/b", 60_000), entry: entry.clone() },
        Request::RemoveSchedule { name: name() },
        Request::PauseSchedule { name: name(), paused: true },
        Request::RunSchedule { name: name() },
        // A preview would tell when another's schedule was added.
        preview("a", "/b"),
        preview("c", "/a"),
    ] {
        assert_eq!(client.try_ask(request).await, Err(RequestError::Forbidden));
    }
    control.replace(Some(policy("\"/b\"", "\"*\"")), None);
    let mut client = Client::attach(&running, Role::Tool, 3).await;
    // Nor is the name of another's schedule taken over.
    let schedule = every("a", "/b", 60_000);
    let taken = client.try_ask(Request::PutSchedule { schedule, entry }).await;
    assert_eq!(taken, Err(RequestError::Forbidden));
    let ran = client.ask(Request::RunSchedule { name: "b".to_owned() }).await;
    assert!(matches!(ran, Answer::ScheduleRun(RunOutcome::Enqueued(_))), "{ran:?}");
    running.stop().await;
}
