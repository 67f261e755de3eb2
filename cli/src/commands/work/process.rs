//! One command for one job: payload on its standard input, result from its standard output, the
//! error from the end of its standard error. It runs in a process group of its own, so that what it
//! starts ends with it.

use std::ffi::OsString;
use std::future::Future;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// Largest result, in bytes: the protocol's limit.
pub(crate) const RESULT_BYTES_MAX: usize = longshore::protocol::limits::RESULT_BYTES_MAX;
/// How much of the end of standard error is the job's error, in bytes.
pub(crate) const ERROR_BYTES_MAX: usize = 8 * 1024;
/// How long a command may take to end after SIGTERM, before SIGKILL.
const TERM_GRACE: Duration = Duration::from_secs(10);
/// How long output may go on after the command itself has ended: what it left running holds the
/// pipe.
const OUTPUT_GRACE: Duration = Duration::from_secs(1);

/// Exit code that buries the job: the input is bad (EX_DATAERR).
const BURY: i32 = 65;
/// Exit code that gives the job back (EX_TEMPFAIL).
const RELEASE: i32 = 75;

/// How a command went.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Exit code 0; what it printed, if the result is kept, and the end of its standard error.
    Completed { result: Bytes, stderr: String },
    /// The job is to be buried.
    Buried { kind: String, message: String },
    /// Exit code 75: the job is to be given back.
    Released,
    /// Any other end.
    Failed { kind: String, message: String },
    /// It was ended from outside, because the job was taken away or this worker stops.
    Stopped,
}

