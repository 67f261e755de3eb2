//! What a service reports to its service manager, systemd, by sd_notify: that it is ready, reloads
//! or stops, its status, and that it still works. Without a service manager, nothing.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::Mutex;
use tokio::task::{AbortHandle, JoinHandle, spawn_blocking};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

/// The variables that a service manager sets. Children that are no part of the service must not
/// inherit them.
pub(crate) const VARIABLES: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

/// The longest that a report may take, so that a service manager that hangs delays nothing.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest time between two checks of a service. A watchdog gets four in its period.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// How often a long start asks for more time.
const EXTEND_INTERVAL: Duration = Duration::from_secs(10);
/// The time that it asks for.
const EXTENSION: Duration = Duration::from_secs(60);

/// The outcome of a check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Health {
    /// It works; its status for operators.
    Alive(String),
    /// It does not, with the reason: the watchdog hears nothing, and ends it.
    Hung(String),
}

/// The report that the service is ready.
enum ReadyReport {
    None,
    Sending(AbortHandle),
    /// The service stops: it is not ready again.
    Over,
}

static READY: parking_lot::Mutex<ReadyReport> = parking_lot::Mutex::new(ReadyReport::None);

/// The service is ready. That is reported again until the service manager reads it: otherwise it
/// would end a service that works.
pub(crate) fn ready(status: impl Into<String>) {
    let mut status = Some(status.into());
    let mut report = READY.lock();
    match &*report {
        ReadyReport::None => {}
        ReadyReport::Sending(earlier) => earlier.abort(),
        ReadyReport::Over => return,
    }
    let sending = tokio::spawn(async move {
        // Later, the checks report the status.
        while let Err(why) = send(vec![NotifyState::Ready], status.take()).await {
            if matches!(why, NotSent::Unreachable(_)) {
                why.log();
                break;
            }
            tracing::debug!("it is reported again that the service is ready");
            sleep(NOTIFY_TIMEOUT).await;
        }
    });
    *report = ReadyReport::Sending(sending.abort_handle());
}

/// Cancels a pending report. Returns false if the service is stopping.
fn end_ready_report(next: ReadyReport) -> bool {
    let mut report = READY.lock();
    if matches!(*report, ReadyReport::Over) {
        return false;
    }
    if let ReadyReport::Sending(earlier) = std::mem::replace(&mut *report, next) {
        earlier.abort();
    }
    true
}

/// The service begins to reload its configuration, until it is [`ready`] again. Does nothing if the
/// service is stopping.
pub(crate) async fn reloading() {
    if end_ready_report(ReadyReport::None)
        && let Ok(now) = NotifyState::monotonic_usec_now()
    {
        notify(vec![NotifyState::Reloading, now], None).await;
    }
}

/// The service begins to stop. Its checks end.
pub(crate) async fn stopping(checks: &AbortHandle, status: impl Into<String>) {
    checks.abort();
    end_ready_report(ReadyReport::Over);
    notify(vec![NotifyState::Stopping], Some(status.into())).await;
}

/// Runs the long part of a start, and asks for more time while it goes on. There is no limit: a
/// start that is killed for its length would never succeed.
pub(crate) async fn starting<T>(what: &str, start: impl Future<Output = T>) -> T {
    let mut start = pin!(start);
    if !is_managed() {
        return start.await;
    }
    let (began, mut extend) = (Instant::now(), interval(EXTEND_INTERVAL));
    extend.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            started = &mut start => return started,
            _ = extend.tick() => {
                let extension = NotifyState::ExtendTimeoutUsec(EXTENSION.as_micros() as u32);
                let status = format!("{what} for {} s", began.elapsed().as_secs());
                notify(vec![extension], Some(status)).await;
            }
        }
    }
}

