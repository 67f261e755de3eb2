//! Every key with its value and origin, as `longshore config` prints them and a reload compares
//! them.

use std::path::PathBuf;

use longshore::TokenSource;
use serde_json::{Value, json};

use super::values::{ExactDuration, ReplicaMetrics};
use super::{
    AccessConfig, Authority, ClientCertificates, Config, JwtConfig, PublisherConfig,
    ResolverConfig, Setting, TimingConfig, TlsConfig,
};

/// A key with its value.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Row {
    /// The key with its section: `timing.writer_ttl`.
    pub(crate) key: &'static str,
    /// Null if unset, so that the command decides.
    pub(crate) value: Value,
    /// The origin, as text.
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
            Value::Null
                if [
                    "context",
                    "cluster",
                    "token_file",
                    "publisher.tls_name",
                    "resolver.tls_name",
                    "publisher.listen_unix",
                    "resolver.listen_unix",
                ]
                .contains(&self.key) =>
            {
                "(none)".to_owned()
            }
            Value::Null if self.key.starts_with("tls.") || self.key.starts_with("access.") => {
                "(none)".to_owned()
            }
            Value::Null if self.key == "data" => "(required: there is no $HOME)".to_owned(),
            Value::Null => "(the command's default)".to_owned(),
            other => other.to_string(),
        }
    }
}

/// All keys.
pub(crate) fn rows(config: &Config) -> Vec<Row> {
    let Config {
        context,
        resolvers,
        cluster,
        tls,
        token,
        access,
        data,
        log,
        log_format,
        publisher,
        homes,
        resolver,
        timing,
        file: _,
    } = config;
    let mut rows = vec![
        row("context", context, |v| json!(v)),
        row("resolvers", resolvers, |v| json!(v)),
        row("cluster", cluster, |v| if v.is_empty() { Value::Null } else { json!(v) }),
        row("token_file", token, |v| match v.as_ref().map(TokenSource::path) {
            None => Value::Null,
            // Its origin is a variable.
            Some(None) => json!("(a secret)"),
            Some(Some(file)) => json!(file.display().to_string()),
        }),
        row("data", data, path),
        row("log", log, |v| json!(v)),
        row("log_format", log_format, |v| json!(v.name())),
    ];
    rows.extend(of_tls(tls));
    rows.extend(of_access(access));
    rows.extend(of_publisher(publisher));
    // As the flag has them.
    rows.push(row("homes", homes, |homes| {
        let declared =
            homes.iter().map(|(pattern, names)| format!("{pattern}={}", names.join(",")));
        json!(declared.collect::<Vec<_>>())
    }));
    rows.extend(of_resolver(resolver));
    rows.extend(of_timing(timing));
    rows
}

fn path(value: &Option<PathBuf>) -> Value {
    json!(value.as_ref().map(|value| value.display().to_string()))
}

fn of_tls(tls: &TlsConfig) -> [Row; 5] {
    [
        row("tls.ca", &tls.ca, |v| match v {
            None => Value::Null,
            Some(Authority::System) => json!("system"),
            Some(Authority::File(file)) => json!(file.display().to_string()),
        }),
        row("tls.certificate", &tls.certificate, path),
        row("tls.key", &tls.key, path),
        row("tls.server_name", &tls.server_name, |v| json!(v)),
        row("tls.client_certificates", &tls.client_certificates, |v| match v {
            None => Value::Null,
            Some(ClientCertificates::Required) => json!("required"),
            Some(ClientCertificates::Optional) => json!("optional"),
            Some(ClientCertificates::Off) => json!("off"),
        }),
    ]
}

fn of_access(access: &AccessConfig) -> [Row; 8] {
    let AccessConfig { policy, tokens, audit, jwt } = access;
    let JwtConfig { issuer, audience, keys, identity_claim, groups_claim } = jwt;
    [
        row("access.policy", policy, path),
        row("access.tokens", tokens, path),
        row("access.audit", audit, path),
        row("access.jwt.issuer", issuer, |v| json!(v)),
        row("access.jwt.audience", audience, |v| json!(v)),
        row("access.jwt.keys", keys, path),
        row("access.jwt.identity_claim", identity_claim, |v| json!(v)),
        row("access.jwt.groups_claim", groups_claim, |v| json!(v)),
    ]
}

