//! One part of a measurement, in a process of its own: this same binary, told by a line of its
//! arguments what to do.
//!
//! A part says that it is ready, is told to go, and says what it has measured; each is a line of
//! JSON. What it needs for its work it makes before it is ready. It ends with its standard input,
//! so with the one who has started it.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _, stdin, stdout};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// How long a part may take for its answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(15 * 60);
/// Answers that wait to be read.
const ANSWERS_MAX: usize = 4;

/// A part, as the one who measures sees it. Dropped, it is killed.
pub(crate) struct Part {
    name: String,
    process: Child,
    input: ChildStdin,
    answers: Receiver<String>,
}

impl Part {
    /// Starts a part of that measurement.
    pub(crate) fn start(name: &str, measure: &str, task: &impl Serialize) -> anyhow::Result<Part> {
        let binary = std::env::current_exe().context("cannot find this program's own file")?;
        let mut process = Command::new(binary)
            .args(["part", measure, &serde_json::to_string(task)?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            bail!("{name} started without its pipes");
        };
        let (sender, answers) = sync_channel(ANSWERS_MAX);
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Part { name: name.to_owned(), process, input, answers })
    }

    /// What it says next.
    pub(crate) fn answer<T: DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        let name = &self.name;
        let line = self.answers.recv_timeout(ANSWERS_WITHIN);
        let line = line.with_context(|| format!("{name} has ended, or hangs"))?;
        serde_json::from_str(&line).with_context(|| format!("{name} said: {line}"))
    }

    /// Tells it to begin.
    pub(crate) fn go(&mut self) -> anyhow::Result<()> {
        let told = self.input.write_all(b"go\n").and_then(|()| self.input.flush());
        told.with_context(|| format!("{} has ended", self.name))
    }

    /// Processor time that its threads have used so far, in seconds: the sum of their `schedstat`.
    /// `stat` counts in ticks of 10 ms. A thread that has ended is left out; those that do the work
    /// live as long as the process.
    pub(crate) fn cpu_s(&self) -> anyhow::Result<f64> {
        let folder = format!("/proc/{}/task", self.process.id());
        let mut ns = 0u64;
        for thread in fs::read_dir(&folder).with_context(|| folder.clone())? {
            // It may have ended since it was listed.
            let text = fs::read_to_string(thread?.path().join("schedstat")).unwrap_or_default();
            ns += text.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0);
        }
        Ok(ns as f64 / 1e9)
    }

    /// Bytes of memory that it holds: `Rss` of `smaps_rollup`, which counts every page; `VmRSS` of
    /// `status` lags behind.
    pub(crate) fn resident_bytes(&self) -> anyhow::Result<u64> {
        let file = format!("/proc/{}/smaps_rollup", self.process.id());
        let text = fs::read_to_string(&file).with_context(|| file.clone())?;
        let kib = text.lines().find_map(|line| line.strip_prefix("Rss:"));
        let kib = kib.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        Ok(kib.with_context(|| format!("{file} without Rss"))? * 1024)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Says something to the one who measures.
pub(crate) fn say(what: &impl Serialize) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    serde_json::to_writer(&mut out, what)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// Waits until it is told to begin.
pub(crate) fn wait_for_go() -> anyhow::Result<()> {
    let mut line = String::new();
    stdin().lock().read_line(&mut line)?;
    if line != "go\n" {
        bail!("ended before its work began")
    }
    Ok(())
}

/// Waits until the one who measures has no more use for it.
pub(crate) fn wait_for_end() -> anyhow::Result<()> {
    std::io::copy(&mut stdin().lock(), &mut std::io::sink())?;
    Ok(())
}
