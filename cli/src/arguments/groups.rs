//! The commands by group, as `longshore --help` lists them.

use std::fmt::Write as _;

use clap::{Command, CommandFactory};

use super::CommandLine;
use super::examples;

const GROUPS: [(&str, &[&str]); 5] = [
    ("Start", &["demo", "up", "resolver", "publisher"]),
    ("Jobs", &["enqueue", "work", "jobs", "job", "tail", "confirm", "cancel", "dead", "purge"]),
    (
        "Queues and workers",
        &["stat", "queue", "limit", "cron", "batch", "pause", "resume", "workers"],
    ),
    ("Directory and live values", &["directory", "home", "value"]),
    (
        "Operate",
        &[
            "top",
            "check",
            "journal",
            "config",
            "context",
            "cert",
            "token",
            "access",
            "completions",
            "bench",
        ],
    ),
];

/// Of the whole program: its commands, then its options.
const TEMPLATE: &str =
    "{about}\n\n{usage-heading} {usage}\n\n{before-help}Options:\n{options}{after-help}";
/// Of one command: the examples come before the options.
const COMMAND_TEMPLATE: &str =
    "{about-with-newline}\n{usage-heading} {usage}{after-help}\n\n{all-args}";

/// The command line, with its commands by group.
pub(crate) fn command() -> Command {
    let command = CommandLine::command();
    let groups = grouped(&command);
    let first_steps = format!(
        "{}\n\nlongshore help COMMAND shows one command.\n\
         Exit codes: 0 done; 1 refused or failed; 2 wrong usage; 3 no answer in time; 128 + N after \
         signal N.",
        examples::first_steps()
    );
    with_examples(command, "").help_template(TEMPLATE).before_help(groups).after_help(first_steps)
}

/// The command with examples in the help of those below it.
fn with_examples(command: Command, above: &str) -> Command {
    command.mut_subcommands(|one| {
        let name = format!("{above}{}", one.get_name());
        let one = with_examples(one, &format!("{name} "));
        match examples::of(&name) {
            Some(text) => one.after_help(text).help_template(COMMAND_TEMPLATE),
            None => one,
        }
    })
}

fn grouped(command: &Command) -> String {
    let mut text = String::new();
    for (heading, names) in GROUPS {
        let _ = writeln!(text, "{heading}:");
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {name:<11} {about}");
        }
        text.push('\n');
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_is_in_one_group() {
        let command = CommandLine::command();
        let visible = command.get_subcommands().filter(|command| !command.is_hide_set());
        let mut names: Vec<&str> = visible.map(Command::get_name).collect();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        names.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(names, grouped);
    }
}
