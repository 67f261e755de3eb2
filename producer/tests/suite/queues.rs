//! Read-only requests over real links: every result names the publishers that did not answer.

use std::time::Duration;

use crate::fake::FakePublisher;
use longshore_producer::{FeedFrom, JobLocator, JobLookupError, Queues, QueuesError, WaitError};
use longshore_protocol::messages::work::{
    Answer, Filter, JobCounts, JobInfo, JobsPage, JobsQuery, QueueStat, QueuesPage, Request,
    RequestError, ScheduleInfo, SchedulesPage,
};
use longshore_protocol::{
    Glob, JobId, JobRef, JobState, Missed, Overlap, Path, PublisherId, QueueSettings, Schedule,
    Timing,
};

fn to(publishers: &[&FakePublisher]) -> Queues {
    let options = Queues::builder().request_timeout(Duration::from_millis(200));
    options.to_publishers(publishers.iter().map(|p| p.info.clone()))
}

fn all() -> Glob {
    Glob::everything()
}

fn job(n: u8) -> JobInfo {
    crate::fake::job_model::job(JobId([n; 16]), JobState::Ready, 1)
}

/// Serves these jobs, in pages of two.
fn serve_jobs(publisher: &FakePublisher, jobs: &[u8]) {
    let jobs = jobs.to_vec();
    publisher.answer_requests(move |request| {
        Some(Ok(match request {
            Request::Job { id } => {
                let found = jobs.iter().map(|&n| job(n)).find(|job| job.id == id);
                Answer::Job(found.map(Box::new))
            }
            Request::Jobs(query) => {
                let from = query.cursor as usize;
                let page: Vec<JobInfo> = jobs.iter().skip(from).take(2).map(|&n| job(n)).collect();
                let next = (from + 2 < jobs.len()).then_some(query.cursor + 2);
                Answer::Jobs(JobsPage { jobs: page, next, index: 1 })
            }
            // The second page is the last.
            Request::Queues { cursor: 0, .. } => {
                Answer::Queues(QueuesPage { queues: Vec::new(), next: Some(7) })
            }
            Request::Queues { cursor: 7, .. } => {
                Answer::Queues(QueuesPage { queues: vec![stat(jobs.len() as u64)], next: None })
            }
            other => panic!("{other:?} was not expected"),
        }))
    });
}

/// Stats with all counts equal to `n`.
fn stat(n: u64) -> QueueStat {
    QueueStat {
        path: Path::new("/jobs").expect("a path"),
        counts: JobCounts {
            scheduled: n,
            retrying: n,
            ready: n,
            running: n,
            completed: n,
            dead: n,
            cancelled: n,
            prepared: n,
            expired: n,
            blocked: 0,
        },
        oldest_ready_ms: Some(n),
        enqueued: n,
        completed: n,
        failed: n,
        redelivered: n,
        stale_refused: n,
        subscriptions: n,
        credits: n,
        died: n,
        paused_by: vec![Glob::new(&format!("/jobs/{n}")).expect("a glob")],
        closed_by: Vec::new(),
        settings: QueueSettings { lease_ms: Some(1_000 * n as u32), ..QueueSettings::default() },
        limited_by: None,
    }
}

#[tokio::test]
async fn stats_are_merged_and_missing_publishers_listed() {
    let (one, two) = (FakePublisher::start(1).await, FakePublisher::start(2).await);
    let mut three = FakePublisher::start(3).await;
    serve_jobs(&one, &[1, 2]);
    serve_jobs(&two, &[3, 4, 5]);
    three.kill().await;
    let gathered = to(&[&one, &two, &three]).stats(all()).await.expect("publishers are known");
    let merged = gathered.merged();
    let sum = stat(5);
    let first = stat(2);
    let pauses = [stat(2).paused_by, stat(3).paused_by].concat();
    let expected =
        QueueStat { oldest_ready_ms: Some(3), settings: first.settings, paused_by: pauses, ..sum };
    assert_eq!(merged, [expected]);
    assert_eq!(gathered.differing_settings(), [Path::new("/jobs").expect("a path")]);
    assert!(!gathered.is_whole());
    assert_eq!(gathered.missing.len(), 1);
    assert_eq!(gathered.missing[0].publisher.name, "fake-3");
    assert!(gathered.missing[0].why.contains("cannot connect"), "{}", gathered.missing[0].why);
}

