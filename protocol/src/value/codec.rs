//! The encoding of a value: its kind, then its content. Decoding checks depth and the number of
//! elements before it allocates.

use std::time::Duration;

use bytes::Bytes;

use super::time::{from_1970, since_1970};
use super::{Text, Value, ValueError, ValueMap};
use crate::codec::{Decode, Encode, Reader, WireError, check_limit, number_bytes};
use crate::frame::FrameWriter;
use crate::limits::{VALUE_BYTES_MAX, VALUE_DEPTH_MAX, VALUE_ITEMS_MAX};

const NULL: u8 = 0;
const FALSE: u8 = 1;
const TRUE: u8 = 2;
const I64: u8 = 3;
const U64: u8 = 4;
const F64: u8 = 5;
const STRING: u8 = 6;
const BYTES: u8 = 7;
const LIST: u8 = 8;
const MAP: u8 = 9;
const DATE_TIME: u8 = 10;
const DURATION: u8 = 11;

/// Largest size in bytes of a value that is not a list, a map, text or bytes.
const PLAIN_BYTES: usize = 9;
/// Size in bytes of a time or duration: its kind, seconds, nanoseconds.
const TIME_BYTES: usize = 13;
/// Largest size in bytes of a 32-bit number in LEB128.
const NUMBER_BYTES: usize = 5;

/// Writes one update: a number and a value. Plain values cost one copy of a few bytes.
#[inline]
pub(crate) fn put_number_and_value(number: u32, value: &Value, out: &mut FrameWriter) {
    let (kind, bits) = match value {
        Value::U64(v) => (U64, *v),
        Value::I64(v) => (I64, *v as u64),
        Value::F64(v) => (F64, v.to_bits()),
        _ => {
            out.u64(u64::from(number));
            return value.encode(out);
        }
    };
    // Copying a constant length takes a few moves, a variable length a call: so the whole buffer is
    // copied and then truncated.
    let mut buffer = [0u8; NUMBER_BYTES + PLAIN_BYTES];
    let (mut rest, mut at) = (number, 0);
    while rest >= 0x80 {
        buffer[at] = (rest as u8 & 0x7f) | 0x80;
        rest >>= 7;
        at += 1;
    }
    buffer[at] = rest as u8;
    buffer[at + 1] = kind;
    buffer[at + 2..at + 10].copy_from_slice(&bits.to_le_bytes());
    out.put_first(&buffer, at + 10);
}

/// Reads an update if its value is a number and its subscription number is below 2²¹, as in nearly
/// all updates. The caller decodes everything else, including errors.
#[inline]
pub(crate) fn take_number_and_plain(r: &mut Reader) -> Option<(u32, Value)> {
    let rest = r.body().get(r.offset()..)?;
    let low = |byte: u8| u32::from(byte & 0x7f);
    let (number, used) = match rest {
        [a, ..] if *a < 0x80 => (u32::from(*a), 1),
        [a, b, ..] if *b < 0x80 => (low(*a) | low(*b) << 7, 2),
        [a, b, c, ..] if *c < 0x80 => (low(*a) | low(*b) << 7 | low(*c) << 14, 3),
        _ => return None,
    };
    let (kind, bits) = rest.get(used..)?.split_first()?;
    let bits = u64::from_le_bytes(*bits.first_chunk()?);
    let value = match *kind {
        U64 => Value::U64(bits),
        I64 => Value::I64(bits as i64),
        F64 => Value::F64(f64::from_bits(bits)),
        _ => return None,
    };
    r.seek(r.offset() + used + PLAIN_BYTES);
    Some((number, value))
}

impl Encode for Value {
    fn encode(&self, out: &mut FrameWriter) {
        match self {
            Value::Null => out.u8(NULL),
            Value::Bool(false) => out.u8(FALSE),
            Value::Bool(true) => out.u8(TRUE),
            Value::I64(v) => fixed(I64, *v as u64, out),
            Value::U64(v) => fixed(U64, *v, out),
            Value::F64(v) => fixed(F64, v.to_bits(), out),
            Value::String(text) => {
                out.u8(STRING);
                out.bytes_shared(text.0.clone());
            }
            Value::Bytes(bytes) => {
                out.u8(BYTES);
                out.bytes_shared(bytes.clone());
            }
            Value::List(values) => {
                out.u8(LIST);
                values.encode(out);
            }
            Value::Map(map) => {
                out.u8(MAP);
                out.u64(map.0.len() as u64);
                for (name, value) in map.entries() {
                    out.bytes_shared(name.0.clone());
                    value.encode(out);
                }
            }
            Value::DateTime(time) => {
                let (seconds, nanos) = since_1970(*time);
                put_time(DATE_TIME, seconds as u64, nanos, out);
            }
            Value::Duration(v) => put_time(DURATION, v.as_secs(), v.subsec_nanos(), out),
        }
    }
}

