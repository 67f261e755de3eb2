//! What services report to systemd: that they are ready, reload, work and stop.
#![allow(clippy::unwrap_used, reason = "this is a test, its helpers too")]

use crate::common;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use common::harness::CONFIGURATION;
use common::notify_socket::NotifySocket;
use common::proxy::LossyProxy;
use common::{BackgroundCommand, Service, System, longshore, run};
use rustix::process::Signal;

/// Checks follow each other four times as fast.
const WATCHDOG: Duration = Duration::from_millis(400);
/// How long the resolver is out of reach.
const UNREACHABLE: Duration = Duration::from_millis(500);

fn replica() -> Service {
    let replica = ["resolver", "run", "--fresh", "--json", "--listen", "127.0.0.1:0"];
    Service::start(longshore(&replica))
}

fn has(lines: &[String], line: &str) -> bool {
    lines.iter().any(|one| one == line)
}

#[test]
fn a_publisher_is_ready_once_the_resolver_leads_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let configuration = folder.path().join("config.toml");
    std::fs::write(&configuration, CONFIGURATION).unwrap();
    let (manager, replica, proxy) =
        (NotifySocket::bind(folder.path()), replica(), LossyProxy::new());
    let at = replica.text("address").to_owned();

    let mut command = longshore(&["publisher", "run", "--json", "--listen", "127.0.0.1:0"]);
    command.args(["--default", "/", "--resolver", &proxy.address.to_string(), "--data"]);
    command.arg(folder.path().join("data")).arg("--config").arg(&configuration);
    manager.manage(&mut command, WATCHDOG);
    let mut publisher = BackgroundCommand::start(command);
    let reachable = Arc::new(AtomicBool::new(false));
    let (opened, to) = (reachable.clone(), at.parse().unwrap());
    let opening = thread::spawn(move || {
        thread::sleep(UNREACHABLE);
        opened.store(true, SeqCst);
        proxy.forward_to(to);
        proxy
    });

    let lines = manager.lines_until("READY=1");
    let was_reachable = reachable.load(SeqCst);
    assert!(was_reachable, "it reported that it is ready before it was registered");
    let ask = |arguments: &[&str]| run(longshore(&[&["--resolver", &at], arguments].concat()), b"");
    ask(&["directory", "resolve", "/jobs/a"]).code(0);
    assert!(lines[0].starts_with("EXTEND_TIMEOUT_USEC="), "{lines:#?}");
    assert!(lines[1].starts_with("STATUS=recovering the journal in "), "{lines:#?}");
    assert!(has(&lines, "STATUS=registered at 1 of 1 replicas"), "{lines:#?}");
    let ready: serde_json::Value = serde_json::from_str(&publisher.line()).unwrap();
    assert_eq!(ready["registered"].as_array().unwrap().len(), 1);

    manager.lines_until("WATCHDOG=1");
    publisher.send(Signal::HUP);
    let lines = manager.lines_until("READY=1");
    let reloading = lines.iter().position(|line| line == "RELOADING=1").unwrap();
    assert!(lines[reloading + 1].starts_with("MONOTONIC_USEC="), "{lines:#?}");
    assert!(has(&lines, "STATUS=the configuration is reloaded"), "{lines:#?}");
    std::fs::write(&configuration, "[publisher]\nhang_after = 'never'\n").unwrap();
    publisher.send(Signal::HUP);
    let lines = manager.lines_until("READY=1");
    let refused = "STATUS=the configuration is not reloaded: ";
    assert!(lines.iter().any(|line| line.starts_with(refused)), "{lines:#?}");

    // A process that does not run reports nothing, and goes on by itself.
    publisher.send(Signal::STOP);
    manager.skip();
    assert_eq!(manager.next_within(WATCHDOG), None);
    publisher.send(Signal::CONT);
    manager.lines_until("WATCHDOG=1");

    publisher.send(Signal::TERM);
    manager.lines_until("STOPPING=1");
    assert_eq!(publisher.ended().code, 0);
    drop(opening.join());
}

#[test]
fn a_manager_that_hung_for_a_while_learns_that_a_service_is_ready() {
    let folder = tempfile::tempdir().unwrap();
    let (manager, replica) = (NotifySocket::bind(folder.path()), replica());
    manager.fill();
    let mut command = longshore(&["publisher", "run", "--json", "--listen", "127.0.0.1:0"]);
    command.args(["--default", "/", "--resolver", replica.text("address"), "--data"]);
    manager.manage(command.arg(folder.path().join("data")), WATCHDOG);
    command.env("LONGSHORE_LOG", "debug");
    let mut publisher = BackgroundCommand::start(command);
    publisher.wait_for_stderr("it is reported again that the service is ready");
    manager.lines_until("READY=1");
}

