//! Schedules of publishers.

use std::sync::Arc;
use std::time::Duration;

use longshore_protocol::limits::PAGE_SCHEDULES_MAX;
use longshore_protocol::messages::work::{
    Answer, Occurrences, Request, RunOutcome, ScheduleInfo, ScheduleOutcome, SchedulesPage,
};
use longshore_protocol::{JobRef, Path, PublicationKind, PublisherInfo, Refusal};
use longshore_resolver::{PathAnswer, Publication};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::answers::{MissingPublisher, PublisherAnswer, PublisherAnswers, QueuesError};
use super::client::Queues;
use super::requester::{DIRECTORY_TIMEOUT, PublisherListing, everything, next};
use super::tool_link::RequestFailure;
use crate::core::home::{Homeless, home_of};
use crate::outcome::EnqueueError;
use crate::schedule::NewSchedule;

/// How long to wait for a replica that has just started.
const COMPLETE_WAIT: Duration = Duration::from_secs(5);
const RESOLVE_AGAIN: Duration = Duration::from_millis(200);

/// Why a schedule was not changed.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum ScheduleError {
    /// No request reached a publisher.
    #[error(transparent)]
    Queues(#[from] QueuesError),
    /// The job of the schedule is invalid, or its path could not be resolved.
    #[error(transparent)]
    Job(#[from] EnqueueError),
    /// The name is empty or has more than 80 bytes; or a time of the schedule is out of its range.
    #[error(
        "the schedule is out of its limits: a name has 1 to 80 bytes, a cron expression up to 256, \
         a fixed distance is at least 1s, a jitter at most 1d, and no time is after the year 9999"
    )]
    OutOfLimits,
    /// The timing is invalid, or never comes due: why, and what would be valid.
    #[error("{0}")]
    Invalid(String),
    /// No publisher has the path.
    #[error("no publisher serves {0}; see: longshore directory resolve {0}")]
    NoPublisher(Path),
    /// Several publishers have the path, and a schedule lives at one; or the resolver has just
    /// started and does not know yet: retry.
    #[error(
        "NoHome: {path} has {why}, and a schedule lives at one publisher; declare its home at all \
         publishers: --home '{path}=NAME', or \"{path}\" = \"NAME\" below [homes]"
    )]
    NoHome {
        /// The path.
        path: Path,
        /// What it has instead of one home.
        why: Arc<str>,
    },
    /// The publishers of the path declare different homes.
    #[error(
        "HomesDisagree: {path} has {why}; declare the same home at all of them (longshore home ls \
         shows the declarations), and give each publisher its own name"
    )]
    HomesDisagree {
        /// The path.
        path: Path,
        /// The declarations, or the publishers with one name.
        why: Arc<str>,
    },
    /// The home of the path does not serve it at present.
    #[error(
        "HomeAway: {name}, the home of {path}, does not serve it at present; retry once it does"
    )]
    HomeAway {
        /// The path.
        path: Path,
        /// The name of its home.
        name: Arc<str>,
    },
    /// Another publisher has a schedule of that name: the path has another home now.
    #[error(
        "Elsewhere: {} has a schedule of that name for {path}; remove it there first: longshore \
         cron rm",
        .publisher.name
    )]
    Elsewhere {
        /// The publisher.
        publisher: PublisherInfo,
        /// The queue of its schedule.
        path: Path,
    },
    /// The publisher has another schedule of this version.
    #[error("VersionTaken: version {0} of the schedule is another one; raise the version")]
    VersionTaken(u64),
    /// The publisher refuses its queue or its job.
    #[error("publisher {} refused the schedule: {refusal}", .publisher.name)]
    Refused {
        /// The publisher.
        publisher: PublisherInfo,
        /// Why.
        refusal: Refusal,
    },
    /// The publisher did not answer, or refused the request.
    #[error("publisher {} did not answer: {}", .0.publisher.name, .0.why)]
    NoAnswer(Box<MissingPublisher>),
}

