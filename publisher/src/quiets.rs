//! Workers that were asked to be quiet or to go on, until they have answered; and which of them say
//! that they are quiet. Pure: time is told.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use longshore_protocol::limits::QUIETED_WORKERS_MAX;
use longshore_protocol::messages::work::{Quiet, QuietEnd, QuietedWorker, WorkerPattern};
use longshore_protocol::{LinkId, SessionId};

/// How long workers have to answer. One that can answers within two round trips and a commit; a
/// tool waits for 15 s.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// More workers are meant than one request may ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooManyWorkers;

/// Those of the workers that any of the patterns means, by their names.
pub(crate) fn meant<'a>(
    workers: impl Iterator<Item = (LinkId, &'a str, SessionId)>,
    patterns: &[WorkerPattern],
) -> Result<Vec<(LinkId, QuietedWorker)>, TooManyWorkers> {
    let is_meant = |name, session| patterns.iter().any(|pattern| pattern.matches(name, session));
    let end = QuietEnd::Matched;
    let mut meant: Vec<(LinkId, QuietedWorker)> = workers
        .filter(|&(_, name, session)| is_meant(name, session))
        .take(QUIETED_WORKERS_MAX + 1)
        .map(|(link, name, session)| (link, QuietedWorker { name: name.to_owned(), session, end }))
        .collect();
    if meant.len() > QUIETED_WORKERS_MAX {
        return Err(TooManyWorkers);
    }
    meant.sort_unstable_by(|(_, a), (_, b)| (&a.name, a.session).cmp(&(&b.name, b.session)));
    Ok(meant)
}

/// All that is asked and told.
#[derive(Debug, Default)]
pub(crate) struct Quiets {
    /// Links whose workers say that they are quiet.
    quiet: BTreeSet<LinkId>,
    /// By their numbers. Of each link there are no more than it may have open requests.
    asks: BTreeMap<u64, Ask>,
    /// The last number.
    asked: u64,
}

#[derive(Debug)]
struct Ask {
    link: LinkId,
    request: u64,
    quiet: bool,
    due: Instant,
    /// The places of those that have not answered.
    waiting: BTreeMap<LinkId, usize>,
    workers: Vec<QuietedWorker>,
}

/// A request that has its answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Answered {
    pub(crate) link: LinkId,
    pub(crate) request: u64,
    pub(crate) workers: Vec<QuietedWorker>,
}

impl Quiets {
    /// True while the worker of that link says that it is quiet.
    pub(crate) fn is_quiet(&self, link: LinkId) -> bool {
        self.quiet.contains(&link)
    }

    /// A tool asks these, at least one. Gives the number that they are to be told.
    pub(crate) fn begin(
        &mut self,
        now: Instant,
        (link, request): (LinkId, u64),
        quiet: bool,
        asked: Vec<(LinkId, QuietedWorker)>,
    ) -> u64 {
        self.asked += 1;
        let (mut waiting, mut workers) = (BTreeMap::new(), Vec::with_capacity(asked.len()));
        for (worker_link, worker) in asked {
            waiting.insert(worker_link, workers.len());
            workers.push(QuietedWorker { end: QuietEnd::NotAnswered, ..worker });
        }
        let due = now + ANSWERS_WITHIN;
        self.asks.insert(self.asked, Ask { link, request, quiet, due, waiting, workers });
        self.asked
    }

    /// A worker says whether it is quiet. What it says to the newest question counts for those
    /// before it, which it may have read at the same time.
    pub(crate) fn told(&mut self, link: LinkId, told: Quiet, answered: &mut Vec<Answered>) {
        match told.quiet {
            true => self.quiet.insert(link),
            false => self.quiet.remove(&link),
        };
        for ask in self.asks.range_mut(..=told.ask).map(|(_, ask)| ask) {
            let end = match ask.quiet == told.quiet {
                true => QuietEnd::Confirmed,
                false => QuietEnd::Otherwise,
            };
            ask.end(link, end);
        }
        self.take(|ask| ask.waiting.is_empty(), answered);
    }

    /// A link is gone: a worker on it does not answer any more, and to a tool nothing is answered.
    pub(crate) fn link_lost(&mut self, link: LinkId, answered: &mut Vec<Answered>) {
        self.quiet.remove(&link);
        self.asks.retain(|_, ask| ask.link != link);
        self.asks.values_mut().for_each(|ask| ask.end(link, QuietEnd::NotAnswered));
        self.take(|ask| ask.waiting.is_empty(), answered);
    }

    /// Ends those that have waited for long enough.
    pub(crate) fn due(&mut self, now: Instant, answered: &mut Vec<Answered>) {
        self.take(|ask| ask.due <= now, answered);
    }

    /// When the first of them has.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.asks.values().map(|ask| ask.due).min()
    }

    fn take(&mut self, is_over: impl Fn(&Ask) -> bool, answered: &mut Vec<Answered>) {
        self.asks.retain(|_, ask| {
            let over = is_over(ask);
            if over {
                let workers = std::mem::take(&mut ask.workers);
                answered.push(Answered { link: ask.link, request: ask.request, workers });
            }
            !over
        });
    }
}

