//! Every query's output on a terminal and in a pipe, at 80 and 200 columns, in UTF-8 and the C
//! locale, with and without `NO_COLOR`.
#![allow(clippy::unwrap_used, reason = "its helpers are tests, too")]

use crate::common;

use common::System;
use common::terminal::Terminal;

/// Whether what a terminal shows ends with the lines of a pipe, each cut to the terminal's width at
/// most: its first cell remains.
fn is_cut_to(shown: &str, piped: &str, columns: usize) -> bool {
    let (shown, piped) = (shown.trim_end(), piped.trim_end());
    let lines = piped.lines().count();
    let shown: Vec<&str> =
        shown.lines().skip(shown.lines().count().saturating_sub(lines)).collect();
    let first = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
    let is_cut = |(cut, whole): (&&str, &str)| match first(cut).strip_suffix('…') {
        Some(part) => first(whole).starts_with(part),
        None => first(cut) == first(whole),
    };
    shown.len() == lines
        && shown.iter().all(|line| line.chars().count() <= columns)
        && shown.iter().zip(piped.lines()).all(is_cut)
}

/// Whether all lines have a gap where the headings have one: every column begins, or ends, at the
/// same place in every row.
fn is_aligned(table: &str) -> bool {
    let lines: Vec<Vec<char>> = table.lines().map(|line| line.chars().collect()).collect();
    let Some(headings) = lines.first() else { return true };
    let text: String = headings.iter().collect();
    let columns = text.split("  ").filter(|heading| !heading.trim().is_empty()).count();
    let width = lines.iter().map(Vec::len).max().unwrap_or_default();
    let is_gap = |at: usize| lines.iter().all(|line| line.get(at).is_none_or(|c| *c == ' '));
    let begins = |at: &usize| !is_gap(*at) && (*at == 0 || is_gap(at - 1));
    (0..width).filter(begins).count() >= columns
}

#[test]
fn no_query_breaks_its_table_or_sends_escape_codes_into_a_pipe() {
    let system = System::up();
    let job = system.enqueue("/jobs/a-queue-with-a-rather-long-name/and-more-of-it", "text", &[]);
    let long = "a long payload, ".repeat(20);
    system.enqueue("/jobs/ünïcode", &long, &["--delay", "1h"]);
    let dead = system.enqueue("/jobs/b", "text", &[]);
    let fails = ["work", "/jobs/b", "--until-empty", "--", "sh", "-c", "echo wrong >&2; exit 65"];
    system.run(&fails).code(1);
    system.run(&["pause", "/jobs/**"]).code(0);
    let _worker = system.spawn(&["work", "/jobs/none", "--", "cat"]);
    common::wait_until("the worker is listed", || {
        let listed = system.run(&["workers", "ls", "--json"]).json();
        listed["workers"].as_array().is_some_and(|workers| workers.len() == 1)
    });

    let tables: [&[&str]; 14] = [
        &["stat"],
        &["jobs"],
        &["jobs", "--state", "dead"],
        &["dead", "ls"],
        &["dead", "groups"],
        &["queue", "ls"],
        &["queue", "show", "/jobs/b"],
        &["workers", "ls"],
        &["directory", "ls", "/jobs"],
        &["directory", "resolve", "/jobs/b"],
        &["resolver", "status"],
        &["resolver", "status", "--publishers"],
        &["publisher", "status"],
        &["config"],
    ];
    let others: [&[&str]; 7] = [
        &["job", &job],
        &["dead", "show", &dead],
        &["directory", "tree"],
        &["check"],
        &["top", "--once"],
        &["cancel", "/jobs/**", "--dry-run"],
        &["help", "enqueue"],
    ];
    let terminals = [(80, "C", true), (80, "C.UTF-8", false), (200, "C.UTF-8", true)];
    let mut wrong = Vec::new();
    for (command, is_table) in
        tables.map(|command| (command, true)).into_iter().chain(others.map(|one| (one, false)))
    {
        let piped = system.run(command);
        if piped.code != 0 || piped.stdout.contains('\x1b') || piped.stderr.contains('\x1b') {
            wrong.push(format!("{command:?} in a pipe: {piped:?}"));
        }
        if is_table && !piped.stdout.split("\n\n").all(is_aligned) {
            wrong.push(format!("{command:?} is not aligned:\n{}", piped.stdout));
        }
        for (columns, locale, no_color) in terminals {
            let mut run = system.command(command);
            run.env("LC_ALL", locale).env("TERM", "xterm-256color").env_remove("NO_COLOR");
            if no_color {
                run.env("NO_COLOR", "1");
            }
            let (code, shown) = Terminal::start(run, columns).ended();
            // Notes on standard error are no part of the table.
            let notes = |line: &&str| !line.starts_with("note: ");
            let shown =
                shown.replace('\r', "").lines().filter(notes).collect::<Vec<_>>().join("\n");
            let has_escapes = shown.contains('\x1b');
            let is_broken = is_table && !is_cut_to(&shown, &piped.stdout, usize::from(columns));
            if code != 0 || (no_color && has_escapes && command[0] != "help") || is_broken {
                let at = format!("{columns} columns, {locale}, NO_COLOR {no_color}");
                wrong.push(format!("{command:?} at {at}: {code}\n{shown}\nnot {}", piped.stdout));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
