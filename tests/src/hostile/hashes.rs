//! Ids and paths chosen so that simple hashes of them collide.
//!
//! The publisher hashes ids with a secret key, and the replica paths; so nobody can choose ids or
//! paths that collide there, and the best that is left are those below. The hash of the buckets in
//! which replicas compare registrations is public. So an attacker can choose paths that all fall
//! into one, and the cost of a path must not depend on it.

use std::time::Duration;

use longshore::protocol::messages::resolver::{
    Announce, Change, FromReplica, Group, KeyHash, PathText, PathTexts, ToReplica, Write,
};
use longshore::protocol::messages::work::Tokens;
use longshore::protocol::{Epoch, JobId, PublicationKind, Role, Terms};
use longshore::{PublisherId, PublisherInfo};
use tokio::time::Instant;

use super::peer::{Peer, session};
use super::{Attacker, GROUND, Outcome, Surprise, expect};

/// How much longer colliding keys may take than others, in the long form.
const SLOWER_MAX: f64 = 3.0;
/// Jobs of a batch.
const BATCH: usize = 1_000;
/// Of so many buckets one is crowded.
const BUCKETS: usize = 256;

/// Enqueues jobs whose ids differ in a few bits, and have zeros or multiples of 2⁶⁴ − 1 elsewhere:
/// the weak spots of hashes by multiplication. They take as long as random ids.
pub(super) async fn colliding_ids(attacker: &Attacker) -> Outcome {
    let count = attacker.scale.items as u64;
    let halves =
        |low: u64, high: u64| JobId((u128::from(high) << 64 | u128::from(low)).to_le_bytes());
    let kinds: [(&str, &dyn Fn(u64) -> JobId); 6] = [
        ("random", &|_| JobId(rand::random())),
        ("low-zero", &|n| halves(0, n)),
        ("high-zero", &|n| halves(n + 1, 0)),
        ("top-bits", &|n| halves(1, (n + 1) << 40)),
        ("all-ones", &|n| halves(u64::MAX, n)),
        ("alike", &|n| halves(n ^ 0xaaaa_aaaa_aaaa_aaaa, n ^ 0xaaaa_aaaa_aaaa_aaaa)),
    ];
    let mut times = Vec::new();
    for (name, id) in kinds {
        let secret = &attacker.target.mallory;
        let mut link = Peer::dial_as(attacker, Role::Producer, secret, session()).await?;
        link.attached(Tokens::default()).await?;
        let ids: Vec<JobId> = (0..count).map(id).collect();
        let path = format!("{GROUND}/hashes/{name}");
        let began = Instant::now();
        for (sequence, ids) in (1..).zip(ids.chunks(BATCH)) {
            link.enqueue_ids(sequence, &path, ids).await?;
        }
        times.push((name, began.elapsed()));
    }
    as_fast_as_the_first(attacker, &times)?;
    Ok(count * times.len() as u64)
}

/// Publishes and withdraws paths that all fall into one bucket. They take as long as others.
pub(super) async fn crowded_buckets(attacker: &Attacker) -> Outcome {
    let count = attacker.scale.items;
    let path = |n: usize| format!("{GROUND}/buckets/{n}");
    let spread: Vec<String> = (0..count).map(path).collect();
    let in_one = |path: &String| KeyHash::of(path, false).bucket(BUCKETS) == 0;
    let (mut crowded, mut tried) = (Vec::new(), 0);
    while crowded.len() < count {
        crowded.extend((tried..tried + BATCH).map(path).filter(in_one));
        tried += BATCH;
        // The search counts as the attackers' time, too.
        tokio::task::yield_now().await;
    }
    crowded.truncate(count);
    let mut times = Vec::new();
    for (name, paths) in [("spread", spread), ("crowded", crowded)] {
        let began = Instant::now();
        let mut link = Peer::dial(attacker, Role::ResolverWriter).await?;
        announce(&mut link).await?;
        let mut request = 1;
        for change in [Change::Publish, Change::Unpublish] {
            for paths in paths.chunks(BATCH) {
                request += 1;
                let refused = write(&mut link, request, change, paths).await?;
                expect(refused.is_none(), || format!("{change:?} is refused: {refused:?}"))?;
            }
        }
        link.tell_replica(&ToReplica::Clear { id: request + 1 }).await?;
        written(&mut link, request + 1).await?;
        times.push((name, began.elapsed()));
    }
    as_fast_as_the_first(attacker, &times)?;
    Ok(2 * count as u64)
}

fn as_fast_as_the_first(attacker: &Attacker, times: &[(&str, Duration)]) -> Result<(), Surprise> {
    let first = times.first().map_or(0.0, |(_, time)| time.as_secs_f64());
    let slowest = times.iter().map(|(_, time)| time.as_secs_f64()).fold(0.0, f64::max);
    let is_slow = attacker.is_long() && slowest > SLOWER_MAX * first;
    expect(!is_slow, || format!("chosen keys take too long: {times:?}"))
}

/// Registers as a publisher of values with a new id.
pub(super) async fn announce(link: &mut Peer) -> Result<(), Surprise> {
    let address = "127.0.0.1:1".parse::<longshore::Address>();
    let address = address.map_err(|error| Surprise(error.to_string()))?;
    let id = PublisherId(rand::random());
    let publisher = PublisherInfo::new(id, Epoch(1), "mallory", [address]);
    let announce = Announce { id: 1, publisher, desired: Vec::new() };
    link.tell_replica(&ToReplica::Announce(announce)).await?;
    link.answer_of_replica("Announced", |message| match message {
        FromReplica::Announced(answer) if answer.id == 1 => Some(()),
        _ => None,
    })
    .await
}

/// Writes values' paths; returns the first refusal.
pub(super) async fn write(
    link: &mut Peer,
    request: u64,
    change: Change,
    paths: &[String],
) -> Result<Option<String>, Surprise> {
    let mut texts = PathTexts::default();
    paths.iter().for_each(|path| texts.push(PathText::new(path.as_bytes())));
    let terms = Terms { kind: PublicationKind::Value, ..Terms::default() };
    let groups = vec![Group { change, terms, paths: texts }];
    link.tell_replica(&ToReplica::Write(Write { id: request, groups })).await?;
    written(link, request).await
}

async fn written(link: &mut Peer, request: u64) -> Result<Option<String>, Surprise> {
    let mut first = None;
    link.answer_of_replica("Written", |message| match message {
        FromReplica::Written(written) if written.id == request => {
            let refused = written.refused.into_iter().next().map(|refused| refused.reason);
            first = first.take().or(refused);
            written.last.then(|| first.take())
        }
        FromReplica::Refused { id, reason, .. } if id == request => Some(Some(reason)),
        _ => None,
    })
    .await
}
