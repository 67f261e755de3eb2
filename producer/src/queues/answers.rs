//! Answers of many publishers, with the names of those that gave none.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longshore_protocol::messages::work::{ActionReport, JobInfo, QueueStat};
use longshore_protocol::{JobId, JobRef, NameError, Path, PublisherInfo, QueueSettings};
use longshore_resolver::{Departure, KnownPublisher, ReplicaFailure};

use crate::directory::DirectoryTimeout;

/// What publishers answered. Those that did not answer are in [`missing`](Gathered::missing):
/// whoever wants the whole truth looks at that and at [`complete`](Gathered::complete), too.
#[derive(Clone, PartialEq, Debug)]
pub struct Gathered<T> {
    /// False when the resolver's replicas have started only now: there may be publishers that are
    /// not named here.
    pub complete: bool,
    /// Those that answered, by name.
    pub answers: Vec<Answered<T>>,
    /// Those that did not, by name.
    pub missing: Vec<Missing>,
    /// Replicas that were not heard: a missing publisher that only these know is not named here.
    pub unanswered: Vec<ReplicaFailure>,
}

/// One publisher's answer.
#[derive(Clone, PartialEq, Debug)]
pub struct Answered<T> {
    /// Whose.
    pub publisher: PublisherInfo,
    /// What.
    pub answer: T,
}

/// A publisher that did not answer.
#[derive(Clone, PartialEq, Debug)]
pub struct Missing {
    /// Who.
    pub publisher: PublisherInfo,
    /// Why, for people.
    pub why: String,
}

/// One that is registered at no replica.
impl From<KnownPublisher> for Missing {
    fn from(known: KnownPublisher) -> Missing {
        let silent = Duration::from_secs(known.silent_ms / 1_000);
        let departure = known.departure.unwrap_or(Departure::Silent);
        let why = format!(
            "missing for {silent:?}, {departure}; start it, or, if it is gone for good with its jobs: \
             longshore publisher forget {}",
            known.info.id.prefix()
        );
        Missing { publisher: known.info, why }
    }
}

/// A job and who holds it.
#[derive(Clone, PartialEq, Debug)]
pub struct JobAt {
    /// The publisher.
    pub publisher: PublisherInfo,
    /// The job.
    pub job: JobInfo,
}

impl JobAt {
    /// How a receipt names it.
    pub fn job_ref(&self) -> JobRef {
        JobRef { publisher: self.publisher.id, id: self.job.id }
    }
}

/// Why nobody could be asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum QueuesError {
    /// No replica told which publishers there are, within so long. Try again.
    #[error(
        "no resolver replica told of publishers within {0:?}; longshore resolver status says how they are"
    )]
    Resolver(Duration),
    /// No replica was named: the configuration is wrong.
    #[error("no resolver replica is configured; name at least one as host:port")]
    NoReplicas,
    /// The name of who asks ([`QueuesOptions::name`](crate::QueuesOptions::name)) is empty, or has
    /// more than 128 bytes. Nobody was asked.
    #[error("who asks: {0}")]
    Name(#[from] NameError),
}

impl From<DirectoryTimeout> for QueuesError {
    fn from(DirectoryTimeout(limit): DirectoryTimeout) -> QueuesError {
        QueuesError::Resolver(limit)
    }
}

/// Why a job was not shown.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum JobLookupError {
    /// Nobody could be asked.
    #[error(transparent)]
    Queues(#[from] QueuesError),
    /// Every publisher that could have it was asked and answered: none has it.
    #[error("no job {id}: {} publishers were asked and none has it", .asked.len())]
    NotFound {
        /// The job.
        id: JobId,
        /// Who answered.
        asked: Vec<PublisherInfo>,
    },
    /// Those that answered do not have it; others did not answer, or may not be known.
    #[error("Unknown: job {id} is not at the {} publishers that answered{}", .asked.len(), unheard(.missing, *.complete))]
    Unknown {
        /// The job.
        id: JobId,
        /// Who answered.
        asked: Vec<PublisherInfo>,
        /// Who did not.
        missing: Vec<Missing>,
        /// False when there may be publishers that the resolver does not know yet.
        complete: bool,
    },
    /// The publisher that the name begins with is not known to the resolver.
    #[error(
        "publisher {prefix} is not known to the resolver at the moment; the job is on its disk"
    )]
    PublisherAway {
        /// How the name begins.
        prefix: String,
    },
}

