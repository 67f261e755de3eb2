//! Another process's CPU time, memory and disk writes, from `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;

/// A process's directory in `/proc`.
fn proc_folder(process: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{process}"))
}

/// The CPU time of a process, in nanoseconds.
///
/// It is the sum of the threads' `schedstat`, because `stat` counts in ticks of 10 ms, as long as a
/// whole burst of jobs. An ended thread counts with its last value.
#[derive(Debug)]
pub(crate) struct CpuClock {
    process: u32,
    threads: Threads,
}

impl CpuClock {
    pub(crate) fn of(process: u32) -> CpuClock {
        CpuClock { process, threads: Threads::default() }
    }

    /// CPU time used so far.
    pub(crate) fn now_ns(&mut self) -> anyhow::Result<u64> {
        let tasks = proc_folder(self.process).join("task");
        let listed = fs::read_dir(&tasks).with_context(|| format!("{}", tasks.display()))?;
        for task in listed {
            let task = task?;
            // The thread may have ended since it was listed.
            let Ok(text) = fs::read_to_string(task.path().join("schedstat")) else { continue };
            let thread = task.file_name().to_str().and_then(|name| name.parse().ok());
            let ns = text.split_whitespace().next().and_then(|ns| ns.parse().ok());
            let (Some(thread), Some(ns)) = (thread, ns) else { continue };
            self.threads.record(thread, ns);
        }
        Ok(self.threads.sum())
    }
}

/// The CPU time of a process's threads with this name, in nanoseconds.
pub(crate) fn thread_cpu_ns(process: u32, name: &str) -> anyhow::Result<u64> {
    let tasks = proc_folder(process).join("task");
    let listed = fs::read_dir(&tasks).with_context(|| format!("{}", tasks.display()))?;
    let mut sum = 0;
    for task in listed {
        let task = task?.path();
        if fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim_end() == name) {
            let text = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
            let ns = text.split_whitespace().next().and_then(|ns| ns.parse::<u64>().ok());
            sum += ns.unwrap_or(0);
        }
    }
    Ok(sum)
}

#[derive(Debug, Default)]
struct Threads {
    /// The last value of each thread.
    last: BTreeMap<u32, u64>,
    /// The sum of threads whose id was reused.
    ended: u64,
}

impl Threads {
    fn record(&mut self, thread: u32, ns: u64) {
        let before = self.last.insert(thread, ns).unwrap_or(0);
        if ns < before {
            self.ended += before;
        }
    }

    fn sum(&self) -> u64 {
        self.ended + self.last.values().sum::<u64>()
    }
}

/// Resident memory in bytes: `Rss` of `smaps_rollup`, which counts every page, unlike `status`.
pub(crate) fn resident_bytes(process: u32) -> anyhow::Result<u64> {
    let file = proc_folder(process).join("smaps_rollup");
    let text = fs::read_to_string(&file).with_context(|| format!("{}", file.display()))?;
    Ok(field(&text, "Rss:").context("smaps_rollup without Rss")? * 1024)
}

/// Bytes that the process has caused to be written to disks; 0 on a file system in memory.
pub(crate) fn disk_write_bytes(process: u32) -> anyhow::Result<u64> {
    let file = proc_folder(process).join("io");
    let text = fs::read_to_string(&file).with_context(|| format!("{}", file.display()))?;
    field(&text, "write_bytes:").context("io without write_bytes")
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_survives_ended_threads_and_reused_ids() {
        let mut threads = Threads::default();
        threads.record(1, 100);
        threads.record(2, 50);
        assert_eq!(threads.sum(), 150);
        threads.record(1, 120);
        assert_eq!(threads.sum(), 170);
        threads.record(2, 7);
        assert_eq!(threads.sum(), 177);
    }

    #[test]
    fn this_process_has_used_time_and_memory() {
        let mut clock = CpuClock::of(std::process::id());
        let first = clock.now_ns().unwrap();
        assert!(clock.now_ns().unwrap() >= first);
        assert!(resident_bytes(std::process::id()).unwrap() > 100_000);
        disk_write_bytes(std::process::id()).unwrap();
        assert_eq!(thread_cpu_ns(std::process::id(), "no such thread").unwrap(), 0);
        let name = fs::read_to_string("/proc/thread-self/comm").unwrap();
        // The kernel updates a thread's time at a clock tick or when the thread waits, so a new
        // thread may show none yet.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while thread_cpu_ns(std::process::id(), name.trim_end()).unwrap() == 0 {
            assert!(std::time::Instant::now() < deadline, "the thread's CPU time stays 0");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text = "cancelled_write_bytes: 5\nwrite_bytes: 4096\nRss:   17 kB\n";
        assert_eq!(field(text, "write_bytes:"), Some(4096));
        assert_eq!(field(text, "Rss:"), Some(17));
        assert_eq!(field(text, "Pss:"), None);
    }
}
