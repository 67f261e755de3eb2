//! Dead letters: what jobs died of, and a new job in the place of a dead one.

use std::collections::BTreeMap;
use std::time::Duration;

use longshore_protocol::limits::DEAD_GROUPS_MAX;
use longshore_protocol::messages::work::{
    Answer, DeadGroup, DeadGroups, Filter, ReplaceOutcome, Request, RequestError,
};
use longshore_protocol::{FrameWriter, JobRef, NewJob, PublisherId};

use super::answers::{Gathered, JobLookupError, QueuesError};
use super::client::Queues;
use super::job_name::JobName;
use super::requester::{PatientError, PatientRequest, Target};
use super::retry::deadline_after;
use crate::core::check;
use crate::outcome::EnqueueError;

/// Dead letters of all publishers that answered, by what they died of; those with most jobs first.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct DeadGroupsAt {
    /// The groups: at most 1,000.
    pub groups: Vec<DeadGroupAt>,
    /// There are more. If a publisher had more than it told, numbers of jobs say *at least*.
    pub more: bool,
}

/// Dead jobs of one queue that died of the same, over publishers.
#[derive(Clone, PartialEq, Debug)]
pub struct DeadGroupAt {
    /// All of them; the example is the one that died last.
    pub group: DeadGroup,
    /// Who holds the example.
    pub publisher: PublisherId,
    /// How many publishers hold some.
    pub publishers: usize,
}

impl DeadGroupAt {
    /// How a receipt names the example.
    pub fn example(&self) -> JobRef {
        JobRef { publisher: self.publisher, id: self.group.example }
    }
}

impl Queues {
    /// Dead letters by what they died of, publisher by publisher; [`Gathered::merged`] adds them
    /// up. The filter's state is passed over. Cancel safe.
    pub async fn dead_groups(&self, filter: Filter) -> Result<Gathered<DeadGroups>, QueuesError> {
        let pattern = filter.pattern.clone();
        self.request_all(&pattern, Request::DeadGroups { filter }, |answer| match answer {
            Answer::DeadGroups(groups) => Some(groups),
            _ => None,
        })
        .await
    }

    /// Puts a new job in the place of a dead one, in the same queue and in one step: the dead one
    /// goes if and only if the new one is there. `job` needs an id of its own; its path is passed
    /// over. A bare id is looked for first, which `limit` does not bound: that takes as long as
    /// [`Queues::job`].
    ///
    /// A lost answer is asked for again until `limit` is over, over restarts of the publisher: said
    /// again with the same `job`, it is the same replacement. So after [`ReplaceError::Away`] it is
    /// safe to try again. Not cancel safe: of a call that was dropped, it may have been done.
    pub async fn replace(
        &self,
        dead: &JobName,
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
            Err(PatientError::Name(error)) => {
                Err(JobLookupError::from(QueuesError::from(error)).into())
            }
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
    /// The new job would be refused everywhere; nothing was sent.
    #[error("the new job: {0}")]
    Invalid(EnqueueError),
    /// A bare id that was not found; or nobody could be asked.
    #[error(transparent)]
    Lookup(#[from] JobLookupError),
    /// The publisher refused it; nothing has changed.
    #[error("publisher {} refused it: {outcome}", .publisher.prefix())]
    Refused {
        /// The publisher.
        publisher: PublisherId,
        /// Why; never [`ReplaceOutcome::Replaced`].
        outcome: ReplaceOutcome,
    },
    /// The publisher did not answer in time. It may have been done; to say it again with the same
    /// new job is safe.
    #[error("Unknown: its publisher did not answer in time, and may have done it or not: {why}")]
    Away {
        /// What kept it from answering.
        why: String,
    },
    /// The publisher cannot do it: it does not know the request, being of an older version, or
    /// cannot read its journal.
    #[error("{0}")]
    Request(RequestError),
}

impl Gathered<DeadGroups> {
    /// One group per queue, reason and fingerprint, over the publishers that answered: at most
    /// 1,000, most jobs first, then by path, reason and fingerprint. Jobs are sums, times the first
    /// and the last, the example is the one that died last.
    pub fn merged(&self) -> DeadGroupsAt {
        let mut rows: BTreeMap<_, DeadGroupAt> = BTreeMap::new();
        let mut more = false;
        for answered in &self.answers {
            let publisher = answered.publisher.id;
            more |= answered.answer.more;
            for group in &answered.answer.groups {
                let key = (group.path.clone(), group.death, group.fingerprint);
                match rows.get_mut(&key) {
                    Some(row) => add(row, group, publisher),
                    None => {
                        let row = DeadGroupAt { group: group.clone(), publisher, publishers: 1 };
                        rows.insert(key, row);
                    }
                }
            }
        }
        let mut groups: Vec<DeadGroupAt> = rows.into_values().collect();
        // Stable: equal ones stay in the order of their keys.
        groups.sort_by_key(|row| std::cmp::Reverse(row.group.jobs));
        more |= groups.len() > DEAD_GROUPS_MAX;
        groups.truncate(DEAD_GROUPS_MAX);
        DeadGroupsAt { groups, more }
    }
}

fn add(row: &mut DeadGroupAt, group: &DeadGroup, publisher: PublisherId) {
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
