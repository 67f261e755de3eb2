//! Exit codes: 0 success, 1 failed or refused, 2 wrong usage, 128 + N after signal N.

use std::fmt;
use std::process::ExitCode;

use crate::signals::forced_exit_code;

/// The command line or the configuration is invalid: exit code 2.
#[derive(Debug)]
pub(crate) struct UsageError(pub String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// The command has already printed its error: exit code 1 without a further message.
#[derive(Debug)]
pub(crate) struct AlreadyReported;

impl fmt::Display for AlreadyReported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("failed, as reported above")
    }
}

impl std::error::Error for AlreadyReported {}

/// A signal interrupted the command: its exit code, 128 + the signal's number. Nothing is printed.
#[derive(Debug)]
pub(crate) struct Interrupted(pub u8);

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Prints the error, unless it was already printed, and returns the exit code.
pub(crate) fn exit_code(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::from(forced_exit_code().unwrap_or(0)) };
    if is_broken_pipe(&error) {
        // The reader of our output, for example `head`, has closed the pipe.
        return ExitCode::SUCCESS;
    }
    if let Some(Interrupted(code)) = error.downcast_ref() {
        return ExitCode::from(*code);
    }
    if !error.is::<AlreadyReported>() {
        eprintln!("error: {error:#}");
    }
    let failed = if error.is::<UsageError>() { 2 } else { 1 };
    ExitCode::from(forced_exit_code().unwrap_or(failed))
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
