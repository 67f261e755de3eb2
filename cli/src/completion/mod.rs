//! Completions for shells, and man pages, from the same definitions as the command line.
//!
//! A shell's script runs this program with [`VARIABLE`] set and the typed words as arguments; it
//! prints the candidates. Paths, workers, publishers and contexts come from the running system.

mod candidates;

use std::path::Path;

use anyhow::Context as _;
use clap::{Arg, Command, ValueEnum};
use clap_complete::engine::{ArgValueCompleter, ValueCompleter};
use clap_complete::env::{Bash, CompleteEnv, EnvCompleter, Fish, Powershell, Zsh};

use crate::arguments;
use crate::output::Output;

/// Set to the shell's name while it completes.
const VARIABLE: &str = "LONGSHORE_COMPLETE";
const PROGRAM: &str = "longshore";

/// The shells that can complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
    Powershell,
}

/// If a shell asks for candidates, prints them and ends the program.
pub(crate) fn answer_shell() {
    CompleteEnv::with_factory(completed_command).var(VARIABLE).bin(PROGRAM).complete();
}

/// Prints a shell's script.
pub(crate) fn print_script(shell: Shell, output: &mut Output) -> anyhow::Result<()> {
    let completer: &dyn EnvCompleter = match shell {
        Shell::Bash => &Bash,
        Shell::Zsh => &Zsh,
        Shell::Fish => &Fish,
        Shell::Powershell => &Powershell,
    };
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut script)?;
    output.raw(&script)?;
    Ok(())
}

/// Writes a man page per command into a folder.
pub(crate) fn write_man_pages(folder: &Path) -> anyhow::Result<()> {
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(arguments::command(), folder));
    written.with_context(|| format!("cannot write {}", folder.display()))
}

/// The command line, with what completes its values.
fn completed_command() -> Command {
    with_completers(arguments::command())
}

fn with_completers(command: Command) -> Command {
    let complete = |argument: Arg| match completer(&argument) {
        Some(completer) => argument.add(completer),
        None => argument,
    };
    command.mut_args(complete).mut_subcommands(with_completers)
}

/// What completes an argument, by its name.
fn completer(argument: &Arg) -> Option<ArgValueCompleter> {
    fn of(complete: impl ValueCompleter + 'static) -> Option<ArgValueCompleter> {
        Some(ArgValueCompleter::new(complete))
    }
    match argument.get_id().as_str() {
        "path" | "paths" | "pattern" | "patterns" | "which" => of(candidates::paths),
        "workers" => of(candidates::workers),
        "context" => of(candidates::contexts),
        "publisher" => of(candidates::publishers),
        "tokens" => of(candidates::tokens),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_has_a_script_and_every_command_a_man_page() {
        for shell in Shell::value_variants() {
            print_script(*shell, &mut Output::new(false, false)).unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        write_man_pages(folder.path()).unwrap();
        for (page, words) in [
            ("longshore.1", "SUBCOMMANDS"),
            ("longshore-dead-revive.1", "rate"),
            ("longshore-queue-set.1", "backoff"),
        ] {
            let text = std::fs::read_to_string(folder.path().join(page)).unwrap();
            assert!(text.contains(words), "{page}");
        }
        let hidden = folder.path().join("longshore-bench-worker.1");
        assert!(!hidden.exists());
    }

    #[test]
    fn arguments_that_name_parts_of_the_system_are_completed() {
        let command = completed_command();
        let completes = |names: &[&str], id: &str| {
            let mut command = &command;
            for name in names {
                command = command.find_subcommand(name).unwrap();
            }
            let argument = command.get_arguments().find(|one| one.get_id() == id).unwrap();
            argument.get::<ArgValueCompleter>().is_some()
        };
        assert!(completes(&[], "context"));
        assert!(completes(&["enqueue"], "path") && completes(&["work"], "patterns"));
        assert!(completes(&["queue", "set"], "path") && completes(&["dead", "ls"], "pattern"));
        assert!(completes(&["workers", "quiet"], "workers"));
        assert!(completes(&["publisher", "drain"], "publisher"));
        assert!(completes(&["context", "use"], "context"));
        assert!(completes(&["token", "revoke"], "tokens"));
        assert!(!completes(&["enqueue"], "file"));
    }
}
