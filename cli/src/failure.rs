//! Why a command ended: its error on standard error, as text or JSON, and its exit code.

use std::fmt;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use longshore::{JobLookupError, QueuesError};

use crate::diagnostics::{self, error_json, print_line};
use crate::output::{OutputClosed, printable_json, printable_lines};
use crate::signals::forced_exit_code;

/// The kind of a failure. Each has a code for programs, and an exit code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FailureKind {
    /// The command line is invalid.
    Usage,
    /// The configuration is invalid.
    Configuration,
    /// The command needs `--yes`: it cannot ask.
    Unconfirmed,
    /// The question was not answered with yes.
    Declined,
    /// No replica of the resolver can be reached.
    Unreachable,
    /// `--timeout` has passed.
    TimedOut,
    /// What the command names does not exist.
    NotFound,
    /// Any other failure or refusal.
    Failed,
}

impl FailureKind {
    /// Its code in JSON.
    pub(crate) fn code(self) -> &'static str {
        match self {
            FailureKind::Usage => "usage",
            FailureKind::Configuration => "configuration",
            FailureKind::Unconfirmed => "unconfirmed",
            FailureKind::Declined => "declined",
            FailureKind::Unreachable => "unreachable",
            FailureKind::TimedOut => "timed_out",
            FailureKind::NotFound => "not_found",
            FailureKind::Failed => "failed",
        }
    }

    /// The exit code: 1 failed or refused, 2 wrong usage, 3 no answer in time.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            FailureKind::Usage | FailureKind::Configuration | FailureKind::Unconfirmed => 2,
            FailureKind::Unreachable | FailureKind::TimedOut => 3,
            FailureKind::Declined | FailureKind::NotFound | FailureKind::Failed => 1,
        }
    }

    fn of(error: &anyhow::Error) -> FailureKind {
        if let Some(failure) = error.downcast_ref::<Failure>() {
            return failure.kind;
        }
        if error.is::<UsageError>() {
            return FailureKind::Usage;
        }
        match (error.downcast_ref::<QueuesError>(), error.downcast_ref::<JobLookupError>()) {
            (Some(QueuesError::Resolver(_)), _)
            | (_, Some(JobLookupError::Queues(QueuesError::Resolver(_)))) => {
                FailureKind::Unreachable
            }
            (_, Some(JobLookupError::NotFound { .. })) => FailureKind::NotFound,
            _ => FailureKind::Failed,
        }
    }
}

/// An error with its kind, and with a remedy apart from its message.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

impl Failure {
    /// A failure without a hint.
    pub(crate) fn new(kind: FailureKind, message: impl Into<String>) -> Failure {
        Failure { kind, message: message.into(), hint: None }
    }

    /// The same with a hint.
    pub(crate) fn with_hint(self, hint: impl Into<String>) -> Failure {
        Failure { hint: Some(hint.into()), ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.hint {
            Some(hint) => write!(f, "{}\n{hint}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for Failure {}

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
        f.write_str("not all of it was done, or known; see the output")
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
    let kind = FailureKind::of(&error);
    if diagnostics::are_json() {
        // With JSON, every failure has its line on standard error.
        if !error.is::<AlreadyReported>() || !diagnostics::error_was_printed() {
            let (message, hint) = match error.downcast_ref::<Failure>() {
                Some(failure) => (failure.message.clone(), failure.hint.as_deref()),
                None => (with_causes(&error), None),
            };
            let json = error_json(kind.code(), &message, hint).to_string();
            print_line(printable_json(&json).into_owned());
        }
    } else if !error.is::<AlreadyReported>() {
        // Its text may contain what a server or a publisher sent.
        print_line(printable_lines(&format!("error: {}", with_causes(&error))));
    }
    ExitCode::from(forced_exit_code().unwrap_or(kind.exit_code()))
}

/// The error and its causes. Many texts end with that of their cause already.
pub(crate) fn with_causes(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |all, text| match all.as_str() {
        "" => text,
        all if all.ends_with(&text) => all.to_owned(),
        _ => format!("{all}: {text}"),
    })
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<std::io::Error>();
    error.and_then(|error| error.get_ref()).is_some_and(|error| error.is::<OutputClosed>())
}

/// Prints an error of the command line as JSON, and returns its exit code.
pub(crate) fn invalid_command_line(error: &clap::Error) -> ExitCode {
    let (message, hint) = parts(error);
    let json = error_json(FailureKind::Usage.code(), &message, hint.as_deref()).to_string();
    print_line(printable_json(&json).into_owned());
    ExitCode::from(FailureKind::Usage.exit_code())
}

/// The message and the usage of an error of the command line.
fn parts(error: &clap::Error) -> (String, Option<String>) {
    let text = error.render().to_string();
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return ("a subcommand is missing".to_owned(), Some("--help lists them".to_owned()));
    }
    let message = text.strip_prefix("error: ").unwrap_or(&text);
    let message = message.split("\n\nUsage:").next().unwrap_or(message);
    let message = message.split("\n\nFor more information").next().unwrap_or(message);
    let usage = match error.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(usage)) => Some(usage.to_string().trim().to_owned()),
        _ => None,
    };
    (message.trim_end().to_owned(), usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_failure_has_its_codes() {
        let anyhow = |kind| anyhow::Error::new(Failure::new(kind, "why")).context("while");
        for (error, code, exit) in [
            (UsageError("wrong".into()).into(), "usage", 2),
            (anyhow(FailureKind::Unconfirmed), "unconfirmed", 2),
            (anyhow(FailureKind::Declined), "declined", 1),
            (anyhow(FailureKind::TimedOut), "timed_out", 3),
            (QueuesError::Resolver(Default::default()).into(), "unreachable", 3),
            (
                JobLookupError::NotFound { id: longshore::new_id(), asked: Vec::new() }.into(),
                "not_found",
                1,
            ),
            (anyhow::anyhow!("disk full"), "failed", 1),
        ] {
            let kind = FailureKind::of(&error);
            assert_eq!((kind.code(), kind.exit_code()), (code, exit), "{error:?}");
        }
    }

    #[test]
    fn a_cause_is_shown_once() {
        let chain = |texts: &[&'static str]| {
            let (first, outer) = texts.split_first().unwrap();
            let error =
                outer.iter().fold(anyhow::anyhow!(*first), |error, text| error.context(*text));
            with_causes(&error)
        };
        assert_eq!(chain(&["late", "not written: late"]), "not written: late");
        let texts = ["disk full", "cannot write a", "not stored: cannot write a"];
        assert_eq!(chain(&texts), "not stored: cannot write a: disk full");
        assert_eq!(chain(&["disk full"]), "disk full");
    }

    #[test]
    fn usage_errors_have_a_message_and_the_usage_as_their_hint() {
        let line = ["longshore", "purge", "/jobs/a"];
        let error = crate::arguments::command().try_get_matches_from(line).unwrap_err();
        let (message, hint) = parts(&error);
        assert!(message.contains("--state") && !message.contains("Usage"), "{message}");
        assert!(hint.is_some_and(|hint| hint.contains("longshore purge")), "{error}");
    }
}
