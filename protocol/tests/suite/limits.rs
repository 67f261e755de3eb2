//! Malformed and oversized input, and input of later versions: the decoder returns a typed error
//! before it allocates.

use std::collections::BTreeSet;

use super::vectors::{Sample, folder, job, sample, samples, vectors};
use bytes::Bytes;
use longshore_protocol::frame::FrameWriter;
use longshore_protocol::limits::*;
use longshore_protocol::messages::resolver::{FromReplica, ToReplica};
use longshore_protocol::messages::work::*;
use longshore_protocol::messages::{resolver, values, work};
use longshore_protocol::*;

#[test]
fn a_message_cut_anywhere_reports_the_offset() {
    for (name, sample) in samples() {
        let whole = sample.encode();
        if is_valid_when_cut(&sample) {
            continue;
        }
        let header = header_bytes(&sample);
        // Its last field, a length of one byte and a text, may be missing.
        let without_cluster = match &sample {
            Sample::Handshake(handshake) => Some(whole.len() - 1 - handshake.cluster.len()),
            _ => None,
        };
        for length in (0..whole.len() - header).filter(|&length| Some(length) != without_cluster) {
            let cut = with_body(&whole, header, |body| body.truncate(length));
            let error =
                Sample::decode(&name, cut).expect_err(&format!("{name} cut to {length} bytes"));
            assert!(
                matches!(error, WireError::Truncated { offset, needed, had }
                    if offset + had <= length && needed > had),
                "{name} cut to {length} bytes: {error}"
            );
        }
    }
}

/// A shorter payload is still an entry, a heartbeat without an age is valid, and the last messages
/// of a frame's body, or the last updates of a message, may be missing unnoticed, because frames
/// and messages carry their length.
fn is_valid_when_cut(sample: &Sample) -> bool {
    use longshore_protocol::messages::values::FromValuePublisher::Updates;
    let updates = matches!(sample, Sample::FromValues(Updates(_)));
    updates || matches!(sample, Sample::Entry(_) | Sample::Heartbeat { .. } | Sample::Frame(_))
}

#[test]
fn an_entry_cut_within_its_head_is_an_error() {
    for name in ["entry", "entry-full"] {
        let (whole, job) = (sample(name).encode(), job(name));
        for length in 0..whole.len() - job.payload.len() {
            assert!(Entry::read(whole.slice(..length)).is_err(), "{length}");
            let head = EntryHead::read(&mut Reader::new(whole.slice(..length)), length);
            assert!(head.is_err(), "{length}");
        }
    }
}

#[test]
fn later_fields_of_messages_are_skipped() {
    for (name, sample) in samples() {
        if is_valid_when_cut(&sample) {
            continue;
        }
        let header = header_bytes(&sample);
        let longer = with_body(&sample.encode(), header, |body| body.extend([0xff; 9]));
        let decoded =
            Sample::decode(&name, longer).unwrap_or_else(|error| panic!("{name}: {error}"));
        match (&decoded, &sample) {
            // These retain their raw bytes for the journal; their decoded content is the same.
            (
                Sample::ToPublisher(ToPublisher::Enqueue(a)),
                Sample::ToPublisher(ToPublisher::Enqueue(b)),
            ) => {
                assert!(a.entries().eq(b.entries()), "{name}");
            }
            (
                Sample::ToPublisher(ToPublisher::Settle(a)),
                Sample::ToPublisher(ToPublisher::Settle(b)),
            ) => {
                assert!(a.items().eq(b.items()), "{name}");
            }
            (
                Sample::ToPublisher(ToPublisher::Checkpoint(a)),
                Sample::ToPublisher(ToPublisher::Checkpoint(b)),
            ) => {
                assert_eq!((a.token, a.sequence, a.at), (b.token, b.sequence, b.at), "{name}");
                assert!(a.length == b.length && a.body().starts_with(b.body()), "{name}");
            }
            _ => assert_eq!(decoded, sample, "{name}"),
        }
    }
}

#[test]
fn later_fields_of_records_are_skipped() {
    let mut out = FrameWriter::new();
    out.record(|out| {
        out.u64(300);
        out.string("a field of version 2");
    });
    out.u64(7);
    let mut r = Reader::new(out.into_body());
    assert_eq!(r.record(|r| r.u64()), Ok(300));
    assert_eq!(r.u64(), Ok(7));
    assert!(r.is_empty());
}

