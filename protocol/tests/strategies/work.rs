//! Jobs, and all that is said on a work link.

use bytes::Bytes;
use longshore_protocol::limits::*;
use longshore_protocol::messages::work::*;
use longshore_protocol::*;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

pub(crate) fn text() -> impl Strategy<Value = String> {
    "\\PC{0,20}"
}

pub(crate) fn bytes() -> impl Strategy<Value = Bytes> {
    let short = vec(any::<u8>(), 0..64);
    let long = (any::<u8>(), 0usize..20_000).prop_map(|(byte, n)| vec![byte; n]);
    prop_oneof![3 => short, 1 => long].prop_map(Bytes::from)
}

pub(crate) fn path() -> impl Strategy<Value = Path> {
    "(/[a-zé .-]{1,6}){1,5}".prop_filter_map("a path", |text| Path::new(&text).ok())
}

pub(crate) fn glob() -> impl Strategy<Value = Glob> {
    "(/([a-z?*é]{0,3}[a-z]|\\*\\*|\\{a,b\\})){1,5}"
        .prop_filter_map("a glob", |text| Glob::new(&text).ok())
}

pub(crate) fn job_id() -> impl Strategy<Value = JobId> {
    any::<[u8; 16]>().prop_map(JobId)
}

pub(crate) fn headers() -> impl Strategy<Value = Headers> {
    vec((text(), text()), 0..4).prop_map(Headers)
}

pub(crate) fn backoff() -> impl Strategy<Value = Backoff> {
    prop_oneof![
        any::<(u32, u32)>().prop_map(|(base_ms, max_ms)| Backoff::Exponential { base_ms, max_ms }),
        any::<u32>().prop_map(Backoff::Fixed),
        any::<(u32, u32)>().prop_map(|(step_ms, max_ms)| Backoff::Linear { step_ms, max_ms }),
        vec(any::<u32>(), 1..=Backoff::LIST_MAX).prop_map(Backoff::List),
        Just(Backoff::Hangfire),
        Just(Backoff::Quartic),
    ]
}

pub(crate) fn options() -> impl Strategy<Value = JobOptions> {
    let due = prop_oneof![
        Just(Due::Now),
        (0..=WAIT_MS_MAX).prop_map(Due::After),
        (0..=RUN_AT_MS_MAX).prop_map(Due::At),
    ];
    let run = (
        option::of(1..=u16::MAX),
        option::of(LEASE_MS_MIN..=LEASE_MS_MAX),
        option::of(0..=WAIT_MS_MAX),
        option::of(backoff()),
        option::of(0..=WAIT_MS_MAX),
    );
    let expires_at = option::of(0..=RUN_AT_MS_MAX);
    (any::<(i32, bool, bool)>(), due, expires_at, run).prop_map(
        |((priority, prepared, keep_result), due, expires_at, run)| {
            let (max_attempts, lease_ms, run_timeout_ms, backoff, keep_ms) = run;
            JobOptions {
                priority,
                due,
                prepared,
                expires_at,
                max_attempts,
                lease_ms,
                run_timeout_ms,
                backoff,
                keep_ms,
                keep_result,
            }
        },
    )
}

pub(crate) fn settings() -> impl Strategy<Value = QueueSettings> {
    let keep_jobs = option::of(0..=KEEP_JOBS_MAX);
    let keep_dead_ms = option::of(0..=WAIT_MS_MAX);
    (options(), keep_jobs, keep_dead_ms).prop_map(|(options, keep_jobs, keep_dead_ms)| {
        QueueSettings {
            max_attempts: options.max_attempts,
            lease_ms: options.lease_ms,
            run_timeout_ms: options.run_timeout_ms,
            backoff: options.backoff,
            keep_ms: options.keep_ms,
            keep_jobs,
            keep_dead_ms,
        }
    })
}

