//! The TOML configuration file. Every key is optional; an unknown key is an error.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use toml::Spanned;

use super::access::AccessSection;
use super::raw_value::{DurationText, Key, shown};
use super::tls::TlsSection;

/// A configuration file, each value with its position.
#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ConfigFile {
    /// The resolver's replicas: `["host:port", …]`.
    pub(crate) resolvers: Key<Vec<String>>,
    /// The directory of the publisher's journal.
    pub(crate) data: Key<String>,
    /// The log filter: `warn`, `info`, `longshore=debug` …
    pub(crate) log: Key<String>,
    /// The format of log lines: `text` or `json`.
    pub(crate) log_format: Key<String>,
    /// The name of the cluster.
    pub(crate) cluster: Key<String>,
    /// The file of the token by which servers know this process.
    pub(crate) token_file: Key<String>,
    /// `[tls]`
    pub(crate) tls: TlsSection,
    /// `[access]`
    pub(crate) access: AccessSection,
    /// `[publisher]`
    pub(crate) publisher: PublisherSection,
    /// `[homes]`: a pattern and the names of publishers, each.
    pub(crate) homes: Key<HomesTable>,
    /// `[resolver]`
    pub(crate) resolver: ResolverSection,
    /// `[timing]`
    pub(crate) timing: TimingSection,
}

/// Settings of `longshore publisher run`.
#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PublisherSection {
    pub(crate) name: Key<String>,
    pub(crate) listen: Key<String>,
    pub(crate) listen_unix: Key<String>,
    pub(crate) advertise: Key<Vec<String>>,
    pub(crate) tls_name: Key<String>,
    pub(crate) paths: Key<Vec<String>>,
    pub(crate) defaults: Key<Vec<String>>,
    pub(crate) durability: Key<String>,
    pub(crate) segment_bytes: Key<u64>,
    pub(crate) cache_bytes: Key<u64>,
    pub(crate) memory_max: Key<u64>,
    pub(crate) connections_max: Key<u64>,
    pub(crate) value_connections_max: Key<u64>,
    pub(crate) hang_after: Key<DurationText>,
    pub(crate) clock_skew_max: Key<DurationText>,
    pub(crate) metrics: Key<bool>,
    pub(crate) insecure: Key<bool>,
}

/// The names of publishers, or one, by pattern.
pub(crate) type HomesTable = BTreeMap<String, HomeNames>;

/// The publishers among which a pattern's paths find their home.
#[derive(Deserialize, Debug)]
#[serde(untagged)]
pub(crate) enum HomeNames {
    One(String),
    Several(Vec<String>),
}

/// Settings of `longshore resolver run`.
#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ResolverSection {
    pub(crate) name: Key<String>,
    pub(crate) listen: Key<String>,
    pub(crate) listen_unix: Key<String>,
    pub(crate) tls_name: Key<String>,
    pub(crate) connections_max: Key<u64>,
    pub(crate) writers_reserved: Key<u64>,
    pub(crate) tools_reserved: Key<u64>,
    pub(crate) watches_max: Key<u64>,
    pub(crate) paths_max: Key<u64>,
    pub(crate) received_bytes_max: Key<u64>,
    pub(crate) metrics: Key<MetricsSetting>,
    pub(crate) insecure: Key<bool>,
}

/// Whether a replica publishes its metrics, or at which address.
#[derive(Deserialize, Debug)]
#[serde(untagged)]
pub(crate) enum MetricsSetting {
    Enabled(bool),
    Address(String),
}

/// Timing of resolver clients and servers: durations such as `"120s"`, and the number of tries.
#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TimingSection {
    pub(crate) reader_ttl: Key<DurationText>,
    pub(crate) writer_ttl: Key<DurationText>,
    pub(crate) handshake_timeout: Key<DurationText>,
    pub(crate) connect_timeout: Key<DurationText>,
    pub(crate) retry_wait_min: Key<DurationText>,
    pub(crate) retry_wait_max: Key<DurationText>,
    pub(crate) request_timeout_min: Key<DurationText>,
    pub(crate) read_op_timeout: Key<DurationText>,
    pub(crate) write_op_timeout: Key<DurationText>,
    pub(crate) tries: Key<u64>,
}

/// The sections, with values of any type.
#[derive(Deserialize)]
struct Sections {
    tls: Option<Spanned<toml::Value>>,
    access: Option<Spanned<toml::Value>>,
    publisher: Option<Spanned<toml::Value>>,
    homes: Option<Spanned<toml::Value>>,
    resolver: Option<Spanned<toml::Value>>,
    timing: Option<Spanned<toml::Value>>,
}

/// Parses a configuration. The error names file, line and what was expected.
pub(crate) fn parse(text: &str, file: &Path) -> Result<ConfigFile, String> {
    let named = |error: toml::de::Error| {
        let line = error.span().map_or(1, |span| line_of(text, span.start));
        format!("{}:{line}: {}", file.display(), error.message())
    };
    let Sections { tls, access, publisher, homes, resolver, timing } =
        toml::from_str(text).map_err(named)?;
    let sections = [
        ("tls", tls),
        ("access", access),
        ("publisher", publisher),
        ("homes", homes),
        ("resolver", resolver),
        ("timing", timing),
    ];
    for (key, section) in sections {
        let Some(section) = section.filter(|section| !section.get_ref().is_table()) else {
            continue;
        };
        let line = line_of(text, section.span().start);
        let hint = match section.get_ref() {
            toml::Value::String(address) if key == "resolver" => {
                format!("; the replicas' addresses are resolvers = [{address:?}]")
            }
            _ => String::new(),
        };
        return Err(format!(
            "{}:{line}: {key}: expected a section of keys under a line [{key}], not {}{hint}",
            file.display(),
            shown(section.get_ref()),
        ));
    }
    toml::from_str(text).map_err(named)
}

/// The line, from 1, of the byte at `offset`.
pub(crate) fn line_of(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().get(..offset).unwrap_or(text.as_bytes());
    1 + before.iter().filter(|&&b| b == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(text: &str) -> String {
        parse(text, Path::new("/etc/longshore/config.toml")).unwrap_err()
    }

    #[test]
    fn a_typo_reports_file_line_and_expected_keys() {
        let error = error_of("data = \"/var/lib\"\n\n[publisher]\nlisen = \"127.0.0.1:0\"\n");
        assert!(error.starts_with("/etc/longshore/config.toml:4: "), "{error}");
        assert!(error.contains("unknown field `lisen`"), "{error}");
        assert!(error.contains("`listen`"), "{error}");
    }

    #[test]
    fn a_value_instead_of_a_section_is_explained() {
        let error = error_of("log = 'info'\nresolver = \"10.0.0.1:4770\"\n");
        assert_eq!(
            error,
            "/etc/longshore/config.toml:2: resolver: expected a section of keys under a line \
             [resolver], not \"10.0.0.1:4770\"; the replicas' addresses are \
             resolvers = [\"10.0.0.1:4770\"]"
        );
        let error = error_of("timing = 20\n");
        assert!(
            error.contains("timing: expected a section") && error.ends_with("not 20"),
            "{error}"
        );
    }

    #[test]
    fn invalid_toml_reports_its_line() {
        let error = error_of("log = 'info'\nresolvers = [\"a:1\"\n[publisher\n");
        assert!(error.starts_with("/etc/longshore/config.toml:"), "{error}");
    }
}
