//! A system of one machine whose clients are known by their users.
#![allow(clippy::unwrap_used, reason = "its helpers are tests, too")]

use crate::common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::harness::publisher_id;
use common::{BackgroundCommand, Service, longshore, run, wait_until};

const LISTENING: [&str; 3] = ["--listen", "127.0.0.1:0", "--json"];

/// A command of the system in the folder.
fn command_in(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = longshore(&[&["--config", "config.toml"], arguments].concat());
    command.current_dir(dir);
    command
}

/// A replica and a publisher in the folder, which the user of this process may use for all but
/// these actions on `/jobs/mine`.
fn start(dir: &Path, denied: &[&str]) -> [Service; 2] {
    let at = |name: &str| dir.join(name).display().to_string();
    let id = publisher_id(&dir.join("data"));
    let user = rustix::process::getuid().as_raw();
    let mut rules = format!(
        "[publishers]\n'{id}' = ['unix:{user}']\n\
         [[allow]]\nwho = ['unix:{user}']\ndo = ['*']\npaths = ['/sys/**', '/jobs/**']\n\
         [[allow]]\nwho = ['anonymous']\ndo = ['resolve']\npaths = ['/none']\n"
    );
    if !denied.is_empty() {
        let who = format!("who = ['unix:{user}']");
        rules += &format!("[[deny]]\n{who}\ndo = {denied:?}\npaths = ['/jobs/mine']\n");
    }
    fs::write(dir.join("policy.toml"), rules).unwrap();
    let config = format!(
        "resolvers = ['unix:{resolver}']\n[access]\npolicy = 'policy.toml'\n\
         [resolver]\nname = 'here'\nlisten_unix = '{resolver}'\n\
         [publisher]\nlisten_unix = '{publisher}'\n\
         [timing]\nretry_wait_min = '50ms'\nretry_wait_max = '300ms'\n",
        resolver = at("resolver.sock"),
        publisher = at("publisher.sock"),
    );
    fs::write(dir.join("config.toml"), config).unwrap();
    let replica = ["resolver", "run", "--fresh", "--data", "replica"];
    let replica = Service::start(command_in(dir, &[&replica[..], &LISTENING].concat()));
    let publisher = ["publisher", "run", "--data", "data", "--default", "/jobs"];
    let publisher = Service::start(command_in(dir, &[&publisher[..], &LISTENING].concat()));
    wait_until("the publisher is registered", || {
        run(command_in(dir, &["directory", "resolve", "/jobs/a"]), b"").code == 0
    });
    [replica, publisher]
}

#[test]
fn a_worker_that_may_not_read_its_queue_does_not_wait_until_it_is_empty() {
    let folder = tempfile::tempdir().unwrap();
    let _services = start(folder.path(), &["inspect"]);
    let here = |arguments: &[&str]| command_in(folder.path(), arguments);
    run(here(&["enqueue", "/jobs/mine", "hello"]), b"").code(0);
    let work = |queue| here(&["work", queue, "--until-empty", "--", "cat"]);
    let refused = BackgroundCommand::start(work("/jobs/mine")).ended().code(1);
    refused.stderr_has(&["the right inspect", "Forbidden", "waiting for the running commands"]);
    BackgroundCommand::start(work("/jobs/**")).ended().code(0);
}

#[test]
fn jobs_go_over_unix_sockets_by_the_rights_of_a_user() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let here = |arguments: &[&str]| command_in(dir, arguments);
    let at = |name: &str| dir.join(name).display().to_string();
    let [mut replica, mut publisher] = start(dir, &[]);
    run(here(&["enqueue", "/jobs/a", "hello"]), b"").code(0);
    let worked = run(here(&["work", "/jobs/a", "--until-empty", "--", "cat"]), b"").code(0);
    assert!(worked.stdout.contains("1 completed"), "{worked:?}");
    // At its port, the same user is nobody.
    let address = replica.text("address").to_owned();
    let by_port = run(here(&["--resolver", &address, "directory", "ls", "/jobs"]), b"");
    assert!(!by_port.stdout.contains("/jobs/a"), "{by_port:?}");
    assert!(run(here(&["directory", "ls", "/jobs"]), b"").code(0).stdout.contains("/jobs/a"));
    // A second service does not take the socket.
    let second = ["resolver", "run", "--fresh", "--data", "second", "--end-with-stdin"];
    let second = run(here(&[&second[..], &LISTENING].concat()), b"");
    assert!(second.code != 0, "{second:?}");
    second.stderr_has(&[&format!("resolver.sock belongs to process {},", replica.id())]);
    // One that was killed leaves its socket, and does not keep the next one out.
    replica.kill();
    assert!(Path::new(&at("resolver.sock")).exists());
    let replica_again = ["resolver", "run", "--fresh", "--data", "replica"];
    let mut replica = Service::start(here(&[&replica_again[..], &LISTENING].concat()));
    wait_until("the new replica knows the publisher", || {
        run(here(&["directory", "resolve", "/jobs/a"]), b"").code == 0
    });

    // At their port, too, nobody without a name may read the metrics.
    let metrics = ["value", "subscribe", "/sys/replicas/here", "--once", "--json"];
    assert_eq!(run(here(&metrics), b"").code(0).json()["value"]["name"], "here");

    assert_eq!((publisher.stop(), replica.stop()), (0, 0));
    for name in ["resolver.sock", "resolver.sock.metrics", "publisher.sock"] {
        assert!(!Path::new(&at(name)).exists(), "{name} stays");
    }
}
