//! The file of an audit log, and the listener's records.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use longshore_access::{AccessControl, AuditVerifier, Identity};
use longshore_transport::{
    AUDIT_RECORDS_QUEUED_MAX, AuditClient, AuditLog, AuditedAct, ListenerOptions, dial,
};

use super::authorization::{policy, refused, secret, tokens, with_secret};
use crate::common::pem::Pem;
use crate::common::*;

fn pause(log: &AuditLog, target: &str) -> bool {
    let identity: Identity = "dns:ops.test".parse().unwrap();
    let address = SocketAddr::from(([192, 0, 2, 7], 4000));
    let client = AuditClient { server: "jobs-1", identity: Some(&identity), address };
    let targets = vec![target.to_owned()];
    let act = || AuditedAct { action: "pause", targets, detail: String::new() };
    log.allow(client, act).is_ok()
}

fn verified(files: &[&Path]) -> Vec<String> {
    let text: String = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    let mut verifier = AuditVerifier::default();
    text.lines().for_each(|line| verifier.line(line).unwrap());
    text.lines().map(str::to_owned).collect()
}

fn until_failing(log: &AuditLog, failing: bool) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while log.failing().is_some() != failing {
        assert!(std::time::Instant::now() < until);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn the_chain_continues_over_restarts_and_rotations() {
    let dir = tempfile::tempdir().unwrap();
    let (file, old) = (dir.path().join("audit.jsonl"), dir.path().join("audit.1"));
    let log = AuditLog::open(&file).unwrap();
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let twice = AuditLog::open(&file).unwrap_err().to_string();
    assert!(twice.contains("another process writes it"), "{twice}");
    assert!(pause(&log, "/1"));
    drop(log);
    // A crash has torn the last line.
    let mut text = fs::read_to_string(&file).unwrap();
    text.push_str("{\"seq\":3,\"ti");
    fs::write(&file, text).unwrap();
    let log = AuditLog::open(&file).unwrap();
    assert!(pause(&log, "/2"));
    // Without a rename it is the same file.
    log.reopen();
    assert!(pause(&log, "/3"));
    drop(log.clone());
    let log = {
        drop(log);
        AuditLog::open(&file).unwrap()
    };
    fs::rename(&file, &old).unwrap();
    log.reopen();
    while !file.exists() {
        std::thread::yield_now();
    }
    assert!(pause(&log, "/4"));
    drop(log);
    let lines = verified(&[&old, &file]);
    let has = |at: usize, part: &str| assert!(lines[at].contains(part), "{part}: {}", lines[at]);
    has(1, "\"identity\":\"dns:ops.test\",\"address\":\"192.0.2.7:4000\",\"action\":\"pause\"");
    has(2, "a line of 12 bytes without an end was cut off");
    has(3, "\"/2\"");
    has(4, "\"/3\"");
    has(5, "open the log");
    has(6, "\"after\":");
    has(7, "\"/4\"");
    assert_eq!((lines.len(), verified(&[&file]).len()), (8, 2));
    fs::write(&file, "notes\n").unwrap();
    let foreign = AuditLog::open(&file).unwrap_err().to_string();
    assert!(foreign.contains("move the file away"), "{foreign}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "notes\n");
}

#[test]
fn a_log_that_cannot_be_written_counts_what_it_has_no_room_for() {
    let dir = tempfile::tempdir().unwrap();
    let (file, old) = (dir.path().join("audit.jsonl"), dir.path().join("audit.1"));
    let log = AuditLog::open(&file).unwrap();
    fs::rename(&file, &old).unwrap();
    // Nothing can be written to a folder.
    fs::create_dir(&file).unwrap();
    log.reopen();
    until_failing(&log, true);
    assert!(!pause(&log, "/refused"));
    for _ in 0..AUDIT_RECORDS_QUEUED_MAX + 7 {
        log.rules_changed("jobs-1", &"1 rules added");
    }
    fs::remove_dir(&file).unwrap();
    until_failing(&log, false);
    // It may be full yet; it was refused only if so.
    let paused = pause(&log, "/allowed");
    drop(log);
    let lines = verified(&[&old, &file]);
    let with = |part: &str| lines.iter().filter(|line| line.contains(part)).count();
    assert_eq!(with("1 rules added"), AUDIT_RECORDS_QUEUED_MAX);
    assert_eq!(with("7 records had no room"), 1);
    assert_eq!((with("/refused"), with("/allowed")), (0, usize::from(paused)));
}

#[tokio::test]
async fn refused_clients_are_recorded_at_a_bounded_rate_and_without_their_secrets() {
    let (dir, pem) = (tempfile::tempdir().unwrap(), Pem::new());
    let file = dir.path().join("audit.jsonl");
    let audit = AuditLog::open(&file).unwrap();
    let control = AccessControl::new(policy(&[("token:other", "/a")]), tokens(&secret(1), None));
    let options = ListenerOptions { access_control: control, ..pem.listening(None) };
    let listener = listener(ListenerOptions { audit: audit.clone(), ..options }).await;
    let (at, dialling) = (listener.local_address(), pem.dialling(None, None));
    let began = std::time::Instant::now();
    for (byte, times) in [(2, 1), (3, 54), (1, 1)] {
        for _ in 0..times {
            refused(soon(dial(at, &with_secret(&secret(byte)), &dialling)).await);
        }
    }
    drop(listener);
    // The tasks of the listener have clones. Strangers do not hide the client that has an identity.
    let identity = "\"identity\":\"token:shop\"";
    let is_written = |text: String| text.contains(identity) && text.ends_with('\n');
    while !is_written(fs::read_to_string(&file).unwrap()) {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let in_one_period = began.elapsed() < std::time::Duration::from_secs(10);
    drop(audit);
    let lines = verified(&[&file]);
    let last = lines.last().unwrap();
    assert!(last.contains("Forbidden: ") && last.contains(identity), "{last}");
    assert!(lines[1].contains("\"action\":\"connect\",\"target\":\"worker\""), "{}", lines[1]);
    assert!(lines[1].contains("Unauthenticated: ") && !lines[1].contains("identity"));
    assert!(!in_one_period || lines.len() == 1 + 50 + 1, "{}", lines.len());
    for byte in 1..=3 {
        let secret = secret(byte);
        let text = std::str::from_utf8(secret.text()).unwrap();
        let hash = secret.hash().to_string();
        assert!(!lines.iter().any(|line| line.contains(text) || line.contains(&hash)));
    }
}
