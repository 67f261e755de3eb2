//! `longshore`, the program.

mod arguments;
mod backoff;
mod child;
mod commands;
mod config;
mod failure;
mod output;
mod signals;
mod time;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use crate::arguments::CommandLine;
use crate::commands::Context;
use crate::config::Config;
use crate::failure::WrongUsage;
use crate::output::Output;

fn main() -> ExitCode {
    failure::exit_code(run(CommandLine::parse()))
}

fn run(line: CommandLine) -> anyhow::Result<()> {
    let config = Config::load(&line.global.given())?;
    let usual = line.command.usual_log();
    start_logging(config.log.value.as_deref().unwrap_or(usual))?;
    let context = Context { config, output: Output::new(line.global.json) };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(commands::run(line.command, context));
    // What still blocks, a read from a terminal for one, has nothing to add.
    runtime.shutdown_background();
    result
}

fn start_logging(filter: &str) -> Result<(), WrongUsage> {
    let filter = EnvFilter::try_new(filter).map_err(|error| {
        WrongUsage(format!(
            "log filter '{filter}': {error}; expected error, warn, info, debug or trace"
        ))
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    Ok(())
}
