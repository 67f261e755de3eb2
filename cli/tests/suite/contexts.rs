//! Contexts, and a configuration that is invalid.
#![allow(clippy::unwrap_used, reason = "its helpers are tests, too")]

use crate::common;

use common::{CommandOutput, System, longshore, run};

#[test]
fn a_selected_context_is_used_and_shown_until_something_closer_names_a_system() {
    let system = System::up();
    let folder = tempfile::tempdir().unwrap();
    let with = |variables: &[(&str, &str)], arguments: &[&str]| -> CommandOutput {
        let mut command = longshore(arguments);
        command.env("XDG_CONFIG_HOME", folder.path()).envs(variables.iter().copied());
        run(command, b"")
    };
    let at = |arguments: &[&str]| with(&[], arguments);
    at(&["context", "show"]).code(1).stderr_has(&["no context is selected"]);
    at(&["context", "use", "here"]).code(1).stderr_has(&["longshore context add here"]);
    at(&["context", "add", "here"]).code(2).stderr_has(&["--resolver HOST:PORT"]);
    at(&["context", "add", "../x", "--resolver", "a:1"]).code(2).stderr_has(&["letters, digits"]);
    at(&["context", "add", "here", "--resolver", system.resolver(), "--use"]).code(0);
    at(&["context", "add", "gone", "--resolver", "127.0.0.1:1"]).code(0);
    // No shell expands it there.
    at(&["context", "add", "tls", "--resolver", "a:1", "--tls-ca=~/ca.pem"]).code(0);
    let stored = at(&["context", "show", "tls", "--json"]).code(0).json();
    assert_eq!(stored["keys"][0]["value"], "/nonexistent/ca.pem", "{stored}");
    at(&["context", "rm", "tls"]).code(0);
    at(&["stat"]).code(0);
    at(&["stat", "--context", "gone"]).code(3).stderr_has(&["127.0.0.1:1"]);
    with(&[("LONGSHORE_CONTEXT", "gone")], &["stat"]).code(3);
    with(&[("LONGSHORE_CONTEXT", "gone")], &["stat", "--context", "here"]).code(0);
    let ignored = |variable: &str, value: &str, context: &str| {
        let used = with(&[(variable, value)], &["context", "use", context]).code(0);
        used.stderr.contains(&format!("${variable} takes precedence"))
    };
    assert!(ignored("LONGSHORE_CONTEXT", "gone", "here"));
    assert!(ignored("LONGSHORE_RESOLVERS", "127.0.0.1:1", "here"));
    assert!(!ignored("LONGSHORE_CONTEXT", "here", "here"));
    at(&["stat", "--context", "typo"]).code(2).stderr_has(&["there are: gone, here"]);
    at(&["stat", "--context", "here", "--resolver", "a:1"]).code(2);

    let config = at(&["config", "--json"]).code(0).json();
    assert_eq!(config["context"]["value"], "here");
    assert!(config["context"]["from"].as_str().unwrap().ends_with("longshore/context:1"));
    let from = config["resolvers"]["from"].as_str().unwrap();
    assert!(from.ends_with("longshore/contexts/here.toml:1"), "{from}");
    let listed = at(&["context", "ls", "--json"]).code(0).json();
    assert_eq!(listed["contexts"][1]["selected"], true, "{listed}");

    // A damaged file is named, and can be repaired by the program.
    std::fs::write(folder.path().join("longshore/contexts/here.toml"), "\nx = 1\n").unwrap();
    at(&["stat"]).code(2).stderr_has(&["contexts/here.toml:2: unknown field `x`"]);
    at(&["context", "ls"]).code(1).stderr_has(&["contexts/here.toml:2"]);
    at(&["config"]).code(2).stderr_has(&["contexts/here.toml:2"]);
    at(&["context", "rm", "here"]).code(0);
    at(&["context", "show"]).code(1).stderr_has(&["no context is selected"]);
}

#[test]
fn an_invalid_configuration_is_shown_with_all_that_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    std::fs::write(&file, "data = '/srv/jobs'\nlog = 'loud'\n[timing]\ntries = 'many'\n").unwrap();
    let file = file.to_str().unwrap();
    let shown = run(longshore(&["config", "--config", file]), b"").code(2);
    let row = |key: &str| {
        let line = shown.stdout.lines().find(|line| line.starts_with(key)).unwrap();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(row("data"), ["data", "/srv/jobs", &format!("{file}:1")]);
    assert_eq!(row("log "), ["log", "(invalid)", &format!("{file}:2")]);
    assert_eq!(row("timing.tries"), ["timing.tries", "(invalid)", &format!("{file}:4")]);
    let both =
        shown.stderr_has(&["'loud' is not a level", "timing.tries: expected a whole number"]);
    assert_eq!(both.stderr.matches("error: ").count(), 2, "{both:?}");
    let json = run(longshore(&["config", "--json", "--config", file]), b"").code(2).json();
    assert!(json["log"]["error"].as_str().unwrap().contains("loud"), "{json}");
    run(longshore(&["stat", "--config", file]), b"").code(2).stderr_has(&["loud"]);
    let check = run(longshore(&["config", "--check", "--config", file]), b"").code(2);
    assert_eq!(check.stdout, "");
}