impl Queues {
    /// Adds a schedule at the home of its path, or changes the one of its name, unless that has a
    /// higher version: then the answer is [`ScheduleOutcome::Older`]. Idempotent. Not cancel safe:
    /// if the future is dropped, the publisher may have received the request.
    pub async fn put_schedule(
        &self,
        schedule: &NewSchedule,
    ) -> Result<PublisherAnswer<ScheduleOutcome>, ScheduleError> {
        let (schedule, entry) = schedule.parts()?;
        if !schedule.is_valid() {
            return Err(ScheduleError::OutOfLimits);
        }
        let (publisher, is_declared) = self.home_of_schedule(&schedule.path).await?;
        let known = self.schedule(&schedule.name).await?;
        let elsewhere = known.answers.into_iter().find(|known| known.publisher.id != publisher.id);
        if let Some(PublisherAnswer { publisher, answer }) = elsewhere {
            return Err(ScheduleError::Elsewhere { publisher, path: answer.schedule.path });
        }
        // Without a declaration a publisher that is away may have been the path's only one.
        if !is_declared {
            if let Some(mut missing) = known.missing.into_iter().next() {
                missing.why += "; it may have that schedule, so declare the home";
                return Err(ScheduleError::NoAnswer(Box::new(missing)));
            }
            if !known.complete {
                let why = "publishers that may have that schedule are not known yet; retry, or \
                           declare the home";
                return Err(ScheduleError::NoHome { path: schedule.path, why: why.into() });
            }
        }
        let request = Request::PutSchedule { schedule, entry };
        let answer = self.request_of(&publisher, request, schedule_set).await?;
        match answer {
            ScheduleOutcome::Invalid(reason) => Err(ScheduleError::Invalid(reason)),
            ScheduleOutcome::VersionTaken(version) => Err(ScheduleError::VersionTaken(version)),
            ScheduleOutcome::Refused(refusal) => Err(ScheduleError::Refused { publisher, refusal }),
            answer => Ok(PublisherAnswer { publisher, answer }),
        }
    }

    /// The next times at which a schedule would come due once it was put, at most 100. The home of
    /// its path computes them. Cancel safe.
    pub async fn preview_schedule(
        &self,
        schedule: &NewSchedule,
        count: u32,
    ) -> Result<Vec<u64>, ScheduleError> {
        let (schedule, _) = schedule.parts()?;
        if !schedule.is_valid() {
            return Err(ScheduleError::OutOfLimits);
        }
        let (publisher, _) = self.home_of_schedule(&schedule.path).await?;
        let request = Request::PreviewSchedule { schedule, created_at: None, after: None, count };
        self.occurrences(&publisher, request).await
    }

    /// The next times of a schedule of a publisher, at most 100. Cancel safe.
    pub async fn next_occurrences(
        &self,
        known: &PublisherAnswer<ScheduleInfo>,
        count: u32,
    ) -> Result<Vec<u64>, ScheduleError> {
        let ScheduleInfo { schedule, created_at, next, .. } = &known.answer;
        let request = Request::PreviewSchedule {
            schedule: schedule.clone(),
            created_at: Some(*created_at),
            after: next.map(|next| next.due_at.saturating_sub(1)),
            count,
        };
        self.occurrences(&known.publisher, request).await
    }

    async fn occurrences(
        &self,
        publisher: &PublisherInfo,
        request: Request,
    ) -> Result<Vec<u64>, ScheduleError> {
        let answer = self.request_of(publisher, request, |answer| match answer {
            Answer::Occurrences(occurrences) => Some(occurrences),
            _ => None,
        });
        match answer.await? {
            Occurrences::Times(times) => Ok(times),
            Occurrences::Invalid(reason) => Err(ScheduleError::Invalid(reason)),
        }
    }

    /// Removes the schedule of that name at every publisher; its jobs stay. Idempotent. Not cancel
    /// safe: if the future is dropped, publishers may have received the request.
    pub async fn remove_schedule(
        &self,
        name: &str,
    ) -> Result<PublisherAnswers<ScheduleOutcome>, QueuesError> {
        let request = Request::RemoveSchedule { name: name.to_owned() };
        self.request_all(&everything(), request, schedule_set).await
    }

    /// Pauses the schedule of that name at every publisher, or resumes it: a paused one has no
    /// occurrences, and misses none. It stays paused at a publisher whose system lacks its time
    /// zone, which answers [`ScheduleOutcome::Invalid`]. Idempotent. Not cancel safe: if the future
    /// is dropped, publishers may have received the request.
    pub async fn pause_schedule(
        &self,
        name: &str,
        paused: bool,
    ) -> Result<PublisherAnswers<ScheduleOutcome>, QueuesError> {
        let request = Request::PauseSchedule { name: name.to_owned(), paused };
        self.request_all(&everything(), request, schedule_set).await
    }

    /// Enqueues a job of a publisher's schedule now, whatever the overlap. Not idempotent: after an
    /// error there may be a job. Not cancel safe.
    pub async fn run_schedule(
        &self,
        known: &PublisherAnswer<ScheduleInfo>,
    ) -> Result<JobRef, ScheduleError> {
        let publisher = known.publisher.clone();
        let request = Request::RunSchedule { name: known.answer.schedule.name.clone() };
        let outcome = self.request_of(&publisher, request, |answer| match answer {
            Answer::ScheduleRun(outcome) => Some(outcome),
            _ => None,
        });
        match outcome.await? {
            RunOutcome::Enqueued(id) => Ok(JobRef { publisher: publisher.id, id }),
            RunOutcome::Refused(refusal) => Err(ScheduleError::Refused { publisher, refusal }),
            RunOutcome::Unknown => {
                let why = "it has no schedule of that name any more".to_owned();
                let missing = MissingPublisher { publisher, why, is_forbidden: false };
                Err(ScheduleError::NoAnswer(Box::new(missing)))
            }
        }
    }

