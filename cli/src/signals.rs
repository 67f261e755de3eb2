//! SIGTERM and SIGINT, and for a worker SIGHUP: the first requests a graceful stop, the second
//! forces an exit.

use std::future::Future;
use std::io;
use std::process;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::failure::Interrupted;

/// 128 + SIGTERM, as a shell reports it.
const TERM_EXIT_CODE: u8 = 143;
/// 128 + SIGINT.
const INT_EXIT_CODE: u8 = 130;
/// 128 + SIGHUP.
const HANGUP_EXIT_CODE: u8 = 129;
/// Time between the second signal and the exit, for example to restore a terminal, or to kill
/// commands: a worker waits up to 250 ms for that.
const FORCED_EXIT_DELAY: Duration = Duration::from_millis(300);

/// The exit code of a forced exit; 0 until one is forced.
static FORCED_EXIT_CODE: AtomicU8 = AtomicU8::new(0);

/// The exit code once an exit is forced, whatever the command's own result is.
pub(crate) fn forced_exit_code() -> Option<u8> {
    Some(FORCED_EXIT_CODE.load(Relaxed)).filter(|code| *code != 0)
}

/// Reports whether the program was signalled to stop. Cheap to clone.
#[derive(Clone)]
pub(crate) struct StopSignal {
    received: watch::Receiver<Received>,
}

/// The number of stop signals so far, and the exit code for the newest.
#[derive(Clone, Copy, Default)]
struct Received {
    count: u32,
    code: u8,
}

impl StopSignal {
    /// Installs handlers for SIGTERM and SIGINT. From then on only the second signal ends the
    /// process.
    pub(crate) fn listen() -> io::Result<StopSignal> {
        StopSignal::listen_to(None)
    }

    /// The same, and for SIGHUP: a terminal that is closed ends a worker, and its commands would
    /// run on, as they are in process groups of their own. Not if SIGHUP is ignored, as by `nohup`.
    pub(crate) fn listen_with_hangup() -> io::Result<StopSignal> {
        let is_ignored = hangup_is_ignored();
        StopSignal::listen_to((!is_ignored).then(|| signal(SignalKind::hangup())).transpose()?)
    }

    fn listen_to(mut hangup: Option<Signal>) -> io::Result<StopSignal> {
        let (sender, received) = watch::channel(Received::default());
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::spawn(async move {
            loop {
                let code = tokio::select! {
                    _ = terminate.recv() => TERM_EXIT_CODE,
                    _ = interrupt.recv() => INT_EXIT_CODE,
                    () = received_by(&mut hangup) => HANGUP_EXIT_CODE,
                };
                let before = sender.borrow().count;
                // A terminal that is closed may send two.
                if code == HANGUP_EXIT_CODE && before > 0 {
                    continue;
                }
                let count = before + 1;
                sender.send_replace(Received { count, code });
                if count == 1 {
                    // On its own thread: a terminal that blocks output must not delay the
                    // second signal.
                    let print = || report!("stopping; once more to stop now");
                    let _ = std::thread::Builder::new().spawn(print);
                } else if count == 2 {
                    FORCED_EXIT_CODE.store(code, Relaxed);
                    tokio::spawn(async move {
                        tokio::time::sleep(FORCED_EXIT_DELAY).await;
                        process::exit(i32::from(code));
                    });
                }
            }
        });
        Ok(StopSignal { received })
    }

    /// The exit code for an interrupted program: 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP;
    /// none without a signal.
    pub(crate) fn code(&self) -> Option<u8> {
        let received = *self.received.borrow();
        (received.count > 0).then_some(received.code)
    }

    /// The result of a command that a signal ended; `is_early` if it had not done what it was
    /// asked.
    pub(crate) fn ended(&self, is_early: bool) -> anyhow::Result<()> {
        match self.code().filter(|_| is_early) {
            Some(code) => Err(Interrupted(code).into()),
            None => Ok(()),
        }
    }

    /// Resolves at the first signal.
    pub(crate) fn requested(&self) -> impl Future<Output = ()> + Send + 'static {
        self.at_least(1)
    }

    /// Resolves at the second signal. The process exits [`FORCED_EXIT_DELAY`] later.
    pub(crate) fn forced(&self) -> impl Future<Output = ()> + Send + 'static {
        self.at_least(2)
    }

    fn at_least(&self, count: u32) -> impl Future<Output = ()> + Send + 'static {
        let mut received = self.received.clone();
        async move {
            // Without a sender no signal can arrive any more.
            if received.wait_for(|received| received.count >= count).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

async fn received_by(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => _ = signal.recv().await,
        None => std::future::pending().await,
    }
}

/// Whether this process was started with SIGHUP ignored.
fn hangup_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & 1 != 0)
}

/// Resolves when standard input ends. A parent process holds the other end of the pipe, so its
/// children also exit when it is killed.
pub(crate) async fn parent_exited() {
    let (open, mut closed) = watch::channel(());
    std::thread::spawn(move || {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        drop(open);
    });
    while closed.changed().await.is_ok() {}
}
