//! What clients may do at a publisher, action by action.

use longshore_access::{AccessControl, Action, Policy, SECRET_RANDOM_BYTES, Secret, Token, Tokens};
use longshore_protocol::messages::values::{
    FromValuePublisher, Policy as UpdatePolicy, SubscribeValue, ToValuePublisher, ValueRefusal,
    WriteRefusal, WriteValue,
};
use longshore_protocol::messages::work::{
    ActOutcome, Action as JobAction, Answer, Attach, Filter, FromPublisher, JobsQuery, NewSettle,
    ReplaceOutcome, Request, RequestError, Selection, Source, Sources, Subscribe, ToPublisher,
    WorkerPattern,
};
use longshore_protocol::{
    EnqueueOutcome, FrameWriter, Gate, Glob, Handshake, JobLimit, LimitScope, LinkTiming, Messages,
    QueueSettings, Refusal, Role, SessionId, Value,
};
use longshore_publisher::{PublisherOptions, ValuePublisher};
use longshore_transport::{Access, AuditLog, LinkEnd, LinkOptions, TokenSource, dial};

use crate::client::*;
use crate::pem::Pem;

/// Rules for clients without an identity: whether it allows, actions, paths.
type Rules<'a> = &'a [(bool, &'a [Action], &'a [&'a str])];

fn policy(rules: Rules<'_>) -> Option<Policy> {
    let rule = |(allows, actions, paths): &(bool, &[Action], &[&str])| {
        let effect = if *allows { "allow" } else { "deny" };
        let actions: Vec<&str> = actions.iter().map(|action| action.name()).collect();
        format!("[[{effect}]]\nwho = [\"anonymous\"]\ndo = {actions:?}\npaths = {paths:?}\n")
    };
    Some(Policy::parse(&rules.iter().map(rule).collect::<String>()).unwrap())
}

/// A publisher with a dead job (1) and a ready one (2) in `/jobs/a`, and a ready one (3) in
/// `/jobs/b`, and the control of its policy.
async fn with_jobs() -> (Running, AccessControl, tempfile::TempDir) {
    let (dir, control) = (tempfile::tempdir().unwrap(), AccessControl::default());
    let access_control = control.clone();
    let options = PublisherOptions { access_control, ..PublisherOptions::new(dir.path()) };
    let running = running(options).await;
    let mut client = Client::attach(&running, Role::Worker, 99).await;
    client.enqueue([job(1, 4)]).await;
    client.subscribe_with(1);
    let token = client.job().await.token;
    client.bury(token, "Secret", "of the handler").await;
    client.enqueue([job(2, 4), job_in("/jobs/b", 3, 4)]).await;
    (running, control, dir)
}

/// Tries an action on `/jobs/a`, or on the publisher, in every way that a work link has. Returns
/// for each way whether it was done.
async fn attempts(client: &mut Client, action: Action, seed: u32) -> Vec<(&'static str, bool)> {
    let a = || glob("/jobs/a");
    let done = |answer: &Result<Answer, RequestError>| match answer {
        Err(RequestError::Forbidden) => false,
        Ok(_) => true,
        other => panic!("{other:?}"),
    };
    let mut tried = Vec::new();
    match action {
        Action::Enqueue => {
            let answer = client.enqueue([job(1_000 + seed, 1)]).await;
            let outcome = answer.outcome.unwrap().iter().next().unwrap();
            let refused = EnqueueOutcome::Refused(Refusal::Forbidden);
            assert!([EnqueueOutcome::Created, refused].contains(&outcome), "{outcome:?}");
            tried.push(("enqueue", outcome == EnqueueOutcome::Created));
            let ids = Selection::Ids(vec![id(1)]);
            let known = match client.try_ask(request(JobAction::Confirm, ids, false)).await {
                Err(RequestError::Forbidden) => false,
                Ok(Answer::Acted(report)) => !report.outcomes.iter().eq([ActOutcome::Unknown]),
                other => panic!("{other:?}"),
            };
            tried.push(("confirm", known));
        }
        Action::Work => {
            let sources = Sources::one(a());
            client.send(&ToPublisher::Subscribe(Subscribe {
                subscription: 1,
                sources,
                handlers: 1_000,
            }));
            client.credit(1);
            let got = client.until(|message| match message {
                FromPublisher::Deliver(jobs) => Some(Some(jobs.jobs[0].token)),
                FromPublisher::SubscribeRefused { .. } => Some(None),
                _ => None,
            });
            let token = got.await;
            if let Some(token) = token {
                client.settle([(token, NewSettle::Release)]).await;
            }
            tried.push(("subscribe", token.is_some()));
        }
        Action::Inspect => {
            let query = JobsQuery { limit: 10, ..JobsQuery::of(Filter::of(a())) };
            let requests = [
                ("status", Request::Status),
                ("queues", Request::Queues { pattern: a(), cursor: 0 }),
                ("jobs", Request::Jobs(query)),
                ("dead groups", Request::DeadGroups { filter: Filter::of(a()) }),
                ("feed", Request::Feed { pattern: a(), after: None }),
            ];
            for (name, request) in requests {
                tried.push((name, done(&client.try_ask(request).await)));
            }
            // An id reveals nothing, also not that it exists.
            for (name, request) in
                [("job", Request::Job { id: id(1) }), ("await", Request::Await { id: id(1) })]
            {
                let answer = client.try_ask(request).await;
                tried.push((name, matches!(answer, Ok(Answer::Job(Some(_))))));
            }
        }
        Action::Act => {
            let act = |selection, dry_run| request(JobAction::Cancel, selection, dry_run);
            let none = Filter::of(a()).in_state(longshore_protocol::JobState::Prepared);
            let requests = [
                ("act on a queue", act(Selection::Matching(none.clone()), false)),
                ("dry run on a queue", act(Selection::Matching(none.clone()), true)),
                (
                    "confirm by a pattern",
                    request(JobAction::Confirm, Selection::Matching(none), true),
                ),
                ("pause", Request::Pause { gate: Gate::Delivery, pattern: a(), paused: false }),
                ("set limit", Request::SetLimit { limit: limit("/jobs/a") }),
                (
                    "configure",
                    Request::Configure {
                        path: path("/jobs/a"),
                        changes: QueueSettings::default(),
                        reset: false,
                    },
                ),
            ];
            for (name, request) in requests {
                tried.push((name, done(&client.try_ask(request).await)));
            }
            for (name, dry_run) in [("act on a job", false), ("dry run on a job", true)] {
                // Dead, so that it is refused by its state if it is not unknown.
                let answer = client.try_ask(act(Selection::Ids(vec![id(1)]), dry_run)).await;
                let known = match answer {
                    Err(RequestError::Forbidden) => false,
                    Ok(Answer::Acted(report)) => !report.outcomes.iter().eq([ActOutcome::Unknown]),
                    other => panic!("{other:?}"),
                };
                tried.push((name, known));
            }
            let answer = client.try_ask(Request::Replace { id: id(2), entry: entry() }).await;
            let known = match answer {
                Err(RequestError::Forbidden) => false,
                Ok(Answer::Replaced(outcome)) => outcome != ReplaceOutcome::Unknown,
                other => panic!("{other:?}"),
            };
            tried.push(("replace", known));
        }
        Action::Payload => {
            let full = match client.try_ask(Request::Job { id: id(1) }).await {
                Ok(Answer::Job(Some(job))) => {
                    let error = job.error.is_some();
                    let errors = job.attempts.iter().all(|attempt| attempt.error.is_some());
                    assert!(error == job.payload.is_some() && error == errors, "{job:?}");
                    error
                }
                other => panic!("{other:?}"),
            };
            tried.push(("job with contents", full));
            let filter = Filter::of(a());
            match client.try_ask(Request::DeadGroups { filter: filter.clone() }).await {
                Ok(Answer::DeadGroups(dead)) => {
                    tried.push(("errors of dead groups", dead.groups[0].error.is_some()));
                }
                other => panic!("{other:?}"),
            }
            let query = JobsQuery { limit: 10, full: true, ..JobsQuery::of(filter) };
            match client.try_ask(Request::Jobs(query)).await {
                Ok(Answer::Jobs(page)) => {
                    tried.push(("jobs with contents", page.jobs[0].payload.is_some()));
                }
                other => panic!("{other:?}"),
            }
        }
        Action::Operate => {
            let workers = vec!["nobody".parse::<WorkerPattern>().unwrap()];
            for (name, request) in [
                ("drain", Request::Drain { draining: false }),
                ("confirm the clock", Request::ConfirmClock),
                ("quiet", Request::Quiet { workers, quiet: false, dry_run: true }),
            ] {
                tried.push((name, done(&client.try_ask(request).await)));
            }
        }
        _ => panic!("{action} is not of work links"),
    }
    tried
}

fn request(action: JobAction, selection: Selection, dry_run: bool) -> Request {
    Request::Act { action, selection, pace: None, dry_run }
}

fn entry() -> bytes::Bytes {
    use longshore_protocol::messages::work::BatchBuilder;
    let mut batch = BatchBuilder::new();
    batch.push(&job(500, 1));
    let batch = batch.seal(false).to_batch(1).unwrap();
    let entry = batch.entries().next().unwrap();
    batch.body().slice(entry.at as usize..(entry.at + entry.length) as usize)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_action_needs_its_own_right_on_its_own_path() {
    use Action::*;
    let (running, control, _dir) = with_jobs().await;
    let own: &[&str] = &["/jobs/a", "/sys"];
    let (mut session, mut cases) = (1, 0);
    for action in [Enqueue, Work, Inspect, Act, Payload, Operate] {
        let others: Vec<Action> = Action::ALL.into_iter().filter(|of| *of != action).collect();
        // Contents are seen only of what is seen at all.
        let seen: &[Action] = if action == Payload { &[Inspect] } else { &[Resolve] };
        let all: &[&str] = &["/**"];
        let rules: [(&str, bool, Rules<'_>); 6] = [
            ("allowed", true, &[(true, &[action], own), (true, seen, own)]),
            ("allowed everywhere", true, &[(true, &Action::ALL, all)]),
            ("denied", false, &[(true, &Action::ALL, all), (false, &[action], own)]),
            ("everything denied", false, &[(true, &Action::ALL, all), (false, &[action], all)]),
            ("another path", false, &[(true, &[action], &["/jobs/b/**"]), (true, seen, own)]),
            ("another action", false, &[(true, &others, all)]),
        ];
        for (name, expected, rules) in rules {
            control.replace(policy(rules), None);
            let mut client = Client::attach(&running, Role::Tool, session).await;
            session += 1;
            for (way, done) in attempts(&mut client, action, u32::from(session)).await {
                assert_eq!(done, expected, "{action}, {name}: {way}");
                cases += 1;
            }
        }
    }
    assert_eq!(cases, 6 * (2 + 1 + 7 + 9 + 3 + 3));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patterns_show_and_take_only_what_the_client_may() {
    let (running, control, _dir) = with_jobs().await;
    let b: &[&str] = &["/jobs/b"];
    let rights = [Action::Enqueue, Action::Work, Action::Inspect, Action::Act];
    control.replace(policy(&[(true, &rights, b)]), None);
    let mut client = Client::attach(&running, Role::Worker, 1).await;
    let request = Request::Queues { pattern: glob("/**"), cursor: 0 };
    let Answer::Queues(page) = client.ask(request).await else { panic!("queues") };
    assert_eq!(
        page.queues.iter().map(|queue| queue.path.as_str()).collect::<Vec<_>>(),
        ["/jobs/b"]
    );
    let filter = Filter::of(glob("/**"));
    let query = JobsQuery { limit: 10, ..JobsQuery::of(filter.clone()) };
    let Answer::Jobs(page) = client.ask(Request::Jobs(query)).await else { panic!("jobs") };
    assert_eq!(page.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [id(3)]);
    // A pattern that also matches other queues, of the future too, is not paused in part.
    let pause = |pattern: &str| Request::Pause {
        gate: Gate::Delivery,
        pattern: Glob::new(pattern).unwrap(),
        paused: true,
    };
    for pattern in ["/**", "/jobs/*", "/jobs/{a,b}"] {
        assert_eq!(client.try_ask(pause(pattern)).await, Err(RequestError::Forbidden));
    }
    // Of one batch only the forbidden job is refused.
    let answer = client.enqueue([job(4, 1), job_in("/jobs/b", 5, 1), job(6, 1)]).await;
    let (created, refused) = (EnqueueOutcome::Created, EnqueueOutcome::Refused(Refusal::Forbidden));
    assert!(answer.outcome.unwrap().iter().eq([refused, created, refused]));
    // A subscription to all queues takes the jobs of one; and of both once it may.
    let sources =
        Sources { patterns: vec![Source { pattern: glob("/**"), weight: 1 }], ..sources() };
    client.send(&ToPublisher::Subscribe(Subscribe { subscription: 1, sources, handlers: 1_000 }));
    client.credit(10);
    assert_eq!(client.delivered_for_a_while().await.len(), 2);
    control.replace(policy(&[(true, &rights, &["/jobs/b", "/jobs/a"])]), None);
    assert_eq!(client.delivered().await.len(), 1, "without a new link or subscription");
    let limit = limit("/jobs/a");
    let set = client.ask(Request::SetLimit { limit: limit.clone() }).await;
    assert_eq!(set, Answer::LimitSet(true));
    assert_eq!(client.ask(Request::Limits).await, Answer::Limits(vec![limit.clone()]));
    // Who loses a right loses the link, and settles nothing.
    control.replace(policy(&[(true, &rights, b)]), None);
    let end = loop {
        if let Err(end) = client.receiver.recv().await {
            break end;
        }
    };
    assert!(matches!(end, LinkEnd::Closed | LinkEnd::Io { .. }), "{end:?}");
    // It neither sees nor changes a limit of other queues, nor takes over its name.
    let mut client = Client::attach(&running, Role::Worker, 2).await;
    assert_eq!(client.ask(Request::Limits).await, Answer::Limits(Vec::new()));
    let pattern = glob("/jobs/b");
    let of_name = JobLimit { pattern, ..limit.clone() };
    for request in [Request::RemoveLimit { name: limit.name }, Request::SetLimit { limit: of_name }]
    {
        assert_eq!(client.try_ask(request).await, Err(RequestError::Forbidden));
    }
    running.stop().await;
}

/// A limit that holds nothing back.
fn limit(pattern: &str) -> JobLimit {
    let (name, scope) = ("all".to_owned(), LimitScope::Queue);
    JobLimit { name, pattern: glob(pattern), scope, concurrency: Some(1_000), rate: None }
}

fn sources() -> Sources {
    Sources::one(Glob::everything())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_are_read_and_written_only_by_those_who_may() {
    let control = AccessControl::default();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("audit.jsonl");
    let audit = AuditLog::open(&file).unwrap();
    let publisher = ValuePublisher::builder().access_control(control.clone()).audit(audit.clone());
    let publisher = publisher.connect("").await.unwrap();
    let values = publisher.values();
    let value = values.publish(path("/hall/light"), 1).unwrap();
    let mut writes = value.writes().unwrap();
    let accepting = tokio::spawn(async move {
        while let Some(write) = writes.next().await {
            write.accept();
        }
    });
    use Action::{Read, Write};
    let (hall, other): (&[&str], &[&str]) = (&["/hall/*"], &["/other"]);
    let cases: [(Rules<'_>, bool, bool); 6] = [
        (&[(true, &[Read, Write], hall)], true, true),
        (&[(true, &[Read], hall), (true, &[Write], other)], true, false),
        (&[(true, &[Write], hall)], false, false),
        (&[(true, &[Read, Write], other)], false, false),
        (&[(true, &Action::ALL, &["/**"]), (false, &[Read], hall)], false, false),
        (&[(true, &Action::ALL, &["/**"]), (false, &[Write], hall)], true, false),
    ];
    for (rules, reads, write_is_accepted) in cases {
        control.replace(policy(rules), None);
        let handshake = Handshake::new(Role::Values, SessionId([7; 16]), "f", LinkTiming::VALUES);
        let options = LinkOptions { timing: LinkTiming::VALUES, ..LinkOptions::default() };
        let link = dial(publisher.local_address(), &handshake, &options).await.unwrap();
        let (sender, mut receiver) = link.split();
        let send = |message: ToValuePublisher| {
            let mut out = FrameWriter::new();
            message.encode(&mut out);
            sender.send(out.finish()).unwrap();
        };
        let mut next = async || loop {
            for message in Messages::new(receiver.recv().await.unwrap()) {
                let (tag, body) = message.unwrap();
                if let Some(message) = FromValuePublisher::decode(tag, body).unwrap() {
                    return message;
                }
            }
        };
        let light = path("/hall/light");
        let policy = UpdatePolicy::Conflate;
        send(ToValuePublisher::Subscribe(vec![SubscribeValue {
            subscription: 0,
            path: light,
            policy,
        }]));
        match next().await {
            FromValuePublisher::Subscribed(_) => assert!(reads, "{rules:?}"),
            FromValuePublisher::Refused { code, .. } => {
                assert_eq!((reads, code), (false, ValueRefusal::Forbidden), "{rules:?}");
            }
            other => panic!("{other:?}"),
        }
        let value = Value::from(2);
        send(ToValuePublisher::Write(WriteValue {
            request: 1,
            subscription: 0,
            receipt: true,
            deadline_ms: 10_000,
            value,
        }));
        let FromValuePublisher::Written(written) = next().await else { panic!("an answer") };
        let refused = written.outcome.map_err(|refused| refused.code);
        let expected = match (reads, write_is_accepted) {
            (true, true) => Ok(Value::Null),
            (true, false) => Err(WriteRefusal::Forbidden),
            (false, _) => Err(WriteRefusal::NotSubscribed),
        };
        assert_eq!(refused, expected, "{rules:?}");
    }
    accepting.abort();
    publisher.stop().await;
    drop(values);
    audit.close();
    let records = std::fs::read_to_string(&file).unwrap();
    for (action, reason, expected) in
        [("read", "subscribe to a value", 3), ("write", "write a value", 2)]
    {
        let action = format!("\"action\":\"{action}\"");
        let parts = [action.as_str(), reason, "/hall/light", "\"refused\""];
        let is_refusal = |line: &&str| parts.iter().all(|part| line.contains(part));
        let found = records.lines().filter(is_refusal).count();
        assert_eq!(found, expected, "{action} in {records}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_out_of_reach_of_other_clients() {
    let (pem, dir) = (Pem::new(), tempfile::tempdir().unwrap());
    let secrets = [1, 2].map(|byte| Secret::from_random(&mut [byte; SECRET_RANDOM_BYTES]));
    let mut tokens = Tokens::default();
    for (name, secret) in ["owner", "thief"].into_iter().zip(&secrets) {
        let (name, hash) = (name.to_owned(), secret.hash());
        tokens.add(Token { name, hash, created_unix_ms: 0, expires_unix_ms: None }).unwrap();
    }
    let access_control = AccessControl::new(None, Some(tokens));
    let tls = Some(pem.acceptor(None));
    let options = PublisherOptions { tls, access_control, ..PublisherOptions::new(dir.path()) };
    let running = running(options).await;
    let [owner, thief] = secrets.map(|secret| {
        let text = String::from_utf8_lossy(secret.text());
        let token = Some(TokenSource::from_secret(&text).unwrap());
        let access = Access { tls: Some(pem.dialer(None, None)), token, ..Access::default() };
        LinkOptions { access: Some(access), ..LinkOptions::default() }
    });
    let mut client = Client::attach_with(running.address, Role::Worker, 5, owner.clone()).await;
    // It neither takes over the session nor ends its link, now or after it.
    for _ in 0..2 {
        let handshake = Handshake::new(Role::Worker, SessionId([5; 16]), "x", LinkTiming::WORK);
        let link = dial(running.address, &handshake, &thief).await.unwrap();
        let (sender, mut receiver) = link.split();
        let mut out = FrameWriter::new();
        ToPublisher::Attach(Attach::default()).encode(&mut out);
        sender.send(out.finish()).unwrap();
        let refused = Messages::new(receiver.recv().await.unwrap()).next().unwrap().unwrap();
        let refused = FromPublisher::decode(refused.0, refused.1).unwrap().unwrap();
        let FromPublisher::Goodbye { reason } = refused else { panic!("{refused:?}") };
        assert!(reason.contains("belongs to another client"), "{reason}");
        client.status().await;
        drop(client);
        client = Client::attach_with(running.address, Role::Worker, 5, owner.clone()).await;
    }
    running.stop().await;
}
