//! Checks all that commands print with `--json` against the schema.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test helpers outside of test functions")]

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::{Mutex, MutexGuard};

use serde_json::{Deserializer, Value};

use super::schema;

/// The options of every command that take a value.
const WITH_VALUE: [&str; 6] =
    ["--resolver", "--context", "--config", "--log", "--log-format", "--timeout"];

/// The commands whose output this process has checked.
static CHECKED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

pub(crate) fn checked() -> MutexGuard<'static, BTreeSet<String>> {
    CHECKED.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// What a command is to print.
#[derive(Default)]
pub(crate) struct OutputChecks {
    /// The command in the schema; none if standard output is not JSON.
    command: Option<String>,
    /// Whether lines of standard error are JSON.
    errors: bool,
}

impl OutputChecks {
    pub(crate) fn of(command: &Command) -> OutputChecks {
        let words: Vec<&str> = command.get_args().map_while(|word| word.to_str()).collect();
        let words: Vec<&str> = words.into_iter().take_while(|word| *word != "--").collect();
        let has = |word: &str| words.contains(&word);
        let is_json = has("--json") && command.get_program() == env!("CARGO_BIN_EXE_longshore");
        if !is_json {
            return OutputChecks::default();
        }
        // These print the bytes themselves.
        let is_raw = has("--result") || (has("job") && has("--payload"));
        let command = command_of(&words).filter(|_| !is_raw);
        OutputChecks { command, errors: !has("--log-format") }
    }

    /// Checks some output: whole values.
    #[track_caller]
    pub(crate) fn stdout(&self, text: &str) {
        let Some(command) = &self.command else { return };
        for value in Deserializer::from_str(text).into_iter::<Value>() {
            let value = value.unwrap_or_else(|error| panic!("{command}: {error}: {text}"));
            schema::check(command, &value);
            checked().insert(command.clone());
        }
    }

    /// Checks lines of standard error. Those of other programs may be text.
    #[track_caller]
    pub(crate) fn stderr(&self, text: &str) {
        let lines = text.lines().filter(|line| self.errors && line.starts_with('{'));
        for line in lines {
            let value = serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {line}"));
            schema::check("Stderr", &value);
        }
    }
}

/// The words of a command line that name a command of the schema.
fn command_of(words: &[&str]) -> Option<String> {
    let mut names = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if WITH_VALUE.contains(word) {
            words.next();
        } else if !word.starts_with('-') {
            names.push(*word);
        }
    }
    let one = names.first().map(|name| (*name).to_owned());
    let two = names.get(..2).map(|names| names.join(" "));
    two.into_iter().chain(one).find(|name| schema::commands().any(|command| command == name))
}
