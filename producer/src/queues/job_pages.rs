//! Listings of jobs, page by page.

use std::collections::VecDeque;
use std::sync::Arc;

use longshore_protocol::PublisherInfo;
use longshore_protocol::limits::PAGE_JOBS_MAX;
use longshore_protocol::messages::work::{Answer, JobInfo, JobsQuery, Request};
use longshore_resolver::ReplicaFailure;

use super::answers::Missing;
use super::requester::{PublisherListing, Requester};

/// Some jobs of one publisher, in the order in which it holds them.
#[derive(Clone, PartialEq, Debug)]
pub struct JobPage {
    /// Who holds them.
    pub publisher: PublisherInfo,
    /// The jobs; never none.
    pub jobs: Vec<JobInfo>,
}

/// All jobs that match, page by page, publisher after publisher. Not a snapshot: a job that changes
/// between two pages may be missing, or come twice.
#[derive(Debug)]
pub struct JobPages {
    requester: Arc<Requester>,
    query: JobsQuery,
    /// Where each publisher begins.
    start: u64,
    complete: bool,
    left: VecDeque<PublisherInfo>,
    answered: Vec<PublisherInfo>,
    missing: Vec<Missing>,
    unanswered: Vec<ReplicaFailure>,
}

impl JobPages {
    pub(super) fn new(
        requester: Arc<Requester>,
        mut query: JobsQuery,
        publishers: PublisherListing,
    ) -> JobPages {
        let PublisherListing { complete, publishers, missing, unanswered } = publishers;
        query.limit = query.limit.clamp(1, PAGE_JOBS_MAX as u32);
        JobPages {
            start: query.cursor,
            requester,
            query,
            complete,
            left: publishers.into(),
            answered: Vec::new(),
            missing,
            unanswered,
        }
    }

    /// The next page; `None` after the last publisher's last. A publisher that does not answer is
    /// passed over: see [`JobPages::missing`]. Cancel safe.
    pub async fn next(&mut self) -> Option<JobPage> {
        loop {
            let publisher = self.left.front()?.clone();
            let request = Request::Jobs(self.query.clone());
            let why = match self.requester.request(&publisher, &request).await {
                Ok(Answer::Jobs(page)) => {
                    match page.next {
                        Some(next) if next != self.query.cursor => self.query.cursor = next,
                        _ => {
                            self.pass_on();
                            self.answered.push(publisher.clone());
                        }
                    }
                    if page.jobs.is_empty() {
                        continue;
                    }
                    return Some(JobPage { publisher, jobs: page.jobs });
                }
                Ok(_) => "it answered something else".to_owned(),
                Err(failure) => failure.to_string(),
            };
            self.pass_on();
            self.missing.push(Missing { publisher, why });
        }
    }

    fn pass_on(&mut self) {
        self.left.pop_front();
        self.query.cursor = self.start;
    }

    /// False when the resolver's replicas have started only now: there may be publishers that were
    /// not asked.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// The publishers that were listed to their end so far.
    pub fn answered(&self) -> &[PublisherInfo] {
        &self.answered
    }

    /// Replicas that were not heard: a publisher that only these know is not among the
    /// [`missing`](JobPages::missing).
    pub fn unanswered(&self) -> &[ReplicaFailure] {
        &self.unanswered
    }

    /// The publishers that did not answer so far; pages of theirs may be missing.
    pub fn missing(&self) -> &[Missing] {
        &self.missing
    }
}
