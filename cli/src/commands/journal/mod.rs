//! `longshore journal`: inspects a publisher's data directory from outside.

mod command;
mod copy;
mod dump;
mod stat;
mod verify;

use std::io::{IsTerminal, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;

use super::Context;
use crate::arguments::{Journal, JournalAction};
use crate::output::{Output, Progress, grouped};

/// How often progress is shown.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) async fn run(arguments: Journal, context: Context) -> anyhow::Result<()> {
    match arguments.action {
        JournalAction::Stat { dir } => stat::run(dir, context).await,
        JournalAction::Verify { dir } => verify::run(dir, context).await,
        JournalAction::Dump { dir, from, to, payloads } => {
            // It blocks on reads and writes, and holds one record at a time.
            tokio::task::spawn_blocking(move || dump::run(&dir, from, to, payloads, context))
                .await
                .context("the dump was aborted")?
        }
        JournalAction::Copy { dir, dest } => copy::run(dir, dest, context).await,
    }
}

/// Runs a long blocking read on its own thread, and shows its progress.
async fn with_progress<T: Send + 'static>(
    label: &str,
    output: &Output,
    work: impl FnOnce(&mut dyn FnMut(u64, u64)) -> T + Send + 'static,
) -> anyhow::Result<T> {
    let position = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
    let shared = Arc::clone(&position);
    let mut working = tokio::task::spawn_blocking(move || {
        work(&mut |done, total| {
            shared.0.store(done, Ordering::Relaxed);
            shared.1.store(total, Ordering::Relaxed);
        })
    });
    let mut progress: Option<Progress> = None;
    loop {
        tokio::select! {
            done = &mut working => {
                if let Some(progress) = progress {
                    progress.finish();
                }
                return done.context("the read was aborted");
            }
            () = tokio::time::sleep(POLL_INTERVAL) => {
                let done = position.0.load(Ordering::Relaxed);
                let total = position.1.load(Ordering::Relaxed);
                if total > 0 {
                    let new = || Progress::new(label, "bytes", Some(total), output);
                    progress.get_or_insert_with(new).at(done.min(total));
                }
            }
        }
    }
}

/// Bytes in a suitable unit: `12.3 MiB`.
fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if count < 1024 {
        return format!("{} bytes", grouped(count));
    }
    let (mut amount, mut unit) = (count as f64 / 1024.0, 0);
    while amount >= 1024.0 && unit + 1 < UNITS.len() {
        (amount, unit) = (amount / 1024.0, unit + 1);
    }
    format!("{amount:.1} {}", UNITS[unit])
}

/// Prints a warning, unless output is JSON and standard error is not a terminal.
fn warn(output: &Output, text: &str) {
    if !output.is_json() || stderr().is_terminal() {
        report!("{text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_in_the_largest_unit_that_they_fill() {
        for (count, text) in [
            (0, "0 bytes"),
            (1_023, "1,023 bytes"),
            (1_024, "1.0 KiB"),
            (67_108_864, "64.0 MiB"),
            (10_737_418_240, "10.0 GiB"),
            (u64::MAX, "16777216.0 TiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }
}
