//! One named sample of every message in every form that it takes: what the golden vectors are made from.

use std::time::Duration;

use bytes::Bytes;
use longshore_protocol::frame::FrameWriter;
use longshore_protocol::messages::HEARTBEAT;
use longshore_protocol::messages::resolver::*;
use longshore_protocol::messages::values::{FromValuePublisher, ToValuePublisher};
use longshore_protocol::messages::work::*;
use longshore_protocol::*;

mod answers;
mod replicas;
mod values;

/// A thing with bytes of its own on the wire or on disk.
#[derive(Clone, PartialEq, Debug)]
pub enum Sample {
    Hello(Hello),
    HelloAnswer(HelloAnswer),
    Heartbeat {
        age_ms: Option<u64>,
    },
    Entry(NewJob),
    To(ToPublisher),
    From(FromPublisher),
    ToReplica(ToReplica),
    FromReplica(FromReplica),
    ToValues(ToValuePublisher),
    FromValues(FromValuePublisher),
    /// A whole frame, its length included.
    Frame(Vec<FromPublisher>),
}

impl Sample {
    pub fn encode(&self) -> Bytes {
        let mut out = FrameWriter::new();
        match self {
            Sample::Hello(hello) => hello.encode(&mut out),
            Sample::HelloAnswer(answer) => answer.encode(&mut out),
            Sample::Heartbeat { age_ms } => {
                out.message(HEARTBEAT, |out| age_ms.iter().for_each(|ms| out.u64(*ms)));
            }
            Sample::Entry(job) => {
                job.encode_entry_head(&mut out);
                out.put_shared(job.payload.clone());
            }
            Sample::To(message) => message.encode(&mut out),
            Sample::From(message) => message.encode(&mut out),
            Sample::ToReplica(message) => message.encode(&mut out),
            Sample::FromReplica(message) => message.encode(&mut out),
            Sample::ToValues(message) => message.encode(&mut out),
            Sample::FromValues(message) => message.encode(&mut out),
            Sample::Frame(messages) => {
                messages.iter().for_each(|message| message.encode(&mut out));
                return Bytes::from(out.finish().parts().concat());
            }
        }
        out.into_body()
    }

    /// Reads `bytes` as a sample of the same kind as `self`.
    pub fn decode(&self, bytes: Bytes) -> Result<Sample, WireError> {
        let mut r = Reader::new(bytes.clone());
        Ok(match self {
            Sample::Hello(_) => Sample::Hello(Hello::decode(&mut r)?),
            Sample::HelloAnswer(_) => Sample::HelloAnswer(HelloAnswer::decode(&mut r)?),
            Sample::Heartbeat { .. } => {
                let (tag, body) = one_message(bytes)?;
                assert_eq!(tag, HEARTBEAT);
                let mut r = Reader::new(body);
                Sample::Heartbeat { age_ms: if r.is_empty() { None } else { Some(r.u64()?) } }
            }
            Sample::Entry(job) => {
                let entry = Entry::read(bytes)?;
                assert!(entry.is_intact());
                Sample::Entry(NewJob {
                    path: job.path.clone(),
                    id: entry.id,
                    payload: entry.payload,
                    headers: entry.headers,
                    options: entry.options,
                })
            }
            Sample::To(_) => {
                let (tag, body) = one_message(bytes)?;
                Sample::To(ToPublisher::decode(tag, body)?.expect("a tag of this version"))
            }
            Sample::From(_) => {
                let (tag, body) = one_message(bytes)?;
                Sample::From(FromPublisher::decode(tag, body)?.expect("a tag of this version"))
            }
            Sample::ToReplica(_) => {
                let (tag, body) = one_message(bytes)?;
                Sample::ToReplica(ToReplica::decode(tag, body)?.expect("a tag of this version"))
            }
            Sample::FromReplica(_) => {
                let (tag, body) = one_message(bytes)?;
                Sample::FromReplica(FromReplica::decode(tag, body)?.expect("a tag of this version"))
            }
            Sample::ToValues(_) => {
                let (tag, body) = one_message(bytes)?;
                Sample::ToValues(ToValuePublisher::decode(tag, body)?.expect("a known tag"))
            }
            Sample::FromValues(_) => {
                let (tag, body) = one_message(bytes)?;
                let message = FromValuePublisher::decode(tag, body)?.expect("a known tag");
                if let FromValuePublisher::Updates(updates) = &message {
                    updates.iter().collect::<Result<Vec<_>, _>>()?;
                }
                Sample::FromValues(message)
            }
            Sample::Frame(_) => {
                let length = r.u32_fixed()? as usize;
                assert_eq!(length, r.left());
                let mut messages = Vec::new();
                for message in Messages::new(r.take_rest()) {
                    let (tag, body) = message?;
                    messages.extend(FromPublisher::decode(tag, body)?);
                }
                Sample::Frame(messages)
            }
        })
    }
}

