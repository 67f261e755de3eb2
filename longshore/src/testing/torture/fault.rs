//! What a torture does to an attempt, and when.

use std::fmt;

use super::random::Random;

/// Most runs of a job in the clean case whose await points each get every fault.
const RUNS_ENUMERATED: usize = 3;
/// Most faults of a case.
const FAULTS_MAX: usize = 3;
/// A job is dead once it has lost its worker three times, so no case costs it more than this.
const LOSSES_MAX: usize = 2;

/// What a torture does to an attempt at one of its await points.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Fault {
    /// The worker's process dies: the handler's future is dropped.
    Crash,
    /// The handler has returned, and its worker dies before the publisher receives the result: the
    /// job is delivered again, although it is done.
    LoseSettle,
    /// The lease is lost, and the handler continues unaware once another attempt has started: both
    /// run at the same time.
    Twice,
    /// The worker stops (a pause of its machine), loses its lease, and continues once another
    /// attempt has ended: its handler goes on unaware until its next await.
    Zombie,
    /// The handler waits longer than others: up to two minutes. Its lease is renewed.
    Delay,
    /// The link to the publisher is lost, for up to 40 s; the handler continues. Beyond the grace
    /// of 5 s its lease is lost.
    LoseLink,
    /// The worker is stopped: the handler's context is cancelled with
    /// [`CancelReason::Shutdown`](crate::CancelReason::Shutdown). If it does not return within 1 s,
    /// it is dropped, and its job is released.
    Stop,
    /// A user cancels the job: the handler's context is cancelled with
    /// [`CancelReason::Cancelled`](crate::CancelReason::Cancelled), and the job never runs again.
    /// Not among the [default](Fault::DEFAULT) faults, because the job does not complete.
    Cancel,
}

impl Fault {
    /// The faults after which a job still completes, if its handler does.
    pub const DEFAULT: [Fault; 7] = [
        Fault::Crash,
        Fault::LoseSettle,
        Fault::Twice,
        Fault::Zombie,
        Fault::Delay,
        Fault::LoseLink,
        Fault::Stop,
    ];

    /// All faults.
    pub const ALL: [Fault; 8] = [
        Fault::Crash,
        Fault::LoseSettle,
        Fault::Twice,
        Fault::Zombie,
        Fault::Delay,
        Fault::LoseLink,
        Fault::Stop,
        Fault::Cancel,
    ];

    /// Whether the publisher counts it as the loss of a worker.
    fn loses_worker(self) -> bool {
        use Fault::{Crash, LoseLink, LoseSettle, Twice, Zombie};
        matches!(self, Crash | LoseSettle | Twice | Zombie | LoseLink)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Crash => "crash",
            Fault::LoseSettle => "crash",
            Fault::Twice => "concurrent attempt",
            Fault::Zombie => "pause past the lease",
            Fault::Delay => "delay",
            Fault::LoseLink => "link lost",
            Fault::Stop => "worker stopped",
            Fault::Cancel => "job cancelled",
        })
    }
}

/// A fault with its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Injection {
    pub(super) fault: Fault,
    /// The job's number, from 0.
    pub(super) job: usize,
    /// The run of that job, from 1.
    pub(super) run: u32,
    /// How many awaits of the run have begun. A `LoseSettle` comes after the last.
    pub(super) awaits: u32,
}

impl fmt::Display for Injection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.fault)?;
        match (self.fault, self.awaits) {
            (Fault::LoseSettle, _) => f.write_str("after the handler's return")?,
            (_, 0) => f.write_str("before the first await")?,
            (_, n) => write!(f, "at the {} await", ordinal(n))?,
        }
        if self.run > 1 {
            write!(f, " of run {}", self.run)?;
        }
        Ok(())
    }
}

/// `first`, `second` … `11th`.
pub(super) fn ordinal(n: u32) -> String {
    const WORDS: [&str; 10] = [
        "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth",
        "tenth",
    ];
    match (n.checked_sub(1).and_then(|n| WORDS.get(n as usize)), n % 100, n % 10) {
        (Some(word), _, _) => (*word).to_owned(),
        (None, 11..=13, _) => format!("{n}th"),
        (None, _, 1) => format!("{n}st"),
        (None, _, 2) => format!("{n}nd"),
        (None, _, 3) => format!("{n}rd"),
        (None, _, _) => format!("{n}th"),
    }
}

