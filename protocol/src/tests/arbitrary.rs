//! Generates random content of every type. The macros of [`crate::fields`] implement it for the
//! types that they declare.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;

use crate::codec::{Encode, Reader};
use crate::frame::FrameWriter;
use crate::limits::*;
use crate::messages::resolver::*;
use crate::messages::values::Updates;
use crate::messages::work::*;
use crate::*;

/// A type whose content can be generated.
pub(crate) trait Arbitrary {
    fn arbitrary(source: &mut Source) -> Self;
}

/// A generator of random numbers (SplitMix64) and of content made from them.
pub(crate) struct Source(pub(crate) u64);

impl Source {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// Random content of a type.
    pub(crate) fn of<T: Arbitrary>(&mut self) -> T {
        T::arbitrary(self)
    }

    /// A number below `count`.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }

    /// A number in that range, which is sometimes one of its ends.
    pub(crate) fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        let (start, end) = range.into_inner();
        match self.below(8) {
            0 => start,
            1 => end,
            _ => start + self.of::<u64>() % (end - start + 1),
        }
    }

    /// One element, chosen at random.
    pub(crate) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Fewer than `count` elements from `make`; none if `count` is 0.
    pub(crate) fn list<T>(&mut self, count: usize, make: impl Fn(&mut Source) -> T) -> Vec<T> {
        let count = self.below(count.max(1));
        (0..count).map(|_| make(self)).collect()
    }

    /// Content for which `holds` is true.
    pub(crate) fn satisfying<T: Arbitrary>(&mut self, holds: impl Fn(&T) -> bool) -> T {
        (0..1_000).map(|_| self.of()).find(|content| holds(content)).expect("one of a thousand")
    }

    /// Content whose encoding is accepted.
    pub(crate) fn decodable<T: Arbitrary + Encode>(
        &mut self,
        accepts: impl Fn(&mut Reader) -> bool,
    ) -> T {
        self.satisfying(|content: &T| {
            let mut out = FrameWriter::new();
            content.encode(&mut out);
            accepts(&mut Reader::new(out.into_body()))
        })
    }
}

macro_rules! arbitrary {
    ($($type:ty: |$source:ident| $make:expr;)*) => {$(
        impl Arbitrary for $type {
            fn arbitrary($source: &mut Source) -> $type {
                $make
            }
        }
    )*};
}

// Numbers of every magnitude, so that each length of LEB128 occurs.
arbitrary! {
    u64: |source| source.next().checked_shr(source.below(65) as u32).unwrap_or(0);
    u32: |source| source.next().checked_shr(32 + source.below(33) as u32).unwrap_or(0) as u32;
    u16: |source| source.next().checked_shr(48 + source.below(17) as u32).unwrap_or(0) as u16;
    u8: |source| source.next() as u8;
    i32: |source| source.of::<u32>() as i32 ^ -i32::from(source.of::<bool>());
    bool: |source| source.next() & 1 == 1;
    [u8; 16]: |source| std::array::from_fn(|_| source.of());
    String: |source| {
        let characters = ['a', 'Z', '0', ' ', '\'', '-', 'é', '€', '😀'];
        source.list(21, |source| source.one_of(&characters)).into_iter().collect()
    };
    Bytes: |source| match source.below(4) {
        0 => vec![source.of(); source.below(20_000)].into(),
        _ => source.list(64, Source::of::<u8>).into(),
    };
    JobId: |source| JobId(source.of());
    PublisherId: |source| PublisherId(source.of());
    SessionId: |source| SessionId(source.of());
    Incarnation: |source| Incarnation(source.of());
    Token: |source| Token(source.of());
    Epoch: |source| Epoch(source.of());
    Fingerprint: |source| Fingerprint(source.next());
}

impl<T: Arbitrary> Arbitrary for Vec<T> {
    fn arbitrary(source: &mut Source) -> Vec<T> {
        source.list(5, Source::of)
    }
}

impl<T: Arbitrary> Arbitrary for Option<T> {
    fn arbitrary(source: &mut Source) -> Option<T> {
        if source.of() { Some(source.of()) } else { None }
    }
}

impl<T: Arbitrary, E: Arbitrary> Arbitrary for Result<T, E> {
    fn arbitrary(source: &mut Source) -> Result<T, E> {
        if source.of() { Ok(source.of()) } else { Err(source.of()) }
    }
}

