//! SIGTERM and SIGINT: the first drains, the second stops now.

use std::future::Future;
use std::io;
use std::process;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// 128 + SIGTERM, as a shell would say it.
const STOPPED_NOW: i32 = 143;
/// What is left to those that want to end something of their own when the program stops now.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// Knows whether the program was asked to stop. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Stop {
    asked: watch::Receiver<u32>,
}

impl Stop {
    /// Begins to listen for SIGTERM and SIGINT. The process no longer ends by them at once: the second one ends it.
    pub(crate) fn listen() -> io::Result<Stop> {
        let (asked, stopped) = watch::channel(0);
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                let mut times = 0;
                asked.send_modify(|n| {
                    *n += 1;
                    times = *n;
                });
                if times == 1 {
                    // Beside this: a terminal that takes no output keeps nobody from being heard the second time.
                    let say = || eprintln!("stopping; once more to stop now");
                    let _ = std::thread::Builder::new().spawn(say);
                } else if times == 2 {
                    tokio::spawn(async {
                        tokio::time::sleep(LAST_WORDS).await;
                        process::exit(STOPPED_NOW);
                    });
                }
            }
        });
        Ok(Stop { asked: stopped })
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
            if asked.wait_for(|n| *n >= least).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Ends when standard input does. Processes that this program starts for itself hold a pipe to it: when it dies, however,
/// they end too.
pub(crate) async fn parent_gone() {
    let (gone, mut waits) = watch::channel(());
    std::thread::spawn(move || {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        drop(gone);
    });
    while waits.changed().await.is_ok() {}
}
