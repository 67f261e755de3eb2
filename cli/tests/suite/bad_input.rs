//! Invalid input: errors name the problem and the limit, exit codes match, and the system is not
//! disturbed.

use crate::common;

use std::net::TcpListener;
use std::time::{Duration, Instant};

use common::{System, longshore, run};

/// Checks that the system still works.
#[track_caller]
fn is_undisturbed(system: &System) {
    system.enqueue("/still/there", "hello", &[]);
    system.run(&["work", "/still/there", "--until-empty", "--", "cat"]).code(0);
}

#[test]
fn an_unknown_path_is_reported() {
    let system = System::up();
    system.run(&["stat", "/no/such/queue"]).code(1).stderr_has(&["/no/such/queue"]);
    system.run(&["job", "01920f3e-5b7a-7c3d-8e4f-a1b2c3d4e5f6"]).code(1).stderr_has(&[
        "01920f3e",
        "was asked and does not have it",
        "it was never enqueued",
    ]);
    // A folder is no file, and the remedy works as printed.
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("a folder");
    std::fs::create_dir(&at).unwrap();
    std::fs::write(at.join("one"), "1").unwrap();
    let refused = system.run(&["enqueue", "/jobs/a", "--file", at.to_str().unwrap()]).code(2);
    let remedy = refused.stderr.trim_end().split_once("its files: ").unwrap().1.to_owned();
    assert!(remedy.ends_with("-exec longshore enqueue /jobs/a --file {} +"), "{remedy}");
    let program = env!("CARGO_BIN_EXE_longshore");
    let mut find = std::process::Command::new("sh");
    find.arg("-c").arg(remedy.replace("longshore", program));
    find.env("LONGSHORE_RESOLVERS", system.resolver()).env("HOME", "/nonexistent");
    common::run(find, b"").code(0);
    assert_eq!(system.stat("/jobs/a")["enqueued_ever"], 1);
}

#[test]
fn an_unpublished_path_is_reported_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let resolver = longshore(&["resolver", "run", "--listen", "127.0.0.1:0", "--fresh", "--json"]);
    let resolver = common::Service::start(resolver);
    let mut publisher =
        longshore(&["publisher", "run", "--listen", "127.0.0.1:0", "--path", "/a", "--json"]);
    publisher.args(["--resolver", resolver.text("address"), "--data"]).arg(folder.path());
    let _publisher = common::Service::start(publisher);
    let ask = |arguments: &[&str]| {
        let mut command = longshore(arguments);
        command.args(["--resolver", resolver.text("address")]);
        run(command, b"")
    };
    ask(&["enqueue", "/b", "text"]).code(1).stderr_has(&["/b", "--default", "longshore publisher"]);
    ask(&["directory", "resolve", "/b"]).code(1).stderr_has(&["/b", "no publisher has it"]);
}

#[test]
fn only_the_oversized_payload_of_a_batch_is_refused() {
    let system = System::up();
    let folder = tempfile::tempdir().unwrap();
    let (large, small) = (folder.path().join("large"), folder.path().join("small"));
    std::fs::write(&large, vec![b'x'; 16 * 1024 * 1024 + 1]).unwrap();
    std::fs::write(&small, "small").unwrap();
    let mut command = system.command(&["enqueue", "/jobs/large", "--json", "--file"]);
    command.arg(&small).arg(&large).arg(&small);
    let ended = run(command, b"").code(1).stderr_has(&["16777216", "large", "--only 2"]);
    assert_eq!(ended.json()["acknowledged"], 2);
    assert_eq!(ended.json()["not_acknowledged"], "2");
}

#[test]
fn invalid_globs_and_paths_are_usage_errors() {
    for (arguments, expected) in [
        (&["stat", "/jobs/[a]"][..], "use {a,b}"),
        (&["work", "/jobs/{a", "--", "true"], "brace"),
        (&["enqueue", "jobs", "text"], "begin with '/'"),
        (&["enqueue", "/jobs//a", "text"], "empty segment"),
        (&["enqueue", "/jobs/../a", "text"], "segment '.' or '..'"),
        (&["stat", "/jobs/./a"], "segment '.' or '..'"),
        (&["enqueue", "/jobs", "text", "--lease", "13h"], "1s to 12h"),
        (&["enqueue", "/jobs", "text", "--at", "noon"], "2026-11-20T21:30:00Z"),
        (&["enqueue", "/jobs", "text", "--delay", "3s", "--expires", "2s"], "and never run"),
        (&["cancel", "everything"], "is not an id"),
        (
            &["dead", "revive", "01920f3e-5b7a-7c3d-8e4f-a1b2c3d4e5f6", "--rate", "1"],
            "--rate goes with a pattern",
        ),
    ] {
        run(longshore(arguments), b"").code(2).stderr_has(&[expected]);
    }
}

