//! The audit log of a replica.

use std::fs;
use std::time::Duration;

use longshore_access::{AccessControl, AuditVerifier, Policy};
use longshore_protocol::PublisherId;
use longshore_protocol::messages::resolver::RequestRefusal;
use longshore_transport::AuditLog;

use crate::server::socket_test::{Replica, cluster, in_time, path, reader, writer};
use crate::{CheckedTerms, ReplicaError};

async fn until_failing(audit: &AuditLog, failing: bool) {
    while audit.failing().is_some() != failing {
        in_time(tokio::time::sleep(Duration::from_millis(5))).await;
    }
}

#[tokio::test]
async fn announcements_acts_and_refusals_of_a_replica_are_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let (file, old) = (dir.path().join("audit.jsonl"), dir.path().join("audit.1"));
    let audit = AuditLog::open(&file).unwrap();
    let (publisher, other) = (PublisherId([1; 16]), PublisherId([9; 16]));
    let rules = format!(
        "publishers.\"{publisher}\" = [\"anonymous\"]\n\
         [[allow]]\nwho = [\"anonymous\"]\ndo = [\"*\"]\npaths = [\"/**\"]\n\
         [[deny]]\nwho = [\"anonymous\"]\ndo = [\"resolve\"]\npaths = [\"/b\"]\n"
    );
    let control = AccessControl::new(Some(Policy::parse(&rules).unwrap()), None);
    let replica = Replica::start_with("127.0.0.1:0".parse().unwrap(), |options| {
        options.access_control = control.clone();
        options.audit = audit.clone();
    });
    let replica = replica.await;
    let (cluster, at) = (cluster([&replica]), replica.address.to_string());
    let (writer, reader) = (writer(&cluster, 1), reader(&cluster));
    writer.publish(path("/a"), &CheckedTerms::default());
    in_time(writer.flushed(1)).await;
    in_time(reader.resolve(vec![path("/b")])).await.unwrap();
    assert!(!in_time(reader.forget_publisher(&at, other)).await.unwrap());

    fs::rename(&file, &old).unwrap();
    fs::create_dir(&file).unwrap();
    audit.reopen();
    until_failing(&audit, true).await;
    let refused = in_time(reader.forget_publisher(&at, other)).await.unwrap_err();
    let expected = RequestRefusal::NotAudited;
    assert!(
        matches!(&refused, ReplicaError::Refused { code, .. } if *code == expected),
        "{refused}"
    );
    in_time(reader.resolve(vec![path("/a")])).await.unwrap();
    writer.publish(path("/c"), &CheckedTerms::default());
    in_time(writer.flushed(1)).await;
    fs::remove_dir(&file).unwrap();
    until_failing(&audit, false).await;
    assert!(!in_time(reader.forget_publisher(&at, other)).await.unwrap());
    replica.kill().await;
    drop(audit);

    let text = fs::read_to_string(&old).unwrap() + &fs::read_to_string(&file).unwrap();
    let mut verifier = AuditVerifier::default();
    text.lines().for_each(|line| verifier.line(line).unwrap());
    let (publisher, other) = (format!("\"{publisher}\""), format!("\"{other}\""));
    let expected = [
        ["\"open the log\"", "\"after\"", "\"allowed\""],
        ["\"announce\"", &publisher, "\"detail\":\"publisher-1, epoch 1\",\"outcome\":\"allowed\""],
        ["\"resolve\"", "\"target\":\"/b\"", "\"refused\""],
        ["\"forget publisher\"", &other, "\"allowed\""],
        ["\"open the log\"", "\"after\"", "\"allowed\""],
        ["\"forget publisher\"", &other, "\"server\":\"resolver\""],
    ];
    assert_eq!(text.lines().count(), expected.len(), "{text}");
    for (line, parts) in text.lines().zip(expected) {
        assert!(parts.iter().all(|part| line.contains(part)), "{parts:?}: {line}");
    }
}
