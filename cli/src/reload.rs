//! SIGHUP: a service reads its configuration file again, and applies what is safe to change while
//! it runs.

use std::io;
use std::path::PathBuf;

use longshore::LimitsHandle;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::commands::Context;
use crate::config::{Config, Given, Plan, Row, Service, plan, rows};
use crate::logging::LogFilter;

/// Waits for SIGHUP, and knows what is in force.
pub(crate) struct Reload {
    hangup: Signal,
    service: Service,
    given: Given,
    /// Keys that the service's own command line has said.
    fixed: Vec<&'static str>,
    /// What was read last.
    file: Option<PathBuf>,
    in_force: Vec<Row>,
    log: LogFilter,
}

impl Reload {
    /// Begins to listen. The process no longer ends by SIGHUP.
    pub(crate) fn listen(
        service: Service,
        context: &Context,
        fixed: &[(&'static str, bool)],
    ) -> io::Result<Reload> {
        Ok(Reload {
            hangup: signal(SignalKind::hangup())?,
            service,
            given: context.given.clone(),
            fixed: fixed.iter().filter(|(_, said)| *said).map(|(key, _)| *key).collect(),
            file: context.config.file.as_ref().map(|file| file.value.clone()),
            in_force: rows(&context.config),
            log: context.log.clone(),
        })
    }

    /// Serves until the program ends. A publisher has no limits to change.
    pub(crate) async fn run(mut self, limits: Option<LimitsHandle>) {
        while self.hangup.recv().await.is_some() {
            if let Err(error) = self.once(limits.as_ref()).await {
                tracing::error!("SIGHUP: {error}; nothing has changed");
            }
        }
    }

    async fn once(&mut self, limits: Option<&LimitsHandle>) -> Result<(), String> {
        let config = Config::load(&self.given).map_err(|error| error.to_string())?;
        let file = config.file.as_ref().map(|file| file.value.clone());
        // Neither the defaults nor another of the usual places is what was meant by that.
        let is_gone = |last: &&PathBuf| file.as_ref() != Some(*last) && !last.exists();
        if let Some(gone) = self.file.as_ref().filter(is_gone) {
            return Err(format!("the configuration file {} is gone", gone.display()));
        }
        self.file = file;
        let read = rows(&config);
        let plan = plan(self.service, &self.fixed, &self.in_force, &read);
        let filter = config.log.value.as_deref();
        if let Some(limits) = limits {
            limits.set(config.limits()).await;
        }
        // Before a filter that lets less through.
        let says_so_first = says(&plan);
        if says_so_first {
            say(&config, &plan);
        }
        if plan.live.iter().any(|change| change.key == "log") {
            self.log.set(filter)?;
        }
        // A filter that lets more through than the one before.
        if !says_so_first {
            say(&config, &plan);
        }
        for (old, new) in self.in_force.iter_mut().zip(read) {
            if plan.live.iter().any(|change| change.key == new.key) {
                *old = new;
            }
        }
        Ok(())
    }
}

/// Whether the line would be seen, as things stand.
fn says(plan: &Plan) -> bool {
    match plan.restart.is_empty() {
        true => tracing::enabled!(tracing::Level::INFO),
        false => tracing::enabled!(tracing::Level::WARN),
    }
}

fn say(config: &Config, plan: &Plan) {
    let file = config.file.as_ref().map(|file| file.value.display().to_string());
    let file = file.unwrap_or_else(|| "no configuration file".to_owned());
    match plan.restart.is_empty() {
        true => tracing::info!("SIGHUP: {file}: {plan}"),
        false => tracing::warn!("SIGHUP: {file}: {plan}"),
    }
}
