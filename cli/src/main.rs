//! `longshore`, the program.

mod arguments;
mod backoff;
mod child;
mod commands;
mod config;
mod failure;
mod logging;
mod output;
mod reload;
mod signals;
mod time;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use crate::arguments::{Check, Command, CommandLine};
use crate::commands::Context;
use crate::config::Config;
use crate::logging::LogFilter;
use crate::output::Output;

fn main() -> ExitCode {
    let line = match CommandLine::try_parse() {
        Ok(line) => line,
        // Nagios has a code of its own for what cannot be checked: 2 would be critical.
        Err(error)
            if error.use_stderr() && is_for_nagios(&std::env::args_os().collect::<Vec<_>>()) =>
        {
            return commands::check::unknown(&error.to_string());
        }
        Err(error) => error.exit(),
    };
    if let Command::Check(Check { nagios: true }) = line.command {
        return run(line).map_or_else(
            |why| commands::check::unknown(&format!("{why:#}")),
            |()| ExitCode::SUCCESS,
        );
    }
    failure::exit_code(run(line))
}

/// Whether a command line that does not parse is that of `check --nagios`.
fn is_for_nagios(arguments: &[OsString]) -> bool {
    ["check", "--nagios"].iter().all(|word| arguments.iter().any(|argument| argument == word))
}

fn run(line: CommandLine) -> anyhow::Result<()> {
    let config = Config::load(&line.global.given())?;
    let usual = line.command.usual_log();
    let log = LogFilter::start(config.log.value.as_deref(), usual)?;
    let (output, given) = (Output::new(line.global.json), line.global.given());
    let context = Context { config, output, given, log };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(commands::run(line.command, context));
    // What still blocks, a read from a terminal for one, has nothing to add.
    runtime.shutdown_background();
    result
}
