//! `longshore`, the program.

#[macro_use]
mod diagnostics;
mod access_rules;
mod arguments;
mod backoff;
mod certificates;
#[cfg(any(feature = "bench", feature = "demo"))]
mod child;
mod commands;
mod completion;
mod config;
mod confirmation;
mod deadline;
mod failure;
mod files;
mod limit;
mod logging;
mod output;
mod registration;
mod reload;
mod repeated_warning;
mod schedule;
#[cfg(test)]
mod schema;
mod service_manager;
mod signals;
mod time;
mod tls;
mod token_store;
mod unique;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::FromArgMatches as _;
use longshore::AuditLog;

use crate::access_rules::AccessRules;
use crate::arguments::{Check, Command, CommandKind, CommandLine};
use crate::commands::Context;
use crate::config::{Config, Origin, Problem};
use crate::deadline::Deadline;
use crate::failure::{Failure, FailureKind, UsageError};
use crate::logging::{LogFilter, LogFormat};
use crate::output::Output;
use crate::tls::Tls;

fn main() -> ExitCode {
    completion::answer_shell();
    let parsed = arguments::command().try_get_matches();
    let line = match parsed.and_then(|matches| CommandLine::from_arg_matches(&matches)) {
        Ok(line) => line,
        // Clap exits with 2, which Nagios reads as critical; 3 is "unknown".
        Err(error)
            if error.use_stderr() && is_for_nagios(&std::env::args_os().collect::<Vec<_>>()) =>
        {
            return commands::check::unknown(&error.to_string());
        }
        Err(error)
            if error.use_stderr() && wants_json(&std::env::args_os().collect::<Vec<_>>()) =>
        {
            return failure::invalid_command_line(&error);
        }
        Err(error) => error.exit(),
    };
    if let Command::Check(Check { nagios: true }) = line.command {
        return run(line).map_or_else(
            |why| commands::check::unknown(&failure::with_causes(&why)),
            |()| ExitCode::SUCCESS,
        );
    }
    diagnostics::set_json(line.global.json);
    failure::exit_code(run(line))
}

/// Whether a command line that failed to parse was meant as `check --nagios`.
fn is_for_nagios(arguments: &[OsString]) -> bool {
    ["check", "--nagios"].iter().all(|word| arguments.iter().any(|argument| argument == word))
}

/// Whether a command line that failed to parse asks for JSON.
fn wants_json(arguments: &[OsString]) -> bool {
    arguments.iter().take_while(|argument| *argument != "--").any(|argument| argument == "--json")
}

fn run(line: CommandLine) -> anyhow::Result<()> {
    let overrides = line.global.config_overrides(&line.command);
    let deadline = Deadline::start(line.global.timeout(line.command.kind())?);
    // These commands show or repair what is wrong, or make files that the configuration names.
    let (config, mut problems) = match line.command {
        Command::Config { .. }
        | Command::Context(_)
        | Command::Cert(_)
        | Command::Token(_)
        | Command::Access(_) => Config::load_with_problems(&overrides),
        _ => (
            Config::load(&overrides)
                .map_err(|UsageError(why)| Failure::new(FailureKind::Configuration, why))?,
            Vec::new(),
        ),
    };
    let default_filter = line.command.default_log_filter();
    let format = match (&config.log_format.origin, line.global.json) {
        // With --json, each line of standard error is an object.
        (Origin::Default, true) => LogFormat::Json,
        _ => config.log_format.value,
    };
    let log = LogFilter::start(config.log.value.as_deref(), default_filter, format)?;
    let output = Output::new(line.global.json, line.command.goes_on_without_output());
    let tls = match (Tls::load(&config), &line.command) {
        (Ok(tls), _) => tls,
        (Err(UsageError(why)), Command::Config { .. }) => {
            problems.push(Problem::of_several_keys(why));
            Tls::default()
        }
        (Err(_), command) if command.kind() == CommandKind::Local => Tls::default(),
        (Err(UsageError(why)), _) => {
            return Err(Failure::new(FailureKind::Configuration, why).into());
        }
    };
    let has_dev_tls = matches!(&line.command, Command::Up(up) if up.tls_dev);
    if line.command.listens() && !has_dev_tls {
        config
            .check_access()
            .map_err(|UsageError(why)| Failure::new(FailureKind::Configuration, why))?;
    }
    let rules = match AccessRules::load(&config.access) {
        Ok(rules) => rules,
        Err(UsageError(why)) if line.command.listens() => {
            return Err(Failure::new(FailureKind::Configuration, why).into());
        }
        Err(UsageError(why)) => {
            if matches!(line.command, Command::Config { .. }) {
                problems.push(Problem::of_several_keys(why));
            }
            AccessRules::default()
        }
    };
    // Other commands leave the file alone: a service of this machine writes it.
    let audit = match &config.access.audit.value {
        Some(file) if line.command.listens() => AuditLog::open(file)
            .map_err(|error| Failure::new(FailureKind::Configuration, error.to_string()))?,
        _ => AuditLog::default(),
    };
    let of_services = audit.clone();
    let links_within_seconds = false;
    let context = Context {
        config,
        problems,
        output,
        overrides,
        log,
        deadline,
        links_within_seconds,
        tls,
        rules,
        audit,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(commands::run(line.command, context));
    // Do not wait for threads that still block, for example on a read from a terminal.
    runtime.shutdown_background();
    of_services.close();
    result
}
