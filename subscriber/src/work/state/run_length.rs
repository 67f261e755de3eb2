//! How many jobs are reported as started in one message.

use std::time::Duration;

/// The predicted work of the jobs that are reported before a handler task is free for them. If the
/// worker dies, that many jobs beside the running ones count an attempt.
const AHEAD: Duration = Duration::from_millis(1);
/// Most jobs that one message reports.
pub(crate) const RUN_JOBS_MAX: usize = 1_000;
/// A reported job that has not begun for this long, while every handler is busy, is released: its
/// publisher counts its run time, and another worker may be free.
pub(crate) const BEGIN_WAIT_MAX: Duration = Duration::from_millis(100);
/// One that has not begun for this long is released though a handler is idle: its task may wait on
/// a thread that another handler blocks.
pub(crate) const IDLE_WAIT_MAX: Duration = Duration::from_secs(2);

/// The jobs that have ended since the last report, which predict the length of the next run. Begins
/// would not: a hundred idle handlers begin a hundred jobs at once, however long these take.
#[derive(Debug, Default)]
pub(crate) struct RunLength {
    reported_at: Duration,
    ended: usize,
}

impl RunLength {
    /// How many jobs to report at `now`, once every job of the last run has begun: at least one for
    /// each of the `idle` handler tasks, and at most twice as many as have ended since. An idle
    /// worker begins with short runs.
    pub(crate) fn next(&self, now: Duration, idle: usize) -> usize {
        let elapsed = now.saturating_sub(self.reported_at).as_nanos().max(1);
        let in_time = self.ended as u128 * AHEAD.as_nanos() / elapsed;
        let ahead = usize::try_from(in_time).unwrap_or(usize::MAX).min(2 * self.ended);
        ahead.min(RUN_JOBS_MAX).max(idle)
    }

    pub(crate) fn reported(&mut self, now: Duration) {
        *self = RunLength { reported_at: now, ended: 0 };
    }

    /// A job has ended.
    pub(crate) fn ended(&mut self) {
        self.ended += 1;
    }

    /// When jobs of the last run that have not begun are released, whether or not every handler is
    /// busy.
    pub(crate) fn release_at(&self, all_busy: bool) -> Duration {
        self.reported_at + if all_busy { BEGIN_WAIT_MAX } else { IDLE_WAIT_MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: usize = 8;

    /// Reports runs of jobs that take `each`, and returns their lengths.
    fn lengths(run: &mut RunLength, now: &mut Duration, each: Duration, runs: usize) -> Vec<usize> {
        let mut one = || {
            let jobs = run.next(*now, IDLE);
            run.reported(*now);
            *now += each * jobs as u32;
            (0..jobs).for_each(|_| run.ended());
            jobs
        };
        (0..runs).map(|_| one()).collect()
    }

    #[test]
    fn a_run_has_a_millisecond_of_predicted_work_or_a_job_for_each_idle_task() {
        let (mut run, mut now) = (RunLength::default(), Duration::from_secs(5));
        let us = Duration::from_micros;
        assert_eq!(lengths(&mut run, &mut now, us(10), 6), [8, 16, 32, 64, 100, 100]);
        assert_eq!(lengths(&mut run, &mut now, us(50), 3), [100, 20, 20], "shorter at once");
        assert_eq!(lengths(&mut run, &mut now, us(900), 2), [20, 8], "one for each task");
        assert_eq!(lengths(&mut run, &mut now, Duration::ZERO, 9).last(), Some(&RUN_JOBS_MAX));
        now += Duration::from_secs(1);
        assert_eq!(run.next(now, IDLE), IDLE, "after a pause");
        run.reported(now);
        assert_eq!(run.next(now, 1), 1, "none of the many that began has ended");
    }
}
