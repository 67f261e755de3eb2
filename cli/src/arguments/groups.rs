//! The commands by group, as `longshore --help` lists them.

use std::fmt::Write as _;

use clap::{Command, CommandFactory};

use super::CommandLine;
use super::examples::{self, EXAMPLES};

const GROUPS: [(&str, &[&str]); 5] = [
    ("Start", &["demo", "up", "resolver", "publisher"]),
    ("Jobs", &["enqueue", "work", "jobs", "job", "tail", "confirm", "cancel", "dead", "purge"]),
    ("Queues and workers", &["stat", "queue", "pause", "resume", "workers"]),
    ("Directory and live values", &["directory", "value"]),
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

const TEMPLATE: &str =
    "{about}\n\n{usage-heading} {usage}\n\n{before-help}Options:\n{options}{after-help}";

const FIRST_STEPS: [(&str, &str); 6] = [
    ("longshore demo", "see what it does, in half a minute"),
    ("longshore up", "a whole system here"),
    ("longshore enqueue /jobs/mail 'to: ann'", "a job for a queue"),
    ("longshore work /jobs/mail -- ./send-mail", "a command for each job, its payload on stdin"),
    ("longshore stat", "what waits, runs and failed"),
    ("longshore dead ls", "jobs that failed for good"),
];

/// The command line, with its commands by group.
pub(crate) fn command() -> Command {
    let command = CommandLine::command();
    let groups = grouped(&command);
    let command = EXAMPLES.iter().fold(command, |command, (name, examples)| {
        command.mut_subcommand(name, |one| one.after_help(examples::text(examples)))
    });
    let first_steps = format!(
        "{}\n\nlongshore help COMMAND shows one command.\n\
         Exit codes: 0 done; 1 refused or failed; 2 wrong usage; 3 no answer in time; 128 + N after \
         signal N.",
        examples::text(&FIRST_STEPS)
    );
    command.help_template(TEMPLATE).before_help(groups).after_help(first_steps)
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
