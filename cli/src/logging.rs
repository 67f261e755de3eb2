//! What is logged on standard error. It can change while a service runs.

use std::fmt;
use std::io::IsTerminal;
use std::sync::Arc;

use tracing_subscriber::EnvFilter;

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
    EnvFilter::try_new(filter).map_err(|error| {
        format!("log filter '{filter}': {error}; expected error, warn, info, debug or trace")
    })
}
