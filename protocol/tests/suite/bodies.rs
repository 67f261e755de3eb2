//! The fuzz targets. Each accepts arbitrary bytes and must not panic, hang or allocate more than
//! the input justifies. A decoded message must encode to bytes that decode to the same message.
//! `fuzz/` runs them under libFuzzer, `fuzz_bodies.rs` under proptest.

use bytes::Bytes;
use longshore_protocol::frame::FrameWriter;
use longshore_protocol::limits::*;
use longshore_protocol::messages::resolver::{FromReplica, PathText, ToReplica};
use longshore_protocol::messages::values::{FromValuePublisher, ToValuePublisher, Updates};
use longshore_protocol::messages::work::{EnqueueBatch, FromPublisher, SettleBatch, ToPublisher};
use longshore_protocol::*;

/// A fuzz target with its name.
pub type Body = (&'static str, fn(&[u8]));

/// All fuzz targets.
pub const ALL: [Body; 13] = [
    ("frame", fuzz_frame),
    ("handshake", fuzz_handshake),
    ("handshake_answer", fuzz_handshake_answer),
    ("to_publisher", fuzz_to_publisher),
    ("from_publisher", fuzz_from_publisher),
    ("to_replica", fuzz_to_replica),
    ("from_replica", fuzz_from_replica),
    ("entry", fuzz_entry),
    ("path", fuzz_path),
    ("glob", fuzz_glob),
    ("value", fuzz_value),
    ("to_values", fuzz_to_values),
    ("from_values", fuzz_from_values),
];

/// Fuzzes a frame's body: its messages are never larger than the frame, and each is passed to every
/// decoder.
pub fn fuzz_frame(data: &[u8]) {
    let (mut errors, mut bytes) = (0, 0);
    for message in Messages::new(Bytes::copy_from_slice(data)) {
        assert_eq!(errors, 0, "an error ends the frame");
        match message {
            Ok((tag, body)) => {
                bytes += 5 + body.len();
                let message = [&[tag][..], &body].concat();
                fuzz_to_publisher(&message);
                fuzz_from_publisher(&message);
                fuzz_to_replica(&message);
                fuzz_from_replica(&message);
                fuzz_to_values(&message);
                fuzz_from_values(&message);
            }
            Err(error) => {
                check(&error, data.len());
                errors += 1;
            }
        }
    }
    assert!(bytes <= data.len() && (errors == 1 || bytes == data.len()));
}

/// Fuzzes a handshake.
pub fn fuzz_handshake(data: &[u8]) {
    let handshake = round_trip::<Handshake>(data);
    if let Some(handshake) = handshake {
        assert!(handshake.version_min <= handshake.version_max);
        assert!(handshake.timing.hang > handshake.timing.heartbeat);
        let _ = handshake.common_version();
    }
}

/// Fuzzes the answer to a handshake.
pub fn fuzz_handshake_answer(data: &[u8]) {
    round_trip::<HandshakeAnswer>(data);
}

/// Fuzzes a message to a publisher: its tag, then its body.
pub fn fuzz_to_publisher(data: &[u8]) {
    let message = message(data, ToPublisher::decode, ToPublisher::encode);
    match &message {
        Some(ToPublisher::Enqueue(batch)) => check_batch(batch),
        Some(ToPublisher::Settle(batch)) => check_settles(batch),
        _ => {}
    }
    if let Some((_, body)) = data.split_first() {
        let number = ToPublisher::number(&Bytes::copy_from_slice(body));
        match message {
            Some(ToPublisher::Enqueue(batch)) => assert_eq!(number, Some(batch.sequence)),
            Some(ToPublisher::Settle(batch)) => assert_eq!(number, Some(batch.sequence)),
            Some(ToPublisher::Request { id, .. }) => assert_eq!(number, Some(id)),
            _ => {}
        }
    }
}

/// Fuzzes a message from a publisher: its tag, then its body.
pub fn fuzz_from_publisher(data: &[u8]) {
    let message = message(data, FromPublisher::decode, FromPublisher::encode);
    match message {
        Some(FromPublisher::Deliver(deliver)) => {
            for job in deliver.jobs {
                assert!((job.path as usize) < deliver.paths.len());
                fuzz_entry(&job.entry);
            }
        }
        Some(FromPublisher::Enqueued(enqueued)) => {
            if let Ok(outcomes) = enqueued.outcome {
                assert!(outcomes.len() <= BATCH_JOBS_MAX);
                assert_eq!(outcomes.iter().count(), outcomes.len());
            }
        }
        _ => {}
    }
}

/// Fuzzes a message to a replica: its tag, then its body.
pub fn fuzz_to_replica(data: &[u8]) {
    message(data, ToReplica::decode, ToReplica::encode);
    if let Some((_, body)) = data.split_first() {
        ToReplica::id_of_undecodable(&Bytes::copy_from_slice(body));
    }
}

/// Fuzzes a message from a replica: its tag, then its body.
pub fn fuzz_from_replica(data: &[u8]) {
    message(data, FromReplica::decode, FromReplica::encode);
}

/// Fuzzes a job's entry: the publisher's partial decoding and the worker's full decoding agree.
pub fn fuzz_entry(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    let head = EntryHead::read(&mut Reader::new(bytes.clone()), data.len());
    let whole = Entry::read(bytes.clone());
    let of_worker = whole.clone().map(|mut entry| {
        let keys = entry.keys.take();
        (entry, keys.map_or(Vec::new(), |keys| keys.after))
    });
    assert_eq!(Entry::read_for_worker(bytes), of_worker);
    match (whole, head) {
        (Ok(entry), Ok(head)) => {
            assert_eq!((entry.id, entry.crc), (head.id, head.crc));
            assert_eq!(entry.payload.len(), head.payload_len);
            assert_eq!(entry.options, head.options.unwrap_or_default());
            assert!(entry.headers.bytes() <= HEADERS_BYTES_MAX);
            let _ = entry.is_intact();
        }
        (Err(a), Err(b)) => {
            assert_eq!(a, b);
            check(&a, data.len());
        }
        (Ok(entry), Err(_)) => assert!(entry.payload.len() > PAYLOAD_BYTES_MAX),
        (Err(error), Ok(_)) => panic!("the publisher accepts what no worker can decode: {error}"),
    }
}

/// Fuzzes the text of a path.
pub fn fuzz_path(data: &[u8]) {
    round_trip::<Path>(data);
    let text = PathText::new(data);
    let Ok(path) = text.parse() else { return };
    assert_eq!(Some(path.as_str()), text.as_str());
    assert!(path.as_str().len() <= PATH_BYTES_MAX && path.depth() <= PATH_DEPTH_MAX);
    assert_eq!(format!("/{}", path.segments().collect::<Vec<_>>().join("/")), path.as_str());
    assert_eq!(path.parent().is_none(), path.is_root());
    if let Some(parent) = path.parent() {
        assert!(path.is_at_or_below(&parent) && !parent.is_at_or_below(&path));
        assert_eq!(parent.depth() + 1, path.depth());
    }
}

/// Fuzzes a glob, a line feed and a path.
pub fn fuzz_glob(data: &[u8]) {
    round_trip::<Glob>(data);
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (glob, path) = text.split_once('\n').unwrap_or((text, "/a/b"));
    let (Ok(glob), Ok(path)) = (Glob::new(glob), Path::new(path)) else { return };
    if let Some(literal) = glob.literal() {
        assert_eq!(glob.matches(&path), literal == path);
    }
    if glob.matches(&path) {
        let mut above = Some(path);
        while let Some(base) = above {
            assert!(glob.could_match_at_or_below(&base), "{glob} {base}");
            above = base.parent();
        }
    }
}

/// Fuzzes a value.
pub fn fuzz_value(data: &[u8]) {
    if let Some(value) = round_trip::<Value>(data) {
        let length = value.encoded_len().expect("a decoded value can be encoded");
        // Lengths in the input may be longer than their shortest form.
        assert!(length <= data.len() && length <= VALUE_BYTES_MAX);
        assert!(!value.to_string().is_empty());
    }
}

/// Fuzzes a message to a publisher of values: its tag, then its body.
pub fn fuzz_to_values(data: &[u8]) {
    message(data, ToValuePublisher::decode, ToValuePublisher::encode);
}

/// Fuzzes a message from a publisher of values: its tag, then its body.
pub fn fuzz_from_values(data: &[u8]) {
    let message = message(data, FromValuePublisher::decode, FromValuePublisher::encode);
    if let Some(FromValuePublisher::Updates(updates)) = message {
        let read: Vec<_> = updates.iter().take_while(|update| update.is_ok()).flatten().collect();
        let again: Updates = read.iter().map(|(number, value)| (*number, value)).collect();
        assert!(again.body().len() <= updates.body().len());
        assert_eq!(again.iter().flatten().collect::<Vec<_>>(), read);
        match updates.iter().nth(read.len()) {
            None => {}
            Some(Ok(_)) => panic!("an update after the first error"),
            Some(Err(error)) => check(&error, updates.body().len()),
        }
        assert!(updates.iter().count() <= read.len() + 1, "an error ends the updates");
    }
}

fn round_trip<T: Encode + Decode + PartialEq + std::fmt::Debug>(data: &[u8]) -> Option<T> {
    let bytes = Bytes::copy_from_slice(data);
    match T::decode(&mut Reader::new(bytes)) {
        Ok(value) => {
            let mut out = FrameWriter::new();
            value.encode(&mut out);
            let again = T::decode(&mut Reader::new(out.into_body()));
            assert_eq!(again.as_ref(), Ok(&value));
            Some(value)
        }
        Err(error) => {
            check(&error, data.len());
            None
        }
    }
}

fn message<T: PartialEq + std::fmt::Debug>(
    data: &[u8],
    decode: fn(u8, Bytes) -> Result<Option<T>, WireError>,
    encode: fn(&T, &mut FrameWriter),
) -> Option<T> {
    let (&tag, body) = data.split_first()?;
    match decode(tag, Bytes::copy_from_slice(body)) {
        Ok(None) => None,
        Ok(Some(message)) => {
            let mut out = FrameWriter::new();
            encode(&message, &mut out);
            let (tag, body) = Messages::new(out.into_body())
                .next()
                .expect("a message was written")
                .expect("the message is complete");
            let again = decode(tag, body).expect("an encoded message decodes");
            assert_eq!(again.as_ref(), Some(&message));
            again
        }
        Err(error) => {
            check(&error, body.len());
            None
        }
    }
}

fn check(error: &WireError, length: usize) {
    match *error {
        WireError::Truncated { offset, needed, had } => {
            assert!(offset + had <= length && needed > had, "{error} of {length}");
        }
        WireError::Invalid { offset, .. } => assert!(offset <= length, "{error} of {length}"),
        WireError::OverLimit { offset, value, limit, .. } => {
            assert!(offset <= length && value > limit, "{error} of {length}");
        }
    }
    assert!(error.to_string().len() < 200);
}

fn check_batch(batch: &EnqueueBatch) {
    assert!(batch.len() <= BATCH_JOBS_MAX && batch.body().len() <= BATCH_BYTES_MAX);
    let mut entries = 0;
    for entry in batch.entries() {
        assert!(entry.path < batch.paths.len());
        let (at, length) = (entry.at as usize, entry.length as usize);
        let bytes = &batch.body()[at..at + length];
        // A damaged entry refuses only its own job; the following entries can still be read.
        if entry.head.is_ok() {
            fuzz_entry(bytes);
        }
        entries += 1;
    }
    assert_eq!(entries, batch.len());
}

fn check_settles(batch: &SettleBatch) {
    use longshore_protocol::messages::work::Verdict;
    let items: Vec<_> = batch.items().collect();
    assert_eq!(items.len(), batch.len());
    for item in items {
        match item.verdict {
            Verdict::Complete(Some(span)) => {
                assert!((span.at + span.length) as usize <= batch.body().len());
            }
            Verdict::Fail(span) | Verdict::Bury(span) => {
                let bytes = batch.body().slice(span.at as usize..(span.at + span.length) as usize);
                JobError::decode(&mut Reader::new(bytes)).expect("checked with the batch");
            }
            Verdict::Complete(None)
            | Verdict::Release
            | Verdict::Snooze(_)
            | Verdict::Throttle(_) => {}
        }
    }
}
