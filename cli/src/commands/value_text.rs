//! Live values as the command line writes and reads them: JSON, and anything else as a text.

use longshore::Value;
use serde_json::Value as Json;

/// The value that a text stands for: what it is as JSON, or else the text itself.
pub(super) fn parse(text: &str) -> Value {
    serde_json::from_str(text).map_or_else(|_| Value::from(text), from_json)
}

fn from_json(json: Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(value) => value.into(),
        Json::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(whole), _) => whole.into(),
            (None, Some(whole)) => whole.into(),
            (None, None) => number.as_f64().into(),
        },
        Json::String(text) => text.into(),
        Json::Array(values) => Value::list(values.into_iter().map(from_json)),
        Json::Object(map) => Value::map(map.into_iter().map(|(name, v)| (name, from_json(v)))),
    }
}

/// The value as JSON. What JSON lacks is as near as it goes: bytes are a text in base64.
pub(super) fn to_json(value: &Value) -> Json {
    // A value is written as JSON; how deep it may be is bounded far below what the reader takes.
    serde_json::from_str(&value.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_read_as_what_it_is_and_anything_else_as_a_text() {
        for (text, value) in [
            ("5", Value::from(5u64)),
            ("-5", (-5i64).into()),
            ("5.5", 5.5.into()),
            ("18446744073709551616", 18_446_744_073_709_551_616.0.into()),
            ("true", true.into()),
            ("null", Value::Null),
            ("\"5\"", "5".into()),
            ("five", "five".into()),
            ("", "".into()),
            (
                "{\"a\": [1, \"b\"]}",
                Value::map([("a", Value::list([1u64.into(), Value::from("b")]))]),
            ),
            ("{\"a\": ", "{\"a\": ".into()),
        ] {
            assert_eq!(parse(text), value, "{text}");
        }
    }

    #[test]
    fn what_is_read_is_shown_again() {
        let text = r#"{"a":[1,-2,1.5,"x\ny",null,true]}"#;
        assert_eq!(to_json(&parse(text)).to_string(), text);
    }
}
