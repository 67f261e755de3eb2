//! Conversions between values and Rust types: `From` into a value, `TryFrom` out of it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::{Text, Value, ValueMap};
use crate::limits::VALUE_DEPTH_MAX;

/// Why a value does not convert to a Rust type, or a Rust type to a value.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConvertError {
    /// The value is of another kind.
    #[error("{found} is not {wanted}")]
    Kind {
        /// What the value is.
        found: &'static str,
        /// What was requested.
        wanted: &'static str,
    },
    /// The number does not fit the type exactly.
    #[error("{number} does not fit in {wanted}")]
    Range {
        /// The number, as text.
        number: String,
        /// The type that was requested.
        wanted: &'static str,
    },
    /// Lists and maps are nested more than 16 levels deep.
    #[error("lists and maps are nested more than {VALUE_DEPTH_MAX} levels deep; nest less")]
    TooDeep,
    /// The type's own implementation of serde refused it, for this reason.
    #[error("{0}")]
    Serde(String),
}

impl Value {
    /// Describes the kind, for errors.
    fn kind(&self) -> &'static str {
        match self {
            Value::Null => "null",
            Value::Bool(_) => "a bool",
            Value::I64(_) | Value::U64(_) => "a whole number",
            Value::F64(_) => "a floating-point number",
            Value::String(_) => "a text",
            Value::Bytes(_) => "bytes",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
            Value::DateTime(_) => "a date and time",
            Value::Duration(_) => "a duration",
        }
    }
}

macro_rules! from {
    ($($type:ty => $variant:ident: $make:expr;)*) => {$(
        impl From<$type> for Value {
            fn from(from: $type) -> Value {
                Value::$variant($make(from))
            }
        }
    )*};
}
from! {
    i64 => I64: std::convert::identity;
    u64 => U64: std::convert::identity;
    f64 => F64: std::convert::identity;
    i32 => I64: i64::from;
    i16 => I64: i64::from;
    i8 => I64: i64::from;
    u32 => U64: u64::from;
    u16 => U64: u64::from;
    u8 => U64: u64::from;
    f32 => F64: f64::from;
    &str => String: Text::from;
    String => String: Text::from;
    &[u8] => Bytes: Bytes::copy_from_slice;
    Vec<u8> => Bytes: Bytes::from;
    Vec<Value> => List: Arc::from;
}

/// Types that a variant contains as they are: both directions.
macro_rules! variants {
    ($($type:ty => $variant:ident, $wanted:literal;)*) => {$(
        impl From<$type> for Value {
            fn from(from: $type) -> Value {
                Value::$variant(from)
            }
        }

        impl TryFrom<Value> for $type {
            type Error = ConvertError;
            fn try_from(value: Value) -> Result<$type, ConvertError> {
                match value {
                    Value::$variant(content) => Ok(content),
                    other => Err(ConvertError::Kind { found: other.kind(), wanted: $wanted }),
                }
            }
        }
    )*};
}
variants! {
    bool => Bool, "a bool";
    Text => String, "a text";
    Bytes => Bytes, "bytes";
    ValueMap => Map, "a map";
    SystemTime => DateTime, "a date and time";
    Duration => Duration, "a duration";
}

/// Whole numbers: from either kind, if they fit.
macro_rules! whole_numbers {
    ($($type:ident)*) => {$(
        impl TryFrom<Value> for $type {
            type Error = ConvertError;
            fn try_from(value: Value) -> Result<$type, ConvertError> {
                let fits = match value {
                    Value::I64(number) => $type::try_from(number).ok(),
                    Value::U64(number) => $type::try_from(number).ok(),
                    other => {
                        let (found, wanted) = (other.kind(), "a whole number");
                        return Err(ConvertError::Kind { found, wanted });
                    }
                };
                let error = || ConvertError::Range {
                    number: value.to_string(),
                    wanted: stringify!($type),
                };
                fits.ok_or_else(error)
            }
        }
    )*};
}
whole_numbers! { i64 i32 i16 i8 u64 u32 u16 u8 }

