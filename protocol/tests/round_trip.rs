//! Every type, with any content, comes back from its bytes as it went in.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod shared;
mod strategies;

use bytes::Bytes;
use longshore_protocol::limits::*;
use longshore_protocol::messages::values;
use longshore_protocol::messages::work::*;
use longshore_protocol::*;
use proptest::collection::vec;
use proptest::prelude::*;
use shared::samples::Sample;
use strategies::*;

fn comes_back(sample: Sample) {
    assert_eq!(sample.decode(sample.encode()), Ok(sample));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn hellos_come_back(hello in hello()) {
        comes_back(Sample::Hello(hello));
    }

    #[test]
    fn hello_answers_come_back(answer in hello_answer()) {
        comes_back(Sample::HelloAnswer(answer));
    }

    #[test]
    fn entries_come_back(job in job()) {
        comes_back(Sample::Entry(job));
    }

    #[test]
    fn what_clients_say_comes_back(message in to_publisher()) {
        comes_back(Sample::To(message));
    }

    #[test]
    fn what_publishers_say_comes_back(message in from_publisher()) {
        comes_back(Sample::From(message));
    }

    #[test]
    fn what_a_replica_hears_comes_back(message in to_replica()) {
        comes_back(Sample::ToReplica(message));
    }

    #[test]
    fn what_a_replica_says_comes_back(message in from_replica()) {
        comes_back(Sample::FromReplica(message));
    }

    #[test]
    fn values_come_back_and_their_length_is_told(value in value()) {
        let mut out = frame::FrameWriter::new();
        value.encode(&mut out);
        let body = out.into_body();
        prop_assert_eq!(value.encoded_len(), Ok(body.len()));
        prop_assert_eq!(Value::decode(&mut Reader::new(body)), Ok(value));
    }

    #[test]
    fn what_subscribers_of_values_say_comes_back(message in to_values()) {
        comes_back(Sample::ToValues(message));
    }

    #[test]
    fn what_publishers_of_values_say_comes_back(message in from_values()) {
        comes_back(Sample::FromValues(message));
    }

    #[test]
    fn a_frame_of_updates_holds_each_in_order(updates in vec((any::<u32>(), value()), 0..40)) {
        let mut writer = values::UpdatesWriter::with_capacity(64);
        updates.iter().for_each(|(number, value)| writer.push(*number, value));
        let length = writer.body_len();
        let frame = Bytes::from(writer.finish().parts().concat());
        prop_assert_eq!(length, frame.len() - frame::FRAME_HEADER_BYTES);
        let (tag, body) = shared::samples::one_message(frame.slice(4..)).unwrap();
        let message = values::Updates::new(body);
        let mut by_kind = message.iter();
        for wanted in &updates {
            let number = by_kind.next_number();
            let is_number = matches!(wanted.1, Value::U64(_) | Value::I64(_) | Value::F64(_));
            prop_assert!(number.is_none() || is_number, "{wanted:?}");
            let read = number.map_or_else(|| by_kind.next(), |update| Some(Ok(update)));
            prop_assert_eq!(read, Some(Ok(wanted.clone())));
        }
        prop_assert_eq!((by_kind.next_number(), by_kind.next()), (None, None));
        let read: Result<Vec<_>, _> = message.iter().collect();
        prop_assert_eq!((tag, read), (values::tag::UPDATES, Ok(updates)));
    }

    #[test]
    fn frames_of_many_messages_come_back_in_order(messages in vec(from_publisher(), 0..20)) {
        comes_back(Sample::Frame(messages));
    }

    #[test]
    fn a_batch_holds_each_job_in_order(jobs in vec(job(), 0..40), atomic: bool, sequence: u64) {
        let mut builder = BatchBuilder::new();
        jobs.iter().for_each(|job| builder.push(job));
        let batch = builder.seal(atomic).to_batch(sequence).unwrap();
        prop_assert_eq!((batch.sequence, batch.atomic, batch.len()), (sequence, atomic, jobs.len()));
        for (job, entry) in jobs.iter().zip(batch.entries()) {
            let head = entry.head.unwrap();
            let bytes = batch.body().slice(entry.at as usize..(entry.at + entry.length) as usize);
            prop_assert_eq!(&batch.paths[entry.path], &job.path);
            prop_assert!(head.is_intact(&bytes));
            let mut rotten = bytes.to_vec();
            let at = rotten.len() - head.payload_len;
            if let Some(byte) = rotten.get_mut(at + head.payload_len / 2) {
                *byte ^= 1;
                prop_assert!(!head.is_intact(&rotten));
                prop_assert!(!head.is_intact(&rotten[..head.payload_len - 1]));
            }
            prop_assert_eq!(head.options.unwrap_or_default(), job.options.clone());
            let read = Entry::read(bytes).unwrap();
            prop_assert!(read.is_intact());
            prop_assert_eq!((read.id, &read.payload, &read.headers), (job.id, &job.payload, &job.headers));
        }
    }

    #[test]
    fn a_batch_of_settles_holds_each_in_order(settles in vec((any::<u64>(), settle()), 0..60)) {
        let mut builder = SettleBatchBuilder::new();
        settles.iter().for_each(|(token, settle)| builder.push(Token(*token), settle));
        let batch = SettleBatch::decode(builder.seal(7)).unwrap();
        prop_assert_eq!(batch.len(), settles.len());
        for ((token, settle), item) in settles.iter().zip(batch.items()) {
            prop_assert_eq!(item.token, Token(*token));
            let bytes = |span: Span| batch.body().slice(span.at as usize..(span.at + span.length) as usize);
            let error = |span| JobError::decode(&mut Reader::new(bytes(span))).unwrap();
            let read = match item.verdict {
                Verdict::Complete(span) => NewSettle::Complete { result: span.map(bytes) },
                Verdict::Fail(span) => NewSettle::Fail(error(span)),
                Verdict::Release => NewSettle::Release,
                Verdict::Snooze(ms) => NewSettle::Snooze { ms },
                Verdict::Bury(span) => NewSettle::Bury(error(span)),
            };
            prop_assert_eq!(&read, settle);
        }
    }

    #[test]
    fn runs_are_the_sequence_they_were_made_from(values in vec(settle_outcome(), 0..200)) {
        let runs: Runs<SettleOutcome> = values.iter().copied().collect();
        prop_assert_eq!(runs.len(), values.len());
        prop_assert!(runs.runs().windows(2).all(|pair| pair[0].0 != pair[1].0));
        prop_assert_eq!(runs.iter().collect::<Vec<_>>(), values);
    }

    #[test]
    fn numbers_come_back(unsigned: u64, signed: i64) {
        let mut out = frame::FrameWriter::new();
        out.u64(unsigned);
        out.i64(signed);
        let mut r = Reader::new(out.into_body());
        prop_assert_eq!((r.u64(), r.i64(), r.left()), (Ok(unsigned), Ok(signed), 0));
    }

    #[test]
    fn ids_come_back_from_their_text(id: [u8; 16]) {
        prop_assert_eq!(JobId(id).to_string().parse(), Ok(JobId(id)));
        prop_assert_eq!(PublisherId(id).to_string().parse(), Ok(PublisherId(id)));
        prop_assert!(PublisherId(id).to_string().starts_with(&PublisherId(id).prefix()));
    }
}

