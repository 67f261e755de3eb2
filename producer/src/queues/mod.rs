//! Looks into queues and acts on them, at every publisher that could hold what is asked for. Every
//! result names the publishers that answered, and those that did not and why.

mod act;
mod answers;
mod ask;
mod dead;
mod feed;
mod link;
mod name;
mod pages;
mod rules;
mod wait;
mod workers;

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use longshore_protocol::messages::work::{Answer, JobsQuery, PublisherStatus, QueueStat, Request};
use longshore_protocol::{Glob, PublisherId, PublisherInfo};
use longshore_resolver::{Cluster, ReadClient};
use longshore_transport::LinkOptions;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::directory::Directory;
use crate::producer::new_session;

pub use act::{ActEnd, ActedOn, NamedAct};
pub use answers::{Answered, Gathered, JobAt, JobLookupError, Missing, QueuesError};
use ask::{PublishersFor, Roster};
pub(crate) use ask::{Question, Unanswered, Who, deadline};
pub use dead::{DeadGroupAt, DeadGroupsAt, ReplaceError};
pub use feed::{Feed, FeedFrom, FeedItem, FeedLoss, FeedNews, FeedPositions};
use link::{LinkSlot, RequestFailure};
pub use name::{JobName, JobNameError};
pub use pages::{JobPage, JobPages};
pub use wait::{JobEnd, WaitError};

/// Most links to publishers; past it, those at rest are closed.
const LINKS_MAX: usize = 256;
/// The longest wait for a replica that tells which publishers there are.
const DIRECTORY_TIMEOUT: Duration = Duration::from_secs(15);
/// The longest wait for a replica that is not warming, once another has told.
const COMPLETE_WAIT: Duration = Duration::from_secs(1);

/// How [`Queues`] works.
#[derive(Clone, Debug)]
pub struct QueuesOptions {
    /// What operators see; 1 to 128 bytes. With another nothing is asked, and every call has
    /// [`QueuesError::Name`] for an answer; a feed, which has no error, says it of each publisher
    /// that was named, and is told of no other. The default is `tool-` and the process's id.
    pub name: String,
    /// How long a publisher may take for one answer, over reconnects. 15 s by default.
    pub request_timeout: Duration,
    /// How links to publishers are made.
    pub link: LinkOptions,
}

impl Default for QueuesOptions {
    fn default() -> QueuesOptions {
        QueuesOptions {
            name: format!("tool-{}", std::process::id()),
            request_timeout: Duration::from_secs(15),
            link: LinkOptions::default(),
        }
    }
}

/// Looks into queues and acts on them. Cheap to clone; all clones share links, which are opened
/// when they are needed.
///
/// A call takes up to 15 s to learn from the resolver which publishers there are, and then up to
/// [`request_timeout`](QueuesOptions::request_timeout) for each publisher, all at the same time. A
/// publisher that does not answer is no error: it is among the `missing` of what the call gives.
/// What a call that only looks was told is true of durable state.
#[derive(Clone)]
pub struct Queues {
    shared: Arc<Shared>,
}

struct Shared {
    directory: Directory,
    options: QueuesOptions,
    links: Mutex<HashMap<PublisherId, Arc<LinkSlot>>>,
    roster: tokio::sync::Mutex<Roster>,
}

impl Queues {
    /// Looks into the queues of the publishers that `cluster` knows: a [`Cluster`], or its replicas
    /// as `"HOST:PORT,…"`. Waits for nothing. Needs a tokio runtime.
    pub fn connect(cluster: impl Into<Cluster>, options: QueuesOptions) -> Queues {
        let client = ReadClient::new(cluster.into(), new_session(), options.name.clone());
        Queues::start(Directory::Resolver(client), options)
    }

    /// Looks into the queues of just these publishers, without a resolver.
    pub fn to_publishers(publishers: Vec<PublisherInfo>, options: QueuesOptions) -> Queues {
        Queues::start(Directory::Named(publishers.into()), options)
    }

    pub(crate) fn start(directory: Directory, options: QueuesOptions) -> Queues {
        let links = Mutex::new(HashMap::new());
        let roster = tokio::sync::Mutex::default();
        Queues { shared: Arc::new(Shared { directory, options, links, roster }) }
    }