    /// The schedule of that name, with the publisher that has it: mostly one. Cancel safe.
    pub async fn schedule(
        &self,
        name: &str,
    ) -> Result<PublisherAnswers<ScheduleInfo>, QueuesError> {
        let (name, after) = (Some(name.to_owned()), String::new());
        let request = Request::Schedules { name, after, limit: 1 };
        let gathered = self.request_all(&everything(), request, schedules_page).await?;
        let PublisherAnswers { complete, answers, missing, silent_replicas } = gathered;
        let answers = answers.into_iter().flat_map(|PublisherAnswer { publisher, answer }| {
            let found = move |answer| PublisherAnswer { publisher: publisher.clone(), answer };
            answer.schedules.into_iter().map(found)
        });
        Ok(PublisherAnswers { complete, answers: answers.collect(), missing, silent_replicas })
    }

    /// All schedules of every publisher, by name. Cancel safe.
    pub async fn schedules(&self) -> Result<PublisherAnswers<Vec<ScheduleInfo>>, QueuesError> {
        let PublisherListing { complete, publishers, missing, silent_replicas } =
            self.requester.list_publishers(&everything()).await?;
        let mut gathered = PublisherAnswers::new(complete, missing, silent_replicas);
        let mut tasks = JoinSet::new();
        for publisher in publishers {
            let queues = self.clone();
            tasks.spawn(async move {
                let most = queues.requester.options.request_timeout;
                let schedules = timeout(most, queues.schedules_of(&publisher)).await;
                (publisher, schedules.unwrap_or(Err(RequestFailure::TimedOut(most))))
            });
        }
        while let Some((publisher, schedules)) = next(&mut tasks).await {
            gathered.add(publisher, schedules);
        }
        Ok(gathered.sorted())
    }

    async fn schedules_of(
        &self,
        publisher: &PublisherInfo,
    ) -> Result<Vec<ScheduleInfo>, RequestFailure> {
        let mut schedules: Vec<ScheduleInfo> = Vec::new();
        loop {
            let last = schedules.last().map(|last| last.schedule.name.clone()).unwrap_or_default();
            let (name, after, limit) = (None, last.clone(), PAGE_SCHEDULES_MAX as u32);
            let request = Request::Schedules { name, after, limit };
            let page = self.answer_of(publisher, request, schedules_page).await?;
            // Otherwise a faulty publisher would never end.
            if page.schedules.last().is_some_and(|newer| newer.schedule.name <= last) {
                return Err(RequestFailure::Unexpected);
            }
            let is_last = !page.more || page.schedules.is_empty();
            schedules.extend(page.schedules);
            if is_last {
                return Ok(schedules);
            }
        }
    }

    async fn request_of<T>(
        &self,
        publisher: &PublisherInfo,
        request: Request,
        accept: impl Fn(Answer) -> Option<T>,
    ) -> Result<T, ScheduleError> {
        let answer = self.answer_of(publisher, request, accept).await;
        answer.map_err(|failure| {
            let missing = MissingPublisher::new(publisher.clone(), &failure);
            ScheduleError::NoAnswer(Box::new(missing))
        })
    }

    async fn answer_of<T>(
        &self,
        publisher: &PublisherInfo,
        request: Request,
        accept: impl Fn(Answer) -> Option<T>,
    ) -> Result<T, RequestFailure> {
        let answer = self.requester.request(publisher, &request).await?;
        accept(answer).ok_or(RequestFailure::Unexpected)
    }

    /// Whether the answer is complete, and the publishers of a path. A replica that has just
    /// started may not know all of them yet.
    async fn resolve_schedule(&self, path: &Path) -> Result<(bool, PathAnswer), ScheduleError> {
        let until = Instant::now() + COMPLETE_WAIT;
        // Once is enough: each makes links to all replicas while they are warming.
        let mut all_publishers = true;
        loop {
            let all_publishers = std::mem::take(&mut all_publishers);
            let resolving = self.requester.directory.resolve(vec![path.clone()], all_publishers);
            let resolved = timeout(DIRECTORY_TIMEOUT, resolving).await;
            let resolved = resolved.map_err(|_| QueuesError::Resolver(DIRECTORY_TIMEOUT))?;
            let mut resolution = resolved.map_err(|error| EnqueueError::Resolver {
                path: path.clone(),
                error: Arc::new(error),
            })?;
            if resolution.complete || Instant::now() >= until {
                let answer = resolution.answers.pop().unwrap_or(PathAnswer::NotFound);
                return Ok((resolution.complete, answer));
            }
            tokio::time::sleep(RESOLVE_AGAIN).await;
        }
    }

