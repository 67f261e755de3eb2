//! Detects that the machine slept. CLOCK_MONOTONIC, which the cores use, stops during sleep, while
//! time goes on elsewhere: a process that slept for long receives no event and would treat its old
//! state as current.
//!
//! Pure except for [`ClockReading::take`]: it works on readings. On Linux CLOCK_BOOTTIME continues
//! during sleep, and otherwise equals CLOCK_MONOTONIC.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A reading of both clocks: CLOCK_MONOTONIC is read before and after CLOCK_BOOTTIME.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockReading {
    /// CLOCK_MONOTONIC.
    pub(crate) before: Duration,
    /// CLOCK_BOOTTIME.
    pub(crate) boot: Duration,
    /// CLOCK_MONOTONIC again.
    pub(crate) after: Duration,
}

impl ClockReading {
    /// Reads the clocks, in some 100 ns.
    pub(crate) fn take() -> ClockReading {
        let at = |clock| {
            let time = clock_gettime(clock);
            let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
            Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), nanos)
        };
        let [before, boot, after] =
            [ClockId::Monotonic, ClockId::Boottime, ClockId::Monotonic].map(at);
        #[cfg(test)]
        let boot = boot + fake_sleep::SLEPT.get();
        ClockReading { before, boot, after }
    }
}

/// Simulated sleep in this thread's readings: no test can send its machine to sleep.
#[cfg(test)]
pub(crate) mod fake_sleep {
    use std::cell::Cell;
    use std::time::Duration;

    thread_local! {
        pub(super) static SLEPT: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    /// From the next reading on the machine has slept for `more` longer.
    pub(crate) fn sleep(more: Duration) {
        SLEPT.set(SLEPT.get() + more);
    }
}

/// The longest time between the first and the last clock of a reading. A reading that took longer,
/// because the process was descheduled, is ignored; the next one is used.
const READING_MAX: Duration = Duration::from_millis(10);

/// Detects sleep of the machine.
#[derive(Debug)]
pub(crate) struct SleepDetector {
    /// Total sleep since boot: how far CLOCK_BOOTTIME was ahead of CLOCK_MONOTONIC at the last
    /// reading.
    in_all: Duration,
}

impl SleepDetector {
    /// Sleep before `first` does not count.
    pub(crate) fn new(first: ClockReading) -> SleepDetector {
        SleepDetector { in_all: first.boot.saturating_sub(first.before) }
    }

    /// How long the machine slept since the last call, to within [`READING_MAX`], below which it is
    /// 0.
    ///
    /// Deadlines are not extended by it: they use the clock that stopped, so none came nearer. But
    /// publishers went on meanwhile: after a long sleep the replica warms again.
    pub(crate) fn since_last(&mut self, now: ClockReading) -> Duration {
        if now.after.saturating_sub(now.before) > READING_MAX {
            return Duration::ZERO;
        }
        let in_all = now.boot.saturating_sub(now.before);
        let slept = in_all.saturating_sub(self.in_all);
        if slept <= READING_MAX {
            // `in_all` stays: many such differences add up to no sleep.
            return Duration::ZERO;
        }
        self.in_all = in_all;
        slept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// A reading at `mono`, with `slept` of sleep before it, and `pause` between two clocks.
    fn read(mono: u64, slept: u64, pause: u64) -> ClockReading {
        let (mono, slept, pause) = (ms(mono), ms(slept), ms(pause));
        ClockReading { before: mono, boot: mono + slept + pause, after: mono + 2 * pause }
    }

    #[test]
    fn sleep_is_noticed_once() {
        let mut slept = SleepDetector::new(read(1_000, 60_000, 0));
        assert_eq!(slept.since_last(read(2_000, 60_000, 0)), ms(0));
        assert_eq!(slept.since_last(read(2_250, 3_660_000, 0)), ms(3_600_000));
        assert_eq!(slept.since_last(read(2_500, 3_660_000, 0)), ms(0));
        assert_eq!(slept.since_last(read(9_000, 3_660_500, 0)), ms(500));
    }

    #[test]
    fn a_process_that_waited_between_two_clocks_did_not_sleep() {
        let mut slept = SleepDetector::new(read(1_000, 0, 0));
        assert_eq!(slept.since_last(read(2_000, 0, 5_000)), ms(0));
        // Sleep during such a reading is seen by the next.
        assert_eq!(slept.since_last(read(20_000, 30_000, 5_000)), ms(0));
        assert_eq!(slept.since_last(read(40_000, 30_000, 1)), ms(30_001));
    }

    #[test]
    fn the_pauses_of_many_readings_add_up_to_no_sleep() {
        let mut slept = SleepDetector::new(read(0, 0, 0));
        for n in 1..10_000 {
            assert_eq!(slept.since_last(read(n * 250, 0, n % 6)), ms(0), "{n}");
        }
        assert_eq!(slept.since_last(read(3_000_000, 11, 0)), ms(11));
    }

    #[test]
    fn a_clock_that_goes_back_is_no_sleep() {
        let mut slept = SleepDetector::new(read(1_000, 50_000, 0));
        assert_eq!(slept.since_last(read(2_000, 40_000, 0)), ms(0));
        assert_eq!(slept.since_last(read(3_000, 50_000, 0)), ms(0));
    }

    /// No test can check what the machine really slept: this one checks that CLOCK_BOOTTIME is the
    /// clock of Linux's uptime.
    #[test]
    fn the_boot_clock_matches_the_uptime() {
        let uptime = || {
            let text = std::fs::read_to_string("/proc/uptime").unwrap();
            Duration::from_secs_f64(text.split(' ').next().unwrap().parse().unwrap())
        };
        let (earlier, first, later) = (uptime(), ClockReading::take(), uptime());
        let second = Duration::from_secs(1);
        let within = earlier.saturating_sub(second)..=later + second;
        assert!(within.contains(&first.boot), "{first:?} {within:?}");
        assert!(first.before <= first.after && first.before <= first.boot, "{first:?}");
    }
}
