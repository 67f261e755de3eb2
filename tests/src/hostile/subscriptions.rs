//! Subscriptions, credits and watches beyond all limits.

use longshore::Glob;
use longshore::Path;
use longshore::protocol::Role;
use longshore::protocol::limits::{
    CREDITS_MAX, LINK_PATTERNS_MAX, RESOLVER_WATCHES_MAX, TOKENS_MAX,
};
use longshore::protocol::messages::resolver::{
    FromReplica, List, RequestRefusal, ToReplica, WatchPublishers,
};
use longshore::protocol::messages::work::{
    Credit, FromPublisher, Order, Source, Sources, Subscribe, ToPublisher, tag,
};

use super::bombs::message;
use super::peer::{Peer, framed};
use super::{Attacker, GROUND, Outcome, Surprise, expect};

/// Grants credits without end: numbers that no credit has, and the most again and again.
pub(super) async fn endless_credits(attacker: &Attacker) -> Outcome {
    let mut rounds = 0;
    while attacker.goes_on(rounds) {
        rounds += 1;
        for count in [CREDITS_MAX as u64 + 1, u64::from(u32::MAX), 1 << 32, u64::MAX] {
            let mut link = Peer::attach(attacker, Role::Worker).await?;
            link.send(&subscription(0, 1)).await?;
            link.send(&message(tag::CREDIT, |out| {
                out.u64(0);
                out.u64(count);
            }))
            .await?;
            link.goodbye().await?;
        }
        let mut link = Peer::attach(attacker, Role::Worker).await?;
        let (subscriptions, most) = (8, CREDITS_MAX);
        for number in 0..subscriptions {
            link.send(&subscription(number, 1)).await?;
            let credit = Credit { subscription: number, count: most };
            let all = framed(|out| {
                (0..4).for_each(|_| ToPublisher::Credit(credit).encode(out));
                (0..4).for_each(|_| ToPublisher::Recall(credit).encode(out));
                // They stay: each subscription has to share them.
                ToPublisher::Credit(credit).encode(out);
            });
            link.send(&all).await?;
        }
        let (mut recalls, mut credits) = (0, 0);
        while recalls < 4 * subscriptions {
            credits += link
                .answer_of_publisher("Returned", |message| match message {
                    FromPublisher::Returned(credit) => Some(u64::from(credit.count)),
                    _ => None,
                })
                .await?;
            recalls += 1;
        }
        expect(credits <= TOKENS_MAX as u64, || {
            format!("{credits} credits at a session, which may have {TOKENS_MAX}")
        })?;
    }
    Ok(rounds as u64)
}

/// Subscribes with more patterns than a link may.
pub(super) async fn many_subscriptions(attacker: &Attacker) -> Outcome {
    let patterns = if attacker.is_long() { 64 } else { 2 };
    let allowed = (LINK_PATTERNS_MAX / patterns) as u32;
    let mut rounds = 0;
    let mut sent = 0;
    while attacker.goes_on(rounds) && (attacker.is_long() || rounds == 0) {
        rounds += 1;
        let mut link = Peer::attach(attacker, Role::Worker).await?;
        for number in 0..=allowed {
            link.send(&subscription(number, patterns)).await?;
            sent += 1;
        }
        let refused = link
            .answer_of_publisher("SubscribeRefused", |message| match message {
                FromPublisher::SubscribeRefused { subscription, .. } => Some(subscription),
                _ => None,
            })
            .await?;
        expect(refused == allowed, || format!("{refused} is refused"))?;
    }
    Ok(sent)
}

/// Watches as many globs as a replica serves, and more.
pub(super) async fn many_watches(attacker: &Attacker) -> Outcome {
    let mut link = Peer::dial(attacker, Role::ResolverReader).await?;
    let watches = attacker.scale.items as u32;
    for watch in 0..watches {
        let glob = glob(&format!("{GROUND}/{watch}/**"))?;
        let request = WatchPublishers { id: u64::from(watch) + 2, watch, glob };
        link.tell_replica(&ToReplica::WatchPublishers(request)).await?;
    }
    let path = Path::new(GROUND).map_err(|error| Surprise(error.to_string()))?;
    link.tell_replica(&ToReplica::List(List { id: 1, path })).await?;
    let (mut refused, mut listed) = (0, false);
    while !listed {
        let code = link
            .answer_of_replica("answer to a watch", |message| match message {
                FromReplica::Refused { code, .. } => Some(Some(code)),
                FromReplica::Listed(answer) => Some(None).filter(|_| answer.id == 1),
                _ => None,
            })
            .await?;
        listed = code.is_none();
        refused += u32::from(code.is_some());
        expect(code.is_none_or(|code| code == RequestRefusal::TooManyWatches), || {
            format!("a watch is refused by {code:?}")
        })?;
    }
    let beyond = watches.saturating_sub(RESOLVER_WATCHES_MAX as u32);
    expect(refused >= beyond, || format!("{refused} of {watches} watches are refused"))?;
    Ok(u64::from(watches))
}

/// A subscription to Mallory's queues.
fn subscription(number: u32, patterns: usize) -> Vec<u8> {
    let pattern = |n: usize| glob(&format!("{GROUND}/none/{number}-{n}/**"));
    let patterns =
        (0..patterns).filter_map(|n| Some(Source { pattern: pattern(n).ok()?, weight: 1 }));
    let sources = Sources { order: Order::Age, patterns: patterns.collect() };
    framed(|out| {
        ToPublisher::Subscribe(Subscribe { subscription: number, sources, handlers: 1_000 })
            .encode(out)
    })
}

pub(super) fn glob(text: &str) -> Result<Glob, Surprise> {
    Glob::new(text).map_err(|error| Surprise(format!("{text}: {error}")))
}
