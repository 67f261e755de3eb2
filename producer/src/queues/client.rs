//! The client of publishers, and its read-only requests.

use std::sync::Arc;

use longshore_protocol::limits::QUEUES_MAX;
use longshore_protocol::messages::work::{Answer, JobsQuery, PublisherStatus, QueueStat, Request};
use longshore_protocol::{Glob, PublisherInfo, check_name};
use longshore_resolver::{Cluster, ReadClient, ReadError};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::answers::{FoundJob, JobLookupError, MissingPublisher, PublisherAnswers, QueuesError};
use super::job_locator::JobLocator;
use super::job_pages::JobPages;
use super::options::QueuesBuilder;
use super::requester::{
    PatientError, PatientRequest, PublisherListing, Requester, Target, everything, next,
};
use super::tool_link::RequestFailure;
use crate::directory::Directory;

/// Reads and controls queues. Cheap to clone; all clones share links, which are opened on demand.
///
/// A call takes up to 15 s to list the publishers, and then up to
/// [`request_timeout`](QueuesBuilder::request_timeout) for all publishers concurrently. A publisher
/// that does not answer is not an error: the result lists it in `missing`. Read-only calls report
/// durable state.
#[derive(Clone)]
pub struct Queues {
    pub(super) requester: Arc<Requester>,
}

impl Queues {
    /// Creates a client that finds publishers through `cluster`: a [`Cluster`], or its replicas as
    /// `"HOST:PORT,…"`. Waits for nothing. Needs a tokio runtime.
    pub fn connect(cluster: impl Into<Cluster>) -> Queues {
        Queues::builder().connect(cluster)
    }

    /// Creates a client for the given publishers, without a resolver.
    pub fn to_publishers(publishers: impl IntoIterator<Item = PublisherInfo>) -> Queues {
        Queues::builder().to_publishers(publishers)
    }

    /// Starts with the default options, to change some:
    /// `Queues::builder().name("dashboard").connect("127.0.0.1")`.
    pub fn builder() -> QueuesBuilder {
        QueuesBuilder::default()
    }

    /// Waits until a replica of the resolver has answered, as [`Producer::ready`] does. Cancel
    /// safe.
    ///
    /// [`Producer::ready`]: crate::Producer::ready
    pub async fn ready(&self) -> Result<(), ReadError> {
        check_name(&self.requester.options.name)?;
        self.requester.directory.ready().await
    }

    pub(crate) fn start(directory: Directory, options: QueuesBuilder) -> Queues {
        Queues { requester: Arc::new(Requester::new(directory, options)) }
    }

    /// Returns the publishers that could have matching queues, and whether the list is complete
    /// (false while the resolver has just started). Cancel safe.
    pub async fn publishers(
        &self,
        pattern: &Glob,
    ) -> Result<(bool, Vec<PublisherInfo>), QueuesError> {
        self.requester.publishers(pattern).await
    }

    /// The status of every publisher. Cancel safe.
    pub async fn status(&self) -> Result<PublisherAnswers<PublisherStatus>, QueuesError> {
        self.request_all(&everything(), Request::Status, |answer| match answer {
            Answer::Status(status) => Some(status),
            _ => None,
        })
        .await
    }

    /// The stats of matching queues, per publisher; [`PublisherAnswers::merged`] merges them. Of
    /// more than 5,000 queues a publisher sends them in parts, each of another moment. Cancel safe.
    pub async fn stats(
        &self,
        pattern: Glob,
    ) -> Result<PublisherAnswers<Vec<QueueStat>>, QueuesError> {
        let PublisherListing { complete, publishers, missing, silent_replicas } =
            self.requester.list_publishers(&pattern).await?;
        let mut tasks = JoinSet::new();
        for publisher in publishers {
            let (requester, pattern) = (self.requester.clone(), pattern.clone());
            tasks.spawn(async move {
                let most = requester.options.request_timeout;
                let stats = timeout(most, requester.stats_of(&publisher, pattern)).await;
                (publisher, stats.unwrap_or(Err(RequestFailure::TimedOut(most))))
            });
        }
        let mut gathered = PublisherAnswers::new(complete, missing, silent_replicas);
        while let Some((publisher, stats)) = next(&mut tasks).await {
            gathered.add(publisher, stats);
        }
        Ok(gathered.sorted())
    }

