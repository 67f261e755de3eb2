//! How links are established, and how that fails.

use std::time::{Duration, Instant};

use crate::common::*;
use longshore_protocol::handshake::MAGIC;
use longshore_protocol::{
    Address, Epoch, Handshake, HandshakeAnswer, HandshakeRefusal, HostAddress, LinkTiming,
    NameError, PublisherId, PublisherInfo, Role, Welcome,
};
use longshore_transport::{
    BindError, DialError, LastAddress, LinkOptions, Listener, ListenerOptions, Peer, dial,
    dial_publisher,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::test]
async fn both_sides_learn_the_others_identity_and_the_shorter_timing() {
    let (dialled, accepted, _listener) = link().await;
    let Peer::Server(welcome) = dialled.peer() else { panic!("the dialler sees a server") };
    assert_eq!((welcome.instance, welcome.epoch, welcome.name.as_str()), ([9; 16], 4, "here"));
    let Peer::Client(handshake) = accepted.peer() else { panic!("the listener sees a client") };
    assert_eq!((handshake.role, handshake.name.as_str()), (Role::Worker, "worker-1"));
    assert_eq!((dialled.timing(), accepted.timing()), (TIMING, TIMING));
    assert_eq!((dialled.version(), accepted.version()), (1, 1));
}

#[tokio::test]
async fn both_sides_report_their_common_features() {
    let mut listener = listener(ListenerOptions { features: 0b011, ..listening() }).await;
    let handshake = Handshake { features: 1 << 63 | 0b110, ..handshake() };
    let dialled = soon(dial(listener.local_address(), &handshake, &dialling())).await.unwrap();
    let accepted = soon(listener.accept()).await;
    assert_eq!((dialled.features(), accepted.features()), (0b010, 0b010));
}

#[tokio::test]
async fn a_host_name_is_resolved_at_dial_and_its_addresses_tried_in_order() {
    let listener = listener(listening()).await;
    let port = listener.local_address().port();
    let host = |name: &str| Address::Host(HostAddress::new(name, port).unwrap());
    // On most machines `::1`, where nothing listens, comes first.
    let reach = async |name: &str| {
        let (id, last) = (PublisherId(info().instance), LastAddress::default());
        let publisher = PublisherInfo::new(id, Epoch(1), "here", [host(name)]);
        soon(dial_publisher(&publisher, &last, &handshake(), &dialling())).await
    };
    let link = reach("localhost").await.unwrap();
    assert_eq!(link.peer_address(), listener.local_address());
    let error = reach("nowhere.invalid").await.unwrap_err();
    let DialError::AllAddressesFailed(failures) = &error else { panic!("{error}") };
    assert!(matches!(failures[..], [(_, DialError::Lookup(_))]), "{error}");
    assert!(error.to_string().contains("nowhere.invalid"), "{error}");
}

#[tokio::test]
async fn value_links_have_a_timing_of_their_own() {
    let options = ListenerOptions { value_timing: LinkTiming::VALUES, ..listening() };
    let listener = listener(options).await;
    let handshake = Handshake { role: Role::Values, timing: LinkTiming::VALUES, ..handshake() };
    let link = LinkOptions { timing: LinkTiming::VALUES, ..dialling() };
    let link = dial(listener.local_address(), &handshake, &link).await.unwrap();
    assert_eq!(link.timing(), LinkTiming::VALUES);
}

#[tokio::test]
async fn frames_sent_right_behind_the_handshake_are_not_lost() {
    let mut listener = listener(listening()).await;
    let mut stream = TcpStream::connect(listener.local_address()).await.unwrap();
    let mut bytes = handshake_bytes(&handshake());
    bytes.extend(bytes_of(&frame(7, 100)));
    stream.write_all(&bytes).await.unwrap();
    let (_sender, mut receiver) = soon(listener.accept()).await.split();
    assert_eq!(number(&soon(receiver.recv()).await.unwrap()), 7);
}

#[tokio::test]
async fn a_dialler_of_another_version_is_refused_with_both_ranges() {
    let listener = listener(listening()).await;
    let later = Handshake { version_min: 2, version_max: 5, ..handshake() };
    let error = soon(dial(listener.local_address(), &later, &dialling())).await.unwrap_err();
    let DialError::Version { reason, .. } = error else { panic!("{error}") };
    assert!(reason.contains("2 to 5") && reason.contains("1 to 1"), "{reason}");
}

