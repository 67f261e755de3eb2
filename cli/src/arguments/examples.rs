//! The examples in the help of each command, from `examples.txt`.

/// `[COMMAND]`, then a line for each example: the command line, two spaces, `#` and its purpose.
const EXAMPLES: &str = include_str!("examples.txt");

/// The first steps, below the list of commands.
const FIRST_STEPS: &str = "\
longshore demo  # see what it does, in half a minute
longshore up  # a whole system here
longshore enqueue /jobs/mail 'to: ann'  # a job for a queue
longshore work /jobs/mail -- ./send-mail  # a command for each job, its payload on stdin
longshore stat  # what waits, runs and failed
longshore dead ls  # jobs that failed for good
";

/// The examples of a command, like `dead revive`; none for a hidden one.
pub(super) fn of(command: &str) -> Option<String> {
    sections().find(|(name, _)| *name == command).map(|(_, lines)| aligned(lines))
}

pub(super) fn first_steps() -> String {
    aligned(FIRST_STEPS)
}

/// Each command with its lines.
fn sections() -> impl Iterator<Item = (&'static str, &'static str)> {
    EXAMPLES.split("\n\n").filter_map(|section| section.strip_prefix('[')?.split_once("]\n"))
}

/// Each example: a command line, and its purpose.
fn examples(lines: &str) -> impl Iterator<Item = (&str, &str)> {
    lines.lines().map(|line| line.split_once("  # ").unwrap_or((line, "")))
}

/// The examples, their purposes in one column.
fn aligned(lines: &str) -> String {
    let width = examples(lines).map(|(line, _)| line.len()).max().unwrap_or_default();
    let lines = examples(lines).map(|(line, what)| format!("\n  {line:<width$}  # {what}"));
    format!("Examples:{}", lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use clap::{ArgMatches, Command};

    use super::*;
    use crate::arguments::command;

    /// The words of a line, without the quotes around some.
    fn words(line: &str) -> Vec<&str> {
        let quoted = line.split('\'').enumerate();
        let words = quoted.flat_map(|(n, part)| match n % 2 {
            0 => part.split_whitespace().collect::<Vec<_>>(),
            _ => vec![part],
        });
        words.collect()
    }

    /// The command that a line runs, like `dead revive`.
    fn command_of(line: &str) -> String {
        let after = |text, mark| line_after(text, mark).unwrap_or(text);
        let program = after(after(line, " | "), " -exec ");
        let words = words(program).into_iter().take_while(|word| *word != ">");
        let matches = command().try_get_matches_from(words);
        let matches = matches.unwrap_or_else(|error| panic!("{line}: {error}"));
        let mut names = Vec::new();
        let mut at: &ArgMatches = &matches;
        while let Some((name, below)) = at.subcommand() {
            names.push(name);
            at = below;
        }
        names.join(" ")
    }

    fn line_after<'a>(text: &'a str, mark: &str) -> Option<&'a str> {
        text.split_once(mark).map(|(_, after)| after)
    }

    #[test]
    fn each_example_is_a_command_line_that_parses() {
        for (name, lines) in sections().chain([("", FIRST_STEPS)]) {
            let mut commands = Vec::new();
            for (line, what) in examples(lines) {
                assert!(!what.is_empty() && line.len() <= 70, "[{name}] {line}  # {what}");
                commands.push(command_of(line));
            }
            let is_of_it = |one: &String| one.starts_with(name);
            assert!(commands.iter().any(is_of_it), "[{name}] has no example of its own");
            let columns = aligned(lines).lines().map(|line| line.chars().count()).max();
            assert!(columns <= Some(100), "[{name}] is {columns:?} columns wide");
        }
    }

    #[test]
    fn every_command_has_examples_and_each_section_a_command() {
        fn names(command: &Command, above: &str, all: &mut Vec<String>) {
            for one in command.get_subcommands().filter(|one| !one.is_hide_set()) {
                let name = format!("{above}{}", one.get_name());
                names(one, &format!("{name} "), all);
                all.push(name);
            }
        }
        let mut commands = Vec::new();
        names(&command(), "", &mut commands);
        commands.sort_unstable();
        let mut named: Vec<&str> = sections().map(|(name, _)| name).collect();
        assert_eq!(named.len(), EXAMPLES.lines().filter(|line| line.starts_with('[')).count());
        named.sort_unstable();
        assert_eq!(named, commands);
        for name in commands {
            let path: Vec<&str> = ["longshore"].into_iter().chain(name.split(' ')).collect();
            let help = command().try_get_matches_from([path, vec!["-h"]].concat()).unwrap_err();
            let help = help.to_string();
            let [examples, options] = ["Examples:", "\nOptions of every command:"].map(|part| {
                help.find(part).unwrap_or_else(|| panic!("{name} has no {part}: {help}"))
            });
            assert!(examples < options, "{name}: {help}");
            let of_every = &help[options..];
            assert!(of_every.lines().count() <= 12, "{name}: {of_every}");
        }
    }
}
