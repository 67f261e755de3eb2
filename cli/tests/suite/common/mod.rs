//! Runs the program as users do: processes, exit codes, output.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test helpers outside of test functions")]

use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

pub(crate) use long::long;
use output_checks::OutputChecks;

pub(crate) mod harness;
#[path = "../../../../tests/long.rs"]
mod long;
pub(crate) mod notify_socket;
pub(crate) mod output_checks;
pub(crate) mod proxy;
#[path = "../../../src/schema.rs"]
pub(crate) mod schema;
pub(crate) mod terminal;
pub(crate) mod worker;

/// The longest run of a background command.
const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(60);

/// The exit code and output of a command.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl CommandOutput {
    /// The output of a command that has ended, after its checks.
    #[track_caller]
    fn of(
        status: ExitStatus,
        stdout: String,
        stderr: String,
        checks: &OutputChecks,
    ) -> CommandOutput {
        checks.stdout(&stdout);
        checks.stderr(&stderr);
        CommandOutput { code: status.code().unwrap_or(-1), stdout, stderr }
    }

    /// Fails the test unless the exit code is this one.
    #[track_caller]
    pub(crate) fn code(self, code: i32) -> CommandOutput {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }

    /// Fails the test unless standard error contains all these words.
    #[track_caller]
    pub(crate) fn stderr_has(self, words: &[&str]) -> CommandOutput {
        for word in words {
            assert!(self.stderr.contains(word), "no '{word}' in {self:#?}");
        }
        self
    }

    /// Standard output as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }

    /// Standard output as JSON, one value per line.
    #[track_caller]
    pub(crate) fn json_lines(&self) -> Vec<Value> {
        let parse = |line: &str| serde_json::from_str(line).unwrap();
        self.stdout.lines().map(parse).collect()
    }
}

/// A command of the program, isolated from the user's configuration.
pub(crate) fn longshore(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longshore"));
    command.args(arguments).env("HOME", "/nonexistent");
    for variable in [
        "LONGSHORE_CONFIG",
        "LONGSHORE_CONTEXT",
        "LONGSHORE_CLUSTER",
        "LONGSHORE_TLS_CA",
        "LONGSHORE_TLS_CERTIFICATE",
        "LONGSHORE_TLS_KEY",
        "LONGSHORE_TLS_SERVER_NAME",
        "LONGSHORE_TOKEN",
        "LONGSHORE_TOKEN_FILE",
        "LONGSHORE_RESOLVERS",
        "LONGSHORE_DATA",
        "LONGSHORE_LOG",
        "LONGSHORE_LOG_FORMAT",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
    ] {
        command.env_remove(variable);
    }
    command
}

/// Runs a command to its end.
#[track_caller]
pub(crate) fn run(mut command: Command, input: &[u8]) -> CommandOutput {
    let checks = OutputChecks::of(&command);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // A command need not read its input.
    let feed = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    feed.join().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    CommandOutput::of(output.status, text(&output.stdout), text(&output.stderr), &checks)
}

/// A service: a process that prints a line when it is ready. Killed on drop.
pub(crate) struct Service {
    process: Child,
    pub(crate) ready: Value,
    pub(crate) ready_after: Duration,
}

impl Service {
    pub(crate) fn start(command: Command) -> Service {
        Service::start_logging(command, Stdio::null())
    }

