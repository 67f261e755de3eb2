//! What a publisher says.

use bytes::Bytes;
use longshore_protocol::messages::work::*;
use longshore_protocol::*;

use super::{Sample, full_job, glob, job_id, path, plain_job, position, settings, tokens};

pub(super) fn from_publisher() -> Vec<(&'static str, &'static str, FromPublisher)> {
    let answer = |answer| FromPublisher::Answer { id: 9, answer };
    let entry = |job: NewJob| Sample::Entry(job).encode();
    vec![
        (
            "attached",
            "Attached: fsync, next batch 5, next settle 6, token 4294967290 gone, 5000 ms",
            {
                FromPublisher::Attached(Attached {
                    durability: Durability::Fsync,
                    next_batch: 5,
                    next_settle: 6,
                    gone: tokens(&[4_294_967_290]),
                    reconnect_grace_ms: 5_000,
                })
            },
        ),
        ("enqueued", "Enqueued batch 1: created x 300, existing, refused QueueFull", {
            let mut outcomes = Runs::all(EnqueueOutcome::Created, 300);
            outcomes.push(EnqueueOutcome::Existing);
            outcomes.push(EnqueueOutcome::Refused(Refusal::QueueFull));
            FromPublisher::Enqueued(Enqueued { sequence: 1, outcome: Ok(outcomes) })
        }),
        ("enqueued-refused", "Enqueued batch 7: refused whole, SequenceGap", {
            FromPublisher::Enqueued(Enqueued {
                sequence: 7,
                outcome: Err(BatchRefusal::SequenceGap),
            })
        }),
        ("deliver", "Deliver to subscription 1: two jobs of two queues", {
            FromPublisher::Deliver(Deliver {
                subscription: 1,
                paths: vec![path("/jobs/mail"), path("/jobs/mail/welcome")],
                jobs: vec![
                    Delivery {
                        token: Token(4_294_967_297),
                        path: 0,
                        attempt: 1,
                        deliveries: 1,
                        lease_ms: 30_000,
                        checkpoints: 0,
                        entry: entry(plain_job()),
                    },
                    Delivery {
                        token: Token(4_294_967_298),
                        path: 1,
                        attempt: 2,
                        deliveries: 3,
                        lease_ms: 60_000,
                        checkpoints: 2,
                        entry: entry(full_job()),
                    },
                ],
            })
        }),
        ("returned", "Returned: 12 credits of subscription 1", {
            FromPublisher::Returned(Credit { subscription: 1, count: 12 })
        }),
        ("waiting", "Waiting: 100000 jobs for subscription 1", {
            FromPublisher::Waiting(Waiting { subscription: 1, jobs: 100_000 })
        }),
        ("settled", "Settled batch 2: accepted x 2, stale, result too large, accepted", {
            let outcomes = [
                SettleOutcome::Accepted,
                SettleOutcome::Accepted,
                SettleOutcome::StaleToken,
                SettleOutcome::ResultTooLarge,
                SettleOutcome::Accepted,
            ];
            FromPublisher::Settled(Settled {
                sequence: 2,
                outcomes: outcomes.into_iter().collect(),
            })
        }),
        ("settled-forgotten", "Settled batch 1: no outcomes, it is older than the last 64", {
            FromPublisher::Settled(Settled { sequence: 1, outcomes: Runs::default() })
        }),
        ("revoked", "Revoked: tokens 1000 and 1001, cancelled", {
            FromPublisher::Revoked { reason: Revoked::Cancelled, tokens: tokens(&[1_000, 1_001]) }
        }),
        ("answer-status", "Answer 9: status", answer(Ok(Answer::Status(status())))),
        ("answer-queues", "Answer 9: one queue", answer(Ok(Answer::Queues(vec![queue_stat()])))),
        ("answer-jobs", "Answer 9: a page of two jobs, and more", {
            let jobs = vec![running_job(), dead_job()];
            answer(Ok(Answer::Jobs(JobsPage { jobs, next: Some(5_002), index: 1_234_567 })))
        }),
        ("answer-job", "Answer 9: one job", answer(Ok(Answer::Job(Some(Box::new(dead_job())))))),
        ("answer-job-none", "Answer 9: no such job", answer(Ok(Answer::Job(None)))),
        ("answer-acted", "Answer 9: 500 done, 2 refused, 1 unknown, more to do", {
            let mut outcomes = Runs::all(ActOutcome::Done, 500);
            outcomes.push_many(ActOutcome::NotInState(JobState::Completed), 2);
            outcomes.push(ActOutcome::Unknown);
            let report = ActionReport { done: 500, refused: 2, unknown: 1, more: true, outcomes };
            answer(Ok(Answer::Acted(report)))
        }),
        ("answer-dead-groups", "Answer 9: one group of 40 dead jobs, and more", {
            let groups = vec![dead_group()];
            answer(Ok(Answer::DeadGroups(DeadGroups { groups, more: true })))
        }),
        ("answer-paused", "Answer 9: two queues, paused still by /jobs/mail", {
            let still_by = vec![glob("/jobs/mail")];
            answer(Ok(Answer::Paused(PauseReport { queues: 2, changed: true, still_by })))
        }),
        ("answer-configured", "Answer 9: every setting", {
            answer(Ok(Answer::Configured(Ok(settings()))))
        }),
        ("answer-configured-refused", "Answer 9: not configured, NotHere", {
            answer(Ok(Answer::Configured(Err(Refusal::NotHere))))
        }),
        ("answer-replaced", "Answer 9: not replaced, NotDead", {
            answer(Ok(Answer::Replaced(ReplaceOutcome::NotDead)))
        }),
        ("answer-checkpoints", "Answer 9: two checkpoints, with their bytes", {
            answer(Ok(Answer::Checkpoints(vec![
                checkpoint_info(1, Some(b"row 400")),
                checkpoint_info(2, Some(b"")),
            ])))
        }),
        ("answer-feed", "Answer 9: the feed follows from 5000 of epoch 7", {
            answer(Ok(Answer::Feed(position())))
        }),
        ("answer-done", "Answer 9: done", answer(Ok(Answer::Done))),
        ("answer-quieted", "Answer 9: w1 confirmed, w2 did not answer", {
            let worker = |n: u8, end| QuietedWorker {
                name: format!("w{n}"),
                session: SessionId([n; 16]),
                end,
            };
            answer(Ok(Answer::Quieted(vec![
                worker(1, QuietEnd::Confirmed),
                worker(2, QuietEnd::NotAnswered),
            ])))
        }),
        ("unsupported", "Unsupported: tag 24, number 300", {
            FromPublisher::Unsupported { tag: 24, id: 300 }
        }),
        ("worker-quiet", "Worker, be quiet: ask 300", {
            FromPublisher::WorkerQuiet(Quiet { ask: 300, quiet: true })
        }),
        ("answer-error", "Answer 9: OverLimit", answer(Err(RequestError::OverLimit))),
        ("subscribe-refused", "Subscription 1 refused", {
            FromPublisher::SubscribeRefused { subscription: 1, reason: "too many".into() }
        }),
        ("renewed", "Renewed: token 999 is stale", {
            FromPublisher::Renewed { stale: tokens(&[999]) }
        }),
        ("goodbye", "Goodbye: stopping", FromPublisher::Goodbye { reason: "stopping".into() }),
        ("checkpointed", "Checkpoint 2 of token 1000: a gap before it", {
            FromPublisher::Checkpointed(Checkpointed {
                token: Token(1_000),
                sequence: 2,
                outcome: CheckpointOutcome::Gap,
            })
        }),
        ("feed", "Feed 9 up to 5000: a job created, failed, and another gone", {
            FromPublisher::Feed(feed_events())
        }),
        ("feed-ended", "Feed 9 ended: TooOld", {
            FromPublisher::FeedEnded { id: 9, end: FeedEnd::TooOld }
        }),
    ]
}

