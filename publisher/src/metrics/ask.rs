//! What the owner is asked for, and the answers that wait until what they say is durable.

use std::collections::VecDeque;

use longshore_protocol::{JobId, LinkId, Path};
use tokio::sync::oneshot;

use super::Taken;

/// The link that the owner knows metrics by. Real links have their epoch in their number, which is
/// never 0.
pub(crate) const METRICS_LINK: LinkId = LinkId(0);

/// What there is below `/sys/publishers/NAME`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Metric {
    /// The publisher itself.
    Publisher,
    /// Its first queues.
    Queues,
    /// One queue.
    Queue(Path),
    /// The workers that are linked to it.
    Workers,
    /// How far a job is.
    Progress(JobId),
}

impl Metric {
    /// What a path asks for, below where the publisher has its metrics.
    pub(crate) fn of(base: &Path, path: &Path) -> Option<Metric> {
        let below = path.as_str().strip_prefix(base.as_str())?;
        match below {
            "" => return Some(Metric::Publisher),
            "/queues" => return Some(Metric::Queues),
            "/workers" => return Some(Metric::Workers),
            _ => {}
        }
        if let Some(queue) = below.strip_prefix("/queues") {
            return Path::new(queue).ok().map(Metric::Queue);
        }
        below.strip_prefix("/progress/")?.parse().ok().map(Metric::Progress)
    }
}

/// Asks the owner for metrics, all in one pass.
pub(crate) struct Ask {
    /// Which; none for a path that names no metrics.
    pub(crate) wanted: Vec<Option<Metric>>,
    /// Where they go, in their order.
    pub(crate) answer: oneshot::Sender<Vec<Taken>>,
}

/// Metrics that were taken, and wait until what they say is durable. There are few: whoever asks
/// waits for the answer.
#[derive(Default)]
pub(crate) struct Waiting {
    first: u64,
    answers: VecDeque<(Vec<Taken>, oneshot::Sender<Vec<Taken>>)>,
}

impl Waiting {
    /// Keeps an answer, and gives its number.
    pub(crate) fn put(&mut self, taken: Vec<Taken>, answer: oneshot::Sender<Vec<Taken>>) -> u64 {
        self.answers.push_back((taken, answer));
        self.first + self.answers.len() as u64 - 1
    }

    /// What that answer says is durable, and what those before it say.
    pub(crate) fn durable(&mut self, number: u64) {
        while self.first <= number
            && let Some((taken, answer)) = self.answers.pop_front()
        {
            self.first += 1;
            // Nobody may want it any more.
            let _ = answer.send(taken);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_path_asks_for_is_said_by_what_lies_below_the_base() {
        let base = Path::new("/sys/publishers/p1").unwrap();
        let of = |text: &str| Metric::of(&base, &Path::new(text).unwrap());
        let id = "00000000-0000-0000-0000-00000000002a";
        for (text, metric) in [
            ("/sys/publishers/p1", Some(Metric::Publisher)),
            ("/sys/publishers/p1/queues", Some(Metric::Queues)),
            ("/sys/publishers/p1/workers", Some(Metric::Workers)),
            (
                "/sys/publishers/p1/queues/jobs/mail",
                Some(Metric::Queue(Path::new("/jobs/mail").unwrap())),
            ),
            (
                &format!("/sys/publishers/p1/progress/{id}"),
                Some(Metric::Progress(id.parse().unwrap())),
            ),
            ("/sys/publishers/p1/progress/tomorrow", None),
            ("/sys/publishers/p1/progress", None),
            ("/sys/publishers/p1/else", None),
            ("/sys/publishers/p1/queuesfull", None),
            ("/sys/publishers/p2", None),
            ("/sys/publishers/p12", None),
        ] {
            assert_eq!(of(text), metric, "{text}");
        }
    }

    #[test]
    fn answers_are_given_once_what_they_say_is_durable_in_their_order() {
        let mut waiting = Waiting::default();
        let (first, mut told_first) = oneshot::channel();
        let (second, mut told_second) = oneshot::channel();
        let number = waiting.put(vec![Taken::Now(1u64.into())], first);
        let later = waiting.put(vec![Taken::Now(2u64.into())], second);
        assert!(told_first.try_recv().is_err(), "not before");
        waiting.durable(number);
        assert_eq!(told_first.try_recv().unwrap(), [Taken::Now(1u64.into())]);
        assert!(told_second.try_recv().is_err(), "not before");
        waiting.durable(later);
        assert_eq!(told_second.try_recv().unwrap(), [Taken::Now(2u64.into())]);
    }
}
