//! `longshore top`: a live view of publishers, queues, workers and replicas, from the metrics below
//! `/sys`.

mod dashboard;
mod terminal;

use std::collections::HashMap;
use std::io::IsTerminal;
use std::time::Duration;

use longshore::values::{
    DurableValue, Event, SubscribeOptions, Subscriber, SubscriptionKey, Updates,
};
use longshore::{Glob, Path, PathEvent};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use self::dashboard::Dashboard;
use self::terminal::Terminal;
use super::sys::below;
use super::{Context, value_text};
use crate::arguments::Top;
use crate::signals::StopSignal;

/// How often the view is refreshed.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// With `--once`, the longest wait for the metrics.
const ONCE_TIMEOUT: Duration = Duration::from_secs(5);
/// Updates that may wait to be read; beyond it, only the newest of each metric is retained.
const UPDATES_WAITING_MAX: usize = 4_096;

pub(crate) async fn run(arguments: Top, mut context: Context) -> anyhow::Result<()> {
    let stop = StopSignal::listen()?;
    let globs = vec![Glob::new("/sys/publishers/*")?, Glob::new("/sys/replicas/*")?];
    let client = context.read_client();
    let mut watch = client.watch_paths(globs);
    let mut publishers = client.watch_publishers(Glob::everything());
    let mut following = Following::new(Subscriber::connect(context.cluster()));
    let mut dashboard = Dashboard::default();
    let mut terminal = match context.output.is_json() || arguments.once {
        false if std::io::stdout().is_terminal() => Some(Terminal::open()?),
        _ => None,
    };
    if let Some(modes) = terminal.as_ref().map(Terminal::saved_modes) {
        // A terminal that blocks output also blocks the graceful stop, and a forced exit runs no
        // destructors.
        let forced = stop.forced();
        tokio::spawn(async move {
            forced.await;
            modes.restore();
        });
    }
    let mut is_listed = false;
    let mut ticks = interval(REFRESH_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is immediate, when there is nothing to show.
    ticks.tick().await;
    let once_by = Instant::now() + ONCE_TIMEOUT;
    loop {
        tokio::select! {
            event = watch.next() => match event? {
                PathEvent::Now(listed) if listed.default => {
                    dashboard.add_source(&listed.path);
                    following.follow(&listed.path);
                }
                PathEvent::Now(listed) => {
                    following.unfollow(&listed.path);
                    dashboard.remove(&listed.path);
                }
                PathEvent::Gone(path) => {
                    following.unfollow(&path);
                    dashboard.remove(&path);
                }
                PathEvent::Whole { .. } => is_listed = true,
                PathEvent::SnapshotBegins { .. } | PathEvent::Refused { .. } => {}
            },
            set = publishers.changed() => dashboard.set_publishers(set.publishers),
            events = following.updates.next() => {
                for (key, event) in events {
                    let Some(path) = following.paths.get(key) else { continue };
                    match event {
                        Event::Update(value) => dashboard.update(path, value_text::to_json(value)),
                        Event::Dead(why) => dashboard.lost(path, why),
                    }
                }
            }
            _ = ticks.tick(), if !arguments.once => {
                dashboard.sample(std::time::Instant::now());
                show(&dashboard, terminal.as_mut(), &mut context)?;
            }
            () = sleep_until(once_by), if arguments.once => {
                show(&dashboard, None, &mut context)?;
                anyhow::bail!("metrics of some publishers or replicas have not arrived");
            }
            () = stop.requested() => return Ok(()),
            () = quit(terminal.as_mut()) => return Ok(()),
        }
        if arguments.once && is_listed && dashboard.is_complete() {
            return show(&dashboard, None, &mut context);
        }
    }
}

/// Waits for the quit key; pending forever without a terminal.
async fn quit(terminal: Option<&mut Terminal>) {
    match terminal {
        Some(terminal) => terminal.quit().await,
        None => std::future::pending().await,
    }
}

/// Shows the dashboard: redraws a terminal, prints lines elsewhere.
fn show(
    dashboard: &Dashboard,
    terminal: Option<&mut Terminal>,
    context: &mut Context,
) -> anyhow::Result<()> {
    if context.output.is_json() {
        context.output.json(&dashboard.json())?;
        return Ok(());
    }
    match terminal {
        Some(terminal) => terminal.show(&dashboard.lines(Some(terminal.rows())))?,
        None => {
            for line in dashboard.lines(None) {
                context.output.line(line)?;
            }
        }
    }
    Ok(())
}

/// The subscriptions to metrics.
struct Following {
    subscriber: Subscriber,
    updates: Updates,
    paths: HashMap<SubscriptionKey, Path>,
    subscriptions: HashMap<Path, Vec<DurableValue>>,
}

impl Following {
    fn new(subscriber: Subscriber) -> Following {
        let updates = Updates::new(UPDATES_WAITING_MAX);
        Following { subscriber, updates, paths: HashMap::new(), subscriptions: HashMap::new() }
    }

    /// Subscribes to all metrics of a publisher or a replica.
    fn follow(&mut self, base: &Path) {
        if self.subscriptions.contains_key(base) {
            return;
        }
        let mut paths = vec![base.clone()];
        if base.segments().nth(1) == Some("publishers") {
            paths.extend(["queues", "workers"].iter().filter_map(|name| below(base, name)));
        }
        let options =
            SubscribeOptions { into: Some(self.updates.sink()), ..SubscribeOptions::default() };
        let values = self.subscriber.durable_subscribe_all(paths, &options);
        self.paths.extend(values.iter().map(|value| (value.key(), value.path().clone())));
        self.subscriptions.insert(base.clone(), values);
    }

    fn unfollow(&mut self, base: &Path) {
        for value in self.subscriptions.remove(base).into_iter().flatten() {
            self.paths.remove(&value.key());
        }
    }
}
