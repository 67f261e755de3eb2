//! Longshore beside its peers: the same work, in the same run, in turns, each side in processes of
//! its own.

mod comparison;
mod machine;
mod numbers;
mod part;
mod resolver;
mod side;
mod values;

use std::process::ExitCode;

const USAGE: &str = "\
longshore-bench resolver [OPTION]…    Longshore's resolver beside netidx's; --help tells the options
longshore-bench values [OPTION]…      Longshore's live values beside netidx's";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["resolver", ref asked @ ..] => resolver::command(asked),
        ["values", ref asked @ ..] => values::command(asked),
        // What this program starts itself as.
        ["part", "resolver", task] => resolver::part(task),
        ["part", "values", task] => values::part(task),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
