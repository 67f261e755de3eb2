//! Connections that begin TLS wrongly, or do with it what they should not.

use std::net::SocketAddr;
use std::sync::Arc;

use longshore::Glob;
use longshore::protocol::Role;
use longshore::protocol::handshake::MAGIC;
use longshore::protocol::messages::work::{Request, Tokens};
use rcgen::{CertificateParams, KeyPair};
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::peer::{self, NoLink, Peer, handshake, session};
use super::stalls::client_hello;
use super::{Attacker, GROUND, Outcome, PATIENCE, Surprise, expect, tls_builder};

/// The types of TLS records.
const ALERT: u8 = 0x15;
const HANDSHAKE: u8 = 0x16;

/// Offers TLS 1.2 and nothing newer.
pub(super) async fn old_tls(attacker: &Attacker) -> Outcome {
    repeated(attacker, async |server| {
        let answer = answer_to(server, &old_client_hello()).await;
        expect(answer.first() == Some(&ALERT), || format!("TLS 1.2 is answered by {answer:?}"))
    })
    .await
}

/// Sends what is no TLS: HTTP, a handshake in the clear, noise.
pub(super) async fn garbage_instead_of_tls(attacker: &Attacker) -> Outcome {
    repeated(attacker, async |server| {
        let clear = handshake(attacker, Role::Tool, session(), attacker.target.mallory.as_bytes());
        let noise: Vec<u8> = std::iter::repeat_with(rand::random).take(4_096).collect();
        let old = [&[0x80, 0x2e, 0x01, 0x00, 0x02][..], &[0; 43]].concat();
        for bytes in [&clear[..], &noise, &old, b"GET / HTTP/1.1\r\nHost: longshore\r\n\r\n"] {
            let answer = answer_to(server, bytes).await;
            let is_let_in = answer.starts_with(&MAGIC) || answer.first() == Some(&HANDSHAKE);
            expect(!is_let_in, || format!("garbage is answered by {answer:?}"))?;
        }
        Ok(())
    })
    .await
}

/// Sends a `ClientHello` of 16 MiB, bit by bit.
pub(super) async fn endless_client_hellos(attacker: &Attacker) -> Outcome {
    repeated(attacker, async |server| {
        let Ok(mut stream) = peer::tcp(server).await else { return Ok(()) };
        let mut record = vec![HANDSHAKE, 3, 1, 0x40, 0];
        record.extend([1, 0xff, 0xff, 0xff, 3, 3]);
        record.resize(5 + 0x4000, 0);
        for _ in 0..64 {
            if stream.write_all(&record).await.is_err() {
                return Ok(());
            }
            record[5..11].fill(0);
        }
        expect(peer::closes(&mut stream, PATIENCE).await, || "it is still read".to_owned())
    })
    .await
}

/// Sends another `ClientHello` on an open link.
pub(super) async fn renegotiations(attacker: &Attacker) -> Outcome {
    let hello = client_hello(attacker);
    repeated(attacker, async |server| {
        let role = role_at(attacker, server);
        let mut link = Peer::dial(attacker, role).await?;
        let raw = link.stream.get_mut().0;
        raw.write_all(&hello).await?;
        link.ends("a second ClientHello").await
    })
    .await
}

/// Changes the keys of a link as fast as it can. Each change asks the server for one.
pub(super) async fn new_keys(attacker: &Attacker) -> Outcome {
    let mut changes = 0;
    let mut link = Peer::dial(attacker, Role::Tool).await?;
    link.attached(Tokens::default()).await?;
    let mut rounds = 0;
    while attacker.goes_on(rounds) {
        rounds += 1;
        for _ in 0..100 {
            let changed = link.stream.get_mut().1.refresh_traffic_keys();
            changed.map_err(|error| Surprise(error.to_string()))?;
            link.send(&[0; 4]).await?;
            changes += 1;
        }
        // An answer shows that all of them were read.
        let pattern =
            Glob::new(&format!("{GROUND}/**")).map_err(|error| Surprise(error.to_string()))?;
        let answer = link.request(rounds as u64, Request::Queues { pattern, cursor: 0 }).await?;
        expect(answer.is_ok(), || format!("after new keys: {answer:?}"))?;
    }
    Ok(changes)
}

