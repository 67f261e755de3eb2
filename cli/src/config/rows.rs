//! Every key, its value and its origin: what is shown, and what is compared when the file is read
//! again.

use serde_json::{Value, json};

use super::values::{Exactly, ReplicaMetrics};
use super::{Config, PublisherConfig, ResolverConfig, Setting, TimingConfig};

/// A key.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Row {
    /// As it is written, with its section: `timing.writer_ttl`.
    pub(crate) key: &'static str,
    /// Null if nobody said anything and the command decides.
    pub(crate) value: Value,
    /// Where it came from, for people.
    pub(crate) origin: String,
}

impl Row {
    /// The value on one line.
    pub(crate) fn text(&self) -> String {
        match &self.value {
            Value::String(text) => text.clone(),
            Value::Array(list) if list.is_empty() => "(none)".to_owned(),
            Value::Array(list) => {
                list.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(",")
            }
            Value::Null if self.key == "data" => "(to be named: there is no $HOME)".to_owned(),
            Value::Null => "(the command's own)".to_owned(),
            other => other.to_string(),
        }
    }
}

/// All of them.
pub(crate) fn rows(config: &Config) -> Vec<Row> {
    let Config { resolvers, data, log, publisher, resolver, timing, file: _ } = config;
    let mut rows = vec![
        row("resolvers", resolvers, |v| json!(v)),
        row("data", data, |v| json!(v.as_ref().map(|v| v.display().to_string()))),
        row("log", log, |v| json!(v)),
    ];
    rows.extend(of_publisher(publisher));
    rows.extend(of_resolver(resolver));
    rows.extend(of_timing(timing));
    rows
}

fn of_publisher(publisher: &PublisherConfig) -> [Row; 16] {
    fn texts<T: ToString>(list: &[T]) -> Value {
        json!(list.iter().map(ToString::to_string).collect::<Vec<_>>())
    }
    [
        row("publisher.name", &publisher.name, |v| json!(v)),
        row("publisher.listen", &publisher.listen, |v| json!(v.to_string())),
        row("publisher.advertise", &publisher.advertise, |v| texts(v)),
        row("publisher.paths", &publisher.paths, |v| texts(v)),
        row("publisher.defaults", &publisher.defaults, |v| texts(v)),
        row("publisher.homes", &publisher.homes, |v| texts(v)),
        row("publisher.durability", &publisher.durability, |v| json!(v.to_string())),
        row("publisher.segment_bytes", &publisher.segment_bytes, |v| json!(v)),
        row("publisher.cache_bytes", &publisher.cache_bytes, |v| json!(v)),
        row("publisher.memory_max", &publisher.memory_max, |v| json!(v)),
        row("publisher.connections_max", &publisher.connections_max, |v| json!(v)),
        row("publisher.value_connections_max", &publisher.value_connections_max, |v| json!(v)),
        row("publisher.hang_after", &publisher.hang_after, |v| json!(Exactly(*v).to_string())),
        row("publisher.clock_skew_max", &publisher.clock_skew_max, |v| {
            json!(Exactly(*v).to_string())
        }),
        row("publisher.metrics", &publisher.metrics, |v| json!(v)),
        row("publisher.insecure", &publisher.insecure, |v| json!(v)),
    ]
}

fn of_resolver(resolver: &ResolverConfig) -> [Row; 10] {
    [
        row("resolver.name", &resolver.name, |v| json!(v)),
        row("resolver.listen", &resolver.listen, |v| json!(v.to_string())),
        row("resolver.connections_max", &resolver.connections_max, |v| json!(v)),
        row("resolver.writers_kept", &resolver.writers_kept, |v| json!(v)),
        row("resolver.tools_kept", &resolver.tools_kept, |v| json!(v)),
        row("resolver.watches_max", &resolver.watches_max, |v| json!(v)),
        row("resolver.paths_max", &resolver.paths_max, |v| json!(v)),
        row("resolver.received_bytes_max", &resolver.received_bytes_max, |v| json!(v)),
        row("resolver.metrics", &resolver.metrics, |v| match v {
            ReplicaMetrics::Off => json!(false),
            ReplicaMetrics::Beside => json!(true),
            ReplicaMetrics::At(address) => json!(address.to_string()),
        }),
        row("resolver.insecure", &resolver.insecure, |v| json!(v)),
    ]
}

fn of_timing(timing: &TimingConfig) -> [Row; 10] {
    let length = |key, setting| row(key, setting, |v| json!(Exactly(*v).to_string()));
    [
        length("timing.reader_ttl", &timing.reader_ttl),
        length("timing.writer_ttl", &timing.writer_ttl),
        length("timing.handshake_timeout", &timing.handshake_timeout),
        length("timing.connect_timeout", &timing.connect_timeout),
        length("timing.retry_wait_min", &timing.retry_wait_min),
        length("timing.retry_wait_max", &timing.retry_wait_max),
        length("timing.request_timeout_min", &timing.request_timeout_min),
        length("timing.read_op_timeout", &timing.read_op_timeout),
        length("timing.write_op_timeout", &timing.write_op_timeout),
        row("timing.tries", &timing.tries, |v| json!(v)),
    ]
}

fn row<T>(key: &'static str, setting: &Setting<T>, show: impl Fn(&T) -> Value) -> Row {
    Row { key, value: show(&setting.value), origin: setting.origin.to_string() }
}
