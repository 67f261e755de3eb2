//! The publishers that replicas know: of one replica, collected from the parts of its answer; of
//! all, merged.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use longshore_protocol::Glob;
use longshore_protocol::limits::RESOLVER_PUBLISHERS_MAX;
use longshore_protocol::messages::resolver::{KnownPublisher, PublishersKnown};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::cluster::ReplicaFailure;
use crate::replica_error::ReplicaError;

/// Most publishers that a replica lists: the limit of visible ones, as many hidden and not yet
/// swept, and as many missing.
const PUBLISHERS_LISTED_MAX: usize = 3 * RESOLVER_PUBLISHERS_MAX;

/// How long answers serve later calls: a tool that asks once a job would otherwise dial every
/// replica as often.
const ROLL_AGE_MAX: Duration = Duration::from_secs(1);

/// The answers of a cluster's replicas about publishers.
#[derive(Clone, Default, Debug)]
pub(super) struct Answers {
    pub(super) known: Vec<Vec<KnownPublisher>>,
    pub(super) silent_replicas: Vec<ReplicaFailure>,
}

/// The latest answers. One request for them runs at a time; concurrent callers share it.
#[derive(Default, Debug)]
pub(super) struct RecentAnswers(Mutex<Option<(Instant, Answers)>>);

impl RecentAnswers {
    /// The publishers by the latest answers, or by those of `ask` if these are too old. An error,
    /// for people, if no replica answered. Cancel safe if `ask` is.
    pub(super) async fn roll(
        &self,
        pattern: &Glob,
        ask: impl Future<Output = Answers>,
    ) -> Result<ClusterPublishers, String> {
        let mut recent = self.0.lock().await;
        let young = recent.take().filter(|(at, _)| at.elapsed() < ROLL_AGE_MAX);
        let (_, answers) = recent.insert(match young {
            Some(young) => young,
            None => {
                // The age counts from the end: callers that waited share it, however long it took.
                let answers = ask.await;
                (Instant::now(), answers)
            }
        });
        match answers.known.is_empty() {
            true => {
                let lines = answers.silent_replicas.iter().map(ToString::to_string);
                Err(lines.collect::<Vec<_>>().join("; "))
            }
            false => Ok(ClusterPublishers::of(answers, pattern)),
        }
    }
}

/// The publishers listed so far.
#[derive(Default, Debug)]
pub(super) struct KnownCollector {
    partial: Vec<KnownPublisher>,
}

impl KnownCollector {
    /// Adds a part of the answer. Returns all publishers, sorted by name, after the last part; an
    /// error if there are too many.
    pub(super) fn take(
        &mut self,
        part: PublishersKnown,
    ) -> Option<Result<Vec<KnownPublisher>, ReplicaError>> {
        if self.partial.len() + part.publishers.len() > PUBLISHERS_LISTED_MAX {
            let why = format!("it lists more than {PUBLISHERS_LISTED_MAX} publishers");
            return Some(Err(ReplicaError::BadAnswer(why)));
        }
        self.partial.extend(part.publishers);
        part.last.then(|| {
            self.partial.sort_unstable_by(|one, other| one.info.name.cmp(&other.info.name));
            Ok(std::mem::take(&mut self.partial))
        })
    }
}

/// The publishers known to any replica that could hold jobs of some queues.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClusterPublishers {
    /// Publishers that are registered at some replica.
    pub registered: Vec<KnownPublisher>,
    /// Publishers that are registered at no replica.
    pub missing: Vec<KnownPublisher>,
    /// The replicas that did not answer: publishers that only these know are in neither list.
    pub silent_replicas: Vec<ReplicaFailure>,
}

impl ClusterPublishers {
    /// Merges replicas' answers: a publisher that one of them sees is registered.
    pub(super) fn of(answers: &Answers, pattern: &Glob) -> ClusterPublishers {
        let mut best: BTreeMap<_, &KnownPublisher> = BTreeMap::new();
        let matching = |one: &&KnownPublisher| one.declared.could_match(pattern);
        for one in answers.known.iter().flatten().filter(matching) {
            // A visible one before a missing one; of two, the one heard most recently.
            let rank = |one: &KnownPublisher| (one.departure.is_some(), one.silent_ms);
            match best.entry(one.info.id) {
                Entry::Vacant(entry) => {
                    entry.insert(one);
                }
                Entry::Occupied(mut entry) if rank(one) < rank(entry.get()) => {
                    entry.insert(one);
                }
                Entry::Occupied(_) => {}
            }
        }
        let best = best.into_values().cloned();
        let (registered, missing) = best.partition(|one| one.departure.is_none());
        ClusterPublishers { registered, missing, silent_replicas: answers.silent_replicas.clone() }
    }
}

