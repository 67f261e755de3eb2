//! Live values on the command line: JSON, or else text.

use longshore::Value;
use serde_json::Value as Json;

use crate::output::bytes_json;

/// Parses a value as JSON, or else takes the text itself.
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

/// The value as JSON; bytes as everywhere else, times and durations as text.
pub(super) fn to_json(value: &Value) -> Json {
    match value {
        Value::Bytes(bytes) => bytes_json(bytes),
        Value::List(values) => values.iter().map(to_json).collect(),
        Value::Map(map) => {
            map.entries().iter().map(|(name, v)| (name.to_string(), to_json(v))).collect()
        }
        // The text form of all others is JSON.
        other => serde_json::from_str(&other.to_string()).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_parses_to_its_type_and_other_text_to_a_string() {
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
    fn parsed_values_print_as_the_same_json() {
        let text = r#"{"a":[1,-2,1.5,"x\ny",null,true]}"#;
        assert_eq!(to_json(&parse(text)).to_string(), text);
    }

    #[test]
    fn bytes_print_as_text_or_base64() {
        let value = Value::list([Value::from(b"ok".to_vec()), Value::from(vec![0xffu8, 0x0a])]);
        assert_eq!(to_json(&value).to_string(), r#"["ok",{"base64":"/wo="}]"#);
    }
}
