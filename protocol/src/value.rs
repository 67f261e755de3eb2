//! The content of a live value. Numbers have a fixed size on the wire and never allocate. Decoded
//! texts and bytes are slices of the frame in which they arrived; copy a few bytes of a large frame
//! before storing them for long.

mod codec;
mod convert;
mod deserialize;
mod json;
mod serialize;
mod time;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::limits::{VALUE_BYTES_MAX, VALUE_DEPTH_MAX, VALUE_ITEMS_MAX};

pub(crate) use codec::{put_number_and_value, take_number_and_plain};
pub use convert::ConvertError;
pub use time::Rfc3339;

/// About what an allocation takes beside its content, in bytes.
const ALLOCATION_BYTES: usize = 24;

/// One value: the JSON types, plus whole numbers, bytes, times and durations. Two values are equal
/// if their encodings are equal, so a NaN equals itself. Cheap to clone. At most 1 MiB encoded, 16
/// levels of nested lists and maps, 65,536 elements.
///
/// `From` and `TryFrom` convert the Rust types of the variants, and numbers that fit;
/// [`Value::from_serde`] and [`Value::to_serde`] convert any type of serde.
///
/// Printed as JSON. What JSON lacks becomes text: bytes in base64, times in RFC 3339, durations as
/// seconds (`"1.5s"`). NaN and infinities are printed as `null`.
///
/// ```
/// use longshore_protocol::{ConvertError, Value};
///
/// #[derive(serde::Serialize, serde::Deserialize, PartialEq, Debug)]
/// struct Reading { celsius: f64, sensor: String }
///
/// let reading = Reading { celsius: 21.5, sensor: "hall".into() };
/// let value = Value::from_serde(&reading)?;
/// assert_eq!(value.to_string(), r#"{"celsius":21.5,"sensor":"hall"}"#);
/// assert_eq!(value.to_serde::<Reading>()?, reading);
/// assert_eq!(u16::try_from(Value::from(7u64))?, 7);
/// # Ok::<(), ConvertError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub enum Value {
    /// Nothing.
    #[default]
    Null,
    /// True or false.
    Bool(bool),
    /// A whole number, signed.
    I64(i64),
    /// A whole number, unsigned.
    U64(u64),
    /// A floating-point number.
    F64(f64),
    /// UTF-8 text.
    String(Text),
    /// Any bytes.
    Bytes(Bytes),
    /// Values in order.
    List(Arc<[Value]>),
    /// Values by name.
    Map(ValueMap),
    /// A point in time, to the nanosecond.
    DateTime(SystemTime),
    /// A span of time, to the nanosecond.
    Duration(Duration),
}

/// Validated UTF-8 text that shares the memory of its frame.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Text(Bytes);

/// Values by name, sorted by the bytes of their names, each name once: the same map has only one
/// encoding.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ValueMap(Arc<[(Text, Value)]>);

/// Why a value cannot be published or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ValueError {
    /// It takes more than 1 MiB. Publish a reference to it instead.
    #[error("the value takes over {VALUE_BYTES_MAX} bytes; publish a reference to it instead")]
    TooLarge,
    /// Its lists and maps are nested more than 16 levels deep.
    #[error("the value nests lists and maps more than {VALUE_DEPTH_MAX} levels deep")]
    TooDeep,
    /// It has more than 65,536 elements, all levels together. Publish its parts at separate paths.
    #[error(
        "the value has more than {VALUE_ITEMS_MAX} elements; \
         publish its parts at paths of their own"
    )]
    TooManyItems,
}

impl Value {
    /// A list of values.
    pub fn list(values: impl IntoIterator<Item = impl Into<Value>>) -> Value {
        Value::List(values.into_iter().map(Into::into).collect())
    }

