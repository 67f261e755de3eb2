//! SIGHUP: a service reloads its configuration, applies what can change at run time, and reports
//! what needs a restart.
#![allow(clippy::unwrap_used, reason = "this is a test, its helpers too")]

use crate::common;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use common::{BackgroundCommand, Service, longshore, run};
use longshore::{Cluster, ReadClient, ReplicaStatus};
use rustix::process::Signal;
use serde_json::Value;

struct Case {
    folder: tempfile::TempDir,
    file: PathBuf,
}

impl Case {
    fn new(text: &str) -> Case {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        let case = Case { folder, file };
        case.write(text);
        case
    }

    fn write(&self, text: &str) {
        // Replaced by a rename: a reader sees the old or the new file.
        let new = self.folder.path().join("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, &self.file).unwrap();
    }

    fn start(&self, arguments: &[&str]) -> (BackgroundCommand, String) {
        let mut command = longshore(arguments);
        command
            .args(["--json", "--log-format", "text", "--listen", "127.0.0.1:0", "--config"])
            .arg(&self.file);
        let mut service = BackgroundCommand::start(command);
        let ready: Value = serde_json::from_str(&service.line()).unwrap();
        let address = ready["address"].as_str().unwrap().to_owned();
        (service, address)
    }
}

async fn status(address: &str) -> ReplicaStatus {
    let at: SocketAddr = address.parse().unwrap();
    let cluster = Cluster::new([at.to_string()]);
    let client = ReadClient::builder().name("test").connect(cluster);
    client.replica_status().await.remove(0).1.unwrap()
}

const OLD: &str = "log = 'info'\n[resolver]\npaths_max = 1000\nwatches_max = 100\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_reloads_limits_and_log_filter() {
    let case = Case::new(OLD);
    let (mut replica, address) = case.start(&["resolver", "run", "--fresh", "--name", "left"]);
    let before = status(&address).await;
    assert_eq!((before.paths_max, before.watches_max), (1_000, 100));

    case.write(
        "log = 'longshore_resolver=debug,info'\n[resolver]\nname = 'right'\npaths_max = 2000\n\
         watches_max = 50\n[timing]\nwriter_ttl = '90s'\ntries = 5\n",
    );
    replica.send(Signal::HUP);
    let line = replica.wait_for_stderr("SIGHUP: ");
    let (applied, restart) = line.split_once("needs a restart: ").unwrap();
    assert!(applied.contains("config.toml: applied: log from info to "), "{line}");
    assert!(applied.contains("resolver.watches_max from 100 to 50"), "{line}");
    assert!(applied.contains("resolver.paths_max from 1000 to 2000"), "{line}");
    assert_eq!(restart.trim_end(), "timing.writer_ttl from 2m to 1m30s", "{line}");
    let after = status(&address).await;
    assert_eq!((after.paths_max, after.watches_max), (2_000, 50));
    assert_eq!(after.incarnation, before.incarnation, "the replica was not restarted");
    // The filter is active: this line has level debug.
    replica.wait_for_stderr("connected");

