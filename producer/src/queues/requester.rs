//! How publishers are asked: at once or with patience, and when a question is asked again.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use longshore_protocol::messages::work::{Action, Answer, Request, RequestError};
use longshore_protocol::{Glob, JobId, NameError, PublisherId, PublisherInfo, check_name};
use longshore_resolver::ReplicaFailure;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::answers::{Missing, QueuesError};
use super::options::QueuesOptions;
use super::retry::{RetryBackoff, deadline_after};
use super::tool_link::{LinkSlot, RequestFailure};
use crate::directory::Directory;

/// Most links to publishers; past it, those at rest are closed.
const LINKS_MAX: usize = 256;
/// The longest wait for a replica that tells which publishers there are.
const DIRECTORY_TIMEOUT: Duration = Duration::from_secs(15);
/// The longest wait for a replica that is not warming, once another has told.
const COMPLETE_WAIT: Duration = Duration::from_secs(1);

/// How a publisher is named.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    Id(PublisherId),
    /// The beginning of its id.
    Prefix(String),
}

impl Target {
    pub(super) fn matches(&self, publisher: &PublisherInfo) -> bool {
        match self {
            Target::Id(id) => publisher.id == *id,
            Target::Prefix(prefix) => publisher.id.prefix() == *prefix,
        }
    }
}

/// What is asked with patience.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PatientRequest<'a> {
    /// What is answered at once.
    Request(&'a Request),
    /// The end of a job.
    JobEnd(JobId),
}

/// Why a patient question has no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum PatientError {
    /// Its time is over; and what kept the publisher from answering, if anything did when it was.
    TimedOut { away: Option<String> },
    /// The publisher does not answer it.
    Refused(RequestError),
    /// Who asks has a name that nobody could read; nothing was asked.
    Name(NameError),
}

/// Whether a question may be asked again when its answer was lost, without doing anything twice.
/// Actions compare the state that they expect; but a job that was revived may have died again
/// since.
fn repeatable(request: &Request) -> bool {
    !matches!(request, Request::Act { action: Action::Revive, dry_run: false, .. })
}

/// Who could hold jobs of some queues.
pub(super) struct PublisherListing {
    /// The directory is sure to know all of them.
    pub(super) complete: bool,
    /// Those that are registered.
    pub(super) publishers: Vec<PublisherInfo>,
    /// Those that are not, and were.
    pub(super) missing: Vec<Missing>,
    /// Replicas that may know more that are missing.
    pub(super) unanswered: Vec<ReplicaFailure>,
}

/// Who there is, as a directory told last.
#[derive(Default)]
pub(super) struct PublisherCache {
    cached: Option<(Instant, Arc<[PublisherInfo]>)>,
}

/// Sends requests to publishers, over links that all clones of a client share.
pub(super) struct Requester {
    pub(super) directory: Directory,
    pub(super) options: QueuesOptions,
    pub(super) links: Mutex<HashMap<PublisherId, Arc<LinkSlot>>>,
    cache: tokio::sync::Mutex<PublisherCache>,
}

impl Requester {
    pub(super) fn new(directory: Directory, options: QueuesOptions) -> Requester {
        let (links, cache) = (Mutex::default(), tokio::sync::Mutex::default());
        Requester { directory, options, links, cache }
    }

    /// Asks one publisher. One that cannot be reached is given up at once; an answer that was lost
    /// with its link is asked for again until the time for a request is over, if the request allows
    /// it. Cancel safe as far as the request is.
    pub(super) async fn request(
        &self,
        publisher: &PublisherInfo,
        request: &Request,
    ) -> Result<Answer, RequestFailure> {
        self.request_with_retry(publisher, request).await.map(|(answer, _)| answer)
    }

    /// The same; and says whether an answer to it was lost before, so that it may have been done
    /// twice.
    pub(super) async fn request_with_retry(
        &self,
        publisher: &PublisherInfo,
        request: &Request,
    ) -> Result<(Answer, bool), RequestFailure> {
        let slot = self.slot(publisher.id);
        let time_up = deadline_after(self.options.request_timeout);
        let mut backoff = RetryBackoff::default();
        let mut lost = false;
        loop {
            let failure = match slot.link(publisher, &self.options).await {
                Ok(link) => {
                    let left = time_up.saturating_duration_since(Instant::now());
                    match link.request(request, left).await {
                        Err(RequestFailure::TimedOut(_)) => {
                            return Err(RequestFailure::TimedOut(self.options.request_timeout));
                        }
                        Err(failure @ RequestFailure::LinkEnded(_)) => failure,
                        answer => return answer.map(|answer| (answer, lost)),
                    }
                }
                Err(failure) if !lost => return Err(failure),
                Err(failure) => failure,
            };
            lost = true;
            let next = Instant::now() + backoff.next();
            if !repeatable(request) || next >= time_up {
                return Err(failure);
            }
            sleep_until(next).await;
        }
    }