#[test]
fn a_record_never_reads_past_its_end() {
    let mut out = FrameWriter::new();
    out.record(|out| out.u8(1));
    out.u64_fixed(2);
    let read = Reader::new(out.into_body()).record(|r| {
        r.u8()?;
        r.u64_fixed()
    });
    assert_eq!(read, Err(WireError::Truncated { offset: 5, needed: 8, had: 0 }));
}

#[test]
fn messages_of_unknown_tags_are_skipped() {
    let known: Vec<u8> = vectors().iter().map(|(_, bytes)| bytes[0]).collect();
    for tag in (0..=255u8).filter(|tag| !known.contains(tag)) {
        let body = Bytes::from_static(b"whatever");
        assert_eq!(ToPublisher::decode(tag, body.clone()), Ok(None), "{tag}");
        assert_eq!(FromPublisher::decode(tag, body.clone()), Ok(None), "{tag}");
        assert_eq!(ToReplica::decode(tag, body.clone()), Ok(None), "{tag}");
        assert_eq!(FromReplica::decode(tag, body.clone()), Ok(None), "{tag}");
        assert_eq!(values::ToValuePublisher::decode(tag, body.clone()), Ok(None), "{tag}");
        assert_eq!(values::FromValuePublisher::decode(tag, body), Ok(None), "{tag}");
    }
}

/// Finds every count and length of every vector by writing 2³² − 1 over each byte.
/// `tests/golden/limits.txt` lists them with their names and limits, below the name of each vector;
/// `LONGSHORE_BLESS=1` writes it.
#[test]
fn huge_counts_are_refused_before_allocation() {
    const HUGE: [u8; 5] = [0xff, 0xff, 0xff, 0xff, 0x0f];
    let mut found = BTreeSet::new();
    for (name, sample) in samples() {
        // This also detects a missing vector.
        found.insert(format!("{name}:"));
        let header = header_bytes(&sample);
        let whole = sample.encode();
        if matches!(sample, Sample::Frame(_)) {
            continue;
        }
        let length = whole.len() - header;
        for at in 0..length {
            let body = with_body(&whole, header, |body| {
                body.truncate(at);
                body.extend(HUGE);
                // A record within it still has its full length.
                body.resize(body.len().max(length), 0);
            });
            let read = Sample::decode(&name, body);
            if let Err(WireError::OverLimit { offset, what, value: 0xffff_ffff, limit }) = read
                && offset == at
            {
                found.insert(format!("{name}: {what}, {limit}"));
            }
        }
    }
    let found: String = found.into_iter().map(|line| line + "\n").collect();
    let file = folder().join("limits.txt");
    if std::env::var_os("LONGSHORE_BLESS").is_some() {
        std::fs::write(&file, &found).unwrap();
    }
    assert_eq!(found, std::fs::read_to_string(&file).unwrap());
}

#[test]
fn counts_larger_than_the_body_are_refused_before_allocation() {
    let mut out = FrameWriter::new();
    out.u64(TOKENS_MAX as u64);
    out.put(&[0; 100]);
    let body = out.into_body();
    let read = Tokens::decode(&mut Reader::new(body));
    assert_eq!(read, Err(WireError::Truncated { offset: 3, needed: TOKENS_MAX, had: 100 }));
}

#[test]
fn a_frame_with_too_many_messages_fails_at_the_limit() {
    let message = [200u8, 0, 0, 0, 0];
    let fits = Bytes::from(message.repeat(FRAME_MESSAGES_MAX));
    assert!(Messages::new(fits).all(|message| message.is_ok()));
    let one_more = Bytes::from(message.repeat(FRAME_MESSAGES_MAX + 1));
    let last = Messages::new(one_more).last().unwrap();
    assert_eq!(
        last.unwrap_err().to_string(),
        "messages in a frame at byte 327680 is 65537; the limit is 65536"
    );
}

