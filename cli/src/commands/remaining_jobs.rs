//! The jobs and schedules that a publisher has: what is left before its removal, and what the
//! removal loses.

use std::collections::BTreeMap;

use longshore::protocol::messages::work::QueueStat;
use longshore::{Glob, JobCounts, PublisherId, Queues, QueuesError, ScheduleInfo};
use serde_json::{Map, Value};

use crate::output::{counted, grouped, jobs, shell_word};

/// The jobs of a publisher, by state, and the number of its schedules.
#[derive(Clone, Copy, Debug)]
pub(super) struct RemainingJobs {
    counts: JobCounts,
    schedules: u64,
}

impl RemainingJobs {
    /// The sum over queues; schedules that are over do not count.
    fn of(queues: &[QueueStat], schedules: &[ScheduleInfo]) -> RemainingJobs {
        let mut counts = JobCounts::default();
        queues.iter().for_each(|queue| counts += queue.counts);
        let open = schedules.iter().filter(|known| known.paused || known.next.is_some());
        RemainingJobs { counts, schedules: open.count() as u64 }
    }

    /// Those of each publisher of the client that answers.
    pub(super) async fn read(
        queues: &Queues,
    ) -> Result<BTreeMap<PublisherId, RemainingJobs>, QueuesError> {
        let (stats, schedules) =
            tokio::try_join!(queues.stats(Glob::everything()), queues.schedules())?;
        let schedules: BTreeMap<PublisherId, Vec<ScheduleInfo>> = schedules
            .answers
            .into_iter()
            .map(|answered| (answered.publisher.id, answered.answer))
            .collect();
        let known = stats.answers.into_iter().filter_map(|answered| {
            let id = answered.publisher.id;
            Some((id, RemainingJobs::of(&answered.answer, schedules.get(&id)?)))
        });
        Ok(known.collect())
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

    pub(super) fn schedules(&self) -> u64 {
        self.schedules
    }

    /// `3 schedules, which do not fire: …`, of a drained publisher; none without any. Adding one
    /// again finds its name here, so it has to be removed first.
    pub(super) fn idle_schedules(&self) -> Option<String> {
        let (does, them) = match self.schedules {
            0 => return None,
            1 => ("does", "it"),
            _ => ("do", "them"),
        };
        Some(format!(
            "{}, which {does} not fire: to have {them} elsewhere, remove {them} (longshore cron rm \
             NAME), then add {them} at another publisher",
            counted(self.schedules, "schedule")
        ))
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
        listed(self.ended_parts())
    }

    /// All of them: `3 jobs not ended, 2 dead letters, 1 ended job and 1 schedule`.
    pub(super) fn all(&self) -> String {
        let open = format!("{} not ended", jobs(self.open()));
        let schedules = (self.schedules > 0).then(|| counted(self.schedules, "schedule"));
        listed(std::iter::once(open).chain(self.ended_parts()).chain(schedules))
    }

    fn ended_parts(&self) -> impl Iterator<Item = String> {
        let parts = [(self.dead(), "dead letter"), (self.retained(), "ended job")];
        parts.into_iter().filter(|(count, _)| *count > 0).map(|(count, noun)| counted(count, noun))
    }

    /// As JSON.
    pub(super) fn json(&self) -> Value {
        let others =
            [("dead", self.dead()), ("retained", self.retained()), ("schedules", self.schedules)];
        let counts = self.open_by_state().into_iter().chain(others);
        Value::Object(
            counts.map(|(state, count)| (state.to_owned(), count.into())).collect::<Map<_, _>>(),
        )
    }
}

/// `a, b and c`; empty without any.
fn listed(parts: impl Iterator<Item = String>) -> String {
    let mut parts: Vec<String> = parts.collect();
    match parts.pop() {
        Some(last) if !parts.is_empty() => format!("{} and {last}", parts.join(", ")),
        only => only.unwrap_or_default(),
    }
}

/// How to remove a drained publisher.
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
        let jobs = RemainingJobs::of(&[queue(one), queue(other)], &[]);
        assert_eq!(jobs.left(), "2 jobs have not ended yet: 1 retrying, 1 ready");
        assert_eq!(jobs.all(), "2 jobs not ended, 2 dead letters and 1,001 ended jobs");
        let and_schedule = RemainingJobs { schedules: 1, ..jobs }.all();
        assert_eq!(
            and_schedule,
            "2 jobs not ended, 2 dead letters, 1,001 ended jobs and 1 schedule"
        );
        assert_eq!(jobs.idle_schedules(), None);
        let none = RemainingJobs::of(&[], &[]);
        assert_eq!(none.all(), "0 jobs not ended");
        let scheduled = RemainingJobs { schedules: 2, ..none };
        assert_eq!(scheduled.all(), "0 jobs not ended and 2 schedules");
        let idle = scheduled.idle_schedules().unwrap();
        assert!(idle.starts_with("2 schedules, which do not fire: to have them"), "{idle}");
        assert!(idle.contains("remove them (longshore cron rm NAME), then add them"), "{idle}");
    }
}