fn dead_group() -> DeadGroup {
    DeadGroup {
        path: path("/jobs/mail"),
        death: DeathReason::AttemptsExhausted,
        fingerprint: Fingerprint(0x0123_4567_89ab_cdef),
        jobs: 40,
        first_at: 1_760_000_000_000,
        last_at: 1_760_000_060_000,
        example: job_id(1),
        error: Some(JobError { kind: "io::Error".into(), message: "no such file".into() }),
    }
}

fn checkpoint_info(sequence: u64, bytes: Option<&'static [u8]>) -> CheckpointInfo {
    CheckpointInfo {
        attempt: 1,
        sequence,
        at: 1_760_000_000_500,
        length: bytes.map_or(70, |bytes| bytes.len() as u64),
        bytes: bytes.map(Bytes::from_static),
    }
}

fn feed_events() -> FeedEvents {
    let event = |index, at: u64, job, path, change, state| FeedEvent {
        index,
        at: 1_760_000_000_000 + at,
        job: job_id(job),
        path,
        change,
        state,
        retrying: false,
        attempt: 0,
    };
    FeedEvents {
        id: 9,
        upto: position(),
        paths: vec![path("/jobs/mail"), path("/jobs/sms")],
        events: vec![
            event(4_990, 0, 1, 0, JobChange::Created, Some(JobState::Ready)),
            FeedEvent {
                retrying: true,
                attempt: 1,
                ..event(4_995, 300, 1, 0, JobChange::Failed, Some(JobState::Scheduled))
            },
            event(4_995, 299, 2, 1, JobChange::Forgotten, None),
        ],
    }
}

