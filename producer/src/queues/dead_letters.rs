//! Dead letters: groups of them, and replacing a dead job.

use std::collections::BTreeMap;
use std::time::Duration;

use longshore_protocol::limits::DEAD_GROUPS_MAX;
use longshore_protocol::messages::work::{
    Answer, DeadGroup, DeadGroups, Filter, ReplaceOutcome, Request, RequestError,
};
use longshore_protocol::{FrameWriter, JobRef, NewJob, PublisherId};

use super::answers::{JobLookupError, PublisherAnswers, QueuesError};
use super::client::Queues;
use super::job_locator::JobLocator;
use super::requester::{PatientError, PatientRequest, Target};
use super::retry::deadline_after;
use crate::core::check;
use crate::outcome::EnqueueError;

/// The groups of dead letters over all publishers that answered, the largest first.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ClusterDeadGroups {
    /// The groups, at most 1,000.
    pub groups: Vec<ClusterDeadGroup>,
    /// True if groups may be missing. If a publisher truncated its list, or could not examine all
    /// jobs by age, the counts are lower bounds.
    pub more: bool,
}

/// Dead jobs of one queue with the same reason and fingerprint, over all publishers.
#[derive(Clone, PartialEq, Debug)]
pub struct ClusterDeadGroup {
    /// The merged group; the example is the job that died last.
    pub group: DeadGroup,
    /// The publisher of the example.
    pub publisher: PublisherId,
    /// The number of publishers with such jobs.
    pub publishers: usize,
}

impl ClusterDeadGroup {
    /// The example as receipts name it.
    pub fn example(&self) -> JobRef {
        JobRef { publisher: self.publisher, id: self.group.example }
    }
}

impl Queues {
    /// The groups of dead letters, per publisher; [`PublisherAnswers::merged`] merges them. Ignores
    /// the filter's state. Cancel safe.
    pub async fn dead_groups(
        &self,
        filter: Filter,
    ) -> Result<PublisherAnswers<DeadGroups>, QueuesError> {
        let pattern = filter.pattern.clone();
        self.request_all(&pattern, Request::DeadGroups { filter }, |answer| match answer {
            Answer::DeadGroups(groups) => Some(groups),
            _ => None,
        })
        .await
    }

    /// Replaces a dead job with a new one in the same queue, atomically: the dead job is removed if
    /// and only if the new one is added. `job` needs an id of its own; its path is ignored. A bare
    /// id is looked up first, which `limit` does not cover: that takes as long as [`Queues::job`].
    ///
    /// If an answer is lost, the request is retried until `limit`, over restarts of the publisher:
    /// with the same `job` it is idempotent. So a retry after [`ReplaceError::Away`] is safe. Not
    /// cancel safe: if the future is dropped, the job may have been replaced.
    pub async fn replace(
        &self,
        dead: &JobLocator,
        job: &NewJob,
        limit: Duration,
    ) -> Result<JobRef, ReplaceError> {
        check(job).map_err(ReplaceError::Invalid)?;
        let target = match &dead.publisher {
            Some(prefix) => Target::Prefix(prefix.clone()),
            None => Target::Id(self.job(dead).await?.publisher.id),
        };
        let mut entry = FrameWriter::new();
        job.encode_entry_head(&mut entry);
        entry.put_shared(job.payload.clone());
        let request = Request::Replace { id: dead.id, entry: entry.into_body() };
        let answer = self
            .requester
            .request_until(&target, PatientRequest::Request(&request), deadline_after(limit))
            .await;
        match answer {
            Ok((publisher, Answer::Replaced(ReplaceOutcome::Replaced))) => {
                Ok(JobRef { publisher: publisher.id, id: job.id })
            }
            Ok((publisher, Answer::Replaced(outcome))) => {
                Err(ReplaceError::Refused { publisher: publisher.id, outcome })
            }
            Ok(_) => Err(ReplaceError::Request(RequestError::Unknown)),
            Err(PatientError::Refused(why)) => Err(ReplaceError::Request(why)),
            Err(PatientError::Unsent(error)) => Err(JobLookupError::from(error).into()),
            Err(PatientError::TimedOut { away }) => {
                let why = away.unwrap_or_else(|| "it did not answer".to_owned());
                Err(ReplaceError::Away { why })
            }
        }
    }
}

/// Why a dead job was not replaced.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum ReplaceError {
    /// Every publisher would refuse the new job; nothing was sent.
    #[error("the new job: {0}")]
    Invalid(EnqueueError),
    /// A bare id was not found, or no request reached a publisher.
    #[error(transparent)]
    Lookup(#[from] JobLookupError),
    /// The publisher refused it; nothing has changed.
    #[error("publisher {} refused it: {outcome}", .publisher.prefix())]
    Refused {
        /// The publisher.
        publisher: PublisherId,
        /// The reason; never [`ReplaceOutcome::Replaced`].
        outcome: ReplaceOutcome,
    },
    /// The publisher did not answer in time, and may or may not have replaced the job. A retry with
    /// the same new job is safe.
    #[error(
        "Unknown: its publisher did not answer in time, and may or may not have done it: {why}"
    )]
    Away {
        /// Why the publisher did not answer.
        why: String,
    },
    /// The publisher cannot replace: it is of an older version and does not know the request, or
    /// cannot read its journal.
    #[error("{0}")]
    Request(RequestError),
}

impl PublisherAnswers<DeadGroups> {
    /// Merges groups of the same queue, reason and fingerprint: at most 1,000, the largest first,
    /// then by path, reason and fingerprint. Counts are sums, times are the first and the last, and
    /// the example is the job that died last.
    pub fn merged(&self) -> ClusterDeadGroups {
        let mut rows: BTreeMap<_, ClusterDeadGroup> = BTreeMap::new();
        let mut more = false;
        for answered in &self.answers {
            let publisher = answered.publisher.id;
            more |= answered.answer.more;
            for group in &answered.answer.groups {
                let key = (group.path.clone(), group.death, group.fingerprint);
                match rows.get_mut(&key) {
                    Some(row) => add(row, group, publisher),
                    None => {
                        let row =
                            ClusterDeadGroup { group: group.clone(), publisher, publishers: 1 };
                        rows.insert(key, row);
                    }
                }
            }
        }
        let mut groups: Vec<ClusterDeadGroup> = rows.into_values().collect();
        // Stable: equal groups stay ordered by their keys.
        groups.sort_by_key(|row| std::cmp::Reverse(row.group.jobs));
        more |= groups.len() > DEAD_GROUPS_MAX;
        groups.truncate(DEAD_GROUPS_MAX);
        ClusterDeadGroups { groups, more }
    }
}

fn add(row: &mut ClusterDeadGroup, group: &DeadGroup, publisher: PublisherId) {
    row.publishers += 1;
    let sum = &mut row.group;
    sum.jobs += group.jobs;
    sum.first_at = sum.first_at.min(group.first_at);
    if group.last_at > sum.last_at {
        sum.last_at = group.last_at;
        sum.example = group.example;
        sum.error.clone_from(&group.error);
        row.publisher = publisher;
    }
}