pub(crate) fn job() -> impl Strategy<Value = NewJob> {
    let options = prop_oneof![Just(JobOptions::default()), options()];
    (path(), job_id(), bytes(), headers(), options).prop_map(
        |(path, id, payload, headers, options)| NewJob { path, id, payload, headers, options },
    )
}

pub(crate) fn error() -> impl Strategy<Value = JobError> {
    (text(), text()).prop_map(|(kind, message)| JobError { kind, message })
}

pub(crate) fn settle() -> impl Strategy<Value = NewSettle> {
    prop_oneof![
        option::of(bytes()).prop_map(|result| NewSettle::Complete { result }),
        error().prop_map(NewSettle::Fail),
        Just(NewSettle::Release),
        (0..=WAIT_MS_MAX).prop_map(|ms| NewSettle::Snooze { ms }),
        error().prop_map(NewSettle::Bury),
    ]
}

pub(crate) fn tokens() -> impl Strategy<Value = Tokens> {
    vec(any::<u64>().prop_map(Token), 0..20).prop_map(Tokens)
}

pub(crate) fn credit() -> impl Strategy<Value = Credit> {
    (any::<u32>(), 0..=CREDITS_MAX).prop_map(|(subscription, count)| Credit { subscription, count })
}

pub(crate) fn filter() -> impl Strategy<Value = Filter> {
    let kind = (option::of(select(JobState::ALL)), option::of(select(DeathReason::ALL)));
    (glob(), kind, any::<[Option<u64>; 3]>()).prop_map(|(pattern, (state, death), numbers)| {
        let [fingerprint, ended_from, ended_before] = numbers;
        let fingerprint = fingerprint.map(Fingerprint);
        Filter { pattern, state, death, fingerprint, ended_from, ended_before }
    })
}

pub(crate) fn position() -> impl Strategy<Value = FeedPosition> {
    any::<(u64, u64)>().prop_map(|(epoch, index)| FeedPosition { epoch: Epoch(epoch), index })
}

pub(crate) fn worker_pattern() -> impl Strategy<Value = WorkerPattern> {
    "[a-z*?é/-]{1,20}".prop_map(|text| WorkerPattern::new(&text).unwrap())
}

pub(crate) fn quiet() -> impl Strategy<Value = Quiet> {
    any::<(u64, bool)>().prop_map(|(ask, quiet)| Quiet { ask, quiet })
}

pub(crate) fn quieted_worker() -> impl Strategy<Value = QuietedWorker> {
    (text(), any::<[u8; 16]>(), select(QuietEnd::ALL))
        .prop_map(|(name, session, end)| QuietedWorker { name, session: SessionId(session), end })
}

pub(crate) fn request() -> impl Strategy<Value = Request> {
    let selection = prop_oneof![
        vec(job_id(), 0..20).prop_map(Selection::Ids),
        filter().prop_map(Selection::Matching),
    ];
    let pace = option::of(
        (1..=u32::MAX, any::<u64>()).prop_map(|(per_second, before)| Pace { per_second, before }),
    );
    let looking = prop_oneof![
        Just(Request::Status),
        Just(Request::ConfirmClock),
        glob().prop_map(|pattern| Request::Queues { pattern }),
        (filter(), any::<(u64, u32, bool)>()).prop_map(|(filter, (cursor, limit, full))| {
            Request::Jobs(JobsQuery { filter, cursor, limit, full })
        }),
        job_id().prop_map(|id| Request::Job { id }),
        job_id().prop_map(|id| Request::Await { id }),
        filter().prop_map(|filter| Request::DeadGroups { filter }),
        any::<u64>().prop_map(|token| Request::Checkpoints { token: Token(token) }),
        (glob(), option::of(position()))
            .prop_map(|(pattern, after)| Request::Feed { pattern, after }),
    ];
    let acting = prop_oneof![
        (select(Action::ALL), selection, pace, any::<bool>()).prop_map(
            |(action, selection, pace, dry_run)| {
                Request::Act { action, selection, pace, dry_run }
            }
        ),
        (select(Gate::ALL), glob(), any::<bool>())
            .prop_map(|(gate, pattern, paused)| Request::Pause { gate, pattern, paused }),
        any::<bool>().prop_map(|draining| Request::Drain { draining }),
        (path(), settings(), any::<bool>())
            .prop_map(|(path, changes, reset)| { Request::Configure { path, changes, reset } }),
        (job_id(), bytes()).prop_map(|(id, entry)| Request::Replace { id, entry }),
        (vec(worker_pattern(), 0..4), any::<(bool, bool)>())
            .prop_map(|(workers, (quiet, dry_run))| Request::Quiet { workers, quiet, dry_run }),
    ];
    prop_oneof![looking, acting]
}