#[test]
fn one_bad_entry_of_a_batch_affects_only_its_job() {
    let good = sample("entry").encode();
    let mut unknown_option = sample("entry-full").encode().to_vec();
    unknown_option[22] |= 0x10; // Bit 11 of the mask of options is unassigned.
    let mut too_short = good.to_vec();
    too_short.truncate(18);
    let mut out = FrameWriter::new();
    out.u64(1);
    out.u8(0);
    [Path::new("/a").unwrap()].encode(&mut out);
    out.u64(4);
    for entry in [&good[..], &unknown_option, &too_short, &good] {
        out.u64(entry.len() as u64);
        out.u64(0);
        out.put(entry);
    }
    let batch = EnqueueBatch::decode(out.into_body()).unwrap();
    let heads: Vec<bool> = batch.entries().map(|entry| entry.head.is_ok()).collect();
    assert_eq!(heads, [true, false, false, true]);
    let last = batch.entries().last().unwrap();
    assert_eq!(batch.body().slice(last.at as usize..), good);
}

#[test]
fn an_overlong_batch_is_refused_with_its_readable_number() {
    let mut out = FrameWriter::new();
    out.u64(300);
    out.put_shared(vec![0u8; BATCH_BYTES_MAX].into());
    let body = out.into_body();
    for tag in [work::tag::ENQUEUE, work::tag::SETTLE] {
        let error = ToPublisher::decode(tag, body.clone()).unwrap_err();
        assert!(
            matches!(error, WireError::OverLimit { limit, .. } if limit == BATCH_BYTES_MAX as u64)
        );
        assert_eq!(ToPublisher::number(&body), Some(300));
    }
}

#[test]
fn the_number_of_an_unknown_request_is_readable() {
    let body = Bytes::from_static(&[0xac, 0x02, 99, 1, 2, 3]);
    assert!(ToPublisher::decode(work::tag::REQUEST, body.clone()).is_err());
    assert_eq!(ToPublisher::number(&body), Some(300));
}

#[test]
fn jobs_that_fit_a_batch_encode_within_its_limits() {
    // Ten thousand long, distinct paths: paths count as well as payloads.
    let mut builder = BatchBuilder::new();
    let long = "x".repeat(250);
    for n in 0..BATCH_JOBS_MAX {
        let path = Path::new(&format!("/{long}/{long}/{long}/{n}")).unwrap();
        let job = NewJob::new(path, JobId([1; 16]), vec![7u8; 1_600]);
        if !builder.fits(&job) {
            break;
        }
        builder.push(&job);
    }
    assert!(builder.len() < BATCH_JOBS_MAX, "the limit was reached");
    let batch = builder.seal(false).to_batch(u64::MAX).expect("within the limits");
    assert!(batch.body().len() > BATCH_BYTES_MAX - 64 * 1024, "and almost used up");

    // Keys are the larger part of a small job that waits for many.
    let mut builder = BatchBuilder::new();
    let parents = (0..PARENTS_MAX as u8).map(|parent| JobId([parent; 16]));
    let job = NewJob::new(Path::new("/a").unwrap(), JobId([1; 16]), vec![7u8; 300]);
    let job = parents.fold(job, NewJob::after);
    while builder.fits(&job) {
        builder.push(&job);
    }
    assert!(builder.len() < BATCH_JOBS_MAX, "the limit was reached");
    builder.seal(false).to_batch(u64::MAX).expect("within the limits");
}

#[test]
fn an_empty_batch_fits_the_largest_job() {
    let headers = (0..HEADERS_MAX).map(|n| (format!("{n:04}"), "1234".to_owned())).collect();
    let (small, mut job) = (job("entry"), job("entry-full"));
    job.headers = Headers(headers);
    job.payload = vec![7u8; PAYLOAD_BYTES_MAX].into();
    job.options = JobOptions {
        priority: i32::MIN,
        max_attempts: Some(u16::MAX),
        lease_ms: Some(LEASE_MS_MAX),
        run_timeout_ms: Some(WAIT_MS_MAX),
        backoff: Some(Backoff::List(vec![u32::MAX; Backoff::LIST_MAX])),
        keep_ms: Some(WAIT_MS_MAX),
        ..job.options
    };
    assert_eq!(job.headers.bytes(), HEADERS_BYTES_MAX);
    let mut builder = BatchBuilder::new();
    assert!(builder.fits(&job));
    builder.push(&job);
    assert!(!builder.fits(&small));
    let batch = builder.seal(false).to_batch(u64::MAX).unwrap();
    assert!(batch.entries().all(|entry| entry.head.is_ok()));
}