    /// The publishers that could have queues which match; and true if the directory was sure to
    /// know all of them, false while its replicas have started only now. Cancel safe.
    pub async fn publishers(
        &self,
        pattern: &Glob,
    ) -> Result<(bool, Vec<PublisherInfo>), QueuesError> {
        self.shared.publishers(pattern).await
    }

    /// Metrics of every publisher. Cancel safe.
    pub async fn status(&self) -> Result<Gathered<PublisherStatus>, QueuesError> {
        self.ask_all(&everything(), Request::Status, |answer| match answer {
            Answer::Status(status) => Some(status),
            _ => None,
        })
        .await
    }

    /// Metrics of the queues that match, publisher by publisher; [`Gathered::merged`] adds them up.
    /// Cancel safe.
    pub async fn stats(&self, pattern: Glob) -> Result<Gathered<Vec<QueueStat>>, QueuesError> {
        let request = Request::Queues { pattern: pattern.clone() };
        self.ask_all(&pattern, request, |answer| match answer {
            Answer::Queues(queues) => Some(queues),
            _ => None,
        })
        .await
    }

    /// The jobs that match, a page at a time, publisher after publisher. `query.limit` is the size
    /// of a page (what is under 1 counts as 1, what is over 1,000 as 1,000); `query.cursor` is
    /// where each publisher begins, usually 0. Pages are asked for as they are read. Cancel safe.
    pub async fn jobs(&self, query: JobsQuery) -> Result<JobPages, QueuesError> {
        let publishers = self.shared.roster(&query.filter.pattern).await?;
        Ok(JobPages::new(self.clone(), query, publishers))
    }

    /// One job with its payload and result. A bare id is asked of every publisher, and who has it
    /// is believed at once; [`JobLookupError::NotFound`] is said only when all have answered.
    /// Cancel safe.
    pub async fn job(&self, name: &JobName) -> Result<JobAt, JobLookupError> {
        let roster = self.shared.roster(&everything()).await?;
        let PublishersFor { complete, mut publishers, mut missing, .. } = roster;
        if let Some(prefix) = &name.publisher {
            publishers.retain(|publisher| publisher.id.prefix() == *prefix);
            missing.retain(|one| one.publisher.id.prefix() == *prefix);
            if publishers.is_empty() {
                return Err(JobLookupError::PublisherAway { prefix: prefix.clone() });
            }
        }
        let mut asked = self.fan_out(&publishers, &Request::Job { id: name.id });
        let mut answered = Vec::new();
        while let Some(answer) = next(&mut asked).await {
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
    pub(crate) async fn ask_patiently(
        &self,
        who: &Who,
        question: Question<'_>,
        time_up: tokio::time::Instant,
    ) -> Result<Answer, Unanswered> {
        self.shared.ask_patiently(who, question, time_up).await.map(|(_, answer)| answer)
    }

    async fn ask_all<T>(
        &self,
        pattern: &Glob,
        request: Request,
        wanted: impl Fn(Answer) -> Option<T>,
    ) -> Result<Gathered<T>, QueuesError> {
        let PublishersFor { complete, publishers, missing, unanswered } =
            self.shared.roster(pattern).await?;
        let mut asked = self.fan_out(&publishers, &request);
        let mut gathered = Gathered::new(complete, missing, unanswered);
        while let Some((publisher, answer)) = next(&mut asked).await {
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
        let mut asked = JoinSet::new();
        for publisher in publishers.iter().cloned() {
            let (shared, request) = (self.shared.clone(), request.clone());
            asked.spawn(async move {
                let answer = shared.ask(&publisher, &request).await;
                (publisher, answer)
            });
        }
        asked
    }

    async fn ask(
        &self,
        publisher: &PublisherInfo,
        request: &Request,
    ) -> Result<Answer, RequestFailure> {
        self.shared.ask(publisher, request).await
    }
}

impl std::fmt::Debug for Queues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queues").field("links", &self.shared.links.lock().len()).finish()
    }
}

/// The next answer of a fan-out. A task that was cancelled or panicked gives none.
async fn next<T: 'static>(asked: &mut JoinSet<T>) -> Option<T> {
    loop {
        match asked.join_next().await? {
            Ok(answer) => return Some(answer),
            Err(error) => tracing::error!(%error, "a request's task failed"),
        }
    }
}

fn everything() -> Glob {
    Glob::everything()
}