pub(crate) fn sources() -> impl Strategy<Value = Sources> {
    let source = (glob(), 1..=u16::MAX).prop_map(|(pattern, weight)| Source { pattern, weight });
    (select(Order::ALL), vec(source, 1..5))
        .prop_map(|(order, patterns)| Sources { order, patterns })
}

pub(crate) fn started() -> impl Strategy<Value = Started> {
    vec(any::<(u64, u64)>(), 0..20).prop_flat_map(|all| {
        any::<bool>().prop_map(move |now| Started {
            tokens: Tokens(all.iter().map(|&(token, _)| Token(token)).collect()),
            running_ms: if now { Vec::new() } else { all.iter().map(|&(_, ms)| ms).collect() },
        })
    })
}

pub(crate) fn progress() -> impl Strategy<Value = Progress> {
    (any::<u64>(), 0..=100u8, text()).prop_map(|(token, percent, message)| Progress {
        token: Token(token),
        percent,
        message,
    })
}

pub(crate) fn checkpoint() -> impl Strategy<Value = Checkpoint> {
    (any::<u64>(), 1..=u64::MAX, bytes()).prop_map(|(token, sequence, bytes)| {
        Checkpoint::decode(Checkpoint::body_of(Token(token), sequence, &bytes)).unwrap()
    })
}

pub(crate) fn to_publisher() -> impl Strategy<Value = ToPublisher> {
    let batch = (vec(job(), 0..4), any::<(bool, u64)>()).prop_map(|(jobs, (atomic, sequence))| {
        let mut builder = BatchBuilder::new();
        jobs.iter().for_each(|job| builder.push(job));
        builder.seal(atomic).to_batch(sequence).unwrap()
    });
    let settles =
        (vec((any::<u64>(), settle()), 0..6), any::<u64>()).prop_map(|(all, sequence)| {
            let mut builder = SettleBatchBuilder::new();
            all.iter().for_each(|(token, settle)| builder.push(Token(*token), settle));
            SettleBatch::decode(builder.seal(sequence)).unwrap()
        });
    prop_oneof![
        tokens().prop_map(|resume| ToPublisher::Attach(Attach { resume })),
        batch.prop_map(ToPublisher::Enqueue),
        (any::<u32>(), sources()).prop_map(|(subscription, sources)| {
            ToPublisher::Subscribe(Subscribe { subscription, sources })
        }),
        any::<u32>().prop_map(ToPublisher::Unsubscribe),
        credit().prop_map(ToPublisher::Credit),
        credit().prop_map(ToPublisher::Recall),
        started().prop_map(ToPublisher::Started),
        vec(progress(), 0..6).prop_map(ToPublisher::Progress),
        checkpoint().prop_map(ToPublisher::Checkpoint),
        any::<u64>().prop_map(ToPublisher::Forget),
        quiet().prop_map(ToPublisher::Quieted),
        settles.prop_map(ToPublisher::Settle),
        tokens().prop_map(ToPublisher::Renew),
        (any::<u64>(), request()).prop_map(|(id, request)| ToPublisher::Request { id, request }),
    ]
}