#[tokio::test]
async fn an_empty_or_too_long_name_is_not_dialled_with() {
    let server = TcpListener::bind(LOOPBACK).await.unwrap();
    let address = server.local_addr().unwrap();
    for bytes in [0, 129] {
        let handshake = Handshake { name: "n".repeat(bytes), ..handshake() };
        let error = soon(dial(address, &handshake, &dialling())).await.unwrap_err();
        assert!(matches!(error, DialError::Name(NameError(length)) if length == bytes), "{error}");
    }
    let handshake = Handshake { name: "n".repeat(128), ..handshake() };
    let dialled = tokio::spawn(async move { dial(address, &handshake, &dialling()).await });
    // The only connection that was made.
    let (mut stream, _) = soon(server.accept()).await.unwrap();
    let mut magic = [0; MAGIC.len()];
    soon(stream.read_exact(&mut magic)).await.unwrap();
    assert_eq!(magic, MAGIC);
    dialled.abort();
}

#[tokio::test]
async fn a_version_that_was_not_offered_is_an_error() {
    let server = TcpListener::bind(LOOPBACK).await.unwrap();
    let address = server.local_addr().unwrap();
    let answer = HandshakeAnswer::Welcome(Welcome {
        version: 2,
        timing: LinkTiming::WORK,
        frame_bytes_max: 1 << 20,
        instance: [0; 16],
        epoch: 0,
        name: String::new(),
        features: 0,
    });
    let server = tokio::spawn(async move {
        let (mut stream, _) = server.accept().await.unwrap();
        stream.write_all(&handshake_bytes(&answer)).await.unwrap();
        stream
    });
    let error = soon(dial(address, &handshake(), &dialling())).await.unwrap_err();
    assert!(matches!(error, DialError::Version { .. }), "{error}");
    drop(server.await.unwrap());
}

#[tokio::test]
async fn a_resolver_reader_is_refused_by_a_publisher_with_the_reason() {
    let listener = listener(listening()).await;
    let lost = Handshake { role: Role::ResolverReader, ..handshake() };
    let error = soon(dial(listener.local_address(), &lost, &dialling())).await.unwrap_err();
    let DialError::Refused { code, reason, .. } = error else { panic!("{error}") };
    assert_eq!(code, HandshakeRefusal::WrongRole);
    assert!(reason.contains("`here`") && reason.contains("resolver reader"), "{reason}");
}

#[tokio::test]
async fn silent_connections_occupy_no_slots_and_block_no_others() {
    let options = ListenerOptions { connections_max: 1, handshakes_max: 4, ..listening() };
    let mut listener = listener(options).await;
    let address = listener.local_address();
    let mut silent = Vec::new();
    for _ in 0..3 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let _link = soon(dial(address, &handshake(), &dialling())).await.unwrap();
    soon(listener.accept()).await;
    for stream in &mut silent {
        assert_eq!(soon(stream.read(&mut [0; 64])).await.unwrap_or(0), 0, "closed at the timeout");
    }
}

#[tokio::test]
async fn a_stopping_listener_refuses_with_stopping() {
    let listener = listener(listening()).await;
    listener.refuse_new();
    let error = soon(dial(listener.local_address(), &handshake(), &dialling())).await.unwrap_err();
    assert!(
        matches!(error, DialError::Refused { code: HandshakeRefusal::Stopping, .. }),
        "{error}"
    );
}

