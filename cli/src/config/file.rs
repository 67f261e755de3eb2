//! The configuration file as it is written: TOML. Every key is optional; an unknown one is an error.

use std::path::Path;

use serde::Deserialize;
use toml::Spanned;

/// A configuration file, each value with the place that it was read from.
#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ConfigFile {
    /// Where the resolver's replicas are: `["host:port", …]`.
    pub(crate) resolvers: Option<Spanned<Vec<String>>>,
    /// Where publishers keep their journals.
    pub(crate) data: Option<Spanned<String>>,
    /// What is logged: `warn`, `info`, `longshore=debug` …
    pub(crate) log: Option<Spanned<String>>,
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
    pub(crate) name: Option<Spanned<String>>,
    pub(crate) listen: Option<Spanned<String>>,
    pub(crate) advertise: Option<Spanned<Vec<String>>>,
    pub(crate) paths: Option<Spanned<Vec<String>>>,
    pub(crate) defaults: Option<Spanned<Vec<String>>>,
    pub(crate) homes: Option<Spanned<Vec<String>>>,
    pub(crate) durability: Option<Spanned<String>>,
    pub(crate) segment_bytes: Option<Spanned<u64>>,
    pub(crate) cache_bytes: Option<Spanned<u64>>,
    pub(crate) connections_max: Option<Spanned<u64>>,
    pub(crate) value_connections_max: Option<Spanned<u64>>,
    pub(crate) hang_after: Option<Spanned<String>>,
    pub(crate) clock_skew_max: Option<Spanned<String>>,
    pub(crate) figures: Option<Spanned<bool>>,
    pub(crate) insecure: Option<Spanned<bool>>,
}

/// What `longshore resolver` runs with.
#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ResolverSection {
    pub(crate) name: Option<Spanned<String>>,
    pub(crate) listen: Option<Spanned<String>>,
    pub(crate) connections_max: Option<Spanned<u64>>,
    pub(crate) writers_kept: Option<Spanned<u64>>,
    pub(crate) tools_kept: Option<Spanned<u64>>,
    pub(crate) watches_max: Option<Spanned<u64>>,
    pub(crate) paths_max: Option<Spanned<u64>>,
    pub(crate) requests_bytes_max: Option<Spanned<u64>>,
    pub(crate) figures: Option<Spanned<FiguresWritten>>,
    pub(crate) insecure: Option<Spanned<bool>>,
}

/// Whether a replica tells its figures, or where.
#[derive(Deserialize, Debug)]
#[serde(untagged)]
pub(crate) enum FiguresWritten {
    Told(bool),
    At(String),
}

/// The timing of resolver clients and servers: lengths of time like `"120s"`, and how often they try.
#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TimingSection {
    pub(crate) reader_ttl: Option<Spanned<String>>,
    pub(crate) writer_ttl: Option<Spanned<String>>,
    pub(crate) hello_timeout: Option<Spanned<String>>,
    pub(crate) connect_timeout: Option<Spanned<String>>,
    pub(crate) retry_wait_min: Option<Spanned<String>>,
    pub(crate) retry_wait_max: Option<Spanned<String>>,
    pub(crate) request_timeout_min: Option<Spanned<String>>,
    pub(crate) read_op_timeout: Option<Spanned<String>>,
    pub(crate) write_op_timeout: Option<Spanned<String>>,
    pub(crate) tries: Option<Spanned<u64>>,
}

/// Reads a configuration. The error names file, line and what was expected.
pub(crate) fn parse(text: &str, file: &Path) -> Result<ConfigFile, String> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_of(text, span.start));
        format!("{}:{line}: {}", file.display(), error.message())
    })
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
    fn a_value_of_the_wrong_type_says_what_was_expected() {
        let error = error_of("log = 'info'\nresolvers = 4770\n");
        assert!(error.starts_with("/etc/longshore/config.toml:2: "), "{error}");
        assert!(error.contains("expected"), "{error}");
    }

    #[test]
    fn what_is_no_toml_names_the_line() {
        let error = error_of("log = 'info'\nresolvers = [\"a:1\"\n[publisher\n");
        assert!(error.starts_with("/etc/longshore/config.toml:"), "{error}");
    }
}
