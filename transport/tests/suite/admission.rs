//! Which diallers are admitted at a limit, and what the others are sent.

use std::time::{Duration, Instant};

use crate::common::pem::Pem;
use crate::common::*;
use longshore_access::{AccessControl, Policy};
use longshore_protocol::handshake::MAGIC;
use longshore_protocol::{Handshake, HandshakeAnswer, HandshakeRefusal, Role};
use longshore_transport::{
    DialError, Link, LinkOptions, Listener, ListenerOptions, ReservedSlots, ServerInfo, dial,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A timeout so long that no test here reaches it.
fn patient() -> ListenerOptions {
    ListenerOptions { handshake_timeout: 10 * SOON, ..listening() }
}

fn patient_dialler() -> LinkOptions {
    LinkOptions { handshake_timeout: SOON, ..dialling() }
}

fn handshake_as(role: Role) -> Handshake {
    Handshake { role, ..handshake() }
}

async fn dial_as(listener: &Listener, role: Role) -> Result<Link, DialError> {
    soon(dial(listener.local_address(), &handshake_as(role), &patient_dialler())).await
}

fn busy(error: DialError) -> String {
    match error {
        DialError::Refused { code: HandshakeRefusal::Busy, reason, .. } => reason,
        error => panic!("{error}"),
    }
}

/// Connections that have sent `bytes` and then wait.
async fn waiting(listener: &Listener, count: usize, bytes: &[u8]) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    for _ in 0..count {
        let mut stream = TcpStream::connect(listener.local_address()).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        streams.push(stream);
    }
    streams
}

#[tokio::test]
async fn links_of_values_at_their_limit_leave_slots_for_workers() {
    let options =
        ListenerOptions { connections_max: 4, value_connections_max: Some(2), ..patient() };
    let mut listener = listener(options).await;
    let mut links = Vec::new();
    for role in [Role::Values, Role::Values, Role::Worker, Role::Worker] {
        if links.len() == 2 {
            let reason = busy(dial_as(&listener, Role::Values).await.unwrap_err());
            assert!(reason.contains("2 of 2 connections for live values are taken"), "{reason}");
        }
        links.push((dial_as(&listener, role).await.unwrap(), listener.accept().await));
    }
    let reason = busy(dial_as(&listener, Role::Worker).await.unwrap_err());
    assert!(reason.contains("4 of 4 connections are taken"), "{reason}");
}

#[tokio::test]
async fn a_reserved_slot_is_for_clients_with_the_rights_of_its_role() {
    let policy = |action: &str| {
        let rule = format!("[[allow]]\nwho = [\"anonymous\"]\ndo = [{action:?}]\n");
        Some(Policy::parse(&format!("{rule}paths = [\"/**\"]")).unwrap())
    };
    for (role, without, with) in [
        (Role::Tool, "inspect", "operate"),
        (Role::Worker, "enqueue", "work"),
        (Role::ResolverWriter, "resolve", "serve"),
        (Role::ResolverWriter, "resolve", "publish"),
    ] {
        let access_control = AccessControl::new(policy(without), None);
        let reserved = vec![ReservedSlots { role, slots: 1 }];
        let (connections_max, control) = (2, access_control.clone());
        let options = ListenerOptions { connections_max, reserved, access_control, ..patient() };
        let server = ServerInfo { serves: |_| true, ..info() };
        let mut listener = Listener::bind(LOOPBACK, server, options).unwrap();
        let _first = (dial_as(&listener, role).await.unwrap(), listener.accept().await);
        busy(dial_as(&listener, role).await.unwrap_err());
        control.replace(policy(with), None);
        dial_as(&listener, role).await.unwrap();
    }
}

