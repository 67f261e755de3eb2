//! `longshore config`: what is in force, and where each value came from.

use serde_json::{Map, Value, json};

use super::Context;
use crate::config::{Config, Setting};
use crate::output::Table;
use crate::time::show_length;

pub(crate) fn run(mut context: Context) -> anyhow::Result<()> {
    let rows = rows(&context.config);
    if context.output.is_json() {
        let values = rows.iter().map(|(key, value, origin)| {
            ((*key).to_owned(), json!({ "value": value, "from": origin }))
        });
        context.output.json_pretty(&Value::Object(values.collect::<Map<_, _>>()))?;
        return Ok(());
    }
    let mut table = Table::new(&["key", "value", "from"]);
    for (key, value, origin) in rows {
        let text = match value {
            Value::String(text) => text,
            Value::Array(list) if list.is_empty() => "(none)".to_owned(),
            Value::Array(list) => {
                list.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(",")
            }
            Value::Null => "(the command's own)".to_owned(),
            other => other.to_string(),
        };
        table.row([key.to_owned(), text, origin]);
    }
    context.output.table(&table)?;
    Ok(())
}

fn rows(config: &Config) -> Vec<(&'static str, Value, String)> {
    let mut rows = Vec::new();
    if let Some(file) = &config.file {
        rows.push(("file", json!(file.value.display().to_string()), file.origin.to_string()));
    }
    let texts = |list: &[longshore::Path]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
    let Config { publisher, resolver, .. } = config;
    push(&mut rows, "resolvers", &config.resolvers, |v| json!(v));
    push(&mut rows, "data", &config.data, |v| json!(v.display().to_string()));
    push(&mut rows, "log", &config.log, |v| json!(v));
    push(&mut rows, "publisher.name", &publisher.name, |v| json!(v));
    push(&mut rows, "publisher.listen", &publisher.listen, |v| json!(v.to_string()));
    push(&mut rows, "publisher.advertise", &publisher.advertise, |v| {
        json!(v.iter().map(ToString::to_string).collect::<Vec<_>>())
    });
    push(&mut rows, "publisher.paths", &publisher.paths, |v| json!(texts(v)));
    push(&mut rows, "publisher.defaults", &publisher.defaults, |v| json!(texts(v)));
    push(&mut rows, "publisher.durability", &publisher.durability, |v| json!(v.to_string()));
    push(&mut rows, "publisher.segment_bytes", &publisher.segment_bytes, |v| json!(v));
    push(&mut rows, "publisher.cache_bytes", &publisher.cache_bytes, |v| json!(v));
    push(&mut rows, "publisher.connections_max", &publisher.connections_max, |v| json!(v));
    push(&mut rows, "publisher.hang_after", &publisher.hang_after, |v| json!(show_length(*v)));
    push(&mut rows, "publisher.insecure", &publisher.insecure, |v| json!(v));
    push(&mut rows, "resolver.name", &resolver.name, |v| json!(v));
    push(&mut rows, "resolver.listen", &resolver.listen, |v| json!(v.to_string()));
    push(&mut rows, "resolver.connections_max", &resolver.connections_max, |v| json!(v));
    push(&mut rows, "resolver.insecure", &resolver.insecure, |v| json!(v));
    for (key, setting) in &config.timing {
        push(&mut rows, key, setting, |v| json!(show_length(*v)));
    }
    rows
}

fn push<T>(
    rows: &mut Vec<(&'static str, Value, String)>,
    key: &'static str,
    setting: &Setting<T>,
    show: impl Fn(&T) -> Value,
) {
    rows.push((key, show(&setting.value), setting.origin.to_string()));
}