#[tokio::test]
async fn a_missing_publisher_shows_whether_a_right_is_lacking() {
    let (forbids, full) = (FakePublisher::start(1).await, FakePublisher::start(2).await);
    let old = FakePublisher::start(3).await;
    forbids.answer_requests(|_| Some(Err(RequestError::Forbidden)));
    full.answer_requests(|_| Some(Err(RequestError::NoSpace)));
    old.answer_requests(|_| Some(Err(RequestError::Unknown)));
    let gathered = to(&[&forbids, &full, &old]).stats(all()).await.expect("publishers are known");
    let forbidden: Vec<bool> = gathered.missing.iter().map(|one| one.is_forbidden).collect();
    assert_eq!(forbidden, [true, false, false], "{gathered:?}");
}

#[tokio::test]
async fn pages_of_stats_end_at_a_publisher_that_never_ends_them() {
    let (stands, goes_on) = (FakePublisher::start(1).await, FakePublisher::start(2).await);
    let serve = |publisher: &FakePublisher, step: u64| {
        publisher.answer_requests(move |request| match request {
            Request::Queues { cursor, .. } => {
                let next = Some(cursor + step);
                Some(Ok(Answer::Queues(QueuesPage { queues: Vec::new(), next })))
            }
            other => panic!("{other:?} was not expected"),
        });
    };
    serve(&stands, 0);
    serve(&goes_on, 1);
    let gathered = to(&[&stands, &goes_on]).stats(all()).await.expect("publishers are known");
    let why = |n: usize| gathered.missing[n].why.as_str();
    assert_eq!(gathered.missing.len(), 2, "{gathered:?}");
    assert_eq!(why(0), "unexpected answer");
    assert!(why(1).contains("200 ms") || why(1).contains("200ms"), "{}", why(1));
}

#[tokio::test]
async fn pages_of_schedules_end_at_a_publisher_that_repeats_them() {
    let (repeats, mute) = (FakePublisher::start(1).await, FakePublisher::start(2).await);
    let schedule = Schedule {
        name: "nightly".to_owned(),
        path: Path::new("/jobs").expect("a path"),
        timing: Timing::Every { ms: 1_000 },
        starts_at: None,
        ends_at: None,
        jitter_ms: 0,
        missed: Missed::Latest,
        overlap: Overlap::Skip,
        version: None,
    };
    let known = ScheduleInfo {
        schedule,
        created_at: 0,
        paused: false,
        next: None,
        last_at: None,
        last_job: None,
        made: 0,
        missed: 0,
        overlapped: 0,
        refused: 0,
        last_refusal: None,
        payload_len: 0,
    };
    repeats.answer_requests(move |_| {
        let page = SchedulesPage { schedules: vec![known.clone()], more: true };
        Some(Ok(Answer::Schedules(page)))
    });
    mute.answer_requests(|_| None);
    let gathered = to(&[&repeats, &mute]).schedules().await.expect("publishers are known");
    let why: Vec<&str> = gathered.missing.iter().map(|missing| missing.why.as_str()).collect();
    assert_eq!(why, ["unexpected answer", "no answer within 200ms"]);
}

#[tokio::test]
async fn a_bare_id_is_not_found_only_if_all_answered() {
    let (one, mut two) = (FakePublisher::start(1).await, FakePublisher::start(2).await);
    serve_jobs(&one, &[1]);
    serve_jobs(&two, &[2]);
    let queues = to(&[&one, &two]);
    let found = queues.job(JobId([2; 16])).await.expect("it is at the second");
    assert_eq!(found.job_ref(), JobRef { publisher: two.info.id, id: JobId([2; 16]) });
    let missing = queues.job(JobId([9; 16])).await;
    assert!(matches!(missing, Err(JobLookupError::NotFound { asked, .. }) if asked.len() == 2));
    two.kill().await;
    let unknown = queues.job(JobId([9; 16])).await.expect_err("one is away");
    assert!(unknown.to_string().contains("fake-2"), "{unknown}");
    assert!(matches!(unknown, JobLookupError::Unknown { missing, .. } if missing.len() == 1));
}

