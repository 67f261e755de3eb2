//! What the machine does beside the measurement. A speed says little where others want the
//! processors, too.

use std::fs;

use anyhow::Context as _;

/// Ticks of `/proc/stat` in a second: what Linux tells programs, whatever its own clock does.
const TICKS_PER_S: f64 = 100.0;
/// Others that have more of the processors than this disturb.
pub(crate) const QUIET_PERCENT: f64 = 10.0;

/// Processors that can work at a time.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Processor time that was used since the machine's start, by whomever, in seconds. What a host has
/// taken away counts as used.
pub(crate) fn busy_s() -> anyhow::Result<f64> {
    let text = fs::read_to_string("/proc/stat").context("/proc/stat")?;
    let ticks = busy_ticks(&text).context("/proc/stat does not begin with cpu")?;
    Ok(ticks as f64 / TICKS_PER_S)
}

/// All of the first line but the idle time, the time spent waiting for disks, and what guests have,
/// which users have already.
fn busy_ticks(text: &str) -> Option<u64> {
    const IDLE: [usize; 2] = [3, 4];
    const GUESTS_FROM: usize = 8;
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks = line.split_whitespace().take(GUESTS_FROM).enumerate();
    ticks
        .filter(|(place, _)| !IDLE.contains(place))
        .map(|(_, ticks)| ticks.parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_is_what_is_neither_idle_nor_counted_twice() {
        let text = "cpu  1 20 300 4000 50000 600000 7000000 80000000 900000000 9\ncpu0 1 1 1 1\n";
        assert_eq!(busy_ticks(text), Some(87_600_321));
        assert_eq!(busy_ticks("intr 1 2 3\n"), None);
        assert!(busy_s().unwrap() > 0.0);
    }
}