fn put_time(kind: u8, seconds: u64, nanos: u32, out: &mut FrameWriter) {
    let mut buffer = [kind; TIME_BYTES];
    buffer[1..9].copy_from_slice(&seconds.to_le_bytes());
    buffer[9..].copy_from_slice(&nanos.to_le_bytes());
    out.put(&buffer);
}

fn fixed(kind: u8, bits: u64, out: &mut FrameWriter) {
    let mut buffer = [kind; PLAIN_BYTES];
    buffer[1..].copy_from_slice(&bits.to_le_bytes());
    out.put(&buffer);
}

/// Returns the encoded size of a value whose lists and maps may be nested `depth` levels deep.
/// `items` counts the elements.
pub(super) fn length(value: &Value, depth: usize, items: &mut usize) -> Result<usize, ValueError> {
    let of = |bytes: &Bytes| 1 + number_bytes(bytes.len() as u64) + bytes.len();
    let mut enter = |count: usize| {
        *items += count;
        match () {
            () if depth == 0 => Err(ValueError::TooDeep),
            () if *items > VALUE_ITEMS_MAX => Err(ValueError::TooManyItems),
            () => Ok(1 + number_bytes(count as u64)),
        }
    };
    match value {
        Value::Null | Value::Bool(_) => Ok(1),
        Value::I64(_) | Value::U64(_) | Value::F64(_) => Ok(PLAIN_BYTES),
        Value::DateTime(_) | Value::Duration(_) => Ok(TIME_BYTES),
        Value::String(text) => Ok(of(&text.0)),
        Value::Bytes(bytes) => Ok(of(bytes)),
        Value::List(values) => {
            let mut sum = enter(values.len())?;
            for value in values.iter() {
                sum += length(value, depth - 1, items)?;
            }
            Ok(sum)
        }
        Value::Map(map) => {
            let mut sum = enter(map.0.len())?;
            for (name, value) in map.entries() {
                sum += of(&name.0) - 1 + length(value, depth - 1, items)?;
            }
            Ok(sum)
        }
    }
}

impl Decode for Value {
    fn decode(r: &mut Reader) -> Result<Value, WireError> {
        let offset = r.offset();
        let value = read(r, VALUE_DEPTH_MAX, &mut 0)?;
        let bytes = r.offset() - offset;
        check_limit(offset, "bytes of a value", bytes, VALUE_BYTES_MAX)?;
        Ok(value)
    }
}

/// Reads a value whose lists and maps may be nested `depth` levels deep.
fn read(r: &mut Reader, depth: usize, items: &mut usize) -> Result<Value, WireError> {
    let invalid = r.invalid("kind of a value");
    Ok(match r.u8()? {
        NULL => Value::Null,
        FALSE => Value::Bool(false),
        TRUE => Value::Bool(true),
        I64 => Value::I64(r.u64_fixed()? as i64),
        U64 => Value::U64(r.u64_fixed()?),
        F64 => Value::F64(f64::from_bits(r.u64_fixed()?)),
        STRING => Value::String(read_text(r, "text of a value")?),
        BYTES => Value::Bytes(r.bytes("bytes of a value", VALUE_BYTES_MAX)?),
        LIST => {
            let count = enter(r, depth, items, 1)?;
            let mut values = Vec::with_capacity(count.min(1_024));
            for _ in 0..count {
                values.push(read(r, depth - 1, items)?);
            }
            Value::List(values.into())
        }
        MAP => {
            let count = enter(r, depth, items, 2)?;
            let mut entries: Vec<(Text, Value)> = Vec::with_capacity(count.min(1_024));
            for _ in 0..count {
                let unsorted = r.invalid("order of a map's names");
                let name = read_text(r, "name in a map")?;
                if entries.last().is_some_and(|(before, _)| *before >= name) {
                    return Err(unsorted);
                }
                entries.push((name, read(r, depth - 1, items)?));
            }
            Value::Map(ValueMap(entries.into()))
        }
        DATE_TIME => {
            let seconds = r.u64_fixed()? as i64;
            // Not every platform represents every time: one value must not fail its whole frame.
            from_1970(seconds, read_nanos(r)?).map_or(Value::Null, Value::DateTime)
        }
        DURATION => Value::Duration(Duration::new(r.u64_fixed()?, read_nanos(r)?)),
        _ => return Err(invalid),
    })
}