    /// Lists matching jobs in pages, one publisher after another. `query.limit` is the page size
    /// (clamped to 1..=1,000); `query.cursor` is the first cursor of each publisher, usually 0.
    /// Pages are requested as they are read. Cancel safe.
    pub async fn jobs(&self, query: JobsQuery) -> Result<JobPages, QueuesError> {
        let publishers = self.requester.list_publishers(&query.filter.pattern).await?;
        Ok(JobPages::new(self.requester.clone(), query, publishers))
    }

    /// Looks up a job with its payload and result, by its receipt, its id or its name. A bare id is
    /// requested from every publisher, and the first one that has it counts;
    /// [`JobLookupError::NotFound`] needs the answers of all. Cancel safe.
    pub async fn job(&self, job: impl Into<JobLocator>) -> Result<FoundJob, JobLookupError> {
        let name = job.into();
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
                    return Ok(FoundJob { publisher, job: *job });
                }
                (publisher, Ok(Answer::Job(None))) => answered.push(publisher),
                (publisher, Ok(_)) => {
                    missing.push(MissingPublisher::new(publisher, &RequestFailure::Unexpected));
                }
                (publisher, Err(failure)) => {
                    missing.push(MissingPublisher::new(publisher, &failure));
                }
            }
        }
        // With a publisher in the name, its answer is enough. Otherwise all must be known and have
        // answered.
        if missing.is_empty() && (complete || name.publisher.is_some()) {
            return Err(JobLookupError::NotFound { id: name.id, asked: answered });
        }
        Err(JobLookupError::Unknown { id: name.id, asked: answered, missing, complete })
    }

    /// Sends a request to one publisher until it answers or `deadline` is reached.
    pub(crate) async fn request_until(
        &self,
        target: &Target,
        question: PatientRequest<'_>,
        deadline: tokio::time::Instant,
    ) -> Result<Answer, PatientError> {
        self.requester.request_until(target, question, deadline).await.map(|(_, answer)| answer)
    }

    pub(super) async fn request_all<T>(
        &self,
        pattern: &Glob,
        request: Request,
        accept: impl Fn(Answer) -> Option<T>,
    ) -> Result<PublisherAnswers<T>, QueuesError> {
        let PublisherListing { complete, publishers, missing, silent_replicas } =
            self.requester.list_publishers(pattern).await?;
        let mut tasks = self.fan_out(&publishers, &request);
        let mut gathered = PublisherAnswers::new(complete, missing, silent_replicas);
        while let Some((publisher, answer)) = next(&mut tasks).await {
            let answer = answer.and_then(|answer| accept(answer).ok_or(RequestFailure::Unexpected));
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

impl Requester {
    /// The stats of all matching queues of a publisher, page by page.
    async fn stats_of(
        &self,
        publisher: &PublisherInfo,
        pattern: Glob,
    ) -> Result<Vec<QueueStat>, RequestFailure> {
        let mut stats = Vec::new();
        let mut cursor = 0;
        loop {
            let request = Request::Queues { pattern: pattern.clone(), cursor };
            let Answer::Queues(page) = self.request(publisher, &request).await? else {
                return Err(RequestFailure::Unexpected);
            };
            stats.extend(page.queues);
            match page.next {
                // Otherwise a faulty publisher would never end.
                Some(next) if next > cursor && stats.len() < QUEUES_MAX => cursor = next,
                Some(_) => return Err(RequestFailure::Unexpected),
                None => return Ok(stats),
            }
        }
    }
}

impl QueuesBuilder {
    /// Creates the client: see [`Queues::connect`]. Needs a tokio runtime.
    pub fn connect(mut self, cluster: impl Into<Cluster>) -> Queues {
        let cluster = cluster.into();
        self.link = cluster.link_options(self.link);
        let resolver = ReadClient::builder().name(&self.name).connect(cluster);
        Queues::start(Directory::Resolver(resolver), self)
    }

    /// Creates the client: see [`Queues::to_publishers`].
    pub fn to_publishers(self, publishers: impl IntoIterator<Item = PublisherInfo>) -> Queues {
        Queues::start(Directory::Named(publishers.into_iter().collect()), self)
    }
}

impl std::fmt::Debug for Queues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queues").field("links", &self.requester.links.lock().len()).finish()
    }
}
