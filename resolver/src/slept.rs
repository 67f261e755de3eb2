//! How long the machine slept. The time that cores are told stands still meanwhile
//! (CLOCK_MONOTONIC), while that of all others goes on: who was asleep for long is told nothing,
//! and would believe what it knew before.
//!
//! Pure but for [`Reading::take`]: it is given readings. On Linux CLOCK_BOOTTIME goes on through
//! sleep, and nothing else tells it from CLOCK_MONOTONIC.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The two clocks, of which the one that stands still in sleep is read before and after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// CLOCK_MONOTONIC.
    pub(crate) before: Duration,
    /// CLOCK_BOOTTIME.
    pub(crate) boot: Duration,
    /// CLOCK_MONOTONIC again.
    pub(crate) after: Duration,
}

impl Reading {
    /// What the clocks say now: some 100 ns.
    pub(crate) fn take() -> Reading {
        let at = |clock| {
            let time = clock_gettime(clock);
            let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
            Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), nanos)
        };
        let [before, boot, after] =
            [ClockId::Monotonic, ClockId::Boottime, ClockId::Monotonic].map(at);
        #[cfg(test)]
        let boot = boot + pretended::SLEPT.get();
        Reading { before, boot, after }
    }
}

/// Sleep that a test has this thread's readings tell of: no test can send its machine to sleep.
#[cfg(test)]
pub(crate) mod pretended {
    use std::cell::Cell;
    use std::time::Duration;

    thread_local! {
        pub(super) static SLEPT: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    /// From the next reading on the machine has slept for so long more.
    pub(crate) fn sleep(more: Duration) {
        SLEPT.set(SLEPT.get() + more);
    }
}

/// The longest between the first clock of a reading and its last. One that took longer, because the
/// process had to wait in the middle, says nothing; the next one does.
const READING_MAX: Duration = Duration::from_millis(10);

/// Notices that the machine slept.
#[derive(Debug)]
pub(crate) struct Slept {
    /// In all, since it booted: how far the one clock was ahead of the other when last read.
    in_all: Duration,
}

impl Slept {
    /// What was slept before does not count.
    pub(crate) fn new(first: Reading) -> Slept {
        Slept { in_all: first.boot.saturating_sub(first.before) }
    }

    /// How long the machine slept since the last time, give or take [`READING_MAX`], below which it
    /// is 0.
    ///
    /// It is no time to give back to anybody: no deadline on the clock that stood still came
    /// nearer. But whoever was to be heard of has gone on without being heard.
    pub(crate) fn since_last(&mut self, now: Reading) -> Duration {
        if now.after.saturating_sub(now.before) > READING_MAX {
            return Duration::ZERO;
        }
        let in_all = now.boot.saturating_sub(now.before);
        let slept = in_all.saturating_sub(self.in_all);
        if slept <= READING_MAX {
            // Not kept: many such add up to no sleep.
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

    /// Read at that time, with that much sleep behind it, and so long between two clocks.
    fn read(mono: u64, slept: u64, pause: u64) -> Reading {
        let (mono, slept, pause) = (ms(mono), ms(slept), ms(pause));
        Reading { before: mono, boot: mono + slept + pause, after: mono + 2 * pause }
    }

    #[test]
    fn sleep_is_noticed_once() {
        let mut slept = Slept::new(read(1_000, 60_000, 0));
        assert_eq!(slept.since_last(read(2_000, 60_000, 0)), ms(0));
        assert_eq!(slept.since_last(read(2_250, 3_660_000, 0)), ms(3_600_000));
        assert_eq!(slept.since_last(read(2_500, 3_660_000, 0)), ms(0));
        assert_eq!(slept.since_last(read(9_000, 3_660_500, 0)), ms(500));
    }

    #[test]
    fn a_process_that_waited_between_two_clocks_did_not_sleep() {
        let mut slept = Slept::new(read(1_000, 0, 0));
        assert_eq!(slept.since_last(read(2_000, 0, 5_000)), ms(0));
        // Sleep in the middle of such a reading is seen by the next.
        assert_eq!(slept.since_last(read(20_000, 30_000, 5_000)), ms(0));
        assert_eq!(slept.since_last(read(40_000, 30_000, 1)), ms(30_001));
    }

    #[test]
    fn the_pauses_of_many_readings_add_up_to_no_sleep() {
        let mut slept = Slept::new(read(0, 0, 0));
        for n in 1..10_000 {
            assert_eq!(slept.since_last(read(n * 250, 0, n % 6)), ms(0), "{n}");
        }
        assert_eq!(slept.since_last(read(3_000_000, 11, 0)), ms(11));
    }

    #[test]
    fn a_clock_that_goes_back_is_no_sleep() {
        let mut slept = Slept::new(read(1_000, 50_000, 0));
        assert_eq!(slept.since_last(read(2_000, 40_000, 0)), ms(0));
        assert_eq!(slept.since_last(read(3_000, 50_000, 0)), ms(0));
    }

    /// Nothing here tells what the machine really slept: the clock that goes on through it is that
    /// by which Linux says how long it is up.
    #[test]
    fn the_clock_that_is_read_goes_on_through_sleep() {
        let uptime = || {
            let text = std::fs::read_to_string("/proc/uptime").unwrap();
            Duration::from_secs_f64(text.split(' ').next().unwrap().parse().unwrap())
        };
        let (earlier, first, later) = (uptime(), Reading::take(), uptime());
        let second = Duration::from_secs(1);
        let within = earlier.saturating_sub(second)..=later + second;
        assert!(within.contains(&first.boot), "{first:?} {within:?}");
        assert!(first.before <= first.after && first.before <= first.boot, "{first:?}");
    }
}
