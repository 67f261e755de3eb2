//! Requests for metrics to the owner, and samples that wait until the state they show is durable.

use std::collections::VecDeque;

use longshore_protocol::{JobId, LinkId, Path};
use tokio::sync::oneshot;

use super::MetricSample;

/// The link number that the owner uses for metrics. Real links have their epoch in their number,
/// which is never 0.
pub(crate) const METRICS_LINK: LinkId = LinkId(0);

/// The metrics below `/sys/publishers/NAME`.
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
    /// The progress of a job.
    Progress(JobId),
}

impl Metric {
    /// The metric at a path, below the publisher's base path.
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

/// Requests metrics from the owner, all in one pass.
pub(crate) struct MetricsRequest {
    /// The metrics; none for a path that names no metric.
    pub(crate) metrics: Vec<Option<Metric>>,
    /// Receives them in that order.
    pub(crate) answer: oneshot::Sender<Vec<MetricSample>>,
}

/// Samples that wait until the state they show is durable. There are few: each client waits for its
/// answer.
#[derive(Default)]
pub(crate) struct PendingSamples {
    first: u64,
    answers: VecDeque<(Vec<MetricSample>, oneshot::Sender<Vec<MetricSample>>)>,
}

impl PendingSamples {
    /// Stores samples, and returns their number.
    pub(crate) fn push(
        &mut self,
        samples: Vec<MetricSample>,
        answer: oneshot::Sender<Vec<MetricSample>>,
    ) -> u64 {
        self.answers.push_back((samples, answer));
        self.first + self.answers.len() as u64 - 1
    }

    /// The state that these samples show is durable, and so is that of all earlier ones.
    pub(crate) fn durable(&mut self, number: u64) {
        while self.first <= number
            && let Some((samples, answer)) = self.answers.pop_front()
        {
            self.first += 1;
            // The client may have gone.
            let _ = answer.send(samples);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_below_the_base_names_its_metric() {
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
    fn samples_are_sent_in_order_once_their_state_is_durable() {
        let mut waiting = PendingSamples::default();
        let (first, mut first_answered) = oneshot::channel();
        let (second, mut second_answered) = oneshot::channel();
        let number = waiting.push(vec![MetricSample::Now(1u64.into())], first);
        let later = waiting.push(vec![MetricSample::Now(2u64.into())], second);
        assert!(first_answered.try_recv().is_err(), "not before");
        waiting.durable(number);
        assert_eq!(first_answered.try_recv().unwrap(), [MetricSample::Now(1u64.into())]);
        assert!(second_answered.try_recv().is_err(), "not before");
        waiting.durable(later);
        assert_eq!(second_answered.try_recv().unwrap(), [MetricSample::Now(2u64.into())]);
    }
}
