//! Listings of jobs in pages.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use longshore_protocol::PublisherInfo;
use longshore_protocol::limits::PAGE_JOBS_MAX;
use longshore_protocol::messages::work::{Answer, JobInfo, JobsQuery, Request};
use longshore_resolver::ReplicaFailure;
use tokio_util::sync::ReusableBoxFuture;

use super::answers::MissingPublisher;
use super::requester::{PublisherListing, Requester};
use super::tool_link::RequestFailure;

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
    /// The request to the first of them.
    request: Option<ReusableBoxFuture<'static, Result<Answer, RequestFailure>>>,
    answered: Vec<PublisherInfo>,
    missing: Vec<MissingPublisher>,
    silent_replicas: Vec<ReplicaFailure>,
}

impl JobPages {
    pub(super) fn new(
        requester: Arc<Requester>,
        mut query: JobsQuery,
        publishers: PublisherListing,
    ) -> JobPages {
        let PublisherListing { complete, publishers, missing, silent_replicas } = publishers;
        query.limit = query.limit.clamp(1, PAGE_JOBS_MAX as u32);
        JobPages {
            start: query.cursor,
            requester,
            query,
            complete,
            left: publishers.into(),
            request: None,
            answered: Vec::new(),
            missing,
            silent_replicas,
        }
    }

    /// The next page; `None` after the last one. Skips a publisher that does not answer: see
    /// [`JobPages::missing`]. Cancel safe.
    pub async fn next(&mut self) -> Option<JobPage> {
        poll_fn(|context| self.poll_page(context)).await
    }

    fn poll_page(&mut self, context: &mut Context<'_>) -> Poll<Option<JobPage>> {
        loop {
            let Some(publisher) = self.left.front().cloned() else { return Poll::Ready(None) };
            let request = self.request.get_or_insert_with(|| {
                let (requester, publisher) = (self.requester.clone(), publisher.clone());
                let request = Request::Jobs(self.query.clone());
                let request = async move { requester.request(&publisher, &request).await };
                ReusableBoxFuture::new(request)
            });
            let answer = ready!(request.poll(context));
            self.request = None;
            let failure = match answer {
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
                    return Poll::Ready(Some(JobPage { publisher, jobs: page.jobs }));
                }
                Ok(_) => RequestFailure::Unexpected,
                Err(failure) => failure,
            };
            self.pass_on();
            self.missing.push(MissingPublisher::new(publisher, &failure));
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
    pub fn silent_replicas(&self) -> &[ReplicaFailure] {
        &self.silent_replicas
    }

    /// The publishers that did not answer so far; some of their pages may be missing.
    pub fn missing(&self) -> &[MissingPublisher] {
        &self.missing
    }
}

impl Stream for JobPages {
    type Item = JobPage;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<JobPage>> {
        self.get_mut().poll_page(context)
    }
}
