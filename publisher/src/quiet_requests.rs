//! Requests that make workers quiet or active, until the workers have answered; and which workers
//! report that they are quiet. Pure: the time is an argument.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use longshore_protocol::limits::QUIETED_WORKERS_MAX;
use longshore_protocol::messages::work::{Quiet, QuietEnd, QuietedWorker, WorkerPattern};
use longshore_protocol::{LinkId, SessionId};

/// How long workers have to answer. A healthy one answers within two round trips and a commit; a
/// tool waits for 15 s.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The patterns match more workers than one request may address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooManyMatches;

/// The workers that any of the patterns matches, sorted by name.
pub(crate) fn matching_workers<'a>(
    workers: impl Iterator<Item = (LinkId, &'a str, SessionId)>,
    patterns: &[WorkerPattern],
) -> Result<Vec<(LinkId, QuietedWorker)>, TooManyMatches> {
    let is_match = |name, session| patterns.iter().any(|pattern| pattern.matches(name, session));
    let end = QuietEnd::Matched;
    let mut matching_workers: Vec<(LinkId, QuietedWorker)> = workers
        .filter(|&(_, name, session)| is_match(name, session))
        .take(QUIETED_WORKERS_MAX + 1)
        .map(|(link, name, session)| (link, QuietedWorker { name: name.to_owned(), session, end }))
        .collect();
    if matching_workers.len() > QUIETED_WORKERS_MAX {
        return Err(TooManyMatches);
    }
    matching_workers
        .sort_unstable_by(|(_, a), (_, b)| (&a.name, a.session).cmp(&(&b.name, b.session)));
    Ok(matching_workers)
}

/// All open requests and reports.
#[derive(Debug, Default)]
pub(crate) struct QuietRequests {
    /// Links whose workers report that they are quiet.
    quiet: BTreeSet<LinkId>,
    /// By number; bounded by the open requests that each link may have.
    requests: BTreeMap<u64, QuietRequest>,
    /// The last number.
    last_number: u64,
}

#[derive(Debug)]
struct QuietRequest {
    link: LinkId,
    request: u64,
    quiet: bool,
    deadline: Instant,
    /// The positions in `workers` of those that have not answered.
    waiting: BTreeMap<LinkId, usize>,
    workers: Vec<QuietedWorker>,
}

/// A request with its answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct AnsweredRequest {
    pub(crate) link: LinkId,
    pub(crate) request: u64,
    pub(crate) workers: Vec<QuietedWorker>,
}

impl QuietRequests {
    /// True while the link's worker reports that it is quiet.
    pub(crate) fn is_quiet(&self, link: LinkId) -> bool {
        self.quiet.contains(&link)
    }

    /// A tool addresses these workers, at least one. Returns the request's number, which the
    /// workers receive.
    pub(crate) fn begin(
        &mut self,
        now: Instant,
        (link, request): (LinkId, u64),
        quiet: bool,
        targets: Vec<(LinkId, QuietedWorker)>,
    ) -> u64 {
        self.last_number += 1;
        let (mut waiting, mut workers) = (BTreeMap::new(), Vec::with_capacity(targets.len()));
        for (worker_link, worker) in targets {
            waiting.insert(worker_link, workers.len());
            workers.push(QuietedWorker { end: QuietEnd::NotAnswered, ..worker });
        }
        let deadline = now + ANSWER_TIMEOUT;
        self.requests.insert(
            self.last_number,
            QuietRequest { link, request, quiet, deadline, waiting, workers },
        );
        self.last_number
    }

    /// A worker reports whether it is quiet. Its answer to the newest request also answers earlier
    /// ones, which it may have read at the same time.
    pub(crate) fn worker_reported(
        &mut self,
        link: LinkId,
        report: Quiet,
        answered: &mut Vec<AnsweredRequest>,
    ) {
        match report.quiet {
            true => self.quiet.insert(link),
            false => self.quiet.remove(&link),
        };
        for request in self.requests.range_mut(..=report.request).map(|(_, request)| request) {
            let end = match request.quiet == report.quiet {
                true => QuietEnd::Confirmed,
                false => QuietEnd::Otherwise,
            };
            request.end(link, end);
        }
        self.take(|request| request.waiting.is_empty(), answered);
    }