/// Runs `command` once. What it prints is its result, or is discarded if the job `keeps` none. When
/// `cancelled` resolves first, its process group gets SIGTERM, and 10 s later SIGKILL.
pub(crate) async fn run(
    command: &[OsString],
    environment: &[(&'static str, String)],
    payload: Bytes,
    keeps: bool,
    cancelled: impl Future<Output = ()>,
) -> io::Result<Ended> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no command"));
    };
    let mut child = Command::new(program)
        .args(arguments)
        .envs(environment.iter().map(|(key, value)| (key, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    let group = Group::of(&child);
    let (Some(mut input), Some(output), Some(errors)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(io::Error::other("the command started without its pipes"));
    };
    let feed = tokio::spawn(async move {
        // A command that does not read its input to the end is no failure.
        let _ = input.write_all(&payload).await;
    });
    let mut result = tokio::spawn(head(output, keeps));
    let mut error = tokio::spawn(tail(errors));

    let (status, stopped) = wait(&mut child, &group, cancelled).await?;
    feed.abort();
    let both = async { ((&mut result).await, (&mut error).await) };
    let (result, error) = match timeout(OUTPUT_GRACE, both).await {
        Ok(both) => both,
        Err(_) => {
            // Something in the group still holds the pipes, so the group's number is still its own.
            group.signal(Signal::KILL);
            result.abort();
            error.abort();
            (result.await, error.await)
        }
    };
    if stopped {
        return Ok(Ended::Stopped);
    }
    let result = result.unwrap_or(Ok(None)).ok().flatten();
    let error = error.map(|read| read.unwrap_or_default()).unwrap_or_default();
    Ok(judge(status, result, &error))
}

/// Waits for the end, and brings it about when the job is cancelled.
async fn wait(
    child: &mut Child,
    group: &Group,
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
    let status = match timeout(TERM_GRACE, child.wait()).await {
        Ok(status) => status,
        Err(_) => {
            group.signal(Signal::KILL);
            child.wait().await
        }
    };
    group.ended.store(true, Relaxed);
    Ok((status?, true))
}

/// The process group of a command. Dropped before the command has ended, it is killed: nobody waits
/// for it any more.
struct Group {
    leader: Option<Pid>,
    ended: AtomicBool,
}

impl Group {
    fn of(child: &Child) -> Group {
        let leader = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        Group { leader, ended: AtomicBool::new(false) }
    }

    fn signal(&self, signal: Signal) {
        if let Some(leader) = self.leader {
            // The group may have ended by itself meanwhile.
            let _ = kill_process_group(leader, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.ended.load(Relaxed) {
            self.signal(Signal::KILL);
        }
    }
}

/// Everything that is printed, or none when that is more than a result may have; read to the end
/// all the same. Nothing of a result that is not kept.
async fn head(mut output: impl AsyncRead + Unpin, keeps: bool) -> io::Result<Option<Bytes>> {
    let mut kept = Vec::new();
    if !keeps {
        tokio::io::copy(&mut output, &mut tokio::io::sink()).await?;
        return Ok(Some(Bytes::new()));
    }
    (&mut output).take(RESULT_BYTES_MAX as u64 + 1).read_to_end(&mut kept).await?;
    if kept.len() <= RESULT_BYTES_MAX {
        return Ok(Some(Bytes::from(kept)));
    }
    tokio::io::copy(&mut output, &mut tokio::io::sink()).await?;
    Ok(None)
}

/// The last 8 KiB of what is printed.
async fn tail(mut output: impl AsyncRead + Unpin) -> io::Result<Vec<u8>> {
    let mut kept = Vec::new();
    let mut chunk = [0; 4 * 1024];
    loop {
        match output.read(&mut chunk).await? {
            0 => return Ok(kept),
            n => kept.extend_from_slice(&chunk[..n]),
        }
        if let Some(over) = kept.len().checked_sub(ERROR_BYTES_MAX) {
            kept.drain(..over);
        }
    }
}

fn judge(status: ExitStatus, result: Option<Bytes>, error: &[u8]) -> Ended {
    let message = message(error);
    match (status.code(), result) {
        (Some(0), Some(result)) => Ended::Completed { result, stderr: message },
        (Some(0), None) => Ended::Buried {
            kind: "ResultTooLarge".to_owned(),
            message: format!("the command printed more than {RESULT_BYTES_MAX} bytes"),
        },
        (Some(BURY), _) => Ended::Buried { kind: format!("Exit{BURY}"), message },
        (Some(RELEASE), _) => Ended::Released,
        (Some(code), _) => Ended::Failed { kind: format!("Exit{code}"), message },
        (None, _) => {
            let signal = status.signal().unwrap_or_default();
            Ended::Failed { kind: format!("Signal{signal}"), message }
        }
    }
}

/// The end of standard error as text within the limit: what stands for a broken byte may be longer
/// than the byte.
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
    use std::time::Instant;

    use super::*;

    async fn shell(script: &str, payload: &'static [u8]) -> Ended {
        let command = ["sh", "-c", script].map(OsString::from);
        let environment = [("LONGSHORE_JOB_ID", "7".to_owned())];
        let never = std::future::pending();
        run(&command, &environment, Bytes::from_static(payload), true, never).await.unwrap()
    }

    fn completed(result: &'static [u8], stderr: &str) -> Ended {
        Ended::Completed { result: Bytes::from_static(result), stderr: stderr.to_owned() }
    }

    #[tokio::test]
    async fn a_command_that_succeeds_leaves_the_end_of_its_standard_error() {
        let ended = shell("echo done; echo 3 rows skipped >&2", b"").await;
        assert_eq!(ended, completed(b"done\n", "3 rows skipped"));
    }

    #[tokio::test]
    async fn a_result_that_is_not_kept_is_discarded_however_long_it_is() {
        let command = ["head", "-c", "2000000", "/dev/zero"].map(OsString::from);
        let never = std::future::pending();
        let ended = run(&command, &[], Bytes::new(), false, never).await.unwrap();
        assert_eq!(ended, completed(b"", ""));
    }

    #[tokio::test]
    async fn the_payload_goes_in_and_the_result_comes_out() {
        let ended = shell("cat; printf %s \"$LONGSHORE_JOB_ID\"", b"a\nb\0c").await;
        assert_eq!(ended, completed(b"a\nb\0c7", ""));
    }

    #[tokio::test]
    async fn exit_codes_decide() {
        let failed = |kind: &str, message: &str| Ended::Failed {
            kind: kind.to_owned(),
            message: message.to_owned(),
        };
        assert_eq!(shell("echo why >&2; exit 3", b"").await, failed("Exit3", "why"));
        assert_eq!(shell("kill -9 $$", b"").await, failed("Signal9", ""));
        assert_eq!(shell("exit 75", b"").await, Ended::Released);
        let buried = Ended::Buried { kind: "Exit65".to_owned(), message: "bad".to_owned() };
        assert_eq!(shell("echo bad >&2; exit 65", b"").await, buried);
    }

    #[tokio::test]
    async fn a_command_that_ignores_a_large_payload_still_completes() {
        static PAYLOAD: [u8; 1024 * 1024] = [b'x'; 1024 * 1024];
        assert_eq!(shell("exit 0", &PAYLOAD).await, completed(b"", ""));
    }

    #[tokio::test]
    async fn a_result_of_the_limit_is_taken_and_one_byte_more_is_buried() {
        let exact = shell(&format!("head -c {RESULT_BYTES_MAX} /dev/zero"), b"").await;
        assert!(
            matches!(exact, Ended::Completed { result, .. } if result.len() == RESULT_BYTES_MAX)
        );
        let more = shell(&format!("head -c {} /dev/zero", RESULT_BYTES_MAX + 1), b"").await;
        assert!(matches!(more, Ended::Buried { kind, .. } if kind == "ResultTooLarge"));
    }

    #[tokio::test]
    async fn the_error_is_the_end_of_standard_error() {
        let script = "head -c 100000 /dev/zero | tr '\\0' x >&2; echo the end >&2; exit 1";
        let Ended::Failed { message, .. } = shell(script, b"").await else { panic!() };
        assert!(message.len() <= ERROR_BYTES_MAX && message.ends_with("xthe end"));
    }

    #[tokio::test]
    async fn cancelling_ends_the_whole_group() {
        let folder = tempfile::tempdir().unwrap();
        let note = folder.path().join("alive");
        // A child of the command writes the note unless it is ended with it.
        let script = format!("(sleep 1.5; touch {}) & wait", note.display());
        let command = ["sh", "-c", &script].map(OsString::from);
        let started = Instant::now();
        let soon = tokio::time::sleep(Duration::from_millis(100));
        let ended = run(&command, &[], Bytes::new(), true, soon).await.unwrap();
        assert_eq!(ended, Ended::Stopped);
        assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
        tokio::time::sleep(Duration::from_millis(1_700)).await;
        assert!(!note.exists());
    }

    #[tokio::test]
    async fn a_run_that_is_dropped_ends_its_command() {
        let folder = tempfile::tempdir().unwrap();
        let note = folder.path().join("alive");
        let script = format!("(sleep 0.6; touch {}) & wait", note.display());
        let command = ["sh", "-c", &script].map(OsString::from);
        let run = run(&command, &[], Bytes::new(), true, std::future::pending());
        assert!(timeout(Duration::from_millis(200), run).await.is_err());
        tokio::time::sleep(Duration::from_millis(800)).await;
        assert!(!note.exists());
    }

    #[tokio::test]
    async fn a_command_that_does_not_exist_is_an_error() {
        let command = [OsString::from("/no/such/program")];
        let error =
            run(&command, &[], Bytes::new(), true, std::future::pending()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