#[test]
fn a_replica_and_a_worker_report_and_its_commands_do_not() {
    let (system, folder) = (System::up(), tempfile::tempdir().unwrap());
    let start = |mut command: Command, name: &str| {
        let folder = folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        let manager = NotifySocket::bind(&folder);
        manager.manage(&mut command, WATCHDOG);
        (BackgroundCommand::start(command), manager)
    };
    let replica = longshore(&["resolver", "run", "--fresh", "--listen", "127.0.0.1:0"]);
    let (replica, its_manager) = start(replica, "replica");
    its_manager.lines_until("READY=1");
    let lines = its_manager.lines_until("WATCHDOG=1");
    assert!(has(&lines, "STATUS=publishers: 1; paths: 0"), "its metrics: {lines:#?}");

    system.enqueue("/jobs/a", "x", &["--keep", "1h"]);
    let command = ["work", "/jobs/a", "--", "sh", "-c", "printf %s \"${NOTIFY_SOCKET:-none}\""];
    let (worker, manager) = start(system.command(&command), "worker");
    let lines = manager.lines_until("READY=1");
    assert!(lines.last().unwrap().starts_with("STATUS=publishers: 1; "), "{lines:#?}");
    manager.lines_until("WATCHDOG=1");
    let job = || system.run(&["jobs", "/jobs/a", "--json"]).code(0);
    common::wait_until("the job is done", || job().stdout.contains("completed"));
    let id = job().json_lines()[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(system.job(&id)["result"], "none");
    worker.send(Signal::TERM);
    manager.lines_until("STOPPING=1");
    assert_eq!(worker.ended().code, 0);
    replica.send(Signal::TERM);
    its_manager.lines_until("STOPPING=1");
    assert_eq!(replica.ended().code, 0);
}

#[test]
fn a_worker_reports_once_that_it_cannot_reach_a_publisher() {
    let folder = tempfile::tempdir().unwrap();
    let (manager, replica, proxy) =
        (NotifySocket::bind(folder.path()), replica(), LossyProxy::new());
    let at = replica.text("address");
    let mut command = longshore(&["publisher", "run", "--json", "--listen", "127.0.0.1:0"]);
    command.args(["--name", "pa", "--default", "/", "--advertise", &proxy.address.to_string()]);
    command.args(["--resolver", at, "--data"]).arg(folder.path().join("data"));
    let mut publisher = Service::start(command);
    let mut command = longshore(&["work", "/jobs/a", "--resolver", at, "--", "true"]);
    manager.manage(command.env("LONGSHORE_LOG", "debug"), WATCHDOG);
    let mut worker = BackgroundCommand::start(command);
    let is_logged_once = |worker: &mut BackgroundCommand| {
        for level in ["WARN", "DEBUG"] {
            let line = worker.wait_for_stderr("no link to the publisher");
            assert!(line.contains(level), "not at {level}: {line}");
        }
    };

    manager.lines_until("STATUS=not linked to publisher pa: ");
    is_logged_once(&mut worker);
    proxy.forward_to(publisher.text("address").parse().unwrap());
    manager.lines_until("STATUS=publishers: 1; ");
    publisher.kill();
    worker.wait_for_stderr("link to the publisher lost");
    is_logged_once(&mut worker);
    worker.send(Signal::TERM);
    manager.lines_until("STOPPING=1");
    assert_eq!(worker.ended().code, 0);
}

#[test]
fn a_whole_system_reports_that_it_works_and_stops() {
    let folder = tempfile::tempdir().unwrap();
    let manager = NotifySocket::bind(folder.path());
    let mut command = longshore(&["up", "--resolver-port", "0", "--publisher-port", "0", "--data"]);
    manager.manage(command.arg(folder.path().join("data")), WATCHDOG);
    let up = BackgroundCommand::start(command);
    manager.lines_until("READY=1");
    let lines = manager.lines_until("WATCHDOG=1");
    assert!(has(&lines, "STATUS=registered at 3 of 3 replicas"), "{lines:#?}");
    up.send(Signal::TERM);
    manager.lines_until("STOPPING=1");
    assert_eq!(up.ended().code, 0);
}
