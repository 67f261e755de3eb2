//! How a command ends when it does not end well. 0 is done, 1 refused or failed, 2 wrong usage, 128
//! and its number after a signal.

use std::fmt;
use std::process::ExitCode;

use crate::signals::stopped_now;

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

/// A signal has kept the command from its work: its exit code, 128 and the signal's number, and not
/// another word.
#[derive(Debug)]
pub(crate) struct Interrupted(pub u8);

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Prints why, if nobody has yet, and says which exit code it is.
pub(crate) fn exit_code(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::from(stopped_now().unwrap_or(0)) };
    if is_broken_pipe(&error) {
        // The reader of our output, `head` for one, has seen enough.
        return ExitCode::SUCCESS;
    }
    if let Some(Interrupted(code)) = error.downcast_ref() {
        return ExitCode::from(*code);
    }
    if !error.is::<Reported>() {
        eprintln!("error: {error:#}");
    }
    let failed = if error.is::<WrongUsage>() { 2 } else { 1 };
    ExitCode::from(stopped_now().unwrap_or(failed))
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
