//! How publishers are asked: at once or with patience, and when a question is asked again.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use longshore_protocol::messages::work::{Action, Answer, Request, RequestError};
use longshore_protocol::{Glob, JobId, NameError, PublisherId, PublisherInfo, check_name};
use longshore_resolver::ReplicaFailure;
use rand::RngExt;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::link::{LinkSlot, RequestFailure};
use super::{
    COMPLETE_WAIT, DIRECTORY_TIMEOUT, LINKS_MAX, Missing, QueuesError, Shared, everything,
};

/// The longest that somebody may wait: what is longer counts as this, 10 years.
const WAIT_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3_600);
/// The wait before a question is asked a second time.
const AGAIN_FIRST: Duration = Duration::from_millis(50);
/// The longest wait before it is asked once more.
const AGAIN_MAX: Duration = Duration::from_secs(2);

/// When `limit` is over.
pub(crate) fn deadline(limit: Duration) -> Instant {
    Instant::now() + limit.min(WAIT_MAX)
}

/// How a publisher is named.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Who {
    Id(PublisherId),
    /// The beginning of its id.
    Prefix(String),
}

impl Who {
    pub(super) fn is(&self, publisher: &PublisherInfo) -> bool {
        match self {
            Who::Id(id) => publisher.id == *id,
            Who::Prefix(prefix) => publisher.id.prefix() == *prefix,
        }
    }
}

/// What is asked with patience.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Question<'a> {
    /// What is answered at once.
    Now(&'a Request),
    /// The end of a job.
    End(JobId),
}

/// Why a patient question has no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Unanswered {
    /// Its time is over; and what kept the publisher from answering, if anything did when it was.
    TimedOut { away: Option<String> },
    /// The publisher does not answer it.
    Refused(RequestError),
    /// Who asks has a name that nobody could read; nothing was asked.
    Name(NameError),
}

/// Waits between attempts: from 50 ms on twice as long each time, up to 2 s, of which a random half
/// is left out, so that many who wait for one publisher do not come all at once.
#[derive(Debug, Default)]
pub(super) struct Again {
    attempts: u32,
}

impl Again {
    pub(super) fn next(&mut self) -> Duration {
        let whole = (AGAIN_FIRST * (1 << self.attempts.min(10))).min(AGAIN_MAX);
        self.attempts += 1;
        whole.mul_f64(rand::rng().random_range(0.5..=1.0))
    }

    /// What was tried at `since` held until now. If that was for long enough, the next attempts are
    /// quick again; what ends as soon as it has begun is no better than what does not begin.
    pub(super) fn held(&mut self, since: Instant) {
        if since.elapsed() >= AGAIN_MAX {
            self.attempts = 0;
        }
    }
}

/// Whether a question may be asked again when its answer was lost, without doing anything twice.
/// Actions compare the state that they expect; but a job that was revived may have died again
/// since.
fn repeatable(request: &Request) -> bool {
    !matches!(request, Request::Act { action: Action::Revive, dry_run: false, .. })
}

/// Who could hold jobs of some queues.
pub(super) struct PublishersFor {
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
pub(super) struct Roster {
    told: Option<(Instant, Arc<[PublisherInfo]>)>,
}

impl Shared {
    /// Asks one publisher. One that cannot be reached is given up at once; an answer that was lost
    /// with its link is asked for again until the time for a request is over, if the request allows
    /// it. Cancel safe as far as the request is.
    pub(super) async fn ask(
        &self,
        publisher: &PublisherInfo,
        request: &Request,
    ) -> Result<Answer, RequestFailure> {
        self.ask_again(publisher, request).await.map(|(answer, _)| answer)
    }

