//! Requests that wait for a job's end, and feeds, with a client that sends raw messages.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore_protocol::limits::{COMPLETION_WAITS_MAX, FEED_EVENTS_MAX, FEEDS_MAX};
use longshore_protocol::messages::work::{
    Answer, FeedEnd, FeedEvents, FeedPosition, Filter, FromPublisher, JobInfo, JobsQuery,
    NewSettle, Request, RequestError, SettleBatchBuilder, ToPublisher,
};
use longshore_protocol::{Backoff, FrameWriter, JobChange, JobId, JobState, Role};
use tokio::task::JoinHandle;

use crate::client::{A_WHILE, Client, LONG, MIB, error, fresh, glob, id, job, job_in};

async fn ended(client: &mut Client, number: u64) -> Option<JobInfo> {
    match client.answer(number).await.unwrap() {
        Answer::Job(job) => job.map(|job| *job),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_request_receives_the_full_job_at_its_end() {
    let running = fresh().await;
    let mut tool = Client::attach(&running, Role::Tool, 1).await;
    let mut wanted = job(1, 100);
    wanted.options.keep_result = true;
    tool.enqueue([wanted]).await;
    let number = tool.request(Request::Await { id: id(1) });
    let mut worker = Client::attach(&running, Role::Worker, 2).await;
    worker.subscribe_with(1);
    let delivery = worker.job().await;
    // The job runs: a plain request is answered, the waiting one is not.
    assert_eq!(tool.job_info(id(1)).await.unwrap().state, JobState::Running);
    let result = Some(Bytes::from_static(b"forty-two"));
    worker.settle([(delivery.token, NewSettle::Complete { result })]).await;
    for number in [Some(number), None] {
        let number = number.unwrap_or_else(|| tool.request(Request::Await { id: id(1) }));
        let answer = ended(&mut tool, number).await.unwrap();
        assert_eq!(answer.state, JobState::Completed);
        assert_eq!(answer.result.unwrap().as_ref(), b"forty-two");
        assert_eq!(answer.payload.unwrap().len(), 100);
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_waiting_request_is_not_answered() {
    let running = fresh().await;
    let mut tool = Client::attach(&running, Role::Tool, 1).await;
    tool.enqueue([job(1, 10)]).await;
    let forgotten = tool.request(Request::Await { id: id(1) });
    let wanted = tool.request(Request::Await { id: id(1) });
    tool.send(&ToPublisher::Forget(forgotten));
    let mut worker = Client::attach(&running, Role::Worker, 2).await;
    worker.subscribe_with(1);
    let delivery = worker.job().await;
    worker.complete(delivery.token).await;
    let answer = tool
        .until(|message| match message {
            FromPublisher::Answer { id, .. } => Some(id),
            _ => None,
        })
        .await;
    assert_eq!(answer, wanted, "the cancelled request would be answered first");
    tool.status().await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waits_and_feeds_begin_when_recording_is_off() {
    let running = fresh().await;
    tokio::time::sleep(Duration::from_secs(11)).await;
    let mut tool = Client::attach(&running, Role::Tool, 1).await;
    let mut worker = Client::attach(&running, Role::Worker, 2).await;
    tool.enqueue([job(1, 10), job(2, 10)]).await;
    worker.subscribe_with(1);
    let delivery = worker.job().await;
    let number = tool.request(Request::Await { id: id(1) });
    tool.status().await;
    worker.complete(delivery.token).await;
    assert_eq!(ended(&mut tool, number).await.unwrap().state, JobState::Completed);
    open(&mut tool, "/jobs/**", None).await.unwrap();
    worker.credit(1);
    let (all, _) = next_events(&mut tool, 1).await;
    assert_eq!((all[0].1, all[0].2), (id(2), JobChange::Delivered));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_requests_per_link_are_limited() {
    let running = fresh().await;
    let mut tool = Client::attach(&running, Role::Tool, 1).await;
    tool.enqueue([job(1, 10)]).await;
    let mut out = FrameWriter::new();
    for number in 0..=COMPLETION_WAITS_MAX as u64 {
        ToPublisher::Request { id: 1_000 + number, request: Request::Await { id: id(1) } }
            .encode(&mut out);
    }
    tool.sender.send(out.finish()).unwrap();
    let refused = tool.answer(1_000 + COMPLETION_WAITS_MAX as u64).await;
    assert_eq!(refused, Err(RequestError::TooMany));
    let mut worker = Client::attach(&running, Role::Worker, 2).await;
    worker.subscribe_with(1);
    let delivery = worker.job().await;
    worker.complete(delivery.token).await;
    let mut answer = vec![false; COMPLETION_WAITS_MAX];
    for _ in 0..COMPLETION_WAITS_MAX {
        let number = tool
            .until(|message| match message {
                FromPublisher::Answer { id, answer: Ok(Answer::Job(Some(_))) } => Some(id - 1_000),
                _ => None,
            })
            .await;
        assert!(!std::mem::replace(&mut answer[number as usize], true), "{number} twice");
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_wait_for_a_link_that_reads_slowly() {
    const JOBS: u32 = 128;
    let running = fresh().await;
    let mut tool = Client::attach(&running, Role::Tool, 1).await;
    for n in 0..JOBS / 8 {
        tool.enqueue((0..8).map(|m| job(n * 8 + m, MIB))).await;
    }
    (0..JOBS).for_each(|n| {
        tool.request(Request::Await { id: id(n) });
    });
    let mut other = Client::attach(&running, Role::Tool, 3).await;
    let cancel = longshore_protocol::messages::work::Action::Cancel;
    let selection = crate::client::everything();
    other.ask(Request::Act { action: cancel, selection, pace: None, dry_run: false }).await;
    // All of it would be in the link's send queue by now, and exceed its limit.
    tokio::time::sleep(2 * A_WHILE).await;
    let mut answer = 0;
    while answer < JOBS {
        let job = tool
            .until(|message| match message {
                FromPublisher::Answer { answer, .. } => Some(answer.unwrap()),
                _ => None,
            })
            .await;
        assert!(
            matches!(job, Answer::Job(Some(job)) if job.payload.as_ref().unwrap().len() == MIB)
        );
        answer += 1;
    }
    running.stop().await;
}

// Feeds.

/// Opens a feed; returns its number and its first position.
async fn open(
    tool: &mut Client,
    pattern: &str,
    after: Option<FeedPosition>,
) -> Result<(u64, FeedPosition), RequestError> {
    let number = tool.request(Request::Feed { pattern: glob(pattern), after });
    match tool.answer(number).await? {
        Answer::Feed(position) => Ok((number, position)),
        other => panic!("{other:?}"),
    }
}

/// The next events of any feed.
async fn events(tool: &mut Client) -> FeedEvents {
    tool.until(|message| match message {
        FromPublisher::Feed(events) => Some(events),
        FromPublisher::FeedEnded { end, .. } => panic!("{end}"),
        _ => None,
    })
    .await
}

/// The next `n` events, each as queue, job and change; and the feed's position.
async fn next_events(
    tool: &mut Client,
    n: usize,
) -> (Vec<(String, JobId, JobChange)>, FeedPosition) {
    let mut all = Vec::new();
    loop {
        let FeedEvents { upto, paths, events, .. } = events(tool).await;
        all.extend(
            events
                .iter()
                .map(|event| (paths[event.path as usize].to_string(), event.job, event.change)),
        );
        assert!(all.len() <= n, "{all:?}");
        if all.len() == n {
            return (all, upto);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn feed_sends_events_of_its_queues_in_order_until_cancelled() {
    let running = fresh().await;
    let mut tool = Client::attach(&running, Role::Tool, 1).await;
    tool.enqueue([job(1, 10)]).await;
    let (number, begins) = open(&mut tool, "/jobs/{a,c}", None).await.unwrap();
    let mut producer = Client::attach(&running, Role::Producer, 2).await;
    producer.enqueue([job_in("/jobs/b", 2, 10), job_in("/jobs/c", 3, 10)]).await;
    let mut worker = Client::attach(&running, Role::Worker, 3).await;
    worker.subscribe_with(1);
    let delivery = worker.job().await;
    worker.complete(delivery.token).await;
    let (a, c) = ("/jobs/a".to_owned(), "/jobs/c".to_owned());
    let (all, upto) = next_events(&mut tool, 3).await;
    let expected = [
        (c, id(3), JobChange::Created),
        (a.clone(), id(1), JobChange::Delivered),
        (a, id(1), JobChange::Completed),
    ];
    assert_eq!(all, expected, "neither earlier events nor another queue's");
    assert!(upto > begins);
    tool.send(&ToPublisher::Forget(number));
    tool.status().await;
    producer.enqueue([job(4, 10)]).await;
    let more = tokio::time::timeout(A_WHILE, events(&mut tool)).await;
    assert!(more.is_err(), "{more:?}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_feed_receives_its_position_and_stays_fresh() {
    let running = fresh().await;
    let mut tool = Client::attach(&running, Role::Tool, 1).await;
    let (_, begins) = open(&mut tool, "/jobs/none", None).await.unwrap();
    let mut producer = Client::attach(&running, Role::Producer, 2).await;
    producer.enqueue([job(1, 10)]).await;
    // Nothing happens after that.
    let answer = events(&mut tool).await;
    assert_eq!(answer.events, []);
    assert!(answer.upto.index > begins.index);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_feed_ends_without_a_gap_before_its_end() {
    let running = fresh().await;
    let mut tool = Client::attach(&running, Role::Tool, 1).await;
    let mut feeds = BTreeMap::new();
    for _ in 0..FEEDS_MAX {
        let (number, _) = open(&mut tool, "/jobs/**", None).await.unwrap();
        feeds.insert(number, Vec::new());
    }
    assert_eq!(open(&mut tool, "/jobs/**", None).await, Err(RequestError::TooMany));
    // The client reads none of it: the socket takes some, and the tail holds 65,536 of 400,000.
    let mut producer = Client::attach(&running, Role::Producer, 2).await;
    for n in 0..40 {
        producer.enqueue((0..10_000).map(|m| job(n * 10_000 + m, 1))).await;
    }
    let mut ended = 0;
    while ended < FEEDS_MAX {
        match tool.receive().await {
            FromPublisher::Feed(events) => {
                assert!(events.events.len() <= FEED_EVENTS_MAX);
                let jobs = feeds.get_mut(&events.id).unwrap();
                jobs.extend(events.events.iter().map(|event| event.job));
            }
            FromPublisher::FeedEnded { id, end } => {
                assert_eq!(end, FeedEnd::TooOld);
                let jobs = feeds.remove(&id).unwrap();
                let whole: Vec<JobId> = (0..jobs.len() as u32).map(self::id).collect();
                assert!(jobs == whole, "a gap within {} events", jobs.len());
                ended += 1;
            }
            _ => {}
        }
    }
    // The ended feeds free their slots.
    assert!(open(&mut tool, "/jobs/**", None).await.is_ok());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshot_and_feed_agree_with_the_state_under_load() {
    let running = fresh().await;
    let load = [produce(running.address, 10), work(running.address, 11), work(running.address, 12)];
    let mut tool = Client::attach(&running, Role::Tool, 1).await;
    tokio::time::sleep(A_WHILE).await;
    let (_, begins) = open(&mut tool, "/jobs/**", None).await.unwrap();
    // A second link, so that events and pages interleave freely.
    let mut lister = Client::attach(&running, Role::Tool, 2).await;
    let mut known = snapshot(&mut lister).await;
    assert!(
        known.values().all(|state_seen| state_seen.index >= begins.index),
        "listed after the feed began"
    );
    let listed = known.len();
    let mut upto = begins;
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        upto = follow(&mut tool, &mut known).await;
    }
    for task in load {
        task.abort();
        let _ended = task.await;
    }
    // The workers' links end, and after their grace their leases: all of that is in the feed too.
    let listed_now = loop {
        let listed_now = snapshot(&mut lister).await;
        let index = listed_now.values().map(|state_seen| state_seen.index).max().unwrap();
        let is_quiet =
            listed_now.values().all(|state_seen| state_seen.state != Some(JobState::Running));
        while upto.index < index {
            upto = follow(&mut tool, &mut known).await;
        }
        if is_quiet {
            break listed_now;
        }
        tokio::time::sleep(A_WHILE).await;
    };
    while let Ok(_more) = tokio::time::timeout(A_WHILE, follow(&mut tool, &mut known)).await {}
    let listed_last = snapshot(&mut lister).await;
    let states = |jobs: &BTreeMap<JobId, KnownState>| -> BTreeMap<JobId, JobState> {
        jobs.iter().filter_map(|(&id, state_seen)| Some((id, state_seen.state?))).collect()
    };
    assert!(
        listed > 0 && listed_now.len() > listed,
        "{listed} of {}: there was load",
        listed_now.len()
    );
    assert_eq!(states(&known).len(), states(&listed_last).len());
    assert!(states(&known) == states(&listed_last));
    running.stop().await;
}

/// A job's state, none if it was removed, and the command that it reflects.
#[derive(Clone, Copy, Debug)]
struct KnownState {
    state: Option<JobState>,
    index: u64,
}

async fn snapshot(tool: &mut Client) -> BTreeMap<JobId, KnownState> {
    let mut jobs = BTreeMap::new();
    let mut cursor = Some(0);
    while let Some(from) = cursor {
        let filter = Filter::of(glob("/jobs/**"));
        let query = JobsQuery { cursor: from, limit: 200, ..JobsQuery::of(filter) };
        let Answer::Jobs(page) = tool.ask(Request::Jobs(query)).await else { panic!() };
        let state_seen = |job: &JobInfo| KnownState { state: Some(job.state), index: page.index };
        jobs.extend(page.jobs.iter().map(|job| (job.id, state_seen(job))));
        cursor = page.next;
    }
    jobs
}

/// Applies the next events to the known jobs.
async fn follow(tool: &mut Client, known: &mut BTreeMap<JobId, KnownState>) -> FeedPosition {
    let FeedEvents { upto, events, .. } = events(tool).await;
    for event in events {
        let fresh = KnownState { state: event.state, index: event.index };
        let state_seen = known.entry(event.job).or_insert(fresh);
        // A page already contains older events.
        if event.index >= state_seen.index {
            *state_seen = fresh;
        }
    }
    upto
}

/// Enqueues jobs until it is aborted.
fn produce(to: SocketAddr, session: u8) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut producer = Client::attach_at(to, Role::Producer, session).await;
        for n in 0.. {
            let options = |mut job: longshore_protocol::NewJob| {
                job.options.backoff = Some(Backoff::Fixed(20));
                job.options.max_attempts = Some(2);
                job
            };
            producer.enqueue((0..20).map(|m| options(job(n * 20 + m, 10)))).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
}

/// Settles jobs with all outcomes until it is aborted.
fn work(to: SocketAddr, session: u8) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut worker = Client::attach_at(to, Role::Worker, session).await;
        worker.subscribe_with(64);
        for sequence in 1.. {
            let jobs = worker.delivered().await;
            let mut batch = SettleBatchBuilder::new();
            for delivery in &jobs {
                let settle = match delivery.token.0 % 6 {
                    0 => NewSettle::Fail(error("Trouble", "no luck")),
                    1 => NewSettle::Release,
                    2 => NewSettle::Snooze { ms: 10 },
                    3 => NewSettle::Bury(error("Trouble", "no way")),
                    _ => NewSettle::Complete { result: None },
                };
                batch.push(delivery.token, &settle);
            }
            let mut out = FrameWriter::new();
            SettleBatchBuilder::encode(&batch.seal(sequence), &mut out);
            worker.sender.send(out.finish()).unwrap();
            worker.credit(jobs.len() as u32);
        }
    })
}

const _: () = assert!(LONG.as_secs() > 10);