#[test]
fn oversized_results_are_cut_and_leave_the_batch_valid() {
    let mut builder = SettleBatchBuilder::new();
    let result = Some(Bytes::from(vec![7u8; 3 * RESULT_BYTES_MAX]));
    while !builder.is_full() {
        builder.push(Token(1), &NewSettle::Complete { result: result.clone() });
    }
    let batch = SettleBatch::decode(builder.seal(1)).unwrap();
    for item in batch.items() {
        let Verdict::Complete(Some(span)) = item.verdict else { panic!("{item:?}") };
        assert_eq!(span.length as usize, RESULT_BYTES_MAX + 1);
    }
}

#[test]
fn long_texts_are_cut_at_a_character_boundary() {
    let long = "ü".repeat(ERROR_BYTES_MAX);
    let goodbye = Sample::FromPublisher(FromPublisher::Goodbye { reason: long.clone() });
    let cut = Sample::decode("from-publisher-goodbye", goodbye.encode());
    let reason = "ü".repeat(REASON_BYTES_MAX / 2);
    assert_eq!(cut, Ok(Sample::FromPublisher(FromPublisher::Goodbye { reason: reason.clone() })));
    let (id, code) = (1, resolver::RequestRefusal::Malformed);
    let refused = |reason| Sample::FromReplica(FromReplica::Refused { id, code, reason });
    let cut = Sample::decode("from-replica-refused", refused(long.clone()).encode());
    assert_eq!(cut, Ok(refused(reason)));
    let mut builder = SettleBatchBuilder::new();
    builder.push(Token(1), &NewSettle::Fail(JobError { kind: format!("x{long}"), message: long }));
    let batch = SettleBatch::decode(builder.seal(1)).expect("readable");
    let Some(Verdict::Fail(span)) = batch.items().next().map(|item| item.verdict) else {
        panic!("a failure")
    };
    let error = JobError::decode(&mut Reader::new(batch.body().slice(span.at as usize..))).unwrap();
    assert_eq!(error.kind.len(), NAME_BYTES_MAX - 1);
    assert_eq!(error.message.len(), ERROR_BYTES_MAX);
}

#[test]
fn handshakes_out_of_range_are_refused() {
    let Sample::Handshake(good) = sample("handshake") else { panic!("a handshake") };
    let ms = std::time::Duration::from_millis;
    let timing = |heartbeat, hang| LinkTiming { heartbeat: ms(heartbeat), hang: ms(hang) };
    for (bad, what) in [
        (Handshake { version_min: 2, version_max: 1, ..good.clone() }, "invalid version range"),
        (
            Handshake { timing: timing(9, 100), ..good.clone() },
            "invalid heartbeat interval under 10 ms",
        ),
        (
            Handshake { timing: timing(100, 100), ..good.clone() },
            "invalid hang timeout that is not longer than the heartbeat interval",
        ),
        (Handshake { frame_bytes_max: 4_095, ..good.clone() }, "invalid frame limit under 4 KiB"),
        (
            Handshake { name: "x".repeat(129), ..good.clone() },
            "name at byte 19 is 129; the limit is 128",
        ),
    ] {
        let error = round_trip(&bad).unwrap_err();
        assert!(error.to_string().starts_with(what), "{error}");
    }
    for (min, max, common) in [(1, 1, Some(1)), (1, 9, Some(1)), (2, 9, None), (0, 0, None)] {
        let handshake = Handshake { version_min: min, version_max: max, ..good.clone() };
        assert_eq!(handshake.common_version(), common, "{min} to {max}");
    }
}

