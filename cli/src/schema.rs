//! Checks JSON against `docs/output.schema.json`, for tests. It knows the keywords that the file
//! uses: a complete validator would add more than thirty crates to every build of the tests.
#![allow(clippy::unwrap_used, clippy::panic, reason = "only tests use it")]

use std::sync::LazyLock;

use serde_json::Value;

static SCHEMA: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("../../docs/output.schema.json")).unwrap());

/// The commands that have a schema. The parts that they share begin with a capital letter.
pub(crate) fn commands() -> impl Iterator<Item = &'static str> {
    let names = SCHEMA["$defs"].as_object().unwrap().keys();
    names.map(String::as_str).filter(|name| name.starts_with(|c: char| c.is_ascii_lowercase()))
}

/// Fails the test unless a value has the form that the file defines under this name.
#[track_caller]
pub(crate) fn check(name: &str, value: &Value) {
    if let Err(why) = fits(definition(name), value, "") {
        panic!("docs/output.schema.json, {name}: {why}\n{value:#}");
    }
}

#[track_caller]
fn definition(name: &str) -> &'static Value {
    SCHEMA["$defs"].get(name).unwrap_or_else(|| panic!("there is no schema of '{name}'"))
}

/// Whether a value satisfies a schema; `at` is its place.
fn fits(schema: &'static Value, value: &Value, at: &str) -> Result<(), String> {
    let keywords = schema.as_object().unwrap();
    for (keyword, rule) in keywords {
        match keyword.as_str() {
            "description" => {}
            "$ref" => {
                let name = rule.as_str().and_then(|target| target.strip_prefix("#/$defs/"));
                fits(definition(name.unwrap()), value, at)?;
            }
            "anyOf" => {
                let each = rule.as_array().unwrap().iter().map(|one| fits(one, value, at));
                let whys: Vec<String> = each.filter_map(Result::err).collect();
                if whys.len() == rule.as_array().unwrap().len() {
                    return Err(format!("none of these fits: [{}]", whys.join(" | ")));
                }
            }
            "type" if !has_type(rule, value) => return Err(format!("{at} is not {rule}")),
            "const" if value != rule => return Err(format!("{at} is not {rule}")),
            "enum" if !rule.as_array().unwrap().contains(value) => {
                return Err(format!("{at} is {value}, none of {rule}"));
            }
            "minimum" if value.as_f64() < rule.as_f64() => {
                return Err(format!("{at} is less than {rule}"));
            }
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    fits(rule, item, &format!("{at}[{index}]"))?;
                }
            }
            "required" => {
                let names = rule.as_array().unwrap().iter().map(|name| name.as_str().unwrap());
                if let Some(name) = names.into_iter().find(|name| value.get(*name).is_none()) {
                    return Err(format!("{at}.{name} is missing"));
                }
            }
            "properties" | "additionalProperties" => {
                let known = keywords.get("properties").and_then(Value::as_object);
                for (name, field) in value.as_object().into_iter().flatten() {
                    let at = format!("{at}.{name}");
                    match (keyword.as_str(), known.and_then(|known| known.get(name))) {
                        ("properties", Some(schema)) => fits(schema, field, &at)?,
                        ("properties", None) | (_, Some(_)) => {}
                        _ if *rule == false => return Err(format!("{at} is not in the schema")),
                        _ => fits(rule, field, &at)?,
                    }
                }
            }
            "type" | "const" | "enum" | "minimum" => {}
            other => panic!("the schema uses {other}, which this check does not know"),
        }
    }
    Ok(())
}

/// Whether a value has the type, or one of the types, that `rule` names.
fn has_type(rule: &Value, value: &Value) -> bool {
    let is = |name: &Value| match name.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        other => panic!("there is no type {other}"),
    };
    rule.as_array().map_or_else(|| is(rule), |names| names.iter().any(is))
}