#[cfg(test)]
mod tests {
    use longshore_protocol::messages::resolver::{Declared, Departure};
    use longshore_protocol::{Address, Epoch, PublisherId, PublisherInfo};

    use super::*;

    fn publisher(n: usize) -> KnownPublisher {
        let info = PublisherInfo::new(
            PublisherId((n as u128).to_le_bytes()),
            Epoch(1),
            format!("{n:06}"),
            Vec::<Address>::new(),
        );
        let departure = n.is_multiple_of(2).then_some(Departure::Silent);
        KnownPublisher {
            info,
            registrations: 0,
            silent_ms: 0,
            departure,
            declared: Declared::default(),
        }
    }

    fn part(publishers: impl Iterator<Item = usize>, last: bool) -> PublishersKnown {
        PublishersKnown { id: 1, last, publishers: publishers.map(publisher).collect() }
    }

    #[test]
    fn a_publisher_is_missing_if_no_replica_sees_it_and_it_could_hold_matching_jobs() {
        let declared = |text: &str| Declared {
            defaults: vec![longshore_protocol::Path::new(text).unwrap()],
            ..Declared::default()
        };
        let known = |n, departure, silent_ms, declared| KnownPublisher {
            departure,
            silent_ms,
            declared,
            ..publisher(n)
        };
        let gone = Some(Departure::Silent);
        let first = vec![
            known(1, gone, 5, declared("/jobs")),
            known(2, gone, 9, declared("/jobs")),
            known(3, gone, 5, declared("/other")),
            known(4, gone, 5, Declared::default()),
        ];
        let second = vec![
            known(1, None, 1, declared("/jobs")),
            known(2, Some(Departure::NotBack), 7, declared("/jobs")),
        ];
        let pattern = Glob::new("/jobs/**").unwrap();
        let answers = Answers { known: vec![first, second], silent_replicas: Vec::new() };
        let roll = ClusterPublishers::of(&answers, &pattern);
        let ids = |some: &[KnownPublisher]| -> Vec<(u8, u64)> {
            some.iter().map(|one| (one.info.id.0[0], one.silent_ms)).collect()
        };
        assert_eq!(ids(&roll.registered), [(1, 1)]);
        assert_eq!(ids(&roll.missing), [(2, 7)]);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_serve_later_calls_for_a_second() {
        let recent = RecentAnswers::default();
        let outstanding = std::cell::Cell::new(0);
        let failure = || ReplicaFailure { replica: "r2:1".into(), why: "it hangs".into() };
        let roll = async || {
            let answers = async {
                outstanding.set(outstanding.get() + 1);
                tokio::time::sleep(Duration::from_millis(100)).await;
                Answers { known: vec![Vec::new()], silent_replicas: vec![failure()] }
            };
            recent.roll(&Glob::everything(), answers).await.unwrap()
        };
        let (one, two) = tokio::join!(roll(), roll());
        assert_eq!((outstanding.get(), &one), (1, &two));
        assert_eq!(one.silent_replicas, [failure()]);
        tokio::time::sleep(ROLL_AGE_MAX).await;
        roll().await;
        assert_eq!(outstanding.get(), 2);
    }

    /// A replica limits both kinds: see its table of publishers.
    #[test]
    fn as_many_publishers_are_accepted_as_a_replica_can_have() {
        let mut known = KnownCollector::default();
        let half = RESOLVER_PUBLISHERS_MAX;
        assert!(known.take(part((half..2 * half).rev(), false)).is_none());
        let all = known.take(part((0..half).rev(), true)).unwrap().unwrap();
        assert_eq!(all.len(), 32_768);
        assert!(all.is_sorted_by(|one, other| one.info.name < other.info.name));

        assert!(known.take(part(0..3 * half, false)).is_none());
        let refused = known.take(part(0..1, true)).unwrap().unwrap_err();
        assert_eq!(refused.to_string(), "it lists more than 49152 publishers");
    }
}
