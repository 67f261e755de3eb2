//! Every message of a work link and every refusal, with a client that sends raw messages.

use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore_protocol::limits::{
    CHECKPOINT_BYTES_MAX, PAUSES_MAX, SETTLES_MAX, WORKER_PATTERNS_MAX,
};
use longshore_protocol::messages::work::{
    Action, Answer, BatchBuilder, Checkpoint, CheckpointInfo, DeadGroups, Filter, FromPublisher,
    NewSettle, Pace, Progress, Quiet, QuietEnd, ReplaceOutcome, Request, RequestError, Selection,
    Started, ToPublisher, Tokens, WorkerPattern, tag,
};
use longshore_protocol::{
    BatchRefusal, CheckpointOutcome, DeathReason, EnqueueOutcome, FrameWriter, Gate, JobId,
    JobState, NewJob, QueueSettings, Refusal, Revoked, Role, SessionId, SettleOutcome, Token,
};

use crate::client::{Client, error, fresh, glob, id, job, path, running};
use longshore_publisher::PublisherOptions;

const STALE: Token = Token(1);

impl Client {
    async fn checkpoint(&mut self, token: Token, sequence: u64, bytes: &[u8]) -> CheckpointOutcome {
        let mut out = FrameWriter::new();
        let body = Checkpoint::body_of(token, sequence, &Bytes::copy_from_slice(bytes));
        Checkpoint::encode(&body, &mut out);
        self.sender.send(out.finish()).unwrap();
        self.checkpointed(sequence).await
    }

    async fn checkpointed(&mut self, sequence: u64) -> CheckpointOutcome {
        self.until(|message| match message {
            FromPublisher::Checkpointed(answer) if answer.sequence == sequence => {
                Some(answer.outcome)
            }
            _ => None,
        })
        .await
    }

    async fn checkpoints(&mut self, token: Token) -> Result<Vec<CheckpointInfo>, RequestError> {
        self.try_ask(Request::Checkpoints { token }).await.map(|answer| match answer {
            Answer::Checkpoints(checkpoints) => checkpoints,
            other => panic!("{other:?}"),
        })
    }

    async fn request_quiet(&mut self, which: &[&str], dry_run: bool) -> u64 {
        let workers = which.iter().map(|text| WorkerPattern::new(text).unwrap()).collect();
        self.request(Request::Quiet { workers, quiet: true, dry_run })
    }