    /// The same; and says whether an answer to it was lost before, so that it may have been done
    /// twice.
    pub(super) async fn ask_again(
        &self,
        publisher: &PublisherInfo,
        request: &Request,
    ) -> Result<(Answer, bool), RequestFailure> {
        let slot = self.slot(publisher.id);
        let time_up = deadline(self.options.request_timeout);
        let mut again = Again::default();
        let mut lost = false;
        loop {
            let failure = match slot.link(publisher, &self.options).await {
                Ok(link) => {
                    let left = time_up.saturating_duration_since(Instant::now());
                    match link.ask(request, left).await {
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
            let next = Instant::now() + again.next();
            if !repeatable(request) || next >= time_up {
                return Err(failure);
            }
            sleep_until(next).await;
        }
    }

    /// Asks one publisher until it answers or `time_up` has come, wherever it is by then. Cancel
    /// safe as far as the question is.
    pub(super) async fn ask_patiently(
        &self,
        who: &Who,
        question: Question<'_>,
        time_up: Instant,
    ) -> Result<(PublisherInfo, Answer), Unanswered> {
        check_name(&self.options.name).map_err(Unanswered::Name)?;
        let mut away = None;
        match timeout_at(time_up, self.ask_until_answered(who, question, &mut away)).await {
            Ok(answered) => answered.map_err(Unanswered::Refused),
            Err(_) => Err(Unanswered::TimedOut { away }),
        }
    }

    async fn ask_until_answered(
        &self,
        who: &Who,
        question: Question<'_>,
        away: &mut Option<String>,
    ) -> Result<(PublisherInfo, Answer), RequestError> {
        let mut again = Again::default();
        // What was told before is good enough for the first attempt, if the publisher is in it.
        let mut told_since = None;
        loop {
            let began = Instant::now();
            match self.find(who, told_since).await {
                Err(error) => *away = Some(error.to_string()),
                Ok(None) => *away = Some("the resolver does not know it at the moment".into()),
                Ok(Some(publisher)) => match self.ask_once(&publisher, question, away).await {
                    Ok(answer) => return Ok((publisher, answer)),
                    Err(RequestFailure::Refused(why)) if why != RequestError::TooMany => {
                        return Err(why);
                    }
                    Err(failure) => {
                        if !matches!(failure, RequestFailure::Unreachable(_)) {
                            again.held(began);
                        }
                        *away = Some(failure.to_string());
                    }
                },
            }
            told_since = Some(Instant::now());
            sleep(again.next()).await;
        }
    }

    async fn ask_once(
        &self,
        publisher: &PublisherInfo,
        question: Question<'_>,
        away: &mut Option<String>,
    ) -> Result<Answer, RequestFailure> {
        let link = self.slot(publisher.id).link(publisher, &self.options).await?;
        match question {
            Question::Now(request) => link.ask(request, self.options.request_timeout).await,
            Question::End(id) => {
                *away = None;
                link.ask_end(id).await
            }
        }
    }

    /// The publisher of that name, as the directory tells; one that was told of after `told_since`
    /// is not asked for again.
    async fn find(
        &self,
        who: &Who,
        told_since: Option<Instant>,
    ) -> Result<Option<PublisherInfo>, QueuesError> {
        let came = Instant::now();
        let mut roster = self.roster.lock().await;
        if let Some((at, publishers)) = &roster.told {
            let found = publishers.iter().find(|publisher| who.is(publisher));
            // Those who came while somebody else asked share what was told.
            if *at >= came || (found.is_some() && told_since.is_none_or(|since| *at >= since)) {
                return Ok(found.cloned());
            }
        }
        let (_, publishers) = self.publishers(&everything()).await?;
        let found = publishers.iter().find(|publisher| who.is(publisher)).cloned();
        roster.told = Some((Instant::now(), publishers.into()));
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
        self.directory.publishers(pattern, DIRECTORY_TIMEOUT, COMPLETE_WAIT).await
    }

    /// The same, and those that are missing: they may hold jobs too.
    pub(super) async fn roster(&self, pattern: &Glob) -> Result<PublishersFor, QueuesError> {
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
        Ok(PublishersFor { complete, publishers, missing, unanswered })
    }

    fn slot(&self, publisher: PublisherId) -> Arc<LinkSlot> {
        let mut links = self.links.lock();
        if links.len() >= LINKS_MAX && !links.contains_key(&publisher) {
            links.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        links.entry(publisher).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_as_soon_as_it_has_begun_is_tried_more_and_more_slowly() {
        let mut again = Again::default();
        let waited = |again: &mut Again| {
            let began = Instant::now();
            again.held(began);
            again.next()
        };
        assert!(waited(&mut again) <= AGAIN_FIRST);
        let slow = (0..8).map(|_| waited(&mut again)).last();
        assert!(slow.is_some_and(|wait| wait >= AGAIN_MAX / 2 && wait <= AGAIN_MAX), "{slow:?}");
        again.held(Instant::now() - AGAIN_MAX);
        assert!(again.next() <= AGAIN_FIRST, "it held for a while");
    }
}