pub(crate) fn settle_outcome() -> impl Strategy<Value = SettleOutcome> {
    select(SettleOutcome::ALL)
}

pub(crate) fn deliver() -> impl Strategy<Value = Deliver> {
    let job = (any::<u64>(), any::<prop::sample::Index>(), any::<(u16, u16, u32, u16)>(), bytes());
    (any::<u32>(), vec(path(), 1..4), vec(job, 0..6)).prop_map(|(subscription, paths, jobs)| {
        let jobs = jobs
            .into_iter()
            .map(|(token, path, (attempt, deliveries, lease_ms, checkpoints), entry)| Delivery {
                token: Token(token),
                path: path.index(paths.len()) as u32,
                attempt,
                deliveries,
                lease_ms,
                checkpoints,
                entry,
            })
            .collect();
        Deliver { subscription, paths, jobs }
    })
}

pub(crate) fn attempt() -> impl Strategy<Value = AttemptInfo> {
    let error = (option::of(error()), any::<Option<u64>>());
    (any::<(u16, u64, u64)>(), text(), select(AttemptOutcome::ALL), error).prop_map(
        |((number, delivered_at, ended_at), worker, outcome, (error, fingerprint))| {
            let fingerprint = fingerprint.map(Fingerprint);
            AttemptInfo { number, worker, delivered_at, ended_at, outcome, error, fingerprint }
        },
    )
}

pub(crate) fn checkpoint_info() -> impl Strategy<Value = CheckpointInfo> {
    (any::<(u16, u64, u64, u64)>(), option::of(bytes())).prop_map(
        |((attempt, sequence, at, length), bytes)| CheckpointInfo {
            attempt,
            sequence,
            at,
            length,
            bytes,
        },
    )
}

pub(crate) fn progress_info() -> impl Strategy<Value = ProgressInfo> {
    (0..=100u8, text(), any::<u64>()).prop_map(|(percent, message, at)| ProgressInfo {
        percent,
        message,
        at,
    })
}

pub(crate) fn job_info() -> impl Strategy<Value = JobInfo> {
    let numbers = any::<((bool, i32, u16, u16, u16), (u64, u64, u32, u64))>();
    let times = any::<[Option<u64>; 5]>();
    let end = (option::of(text()), option::of(select(DeathReason::ALL)), option::of(error()));
    let kept = (
        option::of(job_id()),
        option::of(progress_info()),
        vec(attempt(), 0..3),
        vec(checkpoint_info(), 0..3),
    );
    let full =
        (option::of(bytes()), option::of(headers()), option::of(bytes()), option::of(options()));
    (job_id(), path(), select(JobState::ALL), numbers, times, end, kept, full).prop_map(
        |(id, path, state, numbers, times, (worker, death, error), kept, full)| {
            let ((retrying, priority, attempt, max_attempts, deliveries), figures) = numbers;
            let [due_at, expires_at, delivered_at, ended_at, token] = times;
            let (replaces, progress, attempts, checkpoints) = kept;
            JobInfo {
                id,
                path,
                state,
                retrying,
                priority,
                attempt,
                max_attempts,
                deliveries,
                lease_ms: figures.2,
                run_timeout_ms: figures.3,
                enqueued_at: figures.0,
                due_at,
                expires_at,
                delivered_at,
                ended_at,
                token: token.map(Token),
                worker,
                death,
                error,
                replaces,
                progress,
                attempts,
                checkpoints,
                payload_len: figures.1,
                payload: full.0,
                headers: full.1,
                result: full.2,
                options: full.3,
            }
        },
    )
}