    /// Asks one publisher until it answers or `time_up` has come, wherever it is by then. Cancel
    /// safe as far as the question is.
    pub(super) async fn request_until(
        &self,
        target: &Target,
        question: PatientRequest<'_>,
        time_up: Instant,
    ) -> Result<(PublisherInfo, Answer), PatientError> {
        check_name(&self.options.name).map_err(PatientError::Name)?;
        let mut away = None;
        match timeout_at(time_up, self.request_until_answered(target, question, &mut away)).await {
            Ok(answered) => answered.map_err(PatientError::Refused),
            Err(_) => Err(PatientError::TimedOut { away }),
        }
    }

    async fn request_until_answered(
        &self,
        target: &Target,
        question: PatientRequest<'_>,
        away: &mut Option<String>,
    ) -> Result<(PublisherInfo, Answer), RequestError> {
        let mut backoff = RetryBackoff::default();
        // What was told before is good enough for the first attempt, if the publisher is in it.
        let mut cached_since = None;
        loop {
            let began = Instant::now();
            match self.find(target, cached_since).await {
                Err(error) => *away = Some(error.to_string()),
                Ok(None) => *away = Some("the resolver does not know it at the moment".into()),
                Ok(Some(publisher)) => match self.request_once(&publisher, question, away).await {
                    Ok(answer) => return Ok((publisher, answer)),
                    Err(RequestFailure::Refused(why)) if why != RequestError::TooMany => {
                        return Err(why);
                    }
                    Err(failure) => {
                        if !matches!(failure, RequestFailure::Unreachable(_)) {
                            backoff.reset_if_lasted(began);
                        }
                        *away = Some(failure.to_string());
                    }
                },
            }
            cached_since = Some(Instant::now());
            sleep(backoff.next()).await;
        }
    }

    async fn request_once(
        &self,
        publisher: &PublisherInfo,
        question: PatientRequest<'_>,
        away: &mut Option<String>,
    ) -> Result<Answer, RequestFailure> {
        let link = self.slot(publisher.id).link(publisher, &self.options).await?;
        match question {
            PatientRequest::Request(request) => {
                link.request(request, self.options.request_timeout).await
            }
            PatientRequest::JobEnd(id) => {
                *away = None;
                link.await_end(id).await
            }
        }
    }

    /// The publisher of that name, as the directory tells; one that was told of after `cached_since`
    /// is not asked for again.
    async fn find(
        &self,
        target: &Target,
        cached_since: Option<Instant>,
    ) -> Result<Option<PublisherInfo>, QueuesError> {
        let came = Instant::now();
        let mut cache = self.cache.lock().await;
        if let Some((at, publishers)) = &cache.cached {
            let found = publishers.iter().find(|publisher| target.matches(publisher));
            // Those who came while somebody else asked share what was told.
            if *at >= came || (found.is_some() && cached_since.is_none_or(|since| *at >= since)) {
                return Ok(found.cloned());
            }
        }
        let (_, publishers) = self.publishers(&everything()).await?;
        let found = publishers.iter().find(|publisher| target.matches(publisher)).cloned();
        cache.cached = Some((Instant::now(), publishers.into()));
        Ok(found)
    }

    /// The publishers that could have queues which match, and true if these are sure to be all.
    /// Whatever is asked of more than one begins here, so a name that nobody could read is refused
    /// here.
    pub(super) async fn publishers(
        &self,
        pattern: &Glob,
    ) -> Result<(bool, Vec<PublisherInfo>), QueuesError> {
        check_name(&self.options.name)?;
        Ok(self.directory.publishers(pattern, DIRECTORY_TIMEOUT, COMPLETE_WAIT).await?)
    }

    /// The same, and those that are missing: they may hold jobs too.
    pub(super) async fn list_publishers(
        &self,
        pattern: &Glob,
    ) -> Result<PublisherListing, QueuesError> {
        let (complete, mut publishers) = self.publishers(pattern).await?;
        // One that is taken out meanwhile is in one of both answers, unless the second is of
        // before: it may be a second old, and misses nobody for longer.
        let roll = self.directory.roll(pattern).await;
        // Without it nobody knows who is missing.
        let complete = complete && roll.is_some();
        let roll = roll.unwrap_or_default();
        let mut seen: HashSet<PublisherId> = publishers.iter().map(|one| one.id).collect();
        let registered = roll.registered.into_iter().filter(|one| seen.insert(one.info.id));
        publishers.extend(registered.map(|one| one.info));
        let missing = roll.missing.into_iter().filter(|one| !seen.contains(&one.info.id));
        let missing = missing.map(Missing::from).collect();
        let unanswered = roll.unanswered;
        Ok(PublisherListing { complete, publishers, missing, unanswered })
    }

    fn slot(&self, publisher: PublisherId) -> Arc<LinkSlot> {
        let mut links = self.links.lock();
        if links.len() >= LINKS_MAX && !links.contains_key(&publisher) {
            links.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        links.entry(publisher).or_default().clone()
    }
}

impl std::fmt::Debug for Requester {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Requester").field("links", &self.links.lock().len()).finish()
    }
}

/// The next answer of a fan-out. A task that was cancelled or panicked gives none.
pub(super) async fn next<T: 'static>(tasks: &mut JoinSet<T>) -> Option<T> {
    loop {
        match tasks.join_next().await? {
            Ok(answer) => return Some(answer),
            Err(error) => tracing::error!(%error, "a request's task failed"),
        }
    }
}

pub(super) fn everything() -> Glob {
    Glob::everything()
}
