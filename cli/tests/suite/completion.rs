//! Completions, in real shells against a running system.
#![allow(clippy::unwrap_used, clippy::panic, reason = "its helpers are tests, too")]

use crate::common;

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::terminal::Terminal;
use common::{System, longshore, run};

/// A shell with the program in its path, that uses this system.
fn shell(name: &str, arguments: &[&str], system: &System) -> Command {
    let folder = Path::new(env!("CARGO_BIN_EXE_longshore")).parent().unwrap();
    let mut command = Command::new(name);
    command
        .args(arguments)
        .env("PATH", format!("{}:/usr/bin:/bin", folder.display()))
        .env("HOME", system.folder.path())
        .env("LONGSHORE_RESOLVERS", system.resolver())
        .env("TERM", "vt100")
        .env_remove("LONGSHORE_CONFIG");
    command
}

/// Completes a half-typed queue name, and runs the line.
fn completes_a_queue(shell: Command, load: &str) {
    let mut terminal = Terminal::start(shell, 200);
    terminal.type_line(load);
    terminal.type_line("echo loa''ded");
    terminal.wait_for("loaded");
    terminal.type_keys("longshore queue show /jobs/in\t");
    // The shell completes the word, so that the line runs.
    terminal.wait_for("voices");
    terminal.type_line("");
    terminal.wait_for("max-attempts");
    terminal.type_line("exit");
    let (_, shown) = terminal.ended();
    assert!(!shown.contains("there is no queue"), "{shown}");
}

#[test]
fn bash_completes_a_half_typed_queue_name() {
    let system = System::up();
    for queue in ["/jobs/invoices", "/jobs/mail"] {
        system.enqueue(queue, "text", &[]);
    }
    let bash = shell("bash", &["--norc", "--noprofile", "-i"], &system);
    completes_a_queue(bash, "source <(longshore completions bash)");
}

#[test]
fn zsh_completes_a_half_typed_queue_name() {
    if Command::new("zsh").arg("--version").output().is_err() {
        eprintln!("skipped: this machine has no zsh");
        return;
    }
    let system = System::up();
    for queue in ["/jobs/invoices", "/jobs/mail"] {
        system.enqueue(queue, "text", &[]);
    }
    let zsh = shell("zsh", &["-f", "-i"], &system);
    let load = "autoload -U compinit; compinit -u -D; source <(longshore completions zsh)";
    completes_a_queue(zsh, load);
}

/// The candidates for the last of these words, without flags.
fn candidates(mut command: Command, words: &[&str]) -> Vec<String> {
    command.env("LONGSHORE_COMPLETE", "bash").env("_CLAP_IFS", "\n");
    command.env("_CLAP_COMPLETE_INDEX", words.len().to_string());
    command.args(["--", "longshore"]).args(words);
    let ended = run(command, b"").code(0);
    assert_eq!(ended.stderr, "", "a completion is silent");
    ended.stdout.lines().filter(|line| !line.starts_with('-')).map(str::to_owned).collect()
}

#[test]
fn paths_workers_publishers_and_contexts_are_completed() {
    let system = System::up();
    system.enqueue("/jobs/invoices/eu", "text", &[]);
    system.enqueue("/jobs/mail", "text", &[]);
    let work = ["work", "/jobs/none", "--name", "mailer-1", "--", "cat"];
    let _worker = system.spawn(&work);
    let resolver = system.resolver();
    let complete = |words: &[&str]| {
        let words = [&["--resolver", resolver], words].concat();
        candidates(longshore(&[]), &words)
    };
    assert_eq!(complete(&["stat", "/jo"]), ["/jobs/"]);
    assert_eq!(complete(&["stat", "/jobs/"]), ["/jobs/invoices/", "/jobs/mail"]);
    assert_eq!(complete(&["stat", "/jobs/invoices/e"]), ["/jobs/invoices/eu"]);
    common::wait_until("the worker is listed", || {
        complete(&["workers", "quiet", "mail"]) == ["mailer-1"]
    });
    assert_eq!(complete(&["publisher", "drain", ""]).len(), 1);
    assert_eq!(complete(&["purge", "/jobs/mail", "--state", "comp"]), ["completed"]);

    let folder = system.folder.path().join("xdg");
    let in_folder = |arguments: &[&str]| {
        let mut command = longshore(arguments);
        command.env("XDG_CONFIG_HOME", &folder);
        command
    };
    let add = ["context", "add", "prod", "--resolver", "a:4770"];
    run(in_folder(&add), b"").code(0);
    assert_eq!(candidates(in_folder(&[]), &["--context", "pr"]), ["prod"]);
    assert_eq!(candidates(in_folder(&[]), &["context", "use", ""]), ["prod"]);
}

#[test]
fn a_completion_never_hangs() {
    // It accepts connections, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let began = Instant::now();
    let found = candidates(longshore(&[]), &["--resolver", &address, "stat", "/jo"]);
    assert!(found.is_empty(), "{found:?}");
    let took = began.elapsed();
    // Half a second for the answer, and the start of a process on a busy machine.
    assert!(took < Duration::from_secs(3), "{took:?}");
}
