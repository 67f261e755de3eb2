//! Longshore's development tasks. `cargo xtask test` runs every check that a change must pass.

mod api;
mod bench;
mod cargo;
mod count;
#[cfg(test)]
mod documents;
mod flaky;
mod mutants;
#[cfg(test)]
mod profiles;
mod report;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Longshore's development tasks.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct CommandLine {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run formatting, clippy, all tests and doc tests
    Test {
        /// Many more seeds and full lengths: hours
        #[arg(long)]
        long: bool,
    },
    /// Count instructions, allocations and system calls per job, value and path
    Count {
        /// Accept the numbers
        #[arg(long)]
        bless: bool,
    },
    /// Run all tests in random order on a busy machine
    Flaky {
        /// For how long; the last round always finishes
        #[arg(long, default_value_t = 60, value_name = "N")]
        minutes: u64,
    },
    /// Plant one fault at a time; the suite must fail on each
    Mutants(mutants::Options),
    /// Compare the public items with the last release
    Api {
        /// Compare with this revision
        #[arg(long, value_name = "REV")]
        since: Option<String>,
    },
    /// Compare Longshore with netidx
    #[command(subcommand, disable_help_subcommand = true)]
    Bench(Bench),
}

#[derive(Subcommand)]
enum Bench {
    /// Resolvers
    #[command(disable_help_flag = true)]
    Resolver(BenchOptions),
    /// Live values
    #[command(disable_help_flag = true)]
    Values(BenchOptions),
}

#[derive(clap::Args)]
struct BenchOptions {
    /// Options of the benchmark; --help lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    options: Vec<String>,
}

fn main() -> ExitCode {
    let done = match CommandLine::parse().task {
        Task::Test { long } => test::run_all(long),
        Task::Count { bless } => count::count(bless),
        Task::Flaky { minutes } => flaky::repeat(minutes),
        Task::Mutants(options) => mutants::run_selected(&options),
        Task::Api { since } => api::compare(since),
        Task::Bench(Bench::Resolver(all)) => bench::compare("resolver", &all.options),
        Task::Bench(Bench::Values(all)) => bench::compare("values", &all.options),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        // It printed why.
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn options_of_a_benchmark_are_passed_on() {
        CommandLine::command().debug_assert();
        let line = ["cargo xtask", "bench", "values", "--help", "--paths", "7"];
        let Task::Bench(Bench::Values(all)) = CommandLine::parse_from(line).task else { panic!() };
        assert_eq!(all.options, ["--help", "--paths", "7"]);
    }
}
