//! Who is admitted, and what a change of rules does to open links.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use longshore_access::{
    AccessControl, Action, Policy, Rights, SECRET_RANDOM_BYTES, Secret, Token, Tokens,
};
use longshore_protocol::{
    Credential, FrameWriter, Handshake, HandshakeRefusal, LinkTiming, Path, SessionId,
};
use longshore_transport::{DialError, Link, LinkEnd, Listener, ListenerOptions, dial};

use crate::common::pem::Pem;
use crate::common::*;

/// Each rule: a subject that may work on a path.
pub(crate) fn policy(rules: &[(&str, &str)]) -> Option<Policy> {
    let rule = |(who, path): &(&str, &str)| {
        format!("[[allow]]\nwho = [{who:?}]\ndo = [\"work\"]\npaths = [{path:?}]\n")
    };
    Some(Policy::parse(&rules.iter().map(rule).collect::<String>()).unwrap())
}

pub(crate) fn tokens(secret: &Secret, end_unix_ms: Option<u64>) -> Option<Tokens> {
    let mut tokens = Tokens::default();
    let (name, hash) = (String::from("shop"), secret.hash());
    tokens.add(Token { name, hash, created_unix_ms: 0, expires_unix_ms: end_unix_ms }).unwrap();
    Some(tokens)
}

pub(crate) fn secret(byte: u8) -> Secret {
    Secret::from_random(&mut [byte; SECRET_RANDOM_BYTES])
}

pub(crate) fn with_secret(secret: &Secret) -> Handshake {
    let credential = Credential(Bytes::copy_from_slice(secret.text()));
    Handshake { credential, ..handshake() }
}

/// A listener with TLS whose clients need no certificate.
async fn secured(pem: &Pem, control: &AccessControl, clients: Option<&Pem>) -> Listener {
    let access_control = control.clone();
    listener(ListenerOptions { access_control, ..pem.listening(clients) }).await
}

/// Both ends of a link whose client shows a secret.
async fn link_of(listener: &mut Listener, pem: &Pem, secret: &Secret) -> (Link, Link) {
    let (at, options) = (listener.local_address(), pem.dialling(None, None));
    let dialled = soon(dial(at, &with_secret(secret), &options)).await.unwrap();
    (dialled, soon(listener.accept()).await)
}

pub(crate) fn refused(outcome: Result<Link, DialError>) -> (HandshakeRefusal, String) {
    match outcome {
        Err(DialError::Refused { code, reason, .. }) => (code, reason),
        other => panic!("{other:?}"),
    }
}

fn may_work(rights: &Rights, path: &str) -> bool {
    rights.may(Action::Work, &Path::new(path).unwrap())
}

#[tokio::test]
async fn a_link_has_the_identity_and_the_rights_of_its_certificate_or_token() {
    let pem = Pem::new();
    let rules = policy(&[("dns:longshore.test", "/a"), ("token:shop", "/b")]);
    let control = AccessControl::new(rules, tokens(&secret(1), None));
    let mut with_certificates = secured(&pem, &control, Some(&pem)).await;
    let at = with_certificates.local_address();
    let own = pem.dialling(None, Some(&pem));
    let _dialled = soon(dial(at, &handshake(), &own)).await.unwrap();
    let accepted = soon(with_certificates.accept()).await;
    assert_eq!(accepted.identity().unwrap().to_string(), "dns:longshore.test");
    assert!(may_work(&accepted.rights().borrow(), "/a"));
    assert!(!may_work(&accepted.rights().borrow(), "/b"));

    // Beside a certificate a token counts alone.
    let _dialled = soon(dial(at, &with_secret(&secret(1)), &own)).await.unwrap();
    let accepted = soon(with_certificates.accept()).await;
    assert_eq!(accepted.identity().unwrap().to_string(), "token:shop");
    assert!(may_work(&accepted.rights().borrow(), "/b"));
    assert_eq!(accepted.handshake().unwrap().credential, Credential::default());
    let bad = soon(dial(at, &with_secret(&secret(2)), &own)).await;
    assert_eq!(refused(bad).0, HandshakeRefusal::Unauthenticated);
}

