//! The bytes of commands. They never change, because old journals contain them.

use bytes::Bytes;
use longshore_protocol::messages::work::{
    BatchBuilder, Filter, NewSettle, SettleBatchBuilder, Sources,
};
use longshore_protocol::{
    Durability, Epoch, JobId, JobRate, JobState, LimitScope, Missed, NewJob, Overlap, PublisherId,
    Timing,
};
use proptest::prelude::*;

use super::*;
use crate::rules::Rules;

/// The highest kind of a command.
const KIND_MAX: u8 = 28;

fn whole(command: &Command) -> Bytes {
    let (head, raw) = command.encode();
    Bytes::from([head, raw].concat())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn path(text: &str) -> Path {
    Path::new(text).unwrap()
}

fn glob(text: &str) -> Glob {
    Glob::new(text).unwrap()
}

fn enqueue(payload: &'static [u8]) -> Command {
    let mut builder = BatchBuilder::new();
    builder.push(&NewJob::new(path("/q"), JobId([0xab; 16]), payload));
    let batch = builder.seal(true).to_batch(5).unwrap();
    Command::Enqueue { link: LinkId(0x0102), batch }
}

fn settle() -> Command {
    let mut builder = SettleBatchBuilder::new();
    builder.push(Token(7), &NewSettle::Complete { result: Some(Bytes::from_static(b"ok")) });
    builder.push(Token(8), &NewSettle::Release);
    let batch = SettleBatch::decode(builder.seal(300)).unwrap();
    Command::Settle { link: LinkId(3), batch }
}

pub(crate) fn one_of_each() -> Vec<(Command, u8, &'static str)> {
    let link = LinkId(300);
    vec![
        (
            Command::Start(Start {
                publisher: PublisherId([0x11; 16]),
                epoch: Epoch(2),
                boot: [0x22; 16],
                secret: Secret([0x5e; 16]),
                rules: Box::new(Rules::STANDARD),
                durability: Durability::Fsync,
                paths: vec![path("/q")],
                defaults: vec![path("/jobs"), path("/")],
            }),
            1,
            "1111111111111111111111111111111102222222222222222222222222222222225e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e80c2d72f80d0acf30ea08d06a08d0680808080028080808001c0843dc0843dc0843d80ade2048002a09c0180088008808004808004808080088080408080044080804020904e40a08d064080201e03808080801080dddb0180dddb0180b8992919b0ea0180dddb0180b89929a08d0680e0e2f739050101022f7102052f6a6f6273012f",
        ),
        (
            Command::LinkUp {
                link,
                role: Role::Worker,
                session: SessionId([0x33; 16]),
                name: "w1".to_owned(),
                identity: "cn:a".to_owned(),
                work: Some(some_paths()),
                resume: Tokens(vec![Token(1 << 32), Token((1 << 32) + 1)]),
            },
            2,
            "ac02043333333333333333333333333333333302773104636e3a610101052f612f2a2a01042f612f6202808080802002",
        ),
        (Command::LinkLost { link }, 3, "ac02"),
        (
            Command::Subscribe {
                link,
                subscription: 1,
                sources: Sources::one(glob("/q/*")),
                handlers: 16,
            },
            4,
            "ac02010001042f712f2a0110",
        ),
        (Command::Unsubscribe { link, subscription: 1 }, 5, "ac0201"),
        (Command::Credit { link, subscription: 1, count: 500 }, 6, "ac0201f403"),
        (Command::Recall { link, subscription: 1, count: 2 }, 7, "ac020102"),
        (
            enqueue(b"payload"),
            8,
            "0201000000000000050101022f71011c00abababababababababababababababab007069e3f47061796c6f6164",
        ),
        (settle(), 9, "0300000000000000ac02020e01026f6b0203"),
        (
            Command::Expire {
                leases: vec![
                    LeaseEnd { token: Token(9), started: true, uncounted: false, timed_out: false },
                    LeaseEnd {
                        token: Token(300),
                        started: false,
                        uncounted: true,
                        timed_out: false,
                    },
                ],
            },
            10,
            "020901ac0202",
        ),
        (
            Command::Act {
                link,
                request: 4,
                action: Action::Revive,
                selection: Selection::Matching(Filter::of(glob("/q")).in_state(JobState::Dead)),
                pace: None,
                within: None,
            },
            11,
            "ac02040201022f710105000000000000",
        ),
        (Command::Damaged { token: Token(9) }, 12, "09"),
        (Command::Tick, 13, ""),
        (
            Command::Checkpoint {
                link,
                checkpoint: Checkpoint::decode(Checkpoint::body_of(
                    Token(9),
                    1,
                    &Bytes::from_static(b"half"),
                ))
                .unwrap(),
            },
            14,
            "2c0100000000000009010468616c66",
        ),
        (
            Command::Replace {
                link,
                request: 4,
                id: JobId([0xcd; 16]),
                entry: Bytes::from_static(b"entry"),
            },
            15,
            "2c010000000000000400000000000000cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd656e747279",
        ),
        (
            Command::Pause {
                link,
                request: 4,
                gate: Gate::Enqueue,
                pattern: glob("/q/*"),
                paused: true,
            },
            16,
            "ac020402042f712f2a01",
        ),
        (
            Command::Configure {
                link,
                request: 4,
                path: path("/q"),
                changes: QueueSettings { max_attempts: Some(3), ..QueueSettings::default() },
                reset: true,
            },
            17,
            "ac0204022f71010301",
        ),
        (
            Command::Refuse { link, sequence: 301, jobs: 10_000, refusal: Refusal::NoSpace },
            18,
            "ac02ad02904e06",
        ),
        (Command::Drain { link, request: 4, draining: true }, 20, "ac020401"),
        (
            Command::SetLimit {
                link,
                request: 4,
                limit: JobLimit {
                    name: "smtp".to_owned(),
                    pattern: glob("/q/*"),
                    scope: LimitScope::Shared,
                    concurrency: Some(9),
                    rate: Some(JobRate { units: 100, per_ms: 1_000, burst: 10 }),
                },
            },
            22,
            "ac020404736d7470042f712f2a0201090164e8070a",
        ),
        (
            Command::RemoveLimit { link, request: 4, name: "smtp".to_owned() },
            23,
            "ac020404736d7470",
        ),
        (
            Command::PutSchedule {
                link,
                request: 4,
                next: Some(NextOccurrence { due_at: 300, fires_at: 301 }),
                entry: Bytes::from_static(b"entry"),
                schedule: Box::new(Schedule {
                    name: "nightly".to_owned(),
                    path: path("/q"),
                    timing: Timing::Cron {
                        expression: "30 3 * * *".to_owned(),
                        zone: "Europe/Berlin".to_owned(),
                    },
                    starts_at: Some(1),
                    ends_at: None,
                    jitter_ms: 60_000,
                    missed: Missed::None,
                    overlap: Overlap::Buffer,
                    version: Some(7),
                }),
            },
            24,
            "2c01000000000000040000000000000005000000656e74727901ac02ad02076e696768746c79022f71000a33302033202a202a202a0d4575726f70652f4265726c696e010100e0d40302020107",
        ),
        (
            Command::RemoveSchedule { link, request: 4, name: "nightly".to_owned() },
            25,
            "ac0204076e696768746c79",
        ),
        (
            Command::PauseSchedule {
                link,
                request: 4,
                name: "nightly".to_owned(),
                paused: false,
                next: Some(NextOccurrence { due_at: 300, fires_at: 300 }),
            },
            26,
            "ac0204076e696768746c790001ac02ac02",
        ),
        (
            Command::RunSchedule {
                link,
                request: 4,
                name: "nightly".to_owned(),
                job: JobId([0xcd; 16]),
            },
            27,
            "ac0204076e696768746c79cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd",
        ),
        (
            Command::Occur {
                occurrences: vec![
                    Occurrence {
                        schedule: 3,
                        due_at: 300,
                        run: Some(RunOfOccurrence { due_at: 301, job: JobId([0xcd; 16]) }),
                        missed: 2,
                        next: Some(NextOccurrence { due_at: 302, fires_at: 303 }),
                    },
                    Occurrence { schedule: 4, due_at: 1, run: None, missed: 0, next: None },
                ],
            },
            28,
            "0203ac0201ad02cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd0201ae02af020401000000",
        ),
        (Command::DeliveryBudget { budget: 0 }, 19, "00"),
        (Command::DeliveryBudget { budget: u64::MAX }, 19, "ffffffffffffffffff01"),
        (
            Command::Permit { link, work: Some(some_paths()) },
            21,
            "ac020101052f612f2a2a01042f612f62",
        ),
        (Command::Permit { link, work: None }, 21, "ac0200"),
    ]
}

fn some_paths() -> PathSet {
    PathSet { allow: vec![glob("/a/**")], deny: vec![glob("/a/b")] }
}

#[test]
fn kinds_and_bytes_of_commands_never_change() {
    for (command, kind, golden) in one_of_each() {
        assert_eq!((command.kind(), hex(&whole(&command)).as_str()), (kind, golden));
    }
    let kinds: std::collections::BTreeSet<u8> = one_of_each().iter().map(|one| one.1).collect();
    assert!(kinds.into_iter().eq(1..=KIND_MAX), "each kind has golden bytes");
}

#[test]
fn encoded_commands_decode_to_themselves() {
    for (command, kind, _) in one_of_each() {
        assert_eq!(Command::decode(kind, whole(&command)), Ok(command));
    }
}

#[test]
fn truncated_command_is_an_error() {
    for (command, kind, _) in one_of_each() {
        let bytes = whole(&command);
        // The entry of a replacement is all that remains of its bytes.
        let replaced = matches!(command, Command::Replace { .. });
        let end = if replaced { Command::REPLACE_ENTRY_AT as usize } else { bytes.len() };
        for length in 0..end {
            let cut = Command::decode(kind, bytes.slice(..length));
            assert!(cut.is_err(), "{command:?} cut to {length} bytes");
        }
    }
}

#[test]
fn fields_over_their_limits_are_refused() {
    let text = |length: usize| "n".repeat(length);
    for (kind, limit) in [
        (2, NAME_BYTES_MAX),
        (2, CLIENT_IDENTITY_BYTES_MAX),
        (18, BATCH_JOBS_MAX),
        (23, LIMIT_NAME_BYTES_MAX),
        (25, SCHEDULE_NAME_BYTES_MAX),
        (26, SCHEDULE_NAME_BYTES_MAX),
        (27, SCHEDULE_NAME_BYTES_MAX),
    ] {
        let (known, ..) = one_of_each().into_iter().find(|one| one.1 == kind).unwrap();
        let with = |length: usize| {
            let mut command = known.clone();
            match &mut command {
                Command::LinkUp { name, .. } if limit == NAME_BYTES_MAX => *name = text(length),
                Command::LinkUp { identity, .. } => *identity = text(length),
                Command::Refuse { jobs, .. } => *jobs = length as u32,
                Command::RemoveLimit { name, .. }
                | Command::RemoveSchedule { name, .. }
                | Command::PauseSchedule { name, .. }
                | Command::RunSchedule { name, .. } => *name = text(length),
                other => unreachable!("{other:?}"),
            }
            command
        };
        assert_eq!(Command::decode(kind, whole(&with(limit))), Ok(with(limit)));
        assert!(Command::decode(kind, whole(&with(limit + 1))).is_err(), "{kind} {limit}");
    }
}

#[test]
fn unknown_kind_is_an_error() {
    for kind in (KIND_MAX + 1..=255).chain([0]) {
        assert!(Command::decode(kind, Bytes::new()).is_err(), "{kind}");
    }
}

#[test]
fn batch_is_at_its_documented_offset() {
    let Command::Enqueue { batch, .. } = enqueue(b"payload") else { unreachable!() };
    let (head, raw) = enqueue(b"payload").encode();
    assert_eq!(head.len(), Command::BATCH_AT as usize);
    assert_eq!(raw, batch.body());
}

proptest! {
    #[test]
    fn no_bytes_make_decoding_panic(
        kind in any::<u8>(),
        body in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        if let Ok(command) = Command::decode(kind, Bytes::from(body)) {
            let again = Command::decode(command.kind(), whole(&command));
            prop_assert_eq!(again, Ok(command));
        }
    }

    #[test]
    fn numbers_of_any_size_round_trip(
        link in any::<u64>(),
        subscription in any::<u32>(),
        count in any::<u32>(),
        request in any::<u64>(),
        ids in prop::collection::vec(any::<[u8; 16]>(), 0..20),
        leases in prop::collection::vec((any::<u64>(), any::<bool>(), any::<bool>()), 0..20),
        name in "[a-z]{0,40}",
        epoch in any::<u64>(),
    ) {
        let link = LinkId(link);
        let tokens = leases.iter().map(|&(token, ..)| Token(token)).collect();
        let expired = |(token, started, uncounted)| {
            LeaseEnd { token: Token(token), started, uncounted, timed_out: uncounted }
        };
        let ids = ids.into_iter().map(JobId).collect();
        for command in [
            Command::Start(Start {
                publisher: PublisherId([1; 16]),
                epoch: Epoch(epoch),
                boot: [9; 16],
                secret: Secret([0x5e; 16]),
                rules: Box::new(Rules::STANDARD),
                durability: Durability::None,
                paths: Vec::new(),
                defaults: vec![Path::root()],
            }),
            Command::LinkUp {
                link,
                role: Role::Producer,
                session: SessionId([5; 16]),
                name,
                identity: String::new(),
                work: None,
                resume: Tokens(tokens),
            },
            Command::LinkLost { link },
            Command::Unsubscribe { link, subscription },
            Command::Credit { link, subscription, count },
            Command::Recall { link, subscription, count },
            Command::Expire { leases: leases.into_iter().map(expired).collect() },
            Command::Act {
                link,
                request,
                action: Action::Drop,
                selection: Selection::Ids(ids),
                pace: None,
                within: None,
            },
            Command::Damaged { token: Token(request) },
        ] {
            prop_assert_eq!(Command::decode(command.kind(), whole(&command)), Ok(command));
        }
    }
}