#[tokio::test]
async fn a_job_with_a_publisher_is_requested_only_there() {
    let (one, mut two) = (FakePublisher::start(1).await, FakePublisher::start(2).await);
    serve_jobs(&one, &[1]);
    two.kill().await;
    let queues = to(&[&one, &two]);
    let at_one = |id| JobLocator::from(JobRef { publisher: one.info.id, id });
    queues.job(&at_one(JobId([1; 16]))).await.expect("it is there");
    let missing = queues.job(&at_one(JobId([9; 16]))).await;
    assert!(matches!(missing, Err(JobLookupError::NotFound { .. })));
    let nowhere: JobLocator = format!("ffffffff:{}", JobId([1; 16])).parse().expect("a name");
    let away = queues.job(&nowhere).await;
    assert!(matches!(away, Err(JobLookupError::PublisherAway { .. })));
}

#[tokio::test]
async fn listings_skip_a_publisher_that_is_away() {
    let (one, two) = (FakePublisher::start(1).await, FakePublisher::start(2).await);
    let mut three = FakePublisher::start(3).await;
    serve_jobs(&one, &[1, 2, 3, 4, 5]);
    three.kill().await;
    serve_jobs(&two, &[6]);
    let query = JobsQuery { limit: 2, ..JobsQuery::of(Filter::of(all())) };
    let mut pages = to(&[&one, &three, &two]).jobs(query).await.expect("publishers are known");
    let mut seen = Vec::new();
    while let Some(page) = pages.next().await {
        seen.extend(page.jobs.iter().map(|job| job.id.0[0]));
    }
    assert_eq!(seen, [1, 2, 3, 4, 5, 6]);
    assert_eq!((pages.answered().len(), pages.missing().len()), (2, 1));
}

#[tokio::test]
async fn a_silent_publisher_is_missing_after_the_request_timeout() {
    let publisher = FakePublisher::start(1).await;
    publisher.answer_requests(|_| None);
    let gathered = to(&[&publisher]).status().await.expect("known");
    assert!(gathered.answers.is_empty());
    assert!(gathered.missing[0].why.contains("no answer within 200ms"), "{:?}", gathered.missing);
}

#[tokio::test(start_paused = true)]
async fn a_cluster_without_replicas_is_reported_at_once() {
    let began = tokio::time::Instant::now();
    let queues = Queues::connect("");
    assert_eq!(queues.status().await.err(), Some(QueuesError::NoReplicas));
    let ended = queues.wait(JobId([1; 16]), Duration::from_secs(60)).await;
    let lookup = JobLookupError::Queues(QueuesError::NoReplicas);
    assert_eq!(ended, Err(WaitError::Lookup(lookup.clone())));
    let at_publisher = JobRef { publisher: PublisherId([1; 16]), id: JobId([1; 16]) };
    let ended = queues.wait(at_publisher, Duration::from_secs(60)).await;
    assert_eq!(ended, Err(WaitError::Lookup(lookup)));
    assert!(queues.feed(all(), FeedFrom::Now).next().await.is_none());
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn a_dead_cached_link_is_replaced() {
    let mut publisher = FakePublisher::start(1).await;
    let address = publisher.info.addresses[0].clone();
    serve_jobs(&publisher, &[1]);
    let queues = to(&[&publisher]);
    for _ in 0..3 {
        queues.job(JobId([1; 16])).await.expect("it is there");
        publisher.revive_at(address.clone()).await;
    }
    assert!(publisher.disk.lock().attaches >= 3);
}
