//! Answers of several publishers, with the publishers that did not answer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longshore_protocol::messages::work::{ActionReport, JobInfo, QueueStat, RequestError};
use longshore_protocol::{JobId, JobRef, NameError, Path, PublisherInfo, QueueSettings};
use longshore_resolver::{Departure, KnownPublisher, ReplicaFailure};

use super::tool_link::RequestFailure;
use crate::directory::DirectoryError;

/// The answers of publishers. To check for completeness, also check
/// [`missing`](PublisherAnswers::missing) and [`complete`](PublisherAnswers::complete).
#[derive(Clone, PartialEq, Debug)]
pub struct PublisherAnswers<T> {
    /// False if the resolver has just started: there may be publishers that are not listed here.
    pub complete: bool,
    /// The answers, by publisher name.
    pub answers: Vec<PublisherAnswer<T>>,
    /// The publishers that did not answer, by name.
    pub missing: Vec<MissingPublisher>,
    /// Replicas without an answer: missing publishers that only these know are not listed.
    pub silent_replicas: Vec<ReplicaFailure>,
}

/// One publisher's answer.
#[derive(Clone, PartialEq, Debug)]
pub struct PublisherAnswer<T> {
    /// The publisher.
    pub publisher: PublisherInfo,
    /// Its answer.
    pub answer: T,
}

/// A publisher that did not answer.
#[derive(Clone, PartialEq, Debug)]
pub struct MissingPublisher {
    /// The publisher.
    pub publisher: PublisherInfo,
    /// The reason, for people.
    pub why: String,
    /// True if the client lacks the right.
    pub is_forbidden: bool,
}

impl MissingPublisher {
    pub(super) fn new(publisher: PublisherInfo, failure: &RequestFailure) -> MissingPublisher {
        let is_forbidden = *failure == RequestFailure::Refused(RequestError::Forbidden);
        MissingPublisher { publisher, why: failure.to_string(), is_forbidden }
    }
}

/// A publisher that is registered at no replica.
impl From<KnownPublisher> for MissingPublisher {
    fn from(known: KnownPublisher) -> MissingPublisher {
        let silent = Duration::from_secs(known.silent_ms / 1_000);
        let departure = known.departure.unwrap_or(Departure::Silent);
        let why = format!(
            "missing for {silent:?}, {departure}; start it, or, if it is gone for good with its \
             jobs: longshore publisher forget {}",
            known.info.id.prefix()
        );
        MissingPublisher { publisher: known.info, why, is_forbidden: false }
    }
}

/// A job and its publisher.
#[derive(Clone, PartialEq, Debug)]
pub struct FoundJob {
    /// The publisher.
    pub publisher: PublisherInfo,
    /// The job.
    pub job: JobInfo,
}

impl FoundJob {
    /// The job as receipts name it.
    pub fn job_ref(&self) -> JobRef {
        JobRef { publisher: self.publisher.id, id: self.job.id }
    }
}

/// Why no request reached a publisher.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum QueuesError {
    /// No replica answered within this time. Retry.
    #[error("no resolver replica answered within {0:?}; see: longshore resolver status")]
    Resolver(Duration),
    /// No replica is configured.
    #[error("no resolver replica is configured; name at least one as host:port")]
    NoReplicas,
    /// The client's name ([`QueuesBuilder::name`](crate::QueuesBuilder::name)) is empty, or has
    /// more than 128 bytes. Nothing was sent.
    #[error("the client: {0}")]
    Name(#[from] NameError),
}

impl From<DirectoryError> for QueuesError {
    fn from(error: DirectoryError) -> QueuesError {
        match error {
            DirectoryError::Timeout(limit) => QueuesError::Resolver(limit),
            DirectoryError::NoReplicas => QueuesError::NoReplicas,
        }
    }
}

/// Why a job lookup failed.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum JobLookupError {
    /// No request reached a publisher.
    #[error(transparent)]
    Queues(#[from] QueuesError),
    /// Every publisher that could have the job answered, and none has it.
    #[error("no job {id}: {}", nowhere(.asked))]
    NotFound {
        /// The job's id.
        id: JobId,
        /// The publishers that answered.
        asked: Vec<PublisherInfo>,
    },
    /// The publishers that answered do not have the job; others did not answer, or may not be
    /// known.
    #[error(
        "Unknown: job {id} is not at the {} that answered{}",
        counted(.asked.len()), missing_suffix(.missing, *.complete)
    )]
    Unknown {
        /// The job's id.
        id: JobId,
        /// The publishers that answered.
        asked: Vec<PublisherInfo>,
        /// The publishers that did not answer.
        missing: Vec<MissingPublisher>,
        /// False if there may be publishers that the resolver does not know yet.
        complete: bool,
    },
    /// The resolver does not know the publisher in the job's name.
    #[error("publisher {prefix} is not known to the resolver at present; the job is on its disk")]
    PublisherAway {
        /// The prefix of the name.
        prefix: String,
    },
}

/// Why a job is nowhere.
fn nowhere(asked: &[PublisherInfo]) -> String {
    match asked {
        [] => "no publisher is registered that could have it".to_owned(),
        [one] => format!("publisher {} was asked and does not have it", one.name),
        all => format!("{} were asked and none has it", counted(all.len())),
    }
}

fn counted(publishers: usize) -> String {
    format!("{publishers} publisher{}", if publishers == 1 { "" } else { "s" })
}

fn missing_suffix(missing: &[MissingPublisher], complete: bool) -> String {
    let mut text = String::new();
    for MissingPublisher { publisher, why, .. } in missing {
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

impl<T> PublisherAnswers<T> {
    pub(super) fn new(
        complete: bool,
        missing: Vec<MissingPublisher>,
        silent_replicas: Vec<ReplicaFailure>,
    ) -> PublisherAnswers<T> {
        PublisherAnswers { complete, answers: Vec::new(), missing, silent_replicas }
    }

    pub(super) fn add(&mut self, publisher: PublisherInfo, answer: Result<T, RequestFailure>) {
        match answer {
            Ok(answer) => self.answers.push(PublisherAnswer { publisher, answer }),
            Err(failure) => self.missing.push(MissingPublisher::new(publisher, &failure)),
        }
    }

    pub(super) fn sorted(mut self) -> PublisherAnswers<T> {
        let by_name = |p: &PublisherInfo| (p.name.clone(), p.id);
        self.answers.sort_by_cached_key(|answered| by_name(&answered.publisher));
        self.missing.sort_by_cached_key(|missing| by_name(&missing.publisher));
        self
    }

    /// True if every publisher answered.
    pub fn is_whole(&self) -> bool {
        self.complete && self.missing.is_empty()
    }
}

impl PublisherAnswers<Vec<QueueStat>> {
    /// One row per queue over all answers, by path. Counts are sums, ages are maxima, and pauses
    /// are the union. Settings are those of the first publisher by name: see
    /// [`PublisherAnswers::differing_settings`].
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

    /// The queues whose settings differ between publishers, by path.
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
    if row.limited_by.is_none() {
        row.limited_by = stat.limited_by.clone();
    }
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

impl PublisherAnswers<ActionReport> {
    /// The sums over all answers. `unknown` also counts jobs that another publisher has.
    pub fn total(&self) -> ActionReport {
        let mut total = ActionReport::default();
        for PublisherAnswer { answer, .. } in &self.answers {
            total.done += answer.done;
            total.refused += answer.refused;
            total.unknown += answer.unknown;
            total.more |= answer.more;
        }
        total
    }
}
