//! The schedule of the demo's kills, and the limit of enqueued jobs ahead of the results. No side
//! effects.

/// The processes to kill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Victim {
    Worker,
    Publisher,
    Replica,
}

impl Victim {
    /// All of them, in the order of the kills.
    pub(crate) const ALL: [Victim; 3] = [Victim::Worker, Victim::Publisher, Victim::Replica];
}

/// Limits enqueueing so that each kill, at a quarter, a half and three quarters of the results,
/// happens while jobs are still being enqueued. The last jobs are withheld until every kill has
/// happened, whatever the number of files and the speed of the workers.
#[derive(Debug)]
pub(crate) struct Pace {
    total: u64,
    kills: usize,
}

impl Pace {
    /// The schedule for `total` jobs.
    pub(crate) fn new(total: u64) -> Pace {
        Pace { total, kills: 0 }
    }

    /// The number of jobs that may be enqueued by the time of `results`.
    pub(crate) fn may_enqueue(&self, results: u64) -> u64 {
        let ahead = (self.total / 16).clamp(1, 2_000);
        let withheld = if self.is_done() { 0 } else { ahead };
        (results + ahead).min(self.total.saturating_sub(withheld))
    }

    /// The next process to kill, once its number of `results` is reached.
    pub(crate) fn next_victim(&mut self, results: u64) -> Option<Victim> {
        let victim = *Victim::ALL.get(self.kills)?;
        let threshold = self.total * (self.kills as u64 + 1) / 4;
        (results >= threshold).then(|| {
            self.kills += 1;
            victim
        })
    }

    /// The number of jobs.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// True once every kill was returned.
    pub(crate) fn is_done(&self) -> bool {
        self.kills == Victim::ALL.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates workers that finish everything at once, and enqueueing up to the limit.
    fn run(total: u64) -> Vec<(Victim, u64, u64)> {
        let mut pace = Pace::new(total);
        let (mut enqueued, mut results, mut kills) = (0, 0, Vec::new());
        for _ in 0..10 * total + 100 {
            if let Some(victim) = pace.next_victim(results) {
                kills.push((victim, results, enqueued));
            }
            enqueued = enqueued.max(pace.may_enqueue(results));
            results = enqueued;
        }
        assert_eq!(results, total, "a run of {total} never ended");
        kills
    }

    #[test]
    fn every_kill_happens_while_jobs_are_still_being_enqueued() {
        for total in (1..200).chain([999, 5_000, 7_821, 1_000_000]) {
            let kills = run(total);
            let victims: Vec<_> = kills.iter().map(|k| k.0).collect();
            assert_eq!(victims, Victim::ALL, "{total}");
            assert!(kills.iter().all(|&(_, _, enqueued)| enqueued < total), "{total}: {kills:?}");
        }
    }

    #[test]
    fn kills_happen_close_to_the_quarters() {
        for total in [160, 7_821, 100_000] {
            for (nth, (_, results, _)) in run(total).into_iter().enumerate() {
                let quarter = total * (nth as u64 + 1) / 4;
                assert!(results - quarter <= total / 16 + 1, "{total}: {results} for {quarter}");
            }
        }
    }
}
