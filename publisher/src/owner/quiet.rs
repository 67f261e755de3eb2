//! Workers that tools ask to be quiet or to go on, and what the workers say.

use std::time::Instant;

use longshore_protocol::LinkId;
use longshore_protocol::messages::work::{
    Answer, FromPublisher, Quiet, RequestError, WorkerPattern,
};

use super::Owner;
use crate::quiets::{Answered, meant};

impl Owner {
    /// Passes on what a tool asks to the workers that it means.
    pub(super) fn ask_workers(
        &mut self,
        (link, id): (LinkId, u64),
        patterns: &[WorkerPattern],
        quiet: bool,
        dry_run: bool,
    ) {
        let Ok(meant) = meant(self.router.workers(), patterns) else {
            return self.answer(link, id, Err(RequestError::OverLimit));
        };
        if dry_run || meant.is_empty() {
            let workers = meant.into_iter().map(|(_, worker)| worker).collect();
            return self.answer(link, id, Ok(Answer::Quieted(workers)));
        }
        if !self.router.begin_request(link) {
            return self.answer(link, id, Err(RequestError::TooMany));
        }
        self.notices.quiet(meant.len(), quiet);
        let links: Vec<LinkId> = meant.iter().map(|(link, _)| *link).collect();
        let ask = self.quiets.begin(Instant::now(), (link, id), quiet, meant);
        for worker in links {
            self.router.say(worker, &FromPublisher::WorkerQuiet(Quiet { ask, quiet }));
        }
    }

    /// A worker says whether it is quiet.
    pub(super) fn quieted(&mut self, link: LinkId, quiet: Quiet) {
        let mut answered = Vec::new();
        self.quiets.told(link, quiet, &mut answered);
        self.answer_quieted(answered);
    }

    /// A link is gone: it may have been a worker's that was asked, or a tool's.
    pub(super) fn quiet_link_lost(&mut self, link: LinkId) {
        let mut answered = Vec::new();
        self.quiets.link_lost(link, &mut answered);
        self.answer_quieted(answered);
    }

    /// Ends what has waited for its answers for long enough; false for none.
    pub(super) fn turn_quiets(&mut self, now: Instant) -> bool {
        let mut answered = Vec::new();
        self.quiets.due(now, &mut answered);
        let any = !answered.is_empty();
        self.answer_quieted(answered);
        any
    }

    fn answer_quieted(&mut self, answered: Vec<Answered>) {
        for Answered { link, request, workers } in answered {
            self.router.end_request(link);
            self.answer(link, request, Ok(Answer::Quieted(workers)));
        }
    }
}