pub(crate) fn queue_stat() -> impl Strategy<Value = QueueStat> {
    let set = (vec(glob(), 0..3), vec(glob(), 0..3), settings());
    (path(), any::<[u64; 17]>(), any::<Option<u64>>(), set).prop_map(
        |(path, n, oldest_ready_ms, (paused_by, closed_by, settings))| QueueStat {
            path,
            counts: JobCounts {
                scheduled: n[0],
                retrying: n[1],
                ready: n[2],
                running: n[3],
                completed: n[4],
                dead: n[5],
                cancelled: n[6],
                prepared: n[14],
                expired: n[15],
            },
            oldest_ready_ms,
            enqueued: n[7],
            completed: n[8],
            failed: n[9],
            redelivered: n[10],
            stale_refused: n[11],
            subscriptions: n[12],
            credits: n[13],
            died: n[16],
            paused_by,
            closed_by,
            settings,
        },
    )
}

pub(crate) fn status() -> impl Strategy<Value = PublisherStatus> {
    let paused = (vec(glob(), 0..3), vec(glob(), 0..3));
    (text(), select(Durability::ALL), any::<([u64; 14], [bool; 2])>(), paused, select(Room::ALL))
        .prop_map(|(name, durability, (n, [clock_held, draining]), (paused, closed), room)| {
            PublisherStatus {
                name,
                durability,
                uptime_ms: n[0],
                links: n[1],
                jobs: n[2],
                queues: n[3],
                committed_index: n[4],
                oldest_uncommitted_ms: n[5],
                journal_bytes: n[6],
                written_bytes: n[7],
                payload_bytes: n[8],
                syncs: n[9],
                stale_refused: n[10],
                clock_held,
                paused,
                closed,
                room,
                ballast_bytes: n[11],
                memory_bytes: n[12],
                memory_max: n[13],
                draining,
            }
        })
}

pub(crate) fn dead_group() -> impl Strategy<Value = DeadGroup> {
    (path(), select(DeathReason::ALL), any::<[u64; 4]>(), job_id(), option::of(error())).prop_map(
        |(path, death, [fingerprint, jobs, first_at, last_at], example, error)| DeadGroup {
            path,
            death,
            fingerprint: Fingerprint(fingerprint),
            jobs,
            first_at,
            last_at,
            example,
            error,
        },
    )
}

pub(crate) fn act_outcome() -> impl Strategy<Value = ActOutcome> {
    prop_oneof![
        Just(ActOutcome::Done),
        select(JobState::ALL).prop_map(ActOutcome::NotInState),
        Just(ActOutcome::Unknown),
    ]
}

pub(crate) fn answer() -> impl Strategy<Value = Answer> {
    let acted = (any::<(u64, u64, u64, bool)>(), vec(act_outcome(), 0..30)).prop_map(
        |((done, refused, unknown, more), outcomes)| {
            let outcomes = outcomes.into_iter().collect();
            Answer::Acted(ActionReport { done, refused, unknown, more, outcomes })
        },
    );
    let paused =
        (any::<(u64, bool)>(), vec(glob(), 0..3)).prop_map(|((queues, changed), still_by)| {
            Answer::Paused(PauseReport { queues, changed, still_by })
        });
    let configured = prop_oneof![
        settings().prop_map(|settings| Answer::Configured(Ok(settings))),
        select(Refusal::ALL).prop_map(|refusal| Answer::Configured(Err(refusal))),
    ];
    prop_oneof![
        status().prop_map(Answer::Status),
        vec(queue_stat(), 0..4).prop_map(Answer::Queues),
        (vec(job_info(), 0..4), any::<(Option<u64>, u64)>())
            .prop_map(|(jobs, (next, index))| { Answer::Jobs(JobsPage { jobs, next, index }) }),
        option::of(job_info().prop_map(Box::new)).prop_map(Answer::Job),
        acted,
        (vec(dead_group(), 0..4), any::<bool>())
            .prop_map(|(groups, more)| Answer::DeadGroups(DeadGroups { groups, more })),
        paused,
        configured,
        select(ReplaceOutcome::ALL).prop_map(Answer::Replaced),
        vec(checkpoint_info(), 0..4).prop_map(Answer::Checkpoints),
        position().prop_map(Answer::Feed),
        Just(Answer::Done),
        vec(quieted_worker(), 0..4).prop_map(Answer::Quieted),
    ]
}

