//! Sends requests to publishers, with retries.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use longshore_protocol::messages::work::{Action, Answer, Request, RequestError};
use longshore_protocol::{Glob, JobId, PublisherId, PublisherInfo, check_name};
use longshore_resolver::ReplicaFailure;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::answers::{MissingPublisher, QueuesError};
use super::options::QueuesBuilder;
use super::retry::{RetryBackoff, deadline_after};
use super::tool_link::{LinkSlot, RequestFailure};
use crate::directory::Directory;

/// Most links to publishers; beyond that, unused ones are closed.
const LINKS_MAX: usize = 256;
/// The longest wait for a replica's answer.
pub(super) const DIRECTORY_TIMEOUT: Duration = Duration::from_secs(15);
/// The longest further wait for a complete answer.
const COMPLETE_WAIT: Duration = Duration::from_secs(1);

/// A publisher, by its id or a prefix of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    Id(PublisherId),
    /// The first eight hex digits of its id.
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

/// A request that is retried until a deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PatientRequest<'a> {
    /// A request with an immediate answer.
    Request(&'a Request),
    /// The end of a job.
    JobEnd(JobId),
}

/// Why a request was not answered by its deadline.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum PatientError {
    /// The deadline has passed; with the last error, if the publisher was not reachable then.
    TimedOut { away: Option<String> },
    /// The publisher refused the request.
    Refused(RequestError),
    /// Nothing was sent: the client's name is invalid, or there are no replicas.
    Unsent(QueuesError),
}

/// True if a request may be sent again after a lost answer. Actions check the state that they
/// expect; but a revived job may have died again meanwhile, and each run of a schedule is a job.
fn repeatable(request: &Request) -> bool {
    !matches!(
        request,
        Request::Act { action: Action::Revive, dry_run: false, .. } | Request::RunSchedule { .. }
    )
}

/// The publishers that could hold jobs of some queues.
pub(super) struct PublisherListing {
    /// False if the directory may not know all of them.
    pub(super) complete: bool,
    /// Registered publishers.
    pub(super) publishers: Vec<PublisherInfo>,
    /// Publishers that were registered before and are missing.
    pub(super) missing: Vec<MissingPublisher>,
    /// Replicas without an answer, which may know more missing publishers.
    pub(super) silent_replicas: Vec<ReplicaFailure>,
}

/// Sends requests to publishers, over links that all clones of a client share.
pub(super) struct Requester {
    pub(super) directory: Directory,
    pub(super) options: QueuesBuilder,
    pub(super) links: Mutex<HashMap<PublisherId, Arc<LinkSlot>>>,
    /// The last list of publishers from the directory, with its time.
    cached: Mutex<Option<(Instant, Arc<[PublisherInfo]>)>>,
    /// Held while the list is read; with the time and error of the last failure.
    refresh: tokio::sync::Mutex<Option<(Instant, QueuesError)>>,
}

/// Whether the same request may succeed later.
fn is_temporary(why: RequestError) -> bool {
    matches!(why, RequestError::TooMany | RequestError::NoSpace)
}

impl Requester {
    pub(super) fn new(directory: Directory, options: QueuesBuilder) -> Requester {
        let (links, cached, refresh) = (Mutex::default(), Mutex::default(), Default::default());
        Requester { directory, options, links, cached, refresh }
    }

    /// Sends a request to one publisher. Fails at once if it cannot be reached; after a lost link,
    /// retries idempotent requests until the request timeout. As cancel safe as the request.
    pub(super) async fn request(
        &self,
        publisher: &PublisherInfo,
        request: &Request,
    ) -> Result<Answer, RequestFailure> {
        self.request_with_retry(publisher, request).await.map(|(answer, _)| answer)
    }

