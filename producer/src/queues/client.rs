//! The client of publishers, and its read-only requests.

use std::sync::Arc;

use longshore_protocol::messages::work::{Answer, JobsQuery, PublisherStatus, QueueStat, Request};
use longshore_protocol::{Glob, PublisherInfo};
use longshore_resolver::{Cluster, ReadClient};
use tokio::task::JoinSet;

use super::answers::{Gathered, JobAt, JobLookupError, Missing, QueuesError};
use super::job_name::JobName;
use super::job_pages::JobPages;
use super::options::QueuesOptions;
use super::requester::{
    PatientError, PatientRequest, PublisherListing, Requester, Target, everything, next,
};
use super::tool_link::RequestFailure;
use crate::directory::Directory;
use crate::ids::new_session_id;

/// Looks into queues and acts on them. Cheap to clone; all clones share links, which are opened
/// when they are needed.
///
/// A call takes up to 15 s to learn from the resolver which publishers there are, and then up to
/// [`request_timeout`](QueuesOptions::request_timeout) for each publisher, all at the same time. A
/// publisher that does not answer is no error: it is among the `missing` of what the call gives.
/// What a call that only looks was told is true of durable state.
#[derive(Clone)]
pub struct Queues {
    pub(super) requester: Arc<Requester>,
}

impl Queues {
    /// Looks into the queues of the publishers that `cluster` knows: a [`Cluster`], or its replicas
    /// as `"HOST:PORT,…"`. Waits for nothing. Needs a tokio runtime.
    pub fn connect(cluster: impl Into<Cluster>, options: QueuesOptions) -> Queues {
        let client = ReadClient::new(cluster.into(), new_session_id(), options.name.clone());
        Queues::start(Directory::Resolver(client), options)
    }

    /// Looks into the queues of just these publishers, without a resolver.
    pub fn to_publishers(publishers: Vec<PublisherInfo>, options: QueuesOptions) -> Queues {
        Queues::start(Directory::Named(publishers.into()), options)
    }

    pub(crate) fn start(directory: Directory, options: QueuesOptions) -> Queues {
        Queues { requester: Arc::new(Requester::new(directory, options)) }
    }

    /// The publishers that could have queues which match; and true if the directory was sure to
    /// know all of them, false while its replicas have started only now. Cancel safe.
    pub async fn publishers(
        &self,
        pattern: &Glob,
    ) -> Result<(bool, Vec<PublisherInfo>), QueuesError> {
        self.requester.publishers(pattern).await
    }

    /// Metrics of every publisher. Cancel safe.
    pub async fn status(&self) -> Result<Gathered<PublisherStatus>, QueuesError> {
        self.request_all(&everything(), Request::Status, |answer| match answer {
            Answer::Status(status) => Some(status),
            _ => None,
        })
        .await
    }

    /// Metrics of the queues that match, publisher by publisher; [`Gathered::merged`] adds them up.
    /// Cancel safe.
    pub async fn stats(&self, pattern: Glob) -> Result<Gathered<Vec<QueueStat>>, QueuesError> {
        let request = Request::Queues { pattern: pattern.clone() };
        self.request_all(&pattern, request, |answer| match answer {
            Answer::Queues(queues) => Some(queues),
            _ => None,
        })
        .await
    }

    /// The jobs that match, a page at a time, publisher after publisher. `query.limit` is the size
    /// of a page (what is under 1 counts as 1, what is over 1,000 as 1,000); `query.cursor` is
    /// where each publisher begins, usually 0. Pages are asked for as they are read. Cancel safe.
    pub async fn jobs(&self, query: JobsQuery) -> Result<JobPages, QueuesError> {
        let publishers = self.requester.list_publishers(&query.filter.pattern).await?;
        Ok(JobPages::new(self.requester.clone(), query, publishers))
    }

    /// One job with its payload and result. A bare id is asked of every publisher, and who has it
    /// is believed at once; [`JobLookupError::NotFound`] is said only when all have answered.
    /// Cancel safe.
    pub async fn job(&self, name: &JobName) -> Result<JobAt, JobLookupError> {
        let roster = self.requester.list_publishers(&everything()).await?;
        let PublisherListing { complete, mut publishers, mut missing, .. } = roster;
        if let Some(prefix) = &name.publisher {
            publishers.retain(|publisher| publisher.id.prefix() == *prefix);
            missing.retain(|one| one.publisher.id.prefix() == *prefix);
            if publishers.is_empty() {
                return Err(JobLookupError::PublisherAway { prefix: prefix.clone() });
            }
        }
        let mut tasks = self.fan_out(&publishers, &Request::Job { id: name.id });
        let mut answered = Vec::new();
        while let Some(answer) = next(&mut tasks).await {
            match answer {
                (publisher, Ok(Answer::Job(Some(job)))) => {
                    return Ok(JobAt { publisher, job: *job });
                }
                (publisher, Ok(Answer::Job(None))) => answered.push(publisher),
                (publisher, Ok(_)) => {
                    missing.push(Missing { publisher, why: "it answered something else".into() });
                }
                (publisher, Err(failure)) => {
                    missing.push(Missing { publisher, why: failure.to_string() });
                }
            }
        }
        // With the publisher named, its own word is enough; otherwise all have to have spoken, and
        // all have to be known.
        if missing.is_empty() && (complete || name.publisher.is_some()) {
            return Err(JobLookupError::NotFound { id: name.id, asked: answered });
        }
        Err(JobLookupError::Unknown { id: name.id, asked: answered, missing, complete })
    }

    /// Asks one publisher until it answers or `time_up` has come.
    pub(crate) async fn request_until(
        &self,
        target: &Target,
        question: PatientRequest<'_>,
        time_up: tokio::time::Instant,
    ) -> Result<Answer, PatientError> {
        self.requester.request_until(target, question, time_up).await.map(|(_, answer)| answer)
    }

    pub(super) async fn request_all<T>(
        &self,
        pattern: &Glob,
        request: Request,
        wanted: impl Fn(Answer) -> Option<T>,
    ) -> Result<Gathered<T>, QueuesError> {
        let PublisherListing { complete, publishers, missing, unanswered } =
            self.requester.list_publishers(pattern).await?;
        let mut tasks = self.fan_out(&publishers, &request);
        let mut gathered = Gathered::new(complete, missing, unanswered);
        while let Some((publisher, answer)) = next(&mut tasks).await {
            let answer = answer.map_err(|failure| failure.to_string()).and_then(|answer| {
                wanted(answer).ok_or_else(|| "it answered something else".to_owned())
            });
            gathered.add(publisher, answer);
        }
        Ok(gathered.sorted())
    }

    fn fan_out(
        &self,
        publishers: &[PublisherInfo],
        request: &Request,
    ) -> JoinSet<(PublisherInfo, Result<Answer, RequestFailure>)> {
        let mut tasks = JoinSet::new();
        for publisher in publishers.iter().cloned() {
            let (requester, request) = (self.requester.clone(), request.clone());
            tasks.spawn(async move {
                let answer = requester.request(&publisher, &request).await;
                (publisher, answer)
            });
        }
        tasks
    }
}

impl std::fmt::Debug for Queues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queues").field("links", &self.requester.links.lock().len()).finish()
    }
}