fn unheard(missing: &[Missing], complete: bool) -> String {
    let mut text = String::new();
    for Missing { publisher, why } in missing {
        text.push_str(&format!(
            "; {} ({}) did not answer: {why}",
            publisher.name,
            publisher.id.prefix()
        ));
    }
    if !complete {
        text.push_str("; the resolver has just started and may not know all publishers yet");
    }
    text
}

impl<T> Gathered<T> {
    pub(super) fn new(
        complete: bool,
        missing: Vec<Missing>,
        unanswered: Vec<ReplicaFailure>,
    ) -> Gathered<T> {
        Gathered { complete, answers: Vec::new(), missing, unanswered }
    }

    pub(super) fn add(&mut self, publisher: PublisherInfo, answer: Result<T, String>) {
        match answer {
            Ok(answer) => self.answers.push(Answered { publisher, answer }),
            Err(why) => self.missing.push(Missing { publisher, why }),
        }
    }

    pub(super) fn sorted(mut self) -> Gathered<T> {
        let by_name = |p: &PublisherInfo| (p.name.clone(), p.id);
        self.answers.sort_by_cached_key(|answered| by_name(&answered.publisher));
        self.missing.sort_by_cached_key(|missing| by_name(&missing.publisher));
        self
    }

    /// True when every publisher that could answer did.
    pub fn is_whole(&self) -> bool {
        self.complete && self.missing.is_empty()
    }
}

impl Gathered<Vec<QueueStat>> {
    /// One row per queue, over the publishers that answered, by path. Ages are the oldest; counts
    /// are sums; pauses are those of any publisher. Settings are those of the first publisher by
    /// name: [`Gathered::differing_settings`] says where others have others.
    pub fn merged(&self) -> Vec<QueueStat> {
        let mut rows: BTreeMap<Path, QueueStat> = BTreeMap::new();
        for stat in self.answers.iter().flat_map(|answered| &answered.answer) {
            match rows.get_mut(&stat.path) {
                Some(row) => add(row, stat),
                None => {
                    rows.insert(stat.path.clone(), stat.clone());
                }
            }
        }
        rows.into_values().collect()
    }

    /// The queues whose settings are not the same at every publisher that answered, by path.
    pub fn differing_settings(&self) -> Vec<Path> {
        let mut first: BTreeMap<&Path, &QueueSettings> = BTreeMap::new();
        let mut differing = BTreeSet::new();
        for stat in self.answers.iter().flat_map(|answered| &answered.answer) {
            if *first.entry(&stat.path).or_insert(&stat.settings) != &stat.settings {
                differing.insert(stat.path.clone());
            }
        }
        differing.into_iter().collect()
    }
}

fn add(row: &mut QueueStat, stat: &QueueStat) {
    row.counts += stat.counts;
    row.oldest_ready_ms = row.oldest_ready_ms.max(stat.oldest_ready_ms);
    row.enqueued += stat.enqueued;
    row.completed += stat.completed;
    row.failed += stat.failed;
    row.redelivered += stat.redelivered;
    row.stale_refused += stat.stale_refused;
    row.subscriptions += stat.subscriptions;
    row.credits += stat.credits;
    row.died += stat.died;
    for pattern in &stat.paused_by {
        if !row.paused_by.contains(pattern) {
            row.paused_by.push(pattern.clone());
        }
    }
    for pattern in &stat.closed_by {
        if !row.closed_by.contains(pattern) {
            row.closed_by.push(pattern.clone());
        }
    }
}

impl Gathered<ActionReport> {
    /// Over the publishers that answered. `unknown` is a sum over publishers: a job that one of
    /// several has is unknown to the others.
    pub fn total(&self) -> ActionReport {
        let mut total = ActionReport::default();
        for Answered { answer, .. } in &self.answers {
            total.done += answer.done;
            total.refused += answer.refused;
            total.unknown += answer.unknown;
            total.more |= answer.more;
        }
        total
    }
}