pub(crate) fn event() -> impl Strategy<Value = FeedEvent> {
    let state = option::of(select(JobState::ALL));
    (any::<(u64, u64, bool, u16)>(), job_id(), any::<u32>(), select(JobChange::ALL), state)
        .prop_map(|((index, at, retrying, attempt), job, path, change, state)| FeedEvent {
            index,
            at,
            job,
            path,
            change,
            state,
            retrying,
            attempt,
        })
}

pub(crate) fn feed() -> impl Strategy<Value = FeedEvents> {
    (any::<u64>(), position(), vec(path(), 1..4), vec(event(), 0..6)).prop_map(
        |(id, upto, paths, mut events)| {
            events.iter_mut().for_each(|event| event.path %= paths.len() as u32);
            FeedEvents { id, upto, paths, events }
        },
    )
}

pub(crate) fn from_publisher() -> impl Strategy<Value = FromPublisher> {
    let outcome = prop_oneof![
        Just(EnqueueOutcome::Created),
        Just(EnqueueOutcome::Existing),
        select(Refusal::ALL).prop_map(EnqueueOutcome::Refused),
    ];
    let outcomes = vec(outcome, 0..30).prop_map(|all| all.into_iter().collect::<Runs<_>>());
    let enqueued = prop_oneof![outcomes.prop_map(Ok), select(BatchRefusal::ALL).prop_map(Err)];
    let settled = vec(settle_outcome(), 0..30).prop_map(|all| all.into_iter().collect::<Runs<_>>());
    let result = prop_oneof![answer().prop_map(Ok), select(RequestError::ALL).prop_map(Err)];
    prop_oneof![
        (select(Durability::ALL), any::<(u64, u64, u64)>(), tokens()).prop_map(
            |(durability, (next_batch, next_settle, reconnect_grace_ms), gone)| {
                FromPublisher::Attached(Attached {
                    durability,
                    next_batch,
                    next_settle,
                    gone,
                    reconnect_grace_ms,
                })
            }
        ),
        (any::<u64>(), enqueued).prop_map(|(sequence, outcome)| FromPublisher::Enqueued(
            Enqueued { sequence, outcome }
        )),
        deliver().prop_map(FromPublisher::Deliver),
        credit().prop_map(FromPublisher::Returned),
        any::<(u32, u64)>().prop_map(|(subscription, jobs)| {
            FromPublisher::Waiting(Waiting { subscription, jobs })
        }),
        (any::<u64>(), settled).prop_map(|(sequence, outcomes)| FromPublisher::Settled(Settled {
            sequence,
            outcomes
        })),
        (select(Revoked::ALL), tokens())
            .prop_map(|(reason, tokens)| FromPublisher::Revoked { reason, tokens }),
        (any::<u64>(), result).prop_map(|(id, answer)| FromPublisher::Answer { id, answer }),
        (any::<u32>(), text()).prop_map(|(subscription, reason)| {
            FromPublisher::SubscribeRefused { subscription, reason }
        }),
        tokens().prop_map(|stale| FromPublisher::Renewed { stale }),
        text().prop_map(|reason| FromPublisher::Goodbye { reason }),
        (any::<(u64, u64)>(), select(CheckpointOutcome::ALL)).prop_map(
            |((token, sequence), outcome)| {
                FromPublisher::Checkpointed(Checkpointed { token: Token(token), sequence, outcome })
            }
        ),
        feed().prop_map(FromPublisher::Feed),
        any::<u64>().prop_map(|id| FromPublisher::FeedEnded { id, end: FeedEnd::TooOld }),
        quiet().prop_map(FromPublisher::WorkerQuiet),
        any::<(u8, u64)>().prop_map(|(tag, id)| FromPublisher::Unsupported { tag, id }),
    ]
}
