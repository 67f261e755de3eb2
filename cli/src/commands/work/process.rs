//! Runs one command for one job: payload on standard input, result on standard output, error at the
//! end of standard error. The command has its own process group, so that its children end with it.

use std::ffi::OsString;
use std::future::Future;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;

use crate::service_manager;

/// The largest result in bytes, the protocol's limit.
pub(crate) const RESULT_BYTES_MAX: usize = longshore::protocol::limits::RESULT_BYTES_MAX;
/// The bytes at the end of standard error that become the job's error.
pub(crate) const ERROR_BYTES_MAX: usize = 8 * 1024;
/// The time between SIGTERM and SIGKILL.
pub(super) const TERM_GRACE: Duration = Duration::from_secs(10);
/// When to check again whether the children of a command have ended: a check reads all of `/proc`,
/// so each wait is twice the one before, up to the most.
const GROUP_CHECK: Duration = Duration::from_millis(50);
const GROUP_CHECK_MAX: Duration = Duration::from_secs(1);
/// How long output may continue after the command's exit: its children may hold the pipe.
pub(super) const OUTPUT_GRACE: Duration = Duration::from_secs(1);

/// Exit code that buries the job: the input is bad (EX_DATAERR).
const BURY: i32 = 65;
/// Exit code that releases the job (EX_TEMPFAIL).
const RELEASE: i32 = 75;

/// The outcome of a command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CommandOutcome {
    /// Exit code 0: its output, if the result is retained, and the end of its standard error.
    Completed { result: Bytes, stderr: String },
    /// Bury the job.
    Buried { kind: String, message: String },
    /// Exit code 75: release the job.
    Released,
    /// Any other exit: a failed attempt.
    Failed { kind: String, message: String },
    /// Terminated because the job was cancelled or lost, or because this worker stops.
    Stopped,
}

