//! The systemd units have the settings that operators rely on.
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is a test, its helpers too")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use longshore::{PublisherOptions, ServerOptions};

const RESOLVER: &str = include_str!("../../../packaging/systemd/longshore-resolver.service");
const PUBLISHER: &str = include_str!("../../../packaging/systemd/longshore-publisher.service");
const WORKER: &str = include_str!("../../../packaging/systemd/longshore-worker@.service");
/// Descriptors for pending handshakes, refused connections, and the rest of the process.
const BESIDE_CONNECTIONS: usize = 1_024 + 256 + 256;
/// The longest stop of a publisher: its last commit, goodbyes, the replicas.
const DRAIN_SECONDS: usize = 10 + 1 + 2;
/// The longest stop of a worker: its grace, SIGTERM and SIGKILL to commands, and answers.
const WORKER_DRAIN_SECONDS: usize = 25 + 11 + 5;

#[track_caller]
fn value<'a>(unit: &'a str, key: &str) -> &'a str {
    let mut values = unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let value = values.next().unwrap_or_else(|| panic!("no {key}"));
    assert_eq!(values.next(), None, "{key} twice");
    value
}

#[test]
fn units_restart_services_and_never_pass_fresh() {
    for unit in [RESOLVER, PUBLISHER, WORKER] {
        assert!(!value(unit, "ExecStart").contains("--fresh"));
        assert_eq!((value(unit, "Restart"), value(unit, "Type")), ("always", "notify"));
        assert_eq!(value(unit, "StartLimitIntervalSec"), "0");
        assert_eq!(value(unit, "DynamicUser"), "yes");
        assert_eq!(value(unit, "SupplementaryGroups"), "longshore");
        value(unit, "WatchdogSec");
    }
    for unit in [RESOLVER, PUBLISHER] {
        assert_eq!(value(unit, "ExecReload"), "/bin/kill -HUP $MAINPID");
    }
    // SIGHUP ends a worker, and SIGTERM to its commands would fail their jobs.
    assert!(!WORKER.contains("ExecReload"));
    assert_eq!(value(WORKER, "KillMode"), "mixed");
    let resolver = "longshore resolver run --data %S/longshore-resolver";
    assert_eq!(value(RESOLVER, "ExecStart"), resolver);
    assert_eq!(value(RESOLVER, "StateDirectory"), "longshore-resolver");
    // One file of settings names the audit log of both, relative to these.
    assert_eq!(value(RESOLVER, "LogsDirectory"), "longshore-resolver");
    assert_eq!(value(PUBLISHER, "LogsDirectory"), "longshore");
    assert_eq!(value(PUBLISHER, "ExecStart"), "longshore publisher run");
    assert_eq!(value(PUBLISHER, "StateDirectory"), "longshore");
}

#[test]
fn units_allow_enough_files_and_drain_time() {
    let number = |unit, key| value(unit, key).parse::<usize>().unwrap();
    let replica = ServerOptions::default().connections_max + BESIDE_CONNECTIONS;
    assert!(number(RESOLVER, "LimitNOFILE") > replica);
    let publisher = PublisherOptions::CONNECTIONS_MAX + BESIDE_CONNECTIONS;
    assert!(number(PUBLISHER, "LimitNOFILE") > publisher);
    assert!(number(PUBLISHER, "TimeoutStopSec") > DRAIN_SECONDS);
    assert!(number(WORKER, "TimeoutStopSec") > WORKER_DRAIN_SECONDS);
}

/// What a maintainer script does to units, where these units run.
fn acts(script: &str, arguments: &[&str], programs: &[&str]) -> Vec<String> {
    const STUB: &str = r#"#!/bin/sh
for last; do :; done
if [ "$1" = list-units ]; then
    for unit in longshore-worker@mail longshore-worker-stats longshore-publisher longshore-web \
        longshore-resolver longshore-resolver-exporter; do
        case $unit.service in $last) echo "$unit.service loaded active running" ;; esac
    done
else
    echo "${0##*/} $*" >> "${0%/*}/log"
fi
"#;
    let folder = tempfile::tempdir().unwrap();
    for program in programs {
        let stub = folder.path().join(program);
        fs::write(&stub, STUB).unwrap();
        fs::set_permissions(stub, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/debian").join(script);
    let text = fs::read_to_string(file).unwrap().replace("/run/systemd/system", "/");
    // Only what the scripts need: this machine may have the real programs.
    std::os::unix::fs::symlink("/usr/bin/cut", folder.path().join("cut")).unwrap();
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &text, script]).args(arguments).env("PATH", folder.path());
    assert!(shell.status().unwrap().success());
    let log = fs::read_to_string(folder.path().join("log")).unwrap();
    log.lines().map(str::to_owned).collect()
}

#[test]
fn the_package_restarts_and_stops_its_own_units_alone() {
    let programs = ["systemctl", "deb-systemd-invoke", "systemd-sysusers"];
    let [group, reload] = ["systemd-sysusers longshore.conf", "systemctl daemon-reload"];
    let first = acts("postinst", &["configure", ""], &programs);
    assert_eq!(first, [group, reload], "a first installation");
    let restarted = [
        group,
        reload,
        "deb-systemd-invoke restart longshore-resolver.service",
        "deb-systemd-invoke restart longshore-publisher.service",
        "deb-systemd-invoke restart longshore-worker@mail.service",
    ];
    assert_eq!(acts("postinst", &["configure", "0.1.0"], &programs), restarted);
    let stopped = [
        "systemctl stop longshore-worker@mail.service",
        "systemctl stop longshore-publisher.service",
        "systemctl stop longshore-resolver.service",
    ];
    assert_eq!(acts("prerm", &["remove"], &programs[..1]), stopped);
}
