//! A system of one machine whose clients are known by their users.
#![allow(clippy::unwrap_used, reason = "its helpers are tests, too")]

use crate::common;

use std::fs;
use std::path::Path;

use common::harness::publisher_id;
use common::{Service, longshore, run, wait_until};

#[test]
fn jobs_go_over_unix_sockets_by_the_rights_of_a_user() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let here = |arguments: &[&str]| {
        let mut command = longshore(&[&["--config", "config.toml"], arguments].concat());
        command.current_dir(dir);
        command
    };
    let at = |name: &str| dir.join(name).display().to_string();
    let id = publisher_id(&dir.join("data"));
    let user = rustix::process::getuid().as_raw();
    let rules = |path: &str| {
        format!(
            "[publishers]\n'{id}' = ['unix:{user}']\n\
             [[allow]]\nwho = ['unix:{user}']\ndo = ['*']\npaths = ['/sys/**', '{path}']\n\
             [[allow]]\nwho = ['anonymous']\ndo = ['resolve']\npaths = ['/none']\n"
        )
    };
    fs::write(dir.join("policy.toml"), rules("/jobs/**")).unwrap();
    let config = format!(
        "resolvers = ['unix:{resolver}']\n[access]\npolicy = 'policy.toml'\n\
         [resolver]\nname = 'here'\nlisten_unix = '{resolver}'\n\
         [publisher]\nlisten_unix = '{publisher}'\n\
         [timing]\nretry_wait_min = '50ms'\nretry_wait_max = '300ms'\n",
        resolver = at("resolver.sock"),
        publisher = at("publisher.sock"),
    );
    fs::write(dir.join("config.toml"), config).unwrap();
    let listening = ["--listen", "127.0.0.1:0", "--json"];
    let replica = ["resolver", "run", "--fresh", "--data", "replica"];
    let mut replica = Service::start(here(&[&replica[..], &listening].concat()));
    let publisher = ["publisher", "run", "--data", "data", "--default", "/jobs"];
    let mut publisher = Service::start(here(&[&publisher[..], &listening].concat()));
    wait_until("the publisher is registered", || {
        run(here(&["directory", "resolve", "/jobs/a"]), b"").code == 0
    });
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
    let second = run(here(&[&second[..], &listening].concat()), b"");
    assert!(second.code != 0, "{second:?}");
    second.stderr_has(&[&format!("resolver.sock belongs to process {},", replica.id())]);
    // One that was killed leaves its socket, and does not keep the next one out.
    replica.kill();
    assert!(Path::new(&at("resolver.sock")).exists());
    let replica_again = ["resolver", "run", "--fresh", "--data", "replica"];
    let mut replica = Service::start(here(&[&replica_again[..], &listening].concat()));
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
