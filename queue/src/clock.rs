//! The clocks behind the two times of a command.
//!
//! `mono_ms` follows CLOCK_BOOTTIME within one boot of the machine; over a reboot it advances by
//! the elapsed wall time. `wall_ms` is the wall clock's time, unless that jumped: then `wall_ms` is
//! frozen, so that nothing that waits for the wall clock comes due, until the jump reverts or an
//! operator confirms it; after a restart while it is frozen, only once it is confirmed.

mod manual;

use std::io;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::Now;

pub use manual::{ManualClock, next_stop};

/// Default limit of accepted jumps between the wall clock and the monotonic clock within one boot
/// of the machine, in milliseconds. Also how far behind the last logged time the wall clock may be
/// after a reboot.
pub const JUMP_MS_MAX: u64 = 30_000;
/// How far ahead of the last logged time the wall clock may be after a reboot, in milliseconds: 30
/// days.
pub const AHEAD_MS_MAX: u64 = 30 * 24 * 60 * 60 * 1_000;

/// A reading of the system's clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    /// Milliseconds since the machine booted, its sleep included.
    pub boot_ms: u64,
    /// Milliseconds since 1970.
    pub wall_ms: u64,
}

/// A jump of the wall clock that is not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the wall clock is at {wall_ms} ms since 1970 where {expected_ms} was expected: jobs that \
     wait for the wall clock are held back"
)]
pub struct ClockAlarm {
    /// Its time, in milliseconds since 1970.
    pub wall_ms: u64,
    /// The expected time, in milliseconds since 1970.
    pub expected_ms: u64,
}

/// Identifies a boot, and relates the publisher's monotonic time to it. `Start` records it, so that
/// a restart within the boot continues by the clock, and does not accept a jump.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BootStamp {
    /// The beginning of the boot's id.
    boot: [u8; 8],
    /// The publisher's monotonic time at the boot, in milliseconds; negative if the machine booted
    /// before the publisher's time began.
    origin_ms: i64,
}

impl BootStamp {
    /// The 16 bytes in `Start`: the boot's id, then the origin, little-endian.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.boot);
        bytes[8..].copy_from_slice(&self.origin_ms.to_le_bytes());
        bytes
    }

    /// Reads those bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> BootStamp {
        let [b0, b1, b2, b3, b4, b5, b6, b7, o0, o1, o2, o3, o4, o5, o6, o7] = bytes;
        let origin_ms = i64::from_le_bytes([o0, o1, o2, o3, o4, o5, o6, o7]);
        BootStamp { boot: [b0, b1, b2, b3, b4, b5, b6, b7], origin_ms }
    }
}

/// The last start of a log, to continue its clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LastRun {
    /// The stamp in its `Start`.
    pub stamp: BootStamp,
    /// The time of the last command.
    pub last: Now,
}

/// Converts readings into the times of commands. Pure.
#[derive(Clone, Debug)]
pub struct ClockCore {
    stamp: BootStamp,
    /// The largest accepted jump.
    jump_ms_max: u64,
    /// The latest returned time.
    last: Now,
    /// The last accepted pair of times: later wall times are compared with it.
    anchor: Now,
    alarm: Option<ClockAlarm>,
}

impl ClockCore {
    /// The clock of a run that begins now; `before` is the previous run, if any.
    pub fn start(boot: [u8; 8], reading: Reading, before: Option<LastRun>) -> ClockCore {
        ClockCore::start_with_tolerance(JUMP_MS_MAX, boot, reading, before)
    }

    /// The same, with `jump_ms_max` as the largest accepted jump.
    pub fn start_with_tolerance(
        jump_ms_max: u64,
        boot: [u8; 8],
        reading: Reading,
        before: Option<LastRun>,
    ) -> ClockCore {
        let Some(LastRun { stamp, last }) = before else {
            let stamp = BootStamp { boot, origin_ms: 0 };
            let now = Now { mono_ms: reading.boot_ms, wall_ms: reading.wall_ms };
            return ClockCore { stamp, jump_ms_max, last: now, anchor: now, alarm: None };
        };
        // Over a reboot only the wall clock measures the time that has passed.
        let is_same_boot = stamp.boot == boot;
        let (passed_ms, ahead_ms_max) = match is_same_boot {
            true => (on_boot(stamp, reading).saturating_sub(last.mono_ms), jump_ms_max),
            false => (0, AHEAD_MS_MAX),
        };
        let expected_ms = last.wall_ms.saturating_add(passed_ms);
        let behind = expected_ms.saturating_sub(reading.wall_ms) > jump_ms_max;
        let ahead = reading.wall_ms.saturating_sub(expected_ms) > ahead_ms_max;
        let accepted = !behind && !ahead;
        let passed_ms = match accepted && !is_same_boot {
            true => reading.wall_ms.saturating_sub(last.wall_ms),
            false => passed_ms,
        };
        let mono_ms = last.mono_ms.saturating_add(passed_ms);
        let origin_ms = signed(mono_ms) - signed(reading.boot_ms);
        let stamp = BootStamp { boot, origin_ms };
        let wall_ms = |held_ms| if accepted { reading.wall_ms } else { held_ms };
        let anchor = Now { mono_ms, wall_ms: wall_ms(expected_ms) };
        let last = Now { mono_ms, wall_ms: wall_ms(last.wall_ms) };
        let alarm = (!accepted).then_some(ClockAlarm { wall_ms: reading.wall_ms, expected_ms });
        ClockCore { stamp, jump_ms_max, last, anchor, alarm }
    }