    // The next reload compares with the configuration in force.
    replica.send(Signal::HUP);
    let line = replica.wait_for_stderr("SIGHUP: ");
    assert!(line.contains("nothing applied; needs a restart: timing.writer_ttl"), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_file_is_refused_and_changes_nothing() {
    let case = Case::new(OLD);
    let (mut replica, address) = case.start(&["resolver", "run", "--fresh"]);
    for (text, expected) in [
        ("[resolver]\npaths_max = 5\nwatches_max = 16385\n", "config.toml:3: resolver.watches_max"),
        ("[resolver]\npaths_max = 5\n[timing]\nretry_wait_min = '1h'\n", "config.toml:4: "),
        ("[resolver]\npaths_max = 5\nwatchers = 5\n", "unknown field `watchers`"),
        ("log = 'longshore=loud'\n[resolver]\npaths_max = 5\n", "expected off, error, warn, info"),
    ] {
        case.write(text);
        replica.send(Signal::HUP);
        let line = replica.wait_for_stderr("SIGHUP: ");
        assert!(line.contains(expected) && line.contains("nothing has changed"), "{line}");
    }
    std::fs::remove_file(&case.file).unwrap();
    replica.send(Signal::HUP);
    let line = replica.wait_for_stderr("SIGHUP: ");
    assert!(line.contains("cannot read") && line.contains("nothing has changed"), "{line}");
    assert_eq!(status(&address).await.paths_max, 1_000);

    case.write("[resolver]\npaths_max = 5\n");
    replica.send(Signal::HUP);
    replica.wait_for_stderr("resolver.paths_max from 1000 to 5");
    assert_eq!(status(&address).await.paths_max, 5);
    replica.send(Signal::TERM);
    assert_eq!(replica.ended().code, 0);
}

/// A file at a default location is optional at the start, but its removal is an error at a reload.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_default_file_is_reported_and_changes_nothing() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join(".config/longshore");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("config.toml");
    std::fs::write(&file, OLD).unwrap();
    let mut command =
        longshore(&["resolver", "run", "--fresh", "--json", "--listen", "127.0.0.1:0"]);
    command.env("HOME", home.path());
    let mut replica = BackgroundCommand::start(command);
    let ready: Value = serde_json::from_str(&replica.line()).unwrap();
    let address = ready["address"].as_str().unwrap().to_owned();
    assert_eq!(status(&address).await.paths_max, 1_000);

    std::fs::remove_file(&file).unwrap();
    // Repeated reloads report it again.
    for _ in 0..2 {
        replica.send(Signal::HUP);
        let line = replica.wait_for_stderr("SIGHUP: ");
        let gone =
            format!("the configuration file {} is gone; nothing has changed", file.display());
        assert!(line.contains(&gone), "{line}");
        let now = status(&address).await;
        assert_eq!((now.paths_max, now.watches_max), (1_000, 100));
    }
    // Its folder may be missing too.
    std::fs::remove_dir_all(home.path().join(".config")).unwrap();
    replica.send(Signal::HUP);
    assert!(replica.wait_for_stderr("SIGHUP: ").contains("is gone; nothing has changed"));

    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(&file, OLD.replace("1000", "2000")).unwrap();
    replica.send(Signal::HUP);
    replica.wait_for_stderr("resolver.paths_max from 1000 to 2000");
    let now = status(&address).await;
    assert_eq!((now.paths_max, now.watches_max), (2_000, 100));
}

#[test]
fn a_publisher_reloads_its_log_and_reports_pending_restarts() {
    let case = Case::new("log = 'info'\n");
    let replica = longshore(&["resolver", "run", "--fresh", "--json", "--listen", "127.0.0.1:0"]);
    let replica = Service::start(replica);
    let data = case.folder.path().join("data");
    let at = replica.text("address").to_owned();
    let (mut publisher, _) = case.start(&[
        "publisher",
        "run",
        "--default",
        "/",
        "--resolver",
        &at,
        "--data",
        data.to_str().unwrap(),
    ]);
    case.write(
        "log = 'warn'\nresolvers = ['elsewhere']\ndata = '/elsewhere'\n\
         [publisher]\nhang_after = '5s'\n",
    );
    publisher.send(Signal::HUP);
    let line = publisher.wait_for_stderr("SIGHUP: ");
    assert!(line.contains("applied: log from info to warn"), "{line}");
    assert!(line.ends_with("needs a restart: publisher.hang_after from 30s to 5s\n"), "{line}");
    let ask = |arguments: &[&str]| {
        let mut command = longshore(arguments);
        command.args(["--resolver", &at]);
        run(command, b"")
    };
    ask(&["enqueue", "/still/there", "hello"]).code(0);
    publisher.send(Signal::TERM);
    assert_eq!(publisher.ended().code, 0);
}

fn config(file: &Path, arguments: &[&str]) -> common::CommandOutput {
    let mut command = longshore(&["config"]);
    command.args(arguments).arg("--config").arg(file);
    run(command, b"")
}

#[test]
fn config_check_prints_only_errors() {
    let case = Case::new(OLD);
    let ended = config(&case.file, &["--check"]).code(0);
    assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("", ""));
    case.write("[timing]\ntries = 0\n");
    let ended =
        config(&case.file, &["--check"]).code(2).stderr_has(&["config.toml:2: timing.tries"]);
    assert_eq!((ended.stdout.as_str(), ended.stderr.lines().count()), ("", 1));
    case.write("[resolver]\nlisten = '0.0.0.0:4770'\n");
    let ended = config(&case.file, &["--check"]).code(2).stderr_has(&["resolver.insecure = true"]);
    assert_eq!((ended.stdout.as_str(), ended.stderr.lines().count()), ("", 1));
}