    /// A link has ended: its worker no longer answers, and its tool receives no answer.
    pub(crate) fn link_lost(&mut self, link: LinkId, answered: &mut Vec<AnsweredRequest>) {
        self.quiet.remove(&link);
        self.requests.retain(|_, request| request.link != link);
        self.requests.values_mut().for_each(|request| request.end(link, QuietEnd::NotAnswered));
        self.take(|request| request.waiting.is_empty(), answered);
    }

    /// Ends the requests whose time is up.
    pub(crate) fn expire(&mut self, now: Instant, answered: &mut Vec<AnsweredRequest>) {
        self.take(|request| request.deadline <= now, answered);
    }

    /// The earliest deadline.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.requests.values().map(|request| request.deadline).min()
    }

    fn take(
        &mut self,
        is_over: impl Fn(&QuietRequest) -> bool,
        answered: &mut Vec<AnsweredRequest>,
    ) {
        self.requests.retain(|_, request| {
            let over = is_over(request);
            if over {
                let workers = std::mem::take(&mut request.workers);
                answered.push(AnsweredRequest {
                    link: request.link,
                    request: request.request,
                    workers,
                });
            }
            !over
        });
    }
}

impl QuietRequest {
    fn end(&mut self, link: LinkId, end: QuietEnd) {
        if let Some(position) = self.waiting.remove(&link) {
            self.workers[position].end = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOL: LinkId = LinkId(1);
    const W1: LinkId = LinkId(11);
    const W2: LinkId = LinkId(12);

    fn worker(n: u8, end: QuietEnd) -> QuietedWorker {
        QuietedWorker { name: format!("w{n}"), session: SessionId([n; 16]), end }
    }

    fn request(quiet_requests: &mut QuietRequests, now: Instant, request: u64, quiet: bool) -> u64 {
        let targets = [(W1, 1), (W2, 2)].map(|(link, n)| (link, worker(n, QuietEnd::Matched)));
        quiet_requests.begin(now, (TOOL, request), quiet, targets.into())
    }

    fn worker_reported(
        quiet_requests: &mut QuietRequests,
        link: LinkId,
        request: u64,
        quiet: bool,
    ) -> Vec<AnsweredRequest> {
        let mut answered = Vec::new();
        quiet_requests.worker_reported(link, Quiet { request, quiet }, &mut answered);
        answered
    }

    fn answer(request: u64, first: QuietEnd, second: QuietEnd) -> AnsweredRequest {
        AnsweredRequest { link: TOOL, request, workers: vec![worker(1, first), worker(2, second)] }
    }

    #[test]
    fn matching_workers_are_sorted_by_name_and_limited() {
        let patterns = ["b*", "a"].map(|text| WorkerPattern::new(text).unwrap());
        let all = [(W1, "b2"), (W2, "c"), (TOOL, "b1"), (LinkId(20), "a")];
        let all = all.map(|(link, name)| (link, name, SessionId([1; 16])));
        let names = |matching_workers: &[(LinkId, QuietedWorker)]| -> Vec<(LinkId, String)> {
            matching_workers.iter().map(|(link, worker)| (*link, worker.name.clone())).collect()
        };
        let few = matching_workers(all.into_iter(), &patterns).unwrap();
        let expected = [(LinkId(20), "a"), (TOOL, "b1"), (W1, "b2")];
        assert_eq!(names(&few), expected.map(|(link, name)| (link, name.to_owned())));

        let many = |n: usize| (0..n as u64).map(|n| (LinkId(n), "a", SessionId([1; 16])));
        let most = matching_workers(many(QUIETED_WORKERS_MAX), &patterns)
            .map(|matching_workers| matching_workers.len());
        assert_eq!(most, Ok(QUIETED_WORKERS_MAX));
        assert_eq!(matching_workers(many(QUIETED_WORKERS_MAX + 1), &patterns), Err(TooManyMatches));
    }

    #[test]
    fn tool_is_answered_once_every_worker_reports_quiet() {
        let (mut quiet_requests, now) = (QuietRequests::default(), Instant::now());
        let number = request(&mut quiet_requests, now, 7, true);
        assert_eq!(worker_reported(&mut quiet_requests, W2, number, true), []);
        assert_eq!(
            worker_reported(&mut quiet_requests, W1, 0, true),
            [],
            "unasked, before the request"
        );
        assert!(quiet_requests.is_quiet(W1) && quiet_requests.is_quiet(W2));
        let all = worker_reported(&mut quiet_requests, W1, number, true);
        assert_eq!(all, [answer(7, QuietEnd::Confirmed, QuietEnd::Confirmed)]);
        assert_eq!(quiet_requests.next(), None);
        worker_reported(&mut quiet_requests, W1, 0, false);
        assert!(!quiet_requests.is_quiet(W1) && quiet_requests.is_quiet(W2));
    }

    #[test]
    fn worker_that_does_not_answer_or_loses_its_link_is_reported() {
        let (mut quiet_requests, now) = (QuietRequests::default(), Instant::now());
        let number = request(&mut quiet_requests, now, 7, true);
        worker_reported(&mut quiet_requests, W1, number, true);
        let deadline = quiet_requests.next().unwrap();
        assert_eq!(deadline, now + ANSWER_TIMEOUT);
        let mut answered = Vec::new();
        quiet_requests.expire(deadline - Duration::from_nanos(1), &mut answered);
        assert_eq!(answered, []);
        quiet_requests.expire(deadline, &mut answered);
        assert_eq!(answered, [answer(7, QuietEnd::Confirmed, QuietEnd::NotAnswered)]);
        assert_eq!(worker_reported(&mut quiet_requests, W2, number, true), [], "too late");

        let number = request(&mut quiet_requests, now, 8, true);
        worker_reported(&mut quiet_requests, W1, number, true);
        answered.clear();
        quiet_requests.link_lost(W2, &mut answered);
        assert_eq!(answered, [answer(8, QuietEnd::Confirmed, QuietEnd::NotAnswered)]);
        assert!(!quiet_requests.is_quiet(W2), "a new link starts active");
    }

    #[test]
    fn tool_whose_link_ended_is_not_answered() {
        let (mut quiet_requests, now) = (QuietRequests::default(), Instant::now());
        let number = request(&mut quiet_requests, now, 7, true);
        quiet_requests.link_lost(TOOL, &mut Vec::new());
        assert_eq!(quiet_requests.next(), None);
        assert_eq!(worker_reported(&mut quiet_requests, W1, number, true), []);
        assert!(quiet_requests.is_quiet(W1));
    }

    #[test]
    fn answer_to_the_newest_request_also_answers_older_ones() {
        let (mut quiet_requests, now) = (QuietRequests::default(), Instant::now());
        request(&mut quiet_requests, now, 7, true);
        let newest = request(&mut quiet_requests, now, 8, false);
        assert_eq!(worker_reported(&mut quiet_requests, W1, newest, false), []);
        let both = worker_reported(&mut quiet_requests, W2, newest, false);
        let otherwise = answer(7, QuietEnd::Otherwise, QuietEnd::Otherwise);
        let confirmed = answer(8, QuietEnd::Confirmed, QuietEnd::Confirmed);
        assert_eq!(both, [otherwise, confirmed]);

        let first = request(&mut quiet_requests, now, 9, true);
        request(&mut quiet_requests, now, 10, true);
        worker_reported(&mut quiet_requests, W1, first, true);
        let only_first = worker_reported(&mut quiet_requests, W2, first, true);
        assert_eq!(only_first, [answer(9, QuietEnd::Confirmed, QuietEnd::Confirmed)]);
        assert!(quiet_requests.next().is_some(), "that does not answer the second request");
    }
}
