//! The question before a command that cannot be undone.
//!
//! The rule: a command asks before it deletes or ends what it was not given by name, that is, jobs
//! that a pattern selects, and before it gives up a publisher with its jobs. What is named by its
//! id, or can be undone, is done at once. With `--json` nothing is asked: a program reads it.

use std::io::{self, IsTerminal, Write};

use clap::Args;

use crate::deadline::Deadline;
use crate::diagnostics;
use crate::failure::{Failure, FailureKind};

/// Flags of the commands that ask.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct Confirmation {
    /// Do it without a question
    #[arg(long, short)]
    pub(crate) yes: bool,
}

/// Whether to ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Consent {
    Given,
    /// Ask on the terminal.
    Ask,
    /// There is nobody to ask.
    Refused,
}

/// Decides whether to ask.
pub(crate) fn consent(yes: bool, dry_run: bool, can_ask: bool) -> Consent {
    match (yes || dry_run, can_ask) {
        (true, _) => Consent::Given,
        (false, true) => Consent::Ask,
        (false, false) => Consent::Refused,
    }
}

impl Confirmation {
    /// Whether to ask, or the error that names `--yes`. `what` is the act: `purge jobs`.
    pub(crate) fn needs_question(self, dry_run: bool, what: &str) -> Result<bool, Failure> {
        // The question is on standard error, the answer on standard input.
        let has_terminal = io::stdin().is_terminal() && io::stderr().is_terminal();
        let is_json = diagnostics::are_json();
        match consent(self.yes, dry_run, has_terminal && !is_json) {
            Consent::Given => Ok(false),
            Consent::Ask => Ok(true),
            Consent::Refused => {
                let reason = match is_json {
                    true => "--json asks no question",
                    false => "there is no terminal to ask on",
                };
                let why = format!("to {what} cannot be undone, and {reason}");
                Err(Failure::new(FailureKind::Unconfirmed, why)
                    .with_hint("add --yes to do it, or --dry-run to see what it would do"))
            }
        }
    }
}

/// Asks on the terminal; an error unless the answer is yes. Waits without a limit.
pub(crate) async fn ask(question: &str, deadline: &Deadline) -> anyhow::Result<()> {
    deadline.pause();
    let mut stderr = io::stderr();
    write!(stderr, "{question} [y/N] ")?;
    stderr.flush()?;
    // A thread of its own: the runtime would wait for a blocked read at its shutdown.
    let (sender, answer) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = io::stdin().read_line(&mut line);
        let _ = sender.send(read.map(|_| line));
    });
    let answer = answer.await??;
    deadline.restart();
    if is_yes(&answer) {
        return Ok(());
    }
    if !answer.ends_with('\n') {
        // Standard input ended on the line of the question.
        writeln!(stderr)?;
    }
    Err(Failure::new(FailureKind::Declined, "not confirmed: nothing was changed").into())
}

/// Whether an answer is yes.
fn is_yes(answer: &str) -> bool {
    ["y", "yes"].contains(&answer.trim().to_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_a_dry_run_or_an_answer_lets_a_command_destroy() {
        for (yes, dry_run, can_ask, expected) in [
            (true, false, false, Consent::Given),
            (true, false, true, Consent::Given),
            (false, true, false, Consent::Given),
            (false, true, true, Consent::Given),
            (false, false, true, Consent::Ask),
            (false, false, false, Consent::Refused),
        ] {
            assert_eq!(consent(yes, dry_run, can_ask), expected);
        }
        for answer in ["y\n", "Y\n", "yes\r\n", " Yes \n"] {
            assert!(is_yes(answer), "{answer:?}");
        }
        for answer in ["", "\n", "n\n", "no\n", "ye\n", "yes please\n"] {
            assert!(!is_yes(answer), "{answer:?}");
        }
    }
}