/// The only message of a frame's body.
pub fn one_message(body: Bytes) -> Result<(u8, Bytes), WireError> {
    let mut messages = Messages::new(body);
    let message = messages.next().expect("a message")?;
    assert!(messages.next().is_none(), "one message only");
    Ok(message)
}

/// Every sample: its file's name, what it shows, the thing.
pub fn all() -> Vec<(String, String, Sample)> {
    let mut all = Vec::new();
    let mut add = |name: &str, says: &str, sample: Sample| {
        all.push((name.to_owned(), says.to_owned(), sample));
    };
    add("hello", "Hello of a worker named w1", Sample::Hello(hello()));
    add(
        "hello-credential",
        "Hello with features 0 and 9 and a credential",
        Sample::Hello(Hello {
            features: 1 << 9 | 1,
            credential: Credential(Bytes::from_static(b"secret")),
            ..hello()
        }),
    );
    add("hello-welcome", "Hello answer: welcome, from publisher p1", welcome());
    add("hello-refused", "Hello answer: refused, Busy", refused());
    add("heartbeat", "Heartbeat, empty", Sample::Heartbeat { age_ms: None });
    add("heartbeat-age", "Heartbeat, oldest uncommitted command 300 ms old", {
        Sample::Heartbeat { age_ms: Some(300) }
    });
    add("entry", "Job entry: no options, no headers, payload 'hello'", Sample::Entry(plain_job()));
    add("entry-full", "Job entry with every option, two headers and a payload", {
        Sample::Entry(full_job())
    });
    for (name, backoff) in [
        ("exponential", Backoff::Exponential { base_ms: 100, max_ms: 1_000 }),
        ("fixed", Backoff::Fixed(250)),
        ("linear", Backoff::Linear { step_ms: 500, max_ms: 60_000 }),
        ("list", Backoff::List(vec![1, 200, 30_000])),
        ("hangfire", Backoff::Hangfire),
        ("quartic", Backoff::Quartic),
    ] {
        let mut job = plain_job();
        job.options =
            JobOptions { backoff: Some(backoff), due: Due::After(1_500), ..JobOptions::default() };
        add(
            &format!("entry-backoff-{name}"),
            "Job entry: delay 1500 ms and this back-off",
            Sample::Entry(job),
        );
    }
    for (name, says, message) in to_publisher() {
        add(&format!("to-publisher-{name}"), says, Sample::To(message));
    }
    for (name, says, message) in answers::from_publisher() {
        add(&format!("from-publisher-{name}"), says, Sample::From(message));
    }
    for (name, says, message) in replicas::to_replica() {
        add(&format!("to-replica-{name}"), says, Sample::ToReplica(message));
    }
    for (name, says, message) in replicas::from_replica() {
        add(&format!("from-replica-{name}"), says, Sample::FromReplica(message));
    }
    for (name, says, message) in values::to_values() {
        add(&format!("to-values-{name}"), says, Sample::ToValues(message));
    }
    for (name, says, message) in values::from_values() {
        add(&format!("from-values-{name}"), says, Sample::FromValues(message));
    }
    add("frame", "A frame of two messages: Settled, then Waiting", {
        Sample::Frame(vec![
            FromPublisher::Settled(Settled {
                sequence: 3,
                outcomes: Runs::all(SettleOutcome::Accepted, 2),
            }),
            FromPublisher::Waiting(Waiting { subscription: 1, jobs: 40 }),
        ])
    });
    all
}