    /// The stamp for `Start`.
    pub fn stamp(&self) -> BootStamp {
        self.stamp
    }

    /// The time of a command.
    pub fn now(&mut self, reading: Reading) -> Now {
        let mono_ms = on_boot(self.stamp, reading).max(self.last.mono_ms);
        let expected_ms =
            self.anchor.wall_ms.saturating_add(mono_ms.saturating_sub(self.anchor.mono_ms));
        let accepted = reading.wall_ms.abs_diff(expected_ms) <= self.jump_ms_max;
        let wall_ms = if accepted {
            // Small corrections accumulate: each is compared with the last accepted time.
            self.anchor = Now { mono_ms, wall_ms: reading.wall_ms };
            self.alarm = None;
            reading.wall_ms
        } else {
            self.alarm = Some(ClockAlarm { wall_ms: reading.wall_ms, expected_ms });
            self.last.wall_ms
        };
        self.last = Now { mono_ms, wall_ms };
        self.last
    }

    /// The clock's jump, while it is not accepted.
    pub fn alarm(&self) -> Option<ClockAlarm> {
        self.alarm
    }

    /// Accepts the wall clock's present time.
    pub fn confirm(&mut self, reading: Reading) {
        let mono_ms = on_boot(self.stamp, reading).max(self.last.mono_ms);
        self.anchor = Now { mono_ms, wall_ms: reading.wall_ms };
        self.alarm = None;
    }
}

fn on_boot(stamp: BootStamp, reading: Reading) -> u64 {
    u64::try_from(signed(reading.boot_ms) + stamp.origin_ms).unwrap_or(0)
}

fn signed(ms: u64) -> i64 {
    // 292 million years.
    i64::try_from(ms).unwrap_or(i64::MAX / 4)
}

/// The source of a clock's readings.
#[derive(Clone, Debug, Default)]
pub enum ClockSource {
    /// The system's clocks.
    #[default]
    Machine,
    /// A clock that changes only when it is moved.
    Manual(ManualClock),
}

impl ClockSource {
    fn reading(&self) -> Reading {
        match self {
            ClockSource::Machine => reading(),
            ClockSource::Manual(clock) => clock.reading(),
        }
    }
}

/// The clock of a run, which times its commands.
#[derive(Clone, Debug)]
pub struct Clock {
    core: ClockCore,
    source: ClockSource,
}

impl Clock {
    /// The clock of a run that begins now, with `jump_max` as the largest accepted jump; `before`
    /// is the previous run, if any.
    pub fn start(
        source: ClockSource,
        jump_max: Duration,
        before: Option<LastRun>,
    ) -> io::Result<Clock> {
        let jump_ms_max = u64::try_from(jump_max.as_millis()).unwrap_or(u64::MAX);
        let core = ClockCore::start_with_tolerance(jump_ms_max, boot()?, source.reading(), before);
        Ok(Clock { core, source })
    }

    /// The time of a command that arrives now.
    pub fn now(&mut self) -> Now {
        self.core.now(self.source.reading())
    }

    /// Advances a manual clock; the system's clocks advance by themselves.
    pub fn move_by(&self, ms: u64) {
        if let ClockSource::Manual(clock) = &self.source {
            clock.move_by(ms);
        }
    }

    /// The stamp for `Start`.
    pub fn stamp(&self) -> BootStamp {
        self.core.stamp()
    }

    /// The wall clock's jump, while it is not accepted.
    pub fn alarm(&self) -> Option<ClockAlarm> {
        self.core.alarm()
    }

    /// Accepts the wall clock's present time.
    pub fn confirm(&mut self) {
        self.core.confirm(self.source.reading());
    }
}