/// The await points of each run of each job in the clean case.
pub(super) type Points = Vec<Vec<u32>>;

/// Every single fault at every await point.
pub(super) fn single_faults(points: &Points, faults: &[Fault]) -> Vec<Injection> {
    let mut all = Vec::new();
    for (job, runs) in points.iter().enumerate() {
        for (run, &awaits) in (1..).zip(runs.iter().take(RUNS_ENUMERATED)) {
            for &fault in faults {
                let from = if fault == Fault::LoseSettle { awaits } else { 0 };
                let injection = |awaits| Injection { fault, job, run, awaits };
                all.extend((from..=awaits).map(injection));
            }
        }
    }
    all
}

/// Two or three faults at random.
pub(super) fn random_faults(
    points: &Points,
    faults: &[Fault],
    random: &mut Random,
) -> Vec<Injection> {
    let count = 2 + random.below(FAULTS_MAX - 1);
    let mut plan: Vec<Injection> = Vec::new();
    for _ in 0..count {
        let Some(fault) = random.pick(faults) else { break };
        let job = random.below(points.len());
        // Earlier runs matter more: they always happen.
        let run = [1, 1, 2, 2, 3][random.below(5)];
        let Some(runs) = points.get(job) else { break };
        let awaits = runs.get(run as usize - 1).or(runs.first()).copied().unwrap_or(0);
        let awaits = random.below(awaits as usize + 1) as u32;
        let injection = Injection { fault, job, run, awaits };
        let is_same_place = |other: &Injection| {
            (other.job, other.run) == (job, run) && (other.awaits == awaits || other.fault == fault)
        };
        let lost = plan.iter().filter(|other| other.job == job && other.fault.loses_worker());
        let is_fatal = fault.loses_worker() && lost.count() >= LOSSES_MAX;
        if !is_fatal && !plan.iter().any(is_same_place) {
            plan.push(injection);
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_enumerated_at_every_await_of_every_run() {
        let all = single_faults(&vec![vec![2, 0], vec![1]], &[Fault::Crash, Fault::LoseSettle]);
        let of = |fault, job, run, awaits| Injection { fault, job, run, awaits };
        let expected = [
            of(Fault::Crash, 0, 1, 0),
            of(Fault::Crash, 0, 1, 1),
            of(Fault::Crash, 0, 1, 2),
            of(Fault::LoseSettle, 0, 1, 2),
            of(Fault::Crash, 0, 2, 0),
            of(Fault::LoseSettle, 0, 2, 0),
            of(Fault::Crash, 1, 1, 0),
            of(Fault::Crash, 1, 1, 1),
            of(Fault::LoseSettle, 1, 1, 1),
        ];
        assert_eq!(all, expected);
    }

    #[test]
    fn random_faults_never_cost_a_job_its_last_worker() {
        for seed in 0..10_000 {
            let plan = random_faults(&vec![vec![3], vec![1]], &Fault::ALL, &mut Random::new(seed));
            assert!((1..=FAULTS_MAX).contains(&plan.len()));
            for job in 0..2 {
                let lost = plan.iter().filter(|at| at.job == job && at.fault.loses_worker());
                assert!(lost.count() <= LOSSES_MAX, "{plan:?}");
            }
        }
    }

    #[test]
    fn places_are_named_in_words() {
        let of = |fault, run, awaits| Injection { fault, job: 0, run, awaits }.to_string();
        assert_eq!(of(Fault::Crash, 1, 2), "crash at the second await");
        assert_eq!(of(Fault::Crash, 2, 0), "crash before the first await of run 2");
        assert_eq!(of(Fault::LoseSettle, 1, 5), "crash after the handler's return");
        assert_eq!(of(Fault::Stop, 1, 22), "worker stopped at the 22nd await");
        assert_eq!([11, 21, 112].map(ordinal), ["11th", "21st", "112th"]);
    }
}
