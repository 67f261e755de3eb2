//! Actions on jobs: on named jobs, or on all that match a filter.

use hashbrown::HashMap;
use longshore_protocol::limits::BATCH_JOBS_MAX;
use longshore_protocol::messages::work::{
    ActOutcome, Action, ActionReport, Answer, Filter, Pace, Request, Selection,
};
use longshore_protocol::{JobId, JobState, PublisherId, PublisherInfo};
use longshore_resolver::ReplicaFailure;
use tokio::task::JoinSet;

use super::answers::{MissingPublisher, PublisherAnswers, QueuesError};
use super::client::Queues;
use super::job_locator::JobLocator;
use super::requester::{PublisherListing, Requester, everything, next};
use super::tool_link::RequestFailure;

/// The outcome of an action on named jobs ([`Queues::act_on`]).
#[derive(Clone, PartialEq, Debug)]
pub struct ActionResults {
    /// False if the resolver has just started: it may not list every publisher yet.
    pub complete: bool,
    /// The outcome of each job, in the order of the names.
    pub jobs: Vec<ActionResult>,
    /// The publishers that confirmed every request, by name.
    pub answered: Vec<PublisherInfo>,
    /// The publishers that did not, by name.
    pub missing: Vec<MissingPublisher>,
    /// Replicas without an answer, as in
    /// [`PublisherAnswers::silent_replicas`](crate::PublisherAnswers::silent_replicas).
    pub silent_replicas: Vec<ReplicaFailure>,
}

impl ActionResults {
    /// True if the action was done to every job.
    pub fn is_done(&self) -> bool {
        self.jobs.iter().all(|job| matches!(job.end, ActionOutcome::Done { .. }))
    }
}

/// The outcome of one named job.
#[derive(Clone, PartialEq, Debug)]
pub struct ActionResult {
    /// The name, as given.
    pub name: JobLocator,
    /// The outcome.
    pub end: ActionOutcome,
}

/// The outcome of an action on a named job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ActionOutcome {
    /// The action was done, or would be in a dry run.
    Done {
        /// The publisher that holds the job.
        publisher: PublisherId,
    },
    /// The job's state does not allow the action. The job is unchanged.
    NotInState {
        /// The publisher that holds the job.
        publisher: PublisherId,
        /// The job's state.
        state: JobState,
    },
    /// The job cannot be revived: another one has its unique key. The job is unchanged.
    NotUnique {
        /// The publisher that holds both jobs.
        publisher: PublisherId,
        /// The job that has the key.
        holder: JobId,
    },
    /// Every publisher that could have the job has answered, and none has it.
    NotFound,
    /// A publisher that could have the job did not answer: see [`ActionResults::missing`]. If it
    /// has the job, the action may have been done. If none is missing, the resolver may not know
    /// all publishers at present.
    Unknown,
}

impl ActionOutcome {
    /// The stronger of two publishers' outcomes for one job: that of the publisher with the job.
    fn or(self, other: ActionOutcome) -> ActionOutcome {
        let weight = |end: &ActionOutcome| match end {
            ActionOutcome::Done { .. } => 3,
            ActionOutcome::NotInState { .. } | ActionOutcome::NotUnique { .. } => 2,
            ActionOutcome::Unknown => 1,
            ActionOutcome::NotFound => 0,
        };
        if weight(&other) > weight(&self) { other } else { self }
    }
}

/// The indices of some names, and a publisher's outcomes for them.
type PartOutcome = (Vec<usize>, Result<Vec<ActOutcome>, RequestFailure>);

