//! Tools' requests to make workers quiet or active, and the workers' reports.

use std::time::Instant;

use longshore_protocol::LinkId;
use longshore_protocol::messages::work::{
    Answer, FromPublisher, Quiet, RequestError, WorkerPattern,
};

use super::Owner;
use crate::quiet_requests::{AnsweredRequest, matching_workers};

impl Owner {
    /// Forwards a tool's request to the workers that it names.
    pub(super) fn request_quiet(
        &mut self,
        (link, id): (LinkId, u64),
        patterns: &[WorkerPattern],
        quiet: bool,
        dry_run: bool,
    ) {
        let Ok(matching_workers) = matching_workers(self.router.workers(), patterns) else {
            return self.answer(link, id, Err(RequestError::OverLimit));
        };
        if dry_run || matching_workers.is_empty() {
            let workers = matching_workers.into_iter().map(|(_, worker)| worker).collect();
            return self.answer(link, id, Ok(Answer::Quieted(workers)));
        }
        if !self.router.begin_request(link) {
            return self.answer(link, id, Err(RequestError::TooMany));
        }
        self.operator_log.quiet(matching_workers.len(), quiet);
        let links: Vec<LinkId> = matching_workers.iter().map(|(link, _)| *link).collect();
        let request_number =
            self.quiet_requests.begin(Instant::now(), (link, id), quiet, matching_workers);
        for worker in links {
            self.router.send(
                worker,
                &FromPublisher::WorkerQuiet(Quiet { request: request_number, quiet }),
            );
        }
    }

    /// A worker reports whether it is quiet.
    pub(super) fn worker_reported_quiet(&mut self, link: LinkId, quiet: Quiet) {
        let mut answered = Vec::new();
        self.quiet_requests.worker_reported(link, quiet, &mut answered);
        self.answer_quieted(answered);
    }

    /// A link has ended: it may be that of a worker with an open request, or that of a tool.
    pub(super) fn quiet_link_lost(&mut self, link: LinkId) {
        let mut answered = Vec::new();
        self.quiet_requests.link_lost(link, &mut answered);
        self.answer_quieted(answered);
    }

    /// Answers requests whose time is up; false if there are none.
    pub(super) fn expire_quiet_requests(&mut self, now: Instant) -> bool {
        let mut answered = Vec::new();
        self.quiet_requests.expire(now, &mut answered);
        let any = !answered.is_empty();
        self.answer_quieted(answered);
        any
    }

    fn answer_quieted(&mut self, answered: Vec<AnsweredRequest>) {
        for AnsweredRequest { link, request, workers } in answered {
            self.router.end_request(link);
            self.answer(link, request, Ok(Answer::Quieted(workers)));
        }
    }
}
