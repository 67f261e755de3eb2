//! Logging to standard error, with a filter that can change while a service runs.

use std::io::IsTerminal;
use std::sync::Arc;

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, fmt, reload};

use crate::failure::UsageError;

/// Replaces the filter.
type SetFilter = dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync;

/// The active log filter.
#[derive(Clone)]
pub(crate) struct LogFilter {
    set_filter: Arc<SetFilter>,
    default: &'static str,
}

impl LogFilter {
    /// Starts logging with `filter`, or with the command's `default`.
    pub(crate) fn start(
        filter: Option<&str>,
        default: &'static str,
        format: LogFormat,
    ) -> Result<LogFilter, UsageError> {
        let parsed = parse(filter.unwrap_or(default)).map_err(UsageError)?;
        let (filter, handle) = reload::Layer::new(parsed);
        let registry = tracing_subscriber::registry().with(filter);
        let lines = fmt::layer().with_writer(std::io::stderr);
        match format {
            LogFormat::Text => registry.with(lines.with_ansi(has_colours())).init(),
            LogFormat::Json => registry.with(lines.json().flatten_event(true)).init(),
        }
        let set_filter =
            move |filter: EnvFilter| handle.reload(filter).map_err(|error| error.to_string());
        Ok(LogFilter { set_filter: Arc::new(set_filter), default })
    }

    /// Replaces the filter; none restores the command's default.
    pub(crate) fn set(&self, filter: Option<&str>) -> Result<(), String> {
        (self.set_filter)(parse(filter.unwrap_or(self.default))?)
    }
}

impl std::fmt::Debug for LogFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogFilter").field("default", &self.default).finish_non_exhaustive()
    }
}

/// Colours are for terminals, unless `NO_COLOR` is set: <https://no-color.org>.
fn has_colours() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty())
}

/// The format of log lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LogFormat {
    Text,
    /// A JSON object per line, with the event's fields at its top level.
    Json,
}

impl LogFormat {
    /// Parses `text` or `json`.
    pub(crate) fn parse(text: &str) -> Result<LogFormat, String> {
        match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            _ => Err(format!("'{text}' is not a log format; expected text or json")),
        }
    }

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        }
    }
}

/// Parses a filter.
pub(crate) fn parse(filter: &str) -> Result<EnvFilter, String> {
    // `EnvFilter` would read a level with a leading blank as a target.
    let parts: Vec<&str> = filter.split(',').map(str::trim).collect();
    let parsed = EnvFilter::try_new(parts.join(",")).map_err(|error| {
        format!("log filter '{filter}': {error}; expected off, error, warn, info, debug or trace")
    })?;
    match parts.into_iter().find(|part| is_misspelt_level(part)) {
        None => Ok(parsed),
        Some(part) => Err(format!(
            "log filter '{filter}': '{part}' is not a level; expected off, error, warn, info, \
             debug or trace; to log everything of the target {part}, write {part}=trace"
        )),
    }
}

/// A bare word is a level or a target, and a bare target silences all others. This program's
/// targets begin with `longshore`; any other bare word is taken for a misspelt level.
fn is_misspelt_level(part: &str) -> bool {
    let bare = !part.is_empty() && !part.contains(['=', '[', ']', '{', '}', '"', ':']);
    bare && part.parse::<LevelFilter>().is_err() && !part.starts_with("longshore")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_log_levels_are_refused_and_targets_accepted() {
        for (filter, part) in [
            ("inof", "inof"),
            ("verbose", "verbose"),
            ("info,wran", "wran"),
            ("longshore_queue=debug, eror", "eror"),
            ("warning", "warning"),
        ] {
            let error = parse(filter).unwrap_err();
            let expected =
                format!("'{part}' is not a level; expected off, error, warn, info, debug or trace");
            assert!(error.contains(&expected), "{error}");
            assert!(error.contains(&format!("{part}=trace")), "{error}");
        }
        for filter in [
            "",
            "info",
            "WARN",
            "off",
            "3",
            "info,",
            "info,longshore_queue=debug",
            "longshore_resolver",
            "longshore::up",
            "longshore",
            "rustls::client",
            "inof=trace",
            "rustls=warn",
            "[job{id=7}]=debug",
            "longshore_queue[commit]",
        ] {
            assert!(parse(filter).is_ok(), "{filter}: {:?}", parse(filter));
        }
        assert!(parse("longshore=inof").is_err());
        for filter in ["info ", " info", "longshore_queue=debug , info"] {
            let parsed = parse(filter).unwrap().to_string();
            assert_eq!(parsed.replace("longshore_queue=debug,", ""), "info", "{filter}");
        }
    }
}