impl Queues {
    /// Acts on any number of named jobs; with `dry_run` only reports what would be done. A name
    /// with a publisher is sent to that one, a bare id to all.
    ///
    /// If an answer is lost, the request is retried, except [`Action::Revive`] (the job may have
    /// died again meanwhile). Then a job that was cancelled or confirmed before is
    /// [`ActionOutcome::Done`], and one that was dropped before is [`ActionOutcome::NotFound`].
    /// Not cancel safe: what was done stays done.
    pub async fn act_on(
        &self,
        action: Action,
        names: &[JobLocator],
        dry_run: bool,
    ) -> Result<ActionResults, QueuesError> {
        let roster = self.requester.list_publishers(&everything()).await?;
        let PublisherListing { complete, publishers, missing, silent_replicas } = roster;
        // A job that no publisher has may be at a missing one.
        let all_asked = complete && missing.is_empty();
        let mut tasks = JoinSet::new();
        let mut ends: Vec<Option<ActionOutcome>> = vec![None; names.len()];
        let by_name = indices_by_prefix(names);
        for publisher in publishers {
            let mut indices: Vec<usize> = Vec::new();
            for key in [None, Some(publisher.id.prefix())] {
                indices.extend(by_name.get(&key).into_iter().flatten());
            }
            if indices.is_empty() {
                continue;
            }
            let jobs: Vec<(usize, JobId)> = indices.iter().map(|&at| (at, names[at].id)).collect();
            let requester = self.requester.clone();
            tasks.spawn(async move {
                let parts = requester.act_on_ids(&publisher, action, &jobs, dry_run).await;
                (publisher, parts)
            });
        }
        let mut gathered = PublisherAnswers::new(complete, missing, silent_replicas);
        while let Some((publisher, parts)) = next(&mut tasks).await {
            let id = publisher.id;
            let mut whole = Ok(());
            for (indices, outcomes) in parts {
                let outcomes = match outcomes {
                    Ok(outcomes) => {
                        outcomes.into_iter().map(|outcome| outcome_at(id, outcome)).collect()
                    }
                    Err(why) => {
                        whole = Err(why);
                        vec![ActionOutcome::Unknown; indices.len()]
                    }
                };
                for (index, end) in indices.into_iter().zip(outcomes) {
                    ends[index] = Some(ends[index].map_or(end, |before| before.or(end)));
                }
            }
            gathered.add(publisher, whole);
        }
        let gathered = gathered.sorted();
        Ok(ActionResults {
            complete,
            jobs: (names.iter().cloned().zip(ends))
                .map(|(name, end)| ActionResult { end: final_outcome(&name, end, all_asked), name })
                .collect(),
            answered: gathered.answers.into_iter().map(|answered| answered.publisher).collect(),
            missing: gathered.missing,
            silent_replicas: gathered.silent_replicas,
        })
    }

    /// Acts on all jobs that match the filter, at every publisher that could have some, 10,000 at a
    /// time until none is left. With `dry_run`, counts the first 10,000 of each publisher and
    /// reports whether there are more. Without a state in the filter, acts in every state that the
    /// action allows; [`Action::Drop`] only drops dead letters.
    ///
    /// If an answer is lost, the request is retried (not with [`Action::Revive`]). The jobs of the
    /// lost answer are not counted, so the counts are lower bounds. A revived job that dies while
    /// the call still goes on may be revived again. Not cancel safe: what was done stays done.
    pub async fn act(
        &self,
        action: Action,
        filter: Filter,
        dry_run: bool,
    ) -> Result<PublisherAnswers<ActionReport>, QueuesError> {
        let PublisherListing { complete, publishers, missing, silent_replicas } =
            self.requester.list_publishers(&filter.pattern).await?;
        let mut acting = JoinSet::new();
        for publisher in publishers {
            let (requester, filter) = (self.requester.clone(), filter.clone());
            acting.spawn(async move {
                let report =
                    requester.act_on_filter(&publisher, action, &filter, None, dry_run).await;
                (publisher, report)
            });
        }
        let mut gathered = PublisherAnswers::new(complete, missing, silent_replicas);
        while let Some((publisher, report)) = next(&mut acting).await {
            gathered.add(publisher, report);
        }
        Ok(gathered.sorted())
    }

    /// Revives all dead jobs that match the filter, so that `per_second` of them (at least 1)
    /// become ready each second over all publishers together: the nth, from 0, is scheduled `n /
    /// per_second` seconds after it is revived. Publishers are processed one after another, each
    /// continuing the pace of the previous one.
    ///
    /// What a publisher did before it failed to answer is in its [`MissingPublisher::why`] and
    /// counts for the pace; what it did without an answer does not. A revived job that dies while
    /// the call still goes on may be revived again. Not cancel safe: what was done stays done.
    pub async fn revive(
        &self,
        filter: Filter,
        per_second: u32,
    ) -> Result<PublisherAnswers<ActionReport>, QueuesError> {
        let PublisherListing { complete, publishers, missing, silent_replicas } =
            self.requester.list_publishers(&filter.pattern).await?;
        let mut pace = Pace { per_second: per_second.max(1), before: 0 };
        let mut gathered = PublisherAnswers::new(complete, missing, silent_replicas);
        for publisher in publishers {
            let paced = Some(&mut pace);
            let report = self
                .requester
                .act_on_filter(&publisher, Action::Revive, &filter, paced, false)
                .await;
            gathered.add(publisher, report);
        }
        Ok(gathered.sorted())
    }
}

