//! Round trips through the encoding, for random content of every type.

use std::fmt::Debug;

use bytes::Bytes;
use proptest::prelude::*;

use super::{Arbitrary, Source};
use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::{self, FrameWriter};
use crate::limits::FRAME_BYTES_MAX;
use crate::messages::resolver::{FromReplica, ToReplica};
use crate::messages::values::{self, FromValuePublisher, ToValuePublisher};
use crate::messages::work::*;
use crate::*;

/// The only message of a frame's body.
fn one_message(body: Bytes) -> (u8, Bytes) {
    let mut messages = Messages::new(body);
    let message = messages.next().unwrap().unwrap();
    assert!(messages.next().is_none());
    message
}

fn round_trips<T: Arbitrary + Encode + Decode + PartialEq + Debug>(seed: u64) {
    let value: T = Source(seed).of();
    let mut out = FrameWriter::new();
    value.encode(&mut out);
    assert_eq!(T::decode(&mut Reader::new(out.into_body())), Ok(value));
}

fn message_round_trips<T: Arbitrary + PartialEq + Debug>(
    seed: u64,
    encode: fn(&T, &mut FrameWriter),
    decode: fn(u8, Bytes) -> Result<Option<T>, WireError>,
) {
    let message: T = Source(seed).of();
    let mut out = FrameWriter::new();
    encode(&message, &mut out);
    let (tag, body) = one_message(out.into_body());
    assert_eq!(decode(tag, body), Ok(Some(message)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn handshakes_round_trip(seed: u64) {
        round_trips::<Handshake>(seed);
        round_trips::<HandshakeAnswer>(seed);
    }

    #[test]
    fn messages_of_work_links_round_trip(seed: u64) {
        message_round_trips(seed, ToPublisher::encode, ToPublisher::decode);
        message_round_trips(seed, FromPublisher::encode, FromPublisher::decode);
    }

    #[test]
    fn messages_of_resolver_links_round_trip(seed: u64) {
        message_round_trips(seed, ToReplica::encode, ToReplica::decode);
        message_round_trips(seed, FromReplica::encode, FromReplica::decode);
    }

    #[test]
    fn messages_of_value_links_round_trip(seed: u64) {
        message_round_trips(seed, ToValuePublisher::encode, ToValuePublisher::decode);
        message_round_trips(seed, FromValuePublisher::encode, FromValuePublisher::decode);
    }

    #[test]
    fn values_round_trip_with_the_predicted_length(seed: u64) {
        let value: Value = Source(seed).of();
        let mut out = FrameWriter::new();
        value.encode(&mut out);
        prop_assert_eq!(value.encoded_len(), Ok(out.body_len()));
        round_trips::<Value>(seed);
    }

    #[test]
    fn frames_of_updates_preserve_their_order(seed: u64) {
        let updates: Vec<(u32, Value)> = Source(seed).list(40, |s| (s.of(), s.of()));
        let mut writer = values::UpdatesWriter::with_capacity(64);
        updates.iter().for_each(|(number, value)| writer.push(*number, value));
        let length = writer.body_len();
        let frame = Bytes::from(writer.finish().parts().concat());
        prop_assert_eq!(length, frame.len() - frame::FRAME_HEADER_BYTES);
        let (tag, body) = one_message(frame.slice(frame::FRAME_HEADER_BYTES..));
        let message = values::Updates::new(body);
        let mut by_kind = message.iter();
        for expected in &updates {
            let number = by_kind.next_number();
            let is_number = matches!(expected.1, Value::U64(_) | Value::I64(_) | Value::F64(_));
            prop_assert!(number.is_none() || is_number, "{expected:?}");
            let read = number.map_or_else(|| by_kind.next(), |update| Some(Ok(update)));
            prop_assert_eq!(read, Some(Ok(expected.clone())));
        }
        prop_assert_eq!((by_kind.next_number(), by_kind.next()), (None, None));
        let read: Result<Vec<_>, _> = message.iter().collect();
        prop_assert_eq!((tag, read), (values::tag::UPDATES, Ok(updates)));
    }

    #[test]
    fn frames_preserve_the_order_of_their_messages(seed: u64) {
        let messages: Vec<FromPublisher> = Source(seed).list(20, Source::of);
        let mut out = FrameWriter::new();
        messages.iter().for_each(|message| message.encode(&mut out));
        let frame = Bytes::from(out.finish().parts().concat());
        let mut r = Reader::new(frame);
        prop_assert_eq!(r.u32_fixed().unwrap() as usize, r.left());
        let read = Messages::new(r.take_rest()).map(|message| {
            let (tag, body) = message.unwrap();
            FromPublisher::decode(tag, body).unwrap().unwrap()
        });
        prop_assert_eq!(read.collect::<Vec<_>>(), messages);
    }

    #[test]
    fn enqueue_batches_preserve_jobs_and_their_order(seed: u64, atomic: bool, sequence: u64) {
        let jobs: Vec<NewJob> = Source(seed).list(40, Source::of);
        let mut builder = BatchBuilder::new();
        jobs.iter().for_each(|job| builder.push(job));
        let batch = builder.seal(atomic).to_batch(sequence).unwrap();
        prop_assert_eq!((batch.sequence, batch.atomic), (sequence, atomic));
        prop_assert_eq!(batch.len(), jobs.len());
        for (job, entry) in jobs.iter().zip(batch.entries()) {
            let head = entry.head.unwrap();
            let bytes = batch.body().slice(entry.at as usize..(entry.at + entry.length) as usize);
            prop_assert_eq!(&batch.paths[entry.path], &job.path);
            prop_assert!(head.is_intact(&bytes));
            let mut damaged = bytes.to_vec();
            let at = damaged.len() - head.payload_len;
            if let Some(byte) = damaged.get_mut(at + head.payload_len / 2) {
                *byte ^= 1;
                prop_assert!(!head.is_intact(&damaged));
                prop_assert!(!head.is_intact(&damaged[..head.payload_len - 1]));
            }
            prop_assert_eq!(head.options.unwrap_or_default(), job.options.clone());
            let read = Entry::read(bytes).unwrap();
            prop_assert!(read.is_intact());
            prop_assert_eq!((read.id, &read.options), (job.id, &job.options));
            prop_assert_eq!((&read.payload, &read.headers), (&job.payload, &job.headers));
        }
    }

    #[test]
    fn settle_batches_preserve_settles_and_their_order(seed: u64) {
        let settles: Vec<(Token, NewSettle)> = Source(seed).list(60, |s| (s.of(), s.of()));
        let mut builder = SettleBatchBuilder::new();
        settles.iter().for_each(|(token, settle)| builder.push(*token, settle));
        let batch = SettleBatch::decode(builder.seal(7)).unwrap();
        prop_assert_eq!(batch.len(), settles.len());
        let settle = |item: SettleItem| (item.token, NewSettle::of(batch.body(), item.verdict));
        prop_assert_eq!(batch.items().map(settle).collect::<Vec<_>>(), settles);
    }

    #[test]
    fn runs_round_trip_sequences_of_values(seed: u64) {
        let values: Vec<SettleOutcome> = Source(seed).list(200, Source::of);
        let runs: Runs<SettleOutcome> = values.iter().copied().collect();
        prop_assert_eq!(runs.len(), values.len());
        prop_assert!(runs.runs().windows(2).all(|pair| pair[0].0 != pair[1].0));
        prop_assert_eq!(runs.iter().collect::<Vec<_>>(), values);
    }

    #[test]
    fn numbers_round_trip(unsigned: u64, signed: i64) {
        let mut out = FrameWriter::new();
        out.u64(unsigned);
        out.i64(signed);
        let mut r = Reader::new(out.into_body());
        prop_assert_eq!((r.u64(), r.i64(), r.left()), (Ok(unsigned), Ok(signed), 0));
    }

    #[test]
    fn ids_round_trip_as_text(id: [u8; 16]) {
        prop_assert_eq!(JobId(id).to_string().parse(), Ok(JobId(id)));
        prop_assert_eq!(PublisherId(id).to_string().parse(), Ok(PublisherId(id)));
        prop_assert!(PublisherId(id).to_string().starts_with(&PublisherId(id).prefix()));
    }
}

/// The bytes are the same as if large parts had been copied.
#[test]
fn large_payloads_are_chained_in_the_right_order() {
    let large = Bytes::from(vec![7u8; frame::CHAIN_BYTES_MIN]);
    let small = large.slice(1..);
    let write = |out: &mut FrameWriter| {
        out.message(9, |out| {
            out.u8(1);
            out.bytes_shared(large.clone());
            out.bytes_shared(small.clone());
            out.put_shared(large.clone());
        });
    };
    let (mut direct, mut inner, mut appended) = <(FrameWriter, _, _)>::default();
    write(&mut direct);
    write(&mut inner);
    FrameWriter::append(&mut appended, inner);
    let mut frames = FrameWriter::new();
    let direct = direct.finish();
    frames.append_frame(&direct);
    assert!(direct.parts().iter().any(|part| part.as_ptr() == large.as_ptr()));
    assert!(!direct.parts().iter().any(|part| part.as_ptr() == small.as_ptr()));
    let whole = direct.parts().concat();
    assert_eq!(whole.len(), direct.len());
    assert_eq!(appended.finish().parts().concat(), whole);
    assert_eq!(frames.finish().parts().concat(), whole);
    let (tag, body) = one_message(Bytes::from(whole).slice(4..));
    let mut r = Reader::new(body);
    assert_eq!((tag, r.u8()), (9, Ok(1)));
    assert_eq!(r.bytes("large", FRAME_BYTES_MAX), Ok(large.clone()));
    assert_eq!(r.bytes("small", FRAME_BYTES_MAX), Ok(small));
    assert_eq!(r.take_rest(), large);
}
