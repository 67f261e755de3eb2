//! Formats a value as JSON. What JSON lacks is printed as text, NaN and infinities as null.

use std::fmt::{Display, Formatter, Result, Write as _};

use super::Value;
use super::time::{Rfc3339, Seconds};

impl Display for Value {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Value::Null => f.write_str("null"),
            Value::Bool(v) => v.fmt(f),
            Value::I64(v) => v.fmt(f),
            Value::U64(v) => v.fmt(f),
            // `Debug` writes a point or an exponent, so that the text remains a floating-point
            // number.
            Value::F64(v) if v.is_finite() => write!(f, "{v:?}"),
            Value::F64(_) => f.write_str("null"),
            Value::String(text) => quoted(text.as_str(), f),
            Value::Bytes(bytes) => base64(bytes, f),
            Value::List(values) => {
                f.write_char('[')?;
                for (index, value) in values.iter().enumerate() {
                    comma(index, f)?;
                    value.fmt(f)?;
                }
                f.write_char(']')
            }
            Value::Map(map) => {
                f.write_char('{')?;
                for (index, (name, value)) in map.entries().iter().enumerate() {
                    comma(index, f)?;
                    quoted(name.as_str(), f)?;
                    f.write_char(':')?;
                    value.fmt(f)?;
                }
                f.write_char('}')
            }
            Value::DateTime(time) => write!(f, "\"{}\"", Rfc3339(*time)),
            Value::Duration(duration) => write!(f, "\"{}\"", Seconds(*duration)),
        }
    }
}

fn comma(index: usize, f: &mut Formatter<'_>) -> Result {
    if index > 0 { f.write_char(',') } else { Ok(()) }
}

fn quoted(text: &str, f: &mut Formatter<'_>) -> Result {
    f.write_char('"')?;
    for c in text.chars() {
        match c {
            '"' | '\\' => write!(f, "\\{c}")?,
            '\n' => f.write_str("\\n")?,
            '\r' => f.write_str("\\r")?,
            '\t' => f.write_str("\\t")?,
            // Terminals also interpret control characters outside ASCII.
            c if c.is_control() => write!(f, "\\u{:04x}", u32::from(c))?,
            c => f.write_char(c)?,
        }
    }
    f.write_char('"')
}

fn base64(bytes: &[u8], f: &mut Formatter<'_>) -> Result {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    f.write_char('"')?;
    for group in bytes.chunks(3) {
        let word = group.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte));
        let word = word << (8 * (3 - group.len()));
        for digit in 0..4 {
            let sextet = (word >> (18 - 6 * digit)) as usize % DIGITS.len();
            f.write_char(if digit <= group.len() { DIGITS[sextet].into() } else { '=' })?;
        }
    }
    f.write_char('"')
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use bytes::Bytes;

    use super::*;

    #[test]
    fn values_are_formatted_as_json() {
        let bytes = |text: &'static [u8]| Value::Bytes(Bytes::from_static(text));
        for (value, text) in [
            (Value::Null, "null"),
            (true.into(), "true"),
            (i64::MIN.into(), "-9223372036854775808"),
            (u64::MAX.into(), "18446744073709551615"),
            (1.0.into(), "1.0"),
            (1e300.into(), "1e300"),
            (f64::INFINITY.into(), "null"),
            ("a\"\\\n\u{1b}\u{9b}é".into(), "\"a\\\"\\\\\\n\\u001b\\u009bé\""),
            (bytes(b""), "\"\""),
            (bytes(b"a"), "\"YQ==\""),
            (bytes(b"ab"), "\"YWI=\""),
            (bytes(b"abc\xff"), "\"YWJj/w==\""),
            (Value::list([1u64, 2]), "[1,2]"),
            (UNIX_EPOCH.into(), "\"1970-01-01T00:00:00Z\""),
            (Duration::from_millis(1_500).into(), "\"1.5s\""),
            (
                Value::map([("b", Value::list([Value::Null])), ("a", 1u8.into())]),
                "{\"a\":1,\"b\":[null]}",
            ),
        ] {
            assert_eq!(value.to_string(), text);
        }
    }
}
