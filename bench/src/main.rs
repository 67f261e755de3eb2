//! Compares Longshore with other systems: the same work, alternating in the same run, with each
//! system in its own processes.

mod child_process;
mod comparison;
mod machine;
mod numbers;
mod resolver;
mod system;
mod values;

use std::process::ExitCode;

const USAGE: &str = "\
longshore-bench resolver [OPTION]…    compares the resolvers of Longshore and netidx
longshore-bench values [OPTION]…      compares the live values of Longshore and netidx
--help lists the options of either";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["resolver", ref options @ ..] => resolver::command(options),
        ["values", ref options @ ..] => values::command(options),
        // This program starts itself with these arguments.
        ["child", "resolver", task] => resolver::run_child(task),
        ["child", "values", task] => values::run_child(task),
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
