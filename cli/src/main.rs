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

use std::process::ExitCode;

use clap::Parser;

use crate::arguments::CommandLine;
use crate::commands::Context;
use crate::config::Config;
use crate::logging::LogFilter;
use crate::output::Output;

fn main() -> ExitCode {
    failure::exit_code(run(CommandLine::parse()))
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