/// Runs `command` once. Its output is the result, or is discarded unless `keep_result`. If
/// `cancelled` resolves first, the process group gets SIGTERM, and 10 s later SIGKILL.
pub(crate) async fn run(
    command: &[OsString],
    environment: &[(&'static str, String)],
    payload: Bytes,
    keep_result: bool,
    cancelled: impl Future<Output = ()>,
) -> io::Result<CommandOutcome> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no command"));
    };
    let mut line = Command::new(program);
    // The command is no service.
    for variable in service_manager::VARIABLES {
        line.env_remove(variable);
    }
    let mut child = line
        .args(arguments)
        .envs(environment.iter().map(|(key, value)| (key, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    let group = ProcessGroup::of(&child);
    let (Some(mut input), Some(output), Some(errors)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(io::Error::other("the command started without its pipes"));
    };
    let feed = tokio::spawn(async move {
        // A command need not read all of its input.
        let _ = input.write_all(&payload).await;
    });
    let printed = Arc::new(Mutex::new(Printed::default()));
    let mut readers = JoinSet::new();
    readers.spawn(read_result(output, keep_result, printed.clone()));
    readers.spawn(read_errors(errors, printed.clone()));

    let (status, stopped) = wait(&mut child, &group, cancelled).await?;
    feed.abort();
    let all = async { while readers.join_next().await.is_some() {} };
    if timeout(OUTPUT_GRACE, all).await.is_err() {
        // A process of the group still holds the pipes, so the group id is not reused. What was
        // printed until now counts.
        group.signal(Signal::KILL);
    }
    if stopped {
        return Ok(CommandOutcome::Stopped);
    }
    let Printed { result, is_too_long, errors } = std::mem::take(&mut *printed.lock());
    let result = (!is_too_long).then(|| Bytes::from(result));
    Ok(outcome(status, result, &errors))
}

/// Waits for the exit; terminates the command if the job is cancelled. Returns whether it was.
async fn wait(
    child: &mut Child,
    group: &ProcessGroup,
    cancelled: impl Future<Output = ()>,
) -> io::Result<(ExitStatus, bool)> {
    tokio::select! {
        biased;
        status = child.wait() => {
            group.ended.store(true, Relaxed);
            return Ok((status?, false));
        }
        () = cancelled => {}
    }
    group.signal(Signal::TERM);
    let killed = tokio::time::sleep(TERM_GRACE);
    let ended = async {
        let status = child.wait().await;
        // Its children have the same time to end. As long as there are some, the id of the group is
        // given to no other.
        let mut wait = GROUP_CHECK;
        while group.runs().await {
            tokio::time::sleep(wait).await;
            wait = GROUP_CHECK_MAX.min(2 * wait);
        }
        status
    };
    let status = tokio::select! {
        status = ended => Some(status),
        () = killed => None,
    };
    let status = match status {
        Some(status) => status,
        None => {
            group.signal(Signal::KILL);
            child.wait().await
        }
    };
    group.ended.store(true, Relaxed);
    Ok((status?, true))
}

/// The process group of a command, killed if dropped before the command has ended.
struct ProcessGroup {
    leader: Option<Pid>,
    ended: AtomicBool,
}

impl ProcessGroup {
    fn of(child: &Child) -> ProcessGroup {
        let leader = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        ProcessGroup { leader, ended: AtomicBool::new(false) }
    }

    /// Whether a process of it runs, or that cannot be found out.
    async fn runs(&self) -> bool {
        let Some(leader) = self.leader else { return false };
        spawn_blocking(move || group_runs(leader)).await.unwrap_or(true)
    }

    fn signal(&self, signal: Signal) {
        if let Some(leader) = self.leader {
            // The group may have ended already.
            let _ = kill_process_group(leader, signal);
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if !self.ended.load(Relaxed) {
            self.signal(Signal::KILL);
        }
    }
}

/// Whether a process of the group runs. Those that have ended may stay until somebody asks for
/// their exit codes, in a container maybe for ever.
fn group_runs(leader: Pid) -> bool {
    if test_kill_process_group(leader).is_err() {
        return false;
    }
    let Ok(processes) = std::fs::read_dir("/proc") else { return true };
    let group = leader.as_raw_nonzero().to_string();
    processes.flatten().any(|process| {
        let status = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        // The name, in parentheses, may contain anything.
        let fields = status.rsplit_once(") ").map_or("", |(_, fields)| fields);
        let mut fields = fields.split(' ');
        let (state, group_of) = (fields.next(), fields.nth(1));
        group_of == Some(&group) && !matches!(state, Some("Z" | "X"))
    })
}

/// What a command has printed so far.
#[derive(Default)]
struct Printed {
    /// Its output, unless it exceeds the limit of a result.
    result: Vec<u8>,
    is_too_long: bool,
    /// The last 8 KiB of its standard error.
    errors: Vec<u8>,
}

/// Reads all output; it counts only if `keep_result`.
async fn read_result(
    mut output: impl AsyncRead + Unpin,
    keep_result: bool,
    printed: Arc<Mutex<Printed>>,
) -> io::Result<()> {
    let mut chunk = vec![0; 16 * 1024];
    loop {
        let n = output.read(&mut chunk).await?;
        if n == 0 {
            return Ok(());
        }
        if !keep_result {
            continue;
        }
        let mut printed = printed.lock();
        printed.is_too_long |= printed.result.len() + n > RESULT_BYTES_MAX;
        match printed.is_too_long {
            true => printed.result = Vec::new(),
            false => printed.result.extend_from_slice(&chunk[..n]),
        }
    }
}

/// Reads all of standard error, of which the end counts.
async fn read_errors(
    mut output: impl AsyncRead + Unpin,
    printed: Arc<Mutex<Printed>>,
) -> io::Result<()> {
    let mut chunk = [0; 4 * 1024];
    loop {
        let n = output.read(&mut chunk).await?;
        if n == 0 {
            return Ok(());
        }
        let end = &mut printed.lock().errors;
        end.extend_from_slice(&chunk[..n]);
        if let Some(over) = end.len().checked_sub(ERROR_BYTES_MAX) {
            end.drain(..over);
        }
    }
}

fn outcome(status: ExitStatus, result: Option<Bytes>, error: &[u8]) -> CommandOutcome {
    let message = message(error);
    match (status.code(), result) {
        (Some(0), Some(result)) => CommandOutcome::Completed { result, stderr: message },
        (Some(0), None) => CommandOutcome::Buried {
            kind: "ResultTooLarge".to_owned(),
            message: format!("the command printed more than {RESULT_BYTES_MAX} bytes"),
        },
        (Some(BURY), _) => CommandOutcome::Buried { kind: format!("Exit{BURY}"), message },
        (Some(RELEASE), _) => CommandOutcome::Released,
        (Some(code), _) => CommandOutcome::Failed { kind: format!("Exit{code}"), message },
        (None, _) => {
            let signal = status.signal().unwrap_or_default();
            CommandOutcome::Failed { kind: format!("Signal{signal}"), message }
        }
    }
}

/// The end of standard error as text, cut again to the limit: a replacement character is longer
/// than the invalid byte.
fn message(error: &[u8]) -> String {
    let text = String::from_utf8_lossy(error);
    let text = text.trim_end();
    let mut from = text.len().saturating_sub(ERROR_BYTES_MAX);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text[from..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn shell(script: &str, payload: &'static [u8]) -> CommandOutcome {
        let command = ["sh", "-c", script].map(OsString::from);
        let environment = [("LONGSHORE_JOB_ID", "7".to_owned())];
        let never = std::future::pending();
        run(&command, &environment, Bytes::from_static(payload), true, never).await.unwrap()
    }

    fn completed(result: &'static [u8], stderr: &str) -> CommandOutcome {
        CommandOutcome::Completed { result: Bytes::from_static(result), stderr: stderr.to_owned() }
    }

    #[tokio::test]
    async fn stdin_is_the_payload_and_stdout_the_result() {
        let ended = shell("cat; printf %s \"$LONGSHORE_JOB_ID\"", b"a\nb\0c").await;
        assert_eq!(ended, completed(b"a\nb\0c7", ""));
    }

    #[tokio::test]
    async fn a_command_that_ignores_a_large_payload_still_completes() {
        static PAYLOAD: [u8; 1024 * 1024] = [b'x'; 1024 * 1024];
        assert_eq!(shell("exit 0", &PAYLOAD).await, completed(b"", ""));
    }

    #[tokio::test]
    async fn a_result_over_the_limit_is_buried() {
        let exact = shell(&format!("head -c {RESULT_BYTES_MAX} /dev/zero"), b"").await;
        assert!(matches!(&exact, CommandOutcome::Completed { result, .. }
                if result.len() == RESULT_BYTES_MAX));
        let more = shell(&format!("head -c {} /dev/zero", RESULT_BYTES_MAX + 1), b"").await;
        assert!(matches!(more, CommandOutcome::Buried { kind, .. } if kind == "ResultTooLarge"));
    }

    #[tokio::test]
    async fn the_error_is_the_end_of_standard_error() {
        let script = "head -c 100000 /dev/zero | tr '\\0' x >&2; echo the end >&2; exit 1";
        let CommandOutcome::Failed { message, .. } = shell(script, b"").await else { panic!() };
        assert!(message.len() <= ERROR_BYTES_MAX && message.ends_with("xthe end"));
    }

    /// Waits, at most 30 s of real time.
    fn wait_until(what: &str, is_so: impl Fn() -> bool) {
        let began = std::time::Instant::now();
        while !is_so() {
            assert!(began.elapsed() < Duration::from_secs(30), "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_group_is_killed_ten_seconds_after_sigterm() {
        let folder = tempfile::tempdir().unwrap();
        let [note, new] = ["note", "new"].map(|name| folder.path().join(name));
        // A child that ignores SIGTERM, too, and holds no pipe.
        let child = "(while :; do sleep 0.2; done) > /dev/null 2>&1 &";
        let (new, note_text) = (new.display(), note.display());
        let script = format!("trap '' TERM; {child} echo $! > {new}; mv {new} {note_text}; wait");
        let command = ["sh", "-c", &script].map(OsString::from);
        let began = tokio::time::Instant::now();
        // The clock stands still while a blocking task runs.
        let started = tokio::task::spawn_blocking({
            let note = note.clone();
            move || wait_until("the command starts", || note.exists())
        });
        let cancelled = async { started.await.unwrap() };
        let ended = run(&command, &[], Bytes::new(), true, cancelled).await.unwrap();
        assert_eq!(ended, CommandOutcome::Stopped);
        let took = began.elapsed().as_secs_f64();
        assert!((10.0..12.0).contains(&took), "{took} s");
        let child = std::fs::read_to_string(&note).unwrap().trim().to_owned();
        wait_until("its child is killed", || {
            let status = std::fs::read_to_string(format!("/proc/{child}/stat"));
            status.map_or(true, |status| status.contains(") Z "))
        });
    }

    #[tokio::test]
    async fn a_child_that_is_left_behind_costs_neither_result_nor_error() {
        let done = shell("sleep 20 & echo done", b"");
        let failed = shell("sleep 20 & echo why >&2; exit 3", b"");
        let (done, failed) = tokio::join!(done, failed);
        assert_eq!(done, completed(b"done\n", ""));
        let why = CommandOutcome::Failed { kind: "Exit3".to_owned(), message: "why".to_owned() };
        assert_eq!(failed, why);
    }

    #[tokio::test]
    async fn children_of_a_cancelled_command_have_time_to_end_too() {
        let folder = tempfile::tempdir().unwrap();
        let note = folder.path().join("cleaned");
        let ready = folder.path().join("ready");
        // The shell ends at once, and its child cleans up for longer than output is waited for. It
        // sleeps briefly: a process between fork and exec may miss the signal.
        let (cleaned, is_ready) = (note.display(), ready.display());
        let trap = format!("trap \"sleep 1.5; touch {cleaned}; exit\" TERM");
        let sleeps = "n=0; while [ $n -lt 400 ]; do n=$((n+1)); sleep 0.05; done";
        let child = format!("{trap}; touch {is_ready}; {sleeps}");
        let script = format!("sh -c '{child}' > {0}/out 2>&1 & wait", folder.path().display());
        let command = ["sh", "-c", &script].map(OsString::from);
        let mut began = std::time::Instant::now();
        let cancelled = async {
            let started = move || wait_until("the child starts", || ready.exists());
            tokio::task::spawn_blocking(started).await.unwrap();
            began = std::time::Instant::now();
        };
        let ended = run(&command, &[], Bytes::new(), true, cancelled).await.unwrap();
        assert_eq!(ended, CommandOutcome::Stopped);
        assert!(note.exists());
        assert!(began.elapsed() < Duration::from_secs(6), "the group has ended");
    }

    #[tokio::test]
    async fn dropping_a_run_kills_its_command() {
        let folder = tempfile::tempdir().unwrap();
        let note = folder.path().join("alive");
        let script = format!("(sleep 0.6; touch {}) & wait", note.display());
        let command = ["sh", "-c", &script].map(OsString::from);
        let run = run(&command, &[], Bytes::new(), true, std::future::pending());
        assert!(timeout(Duration::from_millis(200), run).await.is_err());
        tokio::time::sleep(Duration::from_millis(800)).await;
        assert!(!note.exists());
    }
}
