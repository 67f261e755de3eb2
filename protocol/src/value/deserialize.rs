//! From a value to any type of serde.

use std::fmt::Display;

use serde::de::value::{MapAccessDeserializer, MapDeserializer, SeqDeserializer};
use serde::de::{self, DeserializeOwned, Deserializer, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;

use super::time::{Rfc3339, Seconds, since_1970};
use super::{ConvertError, Text, Value, ValueMap};

impl Value {
    /// Converts to any type of serde; the inverse of [`Value::from_serde`]. A time also converts to
    /// a text, and bytes to a list of numbers, for types that read them so.
    pub fn to_serde<T: DeserializeOwned>(&self) -> Result<T, ConvertError> {
        T::deserialize(self.clone())
    }
}

impl de::Error for ConvertError {
    fn custom<T: Display>(message: T) -> ConvertError {
        ConvertError::Serde(message.to_string())
    }
}

impl IntoDeserializer<'_, ConvertError> for Value {
    type Deserializer = Value;
    fn into_deserializer(self) -> Value {
        self
    }
}

impl<'de> Deserializer<'de> for Value {
    type Error = ConvertError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConvertError> {
        match self {
            Value::Null => visitor.visit_unit(),
            Value::Bool(v) => visitor.visit_bool(v),
            Value::I64(v) => visitor.visit_i64(v),
            Value::U64(v) => visitor.visit_u64(v),
            Value::F64(v) => visitor.visit_f64(v),
            Value::String(text) => visitor.visit_str(text.as_str()),
            Value::Bytes(bytes) => visitor.visit_bytes(&bytes),
            Value::List(values) => {
                let mut elements = SeqDeserializer::new(values.iter().cloned());
                let read = visitor.visit_seq(&mut elements)?;
                elements.end().map(|()| read)
            }
            Value::Map(map) => {
                let mut entries = entries(&map);
                let read = visitor.visit_map(&mut entries)?;
                entries.end().map(|()| read)
            }
            Value::DateTime(time) => {
                let (seconds, nanos) = since_1970(time);
                let names = ["secs_since_epoch", "nanos_since_epoch"];
                let parts = names.into_iter().zip([seconds, nanos.into()]);
                visitor.visit_map(MapDeserializer::new(parts))
            }
            Value::Duration(duration) => {
                let parts = [duration.as_secs(), duration.subsec_nanos().into()];
                visitor.visit_map(MapDeserializer::new(["secs", "nanos"].into_iter().zip(parts)))
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConvertError> {
        match self {
            Value::Null => visitor.visit_none(),
            some => visitor.visit_some(some),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ConvertError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ConvertError> {
        match &self {
            Value::String(text) => visitor.visit_enum(text.as_str().into_deserializer()),
            Value::Map(map) if map.entries().len() == 1 => {
                visitor.visit_enum(MapAccessDeserializer::new(entries(map)))
            }
            _ => Err(de::Error::custom("an enum is a text, or a map of one entry")),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConvertError> {
        match self {
            Value::DateTime(time) => visitor.visit_string(Rfc3339(time).to_string()),
            Value::Duration(duration) => visitor.visit_string(Seconds(duration).to_string()),
            other => other.deserialize_any(visitor),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConvertError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConvertError> {
        match self {
            Value::Bytes(bytes) => visitor.visit_seq(SeqDeserializer::new(bytes.into_iter())),
            other => other.deserialize_any(visitor),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct
        tuple tuple_struct map struct identifier ignored_any
    }
}

type Entries<'a> = MapDeserializer<'a, std::vec::IntoIter<(Name, Value)>, ConvertError>;

fn entries<'a>(map: &ValueMap) -> Entries<'a> {
    let entries = map.entries().iter();
    let entries: Vec<_> = entries.map(|(name, v)| (Name(name.clone()), v.clone())).collect();
    MapDeserializer::new(entries.into_iter())
}

/// A name in a map. It converts to numbers and bools, too.
struct Name(Text);

impl IntoDeserializer<'_, ConvertError> for Name {
    type Deserializer = Name;
    fn into_deserializer(self) -> Name {
        self
    }
}

macro_rules! parsed {
    ($($method:ident: $visit:ident;)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConvertError> {
            match self.0.as_str().parse() {
                Ok(parsed) => visitor.$visit(parsed),
                Err(_) => self.deserialize_any(visitor),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for Name {
    type Error = ConvertError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConvertError> {
        visitor.visit_str(self.0.as_str())
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ConvertError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ConvertError> {
        visitor.visit_enum(self.0.as_str().into_deserializer())
    }

    parsed! {
        deserialize_bool: visit_bool;
        deserialize_i8: visit_i8;
        deserialize_i16: visit_i16;
        deserialize_i32: visit_i32;
        deserialize_i64: visit_i64;
        deserialize_u8: visit_u8;
        deserialize_u16: visit_u16;
        deserialize_u32: visit_u32;
        deserialize_u64: visit_u64;
    }

    forward_to_deserialize_any! {
        i128 u128 f32 f64 char str string bytes byte_buf option unit unit_struct seq tuple
        tuple_struct map struct identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use proptest::prelude::*;
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Clone, Serialize, Deserialize, PartialEq, Debug)]
    enum Choice {
        Unit,
        Newtype(Box<Everything>),
        Tuple(i8, String),
        Struct { at: Option<u8> },
    }

    #[derive(Clone, Serialize, Deserialize, PartialEq, Eq, PartialOrd, Ord, Debug)]
    struct Id(u32);

    /// Each shape that serde knows.
    #[derive(Clone, Serialize, Deserialize, PartialEq, Debug)]
    struct Everything {
        plain: (bool, i64, u64, char),
        float: f32,
        text: String,
        unit: (),
        some: Option<Vec<u8>>,
        choice: Choice,
        by_id: BTreeMap<Id, bool>,
        by_flag: BTreeMap<bool, String>,
        time: SystemTime,
        duration: Duration,
    }

    fn everything() -> impl Strategy<Value = Everything> {
        let nanos = 0..1_000_000_000u32;
        let content = (any::<((bool, i64, u64, char), f32, String)>(), any::<Option<Vec<u8>>>());
        let maps = any::<(BTreeMap<u32, bool>, BTreeMap<bool, String>)>();
        let times = (0..1u64 << 40, any::<u64>(), nanos);
        let leaf = (content, 0..3u8, maps, times).prop_map(|(content, choice, maps, times)| {
            let ((plain, float, text), some) = content;
            let choice = match choice {
                0 => Choice::Unit,
                1 => Choice::Tuple(-5, text.clone()),
                _ => Choice::Struct { at: (text.len() % 2 == 0).then_some(7) },
            };
            Everything {
                plain,
                float,
                text,
                unit: (),
                some,
                choice,
                by_id: maps.0.into_iter().map(|(id, flag)| (Id(id), flag)).collect(),
                by_flag: maps.1,
                time: UNIX_EPOCH + Duration::new(times.0, times.2),
                duration: Duration::new(times.1, times.2),
            }
        });
        (leaf.clone(), leaf, any::<bool>()).prop_map(|(mut outer, inner, nest)| {
            if nest {
                outer.choice = Choice::Newtype(Box::new(inner));
            }
            outer
        })
    }

    proptest! {
        #[test]
        fn every_shape_of_serde_round_trips(original in everything()) {
            let value = Value::from_serde(&original).unwrap();
            prop_assert_eq!(value.to_serde::<Everything>().unwrap(), original);
        }
    }

    #[test]
    fn times_become_kinds_of_their_own_and_read_as_text() {
        let time = UNIX_EPOCH + Duration::from_millis(1_500);
        let value = Value::from_serde(&(time, Duration::from_millis(2_500))).unwrap();
        let expected = [Value::from(time), Duration::from_millis(2_500).into()];
        assert_eq!(value, Value::list(expected));
        let texts: (String, String) = value.to_serde().unwrap();
        assert_eq!(texts, ("1970-01-01T00:00:01.5Z".to_owned(), "2.5s".to_owned()));
    }

    #[test]
    fn bytes_read_as_a_list_and_wrong_shapes_are_refused() {
        let bytes = Value::from(vec![1u8, 255]);
        assert_eq!(bytes.to_serde::<Vec<u8>>(), Ok(vec![1, 255]));
        let list = Value::list([1u64, 2, 3]);
        let error = list.to_serde::<(u8, u8)>().unwrap_err();
        assert!(matches!(&error, ConvertError::Serde(why) if why.contains("length 3")), "{error}");
        assert!(list.to_serde::<Choice>().is_err());
        assert!(Value::from(-1i8).to_serde::<u8>().is_err());
        assert!(Value::from_serde(&BTreeMap::from([(vec![1], 2)])).is_err());
    }
}