#[tokio::test]
async fn reserved_slots_admit_only_their_role_and_refusals_name_it() {
    let reserved = vec![ReservedSlots { role: Role::Tool, slots: 1 }];
    let mut listener =
        listener(ListenerOptions { connections_max: 3, reserved, ..patient() }).await;
    let mut links = Vec::new();
    for _ in 0..2 {
        links.push((dial_as(&listener, Role::Worker).await.unwrap(), listener.accept().await));
    }
    let reason = busy(dial_as(&listener, Role::Worker).await.unwrap_err());
    for part in ["`here`", "worker", "2 of 3 connections", "1 are reserved for the role `tool`"] {
        assert!(reason.contains(part), "{reason}");
    }
    let tool = dial_as(&listener, Role::Tool).await.unwrap();
    let accepted = soon(listener.accept()).await;
    let reason = busy(dial_as(&listener, Role::Tool).await.unwrap_err());
    assert!(reason.contains("3 of 3 connections"), "{reason}");
    assert_eq!(listener.connections(), 3);

    drop((tool, accepted));
    let again = async { while dial_as(&listener, Role::Tool).await.is_err() {} };
    soon(again).await;
    assert!(dial_as(&listener, Role::Worker).await.is_err(), "the slot was a reserved one");
}

#[tokio::test]
async fn a_silent_handshake_is_displaced_by_the_next_dialler() {
    let mut listener = listener(ListenerOptions { handshakes_max: 4, ..patient() }).await;
    let mut silent = waiting(&listener, 4, b"").await;
    // Each takes the permit of the one that has been silent the longest.
    for _ in 0..3 {
        let link = dial_as(&listener, Role::Worker).await.unwrap();
        drop((link, soon(listener.accept()).await));
        silent.extend(waiting(&listener, 1, b"").await);
    }
    for stream in &mut silent[..3] {
        let answer = soon(raw_answer(stream)).await;
        let HandshakeAnswer::Refused { code: HandshakeRefusal::Busy, reason } = answer else {
            panic!("{answer:?}")
        };
        assert!(reason.contains("limit of handshakes (4)"), "{reason}");
        assert_eq!(soon(stream.read(&mut [0; 8])).await.unwrap(), 0, "closed");
    }
}

#[tokio::test]
async fn a_handshake_that_has_begun_is_not_displaced_within_a_second() {
    let listener = listener(ListenerOptions { handshakes_max: 2, ..patient() }).await;
    let begun = Instant::now();
    let speaking = waiting(&listener, 2, &MAGIC).await;
    let mut refused = 0;
    let taken_at = loop {
        match dial_as(&listener, Role::Worker).await {
            Ok(_) => break begun.elapsed(),
            Err(error) => {
                let reason = busy(error);
                assert!(reason.contains("limit of handshakes (2)"), "{reason}");
                refused += 1;
            }
        }
        assert!(begun.elapsed() < SOON);
    };
    assert!(refused > 0 && taken_at >= Duration::from_secs(1), "{refused} in {taken_at:?}");
    drop(speaking);
}

#[tokio::test]
async fn an_honest_dialler_is_admitted_beside_1024_that_send_a_byte_every_900_ms() {
    let options = ListenerOptions { descriptors_reserved: 2_048, ..patient() };
    let mut listener = listener(options).await;
    let begun = Instant::now();
    let mut slow = waiting(&listener, 1_024, &MAGIC[..1]).await;
    let trickling = tokio::spawn(async move {
        // Never a whole handshake: its last bytes never come.
        for byte in [&MAGIC[1..], &[200, 0, 0, 0], &[0; 100]].concat() {
            tokio::time::sleep(Duration::from_millis(900)).await;
            for stream in &mut slow {
                // Those that were displaced are closed.
                let _ = stream.try_write(&[byte]);
            }
        }
    });
    // All of them have begun, and the first second of each is over.
    tokio::time::sleep(Duration::from_secs(2)).await;
    for _ in 0..20 {
        let link = dial_as(&listener, Role::Worker).await.unwrap();
        drop((link, soon(listener.accept()).await));
    }
    assert!(begun.elapsed() < SOON);
    trickling.abort();
}