/// Large parts are chained, not copied, and lie where they would lie if they had been.
#[test]
fn large_payloads_are_chained_and_stand_in_their_place() {
    let large = Bytes::from(vec![7u8; frame::CHAIN_BYTES_MIN]);
    let small = large.slice(1..);
    let write = |out: &mut frame::FrameWriter| {
        out.message(9, |out| {
            out.u8(1);
            out.bytes_shared(large.clone());
            out.bytes_shared(small.clone());
            out.put_shared(large.clone());
        });
    };
    let (mut direct, mut inner, mut appended) = <(frame::FrameWriter, _, _)>::default();
    write(&mut direct);
    write(&mut inner);
    frame::FrameWriter::append(&mut appended, inner);
    let mut frames = frame::FrameWriter::new();
    let direct = direct.finish();
    frames.append_frame(&direct);
    assert!(direct.parts().iter().any(|part| part.as_ptr() == large.as_ptr()));
    assert!(!direct.parts().iter().any(|part| part.as_ptr() == small.as_ptr()));
    let whole = direct.parts().concat();
    assert_eq!(whole.len(), direct.len());
    assert_eq!(appended.finish().parts().concat(), whole);
    assert_eq!(frames.finish().parts().concat(), whole);
    let (tag, body) = shared::samples::one_message(Bytes::from(whole).slice(4..)).unwrap();
    let mut r = Reader::new(body);
    assert_eq!((tag, r.u8()), (9, Ok(1)));
    assert_eq!(r.bytes("large", FRAME_BYTES_MAX), Ok(large.clone()));
    assert_eq!(r.bytes("small", FRAME_BYTES_MAX), Ok(small));
    assert_eq!(r.take_rest(), large);
}