fn of_publisher(publisher: &PublisherConfig) -> [Row; 17] {
    fn texts<T: ToString>(list: &[T]) -> Value {
        json!(list.iter().map(ToString::to_string).collect::<Vec<_>>())
    }
    [
        row("publisher.name", &publisher.name, |v| json!(v)),
        row("publisher.listen", &publisher.listen, |v| json!(v.to_string())),
        row("publisher.listen_unix", &publisher.listen_unix, |v| {
            json!(v.as_ref().map(ToString::to_string))
        }),
        row("publisher.advertise", &publisher.advertise, |v| texts(v)),
        row("publisher.tls_name", &publisher.tls_name, |v| {
            json!(v.as_ref().map(ToString::to_string))
        }),
        row("publisher.paths", &publisher.paths, |v| texts(v)),
        row("publisher.defaults", &publisher.defaults, |v| texts(v)),
        row("publisher.durability", &publisher.durability, |v| json!(v.to_string())),
        row("publisher.segment_bytes", &publisher.segment_bytes, |v| json!(v)),
        row("publisher.cache_bytes", &publisher.cache_bytes, |v| json!(v)),
        row("publisher.memory_max", &publisher.memory_max, |v| json!(v)),
        row("publisher.connections_max", &publisher.connections_max, |v| json!(v)),
        row("publisher.value_connections_max", &publisher.value_connections_max, |v| json!(v)),
        row("publisher.hang_after", &publisher.hang_after, |v| {
            json!(ExactDuration(*v).to_string())
        }),
        row("publisher.clock_skew_max", &publisher.clock_skew_max, |v| {
            json!(ExactDuration(*v).to_string())
        }),
        row("publisher.metrics", &publisher.metrics, |v| json!(v)),
        row("publisher.insecure", &publisher.insecure, |v| json!(v)),
    ]
}

fn of_resolver(resolver: &ResolverConfig) -> [Row; 12] {
    [
        row("resolver.name", &resolver.name, |v| json!(v)),
        row("resolver.listen", &resolver.listen, |v| json!(v.to_string())),
        row("resolver.listen_unix", &resolver.listen_unix, |v| {
            json!(v.as_ref().map(ToString::to_string))
        }),
        row("resolver.tls_name", &resolver.tls_name, |v| {
            json!(v.as_ref().map(ToString::to_string))
        }),
        row("resolver.connections_max", &resolver.connections_max, |v| json!(v)),
        row("resolver.writers_reserved", &resolver.writers_reserved, |v| json!(v)),
        row("resolver.tools_reserved", &resolver.tools_reserved, |v| json!(v)),
        row("resolver.watches_max", &resolver.watches_max, |v| json!(v)),
        row("resolver.paths_max", &resolver.paths_max, |v| json!(v)),
        row("resolver.received_bytes_max", &resolver.received_bytes_max, |v| json!(v)),
        row("resolver.metrics", &resolver.metrics, |v| match v {
            ReplicaMetrics::Off => json!(false),
            ReplicaMetrics::Automatic => json!(true),
            ReplicaMetrics::At(address) => json!(address.to_string()),
        }),
        row("resolver.insecure", &resolver.insecure, |v| json!(v)),
    ]
}

fn of_timing(timing: &TimingConfig) -> [Row; 10] {
    let duration = |key, setting| row(key, setting, |v| json!(ExactDuration(*v).to_string()));
    [
        duration("timing.reader_ttl", &timing.reader_ttl),
        duration("timing.writer_ttl", &timing.writer_ttl),
        duration("timing.handshake_timeout", &timing.handshake_timeout),
        duration("timing.connect_timeout", &timing.connect_timeout),
        duration("timing.retry_wait_min", &timing.retry_wait_min),
        duration("timing.retry_wait_max", &timing.retry_wait_max),
        duration("timing.request_timeout_min", &timing.request_timeout_min),
        duration("timing.read_op_timeout", &timing.read_op_timeout),
        duration("timing.write_op_timeout", &timing.write_op_timeout),
        row("timing.tries", &timing.tries, |v| json!(v)),
    ]
}

fn row<T>(key: &'static str, setting: &Setting<T>, show: impl Fn(&T) -> Value) -> Row {
    Row { key, value: show(&setting.value), origin: setting.origin.to_string() }
}
