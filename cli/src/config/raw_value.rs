//! Values of the configuration file before their type is checked. A value of a wrong type is
//! refused with its key, the expected type and a likely correction.

use serde::Deserialize;
use toml::{Spanned, Value};

use super::file::{HomesTable, MetricsSetting};

/// A key of the file: its value, if set, with its position.
pub(crate) type Key<T> = Option<Spanned<RawValue<T>>>;

/// A value of the key's type, or of another type.
#[derive(Deserialize, Debug)]
#[serde(untagged)]
pub(crate) enum RawValue<T> {
    Expected(T),
    Other(Value),
}

/// A duration in text form, such as `"20s"`.
#[derive(Deserialize, Debug)]
#[serde(transparent)]
pub(crate) struct DurationText(pub(crate) String);

/// The type of a key.
pub(super) trait ValueType {
    /// Its description in errors.
    const EXPECTED: &'static str;

    /// A likely correction for a value of another type.
    fn suggestion(value: &Value) -> Option<String>;
}

impl<T: ValueType> RawValue<T> {
    /// The value, or an error if it does not have the key's type.
    pub(super) fn of_type(self, key: &str) -> Result<T, String> {
        let value = match self {
            RawValue::Expected(value) => return Ok(value),
            RawValue::Other(value) => value,
        };
        let key = key.rsplit('.').next().unwrap_or(key);
        let hint = T::suggestion(&value).map(|text| format!("; write {key} = {text}"));
        Err(format!("expected {}, not {}{}", T::EXPECTED, shown(&value), hint.unwrap_or_default()))
    }
}

impl RawValue<String> {
    /// The text, or another value as it would be written.
    pub(super) fn text(&self) -> String {
        match self {
            RawValue::Expected(text) => text.clone(),
            RawValue::Other(value) => shown(value),
        }
    }
}

/// A value on one line.
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

impl ValueType for String {
    const EXPECTED: &'static str = "a text in quotes";

    fn suggestion(value: &Value) -> Option<String> {
        (!value.is_array() && !value.is_table()).then(|| format!("\"{}\"", shown(value)))
    }
}

impl ValueType for Vec<String> {
    const EXPECTED: &'static str = "a list of texts in quotes, like [\"…\", \"…\"]";

    fn suggestion(value: &Value) -> Option<String> {
        let parts = value.as_str()?.split(',').map(|part| format!("{:?}", part.trim()));
        Some(format!("[{}]", parts.collect::<Vec<_>>().join(", ")))
    }
}

impl ValueType for u64 {
    const EXPECTED: &'static str = "a whole number from 0, without quotes";

    fn suggestion(value: &Value) -> Option<String> {
        value.as_str()?.trim().parse().ok().map(|number: u64| number.to_string())
    }
}

impl ValueType for bool {
    const EXPECTED: &'static str = "true or false, without quotes";

    fn suggestion(value: &Value) -> Option<String> {
        value.as_str()?.trim().parse().ok().map(|is: bool| is.to_string())
    }
}

impl ValueType for DurationText {
    const EXPECTED: &'static str = "a duration in quotes, like \"20s\"";

    fn suggestion(value: &Value) -> Option<String> {
        value.as_integer().filter(|seconds| *seconds > 0).map(|seconds| format!("\"{seconds}s\""))
    }
}

impl ValueType for HomesTable {
    const EXPECTED: &'static str =
        "lines like \"/shop\" = \"NAME\" or \"/tenants/*\" = [\"NAME\", \"NAME\"]";

    fn suggestion(_: &Value) -> Option<String> {
        None
    }
}

impl ValueType for MetricsSetting {
    const EXPECTED: &'static str = "true, false or \"IP:PORT\"";

    fn suggestion(_: &Value) -> Option<String> {
        None
    }
}
