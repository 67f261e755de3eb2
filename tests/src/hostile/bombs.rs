//! Lengths and counts that promise far more than follows, and noise, on links.

use bytes::Bytes;
use longshore::protocol::handshake::MAGIC;
use longshore::protocol::limits::{FRAME_BYTES_MAX, FRAME_MESSAGES_MAX, SOURCES_MAX};
use longshore::protocol::messages::HEARTBEAT;
use longshore::protocol::messages::resolver::{FromReplica, RequestRefusal, tag as of_resolver};
use longshore::protocol::messages::work::{FromPublisher, Tokens, tag as of_work};
use longshore::protocol::{BatchRefusal, FrameWriter, Role};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::peer::{self, NoLink, Peer, framed};
use super::{Attacker, GROUND, Outcome, Surprise, expect};

/// Announces frames of 4 GiB, before and after the handshake.
pub(super) async fn long_frames(attacker: &Attacker) -> Outcome {
    let mut rounds = 0;
    while attacker.goes_on(rounds) {
        rounds += 1;
        for role in [Role::ResolverReader, Role::Producer] {
            let server = peer::server_of(attacker, role);
            let mut stream = peer::tls(attacker, server).await?;
            let bomb = [&MAGIC[..], &u32::MAX.to_le_bytes()].concat();
            let linked = peer::shake_hands(&mut stream, &bomb).await;
            expect(matches!(linked, Err(NoLink::Refused(..))), || {
                format!("a handshake of 4 GiB is not refused: {linked:?}")
            })?;
            for length in [u32::MAX, FRAME_BYTES_MAX as u32 + 1] {
                let mut link = Peer::dial(attacker, role).await?;
                if role == Role::Producer {
                    link.attached(Tokens::default()).await?;
                }
                link.send(&length.to_le_bytes()).await?;
                link.ends("a frame that is too long").await?;
            }
        }
    }
    Ok(rounds as u64)
}

/// Sends messages that overrun their frame, and frames of too many messages.
pub(super) async fn long_messages(attacker: &Attacker) -> Outcome {
    let overrun = [&9_u32.to_le_bytes()[..], &[of_work::RENEW], &u32::MAX.to_le_bytes(), &[0; 4]];
    let overrun = overrun.concat();
    let many = framed(|out| {
        (0..=FRAME_MESSAGES_MAX).for_each(|_| out.message(HEARTBEAT, |_| {}));
    });
    let mut rounds = 0;
    while attacker.goes_on(rounds) {
        rounds += 1;
        for role in [Role::ResolverReader, Role::Worker] {
            for bomb in [&overrun, &many] {
                let mut link = Peer::dial(attacker, role).await?;
                if role == Role::Worker {
                    link.attached(Tokens::default()).await?;
                }
                link.send(bomb).await?;
                if role == Role::ResolverReader {
                    refused_frame(&mut link).await?;
                } else {
                    link.ends("messages over their limits").await?;
                }
            }
        }
    }
    Ok(rounds as u64)
}

/// A replica refuses the rest of a frame that it cannot read.
async fn refused_frame(link: &mut Peer) -> Result<(), Surprise> {
    link.answer_of_replica("Refused", |message| match message {
        FromReplica::Refused { id: 0, code, .. } => {
            Some(matches!(code, RequestRefusal::OverLimit | RequestRefusal::Malformed))
        }
        _ => None,
    })
    .await
    .and_then(|is_right| expect(is_right, || "a frame is refused by a wrong code".to_owned()))
}

/// Sends lists that promise 2⁴⁰ elements: each is refused by the message that it is part of.
pub(super) async fn long_lists(attacker: &Attacker) -> Outcome {
    const COUNT: u64 = 1 << 40;
    let mut rounds = 0;
    while attacker.goes_on(rounds) {
        rounds += 1;
        let mut link = Peer::attach(attacker, Role::Worker).await?;
        let batch = message(of_work::ENQUEUE, |out| {
            out.u64(1);
            out.u8(0);
            out.u64(COUNT);
        });
        link.send(&batch).await?;
        let refusal = link
            .answer_of_publisher("Enqueued", |message| match message {
                FromPublisher::Enqueued(enqueued) => enqueued.outcome.err(),
                _ => None,
            })
            .await?;
        let is_right = matches!(refusal, BatchRefusal::TooLarge | BatchRefusal::Malformed);
        expect(is_right, || format!("a batch of 2⁴⁰ paths is {refusal:?}"))?;
        let subscribe = message(of_work::SUBSCRIBE, |out| {
            out.u64(7);
            out.u8(0);
            out.u64(SOURCES_MAX as u64 + 1);
            (0..=SOURCES_MAX).for_each(|_| {
                out.string(GROUND);
                out.u64(1);
            });
        });
        link.send(&subscribe).await?;
        refused_subscription(&mut link, 7).await?;
        link.send(&message(of_work::RENEW, |out| out.u64(COUNT))).await?;
        let reason = link.goodbye().await?;
        expect(reason.contains("tokens"), || format!("2⁴⁰ tokens: {reason}"))?;

        let mut link = Peer::dial(attacker, Role::ResolverReader).await?;
        for (id, tag) in (1..).zip([of_resolver::RESOLVE, of_resolver::LIST_MATCHING]) {
            link.send(&message(tag, |out| {
                out.u64(id);
                out.u64(COUNT);
            }))
            .await?;
            let code = link
                .answer_of_replica("Refused", |message| match message {
                    FromReplica::Refused { id: answered, code, .. } if answered == id => Some(code),
                    _ => None,
                })
                .await?;
            let is_right = matches!(code, RequestRefusal::OverLimit | RequestRefusal::Malformed);
            expect(is_right, || format!("a list of 2⁴⁰: {code:?}"))?;
        }
    }
    Ok(rounds as u64)
}

/// The publisher refuses that subscription.
pub(super) async fn refused_subscription(link: &mut Peer, number: u32) -> Result<String, Surprise> {
    link.answer_of_publisher("SubscribeRefused", |message| match message {
        FromPublisher::SubscribeRefused { subscription, reason } if subscription == number => {
            Some(reason)
        }
        _ => None,
    })
    .await
}

/// Sends noise after a valid handshake: as frames, as messages of every tag, as neither.
pub(super) async fn garbage_on_links(attacker: &Attacker) -> Outcome {
    // The same in each run.
    let mut random = StdRng::seed_from_u64(7);
    let (mut rounds, mut messages) = (0, 0);
    while attacker.goes_on(rounds) {
        rounds += 1;
        for role in [Role::ResolverReader, Role::ResolverWriter, Role::Worker, Role::Values] {
            let Ok(mut link) = Peer::dial(attacker, role).await else { continue };
            if role == Role::Worker {
                link.attached(Tokens::default()).await?;
            }
            for _ in 0..64 {
                let body: Vec<u8> =
                    (0..random.random_range(0..200)).map(|_| random.random()).collect();
                let tag = random.random_range(0..=130);
                let noise = match random.random_range(0..10) {
                    0 => body,
                    1 => framed(|out| out.put(&body)),
                    _ => message(tag, |out| out.put_shared(Bytes::from(body))),
                };
                messages += 1;
                if link.send(&noise).await.is_err() {
                    break;
                }
            }
        }
    }
    Ok(messages)
}

/// A frame of one message.
pub(super) fn message(tag: u8, body: impl FnOnce(&mut FrameWriter)) -> Vec<u8> {
    framed(|out| out.message(tag, body))
}