    /// The publisher at which a schedule of the path lives, and whether it is declared.
    async fn home_of_schedule(&self, path: &Path) -> Result<(PublisherInfo, bool), ScheduleError> {
        // Names the client, as every request does, and waits for a replica.
        self.requester.publishers(&everything()).await?;
        let (complete, answer) = self.resolve_schedule(path).await?;
        home_in(path, complete, answer)
    }
}

/// The publisher at which a schedule of the path lives by a replica's answer, and whether it is
/// declared.
fn home_in(
    path: &Path,
    complete: bool,
    answer: PathAnswer,
) -> Result<(PublisherInfo, bool), ScheduleError> {
    let path = path.clone();
    let (set, by_default, fallback) = match answer {
        PathAnswer::Publishers { set, by_default, fallback } => (set, by_default, fallback),
        PathAnswer::NotFound => (Arc::default(), false, None),
        PathAnswer::Refused(reason) => {
            return Err(EnqueueError::PathRefused { path, reason: reason.into() }.into());
        }
    };
    let is_queue = |one: &&Publication| one.terms.kind == PublicationKind::Queue;
    let mut publishers: Vec<&Publication> = set.iter().filter(is_queue).collect();
    if !complete && (by_default || publishers.is_empty()) {
        // As for jobs: a default would create a second queue of the path.
        let why = "no publisher that the resolver, just started, knows yet: retry".into();
        return Err(ScheduleError::NoHome { path, why });
    }
    if publishers.is_empty() && by_default {
        // As for jobs: the nearest default is for values. Its publisher may have one for queues
        // further up, and decides.
        publishers = set.iter().collect();
    }
    let fallback: Vec<&Publication> =
        fallback.iter().flat_map(|set| set.iter()).filter(is_queue).collect();
    if publishers.is_empty() {
        return Err(ScheduleError::NoPublisher(path));
    }
    let home = home_of(&path, &publishers, &fallback).map_err(|why| match why {
        Homeless::Away(name) => ScheduleError::HomeAway { path: path.clone(), name },
        Homeless::Undeclared(why) => ScheduleError::NoHome { path: path.clone(), why },
        Homeless::Disagree(why) => ScheduleError::HomesDisagree { path: path.clone(), why },
    })?;
    let all = publishers.into_iter().chain(fallback);
    let publisher = all.map(|one| &one.publisher).find(|one| one.id == home.publisher);
    let publisher = publisher.cloned().ok_or(ScheduleError::NoPublisher(path))?;
    Ok((publisher, home.is_declared))
}

fn schedule_set(answer: Answer) -> Option<ScheduleOutcome> {
    match answer {
        Answer::ScheduleSet(outcome) => Some(outcome),
        _ => None,
    }
}

fn schedules_page(answer: Answer) -> Option<SchedulesPage> {
    match answer {
        Answer::Schedules(page) => Some(page),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use longshore_protocol::{Epoch, PublisherId, Terms};

    use super::*;

    #[test]
    fn an_answer_of_a_warming_replica_chooses_no_default() {
        let path = Path::new("/a").expect("a path");
        let address = [([127, 0, 0, 1], 1)];
        let publisher = PublisherInfo::new(PublisherId([1; 16]), Epoch(1), "one", address);
        let publication = Publication { publisher: publisher.clone(), terms: Terms::default() };
        let published = |by_default| {
            let set = [publication.clone()].into();
            PathAnswer::Publishers { set, by_default, fallback: None }
        };
        assert_eq!(home_in(&path, false, published(false)), Ok((publisher.clone(), false)));
        assert_eq!(home_in(&path, true, published(true)), Ok((publisher, false)));
        for unknown in [published(true), PathAnswer::NotFound] {
            let warming = home_in(&path, false, unknown);
            assert!(matches!(warming, Err(ScheduleError::NoHome { .. })), "{warming:?}");
        }
        let nobody = home_in(&path, true, PathAnswer::NotFound);
        assert_eq!(nobody, Err(ScheduleError::NoPublisher(path.clone())));
        let refused = home_in(&path, true, PathAnswer::Refused("too long".into()));
        let reason = "too long".into();
        assert_eq!(refused, Err(EnqueueError::PathRefused { path, reason }.into()));
    }
}
