//! TLS and the cluster's name, by configuration: a whole system, who is refused, and certificates
//! that are replaced while it runs.
#![allow(clippy::unwrap_used, reason = "this is a test, its helpers too")]

use crate::common;

use std::path::PathBuf;
use std::process::Command;

use common::{BackgroundCommand, CommandOutput, longshore, run};
use rustix::process::Signal;
use serde_json::Value;

/// A folder with a certificate authority, a certificate of this host, and a configuration.
struct Host {
    folder: tempfile::TempDir,
}

impl Host {
    fn new() -> Host {
        let host = Host { folder: tempfile::tempdir().unwrap() };
        host.make_certificates();
        let at = |name: &str| host.path(name).display().to_string();
        std::fs::write(
            host.path("config.toml"),
            format!(
                "cluster = 'prod'\n[tls]\nca = '{}'\ncertificate = '{}'\nkey = '{}'\n",
                at("ca.pem"),
                at("host.pem"),
                at("host.key")
            ),
        )
        .unwrap();
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// An authority and a certificate, in place of those that exist.
    fn make_certificates(&self) {
        let new = tempfile::tempdir_in(self.folder.path()).unwrap();
        let dir = new.path().to_str().unwrap();
        let of_ca = ["cert", "ca", "--dir", dir];
        let of_host = ["cert", "issue", "host", "--host", "127.0.0.1", "--dir", dir, "--out", dir];
        run(longshore(&of_ca), b"").code(0);
        run(longshore(&of_host), b"").code(0);
        for name in ["ca.pem", "ca.key", "host.pem", "host.key"] {
            std::fs::rename(new.path().join(name), self.path(name)).unwrap();
        }
    }

    /// A certificate that ends in three days, in place of the one that exists.
    fn renew_for_three_days(&self) {
        let dir = self.folder.path().to_str().unwrap();
        let renew = ["cert", "issue", "host", "--host", "127.0.0.1", "--days", "3", "--replace"];
        run(longshore(&[&renew[..], &["--dir", dir]].concat()), b"").code(0);
    }

    /// A command with the configuration of this host.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = longshore(arguments);
        command.arg("--config").arg(self.path("config.toml"));
        command
    }

    fn service(&self, arguments: &[&str]) -> (BackgroundCommand, String) {
        let mut command = self.command(arguments);
        command.args(["--json", "--listen", "127.0.0.1:0"]);
        let mut service = BackgroundCommand::start(command);
        let ready: Value = serde_json::from_str(&service.line()).unwrap();
        let address = ready["address"].as_str().unwrap().to_owned();
        (service, address)
    }
}

#[test]
fn a_system_under_tls_admits_its_own_and_its_certificates_are_replaced_while_it_runs() {
    let host = Host::new();
    let (mut replica, resolver) = host.service(&["resolver", "run", "--fresh"]);
    let data = host.path("data");
    let run_publisher = ["publisher", "run", "--resolver", &resolver, "--default", "/"];
    let data_flag = ["--data", data.to_str().unwrap()];
    let (mut publisher, _) = host.service(&[&run_publisher[..], &data_flag].concat());
    let at = |host: &Host, arguments: &[&str]| -> CommandOutput {
        let mut command = host.command(arguments);
        command.args(["--resolver", &resolver]);
        run(command, b"")
    };
    at(&host, &["enqueue", "/jobs/a", "x"]).code(0);
    let status = at(&host, &["publisher", "status", "--json"]).code(0).json();
    let id = status["publishers"][0]["publisher"].as_str().unwrap();
    at(&host, &["publisher", "drain", id, "--dry-run"]).code(0);
    let mut worker = host.command(&["work", "--resolver", &resolver, "/jobs/a", "--until-empty"]);
    worker.args(["--", "cat"]);
    run(worker, b"").code(0);

    let stranger = ["stat", "--resolver", &resolver, "--cluster", "prod"];
    let (ca, mut without) = (host.path("ca.pem"), longshore(&stranger));
    without.arg("--tls-ca").arg(ca);
    // Each takes the time of some tries.
    std::thread::scope(|threads| {
        threads.spawn(|| {
            at(&host, &["stat", "--cluster", "test"]).code(3).stderr_has(&["`prod`", "`test`"])
        });
        threads.spawn(|| run(longshore(&stranger), b"").code(3).stderr_has(&["TLS"]));
        run(without, b"").code(3).stderr_has(&["TLS"]);
    });

    let before = Host::new();
    for name in ["ca.pem", "host.pem", "host.key"] {
        std::fs::copy(host.path(name), before.path(name)).unwrap();
    }
    host.make_certificates();
    for service in [&mut replica, &mut publisher] {
        service.send(Signal::HUP);
        // Before the report of the reload, so that it is not the timer's.
        service.wait_for_stderr("certificates have changed");
        service.wait_for_stderr("SIGHUP: ");
    }
    at(&host, &["enqueue", "/jobs/a", "x"]).code(0);
    at(&before, &["stat"]).code(3).stderr_has(&["TLS"]);
    let stat = at(&host, &["stat", "--json"]).code(0).json();
    assert_eq!(stat["queues"][0]["completed"], 1, "{stat}");
    assert_eq!(stat["queues"][0]["ready"], 1, "{stat}");

    let certificate = format!("certificate {}", host.path("host.pem").display());
    let check = at(&host, &["check"]).code(0).stdout;
    assert!(check.contains(&format!("OK       {certificate}: ")), "{check}");
    host.renew_for_three_days();
    let check = at(&host, &["check"]).code(0).stdout;
    assert!(check.contains(&format!("WARNING  {certificate}: EXPIRES in ")), "{check}");
    let (mut other, _) = host.service(&["resolver", "run", "--fresh"]);
    assert!(other.wait_for_stderr("EXPIRES in ").contains(&certificate));

    // What cannot be used does not keep the rest from changing.
    std::fs::write(host.path("host.key"), "nothing").unwrap();
    let config = std::fs::read_to_string(host.path("config.toml")).unwrap();
    std::fs::write(host.path("config.toml"), format!("log = 'debug'\n{config}")).unwrap();
    replica.send(Signal::HUP);
    replica.wait_for_stderr(" to debug");
    replica.wait_for_stderr("everything else is reloaded");
}

