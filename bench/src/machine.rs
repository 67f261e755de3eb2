//! What else the machine does during a measurement. Speeds are unreliable when other processes
//! compete for the processors.

use std::fs;

use anyhow::Context as _;

/// Ticks of `/proc/stat` per second. Linux reports them to programs at this fixed rate.
const TICKS_PER_S: f64 = 100.0;
/// The percentage of processor time up to which other processes do not disturb a measurement.
pub(crate) const QUIET_PERCENT: f64 = 10.0;

/// The number of processors available to this process.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Processor time used by all processes since the machine started, in seconds. Includes time that
/// the host withheld from a virtual machine.
pub(crate) fn busy_s() -> anyhow::Result<f64> {
    let text = fs::read_to_string("/proc/stat").context("/proc/stat")?;
    let ticks = busy_ticks(&text).context("/proc/stat does not start with cpu")?;
    Ok(ticks as f64 / TICKS_PER_S)
}

/// The sum of the first line without idle time, time spent waiting for disks, and guest time, which
/// user time already includes.
fn busy_ticks(text: &str) -> Option<u64> {
    const IDLE: [usize; 2] = [3, 4];
    const GUESTS_FROM: usize = 8;
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks = line.split_whitespace().take(GUESTS_FROM).enumerate();
    ticks
        .filter(|(index, _)| !IDLE.contains(index))
        .map(|(_, ticks)| ticks.parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_excludes_idle_and_guest_time() {
        let text = "cpu  1 20 300 4000 50000 600000 7000000 80000000 900000000 9\ncpu0 1 1 1 1\n";
        assert_eq!(busy_ticks(text), Some(87_600_321));
        assert_eq!(busy_ticks("intr 1 2 3\n"), None);
        assert!(busy_s().unwrap() > 0.0);
    }
}