fn hello() -> Hello {
    Hello {
        version_min: 1,
        version_max: 1,
        role: Role::Worker,
        session: SessionId([0x11; 16]),
        name: "w1".into(),
        timing: LinkTiming::WORK,
        frame_bytes_max: 20 * 1024 * 1024,
        features: 0,
        credential: Credential::default(),
    }
}

fn welcome() -> Sample {
    Sample::HelloAnswer(HelloAnswer::Welcome(Welcome {
        version: 1,
        timing: LinkTiming {
            heartbeat: Duration::from_millis(2_000),
            hang: Duration::from_millis(10_000),
        },
        frame_bytes_max: 20 * 1024 * 1024,
        instance: [0x22; 16],
        epoch: 7,
        name: "p1".into(),
        features: 0,
    }))
}

fn refused() -> Sample {
    Sample::HelloAnswer(HelloAnswer::Refused {
        code: HelloRefusal::Busy,
        reason: "768 connections".into(),
    })
}

pub fn path(text: &str) -> Path {
    Path::new(text).expect("a path")
}

pub fn glob(text: &str) -> Glob {
    Glob::new(text).expect("a glob")
}

pub fn job_id(n: u8) -> JobId {
    JobId::new_v7(0x0192_0f3e_5b7a, [n; 10])
}

pub fn plain_job() -> NewJob {
    NewJob::new(path("/jobs/mail"), job_id(1), &b"hello"[..])
}

pub fn full_job() -> NewJob {
    NewJob {
        path: path("/jobs/mail/welcome"),
        id: job_id(2),
        payload: Bytes::from_static(b"{\"to\":\"a\"}"),
        headers: Headers(vec![
            ("content-type".into(), "application/json".into()),
            ("ünï".into(), String::new()),
        ]),
        options: JobOptions {
            priority: -5,
            due: Due::At(1_760_000_000_000),
            prepared: true,
            expires_at: Some(1_760_000_600_000),
            max_attempts: Some(3),
            lease_ms: Some(60_000),
            run_timeout_ms: Some(0),
            backoff: Some(Backoff::Fixed(1_000)),
            keep_ms: Some(3_600_000),
            keep_result: true,
        },
    }
}

/// Two jobs of two paths.
pub fn batch(sequence: u64, atomic: bool) -> EnqueueBatch {
    let mut builder = BatchBuilder::new();
    builder.push(&plain_job());
    builder.push(&full_job());
    builder.seal(atomic).to_batch(sequence).expect("a batch")
}

/// One settle of every kind.
pub fn settles(sequence: u64) -> SettleBatch {
    let error = JobError { kind: "io::Error".into(), message: "no such file".into() };
    let mut builder = SettleBatchBuilder::new();
    for (token, settle) in [
        (1_000, NewSettle::Complete { result: None }),
        (1_001, NewSettle::Complete { result: Some(Bytes::from_static(b"42")) }),
        (1_003, NewSettle::Fail(error.clone())),
        (999, NewSettle::Release),
        (1_004, NewSettle::Snooze { ms: 60_000 }),
        (1_005, NewSettle::Bury(error)),
    ] {
        builder.push(Token(token), &settle);
    }
    SettleBatch::decode(builder.seal(sequence)).expect("a batch of settles")
}

