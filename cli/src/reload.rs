//! SIGHUP: a service reads its configuration file again and applies what can change while it runs.

use std::io;
use std::path::PathBuf;

use longshore::{AuditLog, LimitsHandle};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::access_rules::AccessRules;
use crate::commands::Context;
use crate::config::{Config, ConfigOverrides, ReloadPlan, Row, Service, plan_reload, rows};
use crate::logging::LogFilter;
use crate::service_manager;
use crate::tls::Tls;

/// Reloads the configuration at each SIGHUP.
pub(crate) struct ConfigReloader {
    hangup: Signal,
    service: Service,
    overrides: ConfigOverrides,
    /// Keys set by the service's own command line.
    fixed: Vec<&'static str>,
    /// The configuration file that was read last.
    file: Option<PathBuf>,
    in_force: Vec<Row>,
    log: LogFilter,
    tls: Tls,
    rules: AccessRules,
    audit: AuditLog,
}

impl ConfigReloader {
    /// Installs a handler for SIGHUP, which no longer ends the process.
    pub(crate) fn listen(
        service: Service,
        context: &Context,
        fixed: &[(&'static str, bool)],
    ) -> io::Result<ConfigReloader> {
        Ok(ConfigReloader {
            hangup: signal(SignalKind::hangup())?,
            service,
            overrides: context.overrides.clone(),
            fixed: fixed.iter().filter(|(_, is_set)| *is_set).map(|(key, _)| *key).collect(),
            file: context.config.file.as_ref().map(|file| file.value.clone()),
            in_force: rows(&context.config),
            log: context.log.clone(),
            tls: context.tls.clone(),
            rules: context.rules.clone(),
            audit: context.audit.clone(),
        })
    }

    /// Serves until the program ends. A publisher has no limits to change.
    pub(crate) async fn run(mut self, limits: Option<LimitsHandle>) {
        while self.hangup.recv().await.is_some() {
            service_manager::reloading().await;
            // Whatever the configuration is: the file may have been renamed.
            self.audit.reopen();
            let status = match self.reload(limits.as_ref()).await {
                Ok(unusable) if unusable.is_empty() => "the configuration is reloaded".to_owned(),
                Ok(unusable) => {
                    let unusable = unusable.join("; ");
                    tracing::error!("SIGHUP: {unusable}; everything else is reloaded");
                    format!("the configuration is reloaded, except for {unusable}")
                }
                Err(error) => {
                    tracing::error!("SIGHUP: {error}; nothing has changed");
                    format!("the configuration is not reloaded: {error}")
                }
            };
            service_manager::ready(status);
        }
    }

    /// Reloads what may change. Certificates and rules that cannot be used do not keep the rest
    /// from changing, such as the log filter: they are returned, and what was read before is used.
    async fn reload(&mut self, limits: Option<&LimitsHandle>) -> Result<Vec<String>, String> {
        let config = Config::load(&self.overrides).map_err(|error| error.to_string())?;
        let file = config.file.as_ref().map(|file| file.value.clone());
        // Do not fall back to the defaults or to a file at another default location.
        let is_gone = |last: &&PathBuf| file.as_ref() != Some(*last) && !last.exists();
        if let Some(gone) = self.file.as_ref().filter(is_gone) {
            return Err(format!("the configuration file {} is gone", gone.display()));
        }
        self.file = file;
        let certificates = self.tls.reload().await.map_err(|why| format!("TLS: {why}"));
        let rules = self.rules.reload().await.map_err(|why| format!("access: {why}"));
        let unusable = [certificates, rules].into_iter().filter_map(Result::err).collect();
        let read = rows(&config);
        let plan = plan_reload(self.service, &self.fixed, &self.in_force, &read);
        let filter = config.log.value.as_deref();
        if let Some(limits) = limits {
            limits.set(config.limits()).await;
        }
        // The report has to pass one of the two filters: log it under the old one if that lets it
        // through, otherwise under the new one.
        let log_first = is_enabled(&plan);
        if log_first {
            log(&config, &plan);
        }
        if plan.live.iter().any(|change| change.key == "log") {
            self.log.set(filter)?;
        }
        if !log_first {
            log(&config, &plan);
        }
        for (old, new) in self.in_force.iter_mut().zip(read) {
            if plan.live.iter().any(|change| change.key == new.key) {
                *old = new;
            }
        }
        Ok(unusable)
    }
}

/// Whether the current log filter lets the report through.
fn is_enabled(plan: &ReloadPlan) -> bool {
    match plan.restart.is_empty() {
        true => tracing::enabled!(tracing::Level::INFO),
        false => tracing::enabled!(tracing::Level::WARN),
    }
}

fn log(config: &Config, plan: &ReloadPlan) {
    let file = config.file.as_ref().map(|file| file.value.display().to_string());
    let file = file.unwrap_or_else(|| "no configuration file".to_owned());
    match plan.restart.is_empty() {
        true => tracing::info!("SIGHUP: {file}: {plan}"),
        false => tracing::warn!("SIGHUP: {file}: {plan}"),
    }
}