    /// Starts a service whose log goes there.
    pub(crate) fn start_logging(mut command: Command, log: impl Into<Stdio>) -> Service {
        let checks = OutputChecks::of(&command);
        let began = Instant::now();
        let process =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        // First of all, so that a failure from here on ends the process.
        let mut service = Service { process, ready: Value::Null, ready_after: Duration::ZERO };
        let mut line = String::new();
        BufReader::new(service.process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        service.ready_after = began.elapsed();
        service.ready = serde_json::from_str(&line).unwrap_or_else(|_| panic!("not ready: {line}"));
        checks.stdout(&line);
        service
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// True while it has not ended.
    pub(crate) fn is_running(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }

    /// Sends a signal to it.
    #[track_caller]
    pub(crate) fn send(&self, signal: Signal) {
        send(&self.process, signal);
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) {
        self.process.wait().unwrap();
    }

    /// Sends SIGTERM and waits; returns the exit code.
    pub(crate) fn stop(&mut self) -> i32 {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").arg(&id).status().unwrap().success());
        self.process.wait().unwrap().code().unwrap_or(-1)
    }

    /// Sends SIGKILL, and waits.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub(crate) fn text(&self, key: &str) -> &str {
        self.ready[key].as_str().unwrap()
    }
}

/// Sends a signal to a process that has not been reaped.
#[track_caller]
pub(crate) fn send(process: &Child, signal: Signal) {
    let id = Pid::from_raw(process.id().try_into().unwrap()).unwrap();
    kill_process(id, signal).unwrap();
}

/// Polls a condition until it holds; returns the time taken. Fails after 30 s.
pub(crate) async fn eventually<F: Future<Output = bool>>(
    what: &str,
    mut condition: impl FnMut() -> F,
) -> Duration {
    let began = Instant::now();
    while !condition().await {
        assert!(began.elapsed() < Duration::from_secs(30), "not within 30 s: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    began.elapsed()
}

/// Like [`eventually`], for blocking tests.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(30), "not within 30 s: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
    began.elapsed()
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A command that runs in the background. Killed on drop, or after [`BACKGROUND_TIMEOUT`], which
/// ends a blocked read of its output.
pub(crate) struct BackgroundCommand {
    process: Arc<Mutex<Child>>,
    /// Dropping it ends the thread that enforces the timeout.
    _watchdog: mpsc::Sender<()>,
    stdout: Option<BufReader<ChildStdout>>,
    stderr: Option<BufReader<ChildStderr>>,
    checks: OutputChecks,
}

impl BackgroundCommand {
    pub(crate) fn start(mut command: Command) -> BackgroundCommand {
        let checks = OutputChecks::of(&command);
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = process.stdout.take().map(BufReader::new);
        let stderr = process.stderr.take().map(BufReader::new);
        let process = Arc::new(Mutex::new(process));
        let (watchdog, dropped) = mpsc::channel();
        let watched = process.clone();
        std::thread::spawn(move || {
            if dropped.recv_timeout(BACKGROUND_TIMEOUT) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = watched.lock().unwrap().kill();
            }
        });
        BackgroundCommand { process, _watchdog: watchdog, stdout, stderr, checks }
    }

    /// The next line of its standard output.
    #[track_caller]
    pub(crate) fn line(&mut self) -> String {
        let line = line_of(self.stdout.as_mut().unwrap());
        self.checks.stdout(&line);
        line
    }

    /// Reads its standard error up to a line with these words, and returns that line.
    #[track_caller]
    pub(crate) fn wait_for_stderr(&mut self, words: &str) -> String {
        loop {
            let line = line_of(self.stderr.as_mut().unwrap());
            assert!(!line.is_empty(), "it ended without printing '{words}'");
            if line.contains(words) {
                return line;
            }
        }
    }

    pub(crate) fn send(&self, signal: Signal) {
        send(&self.process.lock().unwrap(), signal);
    }

    /// Waits for its end.
    pub(crate) fn ended(mut self) -> CommandOutput {
        let mut errors = self.stderr.take().unwrap();
        let reading = std::thread::spawn(move || io::read_to_string(&mut errors).unwrap());
        let stdout = io::read_to_string(self.stdout.as_mut().unwrap()).unwrap();
        let stderr = reading.join().unwrap();
        let status = self.process.lock().unwrap().wait().unwrap();
        CommandOutput::of(status, stdout, stderr, &self.checks)
    }
}

impl Drop for BackgroundCommand {
    fn drop(&mut self) {
        let mut process = self.process.lock().unwrap();
        let _ = process.kill();
        let _ = process.wait();
    }
}

fn line_of(pipe: &mut impl BufRead) -> String {
    let mut line = String::new();
    pipe.read_line(&mut line).unwrap();
    line
}

/// `longshore up` on free ports, with its journal in a temporary folder.
pub(crate) struct System {
    pub(crate) service: Service,
    pub(crate) folder: tempfile::TempDir,
}

impl System {
    pub(crate) fn up() -> System {
        let folder = tempfile::tempdir().unwrap();
        let service = System::start(folder.path());
        System { service, folder }
    }

    /// Starts on the journal in this folder.
    pub(crate) fn on(folder: tempfile::TempDir) -> System {
        let service = System::start(folder.path());
        System { service, folder }
    }

    fn start(folder: &Path) -> Service {
        let mut command = longshore(&[
            "up",
            "--json",
            "--replicas",
            "1",
            "--resolver-port",
            "0",
            "--publisher-port",
            "0",
        ]);
        command.arg("--data").arg(folder.join("data"));
        Service::start(command)
    }

    /// Kills the whole system, and restarts it on the same journal.
    pub(crate) fn crash_and_restart(&mut self) {
        self.service.kill();
        self.service = System::start(self.folder.path());
    }

    /// The address of its resolver.
    pub(crate) fn resolver(&self) -> &str {
        self.service.ready["resolvers"][0].as_str().unwrap()
    }

    /// The address of its publisher.
    pub(crate) fn publisher(&self) -> &str {
        self.service.text("address")
    }

    /// A command that uses this system.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = longshore(&[]);
        // The flag has to precede the arguments after `--`.
        command.arg("--resolver").arg(self.resolver()).args(arguments);
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> CommandOutput {
        run(self.command(arguments), b"")
    }

    pub(crate) fn run_with(&self, arguments: &[&str], input: &[u8]) -> CommandOutput {
        run(self.command(arguments), input)
    }

    /// The stats of one queue; null if there is none.
    pub(crate) fn stat(&self, path: &str) -> Value {
        self.run(&["stat", path, "--json"]).json()["queues"][0].clone()
    }

    /// One job with all fields.
    #[track_caller]
    pub(crate) fn job(&self, name: &str) -> Value {
        self.run(&["job", name, "--json"]).code(0).json()
    }

    /// Starts a background command.
    pub(crate) fn spawn(&self, arguments: &[&str]) -> BackgroundCommand {
        BackgroundCommand::start(self.command(arguments))
    }

    /// The cluster for clients.
    pub(crate) fn cluster(&self) -> longshore::Cluster {
        longshore::Cluster::new([self.resolver()])
    }

    /// Enqueues one job; returns its receipt.
    pub(crate) fn enqueue(&self, path: &str, payload: &str, options: &[&str]) -> String {
        let arguments = [&["enqueue", "--json", path, payload], options].concat();
        let receipt = self.run(&arguments).code(0).json();
        assert_eq!(receipt["durability"], "fsync");
        receipt["job"].as_str().unwrap().to_owned()
    }
}
