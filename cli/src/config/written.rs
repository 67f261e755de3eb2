//! A value as it is written in the configuration file, whatever its type: one of another type is
//! refused with its key, the form that was expected, and what was probably meant.

use serde::Deserialize;
use toml::{Spanned, Value};

use super::file::MetricsWritten;

/// A key of the file: its value, if it is written, with its place.
pub(crate) type Key<T> = Option<Spanned<Written<T>>>;

/// A value of the key's type, or of another.
#[derive(Deserialize, Debug)]
#[serde(untagged)]
pub(crate) enum Written<T> {
    Right(T),
    Wrong(Value),
}

/// A duration: a text like `"20s"`.
#[derive(Deserialize, Debug)]
#[serde(transparent)]
pub(crate) struct Length(pub(crate) String);

/// A type that a key has.
pub(super) trait Form {
    /// What it looks like in the file.
    const FORM: &'static str;

    /// What was probably meant by a value of another type.
    fn meant(value: &Value) -> Option<String>;
}

impl<T: Form> Written<T> {
    /// The value, if it has the type of `key`.
    pub(super) fn of_type(self, key: &str) -> Result<T, String> {
        let value = match self {
            Written::Right(value) => return Ok(value),
            Written::Wrong(value) => value,
        };
        let key = key.rsplit('.').next().unwrap_or(key);
        let meant = T::meant(&value).map(|meant| format!("; write {key} = {meant}"));
        Err(format!("expected {}, not {}{}", T::FORM, shown(&value), meant.unwrap_or_default()))
    }
}

/// A value of the file on one line.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(is) => is.to_string(),
        Value::Datetime(time) => time.to_string(),
        Value::Array(_) => "this list".to_owned(),
        Value::Table(_) => "a section".to_owned(),
    }
}

impl Form for String {
    const FORM: &'static str = "a text in quotes";

    fn meant(value: &Value) -> Option<String> {
        (!value.is_array() && !value.is_table()).then(|| format!("\"{}\"", shown(value)))
    }
}

impl Form for Vec<String> {
    const FORM: &'static str = "a list of texts in quotes, like [\"…\", \"…\"]";

    fn meant(value: &Value) -> Option<String> {
        let parts = value.as_str()?.split(',').map(|part| format!("{:?}", part.trim()));
        Some(format!("[{}]", parts.collect::<Vec<_>>().join(", ")))
    }
}

impl Form for u64 {
    const FORM: &'static str = "a whole number from 0, without quotes";

    fn meant(value: &Value) -> Option<String> {
        value.as_str()?.trim().parse().ok().map(|number: u64| number.to_string())
    }
}

impl Form for bool {
    const FORM: &'static str = "true or false, without quotes";

    fn meant(value: &Value) -> Option<String> {
        value.as_str()?.trim().parse().ok().map(|is: bool| is.to_string())
    }
}

impl Form for Length {
    const FORM: &'static str = "a duration in quotes, like \"20s\"";

    fn meant(value: &Value) -> Option<String> {
        value.as_integer().filter(|seconds| *seconds > 0).map(|seconds| format!("\"{seconds}s\""))
    }
}

impl Form for MetricsWritten {
    const FORM: &'static str = "true, false or \"IP:PORT\"";

    fn meant(_: &Value) -> Option<String> {
        None
    }
}