#[tokio::test]
async fn a_stranger_is_refused_with_the_reason() {
    let pem = Pem::new();
    let control = AccessControl::new(policy(&[("token:other", "/a")]), tokens(&secret(1), None));
    let listener = secured(&pem, &control, None).await;
    let (at, options) = (listener.local_address(), pem.dialling(None, None));
    let (code, reason) = refused(soon(dial(at, &handshake(), &options)).await);
    assert_eq!(code, HandshakeRefusal::Unauthenticated);
    assert!(reason.contains("neither a certificate nor a token"), "{reason}");
    let (code, reason) = refused(soon(dial(at, &with_secret(&secret(1)), &options)).await);
    assert_eq!(code, HandshakeRefusal::Forbidden);
    assert!(reason.contains("nothing to token:shop"), "{reason}");

    // Without TLS others may have read the secret.
    control.replace(policy(&[("token:shop", "/a")]), tokens(&secret(1), None));
    let access_control = control.clone();
    let plain = self::listener(ListenerOptions { access_control, ..listening() }).await;
    let (at, handshake) = (plain.local_address(), with_secret(&secret(1)));
    let (code, reason) = refused(soon(dial(at, &handshake, &dialling())).await);
    assert_eq!(code, HandshakeRefusal::Unauthenticated);
    assert!(reason.contains("revoke it"), "{reason}");
}

#[tokio::test]
async fn a_link_that_loses_a_right_is_cut_and_the_others_stay() {
    let pem = Pem::new();
    let (shop, both) = (("token:shop", "/a"), [("token:shop", "/a"), ("token:shop", "/b")]);
    let control = AccessControl::new(policy(&[shop]), tokens(&secret(1), None));
    let mut listener = secured(&pem, &control, Some(&pem)).await;
    let own = pem.dialling(None, Some(&pem));
    let at = listener.local_address();
    let _dialled = soon(dial(at, &with_secret(&secret(1)), &own)).await.unwrap();
    let accepted = soon(listener.accept()).await;
    let mut rights = accepted.rights();
    let (_sender, mut receiver) = accepted.split();

    control.replace(policy(&both), tokens(&secret(1), None));
    soon(rights.changed()).await.unwrap();
    assert!(may_work(&rights.borrow_and_update(), "/b"));
    // The same rights from other rules are no change.
    control.replace(policy(&[both[0], both[1], ("cn:x", "/x")]), tokens(&secret(1), None));
    assert!(tokio::time::timeout(Duration::from_millis(50), receiver.recv()).await.is_err());
    assert!(!rights.has_changed().unwrap());

    control.replace(policy(&both[1..]), tokens(&secret(1), None));
    let end = soon(receiver.recv()).await.unwrap_err();
    assert!(matches!(&end, LinkEnd::Local(why) if why.contains("taken rights")), "{end}");
}

#[tokio::test]
async fn a_revoked_or_expired_token_ends_its_links() {
    let pem = Pem::new();
    let control = AccessControl::new(policy(&[("*", "/**")]), tokens(&secret(1), None));
    let mut listener = secured(&pem, &control, None).await;
    let (_dialled, accepted) = link_of(&mut listener, &pem, &secret(1)).await;
    let (_sender, mut receiver) = accepted.split();
    control.replace(policy(&[("*", "/**")]), Some(Tokens::default()));
    let end = soon(receiver.recv()).await.unwrap_err();
    assert!(matches!(&end, LinkEnd::Local(why) if why.contains("revoked")), "{end}");

    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let ends_in = |ms| control.replace(policy(&[("*", "/**")]), tokens(&secret(2), ms));
    ends_in(None);
    let (_dialled, accepted) = link_of(&mut listener, &pem, &secret(2)).await;
    let (_sender, mut receiver) = accepted.split();
    // The file gives it an end, and then another one.
    ends_in(Some(now + 3_600_000));
    ends_in(Some(now + 300));
    let end = soon(receiver.recv()).await.unwrap_err();
    assert!(matches!(&end, LinkEnd::Local(why) if why.contains("expired")), "{end}");
}

