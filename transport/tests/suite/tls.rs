//! Links over TLS: the same scenarios, and how certificates are refused.

use crate::common::pem::Pem;
use crate::common::*;
use longshore_protocol::{Epoch, HandshakeRefusal, PublisherId, PublisherInfo};
use longshore_transport::{
    Access, DialError, LastAddress, LinkEnd, LinkOptions, Listener, ListenerOptions, TlsAcceptor,
    TlsDialer, TlsError, dial, dial_publisher,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_of_all_sizes_arrive_both_ways_and_a_close_is_seen() {
    let pem = Pem::new();
    let (dialled, accepted, _listener) =
        link_with(pem.listening(None), pem.dialling(None, None)).await;
    let ((here, mut from_there), (there, mut from_here)) = (dialled.split(), accepted.split());
    let sending = tokio::spawn(async move {
        for i in 0..200 {
            here.send(frame(i, (i as usize * 7_919) % 300_000)).unwrap();
            there.send(frame(i, (i as usize * 104_729) % 300_000)).unwrap();
            here.ready(1 << 20).await.unwrap();
        }
        here.flushed().await.unwrap();
        here.close("done");
        there
    });
    let back = tokio::spawn(async move {
        for i in 0..200 {
            assert_eq!(number(&from_there.recv().await.unwrap()), i);
        }
        from_there
    });
    for i in 0..200 {
        assert_eq!(number(&soon(from_here.recv()).await.unwrap()), i);
    }
    assert!(matches!(soon(from_here.recv()).await, Err(LinkEnd::Closed)));
    drop((soon(sending).await.unwrap(), soon(back).await));
}

#[tokio::test]
async fn a_quiet_link_lives_and_a_stopped_reader_ends_it() {
    let pem = Pem::new();
    let (dialled, accepted, _listener) =
        link_with(pem.listening(None), pem.dialling(None, None)).await;
    let (sender, mut replies) = dialled.split();
    let (_back, unread) = accepted.split();
    let quiet = tokio::time::timeout(2 * TIMING.hang, replies.recv()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    while sender.queued_bytes() < 32 << 20 {
        sender.send(frame(0, 1 << 20)).unwrap();
    }
    let end = soon(sender.closed()).await;
    assert!(matches!(end, LinkEnd::SendStalled { .. }), "{end}");
    drop(unread);
}

#[tokio::test]
async fn a_server_of_another_authority_is_not_trusted() {
    let (ours, theirs) = (Pem::new(), Pem::new());
    let listener = listener(theirs.listening(None)).await;
    let options = ours.dialling(None, None);
    let error = soon(dial(listener.local_address(), &handshake(), &options)).await.unwrap_err();
    assert!(matches!(error, DialError::Tls { .. }), "{error}");
}

#[tokio::test]
async fn the_name_in_the_certificate_has_to_match() {
    let pem = Pem::new();
    let listener = listener(pem.listening(None)).await;
    let named = pem.dialling(Some("longshore.test"), None);
    soon(dial(listener.local_address(), &handshake(), &named)).await.unwrap();
    let other = pem.dialling(Some("elsewhere.test"), None);
    let error = soon(dial(listener.local_address(), &handshake(), &other)).await.unwrap_err();
    assert!(matches!(error, DialError::Tls { .. }), "{error}");
}

#[tokio::test]
async fn a_publishers_tls_name_is_expected_whatever_its_address() {
    let pem = Pem::new();
    // The certificate is for 127.0.0.1 and longshore.test.
    let at = ([127, 0, 0, 2], 0).into();
    let listener = Listener::bind(at, info(), pem.listening(None)).unwrap();
    let id = PublisherId(info().instance);
    let mut publisher = PublisherInfo::new(id, Epoch(1), "here", [listener.local_address()]);
    let mut dialled = async |name: Option<&str>, server_name| {
        publisher.tls_name = name.map(|name| name.parse().unwrap());
        let (last, options) = (LastAddress::default(), pem.dialling(server_name, None));
        soon(dial_publisher(&publisher, &last, &handshake(), &options)).await
    };
    for name in ["longshore.test", "127.0.0.1"] {
        dialled(Some(name), None).await.unwrap();
        // The client's own configuration counts more.
        let error = dialled(Some(name), Some("elsewhere.test")).await.unwrap_err();
        assert!(error.to_string().contains("elsewhere.test"), "{error}");
    }
    let error = dialled(None, None).await.unwrap_err();
    assert!(error.to_string().contains("127.0.0.2"), "{error}");
    let error = dialled(Some("other.test"), None).await.unwrap_err();
    assert!(error.to_string().contains("other.test"), "{error}");

    let acceptor = pem.acceptor(None);
    let check = |name: &str| acceptor.check_name(&name.parse().unwrap());
    assert!(check("longshore.test").is_ok() && check("127.0.0.1").is_ok());
    let error = check("other.test").unwrap_err();
    assert!(matches!(error, TlsError::NotItsName { .. }), "{error}");
    assert!(error.to_string().contains("other.test"), "{error}");
}

#[tokio::test]
async fn a_listener_with_an_authority_admits_only_clients_that_it_signed() {
    let (pem, stranger) = (Pem::new(), Pem::new());
    let listener = listener(pem.listening(Some(&pem))).await;
    let address = listener.local_address();
    soon(dial(address, &handshake(), &pem.dialling(None, Some(&pem)))).await.unwrap();
    for options in [pem.dialling(None, None), pem.dialling(None, Some(&stranger))] {
        let error = soon(dial(address, &handshake(), &options)).await.unwrap_err();
        assert!(matches!(error, DialError::Tls { .. }), "{error}");
    }
}

#[tokio::test]
async fn tls_on_one_side_only_is_reported_as_such() {
    let pem = Pem::new();
    let with = listener(pem.listening(None)).await;
    let error = soon(dial(with.local_address(), &handshake(), &dialling())).await.unwrap_err();
    assert!(matches!(error, DialError::NeedsTls { .. }), "{error}");
    assert!(error.concerns_identity() && error.refuses_client());

    let without = listener(listening()).await;
    let options = pem.dialling(None, None);
    let error = soon(dial(without.local_address(), &handshake(), &options)).await.unwrap_err();
    assert!(matches!(error, DialError::Tls { .. }), "{error}");
}

#[test]
fn unusable_pem_files_are_named_in_the_error() {
    let pem = Pem::new();
    let missing = TlsDialer::from_pem(&pem.file("nothing.pem"), None, None).unwrap_err();
    assert!(missing.to_string().contains("nothing.pem"), "{missing}");
    let empty = TlsDialer::from_pem(&pem.file("key.pem"), None, None).unwrap_err();
    assert!(matches!(empty, TlsError::NoCertificate { .. }), "{empty}");
    let other = Pem::new();
    let unlike = TlsAcceptor::from_pem(&pem.file("chain.pem"), &other.file("key.pem"), None);
    assert!(matches!(unlike, Err(TlsError::Rustls(_))), "{unlike:?}");
    let endless = TlsDialer::from_pem("/dev/zero".as_ref(), None, None).unwrap_err();
    assert!(matches!(endless, TlsError::TooLong { .. }), "{endless}");
}

#[tokio::test]
async fn replaced_files_count_for_new_links_and_open_links_stay() {
    let (pem, next) = (Pem::new(), Pem::new());
    let (acceptor, dialer) = (pem.acceptor(Some(&pem)), pem.dialer(None, Some(&pem)));
    let mut listener =
        listener(ListenerOptions { tls: Some(acceptor.clone()), ..listening() }).await;
    let address = listener.local_address();
    let access = Some(Access { tls: Some(dialer.clone()), ..Access::default() });
    let options = LinkOptions { access, ..dialling() };
    let dialled = soon(dial(address, &handshake(), &options)).await.unwrap();
    let accepted = soon(listener.accept()).await;
    assert!(!acceptor.reload().unwrap() && !dialer.reload().unwrap(), "nothing has changed");

    // A certificate without its key, as in the middle of a replacement: the old ones stay in use.
    std::fs::copy(next.file("chain.pem"), pem.file("chain.pem")).unwrap();
    let half = acceptor.reload().unwrap_err();
    assert!(matches!(half, TlsError::Rustls(_)), "{half}");
    soon(dial(address, &handshake(), &options)).await.unwrap();

    for name in ["authority.pem", "key.pem"] {
        std::fs::copy(next.file(name), pem.file(name)).unwrap();
    }
    assert!(acceptor.reload().unwrap());
    let error = soon(dial(address, &handshake(), &options)).await.unwrap_err();
    assert!(matches!(error, DialError::Tls { .. }), "the old authority: {error}");
    assert!(dialer.reload().unwrap());
    soon(dial(address, &handshake(), &options)).await.unwrap();

    let ((sender, _), (_, mut receiver)) = (dialled.split(), accepted.split());
    sender.send(frame(7, 100)).unwrap();
    assert_eq!(number(&soon(receiver.recv()).await.unwrap()), 7, "the first link is open");
}

#[test]
fn a_certificate_without_the_checked_name_is_not_reloaded() {
    let (pem, next) = (Pem::new(), Pem::of("other.test"));
    let acceptor = pem.acceptor(None);
    let name = "longshore.test".parse().unwrap();
    acceptor.check_name(&name).unwrap();
    let replace = |by: &Pem| {
        for name in ["chain.pem", "key.pem"] {
            std::fs::copy(by.file(name), pem.file(name)).unwrap();
        }
    };
    replace(&next);
    let other = acceptor.reload().unwrap_err();
    assert!(
        matches!(&other, TlsError::NotItsName { name: lacks, .. } if *lacks == name),
        "{other}"
    );
    replace(&Pem::new());
    assert!(acceptor.reload().unwrap());
}

#[tokio::test]
async fn a_session_is_not_resumed_with_a_certificate_that_is_no_longer_trusted() {
    let (pem, next) = (Pem::new(), Pem::new());
    let (acceptor, client) = (pem.acceptor(Some(&pem)), pem.dialling(None, Some(&pem)));
    let listener = listener(ListenerOptions { tls: Some(acceptor.clone()), ..listening() }).await;
    for _ in 0..2 {
        soon(dial(listener.local_address(), &handshake(), &client)).await.unwrap();
    }
    // The server's certificate stays; only clients of the other authority are welcome now.
    std::fs::copy(next.file("authority.pem"), pem.file("authority.pem")).unwrap();
    assert!(acceptor.reload().unwrap());
    let error = soon(dial(listener.local_address(), &handshake(), &client)).await.unwrap_err();
    assert!(matches!(error, DialError::Tls { .. }), "{error}");
}

#[tokio::test]
async fn the_cluster_is_checked_below_tls_too() {
    let pem = Pem::new();
    let named = |cluster: &str| Access {
        cluster: cluster.to_owned(),
        tls: Some(pem.dialer(None, Some(&pem))),
        token: None,
    };
    let options = ListenerOptions { cluster: "prod".to_owned(), ..pem.listening(Some(&pem)) };
    let listener = listener(options).await;
    let reach = async |cluster: &str| {
        let options = LinkOptions::default().or_access(&named(cluster));
        soon(dial(listener.local_address(), &handshake(), &options)).await
    };
    reach("prod").await.unwrap();
    let DialError::Refused { code, reason, .. } = reach("test").await.unwrap_err() else {
        panic!("another cluster")
    };
    assert_eq!(code, HandshakeRefusal::WrongCluster);
    assert!(reason.contains("`prod`") && reason.contains("`test`"), "{reason}");
    // No server could read the handshake.
    let error = reach(&"a".repeat(65)).await.unwrap_err();
    assert!(error.to_string().contains("at most 64 bytes, and this one 65"), "{error}");
}