impl<T: Arbitrary> Arbitrary for Box<T> {
    fn arbitrary(source: &mut Source) -> Box<T> {
        Box::new(source.of())
    }
}

impl<T: Arbitrary + Copy + PartialEq> Arbitrary for Runs<T> {
    fn arbitrary(source: &mut Source) -> Runs<T> {
        source.list(30, Source::of).into_iter().collect()
    }
}

arbitrary! {
    Path: |source| {
        let segments = ["a", "mail", "é", "b c", ".x", "-"];
        let text: Vec<_> = (0..=source.below(5)).map(|_| source.one_of(&segments)).collect();
        Path::new(&format!("/{}", text.join("/"))).expect("a path")
    };
    Glob: |source| {
        let segments = ["a", "*", "m*l", "?x", "**", "{a,b}", "é?"];
        let text: Vec<_> = (0..=source.below(5)).map(|_| source.one_of(&segments)).collect();
        Glob::new(&format!("/{}", text.join("/"))).expect("a glob")
    };
    WorkerPattern: |source| source.one_of(&["w1", "*", "mail-?", "é"]).parse().expect("a name");
    Address: |source| match source.below(5) {
        0 => Address::from((IpAddr::from(u32::to_le_bytes(source.of())), source.of())),
        1 => Address::from((IpAddr::from(source.of::<[u8; 16]>()), source.of())),
        2 => Address::Unix("/run/jobs.sock".parse().expect("a path")),
        3 => {
            let unknown = vec![200, 3, source.of(), source.of(), 0];
            Address::decode(&mut Reader::new(unknown.into())).expect("an address")
        }
        _ => Address::Host(HostAddress::new("jobs-1.example", source.of()).expect("a name")),
    };
    TlsName: |source| source.one_of(&["jobs-1.example", "10.0.0.1"]).parse().expect("a name");
    LaterFields: |source| match source.below(4) {
        0 => LaterFields::new(&vec![source.of(); source.below(300)]).expect("few bytes"),
        _ => LaterFields::default(),
    };
    Homes: |source| {
        let mut declared = BTreeMap::new();
        for _ in 0..source.below(3) {
            let pattern = source.one_of(&["/", "/shop", "/tenants/*", "/*/mail"]);
            let names = source.list(3, |source| format!("{}", source.of::<u8>()));
            if !names.is_empty() {
                declared.insert(pattern.parse().expect("a pattern"), names);
            }
        }
        // Those that overlap are invalid.
        Homes::new(declared).unwrap_or_default()
    };
    Terms: |source| Terms {
        kind: source.of(),
        flags: source.of(),
        priority: source.of(),
        weight: source.of(),
        homes: source.of(),
        later: source.of(),
    };
    Headers: |source| Headers(source.list(4, |source| (source.of(), source.of())));
    Due: |source| match source.below(3) {
        0 => Due::Now,
        1 => Due::After(source.within(0..=WAIT_MS_MAX)),
        _ => Due::At(source.within(0..=RUN_AT_MS_MAX)),
    };
    QueueSettings: |source| {
        let lease = u64::from(LEASE_MS_MIN)..=u64::from(LEASE_MS_MAX);
        QueueSettings {
            max_attempts: source.of::<bool>().then(|| source.within(1..=0xffff) as u16),
            lease_ms: source.of::<bool>().then(|| source.within(lease) as u32),
            run_timeout_ms: source.of::<bool>().then(|| source.within(0..=WAIT_MS_MAX)),
            backoff: source.of(),
            keep_ms: source.of::<bool>().then(|| source.within(0..=WAIT_MS_MAX)),
            keep_jobs: source.of::<bool>().then(|| source.within(0..=KEEP_JOBS_MAX)),
            keep_dead_ms: source.of::<bool>().then(|| source.within(0..=WAIT_MS_MAX)),
            dead_blocks_order: source.of(),
        }
    };
    JobOptions: |source| {
        let settings: QueueSettings = source.of();
        JobOptions {
            priority: source.of(),
            due: source.of(),
            prepared: source.of(),
            expires_at: source.of::<bool>().then(|| source.within(0..=RUN_AT_MS_MAX)),
            max_attempts: settings.max_attempts,
            lease_ms: settings.lease_ms,
            run_timeout_ms: settings.run_timeout_ms,
            backoff: settings.backoff,
            keep_ms: settings.keep_ms,
            keep_result: source.of(),
        }
    };
    NewJob: |source| {
        let options = if source.of() { source.of() } else { JobOptions::default() };
        let (path, id) = (source.of(), source.of());
        let (payload, headers, keys) = (source.of(), source.of(), source.of::<Option<_>>());
        let keys = keys.map(Box::new);
        NewJob { path, id, payload, headers, options, keys }
    };
    JobKeys: |source| {
        let key: Option<String> = source.of();
        let order = key.map(|key| key.chars().take(KEY_BYTES_MAX / 5).collect::<String>() + "k");
        let idempotency: Option<Idempotency> = source.of();
        let unique: Option<Unique> = source.of();
        let fair = source.of::<bool>().then(|| FairKey {
            key: "tenant".to_owned(),
            weight: source.within(1..=FAIR_WEIGHT_MAX.into()) as u16,
        });
        let limit = source.of::<bool>().then(|| "smtp".to_owned());
        let cost = source.of::<bool>().then(|| source.within(1..=LIMIT_COST_MAX.into()) as u16);
        let others = idempotency.is_some() || unique.is_some() || fair.is_some();
        let one = !others && limit.is_none() && cost.is_none();
        let order = order.or(one.then(|| "k".to_owned()));
        let after = (0..source.within(0..=2)).map(|_| source.of()).collect();
        let (batch, member_of) = (source.of(), source.of());
        JobKeys { idempotency, order, unique, fair, limit, cost, after, batch, member_of }
    };
    Idempotency: |source| {
        let key: String = source.of();
        let key = key.chars().take(KEY_BYTES_MAX / 5).collect::<String>() + "k";
        let for_ms = source.of::<bool>().then(|| source.within(1..=IDEMPOTENCY_MS_MAX));
        Idempotency { key, for_ms }
    };
    LinkTiming: |source| {
        let heartbeat = source.within(10..=u64::from(u32::MAX) - 1);
        let hang = source.within(heartbeat + 1..=u64::from(u32::MAX));
        let [heartbeat, hang] = [heartbeat, hang].map(Duration::from_millis);
        LinkTiming { heartbeat, hang }
    };
    Credential: |source| Credential(source.list(CREDENTIAL_BYTES_MAX, Source::of::<u8>).into());
    Tokens: |source| Tokens(source.list(20, Source::of));
    Progress: |source| Progress {
        token: source.of(),
        percent: source.below(101) as u8,
        message: source.of(),
    };
    Checkpoint: |source| {
        let sequence = source.within(1..=u64::MAX - 1);
        Checkpoint::decode(Checkpoint::body_of(source.of(), sequence, &source.of())).expect("one")
    };
    EnqueueBatch: |source| {
        let mut builder = BatchBuilder::new();
        source.of::<Vec<NewJob>>().iter().for_each(|job| builder.push(job));
        builder.seal(source.of()).to_batch(source.of()).expect("a batch")
    };
    NewSettle: |source| match source.below(6) {
        0 => NewSettle::Complete { result: source.of() },
        1 => NewSettle::Fail(source.of()),
        2 => NewSettle::Release,
        3 => NewSettle::Snooze { ms: source.within(0..=WAIT_MS_MAX) },
        4 => NewSettle::Throttle { ms: source.within(0..=THROTTLE_MS_MAX) },
        _ => NewSettle::Bury(source.of()),
    };
    SettleBatch: |source| {
        let mut builder = SettleBatchBuilder::new();
        let settles = source.of::<Vec<NewSettle>>();
        settles.iter().for_each(|settle| builder.push(source.of(), settle));
        SettleBatch::decode(builder.seal(source.of())).expect("a batch")
    };
    JobTimes: |source| JobTimes {
        enqueued_at: source.of(),
        scheduled_at: source.of(),
        waited_ms: source.of(),
    };
    Deliver: |source| {
        let paths: Vec<Path> = source.of();
        let jobs = source.list(if paths.is_empty() { 0 } else { 6 }, |source| Delivery {
            token: source.of(),
            path: source.below(paths.len()) as u32,
            attempt: source.of(),
            deliveries: source.of(),
            lease_ms: source.of(),
            checkpoints: source.of(),
            times: source.of(),
            entry: source.of(),
        });
        Deliver { subscription: source.of(), paths, jobs }
    };
    FeedEvents: |source| {
        let paths: Vec<Path> = source.of();
        let events = source.list(if paths.is_empty() { 0 } else { 6 }, |source| FeedEvent {
            index: source.of(),
            at: source.of(),
            job: source.of(),
            path: source.below(paths.len()) as u32,
            change: source.of(),
            state: source.of(),
            retrying: source.of(),
            attempt: source.of(),
        });
        FeedEvents { id: source.of(), upto: source.of(), paths, events }
    };
    PathTexts: |source| {
        let texts = source.list(6, |source| match source.of() {
            true => source.of::<Path>().as_str().as_bytes().to_vec(),
            false => source.list(20, Source::of),
        });
        texts.iter().map(|text| PathText::new(text)).collect()
    };
    PathListed: |source| {
        let (path, queue) = (source.of(), source.of());
        PathListed { path, queue, value: source.of(), default: source.of() }
    };
    Group: |source| {
        let change: Change = source.of();
        let terms = if change.publishes() { source.of() } else { Terms::default() };
        Group { change, terms, paths: source.of() }
    };
    Digest: |source| Digest { count: source.of(), sum: u128::from_le_bytes(source.of()) };
    RequestCounts: |source| std::array::from_fn(|_| source.of()).into();
    Value: |source| any_value(source, 4);
    Updates: |source| {
        let updates = source.list(8, |source| (source.of(), source.of::<Value>()));
        updates.iter().map(|(number, value)| (*number, value)).collect()
    };
}

