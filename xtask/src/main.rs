//! Longshore's development tasks. `cargo xtask test` runs every check that a change must pass.

mod api;
mod bench;
mod cargo;
mod count;
#[cfg(test)]
mod documents;
mod flaky;
mod mutants;
mod report;
mod test;

use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask test [--long]             runs formatting, clippy, all tests and doc tests
cargo xtask count [--bless]           counts instructions, allocations and system calls
                                      per job and per value
cargo xtask flaky [--minutes N]       runs all tests in random order on a busy machine, for an hour
cargo xtask mutants [--list] [--only NAME]… [--since REV]
                                      plants one fault at a time; the suite must fail on each
cargo xtask api [--since REV]         compares the public items with the last release, or with REV
cargo xtask bench resolver [OPTION]…  compares the resolvers of Longshore and netidx; has --help
cargo xtask bench values [OPTION]…    compares the live values of Longshore and netidx";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["test", ref options @ ..] => test::command(options),
        ["count", ref options @ ..] => count::command(options),
        ["flaky", ref options @ ..] => flaky::command(options),
        ["mutants", ref options @ ..] => mutants::command(options),
        ["api", ref options @ ..] => api::command(options),
        ["bench", "resolver" | "values", ..] => bench::command(&words[1..]),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
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
