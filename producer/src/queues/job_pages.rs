//! Listings of jobs in pages.

use std::collections::VecDeque;
use std::sync::Arc;

use longshore_protocol::PublisherInfo;
use longshore_protocol::limits::PAGE_JOBS_MAX;
use longshore_protocol::messages::work::{Answer, JobInfo, JobsQuery, Request};
use longshore_resolver::ReplicaFailure;

use super::answers::MissingPublisher;
use super::requester::{PublisherListing, Requester};

/// A page of one publisher's jobs, in the publisher's order.
#[derive(Clone, PartialEq, Debug)]
pub struct JobPage {
    /// The publisher.
    pub publisher: PublisherInfo,
    /// The jobs; never empty.
    pub jobs: Vec<JobInfo>,
}

/// All matching jobs, page by page, one publisher after another. Not a snapshot: a job that changes
/// between two pages may be missing or duplicated.
#[derive(Debug)]
pub struct JobPages {
    requester: Arc<Requester>,
    query: JobsQuery,
    /// The first cursor of each publisher.
    start: u64,
    complete: bool,
    left: VecDeque<PublisherInfo>,
    answered: Vec<PublisherInfo>,
    missing: Vec<MissingPublisher>,
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

    /// The next page; `None` after the last one. Skips a publisher that does not answer: see
    /// [`JobPages::missing`]. Cancel safe.
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
                Ok(_) => "unexpected answer".to_owned(),
                Err(failure) => failure.to_string(),
            };
            self.pass_on();
            self.missing.push(MissingPublisher { publisher, why });
        }
    }

    fn pass_on(&mut self) {
        self.left.pop_front();
        self.query.cursor = self.start;
    }

    /// False if the resolver has just started: it may not list every publisher yet.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// The publishers listed completely so far.
    pub fn answered(&self) -> &[PublisherInfo] {
        &self.answered
    }

    /// Replicas without an answer: publishers that only these know are not in
    /// [`missing`](JobPages::missing).
    pub fn unanswered(&self) -> &[ReplicaFailure] {
        &self.unanswered
    }

    /// The publishers that did not answer so far; some of their pages may be missing.
    pub fn missing(&self) -> &[MissingPublisher] {
        &self.missing
    }
}
