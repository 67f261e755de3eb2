//! What is logged on standard error. It can change while a service runs.

use std::fmt;
use std::io::IsTerminal;
use std::sync::Arc;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::failure::WrongUsage;

/// Sets another filter.
type Reload = dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync;

/// What is logged.
#[derive(Clone)]
pub(crate) struct LogFilter {
    reload: Arc<Reload>,
    usual: &'static str,
}

impl LogFilter {
    /// Begins to log by `filter`, or, if there is none, what is `usual` for the command.
    pub(crate) fn start(
        filter: Option<&str>,
        usual: &'static str,
    ) -> Result<LogFilter, WrongUsage> {
        let builder = tracing_subscriber::fmt()
            .with_env_filter(parse(filter.unwrap_or(usual)).map_err(WrongUsage)?)
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal())
            .with_filter_reloading();
        let handle = builder.reload_handle();
        builder.init();
        let reload = move |filter| handle.reload(filter).map_err(|error| error.to_string());
        Ok(LogFilter { reload: Arc::new(reload), usual })
    }

    /// Logs by another filter from now on; none: what is usual for the command.
    pub(crate) fn set(&self, filter: Option<&str>) -> Result<(), String> {
        (self.reload)(parse(filter.unwrap_or(self.usual))?)
    }
}

impl fmt::Debug for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogFilter").field("usual", &self.usual).finish_non_exhaustive()
    }
}

/// Reads a filter.
pub(crate) fn parse(filter: &str) -> Result<EnvFilter, String> {
    // With a blank before it a level would be read as a target.
    let parts: Vec<&str> = filter.split(',').map(str::trim).collect();
    let parsed = EnvFilter::try_new(parts.join(",")).map_err(|error| {
        format!("log filter '{filter}': {error}; expected off, error, warn, info, debug or trace")
    })?;
    match parts.into_iter().find(|part| is_misspelt_level(part)) {
        None => Ok(parsed),
        Some(part) => Err(format!(
            "log filter '{filter}': '{part}' is no level; expected off, error, warn, info, debug or trace; for \
             all that the target {part} says write {part}=trace"
        )),
    }
}

/// A bare word is a level or a target, and as a target it silences all others. The targets of this
/// program can be told from levels; any other can still be written with its level.
fn is_misspelt_level(part: &str) -> bool {
    let bare = !part.is_empty() && !part.contains(['=', '[', ']', '{', '}', '"', ':']);
    bare && part.parse::<LevelFilter>().is_err() && !part.starts_with("longshore")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_level_is_refused_and_no_target_is_taken_for_one() {
        for (filter, part) in [
            ("inof", "inof"),
            ("verbose", "verbose"),
            ("info,wran", "wran"),
            ("longshore_queue=debug, eror", "eror"),
            ("warning", "warning"),
        ] {
            let error = parse(filter).unwrap_err();
            let says =
                format!("'{part}' is no level; expected off, error, warn, info, debug or trace");
            assert!(error.contains(&says), "{error}");
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
            let said = parse(filter).unwrap().to_string();
            assert_eq!(said.replace("longshore_queue=debug,", ""), "info", "{filter}");
        }
    }
}
