//! From any type of serde to a value.

use std::fmt::Display;
use std::time::Duration;

use bytes::Bytes;
use serde::ser::{self, Serialize, Serializer};

use super::time::from_1970;
use super::{ConvertError, Text, Value};
use crate::limits::VALUE_DEPTH_MAX;

impl Value {
    /// Converts any type of serde: structs and maps to maps, sequences and tuples to lists, enums
    /// as `serde_json` does, the standard library's times and durations to the value's own. Names
    /// in maps are texts; numbers and bools become texts there. Lists and maps may be nested 16
    /// levels deep ([`VALUE_DEPTH_MAX`]).
    pub fn from_serde<T: Serialize + ?Sized>(from: &T) -> Result<Value, ConvertError> {
        from.serialize(ToValue { depth: Some(VALUE_DEPTH_MAX) })
    }
}

impl ser::Error for ConvertError {
    fn custom<T: Display>(message: T) -> ConvertError {
        ConvertError::Serde(message.to_string())
    }
}

/// Without a limit, a deep type would overflow the stack.
#[derive(Clone, Copy)]
struct ToValue {
    /// The levels of lists and maps that may follow. None: only plain values, the parts of a time.
    depth: Option<usize>,
}

impl ToValue {
    /// Enters a list or a map.
    fn enter(self) -> Result<ToValue, ConvertError> {
        let depth = self.depth.and_then(|depth| depth.checked_sub(1));
        depth.map(|depth| ToValue { depth: Some(depth) }).ok_or(ConvertError::TooDeep)
    }
}

/// The elements of a list so far.
struct List {
    /// For the elements.
    inner: ToValue,
    /// The enum's variant that contains the list.
    variant: Option<&'static str>,
    values: Vec<Value>,
}

/// The entries of a map so far.
struct Map {
    /// For the entries.
    inner: ToValue,
    /// The struct's name.
    name: &'static str,
    /// The enum's variant that contains the map.
    variant: Option<&'static str>,
    entries: Vec<(Text, Value)>,
    /// The name of the next entry.
    next: Option<Text>,
}

/// The content of an enum's variant: a map of one entry.
fn in_variant(variant: Option<&'static str>, content: Value) -> Value {
    match variant {
        Some(variant) => Value::map([(variant, content)]),
        None => content,
    }
}

macro_rules! plain {
    ($($method:ident: $type:ty;)*) => {$(
        fn $method(self, v: $type) -> Result<Value, ConvertError> {
            Ok(v.into())
        }
    )*};
}

impl Serializer for ToValue {
    type Ok = Value;
    type Error = ConvertError;
    type SerializeSeq = List;
    type SerializeTuple = List;
    type SerializeTupleStruct = List;
    type SerializeTupleVariant = List;
    type SerializeMap = Map;
    type SerializeStruct = Map;
    type SerializeStructVariant = Map;

    plain! {
        serialize_bool: bool;
        serialize_i8: i8;
        serialize_i16: i16;
        serialize_i32: i32;
        serialize_i64: i64;
        serialize_u8: u8;
        serialize_u16: u16;
        serialize_u32: u32;
        serialize_u64: u64;
        serialize_f32: f32;
        serialize_f64: f64;
        serialize_str: &str;
    }

    fn serialize_char(self, v: char) -> Result<Value, ConvertError> {
        Ok(v.to_string().into())
    }

    fn serialize_bytes(self, v: &[u8]) -> Result<Value, ConvertError> {
        Ok(Bytes::copy_from_slice(v).into())
    }

    fn serialize_none(self) -> Result<Value, ConvertError> {
        Ok(Value::Null)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, v: &T) -> Result<Value, ConvertError> {
        v.serialize(self)
    }