#[tokio::test]
async fn garbage_is_refused_and_closed_without_effect_on_other_links() {
    let mut listener = listener(listening()).await;
    let address = listener.local_address();
    let (good, mut received) = {
        let dialled = dial(address, &handshake(), &dialling()).await.unwrap();
        (dialled.split(), soon(listener.accept()).await.split())
    };
    let too_long = [&MAGIC[..], &5_000u32.to_le_bytes()].concat();
    let not_a_handshake = [&MAGIC[..], &3u32.to_le_bytes(), &[255; 3]].concat();
    for garbage in [b"GET / HTTP/1.1\r\n\r\n".to_vec(), too_long, not_a_handshake] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&garbage).await.unwrap();
        let answer = soon(raw_answer(&mut stream)).await;
        let HandshakeAnswer::Refused { code, reason } = answer else { panic!("{answer:?}") };
        assert_eq!(code, HandshakeRefusal::Malformed);
        assert!(!reason.is_empty());
        let answered_at = Instant::now();
        assert_eq!(soon(stream.read(&mut [0; 64])).await.unwrap(), 0, "closed");
        assert!(answered_at.elapsed() < Duration::from_millis(500), "closed at once");
    }
    good.0.send(frame(1, 10)).unwrap();
    assert_eq!(number(&soon(received.1.recv()).await.unwrap()), 1);
}

#[tokio::test]
async fn a_server_of_another_protocol_is_reported_as_not_longshore() {
    let tls_alert = b"\x15\x03\x01\x00\x02\x02\x46\x00";
    for (banner, is_tls) in [(&b"SSH-2.0-OpenSSH_9.2\r\n"[..], false), (tls_alert, true)] {
        let server = TcpListener::bind(LOOPBACK).await.unwrap();
        let address = server.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = server.accept().await.unwrap();
            stream.write_all(banner).await.unwrap();
            stream
        });
        let error = soon(dial(address, &handshake(), &dialling())).await.unwrap_err();
        match &error {
            DialError::NeedsTls { .. } => assert!(is_tls, "{error}"),
            DialError::NotLongshore { detail, .. } => {
                assert!(!is_tls && detail.contains("begins with"), "{detail}");
            }
            _ => panic!("{error}"),
        }
        drop(server.await.unwrap());
    }
}

#[tokio::test]
async fn a_server_that_hangs_in_the_handshake_ends_the_dial_at_the_timeout() {
    let server = TcpListener::bind(LOOPBACK).await.unwrap();
    let mut options = dialling();
    options.handshake_timeout = Duration::from_millis(50);
    let error = soon(dial(server.local_addr().unwrap(), &handshake(), &options)).await.unwrap_err();
    assert!(matches!(error, DialError::HandshakeTimeout { .. }), "{error}");
}

#[tokio::test]
async fn a_server_that_closes_in_the_handshake_is_an_io_error() {
    let server = TcpListener::bind(LOOPBACK).await.unwrap();
    let address = server.local_addr().unwrap();
    let closing = tokio::spawn(async move { drop(server.accept().await.unwrap()) });
    let error = soon(dial(address, &handshake(), &dialling())).await.unwrap_err();
    assert!(matches!(error, DialError::Io { .. }), "{error}");
    closing.await.unwrap();
}

#[tokio::test]
async fn a_refused_connection_is_a_connect_error_that_names_the_address() {
    let address = {
        let gone = TcpListener::bind(LOOPBACK).await.unwrap();
        gone.local_addr().unwrap()
    };
    let error = soon(dial(address, &handshake(), &dialling())).await.unwrap_err();
    assert!(matches!(error, DialError::Connect { .. }), "{error}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}

#[tokio::test]
async fn a_port_in_use_is_an_error_with_a_remedy() {
    let first = listener(listening()).await;
    let address = first.local_address();
    let error = Listener::bind(address, info(), listening()).unwrap_err();
    assert!(matches!(error, BindError::InUse { .. }), "{error}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");

    first.close().await;
    Listener::bind(address, info(), listening()).expect("closed, the port is free");
}

#[tokio::test]
async fn a_reachable_address_needs_tls_or_insecure() {
    let everywhere = "0.0.0.0:0".parse().unwrap();
    let error = Listener::bind(everywhere, info(), listening()).unwrap_err();
    assert!(matches!(error, BindError::NeedsTls { .. }));
    assert!(error.to_string().contains("--insecure"), "{error}");

    // TEST-NET-1: no machine has it, so nothing is exposed here.
    let elsewhere = "192.0.2.1:0".parse().unwrap();
    let insecure = ListenerOptions { insecure: true, ..listening() };
    let error = Listener::bind(elsewhere, info(), insecure).unwrap_err();
    assert!(matches!(error, BindError::NotHere { .. }), "{error}");
}