impl Ask {
    fn end(&mut self, link: LinkId, end: QuietEnd) {
        if let Some(place) = self.waiting.remove(&link) {
            self.workers[place].end = end;
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

    fn ask(quiets: &mut Quiets, now: Instant, request: u64, quiet: bool) -> u64 {
        let asked = [(W1, 1), (W2, 2)].map(|(link, n)| (link, worker(n, QuietEnd::Matched)));
        quiets.begin(now, (TOOL, request), quiet, asked.into())
    }

    fn told(quiets: &mut Quiets, link: LinkId, ask: u64, quiet: bool) -> Vec<Answered> {
        let mut answered = Vec::new();
        quiets.told(link, Quiet { ask, quiet }, &mut answered);
        answered
    }

    fn answer(request: u64, first: QuietEnd, second: QuietEnd) -> Answered {
        Answered { link: TOOL, request, workers: vec![worker(1, first), worker(2, second)] }
    }

    #[test]
    fn those_that_are_meant_are_in_the_order_of_their_names_and_one_too_many_is_none() {
        let patterns = ["b*", "a"].map(|text| WorkerPattern::new(text).unwrap());
        let all = [(W1, "b2"), (W2, "c"), (TOOL, "b1"), (LinkId(20), "a")];
        let all = all.map(|(link, name)| (link, name, SessionId([1; 16])));
        let names = |meant: &[(LinkId, QuietedWorker)]| -> Vec<(LinkId, String)> {
            meant.iter().map(|(link, worker)| (*link, worker.name.clone())).collect()
        };
        let few = meant(all.into_iter(), &patterns).unwrap();
        let expected = [(LinkId(20), "a"), (TOOL, "b1"), (W1, "b2")];
        assert_eq!(names(&few), expected.map(|(link, name)| (link, name.to_owned())));

        let many = |n: usize| (0..n as u64).map(|n| (LinkId(n), "a", SessionId([1; 16])));
        let most = meant(many(QUIETED_WORKERS_MAX), &patterns).map(|meant| meant.len());
        assert_eq!(most, Ok(QUIETED_WORKERS_MAX));
        assert_eq!(meant(many(QUIETED_WORKERS_MAX + 1), &patterns), Err(TooManyWorkers));
    }

    #[test]
    fn a_tool_is_answered_once_every_worker_has_said_that_it_is_quiet() {
        let (mut quiets, now) = (Quiets::default(), Instant::now());
        let number = ask(&mut quiets, now, 7, true);
        assert_eq!(told(&mut quiets, W2, number, true), []);
        assert_eq!(told(&mut quiets, W1, 0, true), [], "of itself, before it was asked");
        assert!(quiets.is_quiet(W1) && quiets.is_quiet(W2));
        let all = told(&mut quiets, W1, number, true);
        assert_eq!(all, [answer(7, QuietEnd::Confirmed, QuietEnd::Confirmed)]);
        assert_eq!(quiets.next(), None);
        told(&mut quiets, W1, 0, false);
        assert!(!quiets.is_quiet(W1) && quiets.is_quiet(W2));
    }

    #[test]
    fn one_that_does_not_answer_in_time_or_whose_link_ends_is_named_as_such() {
        let (mut quiets, now) = (Quiets::default(), Instant::now());
        let number = ask(&mut quiets, now, 7, true);
        told(&mut quiets, W1, number, true);
        let due = quiets.next().unwrap();
        assert_eq!(due, now + ANSWERS_WITHIN);
        let mut answered = Vec::new();
        quiets.due(due - Duration::from_nanos(1), &mut answered);
        assert_eq!(answered, []);
        quiets.due(due, &mut answered);
        assert_eq!(answered, [answer(7, QuietEnd::Confirmed, QuietEnd::NotAnswered)]);
        assert_eq!(told(&mut quiets, W2, number, true), [], "too late");

        let number = ask(&mut quiets, now, 8, true);
        told(&mut quiets, W1, number, true);
        answered.clear();
        quiets.link_lost(W2, &mut answered);
        assert_eq!(answered, [answer(8, QuietEnd::Confirmed, QuietEnd::NotAnswered)]);
        assert!(!quiets.is_quiet(W2), "a new link says so anew");
    }

    #[test]
    fn a_tool_that_is_gone_is_not_answered() {
        let (mut quiets, now) = (Quiets::default(), Instant::now());
        let number = ask(&mut quiets, now, 7, true);
        quiets.link_lost(TOOL, &mut Vec::new());
        assert_eq!(quiets.next(), None);
        assert_eq!(told(&mut quiets, W1, number, true), []);
        assert!(quiets.is_quiet(W1));
    }

    #[test]
    fn the_answer_to_the_newest_question_says_what_became_of_those_before_it() {
        let (mut quiets, now) = (Quiets::default(), Instant::now());
        ask(&mut quiets, now, 7, true);
        let newest = ask(&mut quiets, now, 8, false);
        assert_eq!(told(&mut quiets, W1, newest, false), []);
        let both = told(&mut quiets, W2, newest, false);
        let otherwise = answer(7, QuietEnd::Otherwise, QuietEnd::Otherwise);
        let confirmed = answer(8, QuietEnd::Confirmed, QuietEnd::Confirmed);
        assert_eq!(both, [otherwise, confirmed]);

        let first = ask(&mut quiets, now, 9, true);
        ask(&mut quiets, now, 10, true);
        told(&mut quiets, W1, first, true);
        let only_first = told(&mut quiets, W2, first, true);
        assert_eq!(only_first, [answer(9, QuietEnd::Confirmed, QuietEnd::Confirmed)]);
        assert!(quiets.next().is_some(), "the second question is not answered by that");
    }
}
