//! Longshore's chores. `cargo xtask test` runs everything that has to hold before a change is
//! taken.

mod bench;
mod count;
#[cfg(test)]
mod documents;
mod flaky;
mod mutants;
mod report;
mod test;

use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask test [--long]                      formatting, clippy, all tests (they run the examples) and doc tests
cargo xtask count [--bless]                    instructions, allocations and system calls of a job and of a value
cargo xtask flaky [--minutes N]                every test in random order beside a busy machine, for an hour
cargo xtask mutants [--list] [--only NAME]… [--since REV]
                                               plants faults one after another; the suite has to fail on each
cargo xtask bench resolver [OPTION]…           Longshore's resolver beside netidx's; --help tells the options
cargo xtask bench values [OPTION]…             Longshore's live values beside netidx's";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["test", ref asked @ ..] => test::command(asked),
        ["count", ref asked @ ..] => count::command(asked),
        ["flaky", ref asked @ ..] => flaky::command(asked),
        ["mutants", ref asked @ ..] => mutants::command(asked),
        ["bench", "resolver" | "values", ..] => bench::command(&words[1..]),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}