#[test]
fn options_out_of_range_are_refused() {
    let with = |change: fn(&mut JobOptions)| {
        let mut options = JobOptions::default();
        change(&mut options);
        round_trip(&options).map(|_| ()).map_err(|error| error.to_string())
    };
    type Change = fn(&mut JobOptions);
    let table: [(Change, &str); 10] = [
        (|o| o.max_attempts = Some(0), "invalid max_attempts of 0; the least is 1 at byte 1"),
        (|o| o.lease_ms = Some(999), "invalid lease outside 1 s to 12 h at byte 1"),
        (|o| o.lease_ms = Some(LEASE_MS_MAX + 1), "invalid lease outside 1 s to 12 h at byte 1"),
        (
            |o| o.due = Due::After(WAIT_MS_MAX + 1),
            "delay in milliseconds at byte 1 is 3153600000001; the limit is 3153600000000",
        ),
        (
            |o| o.due = Due::At(u64::MAX),
            "time in milliseconds at byte 1 is 18446744073709551615; the limit is 253402300799999",
        ),
        (|o| o.backoff = Some(Backoff::List(vec![])), "invalid empty back-off list at byte 2"),
        (
            |o| o.backoff = Some(Backoff::List(vec![1; 65])),
            "back-off waits at byte 2 is 65; the limit is 64",
        ),
        (
            |o| o.expires_at = Some(RUN_AT_MS_MAX + 1),
            "time in milliseconds at byte 2 is 253402300800000; the limit is 253402300799999",
        ),
        (
            |o| o.run_timeout_ms = Some(WAIT_MS_MAX + 1),
            "run timeout in milliseconds at byte 2 is 3153600000001; the limit is 3153600000000",
        ),
        (
            |o| o.keep_ms = Some(WAIT_MS_MAX + 1),
            "keep in milliseconds at byte 2 is 3153600000001; the limit is 3153600000000",
        ),
    ];
    for (change, error) in table {
        assert_eq!(with(change), Err(error.to_owned()));
    }
}

#[test]
fn settings_out_of_range_are_refused() {
    let with = |change: fn(&mut QueueSettings)| {
        let mut settings = QueueSettings::default();
        change(&mut settings);
        round_trip(&settings).map_err(|error| error.to_string())
    };
    assert!(with(|_| {}).is_ok());
    type Change = fn(&mut QueueSettings);
    let table: [(Change, &str); 6] = [
        (|s| s.max_attempts = Some(0), "invalid max_attempts of 0"),
        (|s| s.lease_ms = Some(LEASE_MS_MIN - 1), "invalid lease outside 1 s to 12 h"),
        (|s| s.run_timeout_ms = Some(u64::MAX), "run timeout in milliseconds"),
        (|s| s.keep_ms = Some(WAIT_MS_MAX + 1), "keep in milliseconds"),
        (|s| s.keep_jobs = Some(KEEP_JOBS_MAX + 1), "jobs to keep"),
        (|s| s.keep_dead_ms = Some(WAIT_MS_MAX + 1), "keep of dead letters in milliseconds"),
    ];
    for (change, error) in table {
        let actual = with(change).expect_err(error);
        assert!(actual.starts_with(error), "{actual}");
    }
    let unknown = Bytes::from_static(&[0x80, 2]);
    let actual = QueueSettings::decode(&mut Reader::new(unknown)).unwrap_err().to_string();
    assert!(actual.contains("queue setting that this version does not know"), "{actual}");
}

#[test]
fn reports_of_workers_out_of_range_are_refused() {
    let read = |tag, body: &[u8]| {
        let read = ToPublisher::decode(tag, Bytes::copy_from_slice(body));
        read.map(|_| ()).map_err(|error| error.to_string())
    };
    use work::tag::{CHECKPOINT, PROGRESS, STARTED, SUBSCRIBE};
    for (tag, body, error) in [
        (PROGRESS, &[1, 2, 101, 0][..], "invalid percent over 100 at byte 2"),
        (PROGRESS, &[0x81, 0x08], "progress of attempts at byte 0 is 1025; the limit is 1024"),
        (STARTED, &[2, 2, 2, 1, 5], "invalid number of running times at byte 3"),
        (CHECKPOINT, &[9, 0, 0], "invalid checkpoint number 0; the first is 1 at byte 1"),
        (SUBSCRIBE, &[1, 0, 0], "invalid subscription without a pattern at byte 2"),
        (SUBSCRIBE, &[1, 0, 65], "patterns of a subscription at byte 2 is 65; the limit is 64"),
        (SUBSCRIBE, b"\x01\0\x01\x02/a\x01\0", "invalid subscription without a handler at byte 7"),
        (
            SUBSCRIBE,
            b"\x01\0\x01\x02/a\x01\x81\x80\x04",
            "handlers at byte 7 is 65537; the limit is 65536",
        ),
    ] {
        assert_eq!(read(tag, body), Err(error.to_owned()));
    }
}