#[test]
fn what_tls_lacks_is_named() {
    let host = Host::new();
    let (ca, certificate) = (host.path("ca.pem"), host.path("host.pem"));
    let (ca, certificate) = (ca.to_str().unwrap(), certificate.to_str().unwrap());
    let replica = |more: &[&str]| {
        let mut command = longshore(&["resolver", "run", "--listen", "127.0.0.1:0"]);
        command.args(more);
        run(command, b"").code(2)
    };
    replica(&["--tls-ca", ca]).stderr_has(&["tls.certificate and tls.key"]);
    replica(&["--tls-certificate", certificate]).stderr_has(&["set tls.key"]);
    let everywhere = ["resolver", "run", "--listen", "0.0.0.0:0", "--tls-certificate", certificate];
    let mut open = longshore(&everywhere);
    open.arg("--tls-key").arg(host.path("host.key"));
    run(open, b"").code(2).stderr_has(&["admit clients without a certificate", "tls.ca"]);
    let config = host.path("config.toml");
    std::fs::remove_file(ca).unwrap();
    replica(&["--config", config.to_str().unwrap()]).stderr_has(&[ca]);
    run(host.command(&["config", "--check"]), b"").code(2).stderr_has(&[ca]);
}

/// The files of a cluster in `packaging/cluster`, each with certificates as its first lines say.
#[test]
fn the_example_of_a_cluster_is_valid() {
    let pki = tempfile::tempdir().unwrap();
    let dir = pki.path().to_str().unwrap();
    run(longshore(&["cert", "ca", "--dir", dir]), b"").code(0);
    for entry in std::fs::read_dir("../packaging/cluster").unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let issue = text.lines().find_map(|line| line.strip_prefix("#   longshore ")).unwrap();
        let mut command = longshore(&issue.split(' ').collect::<Vec<_>>());
        command.args(["--dir", dir, "--out", dir]);
        run(command, b"").code(0);
        let file = pki.path().join("config.toml");
        std::fs::write(&file, text.replace("/etc/longshore", dir)).unwrap();
        let check = ["config", "--check", "--config", file.to_str().unwrap()];
        run(longshore(&check), b"").code(0);
    }
}

#[test]
fn up_makes_a_secured_system_in_one_command() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let data = data.to_str().unwrap();
    let up = ["up", "--tls-dev", "--resolver-port", "0", "--publisher-port", "0", "--replicas"];
    for json in [true, false] {
        let mut command = longshore(&up);
        command.args(["1", "--cluster", "dev", "--data", data]);
        command.args(json.then_some("--json"));
        let mut system = BackgroundCommand::start(command);
        // What another terminal needs.
        let export = if json {
            let ready: Value = serde_json::from_str(&system.line()).unwrap();
            let resolver = ready["resolvers"][0].as_str().unwrap();
            let stat = run(longshore(&["stat", "--resolver", resolver]), b"").code(3);
            stat.stderr_has(&["speaks TLS; dial it with", "--tls-ca FILE"]);
            assert_eq!(ready["environment"]["LONGSHORE_CONFIG"], ready["config"]);
            format!("export LONGSHORE_CONFIG={}", ready["config"].as_str().unwrap())
        } else {
            while system.line() != "In another terminal:\n" {}
            system.line()
        };
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("{export}\n$0 enqueue /jobs/a x"));
        shell.arg(env!("CARGO_BIN_EXE_longshore")).env("HOME", "/nonexistent");
        run(shell, b"").code(0);
        system.send(Signal::TERM);
        assert_eq!(system.ended().code, 0);
    }
}