#[tokio::test]
async fn an_ended_link_leaves_nothing_behind() {
    let pem = Pem::new();
    let control = AccessControl::new(policy(&[("*", "/**")]), tokens(&secret(1), None));
    let mut listener = secured(&pem, &control, None).await;
    let (dialled, accepted) = link_of(&mut listener, &pem, &secret(1)).await;
    let (rights, weak) = (accepted.rights(), Arc::downgrade(&*accepted.rights().borrow()));
    drop((dialled, accepted));
    // The listener's entry has the sender.
    let mut rights = rights;
    assert!(soon(rights.changed()).await.is_err());
    drop(rights);
    assert!(weak.upgrade().is_none());
}

/// A policy that allows everything to everyone with an identity, and these further entries.
fn with_quota(quota: &str) -> Option<Policy> {
    let all = "[[allow]]\nwho = [\"*\"]\ndo = [\"*\"]\npaths = [\"/**\"]\n";
    Some(Policy::parse(&format!("{all}{quota}")).unwrap())
}

#[tokio::test]
async fn a_client_has_the_links_of_its_quota_and_others_have_theirs() {
    let pem = Pem::new();
    let shop =
        |links: u32| with_quota(&format!("[[quota]]\nwho = [\"token:*\"]\nlinks = {links}\n"));
    let control = AccessControl::new(shop(1), tokens(&secret(1), None));
    let mut listener = secured(&pem, &control, Some(&pem)).await;
    let (at, own) = (listener.local_address(), pem.dialling(None, Some(&pem)));
    let first = link_of_certificate(&mut listener, at, &with_secret(&secret(1)), &own).await;
    let other_session = Handshake { session: SessionId([2; 16]), ..with_secret(&secret(1)) };
    let over = async || soon(dial(at, &other_session, &own)).await;
    let (code, reason) = refused(over().await);
    assert_eq!(code, HandshakeRefusal::Busy);
    assert!(reason.contains("token:shop: it has 1 links, its quota"), "{reason}");
    // Another identity, of the same address.
    let _other = link_of_certificate(&mut listener, at, &handshake(), &own).await;
    let _another = link_of_certificate(&mut listener, at, &handshake(), &own).await;
    // More of them, without a new link of the first.
    control.replace(shop(2), tokens(&secret(1), None));
    let _second = link_of_certificate(&mut listener, at, &with_secret(&secret(1)), &own).await;
    assert_eq!(refused(over().await).0, HandshakeRefusal::Busy);
    // A link that has ended makes room.
    drop(first);
    soon(async {
        while over().await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn at_its_quota_a_client_displaces_a_dead_link_of_its_session() {
    let rules = "[[allow]]\nwho = [\"anonymous\"]\ndo = [\"*\"]\npaths = [\"/**\"]\n\
                 [[quota]]\nwho = [\"anonymous\"]\nlinks = 1\n";
    let access_control = AccessControl::new(Some(Policy::parse(rules).unwrap()), None);
    let hang = Duration::from_secs(4);
    let timing = LinkTiming { heartbeat: Duration::from_millis(100), hang };
    let mut listener = listener(ListenerOptions { access_control, timing, ..listening() }).await;
    let at = listener.local_address();
    // It sends nothing any more, and does not close.
    let began = Instant::now();
    let _dead = raw_dialler(at, timing).await;
    let mut first = soon(listener.accept()).await.split().1;
    let again = async || soon(dial(at, &handshake(), &dialling())).await;
    let early = again().await;
    if began.elapsed() < hang / 2 {
        assert_eq!(refused(early).0, HandshakeRefusal::Busy);
    }
    tokio::time::sleep(hang / 2).await;
    let stranger = Handshake { session: SessionId([2; 16]), ..handshake() };
    let stranger = soon(dial(at, &stranger, &dialling())).await;
    let again = again().await;
    // Before it would count as hung.
    let in_time = began.elapsed() < hang;
    let end = soon(first.recv()).await.unwrap_err();
    if in_time {
        assert_eq!(refused(stranger).0, HandshakeRefusal::Busy);
        again.unwrap();
        assert!(matches!(&end, LinkEnd::Local(why) if why.contains("has opened another")), "{end}");
    }
}

/// A link that is no longer checked must not stay open.
#[tokio::test]
async fn a_displaced_link_ends_though_its_successor_is_refused() {
    let rules = |links: u32| {
        let allow = "[[allow]]\nwho = [\"anonymous\"]\ndo = [\"*\"]\npaths = [\"/**\"]\n";
        let quota = format!("[[quota]]\nwho = [\"anonymous\"]\nlinks = {links}\n");
        Some(Policy::parse(&format!("{allow}{quota}")).unwrap())
    };
    let access_control = AccessControl::new(rules(2), None);
    let hang = Duration::from_secs(4);
    let timing = LinkTiming { heartbeat: Duration::from_millis(100), hang };
    let control = access_control.clone();
    let mut listener = listener(ListenerOptions { access_control, timing, ..listening() }).await;
    let at = listener.local_address();
    let began = Instant::now();
    let (_dead, _other) = (raw_dialler(at, timing).await, raw_dialler(at, timing).await);
    let mut links =
        [soon(listener.accept()).await, soon(listener.accept()).await].map(|link| link.split().1);
    control.replace(rules(1), None);
    tokio::time::sleep(hang / 2 + Duration::from_millis(100)).await;
    let again = soon(dial(at, &handshake(), &dialling())).await;
    let was_in_time = began.elapsed() < hang;
    let [first, second] = &mut links;
    let end = soon(async {
        tokio::select! { end = first.recv() => end, end = second.recv() => end }
    });
    let end = end.await.unwrap_err();
    if was_in_time {
        assert_eq!(refused(again).0, HandshakeRefusal::Busy);
        assert!(matches!(&end, LinkEnd::Local(why) if why.contains("has opened another")), "{end}");
    }
}

#[tokio::test]
async fn a_client_that_connects_over_its_quota_is_refused_and_others_are_not() {
    let pem = Pem::new();
    let policy = with_quota("[[quota]]\nwho = [\"token:*\"]\nhandshakes = 1\n");
    let control = AccessControl::new(policy, tokens(&secret(1), None));
    let mut listener = secured(&pem, &control, Some(&pem)).await;
    let (at, own) = (listener.local_address(), pem.dialling(None, Some(&pem)));
    let refusal = soon(async {
        // However slow the machine is, two handshakes come within a second at some time.
        loop {
            if let Err(refusal) = dial(at, &with_secret(&secret(1)), &own).await {
                break refusal;
            }
        }
    })
    .await;
    let (code, reason) = refused(Err(refusal));
    assert_eq!(code, HandshakeRefusal::Busy);
    let expected = "token:shop: it has made 1 handshakes within a second, its quota";
    assert!(reason.contains(expected) && reason.contains("raise `handshakes`"), "{reason}");
    for _ in 0..3 {
        link_of_certificate(&mut listener, at, &handshake(), &own).await;
    }
    // With the quota in time it is let in again.
    soon(async {
        while dial(at, &with_secret(&secret(1)), &own).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

async fn link_of_certificate(
    listener: &mut Listener,
    at: std::net::SocketAddr,
    handshake: &Handshake,
    options: &longshore_transport::LinkOptions,
) -> (Link, Link) {
    let dialled = soon(dial(at, handshake, options)).await.unwrap();
    (dialled, soon(listener.accept()).await)
}

#[tokio::test]
async fn a_client_over_its_rate_is_not_read_until_its_quota_is_raised() {
    let pem = Pem::new();
    let limited = || with_quota("[[quota]]\nwho = [\"token:shop\"]\nbytes = 32_768\n");
    let control = AccessControl::new(limited(), tokens(&secret(1), None));
    // With the timeouts of real links: none of them ends for its wait.
    let timing = ListenerOptions::default().timing;
    let options = ListenerOptions { timing, ..pem.listening(Some(&pem)) };
    let access_control = control.clone();
    let mut listener = listener(ListenerOptions { access_control, ..options }).await;
    let (at, own) = (listener.local_address(), pem.dialling(None, Some(&pem)));
    let frame = |bytes: usize| {
        let mut out = FrameWriter::new();
        out.message(50, |out| out.bytes(&vec![7; bytes]));
        out.finish()
    };
    // Two links of the identity share its rate.
    let (flooding, accepted) =
        link_of_certificate(&mut listener, at, &with_secret(&secret(1)), &own).await;
    let (second, accepted_second) =
        link_of_certificate(&mut listener, at, &with_secret(&secret(1)), &own).await;
    let (other, accepted_other) = link_of_certificate(&mut listener, at, &handshake(), &own).await;
    let (_sender, mut receiver) = accepted.split();
    let (_sender, mut receiver_of_second) = accepted_second.split();
    let (_sender, mut receiver_of_other) = accepted_other.split();
    let (sender, sender_of_second) = (flooding.split().0, second.split().0);
    // Each frame is nearly a second's worth.
    sender.send(frame(31 * 1024)).unwrap();
    sender_of_second.send(frame(31 * 1024)).unwrap();
    let began = Instant::now();
    soon(receiver.recv()).await.unwrap();
    soon(receiver_of_second.recv()).await.unwrap();
    // One second's worth comes at once.
    assert!(began.elapsed() > Duration::from_millis(900), "{:?}", began.elapsed());
    other.split().0.send(frame(1)).unwrap();
    soon(receiver_of_other.recv()).await.unwrap();
    // Half a minute's worth.
    for _ in 0..64 {
        sender.send(frame(16 * 1024)).unwrap();
    }
    control.replace(with_quota(""), tokens(&secret(1), None));
    for _ in 0..64 {
        soon(receiver.recv()).await.unwrap();
    }
}

#[tokio::test]
async fn under_a_policy_one_client_leaves_connections_for_others() {
    let pem = Pem::new();
    let control = AccessControl::new(with_quota(""), tokens(&secret(1), None));
    let access_control = control.clone();
    let options = ListenerOptions { connections_max: 8, ..pem.listening(Some(&pem)) };
    let mut listener = listener(ListenerOptions { access_control, ..options }).await;
    let (at, own) = (listener.local_address(), pem.dialling(None, Some(&pem)));
    let mut links = Vec::new();
    for _ in 0..6 {
        let link = link_of_certificate(&mut listener, at, &with_secret(&secret(1)), &own).await;
        links.push(link);
    }
    let seventh = async || soon(dial(at, &with_secret(&secret(1)), &own)).await;
    let (code, reason) = refused(seventh().await);
    assert_eq!(code, HandshakeRefusal::Busy);
    assert!(reason.contains("this client has 6 connections, and 2 of 8 are free"), "{reason}");
    let _other = link_of_certificate(&mut listener, at, &handshake(), &own).await;
    // Without a policy all links are one client's.
    control.replace(None, tokens(&secret(1), None));
    links.push(link_of_certificate(&mut listener, at, &with_secret(&secret(1)), &own).await);
    let (_, reason) = refused(seventh().await);
    assert!(reason.contains("8 of 8 connections are taken"), "{reason}");
}

#[tokio::test]
async fn messages_over_the_quota_wait_as_bytes_do() {
    let pem = Pem::new();
    let policy = with_quota("[[quota]]\nwho = [\"token:shop\"]\nmessages = 256\n");
    let control = AccessControl::new(policy, tokens(&secret(1), None));
    let mut listener = secured(&pem, &control, Some(&pem)).await;
    let (at, own) = (listener.local_address(), pem.dialling(None, Some(&pem)));
    let (dialled, accepted) =
        link_of_certificate(&mut listener, at, &with_secret(&secret(1)), &own).await;
    let (sender, mut receiver) = (dialled.split().0, accepted.split().1);
    let began = Instant::now();
    // The second's worth that comes at once, and half as many again.
    for _ in 0..256 + 128 {
        let mut out = FrameWriter::new();
        out.message(50, |out| out.u8(7));
        sender.send(out.finish()).unwrap();
    }
    for _ in 0..256 + 128 {
        soon(receiver.recv()).await.unwrap();
    }
    assert!(began.elapsed() > Duration::from_millis(450), "{:?}", began.elapsed());
}
