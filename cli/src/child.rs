//! Processes of this same binary, started for a demo or a measurement: spawned, awaited until
//! ready, killed, started again.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child as Process, ChildStdin, ChildStdout, Command};

/// How long a process may take until it says that it is ready.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// How long a process that was asked to end may take.
const END_WITHIN: Duration = Duration::from_secs(15);

/// How to start one process: arguments and environment beside the inherited.
#[derive(Clone, Debug)]
pub(crate) struct Role {
    /// What it is called in messages.
    pub(crate) name: String,
    /// Its arguments.
    pub(crate) arguments: Vec<OsString>,
    /// Its environment, beside what it inherits.
    pub(crate) environment: Vec<(&'static str, OsString)>,
    /// Where its standard error goes; none: where ours does.
    pub(crate) log: Option<PathBuf>,
}

/// A running process of this binary. Its standard output is JSON, a value per line, the first of
/// them once it is ready. Its standard input is a pipe that it watches: it ends with us. Dropped,
/// it is killed.
pub(crate) struct Child {
    name: String,
    process: Process,
    input: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    /// What it said when it was ready.
    pub(crate) ready: Value,
}

impl Child {
    /// Starts it and waits until it is ready.
    pub(crate) async fn start(role: &Role) -> anyhow::Result<Child> {
        Child::start_within(role, READY_WITHIN).await
    }

    /// The same for one that may take longer, or must not take as long.
    pub(crate) async fn start_within(role: &Role, within: Duration) -> anyhow::Result<Child> {
        let binary = std::env::current_exe().context("cannot find this program's own file")?;
        let errors = match &role.log {
            None => Stdio::inherit(),
            Some(log) => {
                let file = OpenOptions::new().create(true).append(true).open(log);
                file.with_context(|| format!("cannot write {}", log.display()))?.into()
            }
        };
        let mut process = Command::new(binary)
            .args(&role.arguments)
            .envs(role.environment.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .kill_on_drop(true)
            // Ctrl-C is for the one who watches, who then ends the others in order.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", role.name))?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            bail!("{} started without its pipes", role.name);
        };
        let lines = BufReader::new(output).lines();
        let mut child = Child {
            name: role.name.clone(),
            process,
            input: Some(input),
            lines,
            ready: Value::Null,
        };
        child.ready = tokio::time::timeout(within, child.next())
            .await
            .with_context(|| format!("{} was not ready within {within:?}", child.name))??;
        Ok(child)
    }

    /// The next JSON value that it prints. Not cancel safe in the middle of a line.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Value> {
        let line = self.lines.next_line().await.context("cannot read its output")?;
        let Some(line) = line else {
            let status = self.process.wait().await.context("cannot wait for it")?;
            bail!("{} ended ({status}) before it was done", self.name);
        };
        serde_json::from_str(&line)
            .with_context(|| format!("{} printed what is not JSON: {line}", self.name))
    }

    /// Writes a line to its standard input.
    pub(crate) async fn tell(&mut self, line: &str) -> anyhow::Result<()> {
        let Some(input) = &mut self.input else { bail!("{} is ending", self.name) };
        input
            .write_all(format!("{line}\n").as_bytes())
            .await
            .with_context(|| format!("cannot write to {}", self.name))
    }

    /// Its process id; none once it has ended.
    pub(crate) fn id(&self) -> Option<u32> {
        self.process.id()
    }

    /// A text from what it said when it was ready.
    pub(crate) fn ready_text(&self, key: &str) -> anyhow::Result<&str> {
        self.ready[key].as_str().with_context(|| format!("{} did not say its {key}", self.name))
    }

    /// Kills it with SIGKILL and waits until it is gone.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<ExitStatus> {
        self.process.start_kill().with_context(|| format!("cannot kill {}", self.name))?;
        self.process.wait().await.with_context(|| format!("cannot wait for {}", self.name))
    }

    /// Asks it to end, by closing its standard input, and waits; kills it when that takes too long.
    pub(crate) async fn end(mut self) -> anyhow::Result<()> {
        drop(self.input.take());
        if tokio::time::timeout(END_WITHIN, self.process.wait()).await.is_err() {
            tracing::warn!(name = self.name, "did not end in time; killed");
            self.kill().await?;
        }
        Ok(())
    }
}