/// Floating-point numbers: from any number that they represent exactly, whole
/// ones up to 2⁵³ (`f64`) or 2²⁴ (`f32`).
macro_rules! floats {
    ($($type:ident, $from_f64:expr;)*) => {$(
        impl TryFrom<Value> for $type {
            type Error = ConvertError;
            fn try_from(value: Value) -> Result<$type, ConvertError> {
                let exact = 1u64 << $type::MANTISSA_DIGITS;
                let fits = match value {
                    Value::F64(number) => $from_f64(number),
                    Value::I64(number) if number.unsigned_abs() <= exact => Some(number as $type),
                    Value::U64(number) if number <= exact => Some(number as $type),
                    Value::I64(_) | Value::U64(_) => None,
                    other => {
                        let (found, wanted) = (other.kind(), "a number");
                        return Err(ConvertError::Kind { found, wanted });
                    }
                };
                let error = || ConvertError::Range {
                    number: value.to_string(),
                    wanted: stringify!($type),
                };
                fits.ok_or_else(error)
            }
        }
    )*};
}
floats! {
    f64, Some;
    f32, |number: f64| {
        (number.is_nan() || f64::from(number as f32) == number).then_some(number as f32)
    };
}

impl TryFrom<Value> for String {
    type Error = ConvertError;
    fn try_from(value: Value) -> Result<String, ConvertError> {
        Text::try_from(value).map(|text| text.as_str().to_owned())
    }
}

impl TryFrom<Value> for Vec<u8> {
    type Error = ConvertError;
    fn try_from(value: Value) -> Result<Vec<u8>, ConvertError> {
        Bytes::try_from(value).map(Vec::from)
    }
}

impl TryFrom<Value> for Vec<Value> {
    type Error = ConvertError;
    fn try_from(value: Value) -> Result<Vec<Value>, ConvertError> {
        match value {
            Value::List(values) => Ok(values.to_vec()),
            other => Err(ConvertError::Kind { found: other.kind(), wanted: "a list" }),
        }
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(from: Option<T>) -> Value {
        from.map_or(Value::Null, Into::into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value converts to the type, and back to itself.
    fn round_trips<T>(value: Value)
    where
        T: TryFrom<Value, Error = ConvertError> + Into<Value>,
    {
        assert_eq!(T::try_from(value.clone()).map(Into::into), Ok(value));
    }

    #[test]
    fn values_convert_to_their_types_and_back() {
        round_trips::<bool>(true.into());
        round_trips::<i8>(i8::MIN.into());
        round_trips::<u64>(u64::MAX.into());
        round_trips::<f64>(f64::NAN.into());
        round_trips::<f32>(1.5f32.into());
        round_trips::<String>("ün".into());
        round_trips::<Vec<u8>>(vec![0u8, 255].into());
        round_trips::<Vec<Value>>(Value::list([1u64, 2]));
        round_trips::<ValueMap>(Value::map([("a", 1u64)]));
        round_trips::<SystemTime>(SystemTime::now().into());
        round_trips::<Duration>(Duration::MAX.into());
    }

    #[test]
    fn numbers_convert_between_kinds_only_if_they_fit_exactly() {
        assert_eq!(u8::try_from(Value::I64(255)), Ok(255));
        assert_eq!(i64::try_from(Value::U64(7)), Ok(7));
        assert_eq!(f64::try_from(Value::U64(1 << 53)), Ok(9_007_199_254_740_992.0));
        let error = u8::try_from(Value::I64(-1)).unwrap_err();
        assert_eq!(error.to_string(), "-1 does not fit in u8");
        assert!(u8::try_from(Value::U64(256)).is_err());
        assert!(f64::try_from(Value::U64((1 << 53) + 1)).is_err());
        assert!(f32::try_from(Value::F64(0.1)).is_err());
    }

    #[test]
    fn another_kind_is_named_by_the_error() {
        let error = bool::try_from(Value::from("yes")).unwrap_err();
        assert_eq!(error.to_string(), "a text is not a bool");
        assert!(u64::try_from(Value::F64(1.0)).is_err());
    }
}