fn status() -> PublisherStatus {
    PublisherStatus {
        name: "p1".into(),
        durability: Durability::Fsync,
        uptime_ms: 60_000,
        links: 3,
        jobs: 1_000,
        queues: 2,
        committed_index: 1_234_567,
        oldest_uncommitted_ms: 0,
        journal_bytes: 5_000_000,
        written_bytes: 4_000_000,
        payload_bytes: 3_000_000,
        syncs: 800,
        stale_refused: 7,
        clock_held: true,
        paused: vec![glob("/jobs/**")],
        closed: vec![glob("/old/*")],
        room: Room::NoEnqueues,
        ballast_bytes: 4_194_304,
        memory_bytes: 105_000,
        memory_max: 4_294_967_296,
        draining: true,
    }
}

fn queue_stat() -> QueueStat {
    QueueStat {
        path: path("/jobs/mail"),
        counts: JobCounts {
            scheduled: 1,
            retrying: 2,
            ready: 3,
            running: 4,
            completed: 500,
            dead: 6,
            cancelled: 7,
            prepared: 8,
            expired: 9,
        },
        oldest_ready_ms: Some(1_500),
        enqueued: 523,
        completed: 500,
        failed: 20,
        redelivered: 9,
        stale_refused: 1,
        subscriptions: 2,
        credits: 0,
        died: 11,
        paused_by: vec![glob("/jobs/**")],
        closed_by: vec![glob("/jobs/mail")],
        settings: settings(),
    }
}

fn running_job() -> JobInfo {
    JobInfo {
        id: job_id(1),
        path: path("/jobs/mail"),
        state: JobState::Running,
        retrying: false,
        priority: 0,
        attempt: 1,
        max_attempts: 10,
        deliveries: 1,
        lease_ms: 30_000,
        run_timeout_ms: 3_600_000,
        enqueued_at: 1_760_000_000_000,
        due_at: None,
        expires_at: None,
        delivered_at: Some(1_760_000_000_200),
        ended_at: None,
        token: Some(Token(4_294_967_297)),
        worker: Some("w1".into()),
        death: None,
        error: None,
        replaces: None,
        progress: Some(ProgressInfo {
            percent: 40,
            message: "400 of 1000 rows".into(),
            at: 1_760_000_000_900,
        }),
        attempts: Vec::new(),
        checkpoints: vec![checkpoint_info(3, None)],
        payload_len: 5,
        payload: None,
        headers: None,
        result: None,
        options: None,
    }
}

fn dead_job() -> JobInfo {
    JobInfo {
        state: JobState::Dead,
        priority: -5,
        attempt: 3,
        max_attempts: 3,
        deliveries: 4,
        due_at: Some(1_760_000_001_000),
        ended_at: Some(1_760_000_002_000),
        token: None,
        worker: None,
        death: Some(DeathReason::AttemptsExhausted),
        error: Some(JobError { kind: "io::Error".into(), message: "no such file".into() }),
        expires_at: Some(1_760_000_600_000),
        delivered_at: None,
        replaces: Some(job_id(3)),
        progress: None,
        attempts: attempts(),
        checkpoints: Vec::new(),
        payload: Some(Bytes::from_static(b"hello")),
        headers: Some(full_job().headers),
        result: Some(Bytes::from_static(b"42")),
        options: Some(full_job().options),
        ..running_job()
    }
}

fn attempts() -> Vec<AttemptInfo> {
    let attempt = |number, outcome, error: Option<JobError>| AttemptInfo {
        number,
        worker: "w1".into(),
        delivered_at: 1_760_000_000_200,
        ended_at: 1_760_000_000_900,
        outcome,
        fingerprint: error.as_ref().map(Fingerprint::of),
        error,
    };
    let error = JobError { kind: "io::Error".into(), message: "no such file".into() };
    vec![
        attempt(1, AttemptOutcome::WorkerLost, None),
        attempt(2, AttemptOutcome::Failed, Some(error)),
    ]
}
