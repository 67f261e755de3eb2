//! Child processes of this same binary, for the demo and for measurements: start, wait until ready,
//! kill, restart.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child as Process, ChildStdin, ChildStdout, Command};

use crate::service_manager;

/// How long a process may take until it reports that it is ready.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// How long a process may take to exit after its standard input is closed.
const END_WITHIN: Duration = Duration::from_secs(15);

/// How to start one process.
#[derive(Clone, Debug)]
pub(crate) struct ChildSpec {
    /// Its name in messages.
    pub(crate) name: String,
    /// Its arguments.
    pub(crate) arguments: Vec<OsString>,
    /// Variables added to the inherited environment.
    pub(crate) environment: Vec<(&'static str, OsString)>,
    /// The file for its standard error; none: inherit ours.
    pub(crate) log: Option<PathBuf>,
}

/// A running process of this binary, killed on drop. It prints one JSON value per line; the first
/// reports that it is ready. It exits when its standard input, a pipe that this process holds, is
/// closed.
pub(crate) struct Child {
    name: String,
    process: Process,
    input: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    /// Its first line: the ready report.
    pub(crate) ready: Value,
}

impl Child {
    /// Starts a process and waits until it is ready.
    pub(crate) async fn start(spec: &ChildSpec) -> anyhow::Result<Child> {
        Child::start_within(spec, READY_WITHIN).await
    }

    /// Like [`Child::start`], with another time limit.
    pub(crate) async fn start_within(spec: &ChildSpec, within: Duration) -> anyhow::Result<Child> {
        let binary = std::env::current_exe().context("cannot find this program's own file")?;
        let errors = match &spec.log {
            None => Stdio::inherit(),
            Some(log) => {
                let file = OpenOptions::new().create(true).append(true).open(log);
                file.with_context(|| format!("cannot write {}", log.display()))?.into()
            }
        };
        let mut command = Command::new(binary);
        for variable in service_manager::VARIABLES {
            command.env_remove(variable);
        }
        let mut process = command
            .args(&spec.arguments)
            .envs(spec.environment.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .kill_on_drop(true)
            // Ctrl-C goes to this process only, which then ends its children in order.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", spec.name))?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            bail!("{} started without its pipes", spec.name);
        };
        let lines = BufReader::new(output).lines();
        let mut child = Child {
            name: spec.name.clone(),
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

    /// Reads the next JSON value that it prints. Not cancel safe in the middle of a line.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Value> {
        let line = self.lines.next_line().await.context("cannot read its output")?;
        let Some(line) = line else {
            let status = self.process.wait().await.context("cannot wait for it")?;
            bail!("{} exited early ({status})", self.name);
        };
        serde_json::from_str(&line)
            .with_context(|| format!("{} printed invalid JSON: {line}", self.name))
    }

    /// Writes a line to its standard input.
    pub(crate) async fn send_line(&mut self, line: &str) -> anyhow::Result<()> {
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

    /// A string field of the ready report.
    pub(crate) fn ready_text(&self, key: &str) -> anyhow::Result<&str> {
        self.ready[key].as_str().with_context(|| format!("{} did not report its {key}", self.name))
    }

    /// Sends SIGKILL and waits for the exit.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<ExitStatus> {
        self.process.start_kill().with_context(|| format!("cannot kill {}", self.name))?;
        self.process.wait().await.with_context(|| format!("cannot wait for {}", self.name))
    }

    /// Closes its standard input and waits for the exit; kills it after [`END_WITHIN`].
    pub(crate) async fn end(mut self) -> anyhow::Result<()> {
        drop(self.input.take());
        if tokio::time::timeout(END_WITHIN, self.process.wait()).await.is_err() {
            tracing::warn!(name = self.name, "did not exit in time; killed");
            self.kill().await?;
        }
        Ok(())
    }
}