/// Reads the nanoseconds of a second.
fn read_nanos(r: &mut Reader) -> Result<u32, WireError> {
    let invalid = r.invalid("nanoseconds of a value");
    r.u32_fixed().and_then(|nanos| if nanos < 1_000_000_000 { Ok(nanos) } else { Err(invalid) })
}

/// Reads the number of elements of a list or map; `depth` is the number of levels that may remain,
/// itself included.
fn enter(r: &mut Reader, depth: usize, items: &mut usize, each: usize) -> Result<usize, WireError> {
    let deep = VALUE_DEPTH_MAX + usize::from(depth == 0);
    check_limit(r.offset(), "depth of a value", deep, VALUE_DEPTH_MAX)?;
    let offset = r.offset();
    let count = r.count("elements of a value", VALUE_ITEMS_MAX, each)?;
    *items += count;
    check_limit(offset, "elements of a value", *items, VALUE_ITEMS_MAX)?;
    Ok(count)
}

fn read_text(r: &mut Reader, what: &'static str) -> Result<Text, WireError> {
    let invalid = r.invalid(what);
    Text::new(r.bytes(what, VALUE_BYTES_MAX)?).map_err(|_| invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(value: &Value) -> Bytes {
        let mut out = FrameWriter::new();
        value.encode(&mut out);
        out.into_body()
    }

    fn nested(depth: usize) -> Value {
        (0..depth).fold(Value::Null, |inner, _| Value::list([inner]))
    }

    #[test]
    fn too_deep_values_are_refused_by_both_sides() {
        let deepest = nested(VALUE_DEPTH_MAX);
        assert_eq!(deepest.encoded_len(), Ok(2 * VALUE_DEPTH_MAX + 1));
        assert_eq!(Value::decode(&mut Reader::new(bytes_of(&deepest))), Ok(deepest));
        let deeper = nested(VALUE_DEPTH_MAX + 1);
        assert_eq!(deeper.encoded_len(), Err(ValueError::TooDeep));
        let error = Value::decode(&mut Reader::new(bytes_of(&deeper)));
        assert!(matches!(error, Err(WireError::OverLimit { what: "depth of a value", .. })));
        // A hostile value without end must be refused at the limit, before the stack overflows.
        let hostile = Bytes::from([LIST, 1].repeat(500_000));
        assert!(Value::decode(&mut Reader::new(hostile)).is_err());
    }

    #[test]
    fn elements_of_all_levels_count_toward_the_limit() {
        let half = Value::list(vec![Value::Null; VALUE_ITEMS_MAX / 2 - 1]);
        let most = Value::list([half.clone(), half.clone()]);
        assert!(most.encoded_len().is_ok());
        assert_eq!(Value::decode(&mut Reader::new(bytes_of(&most))), Ok(most));
        let more = Value::list([half.clone(), half, Value::Null]);
        assert_eq!(more.encoded_len(), Err(ValueError::TooManyItems));
        assert!(matches!(
            Value::decode(&mut Reader::new(bytes_of(&more))),
            Err(WireError::OverLimit { what: "elements of a value", value: 65_537, .. })
        ));
    }

    #[test]
    fn too_large_values_are_refused_by_both_sides() {
        // Kind, and three bytes of length.
        let most = Value::Bytes(Bytes::from(vec![7; VALUE_BYTES_MAX - 4]));
        assert_eq!(most.encoded_len(), Ok(VALUE_BYTES_MAX));
        assert_eq!(Value::decode(&mut Reader::new(bytes_of(&most))), Ok(most));
        let more = Value::Bytes(Bytes::from(vec![7; VALUE_BYTES_MAX - 3]));
        assert_eq!(more.encoded_len(), Err(ValueError::TooLarge));
        assert!(matches!(
            Value::decode(&mut Reader::new(bytes_of(&more))),
            Err(WireError::OverLimit { what: "bytes of a value", .. })
        ));
    }

    #[test]
    fn nanoseconds_of_a_second_or_more_are_refused() {
        for kind in [DATE_TIME, DURATION] {
            let body = |nanos: u32| [&[kind; 9][..], &nanos.to_le_bytes()].concat();
            assert!(Value::decode(&mut Reader::new(body(999_999_999).into())).is_ok());
            let error = Value::decode(&mut Reader::new(body(1_000_000_000).into()));
            assert!(matches!(error, Err(WireError::Invalid { .. })));
        }
    }

    #[test]
    fn unsorted_or_repeated_map_names_are_refused() {
        for (a, b) in [(b"b", b"a"), (b"a", b"a")] {
            let body = [&[MAP, 2, 1][..], a, &[NULL, 1], b, &[NULL]].concat();
            let error = Value::decode(&mut Reader::new(body.into()));
            assert!(matches!(error, Err(WireError::Invalid { .. })));
        }
    }
}