/// The indices of the names with each publisher prefix, and of those without one.
fn indices_by_prefix(names: &[JobLocator]) -> HashMap<Option<String>, Vec<usize>> {
    let mut indices: HashMap<Option<String>, Vec<usize>> = HashMap::new();
    for (index, name) in names.iter().enumerate() {
        indices.entry(name.publisher.clone()).or_default().push(index);
    }
    indices
}

/// The final outcome of a job. The answer of the publisher in its name is enough; a bare id may be
/// at a publisher that the resolver does not know.
fn final_outcome(name: &JobLocator, end: Option<ActionOutcome>, complete: bool) -> ActionOutcome {
    match end {
        None if name.publisher.is_some() || !complete => ActionOutcome::Unknown,
        None => ActionOutcome::NotFound,
        Some(ActionOutcome::NotFound) if name.publisher.is_none() && !complete => {
            ActionOutcome::Unknown
        }
        Some(end) => end,
    }
}

fn outcome_at(publisher: PublisherId, outcome: ActOutcome) -> ActionOutcome {
    match outcome {
        ActOutcome::Done => ActionOutcome::Done { publisher },
        ActOutcome::NotInState(state) => ActionOutcome::NotInState { publisher, state },
        ActOutcome::NotUnique(holder) => ActionOutcome::NotUnique { publisher, holder },
        ActOutcome::Unknown => ActionOutcome::NotFound,
    }
}

impl Requester {
    /// Acts on jobs by their ids, in requests of the maximum size. A publisher that is not reached,
    /// or does not answer in time, gets no more.
    async fn act_on_ids(
        &self,
        publisher: &PublisherInfo,
        action: Action,
        jobs: &[(usize, JobId)],
        dry_run: bool,
    ) -> Vec<PartOutcome> {
        let mut parts = Vec::new();
        let mut silent: Option<RequestFailure> = None;
        for part in jobs.chunks(BATCH_JOBS_MAX) {
            let indices = part.iter().map(|&(index, _)| index).collect();
            if let Some(why) = &silent {
                parts.push((indices, Err(why.clone())));
                continue;
            }
            let selection = Selection::Ids(part.iter().map(|&(_, id)| id).collect());
            let request = Request::Act { action, selection, pace: None, dry_run };
            let outcomes = match self.request_with_retry(publisher, &request).await {
                Ok((Answer::Acted(report), backoff)) if report.outcomes.len() == part.len() => {
                    let settled = |outcome| {
                        if backoff && !dry_run {
                            outcome_after_lost_answer(action, outcome)
                        } else {
                            outcome
                        }
                    };
                    Ok(report.outcomes.iter().map(settled).collect())
                }
                Ok(_) => Err(RequestFailure::Unexpected),
                Err(failure @ (RequestFailure::TimedOut(_) | RequestFailure::Unreachable(_))) => {
                    Err(silent.insert(failure).clone())
                }
                Err(failure) => Err(failure),
            };
            parts.push((indices, outcomes));
        }
        parts
    }

    /// Acts on all matching jobs until none is left.
    async fn act_on_filter(
        &self,
        publisher: &PublisherInfo,
        action: Action,
        filter: &Filter,
        mut pace: Option<&mut Pace>,
        dry_run: bool,
    ) -> Result<ActionReport, RequestFailure> {
        let mut total = ActionReport::default();
        loop {
            let selection = Selection::Matching(filter.clone());
            let request =
                Request::Act { action, selection, pace: pace.as_deref().copied(), dry_run };
            let report = match self.request(publisher, &request).await {
                Ok(Answer::Acted(report)) => report,
                Ok(_) => return Err(RequestFailure::Unexpected),
                Err(failure) if total.done == 0 => return Err(failure),
                Err(failure) => {
                    let why = format!("{failure}; it had confirmed {} before", total.done);
                    return Err(RequestFailure::Partial(why));
                }
            };
            if let Some(pace) = pace.as_deref_mut() {
                pace.before += report.done;
            }
            total.done += report.done;
            // The next step finds those that this one refused.
            total.refused = report.refused;
            total.more = report.more;
            // A dry run would count the same jobs again.
            if !report.more || dry_run || report.done == 0 {
                return Ok(total);
            }
        }
    }
}

/// Corrects an outcome after an answer was lost: if the job is in the state that the action leads
/// to, the lost request may have caused it.
fn outcome_after_lost_answer(action: Action, outcome: ActOutcome) -> ActOutcome {
    match (action, outcome) {
        (Action::Cancel, ActOutcome::NotInState(JobState::Cancelled)) => ActOutcome::Done,
        _ => outcome,
    }
}
