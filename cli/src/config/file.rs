//! The configuration file as it is written: TOML. Every key is optional; an unknown one is an
//! error.

use std::path::Path;

use serde::Deserialize;
use toml::Spanned;

use super::written::{Key, Length, shown};

/// A configuration file, each value with the place that it was read from.
#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ConfigFile {
    /// Where the resolver's replicas are: `["host:port", …]`.
    pub(crate) resolvers: Key<Vec<String>>,
    /// Where publishers keep their journals.
    pub(crate) data: Key<String>,
    /// What is logged: `warn`, `info`, `longshore=debug` …
    pub(crate) log: Key<String>,
    /// `[publisher]`
    pub(crate) publisher: PublisherSection,
    /// `[resolver]`
    pub(crate) resolver: ResolverSection,
    /// `[timing]`
    pub(crate) timing: TimingSection,
}

/// What `longshore publisher` runs with.
#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PublisherSection {
    pub(crate) name: Key<String>,
    pub(crate) listen: Key<String>,
    pub(crate) advertise: Key<Vec<String>>,
    pub(crate) paths: Key<Vec<String>>,
    pub(crate) defaults: Key<Vec<String>>,
    pub(crate) homes: Key<Vec<String>>,
    pub(crate) durability: Key<String>,
    pub(crate) segment_bytes: Key<u64>,
    pub(crate) cache_bytes: Key<u64>,
    pub(crate) memory_max: Key<u64>,
    pub(crate) connections_max: Key<u64>,
    pub(crate) value_connections_max: Key<u64>,
    pub(crate) hang_after: Key<Length>,
    pub(crate) clock_skew_max: Key<Length>,
    pub(crate) metrics: Key<bool>,
    pub(crate) insecure: Key<bool>,
}

/// What `longshore resolver` runs with.
#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ResolverSection {
    pub(crate) name: Key<String>,
    pub(crate) listen: Key<String>,
    pub(crate) connections_max: Key<u64>,
    pub(crate) writers_kept: Key<u64>,
    pub(crate) tools_kept: Key<u64>,
    pub(crate) watches_max: Key<u64>,
    pub(crate) paths_max: Key<u64>,
    pub(crate) received_bytes_max: Key<u64>,
    pub(crate) metrics: Key<MetricsWritten>,
    pub(crate) insecure: Key<bool>,
}

/// Whether a replica tells its metrics, or where.
#[derive(Deserialize, Debug)]
#[serde(untagged)]
pub(crate) enum MetricsWritten {
    Told(bool),
    At(String),
}

/// The timing of resolver clients and servers: lengths of time like `"120s"`, and how often they
/// try.
#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TimingSection {
    pub(crate) reader_ttl: Key<Length>,
    pub(crate) writer_ttl: Key<Length>,
    pub(crate) handshake_timeout: Key<Length>,
    pub(crate) connect_timeout: Key<Length>,
    pub(crate) retry_wait_min: Key<Length>,
    pub(crate) retry_wait_max: Key<Length>,
    pub(crate) request_timeout_min: Key<Length>,
    pub(crate) read_op_timeout: Key<Length>,
    pub(crate) write_op_timeout: Key<Length>,
    pub(crate) tries: Key<u64>,
}

/// The sections, whatever is written for them.
#[derive(Deserialize)]
struct Sections {
    publisher: Option<Spanned<toml::Value>>,
    resolver: Option<Spanned<toml::Value>>,
    timing: Option<Spanned<toml::Value>>,
}

/// Reads a configuration. The error names file, line and what was expected.
pub(crate) fn parse(text: &str, file: &Path) -> Result<ConfigFile, String> {
    let named = |error: toml::de::Error| {
        let line = error.span().map_or(1, |span| line_of(text, span.start));
        format!("{}:{line}: {}", file.display(), error.message())
    };
    let Sections { publisher, resolver, timing } = toml::from_str(text).map_err(named)?;
    for (key, section) in [("publisher", publisher), ("resolver", resolver), ("timing", timing)] {
        let Some(section) = section.filter(|section| !section.get_ref().is_table()) else {
            continue;
        };
        let line = line_of(text, section.span().start);
        let meant = match section.get_ref() {
            toml::Value::String(address) if key == "resolver" => {
                format!("; where the replicas are is resolvers = [{address:?}]")
            }
            _ => String::new(),
        };
        return Err(format!(
            "{}:{line}: {key}: expected a section of keys under a line [{key}], not {}{meant}",
            file.display(),
            shown(section.get_ref()),
        ));
    }
    toml::from_str(text).map_err(named)
}

/// The line, from 1, that the byte at `offset` is on.
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
    fn a_typo_is_named_with_file_line_and_what_was_expected() {
        let error = error_of("data = \"/var/lib\"\n\n[publisher]\nlisen = \"127.0.0.1:0\"\n");
        assert!(error.starts_with("/etc/longshore/config.toml:4: "), "{error}");
        assert!(error.contains("unknown field `lisen`"), "{error}");
        assert!(error.contains("`listen`"), "{error}");
    }

    #[test]
    fn a_section_that_is_a_value_says_what_was_meant() {
        let error = error_of("log = 'info'\nresolver = \"10.0.0.1:4770\"\n");
        assert_eq!(
            error,
            "/etc/longshore/config.toml:2: resolver: expected a section of keys under a line [resolver], \
             not \"10.0.0.1:4770\"; where the replicas are is resolvers = [\"10.0.0.1:4770\"]"
        );
        let error = error_of("timing = 20\n");
        assert!(
            error.contains("timing: expected a section") && error.ends_with("not 20"),
            "{error}"
        );
    }

    #[test]
    fn what_is_no_toml_names_the_line() {
        let error = error_of("log = 'info'\nresolvers = [\"a:1\"\n[publisher\n");
        assert!(error.starts_with("/etc/longshore/config.toml:"), "{error}");
    }
}