#[test]
fn oversized_checkpoints_are_cut_by_the_sender() {
    let large = Bytes::from(vec![7u8; 3 * CHECKPOINT_BYTES_MAX]);
    let read = Checkpoint::decode(Checkpoint::body_of(Token(1), 1, &large)).unwrap();
    assert_eq!(read.length as usize, CHECKPOINT_BYTES_MAX + 1);
    let bytes = &read.body()[read.at as usize..][..read.length as usize];
    assert!(bytes.iter().all(|&byte| byte == 7), "the offset is right");
}

#[test]
fn too_many_homes_of_a_publication_are_refused() {
    let read = |patterns: usize, names: usize| {
        let mut out = FrameWriter::new();
        out.record(|out| {
            out.put(&[1, 0, 0, 100]);
            out.u64(patterns as u64);
            for pattern in 0..patterns {
                out.string(&format!("/{pattern:03}"));
                out.u64(names as u64);
                (0..names).for_each(|name| out.string(&format!("{name:02}")));
            }
        });
        let terms = Terms::decode(&mut Reader::new(out.into_body()));
        terms.map(|terms| terms.homes.iter().map(|(_, names)| names.len()).sum::<usize>())
    };
    assert_eq!(read(HOME_PATTERNS_MAX, 1), Ok(HOME_PATTERNS_MAX));
    assert_eq!(read(1, HOMES_MAX), Ok(HOMES_MAX));
    for (patterns, names, error) in [
        (HOME_PATTERNS_MAX + 1, 1, "patterns with homes at byte 8 is 65; the limit is 64"),
        (1, HOMES_MAX + 1, "homes at byte 14 is 65; the limit is 64"),
    ] {
        assert_eq!(read(patterns, names).unwrap_err().to_string(), error);
    }
}

#[test]
fn the_number_of_digest_buckets_is_a_power_of_two() {
    use resolver::{Announced, Digest};
    let read = |n: usize| {
        let stored = vec![Digest::default(); n];
        round_trip(&Announced { id: 9, stored, writer_ttl_ms: 1 }).map(|read| read.stored.len())
    };
    for n in [0, 1, 2, 1_024, RESOLVER_BUCKETS_MAX] {
        assert_eq!(read(n), Ok(n));
    }
    for n in [3, RESOLVER_BUCKETS_MAX - 1] {
        let refused = read(n).unwrap_err().to_string();
        assert_eq!(refused, "invalid number of digest buckets at byte 1");
    }
    assert!(matches!(read(2 * RESOLVER_BUCKETS_MAX), Err(WireError::OverLimit { .. })));
}

/// A referral, for example: answers of later versions are records after their kind.
#[test]
fn answers_of_unknown_kinds_are_skipped() {
    use resolver::PathAnswer;
    let mut out = FrameWriter::new();
    out.u8(200);
    out.record(|out| out.string("a field of version 2"));
    PathAnswer::NotFound.encode(&mut out);
    let mut r = Reader::new(out.into_body());
    assert_eq!(PathAnswer::decode(&mut r), Ok(PathAnswer::Unknown { kind: 200 }));
    assert_eq!(PathAnswer::decode(&mut r), Ok(PathAnswer::NotFound));
}

#[test]
fn segments_of_globs_are_limited_per_request() {
    use resolver::{ListMatching, WatchPaths};
    // 256 alternatives, each with nine segments and an end: 25 such globs stay below 65,536.
    let globs = |n| vec![Glob::new(&("/{a,b}".repeat(8) + "/c")).unwrap(); n];
    let list = |n| round_trip(&ListMatching { id: 9, globs: globs(n) }).map(|_| ());
    let watch = |n| round_trip(&WatchPaths { id: 9, watch: 1, globs: globs(n) }).map(|_| ());
    assert_eq!((list(25), watch(25)), (Ok(()), Ok(())));
    let refused = "segments of globs at byte 1 is 66560; the limit is 65536";
    assert_eq!(list(26).unwrap_err().to_string(), refused);
    assert!(matches!(watch(26), Err(WireError::OverLimit { .. })));
}