/// A value whose lists and maps lie up to `depth` deep.
fn any_value(source: &mut Source, depth: usize) -> Value {
    match source.below(if depth == 0 { 9 } else { 11 }) {
        0 => Value::Null,
        1 => Value::Bool(source.of()),
        2 => Value::I64(source.next() as i64),
        3 => Value::U64(source.next()),
        4 => Value::F64(f64::from_bits(source.next())),
        5 => Value::from(source.of::<String>()),
        6 => Value::Bytes(source.of()),
        7 => Value::Duration(Duration::new(source.next(), source.below(1_000_000_000) as u32)),
        8 => {
            let seconds = Duration::from_secs(source.below(1 << 40) as u64);
            let time = if source.of() { UNIX_EPOCH + seconds } else { UNIX_EPOCH - seconds };
            Value::DateTime(time + Duration::from_nanos(source.below(1_000_000_000) as u64))
        }
        9 => Value::list(source.list(6, |source| any_value(source, depth - 1))),
        _ => Value::map(
            source.list(6, |source| (source.of::<String>(), any_value(source, depth - 1))),
        ),
    }
}

/// The running times of so many attempts, or none.
pub(crate) fn running_times(source: &mut Source, attempts: usize) -> Vec<u64> {
    let known = if source.of() { attempts } else { 0 };
    (0..known).map(|_| source.of()).collect()
}

/// Sets of an answer that names so many publishers and terms.
pub(crate) fn sets(source: &mut Source, publishers: usize, terms: usize) -> Vec<Vec<SetMember>> {
    let members = if publishers * terms == 0 { 0 } else { 5 };
    source.list(5, |source| {
        source.list(members, |source| SetMember {
            publisher: source.below(publishers) as u32,
            terms: source.below(terms) as u32,
        })
    })
}

/// Answers for paths, where there are so many sets.
pub(crate) fn answers(source: &mut Source, sets: usize) -> Vec<PathAnswer> {
    source.list(9, |source| match source.below(if sets == 0 { 3 } else { 6 }) {
        0 => PathAnswer::NotFound,
        1 => PathAnswer::Refused { reason: source.of() },
        2 => PathAnswer::Unknown { kind: source.within(4..=255) as u8 },
        3 => PathAnswer::ByDefault { set: source.below(sets) as u32 },
        4 => PathAnswer::Published { set: source.below(sets) as u32, default: None },
        _ => {
            let (set, default) = (source.below(sets) as u32, Some(source.below(sets) as u32));
            PathAnswer::Published { set, default }
        }
    })
}