#[test]
fn a_data_directory_in_use_is_refused() {
    let system = System::up();
    let mut second = longshore(&["publisher", "run", "--listen", "127.0.0.1:0", "--default", "/"]);
    let data = system.service.text("data");
    second.args(["--resolver", system.resolver(), "--data", data]);
    run(second, b"").code(1).stderr_has(&[data, "in use"]);
    is_undisturbed(&system);
}

#[test]
fn a_relative_data_directory_is_created_below_the_working_directory() {
    let folder = tempfile::tempdir().unwrap();
    // Each start waits a while for a resolver.
    let starts_with = |data: &str| {
        let mut command =
            longshore(&["publisher", "run", "--json", "--listen", "127.0.0.1:0", "--default", "/"]);
        command.args(["--data", data]).current_dir(folder.path());
        drop(common::Service::start(command));
        assert!(folder.path().join(data).is_dir(), "{data}");
    };
    let starts_with = &starts_with;
    std::thread::scope(|threads| {
        for data in ["jobs", "new/jobs"] {
            threads.spawn(move || starts_with(data));
        }
    });
}

#[test]
fn a_port_in_use_is_reported() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    run(longshore(&["resolver", "run", "--listen", &address]), b"")
        .code(1)
        .stderr_has(&[&address, "in use"]);
    let mut publisher =
        longshore(&["publisher", "run", "--default", "/", "--listen", &address, "--data"]);
    publisher.arg(folder.path());
    run(publisher, b"").code(1).stderr_has(&[&address, "in use"]);
    let port = taken.local_addr().unwrap().port().to_string();
    let mut up = longshore(&["up", "--resolver-port", &port, "--data"]);
    up.arg(folder.path());
    run(up, b"").code(1).stderr_has(&[&address, "in use"]);

    let file = folder.path().join("config.toml");
    std::fs::write(&file, format!("[resolver]\nmetrics = '{address}'\n")).unwrap();
    let mut up = longshore(&["up", "--resolver-port", "0", "--publisher-port", "0", "--config"]);
    up.arg(&file).arg("--data").arg(folder.path().join("data"));
    let location = format!("resolver.metrics from {}:2", file.display());
    run(up, b"").code(1).stderr_has(&[
        &address,
        "in use",
        &location,
        "true serves them where the publisher listens",
    ]);
}

#[test]
fn an_unwritable_data_directory_is_reported() {
    // Not writable, even by root.
    let data = "/proc/longshore-data";
    let publisher =
        ["publisher", "run", "--default", "/", "--listen", "127.0.0.1:0", "--data", data];
    run(longshore(&publisher), b"").code(1).stderr_has(&[data]);
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut publisher =
        longshore(&["publisher", "run", "--default", "/", "--listen", "127.0.0.1:0", "--data"]);
    publisher.arg(file.path());
    run(publisher, b"").code(1).stderr_has(&[file.path().to_str().unwrap()]);
}

#[test]
fn a_configuration_typo_reports_file_line_and_expectation() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    std::fs::write(&file, "log = \"info\"\n\n[publisher]\nlisen = \"127.0.0.1:0\"\n").unwrap();
    let mut command = longshore(&["config"]);
    command.arg("--config").arg(&file);
    let location = format!("{}:4", file.display());
    run(command, b"").code(2).stderr_has(&[&location, "lisen", "`listen`"]);
}

#[test]
fn a_publisher_on_all_addresses_requires_advertise() {
    let folder = tempfile::tempdir().unwrap();
    let mut command =
        longshore(&["publisher", "run", "--default", "/", "--listen", "0.0.0.0:0", "--data"]);
    command.arg(folder.path());
    run(command, b"").code(1).stderr_has(&["--advertise"]);
    let mut command = longshore(&["publisher", "run", "--default", "/", "--listen", "0.0.0.0:0"]);
    command.args(["--advertise", "127.0.0.1:9", "--data"]).arg(folder.path());
    run(command, b"").code(1).stderr_has(&["--insecure"]);
}

#[test]
fn an_unreachable_resolver_is_reported_soon() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let status = longshore(&["resolver", "status", "--resolver", &closed]);
    run(status, b"").code(1).stderr_has(&[&closed, "refused"]);
    // A one-shot query does not wait for the resolver.
    let began = Instant::now();
    let ended = run(longshore(&["stat", "--resolver", &format!("{closed},127.0.0.1:1")]), b"");
    ended.code(3).stderr_has(&[
        &closed,
        "127.0.0.1:1: ",
        "refused",
        "longshore up starts one here",
    ]);
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