fn tokens(numbers: &[u64]) -> Tokens {
    Tokens(numbers.iter().copied().map(Token).collect())
}

fn to_publisher() -> Vec<(&'static str, &'static str, ToPublisher)> {
    let request = |request| ToPublisher::Request { id: 9, request };
    vec![
        ("attach", "Attach, nothing to resume", ToPublisher::Attach(Attach::default())),
        ("attach-resume", "Attach, resuming tokens 4294967297, 4294967298, 4294967290", {
            ToPublisher::Attach(Attach {
                resume: tokens(&[4_294_967_297, 4_294_967_298, 4_294_967_290]),
            })
        }),
        ("enqueue", "Enqueue batch 1 of two jobs", ToPublisher::Enqueue(batch(1, false))),
        ("enqueue-atomic", "Enqueue batch 300, atomic", ToPublisher::Enqueue(batch(300, true))),
        ("subscribe", "Subscribe 1 to /jobs/{mail,sms}/**", {
            ToPublisher::Subscribe(Subscribe {
                subscription: 1,
                sources: Sources::one(glob("/jobs/{mail,sms}/**")),
            })
        }),
        ("subscribe-weighted", "Subscribe 2 to /jobs/mail by 3 and /jobs/sms/* by 1", {
            let source = |text, weight| Source { pattern: glob(text), weight };
            let patterns = vec![source("/jobs/mail", 3), source("/jobs/sms/*", 1)];
            let sources = Sources { order: Order::Weighted, patterns };
            ToPublisher::Subscribe(Subscribe { subscription: 2, sources })
        }),
        ("unsubscribe", "Unsubscribe 1", ToPublisher::Unsubscribe(1)),
        ("credit", "Credit: 64 for subscription 1", {
            ToPublisher::Credit(Credit { subscription: 1, count: 64 })
        }),
        ("recall", "Recall: 300 of subscription 1", {
            ToPublisher::Recall(Credit { subscription: 1, count: 300 })
        }),
        ("started", "Started: tokens 1000 to 1002", {
            let tokens = tokens(&[1_000, 1_001, 1_002]);
            ToPublisher::Started(Started { tokens, running_ms: Vec::new() })
        }),
        ("started-before", "Started: tokens 1000 and 1001, 5 s and 300 ms ago", {
            let tokens = tokens(&[1_000, 1_001]);
            ToPublisher::Started(Started { tokens, running_ms: vec![5_000, 300] })
        }),
        ("progress", "Progress: token 1000 at 40 %, token 999 at 100 %", {
            let progress = |token, percent, message: &str| Progress {
                token,
                percent,
                message: message.into(),
            };
            ToPublisher::Progress(vec![
                progress(Token(1_000), 40, "400 of 1000 rows"),
                progress(Token(999), 100, ""),
            ])
        }),
        ("checkpoint", "Checkpoint 2 of token 1000: 'row 400'", {
            ToPublisher::Checkpoint(checkpoint(Token(1_000), 2, b"row 400"))
        }),
        ("forget", "Forget request 9", ToPublisher::Forget(9)),
        ("quieted", "Quieted: the worker is quiet, as ask 300 said", {
            ToPublisher::Quieted(Quiet { ask: 300, quiet: true })
        }),
        ("settle", "Settle batch 2: one of every verdict", ToPublisher::Settle(settles(2))),
        ("renew", "Renew: tokens 1000 and 999", ToPublisher::Renew(tokens(&[1_000, 999]))),
        ("request-status", "Request 9: status", request(Request::Status)),
        ("request-queues", "Request 9: queues of /jobs/*", {
            request(Request::Queues { pattern: glob("/jobs/*") })
        }),
        ("request-jobs", "Request 9: a full page of 100 completed jobs of /**, from 5000", {
            request(Request::Jobs(JobsQuery {
                filter: Filter::of(glob("/**")).in_state(JobState::Completed),
                cursor: 5_000,
                limit: 100,
                full: true,
            }))
        }),
        ("request-job", "Request 9: one job", request(Request::Job { id: job_id(1) })),
        ("request-act-ids", "Request 9: cancel two jobs", {
            request(Request::Act {
                action: Action::Cancel,
                selection: Selection::Ids(vec![job_id(1), job_id(2)]),
                pace: None,
                dry_run: false,
            })
        }),
        (
            "request-act-matching",
            "Request 9: revive some of the dead of /jobs/**, 50 a second after 1000, only counting",
            {
                request(Request::Act {
                    action: Action::Revive,
                    selection: Selection::Matching(some_dead()),
                    pace: Some(Pace { per_second: 50, before: 1_000 }),
                    dry_run: true,
                })
            },
        ),
        ("request-await", "Request 9: one job, once it has ended", {
            request(Request::Await { id: job_id(1) })
        }),
        ("request-dead-groups", "Request 9: some of the dead of /jobs/**, in groups", {
            request(Request::DeadGroups { filter: some_dead() })
        }),
        ("request-pause", "Request 9: pause /jobs/**", {
            request(Request::Pause { gate: Gate::Enqueue, pattern: glob("/jobs/**"), paused: true })
        }),
        (
            "request-drain",
            "Request 9: take no new jobs",
            request(Request::Drain { draining: true }),
        ),
        ("request-configure", "Request 9: every setting of /jobs/mail, the others reset", {
            let (path, changes) = (path("/jobs/mail"), settings());
            request(Request::Configure { path, changes, reset: true })
        }),
        ("request-replace", "Request 9: job 2 in the place of dead job 1", {
            let entry = Sample::Entry(full_job()).encode();
            request(Request::Replace { id: job_id(1), entry })
        }),
        ("request-checkpoints", "Request 9: the checkpoints of token 1000's job", {
            request(Request::Checkpoints { token: Token(1_000) })
        }),
        ("request-feed", "Request 9: the feed of /jobs/** from now on", {
            request(Request::Feed { pattern: glob("/jobs/**"), after: None })
        }),
        ("request-feed-after", "Request 9: the feed of /jobs/** after 5000 of epoch 7", {
            request(Request::Feed { pattern: glob("/jobs/**"), after: Some(position()) })
        }),
        ("request-confirm-clock", "Request 9: the clock is right", request(Request::ConfirmClock)),
        ("request-quiet", "Request 9: w1 and mail-* are to be quiet, only looking", {
            let workers = ["w1", "mail-*"].map(|text| WorkerPattern::new(text).expect("a name"));
            request(Request::Quiet { workers: workers.into(), quiet: true, dry_run: true })
        }),
    ]
}

/// A checkpoint as a publisher reads it.
pub fn checkpoint(token: Token, sequence: u64, bytes: &'static [u8]) -> Checkpoint {
    let body = Checkpoint::body_of(token, sequence, &Bytes::from_static(bytes));
    Checkpoint::decode(body).expect("a checkpoint")
}

fn some_dead() -> Filter {
    Filter {
        death: Some(DeathReason::TimedOut),
        fingerprint: Some(Fingerprint(0x0123_4567_89ab_cdef)),
        ended_from: Some(1_760_000_000_000),
        ended_before: Some(1_760_000_060_000),
        ..Filter::of(glob("/jobs/**")).in_state(JobState::Dead)
    }
}

/// Every setting.
pub fn settings() -> QueueSettings {
    QueueSettings {
        max_attempts: Some(5),
        lease_ms: Some(10_000),
        run_timeout_ms: Some(600_000),
        backoff: Some(Backoff::Linear { step_ms: 500, max_ms: 60_000 }),
        keep_ms: Some(0),
        keep_jobs: Some(1_000),
        keep_dead_ms: Some(86_400_000),
    }
}

fn position() -> FeedPosition {
    FeedPosition { epoch: Epoch(7), index: 5_000 }
}
