//! Floods: the same again and again, as fast as it goes.

use futures_util::future::join_all;
use longshore::PublisherId;
use longshore::PublisherInfo;
use longshore::protocol::messages::resolver::{Announce, FromReplica, ToReplica};
use longshore::protocol::{Epoch, HandshakeRefusal, Role};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::peer::{self, NoLink, Peer, handshake, session};
use super::stalls::client_hello;
use super::{Attacker, Outcome, Surprise, expect};

/// Attempts at a time.
const LANES: usize = 16;

/// Sends a TLS `ClientHello`, waits for the server's answer, which costs it a signature, and
/// leaves.
pub(super) async fn client_hellos(attacker: &Attacker) -> Outcome {
    let hello = client_hello(attacker);
    let target = &attacker.target;
    let lanes = (0..LANES).map(async |lane| {
        let (mut rounds, mut sent) = (0, 0);
        while attacker.goes_on(rounds) {
            rounds += 1;
            let server = [target.publisher, target.replica][(lane + rounds) % 2];
            let Ok(mut stream) = peer::tcp(server).await else { continue };
            if stream.write_all(&hello).await.is_ok() {
                sent += 1;
                let _ = peer::in_time(stream.read(&mut [0; 1])).await;
            }
        }
        sent
    });
    Ok(join_all(lanes).await.into_iter().sum())
}

/// Opens links with a valid token, each of a session of its own, and closes them at once.
pub(super) async fn new_links(attacker: &Attacker) -> Outcome {
    let lanes = (0..LANES).map(async |lane| {
        let (mut rounds, mut opened) = (0, 0);
        while attacker.goes_on(rounds) {
            rounds += 1;
            let is_open = match (lane + rounds) % 3 {
                0 => Peer::dial(attacker, Role::ResolverReader).await.is_ok(),
                1 => Peer::attach(attacker, Role::Worker).await.is_ok(),
                // Without `Attach`.
                _ => Peer::dial(attacker, Role::Producer).await.is_ok(),
            };
            opened += u64::from(is_open);
        }
        opened
    });
    Ok(join_all(lanes).await.into_iter().sum())
}

/// Guesses tokens.
pub(super) async fn guessed_tokens(attacker: &Attacker) -> Outcome {
    let lanes = (0..LANES).map(async |lane| -> Outcome {
        let (mut guesses, mut rounds) = (0, 0);
        while attacker.goes_on(rounds) {
            rounds += 1;
            let role = [Role::ResolverReader, Role::Worker][(lane + rounds) % 2];
            let server = peer::server_of(attacker, role);
            let Ok(mut stream) = peer::tls(attacker, server).await else { continue };
            // As close as a guess can be: one letter of Mallory's own, or any other.
            let mut secret = attacker.target.mallory.clone().into_bytes();
            for letter in secret.iter_mut().skip(if rounds % 2 == 0 { 4 } else { 46 }) {
                *letter = b"abcdefghijklmnopqrstuvwxyz"[rand::random_range(0..26)];
            }
            if secret == attacker.target.mallory.as_bytes() {
                continue;
            }
            let handshake = handshake(attacker, role, session(), &secret);
            match peer::shake_hands(&mut stream, &handshake).await {
                Ok(()) => return Err(Surprise("a guessed token is admitted".to_owned())),
                Err(NoLink::Refused(code, reason)) => {
                    let code_is_right =
                        matches!(code, HandshakeRefusal::Unauthenticated | HandshakeRefusal::Busy);
                    expect(code_is_right, || format!("a guess is refused by {code:?}: {reason}"))?;
                    guesses += 1;
                }
                Err(NoLink::Broken(_)) => {}
            }
        }
        Ok(guesses)
    });
    join_all(lanes).await.into_iter().sum()
}

/// Registers as one publisher after another, on one link, and withdraws them.
pub(super) async fn announced_publishers(attacker: &Attacker) -> Outcome {
    let ids = [PublisherId(rand::random()), PublisherId(rand::random())];
    let mut link = Peer::dial(attacker, Role::ResolverWriter).await?;
    let mut number = 0;
    while number < attacker.scale.items as u64 && (number == 0 || attacker.goes_on(1)) {
        for publisher in ids {
            number += 2;
            let address = "127.0.0.1:1".parse::<longshore::Address>();
            let address = address.map_err(|error| Surprise(error.to_string()))?;
            let publisher = PublisherInfo::new(publisher, Epoch(number), "mallory", [address]);
            let announce = Announce { id: number, publisher, desired: Vec::new() };
            link.tell_replica(&ToReplica::Announce(announce)).await?;
            link.tell_replica(&ToReplica::Clear { id: number + 1 }).await?;
            link.answer_of_replica("answer to an announce", |message| match message {
                FromReplica::Announced(answer) if answer.id == number => Some(()),
                FromReplica::Refused { id, .. } if id == number => Some(()),
                _ => None,
            })
            .await?;
        }
    }
    Ok(number)
}