    /// A map of values; of two values with one name the later one is used.
    pub fn map(entries: impl IntoIterator<Item = (impl Into<Text>, impl Into<Value>)>) -> Value {
        Value::Map(entries.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }

    /// Copies the value into separate memory: a decoded value consists of slices of its frame, and
    /// keeps the whole frame in memory.
    pub fn copied_from_frame(&self) -> Value {
        let own_text = |text: &Text| Text::from(text.as_str());
        match self {
            Value::String(text) => Value::String(own_text(text)),
            Value::Bytes(bytes) => Value::Bytes(Bytes::copy_from_slice(bytes)),
            Value::List(values) => {
                Value::List(values.iter().map(Value::copied_from_frame).collect())
            }
            Value::Map(map) => {
                let entries = map.entries().iter();
                let own = entries.map(|(name, value)| (own_text(name), value.copied_from_frame()));
                Value::Map(own.collect())
            }
            plain => plain.clone(),
        }
    }

    /// About the memory that it takes, in bytes; never less than its encoding. A list of `null`
    /// takes 40 times that.
    pub fn memory_bytes(&self) -> usize {
        let content = match self {
            Value::String(Text(bytes)) | Value::Bytes(bytes) => bytes.len(),
            Value::List(values) => values.iter().map(Value::memory_bytes).sum(),
            Value::Map(map) => {
                let entry = |(name, value): &(Text, Value)| {
                    size_of::<Text>() + ALLOCATION_BYTES + name.0.len() + value.memory_bytes()
                };
                map.entries().iter().map(entry).sum()
            }
            _ => return size_of::<Value>(),
        };
        size_of::<Value>() + ALLOCATION_BYTES + content
    }

    /// Returns the text, if the value is text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text.as_str()),
            _ => None,
        }
    }

    /// Returns its encoded size in bytes, or an error if the value is over a limit.
    pub fn encoded_len(&self) -> Result<usize, ValueError> {
        match self {
            Value::Null | Value::Bool(_) => Ok(1),
            Value::I64(_) | Value::U64(_) | Value::F64(_) => Ok(9),
            _ => {
                let length = codec::length(self, VALUE_DEPTH_MAX, &mut 0)?;
                if length > VALUE_BYTES_MAX { Err(ValueError::TooLarge) } else { Ok(length) }
            }
        }
    }
}

impl Text {
    /// Validates that `bytes` are UTF-8.
    pub fn new(bytes: Bytes) -> Result<Text, std::str::Utf8Error> {
        std::str::from_utf8(&bytes)?;
        Ok(Text(bytes))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        // Validated on construction; checking again costs less than unsafe code would.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }
}

impl ValueMap {
    /// The value of that name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        let index = self.0.binary_search_by(|(key, _)| key.0[..].cmp(name.as_bytes())).ok()?;
        self.0.get(index).map(|(_, value)| value)
    }

    /// The entries, in the order of their names.
    pub fn entries(&self) -> &[(Text, Value)] {
        &self.0
    }
}

/// Of two entries with one name the later one is used.
impl FromIterator<(Text, Value)> for ValueMap {
    fn from_iter<I: IntoIterator<Item = (Text, Value)>>(entries: I) -> ValueMap {
        let mut entries: Vec<(Text, Value)> = entries.into_iter().collect();
        entries.reverse();
        entries.sort_by(|(a, _), (b, _)| a.cmp(b));
        entries.dedup_by(|(later, _), (earlier, _)| later == earlier);
        ValueMap(entries.into())
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::Null, Value::Null) => true,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::I64(a), Value::I64(b)) => a == b,
            (Value::U64(a), Value::U64(b)) => a == b,
            (Value::F64(a), Value::F64(b)) => a.to_bits() == b.to_bits(),
            (Value::String(a), Value::String(b)) => a == b,
            (Value::Bytes(a), Value::Bytes(b)) => a == b,
            (Value::List(a), Value::List(b)) => a == b,
            (Value::Map(a), Value::Map(b)) => a == b,
            (Value::DateTime(a), Value::DateTime(b)) => a == b,
            (Value::Duration(a), Value::Duration(b)) => a == b,
            _ => false,
        }
    }
}

impl Eq for Value {}

impl From<&str> for Text {
    fn from(text: &str) -> Text {
        Text(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl From<String> for Text {
    fn from(text: String) -> Text {
        Text(Bytes::from(text))
    }
}

impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_str().fmt(f)
    }
}

impl std::fmt::Display for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_take_at_most_40_bytes() {
        assert!(size_of::<Value>() <= 40);
        assert!(size_of::<Option<Value>>() <= 40);
    }

    #[test]
    fn memory_of_a_value_includes_that_of_its_elements() {
        let whole = size_of::<Value>();
        assert_eq!(Value::U64(1).memory_bytes(), whole);
        for element in [Value::Null, Value::list([0u64; 0]), Value::from("x")] {
            let list = Value::list(vec![element.clone(); 1_000]);
            assert!(list.memory_bytes() >= 1_000 * element.memory_bytes());
            assert!(list.memory_bytes() >= list.encoded_len().unwrap());
            let map = Value::map((0..1_000).map(|n| (n.to_string(), element.clone())));
            assert!(map.memory_bytes() >= 1_000 * (element.memory_bytes() + size_of::<Text>()));
        }
    }

    #[test]
    fn later_map_entries_replace_earlier_ones() {
        let map = Value::map([("b", 1u64), ("a", 2), ("b", 3)]);
        assert_eq!(map, Value::map([("a", 2u64), ("b", 3)]));
        let Value::Map(map) = map else { panic!("a map") };
        assert_eq!((map.get("b"), map.get("c")), (Some(&Value::U64(3)), None));
    }

    #[test]
    fn floats_are_equal_if_their_bits_are_equal() {
        assert_eq!(Value::F64(f64::NAN), Value::F64(f64::NAN));
        assert_ne!(Value::F64(0.0), Value::F64(-0.0));
        assert_ne!(Value::U64(1), Value::I64(1));
    }
}
