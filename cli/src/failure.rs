//! How a command ends when it does not end well. 0 is done, 1 refused or failed, 2 wrong usage.

use std::fmt;
use std::process::ExitCode;

/// The command line or the configuration asks for something that does not exist: exit code 2.
#[derive(Debug)]
pub(crate) struct WrongUsage(pub String);

impl fmt::Display for WrongUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongUsage {}

/// The command has already said what is wrong: exit code 1, and not another word.
#[derive(Debug)]
pub(crate) struct Reported;

impl fmt::Display for Reported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("failed, as reported above")
    }
}

impl std::error::Error for Reported {}

/// Prints why, if nobody has yet, and says which exit code it is.
pub(crate) fn exit_code(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    if is_broken_pipe(&error) {
        // The reader of our output, `head` for one, has seen enough.
        return ExitCode::SUCCESS;
    }
    if !error.is::<Reported>() {
        eprintln!("error: {error:#}");
    }
    ExitCode::from(if error.is::<WrongUsage>() { 2 } else { 1 })
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