#[test]
fn a_publisher_address_given_as_resolver_is_reported() {
    let system = System::up();
    let is_reported = |arguments: &[&str], code| {
        let mut command = longshore(arguments);
        command.args(["--resolver", system.publisher()]);
        let name = "is not a replica of the resolver, but the publisher ";
        run(command, b"").code(code).stderr_has(&[
            system.publisher(),
            name,
            "name the resolver's address",
        ]);
    };
    let is_reported = &is_reported;
    std::thread::scope(|threads| {
        for (arguments, code) in
            [(&["stat"][..], 3), (&["resolver", "status"], 1), (&["directory", "ls"], 3)]
        {
            threads.spawn(move || is_reported(arguments, code));
        }
    });
}

#[test]
fn nagios_output_is_one_line_and_failures_exit_3() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for (arguments, expected) in [
        (&["check", "--nagios", "--resolver", &closed][..], &closed[..]),
        (&["check", "--nagios", "--no-such-option"], "--no-such-option"),
        (&["check", "--nagios", "--config", "/no/such/file"], "/no/such/file"),
        (&["check", "--nagios", "--log", "inof"], "inof"),
    ] {
        let ended = run(longshore(arguments), b"").code(3);
        assert!(ended.stdout.starts_with("LONGSHORE UNKNOWN - "), "{ended:?}");
        assert!(ended.stdout.contains(expected) && ended.stdout.lines().count() == 1, "{ended:?}");
    }
    run(longshore(&["check", "--no-such-option"]), b"").code(2);
    let system = System::up();
    let ended = system.run(&["check", "--nagios"]).code(0);
    assert!(ended.stdout.starts_with("LONGSHORE OK - "), "{ended:?}");
    system.enqueue("/jobs/a", "x", &[]);
    let ended = system.run(&["check", "--nagios"]).code(1);
    assert!(ended.stdout.starts_with("LONGSHORE WARNING - "), "{ended:?}");
    assert!(ended.stdout.contains("/jobs/a"), "{ended:?}");
}

#[test]
fn a_non_utf_8_environment_is_tolerated() {
    use std::os::unix::ffi::OsStrExt;
    let broken = std::ffi::OsStr::from_bytes(b"/tmp/\xff");
    let with = |name: &str| {
        let mut command = longshore(&["config"]);
        command.env(name, broken);
        run(command, b"")
    };
    with("SOME_OTHER").code(0);
    assert!(with("LONGSHORE_DATA").code(0).stdout.contains("$LONGSHORE_DATA"));
    with("LONGSHORE_RESOLVERS").code(2).stderr_has(&["$LONGSHORE_RESOLVERS", "not UTF-8"]);
    let mut named = longshore(&["config"]);
    named.env(std::ffi::OsStr::from_bytes(b"\xff"), "x");
    run(named, b"").code(0);
}

#[test]
fn without_a_home_a_data_directory_is_required() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [&["up"][..], &["publisher", "run", "--default", "/"]] {
        let mut command = longshore(arguments);
        command.env_remove("HOME").current_dir(folder.path());
        run(command, b"").code(2).stderr_has(&["$HOME", "--data DIR", "$LONGSHORE_DATA"]);
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_data_directory_with_foreign_files_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("letter.txt"), "dear").unwrap();
    let mut command =
        longshore(&["publisher", "run", "--default", "/", "--listen", "127.0.0.1:0", "--data"]);
    command.arg(folder.path());
    let data = folder.path().to_str().unwrap();
    run(command, b"").code(1).stderr_has(&[data, "letter.txt", "choose an empty directory"]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_replica_gets_no_port_of_the_publisher() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = longshore(&["up", "--replicas", "11", "--data"]);
    command.arg(folder.path().join("data"));
    run(command, b"").code(2).stderr_has(&["replica 11", "port 4780", "--publisher-port"]);
}

#[test]
fn waiting_for_the_resolver_is_reported_within_seconds() {
    use std::io::{BufRead, BufReader};
    // Nothing listens there; a port that was free a moment ago may be another test's by now.
    let closed = "127.0.0.1:1";
    let mut waiting = longshore(&["work", "/jobs/a", "--resolver", closed, "--", "true"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(waiting.stderr.take().unwrap()).lines().map_while(Result::ok);
    let (what, remedy) = (lines.next().unwrap(), lines.next().unwrap());
    waiting.kill().unwrap();
    waiting.wait().unwrap();
    assert!(what.contains(&format!("waiting for the resolver at {closed}")), "{what}");
    assert!(what.contains("refused") && remedy.contains("longshore up"), "{what}\n{remedy}");
}
