//! SIGTERM and SIGINT: the first drains, the second stops now.

use std::future::Future;
use std::io;
use std::process;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// 128 + SIGTERM, as a shell reports it.
const BY_TERM: u8 = 143;
/// 128 + SIGINT.
const BY_INT: u8 = 130;
/// What is left to those that want to end something of their own when the program stops now.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// The exit code of a program that was asked to stop now; 0 while it was not.
static STOPPED_NOW: AtomicU8 = AtomicU8::new(0);

/// The exit code of a program that was asked to stop now, however well its command ends in the
/// moment that is left to it.
pub(crate) fn stopped_now() -> Option<u8> {
    Some(STOPPED_NOW.load(Relaxed)).filter(|code| *code != 0)
}

/// Knows whether the program was asked to stop. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Stop {
    asked: watch::Receiver<Asked>,
}

/// How often the program was asked to stop, and what it ends with for the newest signal.
#[derive(Clone, Copy, Default)]
struct Asked {
    times: u32,
    code: u8,
}

impl Stop {
    /// Begins to listen for SIGTERM and SIGINT. The process no longer ends by them at once: the
    /// second one ends it.
    pub(crate) fn listen() -> io::Result<Stop> {
        let (asked, stopped) = watch::channel(Asked::default());
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::spawn(async move {
            loop {
                let code = tokio::select! {
                    _ = terminate.recv() => BY_TERM,
                    _ = interrupt.recv() => BY_INT,
                };
                let times = asked.borrow().times + 1;
                asked.send_replace(Asked { times, code });
                if times == 1 {
                    // Beside this: a terminal that takes no output keeps nobody from being heard
                    // the second time.
                    let say = || eprintln!("stopping; once more to stop now");
                    let _ = std::thread::Builder::new().spawn(say);
                } else if times == 2 {
                    STOPPED_NOW.store(code, Relaxed);
                    tokio::spawn(async move {
                        tokio::time::sleep(LAST_WORDS).await;
                        process::exit(i32::from(code));
                    });
                }
            }
        });
        Ok(Stop { asked: stopped })
    }

    /// The exit code of a program that a signal has kept from its work: 130 for SIGINT, 143 for
    /// SIGTERM; none if there was no signal.
    pub(crate) fn code(&self) -> Option<u8> {
        let asked = *self.asked.borrow();
        (asked.times > 0).then_some(asked.code)
    }

    /// Ends when the program is asked to stop.
    pub(crate) fn asked(&self) -> impl Future<Output = ()> + Send + 'static {
        self.times(1)
    }

    /// Ends when the program is asked to stop now; it ends a moment later, however things stand.
    pub(crate) fn asked_twice(&self) -> impl Future<Output = ()> + Send + 'static {
        self.times(2)
    }

    fn times(&self, least: u32) -> impl Future<Output = ()> + Send + 'static {
        let mut asked = self.asked.clone();
        async move {
            // Without a sender nobody will ever ask.
            if asked.wait_for(|asked| asked.times >= least).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Ends when standard input does. Processes that this program starts for itself hold a pipe to it:
/// when it dies, however, they end too.
pub(crate) async fn parent_gone() {
    let (gone, mut waits) = watch::channel(());
    std::thread::spawn(move || {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        drop(gone);
    });
    while waits.changed().await.is_ok() {}
}