/// Checks the service from now on: reports its status, and to a watchdog that it works.
pub(crate) fn keep_checking<F>(check: impl FnMut() -> F + Send + 'static) -> AbortHandle
where
    F: Future<Output = Health> + Send,
{
    let checks = tokio::spawn(async move {
        if is_managed() {
            let watchdog = sd_notify::watchdog_enabled();
            let every = watchdog.map_or(CHECK_INTERVAL, |limit| CHECK_INTERVAL.min(limit / 4));
            check_each(every, check, |alive, status| {
                let alive = (alive && watchdog.is_some()).then_some(NotifyState::Watchdog);
                notify(alive.into_iter().collect(), status)
            })
            .await;
        }
    });
    checks.abort_handle()
}

/// Reports the outcome of each check: whether the service works, and its status if that is not what
/// was taken last. A report returns whether it was taken, or never can be. Never ends.
async fn check_each<F, R>(
    every: Duration,
    mut check: impl FnMut() -> F,
    mut report: impl FnMut(bool, Option<String>) -> R,
) where
    F: Future<Output = Health>,
    R: Future<Output = bool>,
{
    // None if that is not known: a report that was not taken may still arrive.
    let mut reported: Option<String> = None;
    let mut hung = false;
    loop {
        sleep(every).await;
        let mut checking = pin!(check());
        let mut checked = timeout(every, &mut checking).await.ok();
        if checked.is_none() {
            let what = format!("hangs: no answer for {} s", every.as_secs_f32());
            if !std::mem::replace(&mut hung, true) {
                tracing::error!("{what}; the watchdog hears nothing until it answers");
            }
            reported = report(false, Some(what.clone())).await.then_some(what);
            checked = Some(checking.await);
        }
        let (alive, status) = match checked {
            Some(Health::Alive(status)) => (true, status),
            Some(Health::Hung(why)) => (false, why),
            None => continue,
        };
        if std::mem::replace(&mut hung, !alive) == alive {
            match alive {
                true => tracing::info!("works again: {status}"),
                false => tracing::error!("{status}; the watchdog hears nothing meanwhile"),
            }
        }
        let changed = (reported.as_ref() != Some(&status)).then(|| status.clone());
        if alive || changed.is_some() {
            reported = report(alive, changed).await.then_some(status);
        }
    }
}

fn is_managed() -> bool {
    std::env::var_os(VARIABLES[0]).is_some()
}

/// The report that is being sent, if one is.
type Sending = Mutex<Option<JoinHandle<io::Result<()>>>>;

/// Why a report was not sent.
enum NotSent {
    Unreachable(io::Error),
    /// The service manager does not read.
    NotTaken,
}

impl NotSent {
    fn log(&self) {
        match self {
            NotSent::Unreachable(error) => {
                tracing::warn!(%error, "cannot reach the service manager");
            }
            NotSent::NotTaken => tracing::warn!("the service manager takes no report"),
        }
    }
}

/// Sends one report, or logs why it could not. Returns false if it may be taken later.
async fn notify(states: Vec<NotifyState<'static>>, status: Option<String>) -> bool {
    let sent = send(states, status).await;
    if let Err(why) = &sent {
        why.log();
    }
    !matches!(sent, Err(NotSent::NotTaken))
}

/// Sends one report, if there is a service manager.
async fn send(states: Vec<NotifyState<'static>>, status: Option<String>) -> Result<(), NotSent> {
    if !is_managed() {
        return Ok(());
    }
    static SENDING: Sending = Mutex::const_new(None);
    let send = move || {
        // A line for each state, so a status has no other.
        let status = status.map(|status| status.replace('\n', " "));
        let mut all: Vec<NotifyState<'_>> = states;
        all.extend(status.as_deref().map(NotifyState::Status));
        sd_notify::notify(&all)
    };
    match timeout(NOTIFY_TIMEOUT, send_after_last(&SENDING, send)).await {
        Ok(sent) => sent.map_err(NotSent::Unreachable),
        Err(_) => Err(NotSent::NotTaken),
    }
}

/// Sends a report once the last one is sent, on a thread: a full socket blocks. So a service
/// manager that hangs blocks one thread, however many reports follow. Cancel safe: a report that
/// has begun goes on.
async fn send_after_last(
    sending: &Sending,
    send: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> io::Result<()> {
    let mut sending = sending.lock().await;
    if let Some(last) = sending.as_mut() {
        // Its own report has logged its error.
        let _ = last.await;
    }
    let sent = sending.insert(spawn_blocking(send)).await;
    *sending = None;
    sent.unwrap_or_else(|panicked| Err(io::Error::other(panicked)))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    const EVERY: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn a_service_that_stops_is_not_ready_again_after_a_reload() {
        let checks = tokio::spawn(std::future::pending::<()>()).abort_handle();
        stopping(&checks, "draining").await;
        reloading().await;
        ready("the configuration is reloaded");
        assert!(matches!(*READY.lock(), ReadyReport::Over));
    }

    #[tokio::test]
    async fn a_manager_that_hangs_blocks_one_thread_whatever_follows() {
        let (sending, begun) = (Sending::default(), Arc::new(AtomicUsize::new(0)));
        let (unblock, blocked) = std::sync::mpsc::channel::<()>();
        let blocked = Arc::new(std::sync::Mutex::new(blocked));
        let report = async |wait: u64| {
            let (begun, blocked) = (begun.clone(), blocked.clone());
            let send = move || {
                begun.fetch_add(1, Relaxed);
                let _ = blocked.lock().map(|blocked| blocked.recv());
                Ok(())
            };
            timeout(Duration::from_millis(wait), send_after_last(&sending, send)).await
        };
        for _ in 0..3 {
            assert!(report(20).await.is_err());
        }
        assert_eq!(begun.load(Relaxed), 1);
        drop(unblock);
        assert!(report(30_000).await.is_ok_and(|sent| sent.is_ok()));
        assert_eq!(begun.load(Relaxed), 2, "those that were given up are not sent late");
    }

    /// The reports of a service whose checks take so long and end so, with their times in seconds.
    /// Those at the second `refused` are not taken.
    async fn reports(
        checks: &[(u64, Health)],
        refused: Option<u64>,
    ) -> Vec<(u64, bool, Option<String>)> {
        let mut checks: VecDeque<_> = checks.iter().cloned().collect();
        let (began, reported) = (Instant::now(), RefCell::new(Vec::new()));
        let check = || {
            let next = checks.pop_front();
            async move {
                let Some((seconds, health)) = next else { return std::future::pending().await };
                sleep(Duration::from_secs(seconds)).await;
                health
            }
        };
        let report = |alive, status| {
            let now = began.elapsed().as_secs();
            reported.borrow_mut().push((now, alive, status));
            std::future::ready(refused != Some(now))
        };
        let _ = timeout(Duration::from_secs(100), check_each(EVERY, check, report)).await;
        reported.into_inner()
    }

    fn alive(status: &str) -> Health {
        Health::Alive(status.to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn status_is_reported_when_it_changes_and_life_at_each_check() {
        let found = reports(&[(0, alive("a")), (0, alive("a")), (1, alive("b"))], None).await;
        assert_eq!(
            found[..3],
            [(5, true, Some("a".into())), (10, true, None), (16, true, Some("b".into()))]
        );
        // No check answers from here on.
        assert_eq!(found[3..], [(26, false, Some("hangs: no answer for 5 s".into()))]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_status_is_reported_again_after_one_that_was_not_taken() {
        for next in ["a", "b"] {
            let checks = ["a", "b", next, next].map(|status| (0, alive(status)));
            let found = reports(&checks, Some(10)).await;
            assert_eq!(
                found[1..4],
                [(10, true, Some("b".into())), (15, true, Some(next.into())), (20, true, None),]
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_hung_service_reports_no_life_until_it_answers_again() {
        let hung = Health::Hung("its disk hangs".to_owned());
        let checks = [(0, hung.clone()), (0, hung), (30, alive("a")), (0, alive("a"))];
        let found = reports(&checks, None).await;
        assert_eq!(
            found[..4],
            [
                (5, false, Some("its disk hangs".into())),
                (20, false, Some("hangs: no answer for 5 s".into())),
                (45, true, Some("a".into())),
                (50, true, None),
            ]
        );
    }
}