    async fn quiet_answer(&mut self, number: u64) -> Vec<(SessionId, QuietEnd)> {
        match self.answer(number).await {
            Ok(Answer::Quieted(workers)) => {
                workers.into_iter().map(|worker| (worker.session, worker.end)).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    async fn quiet_request(&mut self) -> Quiet {
        self.until(|message| match message {
            FromPublisher::WorkerQuiet(quiet) => Some(quiet),
            _ => None,
        })
        .await
    }

    async fn replace(&mut self, dead: JobId, new: &NewJob) -> ReplaceOutcome {
        match self.ask(Request::Replace { id: dead, entry: entry_of(new) }).await {
            Answer::Replaced(outcome) => outcome,
            other => panic!("{other:?}"),
        }
    }

    async fn enqueue_outcomes(&mut self, sequence: u64, jobs: &[NewJob]) -> Vec<EnqueueOutcome> {
        let mut batch = BatchBuilder::new();
        jobs.iter().for_each(|job| batch.push(job));
        self.send(&ToPublisher::Enqueue(batch.seal(false).to_batch(sequence).unwrap()));
        self.until(|message| match message {
            FromPublisher::Enqueued(answer) => Some(answer.outcome.unwrap().iter().collect()),
            _ => None,
        })
        .await
    }
}

fn entry_of(job: &NewJob) -> Bytes {
    let mut out = FrameWriter::new();
    job.encode_entry_head(&mut out);
    out.put(&job.payload);
    out.into_body()
}

#[tokio::test]
async fn message_of_a_later_version_is_answered_unsupported() {
    let running = fresh().await;
    let mut client = Client::attach(&running, Role::Tool, 1).await;
    let mut out = FrameWriter::new();
    out.message(24, |out| {
        out.u64(300);
        out.string("a field of version 2");
    });
    out.message(29, |_| {});
    client.sender.send(out.finish()).unwrap();
    for (tag, id) in [(24, 300), (29, 0)] {
        assert_eq!(client.receive().await, FromPublisher::Unsupported { tag, id });
    }
    assert!(matches!(client.ask(Request::Status).await, Answer::Status(_)));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_checkpoint_is_refused_and_its_link_continues() {
    let running = fresh().await;
    let mut worker = Client::attach(&running, Role::Worker, 2).await;
    worker.enqueue([job(1, 10)]).await;
    worker.subscribe_with(1);
    let delivery = worker.job().await;
    let large = vec![0; CHECKPOINT_BYTES_MAX + 1];
    assert_eq!(worker.checkpoint(delivery.token, 1, &large).await, CheckpointOutcome::TooLarge);
    assert_eq!(worker.checkpoint(STALE, 1, b"x").await, CheckpointOutcome::StaleToken);
    // A number that Longshore's clients never send.
    assert_eq!(worker.checkpoint(delivery.token, 0, b"x").await, CheckpointOutcome::Gap);
    let most = &large[..CHECKPOINT_BYTES_MAX];
    assert_eq!(worker.checkpoint(delivery.token, 1, most).await, CheckpointOutcome::Accepted);
    worker.complete(delivery.token).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_settle_batch_has_no_outcomes() {
    let running = fresh().await;
    let mut worker = Client::attach(&running, Role::Worker, 2).await;
    worker.enqueue([job(1, 10)]).await;
    worker.subscribe_with(1);
    let delivery = worker.job().await;
    let settle = |sequence: u64, count: u64, verdict: u8| {
        let mut out = FrameWriter::new();
        out.message(tag::SETTLE, |out| {
            out.u64(sequence);
            out.u64(count);
            out.i64(delivery.token.0 as i64);
            out.u8(verdict);
        });
        out.finish()
    };
    for bad in [settle(1, 1, 77), settle(1, 2, 0), settle(1, SETTLES_MAX as u64 + 1, 0)] {
        worker.sender.send(bad).unwrap();
        let outcomes = worker
            .until(|message| match message {
                FromPublisher::Settled(settled) if settled.sequence == 1 => Some(settled.outcomes),
                _ => None,
            })
            .await;
        assert!(outcomes.is_empty());
    }
    // The lease runs on, and ends with the valid batch.
    worker.complete(delivery.token).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_about_foreign_leases_are_revoked_and_counted() {
    let running = fresh().await;
    let mut worker = Client::attach(&running, Role::Worker, 2).await;
    let mut other = Client::attach(&running, Role::Worker, 3).await;
    worker.enqueue([job(1, 10)]).await;
    worker.subscribe_with(1);
    let token = worker.job().await.token;
    let started = Started { tokens: Tokens(vec![token, STALE]), running_ms: Vec::new() };
    worker.send(&ToPublisher::Started(started));
    assert_eq!(worker.revoked().await, (Revoked::LeaseLost, vec![STALE]));
    let progress = |token| Progress { token, percent: 40, message: "reading".to_owned() };
    worker.send(&ToPublisher::Progress(vec![progress(STALE), progress(token)]));
    assert_eq!(worker.revoked().await, (Revoked::LeaseLost, vec![STALE]));
    // The lease belongs to one link: a message from another does not count.
    other.send(&ToPublisher::Progress(vec![Progress { percent: 99, ..progress(token) }]));
    assert_eq!(other.revoked().await, (Revoked::LeaseLost, vec![token]));
    other.send(&ToPublisher::Renew(Tokens(vec![token])));
    let stale = other
        .until(|message| match message {
            FromPublisher::Renewed { stale } => Some(stale.0),
            _ => None,
        })
        .await;
    assert_eq!(stale, [token]);
    let settled = other.settle([(token, NewSettle::Complete { result: None })]).await;
    assert_eq!(settled, [SettleOutcome::StaleToken]);
    assert_eq!(other.checkpoint(token, 1, b"x").await, CheckpointOutcome::StaleToken);
    assert_eq!(other.checkpoints(token).await, Err(RequestError::StaleToken));
    let state_seen = worker.job_info(id(1)).await.unwrap();
    let progress = state_seen.progress.unwrap();
    assert_eq!((progress.percent, progress.message.as_str()), (40, "reading"));
    assert_eq!(
        worker.status().await.stale_refused,
        6,
        "started, progress twice, renewal, settle, checkpoint"
    );
    worker.complete(token).await;
    assert_eq!(worker.job_info(id(1)).await.unwrap().progress, None);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_subscription_is_refused_with_its_reason() {
    let running = fresh().await;
    let mut worker = Client::attach(&running, Role::Worker, 2).await;
    let mut out = FrameWriter::new();
    out.message(tag::SUBSCRIBE, |out| {
        out.u64(5);
        out.u8(0);
        out.u64(0);
    });
    worker.sender.send(out.finish()).unwrap();
    let refused = worker
        .until(|message| match message {
            FromPublisher::SubscribeRefused { subscription, reason } => {
                Some((subscription, reason))
            }
            _ => None,
        })
        .await;
    assert_eq!(refused.0, 5);
    assert!(refused.1.contains("without a pattern"), "{}", refused.1);
    worker.status().await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_progress_is_ignored() {
    let running = fresh().await;
    let mut worker = Client::attach(&running, Role::Worker, 2).await;
    let mut out = FrameWriter::new();
    out.message(tag::PROGRESS, |out| {
        out.u64(1);
        out.i64(7);
        out.u8(101);
        out.string("more than all of it");
    });
    worker.sender.send(out.finish()).unwrap();
    worker.status().await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_beyond_the_memory_limit_are_refused_until_others_end() {
    let dir = tempfile::tempdir().unwrap();
    let memory_max = PublisherOptions::MEMORY_MAX_MIN;
    let options =
        PublisherOptions { memory_max: Some(memory_max), ..PublisherOptions::new(dir.path()) };
    let running = running(options.clone()).await;
    let mut tool = Client::attach(&running, Role::Tool, 1).await;
    let keep_nothing =
        QueueSettings { keep_ms: Some(0), keep_jobs: Some(0), ..QueueSettings::default() };
    let configure =
        Request::Configure { path: path("/jobs/a"), changes: keep_nothing, reset: false };
    tool.ask(configure).await;
    let full = EnqueueOutcome::Refused(Refusal::MemoryFull);
    let mut batch = 0;
    loop {
        let jobs = (0..10_000).map(|n| job(batch * 10_000 + n, 1));
        let outcomes = tool.enqueue(jobs).await.outcome.unwrap();
        if outcomes.iter().all(|outcome| outcome == full) {
            break;
        }
        assert!(outcomes.iter().all(|outcome| outcome == EnqueueOutcome::Created));
        batch += 1;
    }
    let status = tool.status().await;
    let per_job = status.memory_bytes / status.jobs;
    assert!(status.memory_bytes >= memory_max && (100..120).contains(&per_job), "{status:?}");
    assert_eq!(status.memory_max, memory_max);
    // Existing jobs continue, over a restart, too.
    drop(tool);
    running.stop().await;
    let running = self::running(options).await;
    let mut producer = Client::attach(&running, Role::Producer, 2).await;
    assert_eq!(producer.enqueue_outcomes(1, &[job(9_999_999, 1)]).await, [full]);
    // A draining publisher refuses new jobs as such, also without room.
    let mut tool = Client::attach(&running, Role::Tool, 4).await;
    tool.ask(Request::Drain { draining: true }).await;
    assert_eq!(tool.enqueue([job(9_999_999, 1)]).await.outcome, Err(BatchRefusal::Draining));
    tool.ask(Request::Drain { draining: false }).await;
    let mut worker = Client::attach(&running, Role::Worker, 3).await;
    worker.subscribe_with(10_000);
    let mut delivered_tokens = Vec::new();
    while delivered_tokens.len() < 10_000 {
        delivered_tokens.extend(worker.delivered().await.into_iter().map(|job| job.token));
    }
    let completed = NewSettle::Complete { result: None };
    worker.settle(delivered_tokens.into_iter().map(|token| (token, completed.clone()))).await;
    assert_eq!(producer.enqueue_outcomes(2, &[job(9_999_999, 1)]).await, [EnqueueOutcome::Created]);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pauses_are_limited() {
    let running = fresh().await;
    let mut tool = Client::attach(&running, Role::Tool, 1).await;
    let mut out = FrameWriter::new();
    for n in 0..=PAUSES_MAX as u64 {
        let request = {
            let (gate, pattern) = (Gate::Delivery, glob(&format!("/jobs/{n}")));
            Request::Pause { gate, pattern, paused: true }
        };
        ToPublisher::Request { id: 1_000 + n, request }.encode(&mut out);
    }
    tool.sender.send(out.finish()).unwrap();
    let refused = tool.answer(1_000 + PAUSES_MAX as u64).await;
    assert_eq!(refused, Err(RequestError::TooManyPauses));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tool_learns_which_workers_confirmed_being_quiet() {
    let running = fresh().await;
    let mut tool = Client::attach(&running, Role::Tool, 1).await;
    let mut first = Client::attach(&running, Role::Worker, 2).await;
    let mut second = Client::attach(&running, Role::Worker, 3).await;
    let _producer = Client::attach(&running, Role::Producer, 4).await;
    let [a, b] = [2, 3].map(|n| SessionId([n; 16]));

    let dry_run_request = tool.request_quiet(&["te?t"], true).await;
    let matched = [(a, QuietEnd::Matched), (b, QuietEnd::Matched)];
    assert_eq!(
        tool.quiet_answer(dry_run_request).await,
        matched,
        "only workers, and none of them receives a request"
    );
    let unmatched = tool.request_quiet(&["tes", "04040404"], false).await;
    assert_eq!(tool.quiet_answer(unmatched).await, []);

    let request_number = tool.request_quiet(&["te*", "nobody"], false).await;
    let answer = first.quiet_request().await;
    assert_eq!(second.quiet_request().await, answer);
    assert!(answer.quiet && answer.request > 0);
    first.send(&ToPublisher::Quieted(answer));
    // The other link ends, and with it the wait for its answer.
    drop(second);
    let ends = [(a, QuietEnd::Confirmed), (b, QuietEnd::NotAnswered)];
    assert_eq!(tool.quiet_answer(request_number).await, ends);

    let request_number = tool.request_quiet(&["02020202"], false).await;
    let again = first.quiet_request().await;
    assert!(again.request > answer.request);
    first.send(&ToPublisher::Quieted(Quiet { quiet: false, ..again }));
    assert_eq!(tool.quiet_answer(request_number).await, [(a, QuietEnd::Otherwise)]);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_that_never_answers_a_quiet_request_is_reported() {
    let running = fresh().await;
    let mut tool = Client::attach(&running, Role::Tool, 1).await;
    let mut worker = Client::attach(&running, Role::Worker, 2).await;
    let began = Instant::now();
    let request_number = tool.request_quiet(&["*"], false).await;
    worker.quiet_request().await;
    let ends = [(SessionId([2; 16]), QuietEnd::NotAnswered)];
    assert_eq!(tool.quiet_answer(request_number).await, ends);
    assert!(began.elapsed() >= Duration::from_secs(5), "{:?}", began.elapsed());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_patterns_are_limited() {
    let running = fresh().await;
    let mut tool = Client::attach(&running, Role::Tool, 1).await;
    let most = vec!["w"; WORKER_PATTERNS_MAX];
    let request_number = tool.request_quiet(&most, false).await;
    assert_eq!(tool.quiet_answer(request_number).await, []);
    let request_number = tool.request_quiet(&[&most[..], &["w"]].concat(), false).await;
    assert_eq!(tool.answer(request_number).await, Err(RequestError::OverLimit));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_job_is_replaced_once() {
    let running = fresh().await;
    let mut tool = Client::attach(&running, Role::Tool, 1).await;
    let mut worker = Client::attach(&running, Role::Worker, 2).await;
    tool.enqueue([job(1, 10), job(2, 10)]).await;
    worker.subscribe_with(1);
    let delivery = worker.job().await;
    worker.bury(delivery.token, "Bad", "payload").await;
    let mut better = job(3, 20);
    better.payload = Bytes::from_static(b"better");
    assert_eq!(tool.replace(id(9), &better).await, ReplaceOutcome::Unknown);
    assert_eq!(tool.replace(id(2), &better).await, ReplaceOutcome::NotDead);
    assert_eq!(tool.replace(id(1), &job(2, 5)).await, ReplaceOutcome::IdConflict);
    let nonsense = Request::Replace { id: id(1), entry: Bytes::from_static(b"nonsense") };
    assert_eq!(tool.ask(nonsense).await, Answer::Replaced(ReplaceOutcome::BadOptions));
    assert_eq!(tool.replace(id(1), &better).await, ReplaceOutcome::Replaced);
    assert_eq!(tool.replace(id(1), &better).await, ReplaceOutcome::Replaced, "repeated");
    assert_eq!(tool.job_info(id(1)).await, None);
    let state_seen = tool.job_info(id(3)).await.unwrap();
    assert_eq!((state_seen.state, state_seen.replaces), (JobState::Ready, Some(id(1))));
    worker.credit(2);
    let mut jobs = worker.delivered().await;
    while jobs.len() < 2 {
        jobs.extend(worker.delivered().await);
    }
    let entries: Vec<Bytes> = jobs.into_iter().map(|delivery| delivery.entry).collect();
    assert!(entries.contains(&entry_of(&better)), "the worker gets the new payload");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_are_grouped_and_revived_at_a_rate() {
    const JOBS: u32 = 30;
    let running = fresh().await;
    let mut tool = Client::attach(&running, Role::Tool, 1).await;
    let mut worker = Client::attach(&running, Role::Worker, 2).await;
    tool.enqueue((0..JOBS).map(|n| job(n, 10))).await;
    worker.subscribe_with(JOBS);
    let mut jobs = Vec::new();
    while jobs.len() < JOBS as usize {
        jobs.extend(worker.delivered().await);
    }
    let bury = |(n, token): (usize, Token)| {
        let kind = if n % 3 == 0 { "Timeout" } else { "io::Error" };
        (token, NewSettle::Bury(error(kind, &format!("disk {n} is on fire"))))
    };
    worker.settle(jobs.iter().map(|job| job.token).enumerate().map(bury)).await;
    let Answer::DeadGroups(DeadGroups { groups, more }) =
        tool.ask(Request::DeadGroups { filter: Filter::of(glob("/jobs/**")) }).await
    else {
        panic!()
    };
    assert!(!more);
    let sizes: Vec<_> = groups.iter().map(|group| (group.jobs, group.death)).collect();
    assert_eq!(sizes, [(20, DeathReason::Buried), (10, DeathReason::Buried)]);
    let error = groups[0].error.as_ref().unwrap();
    assert_eq!(error.kind, "io::Error");
    assert!(error.message.starts_with("disk "));

    let filter =
        Filter { fingerprint: Some(groups[1].fingerprint), ..Filter::of(glob("/jobs/**")) };
    let selection = Selection::Matching(filter);
    let revive = |dry_run| Request::Act {
        action: Action::Revive,
        selection: selection.clone(),
        pace: Some(Pace { per_second: 5, before: 0 }),
        dry_run,
    };
    let Answer::Acted(report) = tool.ask(revive(true)).await else { panic!() };
    assert_eq!(report.done, 10);
    assert_eq!(tool.counts().await.dead, 30, "a dry run only counts");
    let Answer::Acted(report) = tool.ask(revive(false)).await else { panic!() };
    assert_eq!((report.done, report.more), (10, false));
    let counts = tool.counts().await;
    assert_eq!((counts.dead, counts.ready), (20, 1));
    assert_eq!(counts.scheduled, 9, "five a second");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confirming_the_clock_succeeds_without_an_alarm() {
    let running = fresh().await;
    let mut tool = Client::attach(&running, Role::Tool, 1).await;
    assert_eq!(tool.ask(Request::ConfirmClock).await, Answer::Done);
    assert!(!tool.status().await.clock_held);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_request_is_refused() {
    let running = fresh().await;
    let mut tool = Client::attach(&running, Role::Tool, 1).await;
    let mut out = FrameWriter::new();
    out.message(tag::REQUEST, |out| {
        out.u64(900);
        out.u8(200);
    });
    tool.sender.send(out.finish()).unwrap();
    assert_eq!(tool.answer(900).await, Err(RequestError::Unknown));
    running.stop().await;
}