    /// Like [`request`](Requester::request). Also returns whether an answer was lost before, so
    /// that the request may have been executed twice.
    pub(super) async fn request_with_retry(
        &self,
        publisher: &PublisherInfo,
        request: &Request,
    ) -> Result<(Answer, bool), RequestFailure> {
        let slot = self.slot(publisher.id);
        let deadline = deadline_after(self.options.request_timeout);
        let mut backoff = RetryBackoff::default();
        let mut lost = false;
        loop {
            let linked = timeout_at(deadline, slot.link(publisher, &self.options)).await;
            let linked = linked
                .unwrap_or_else(|_| Err(RequestFailure::TimedOut(self.options.request_timeout)));
            let failure = match linked {
                Ok(link) => {
                    let left = deadline.saturating_duration_since(Instant::now());
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
            if !repeatable(request) || next >= deadline {
                return Err(failure);
            }
            sleep_until(next).await;
        }
    }

    /// Sends a request to one publisher, wherever it is, until it answers or `deadline` is reached.
    /// As cancel safe as the request.
    pub(super) async fn request_until(
        &self,
        target: &Target,
        question: PatientRequest<'_>,
        deadline: Instant,
    ) -> Result<(PublisherInfo, Answer), PatientError> {
        check_name(&self.options.name).map_err(|error| PatientError::Unsent(error.into()))?;
        let mut away = Some("it was not reached in time".to_owned());
        match timeout_at(deadline, self.request_until_answered(target, question, &mut away)).await {
            Ok(answered) => answered,
            Err(_) => Err(PatientError::TimedOut { away }),
        }
    }

    async fn request_until_answered(
        &self,
        target: &Target,
        question: PatientRequest<'_>,
        away: &mut Option<String>,
    ) -> Result<(PublisherInfo, Answer), PatientError> {
        let mut backoff = RetryBackoff::default();
        // The first attempt accepts any cached address; later ones need a newer one.
        let mut cached_since = None;
        loop {
            let began = Instant::now();
            match self.find(target, cached_since).await {
                Err(error @ QueuesError::NoReplicas) => return Err(PatientError::Unsent(error)),
                Err(error) => *away = Some(error.to_string()),
                Ok(None) => *away = Some("the resolver does not know it at present".into()),
                Ok(Some(publisher)) => match self.request_once(&publisher, question, away).await {
                    Ok(answer) => return Ok((publisher, answer)),
                    Err(RequestFailure::Refused(why)) if !is_temporary(why) => {
                        return Err(PatientError::Refused(why));
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
        *away = None;
        match question {
            PatientRequest::Request(request) => {
                link.request(request, self.options.request_timeout).await
            }
            PatientRequest::JobEnd(id) => link.await_end(id).await,
        }
    }

    /// Returns the publisher from the directory. Accepts a cached entry that is newer than
    /// `cached_since`.
    async fn find(
        &self,
        target: &Target,
        cached_since: Option<Instant>,
    ) -> Result<Option<PublisherInfo>, QueuesError> {
        let requested_at = Instant::now();
        let find = |publishers: &[PublisherInfo]| {
            publishers.iter().find(|publisher| target.matches(publisher)).cloned()
        };
        let cached = || {
            let cached = self.cached.lock();
            let (at, publishers) = cached.as_ref()?;
            let found = find(publishers);
            let is_known = found.is_some() && cached_since.is_none_or(|since| *at >= since);
            (*at >= requested_at || is_known).then_some(found)
        };
        // A silent resolver delays no request to a publisher that is known.
        if let Some(found) = cached() {
            return Ok(found);
        }
        let mut failed = self.refresh.lock().await;
        // Callers that waited for the lock share the outcome of the caller before them.
        if let Some(found) = cached() {
            return Ok(found);
        }
        if let Some((at, error)) = failed.as_ref()
            && *at >= requested_at
        {
            return Err(error.clone());
        }
        match self.publishers(&everything()).await {
            Ok((_, publishers)) => {
                let found = find(&publishers);
                *self.cached.lock() = Some((Instant::now(), publishers.into()));
                Ok(found)
            }
            Err(error) => {
                *failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    /// The publishers that could have matching queues, and whether the list is complete. All
    /// requests to several publishers start here, so it checks the client's name.
    pub(super) async fn publishers(
        &self,
        pattern: &Glob,
    ) -> Result<(bool, Vec<PublisherInfo>), QueuesError> {
        check_name(&self.options.name)?;
        Ok(self.directory.publishers(pattern, DIRECTORY_TIMEOUT, COMPLETE_WAIT).await?)
    }

    /// The same with the missing publishers, which may hold jobs too.
    pub(super) async fn list_publishers(
        &self,
        pattern: &Glob,
    ) -> Result<PublisherListing, QueuesError> {
        let (complete, mut publishers) = self.publishers(pattern).await?;
        // A publisher that is removed between the two requests is in one of both answers, unless
        // the second is older: it is at most a second old.
        let roll = self.directory.roll(pattern).await;
        // Without the roll, missing publishers are unknown.
        let complete = complete && roll.is_some();
        let roll = roll.unwrap_or_default();
        let mut seen: HashSet<PublisherId> = publishers.iter().map(|one| one.id).collect();
        let registered = roll.registered.into_iter().filter(|one| seen.insert(one.info.id));
        publishers.extend(registered.map(|one| one.info));
        let missing = roll.missing.into_iter().filter(|one| !seen.contains(&one.info.id));
        let missing = missing.map(MissingPublisher::from).collect();
        let silent_replicas = roll.silent_replicas;
        Ok(PublisherListing { complete, publishers, missing, silent_replicas })
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

/// The next answer of a fan-out. A cancelled or panicked task gives none.
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

#[cfg(test)]
mod tests {
    use longshore_protocol::Epoch;
    use longshore_resolver::ReadClient;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_silent_resolver_delays_no_known_publisher_and_others_once() {
        let silent = Directory::Resolver(ReadClient::builder().connect("127.0.0.1:1"));
        let requester = Arc::new(Requester::new(silent, QueuesBuilder::default()));
        let address = [([127, 0, 0, 1], 1)];
        let known = PublisherInfo::new(PublisherId([1; 16]), Epoch(1), "known", address);
        *requester.cached.lock() = Some((Instant::now(), [known.clone()].into()));
        tokio::time::advance(Duration::from_secs(1)).await;
        let began = Instant::now();
        let mut waits = JoinSet::new();
        for _ in 0..3 {
            let requester = requester.clone();
            let unknown = Target::Id(PublisherId([2; 16]));
            waits.spawn(async move { requester.find(&unknown, None).await });
        }
        tokio::task::yield_now().await;
        let found = requester.find(&Target::Id(known.id), None).await;
        assert_eq!((found, began.elapsed()), (Ok(Some(known)), Duration::ZERO));
        let failed = Err(QueuesError::Resolver(DIRECTORY_TIMEOUT));
        assert_eq!(waits.join_all().await, [failed.clone(), failed.clone(), failed]);
        assert!(began.elapsed() < 2 * DIRECTORY_TIMEOUT, "not one after another");
    }
}