    fn serialize_unit(self) -> Result<Value, ConvertError> {
        Ok(Value::Null)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<Value, ConvertError> {
        Ok(Value::Null)
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<Value, ConvertError> {
        Ok(variant.into())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        v: &T,
    ) -> Result<Value, ConvertError> {
        v.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        v: &T,
    ) -> Result<Value, ConvertError> {
        Ok(in_variant(Some(variant), v.serialize(self.enter()?)?))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<List, ConvertError> {
        Ok(List { inner: self.enter()?, variant: None, values: Vec::new() })
    }

    fn serialize_tuple(self, _: usize) -> Result<List, ConvertError> {
        self.serialize_seq(None)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<List, ConvertError> {
        self.serialize_seq(None)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<List, ConvertError> {
        let inner = self.enter()?.enter()?;
        Ok(List { inner, variant: Some(variant), values: Vec::new() })
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Map, ConvertError> {
        self.serialize_struct("", 0)
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Map, ConvertError> {
        let inner = match (name, self.depth) {
            // A time is no map in a value.
            ("Duration" | "SystemTime", Some(0)) => ToValue { depth: None },
            _ => self.enter()?,
        };
        Ok(Map { inner, name, variant: None, entries: Vec::new(), next: None })
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Map, ConvertError> {
        let inner = self.enter()?.enter()?;
        Ok(Map { inner, name: "", variant: Some(variant), entries: Vec::new(), next: None })
    }
}

macro_rules! lists {
    ($($trait:ident: $method:ident;)*) => {$(
        impl ser::$trait for List {
            type Ok = Value;
            type Error = ConvertError;

            fn $method<T: Serialize + ?Sized>(&mut self, v: &T) -> Result<(), ConvertError> {
                self.values.push(v.serialize(self.inner)?);
                Ok(())
            }

            fn end(self) -> Result<Value, ConvertError> {
                Ok(in_variant(self.variant, self.values.into()))
            }
        }
    )*};
}
lists! {
    SerializeSeq: serialize_element;
    SerializeTuple: serialize_element;
    SerializeTupleStruct: serialize_field;
    SerializeTupleVariant: serialize_field;
}

impl Map {
    /// The standard library's times are structs for serde, and a value's own kinds here. Any other
    /// struct of that form reads a value of these kinds, too.
    fn time(&self) -> Option<Value> {
        let [(first, Value::U64(seconds)), (second, Value::U64(nanos))] = &self.entries[..] else {
            return None;
        };
        let nanos = u32::try_from(*nanos).ok().filter(|nanos| *nanos < 1_000_000_000)?;
        match (self.name, first.as_str(), second.as_str()) {
            ("Duration", "secs", "nanos") => Some(Duration::new(*seconds, nanos).into()),
            ("SystemTime", "secs_since_epoch", "nanos_since_epoch") => {
                from_1970(i64::try_from(*seconds).ok()?, nanos).map(Value::from)
            }
            _ => None,
        }
    }
}

impl ser::SerializeMap for Map {
    type Ok = Value;
    type Error = ConvertError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), ConvertError> {
        self.next = Some(match key.serialize(self.inner)? {
            Value::String(text) => text,
            plain @ (Value::Bool(_) | Value::I64(_) | Value::U64(_)) => plain.to_string().into(),
            _ => return Err(ser::Error::custom("a name in a map is no text")),
        });
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, v: &T) -> Result<(), ConvertError> {
        let name = self.next.take().unwrap_or_default();
        self.entries.push((name, v.serialize(self.inner)?));
        Ok(())
    }

    fn end(self) -> Result<Value, ConvertError> {
        Ok(in_variant(self.variant, Value::map(self.entries)))
    }
}

macro_rules! structs {
    ($($trait:ident)*) => {$(
        impl ser::$trait for Map {
            type Ok = Value;
            type Error = ConvertError;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                name: &'static str,
                v: &T,
            ) -> Result<(), ConvertError> {
                let name = Text(Bytes::from_static(name.as_bytes()));
                self.entries.push((name, v.serialize(self.inner)?));
                Ok(())
            }

            fn end(self) -> Result<Value, ConvertError> {
                let time = self.time();
                time.map_or_else(|| ser::SerializeMap::end(self), Ok)
            }
        }
    )*};
}
structs! { SerializeStruct SerializeStructVariant }

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    /// Lists in lists around a time.
    fn nested(levels: usize) -> Result<Value, ConvertError> {
        struct Nested(usize);
        impl Serialize for Nested {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                match self.0 {
                    0 => (UNIX_EPOCH + Duration::from_secs(1)).serialize(to),
                    n => [Nested(n - 1)].serialize(to),
                }
            }
        }
        Value::from_serde(&Nested(levels))
    }

    #[test]
    fn nesting_beyond_the_limit_is_refused() {
        let deepest = nested(VALUE_DEPTH_MAX).unwrap();
        assert!(deepest.encoded_len().is_ok());
        for levels in [VALUE_DEPTH_MAX + 1, usize::MAX] {
            assert_eq!(nested(levels), Err(ConvertError::TooDeep));
        }
    }

    #[test]
    fn variants_count_as_levels() {
        #[derive(serde::Serialize)]
        enum Nested {
            End,
            Unit(Box<Nested>),
            List(Box<Nested>, u8),
            Map { inner: Box<Nested> },
        }
        let wraps: [fn(Box<Nested>) -> Nested; 3] =
            [Nested::Unit, |inner| Nested::List(inner, 0), |inner| Nested::Map { inner }];
        for wrap in wraps {
            let value = |n| Value::from_serde(&(0..n).fold(Nested::End, |end, _| wrap(end.into())));
            let most = (1..).take_while(|n| value(*n).is_ok()).last().unwrap();
            assert!(value(most).unwrap().encoded_len().is_ok());
            assert_eq!(value(most + 1), Err(ConvertError::TooDeep));
            assert!(most == VALUE_DEPTH_MAX || most == VALUE_DEPTH_MAX / 2);
        }
    }
}
