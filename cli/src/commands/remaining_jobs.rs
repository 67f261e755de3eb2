//! The jobs that a publisher has: what is left before its removal, and what the removal loses.

use longshore::protocol::messages::work::QueueStat;
use longshore::{JobCounts, PublisherAnswers, PublisherId};
use serde_json::{Map, Value};

use crate::output::{counted, grouped, jobs, shell_word};

/// The jobs of a publisher, by state.
#[derive(Clone, Copy, Debug)]
pub(super) struct RemainingJobs {
    counts: JobCounts,
}

impl RemainingJobs {
    /// The sum over queues.
    pub(super) fn of(queues: &[QueueStat]) -> RemainingJobs {
        let mut counts = JobCounts::default();
        queues.iter().for_each(|queue| counts += queue.counts);
        RemainingJobs { counts }
    }

    /// Those of one publisher, if it answered.
    pub(super) fn at(
        publisher: PublisherId,
        stats: &PublisherAnswers<Vec<QueueStat>>,
    ) -> Option<RemainingJobs> {
        let answered = stats.answers.iter().find(|answered| answered.publisher.id == publisher)?;
        Some(RemainingJobs::of(&answered.answer))
    }

    /// Jobs that have not ended.
    pub(super) fn open(&self) -> u64 {
        self.counts.total() - self.counts.dead - self.retained()
    }

    pub(super) fn prepared(&self) -> u64 {
        self.counts.prepared
    }

    pub(super) fn dead(&self) -> u64 {
        self.counts.dead
    }

    /// Ended jobs other than dead letters.
    pub(super) fn retained(&self) -> u64 {
        self.counts.completed + self.counts.cancelled + self.counts.expired
    }

    fn open_by_state(&self) -> [(&'static str, u64); 6] {
        let counts = &self.counts;
        [
            ("prepared", counts.prepared),
            ("scheduled", counts.scheduled),
            ("retrying", counts.retrying),
            ("blocked", counts.blocked),
            ("ready", counts.ready),
            ("running", counts.running),
        ]
    }

    /// `3 jobs have not ended yet: 2 ready, 1 running`.
    pub(super) fn left(&self) -> String {
        let open = self.open();
        let have = if open == 1 { "has" } else { "have" };
        let states = self.open_by_state().into_iter().filter(|(_, count)| *count > 0);
        let states: Vec<String> =
            states.map(|(state, count)| format!("{} {state}", grouped(count))).collect();
        format!("{} {have} not ended yet: {}", jobs(open), states.join(", "))
    }

    /// `2 dead letters and 1 ended job`; empty without either.
    pub(super) fn ended(&self) -> String {
        let dead = (self.dead() > 0).then(|| counted(self.dead(), "dead letter"));
        let retained = (self.retained() > 0).then(|| counted(self.retained(), "ended job"));
        [dead, retained].into_iter().flatten().collect::<Vec<_>>().join(" and ")
    }

    /// All of them: `3 jobs that have not ended, 2 dead letters and 1 ended job`.
    pub(super) fn all(&self) -> String {
        let open = format!("{} not ended", jobs(self.open()));
        [open, self.ended()]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// As JSON.
    pub(super) fn json(&self) -> Value {
        let ended = [("dead", self.dead()), ("retained", self.retained())];
        let counts = self.open_by_state().into_iter().chain(ended);
        Value::Object(
            counts.map(|(state, count)| (state.to_owned(), count.into())).collect::<Map<_, _>>(),
        )
    }
}

/// What to do once a drained publisher has no open job.
pub(super) fn removal(name: &str) -> String {
    format!("stop it, then: longshore publisher forget {}", shell_word(name))
}

#[cfg(test)]
mod tests {
    use longshore::Path;

    use super::*;

    #[test]
    fn jobs_are_counted_by_state_over_queues() {
        let queue = |counts| QueueStat { counts, ..QueueStat::empty(Path::new("/a").unwrap()) };
        let one = JobCounts { ready: 1, dead: 2, completed: 1_000, ..JobCounts::default() };
        let other = JobCounts { retrying: 1, expired: 1, ..JobCounts::default() };
        let jobs = RemainingJobs::of(&[queue(one), queue(other)]);
        assert_eq!(jobs.left(), "2 jobs have not ended yet: 1 retrying, 1 ready");
        assert_eq!(jobs.all(), "2 jobs not ended, 2 dead letters and 1,001 ended jobs");
        assert_eq!(RemainingJobs::of(&[]).all(), "0 jobs not ended");
    }
}