/// The beginning of the boot's id.
fn boot() -> io::Result<[u8; 8]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let mut boot = [0; 8];
    let digits = text.bytes().filter(u8::is_ascii_hexdigit);
    let nibbles = digits.filter_map(|digit| char::from(digit).to_digit(16));
    for (position, nibble) in nibbles.take(16).enumerate() {
        boot[position / 2] = boot[position / 2] << 4 | nibble as u8;
    }
    Ok(boot)
}

fn reading() -> Reading {
    Reading { boot_ms: milliseconds(ClockId::Boottime), wall_ms: milliseconds(ClockId::Realtime) }
}

fn milliseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let ms = time.tv_sec.saturating_mul(1_000).saturating_add(time.tv_nsec / 1_000_000);
    u64::try_from(ms).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: [u8; 8] = [1; 8];
    const OTHER_BOOT: [u8; 8] = [2; 8];
    const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
    /// Some morning.
    const WALL_MS: u64 = 1_700_000_000_000;

    fn at(boot_ms: u64, wall_ms: u64) -> Reading {
        Reading { boot_ms, wall_ms }
    }

    fn ran(clock: &ClockCore, last: Now) -> Option<LastRun> {
        let stamp = BootStamp::from_bytes(clock.stamp().to_bytes());
        Some(LastRun { stamp, last })
    }

    #[test]
    fn monotonic_time_follows_boot_clock_within_one_boot() {
        let mut clock = ClockCore::start(BOOT, at(5_000, WALL_MS), None);
        let last = clock.now(at(6_000, WALL_MS + 1_000));
        assert_eq!(last, Now { mono_ms: 6_000, wall_ms: WALL_MS + 1_000 });
        let mut again = ClockCore::start(BOOT, at(9_000, WALL_MS + 20_000), ran(&clock, last));
        assert_eq!(again.now(at(9_500, WALL_MS + 20_500)).mono_ms, 9_500);
    }

    #[test]
    fn reboot_advances_monotonic_time_by_the_elapsed_wall_time() {
        let mut clock = ClockCore::start(BOOT, at(5_000, WALL_MS), None);
        let last = clock.now(at(6_000, WALL_MS + 1_000));
        let mut second = ClockCore::start(OTHER_BOOT, at(100, WALL_MS + 61_000), ran(&clock, last));
        let last = second.now(at(200, WALL_MS + 61_100));
        assert_eq!(last.mono_ms, 6_000 + 60_000 + 100);
        let mut third =
            ClockCore::start(OTHER_BOOT, at(1_200, WALL_MS + 70_000), ran(&second, last));
        assert_eq!(third.now(at(1_200, WALL_MS + 70_000)).mono_ms, 67_100);
    }

    #[test]
    fn monotonic_time_never_falls_when_wall_clock_is_behind_after_reboot() {
        let mut clock = ClockCore::start(BOOT, at(5_000, WALL_MS), None);
        let last = clock.now(at(6_000, WALL_MS + 1_000));
        for behind in [1, JUMP_MS_MAX, JUMP_MS_MAX + 1, DAY_MS] {
            let wall_ms = last.wall_ms - behind;
            let mut second = ClockCore::start(OTHER_BOOT, at(100, wall_ms), ran(&clock, last));
            let now = second.now(at(100, wall_ms));
            assert_eq!(now.mono_ms, last.mono_ms, "{behind}");
            assert_eq!(second.alarm().is_some(), behind > JUMP_MS_MAX, "{behind}");
            assert_eq!(now.wall_ms < last.wall_ms, behind <= JUMP_MS_MAX, "{behind}");
        }
    }

    #[test]
    fn start_over_30_days_ahead_freezes_wall_time_until_confirmed() {
        let mut clock = ClockCore::start(BOOT, at(5_000, WALL_MS), None);
        let last = clock.now(at(6_000, WALL_MS + 1_000));
        let wall_ms = last.wall_ms + AHEAD_MS_MAX + 1;
        let mut second = ClockCore::start(OTHER_BOOT, at(0, wall_ms), ran(&clock, last));
        assert_eq!(second.now(at(50, wall_ms + 50)), Now { mono_ms: 6_050, wall_ms: last.wall_ms });
        assert!(second.alarm().is_some());
        second.confirm(at(50, wall_ms + 50));
        assert_eq!(second.alarm(), None);
        assert_eq!(second.now(at(60, wall_ms + 60)).wall_ms, wall_ms + 60);
    }

    #[test]
    fn jump_within_a_run_freezes_wall_time_until_it_reverts() {
        for jump in [-(DAY_MS as i64), -30_001, 30_001, DAY_MS as i64] {
            let mut clock = ClockCore::start(BOOT, at(0, WALL_MS), None);
            let before = clock.now(at(1_000, WALL_MS + 1_000));
            let jumped = (WALL_MS + 2_000).saturating_add_signed(jump);
            let frozen = clock.now(at(2_000, jumped));
            assert_eq!(frozen, Now { mono_ms: 2_000, wall_ms: before.wall_ms }, "{jump}");
            assert!(clock.alarm().is_some());
            assert_eq!(clock.now(at(3_000, WALL_MS + 3_000)).wall_ms, WALL_MS + 3_000);
            assert_eq!(clock.alarm(), None);
        }
    }

    #[test]
    fn restart_within_a_boot_accepts_no_jump() {
        let mut clock = ClockCore::start(BOOT, at(0, WALL_MS), None);
        clock.now(at(1_000, WALL_MS + 1_000));
        let last = clock.now(at(2_000, WALL_MS + DAY_MS));
        assert_eq!(last, Now { mono_ms: 2_000, wall_ms: WALL_MS + 1_000 });
        let later = 10 * 60_000;
        let jumped = at(later, WALL_MS + DAY_MS + later);
        let mut again = ClockCore::start(BOOT, jumped, ran(&clock, last));
        assert!(again.alarm().is_some());
        assert_eq!(again.now(jumped), Now { mono_ms: later, wall_ms: last.wall_ms });
        // It was held for a second before the restart: the right time is a second off.
        let right = at(later + 1_000, WALL_MS + later + 1_000);
        assert_eq!(again.now(right).wall_ms, right.wall_ms);
        assert_eq!(again.alarm(), None);
    }

    #[test]
    fn restart_within_a_boot_accepts_any_time_that_both_clocks_measure() {
        let mut clock = ClockCore::start(BOOT, at(0, WALL_MS), None);
        let last = clock.now(at(1_000, WALL_MS + 1_000));
        let idle = AHEAD_MS_MAX + DAY_MS;
        let reading = at(idle, WALL_MS + idle);
        let mut again = ClockCore::start(BOOT, reading, ran(&clock, last));
        assert_eq!(again.alarm(), None);
        assert_eq!(again.now(reading), Now { mono_ms: idle, wall_ms: WALL_MS + idle });
    }

    #[test]
    fn small_wall_clock_correction_is_accepted() {
        for jump in [-30_000, -1, 1, 30_000] {
            let mut clock = ClockCore::start(BOOT, at(0, WALL_MS), None);
            let wall_ms = (WALL_MS + 1_000).saturating_add_signed(jump);
            assert_eq!(clock.now(at(1_000, wall_ms)), Now { mono_ms: 1_000, wall_ms });
            assert_eq!(clock.alarm(), None);
        }
    }

    #[test]
    fn configured_maximum_jump_is_the_acceptance_limit() {
        for (most, jump, accepted) in
            [(2_000, 2_000, true), (2_000, 2_001, false), (60_000, 60_000, true)]
        {
            let mut clock = ClockCore::start_with_tolerance(most, BOOT, at(0, WALL_MS), None);
            let last = clock.now(at(1_000, WALL_MS + 1_000));
            clock.now(at(2_000, WALL_MS + 2_000 + jump));
            assert_eq!(clock.alarm().is_none(), accepted, "{jump} within a run");

            let behind = at(1_000, last.wall_ms - jump);
            let again = ClockCore::start_with_tolerance(most, BOOT, behind, ran(&clock, last));
            assert_eq!(again.alarm().is_none(), accepted, "{jump} behind at a start");
        }
    }

    #[test]
    fn system_clocks_are_readable() {
        let jump_max = Duration::from_secs(30);
        let mut clock = Clock::start(ClockSource::Machine, jump_max, None).unwrap();
        let (a, b) = (clock.now(), clock.now());
        assert!(a.mono_ms > 0 && b.mono_ms >= a.mono_ms && a.wall_ms > WALL_MS);
    }

    #[test]
    fn manual_clock_is_accepted_however_far_it_moves() {
        let manual = ManualClock::at(at(5_000, WALL_MS));
        let source = ClockSource::Manual(manual.clone());
        let mut clock = Clock::start(source, Duration::from_secs(1), None).unwrap();
        assert_eq!(clock.now(), Now { mono_ms: 5_000, wall_ms: WALL_MS });
        assert_eq!(clock.now(), Now { mono_ms: 5_000, wall_ms: WALL_MS });
        clock.move_by(400 * DAY_MS);
        manual.move_by(1);
        let later = 400 * DAY_MS + 1;
        assert_eq!(clock.now(), Now { mono_ms: 5_000 + later, wall_ms: WALL_MS + later });
        assert_eq!(clock.alarm(), None);
    }
}