/// Shows certificates of 20 and of 200 KiB, which no authority has signed, with a valid token.
pub(super) async fn huge_certificates(attacker: &Attacker) -> Outcome {
    let mut all = Vec::new();
    for names in [700, 7_000] {
        let (certificate, key) = own_certificate(names)?;
        // rustls would not show a certificate that it cannot check itself.
        let key = any_supported_type(&key).map_err(|error| Surprise(error.to_string()))?;
        let shown = SingleCertAndKey::from(CertifiedKey::new(vec![certificate], key));
        let builder = tls_builder(&attacker.target)?;
        all.push(Arc::new(builder.with_client_cert_resolver(Arc::new(shown))));
    }
    repeated(attacker, async |server| {
        for config in &all {
            let target = attacker.target.clone();
            let (scale, began) = (attacker.scale, attacker.began);
            let other = Attacker { target, scale, began, tls: config.clone() };
            let linked = Peer::dial(&other, role_at(attacker, server)).await;
            let is_refused = matches!(linked, Err(NoLink::Broken(_) | NoLink::Refused(..)));
            expect(is_refused, || "a certificate of nobody is accepted".to_owned())?;
        }
        Ok(())
    })
    .await
}

/// A certificate that signs itself, with so many names.
fn own_certificate(
    names: usize,
) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), Surprise> {
    let wrong = |error: rcgen::Error| Surprise(error.to_string());
    let names = (0..names).map(|name| format!("name-{name:08}.example.com"));
    let params = CertificateParams::new(names.collect::<Vec<_>>()).map_err(wrong)?;
    let key = KeyPair::generate().map_err(wrong)?;
    let certificate = params.self_signed(&key).map_err(wrong)?.der().clone();
    Ok((certificate, PrivatePkcs8KeyDer::from(key.serialize_der()).into()))
}

/// Attacks both servers in turn.
async fn repeated(
    attacker: &Attacker,
    once: impl AsyncFn(SocketAddr) -> Result<(), Surprise>,
) -> Outcome {
    let mut rounds = 0;
    while attacker.goes_on(rounds) {
        let server = [attacker.target.publisher, attacker.target.replica][rounds % 2];
        once(server).await?;
        rounds += 1;
    }
    Ok(rounds as u64)
}

fn role_at(attacker: &Attacker, server: SocketAddr) -> Role {
    if server == attacker.target.replica { Role::ResolverReader } else { Role::Tool }
}

/// What a server answers before it closes; nothing if it does not let itself be dialled.
async fn answer_to(server: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let Ok(mut stream) = peer::tcp(server).await else { return Vec::new() };
    let mut answer = Vec::new();
    if stream.write_all(bytes).await.is_ok() {
        // A reset after the answer is an end, too.
        let _ = peer::in_time(stream.read_to_end(&mut answer)).await;
    }
    answer
}

/// A `ClientHello` of TLS 1.2, as OpenSSL sends it.
fn old_client_hello() -> Vec<u8> {
    let suites = [0xc0, 0x2b, 0xc0, 0x2f, 0xc0, 0x2c, 0xc0, 0x30, 0x00, 0x9e, 0x00, 0xff];
    let extensions: &[u8] = &[
        0x00, 0x0a, 0, 6, 0, 4, 0x00, 0x1d, 0x00, 0x17, // groups
        0x00, 0x0b, 0, 2, 1, 0, // points
        0x00, 0x0d, 0, 8, 0, 6, 4, 3, 8, 4, 4, 1, // signatures
    ];
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, suites.len() as u8]);
    body.extend(suites);
    body.extend([1, 0, 0, extensions.len() as u8]);
    body.extend(extensions);
    let mut hello = vec![HANDSHAKE, 3, 1, 0, body.len() as u8 + 4, 1, 0, 0, body.len() as u8];
    hello.extend(body);
    hello
}