#[tokio::test]
async fn a_slow_handshake_ends_at_its_deadline_counted_from_the_connection() {
    let limit = Duration::from_millis(500);
    let listener = listener(ListenerOptions { handshake_timeout: limit, ..listening() }).await;
    let begun = Instant::now();
    let mut stream = waiting(&listener, 1, &MAGIC).await.remove(0);
    for byte in [200, 0, 0, 0].into_iter().chain([0; 100]) {
        tokio::time::sleep(Duration::from_millis(50)).await;
        if stream.write_all(&[byte]).await.is_err() {
            break;
        }
        assert!(begun.elapsed() < 4 * limit, "it never ends");
    }
    assert!(begun.elapsed() >= limit);
}

#[tokio::test]
async fn a_refused_dialler_that_stays_occupies_no_handshake_permit() {
    let options = ListenerOptions { handshakes_max: 1, refusals_max: 2, ..patient() };
    let listener = listener(options).await;
    let mut refused = Vec::new();
    // More than the listener waits for: each is refused all the same.
    for _ in 0..6 {
        let lost = handshake_bytes(&handshake_as(Role::ResolverReader));
        let mut stream = waiting(&listener, 1, &lost).await.remove(0);
        let answer = soon(raw_answer(&mut stream)).await;
        let wrong_role = matches!(
            answer,
            HandshakeAnswer::Refused { code, .. } if code == HandshakeRefusal::WrongRole
        );
        assert!(wrong_role, "{answer:?}");
        refused.push(stream);
        dial_as(&listener, Role::Worker).await.unwrap();
    }
}

#[tokio::test]
async fn busy_is_sent_even_beyond_the_limit_of_refusals() {
    let options = ListenerOptions { handshakes_max: 1, refusals_max: 0, ..patient() };
    let listener = listener(options).await;
    let _speaking = waiting(&listener, 1, &MAGIC).await;
    for _ in 0..10 {
        let reason = busy(dial_as(&listener, Role::Worker).await.unwrap_err());
        assert!(reason.contains("handshakes"), "{reason}");
    }
}

#[tokio::test]
async fn an_excess_connection_is_refused_with_busy_over_tls() {
    let pem = Pem::new();
    let options = ListenerOptions { connections_max: 1, ..pem.listening(None) };
    let mut listener = listener(options).await;
    let address = listener.local_address();
    let dialling = pem.dialling(None, None);
    let _link = soon(dial(address, &handshake(), &dialling)).await.unwrap();
    let _accepted = soon(listener.accept()).await;
    let reason = busy(soon(dial(address, &handshake(), &dialling)).await.unwrap_err());
    assert!(reason.contains("1 of 1 connections"), "{reason}");
}

/// The first byte of a TLS record: a handshake.
const TLS_BEGUN: &[u8] = &[0x16];

#[tokio::test]
async fn over_tls_an_excess_handshake_is_refused_and_a_silent_one_displaced() {
    let pem = Pem::new();
    let tls = pem.listening(None);
    let options = ListenerOptions { handshakes_max: 1, handshake_timeout: 10 * SOON, ..tls };
    let listener = listener(options).await;
    let dialling = LinkOptions { handshake_timeout: SOON, ..pem.dialling(None, None) };
    let silent = waiting(&listener, 1, b"").await;
    soon(dial(listener.local_address(), &handshake(), &dialling)).await.unwrap();

    let begun = waiting(&listener, 1, TLS_BEGUN).await;
    let reason =
        busy(soon(dial(listener.local_address(), &handshake(), &dialling)).await.unwrap_err());
    assert!(reason.contains("handshakes"), "{reason}");
    drop((silent, begun));
}

#[tokio::test]
async fn over_tls_without_room_for_a_refusal_the_connection_closes_at_once() {
    let pem = Pem::new();
    let tls = pem.listening(None);
    let options =
        ListenerOptions { handshakes_max: 1, refusals_max: 0, handshake_timeout: 10 * SOON, ..tls };
    let listener = listener(options).await;
    let dialling = LinkOptions { handshake_timeout: 10 * SOON, ..pem.dialling(None, None) };
    let _begun = waiting(&listener, 1, TLS_BEGUN).await;
    let error = soon(dial(listener.local_address(), &handshake(), &dialling)).await.unwrap_err();
    assert!(matches!(error, DialError::Tls { .. } | DialError::Io { .. }), "{error}");
}
