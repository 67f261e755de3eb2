//! A child process of a measurement. It runs this same binary, with its task as an argument.
//!
//! The child prepares its work and reports that it is ready, waits for the line `go`, and reports
//! what it measured. Each report is a line of JSON. The child exits when its standard input closes,
//! so at the latest when its parent exits.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _, stdin, stdout};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// How long a child process may take to report.
const REPORT_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// The maximum number of unread reports.
const REPORTS_MAX: usize = 4;

/// A child process, as its parent sees it. Dropping it kills the process.
pub(crate) struct ChildProcess {
    name: String,
    process: Child,
    input: ChildStdin,
    reports: Receiver<String>,
}

impl ChildProcess {
    /// Starts a child process of the measurement `measure`.
    pub(crate) fn start(
        name: &str,
        measure: &str,
        task: &impl Serialize,
    ) -> anyhow::Result<ChildProcess> {
        let binary = std::env::current_exe().context("cannot find this program's own file")?;
        let mut process = Command::new(binary)
            .args(["child", measure, &serde_json::to_string(task)?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            bail!("{name} started without its pipes");
        };
        let (sender, reports) = sync_channel(REPORTS_MAX);
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(ChildProcess { name: name.to_owned(), process, input, reports })
    }

    /// Waits for the next report.
    pub(crate) fn wait_for_report<T: DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        let name = &self.name;
        let line = self.reports.recv_timeout(REPORT_TIMEOUT);
        let line = line.with_context(|| format!("{name} exited or hangs"))?;
        serde_json::from_str(&line).with_context(|| format!("{name} reported: {line}"))
    }

    /// Tells the child process to start its work.
    pub(crate) fn start_work(&mut self) -> anyhow::Result<()> {
        let sent = self.input.write_all(b"go\n").and_then(|()| self.input.flush());
        sent.with_context(|| format!("{} exited", self.name))
    }

    /// Processor time that its threads have used so far, in seconds, from their `schedstat`, since
    /// `stat` counts only in ticks of 10 ms. Exited threads are not included; the working threads
    /// live as long as the process.
    pub(crate) fn cpu_s(&self) -> anyhow::Result<f64> {
        let folder = format!("/proc/{}/task", self.process.id());
        let mut ns = 0u64;
        for thread in fs::read_dir(&folder).with_context(|| folder.clone())? {
            // The thread may have exited after it was listed.
            let text = fs::read_to_string(thread?.path().join("schedstat")).unwrap_or_default();
            ns += text.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0);
        }
        Ok(ns as f64 / 1e9)
    }

    /// Resident memory in bytes: `Rss` of `smaps_rollup`, which counts every page. `VmRSS` of
    /// `status` lags behind.
    pub(crate) fn resident_bytes(&self) -> anyhow::Result<u64> {
        let file = format!("/proc/{}/smaps_rollup", self.process.id());
        let text = fs::read_to_string(&file).with_context(|| file.clone())?;
        let kib = text.lines().find_map(|line| line.strip_prefix("Rss:"));
        let kib = kib.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        Ok(kib.with_context(|| format!("{file} without Rss"))? * 1024)
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // The process may have exited by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Sends a report to the parent process.
pub(crate) fn report(what: &impl Serialize) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    serde_json::to_writer(&mut out, what)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// Waits until the parent process starts the work.
pub(crate) fn wait_for_start() -> anyhow::Result<()> {
    let mut line = String::new();
    stdin().lock().read_line(&mut line)?;
    if line != "go\n" {
        bail!("the parent process exited before the work started")
    }
    Ok(())
}

/// Waits until the parent process no longer needs this one.
pub(crate) fn wait_for_end() -> anyhow::Result<()> {
    std::io::copy(&mut stdin().lock(), &mut std::io::sink())?;
    Ok(())
}