#[test]
fn paths_of_a_write_are_limited_over_all_groups() {
    use resolver::{Change, Group, PathText, Write};
    let group = |n| Group {
        change: Change::Publish,
        terms: Terms::default(),
        paths: std::iter::repeat_n(PathText::new(b""), n).collect(),
    };
    let read = |groups| round_trip(&Write { id: 9, groups }).map(|_| ());
    let half = RESOLVER_BATCH_PATHS_MAX / 2;
    assert_eq!(read(vec![group(half), group(half)]), Ok(()));
    assert_eq!(
        read(vec![group(half), group(half + 1)]).unwrap_err().to_string(),
        "paths of a write at byte 1 is 100001; the limit is 100000"
    );
}

/// Ignoring an option, flag or code would break a promise to the sender: only a later version may
/// send it.
#[test]
fn unknown_options_flags_and_codes_are_refused() {
    let plain = sample("entry").encode();
    for bit in 0..64 {
        let mut out = FrameWriter::new();
        out.u64(1 << bit);
        out.put(&[0, 0xff, 0xff, 0, 0]);
        let unknown = bit >= 11;
        let read = JobOptions::decode(&mut Reader::new(out.into_body()));
        let what = "job option that this version does not know";
        assert_eq!(read == Err(WireError::Invalid { offset: 0, what }), unknown, "bit {bit}");
    }
    for bit in 2..8 {
        let mut entry = plain.to_vec();
        entry[16] |= 1 << bit;
        assert!(Entry::read(entry.clone().into()).is_err(), "bit {bit}");
        let length = entry.len();
        assert!(EntryHead::read(&mut Reader::new(entry.into()), length).is_err(), "bit {bit}");
    }
    for bit in 1..8 {
        assert!(EnqueueBatch::decode(Bytes::from(vec![1, 1 << bit, 0, 0])).is_err(), "bit {bit}");
    }
    macro_rules! unknown_codes {
        ($($name:ident: $code:ty),* $(,)?) => {$(
            for code in 0..=255u8 {
                let read = <$code>::decode(&mut Reader::new(Bytes::from(vec![code])));
                let known = <$code>::ALL.iter().copied().find(|known| known.code() == code);
                assert_eq!(read.ok(), known, "{} {code}", stringify!($name));
            }
        )*};
    }
    every_code!(unknown_codes);
}

#[test]
fn numbers_out_of_range_are_refused() {
    let read = |bytes: &'static [u8]| Reader::new(Bytes::from_static(bytes)).u64();
    let most = [0xff; 9];
    assert_eq!(Reader::new([&most[..], &[1]].concat().into()).u64(), Ok(u64::MAX));
    assert!(Reader::new([&most[..], &[2]].concat().into()).u64().is_err());
    assert!(Reader::new([&most[..], &[0x81, 0]].concat().into()).u64().is_err());
    assert_eq!(read(&[0x80, 0x00]), Ok(0), "a longer form is accepted");
    assert_eq!(read(&[0x80]), Err(WireError::Truncated { offset: 1, needed: 1, had: 0 }));
    assert!(Reader::new(Bytes::from_static(&[2])).bool().is_err());
}

/// Encodes and decodes a value.
fn round_trip<T: Encode + Decode>(value: &T) -> Result<T, WireError> {
    let mut out = FrameWriter::new();
    value.encode(&mut out);
    T::decode(&mut Reader::new(out.into_body()))
}

/// The number of bytes before the body: handshakes and entries are not wrapped in a message.
fn header_bytes(sample: &Sample) -> usize {
    let bare =
        matches!(sample, Sample::Handshake(_) | Sample::HandshakeAnswer(_) | Sample::Entry(_));
    if bare { 0 } else { 5 }
}

fn with_body(whole: &[u8], header: usize, change: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    let mut body = whole[header..].to_vec();
    change(&mut body);
    if header == 0 {
        return body.into();
    }
    let mut out = FrameWriter::new();
    out.message(whole[0], |out| out.put(&body));
    out.into_body()
}
