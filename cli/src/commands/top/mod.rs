//! `longshore top`: a live view of publishers, queues, workers and replicas, from the metrics below
//! `/sys`.

mod dashboard;
mod detail;
mod draw;
mod queries;
mod rows;
mod terminal;
#[cfg(test)]
mod tests;
mod view;

use std::collections::HashMap;
use std::time::Duration;

use longshore::values::{
    DurableValue, Event, SubscribeOptions, Subscriber, SubscriptionKey, Updates,
};
use longshore::{Glob, Path, PathEvent};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use self::dashboard::Dashboard;
use self::draw::Look;
use self::queries::Queries;
use self::rows::Subject;
use self::terminal::Terminal;
use self::view::{Effect, View};
use super::sys::{below, text};
use super::{Context, value_text, workers};
use crate::arguments::Top;
use crate::signals::StopSignal;
use crate::time::wall_ms;

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
    let mut screen = match context.output.is_json() || arguments.once {
        false if terminal::is_screen() => Some(Screen::open(&context)?),
        _ => None,
    };
    if let Some(modes) = screen.as_ref().map(|screen| screen.terminal.saved_modes()) {
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
                match &mut screen {
                    Some(screen) => screen.draw(&dashboard)?,
                    None => print(&dashboard, &mut context)?,
                }
            }
            () = sleep_until(once_by), if arguments.once => {
                print(&dashboard, &mut context)?;
                anyhow::bail!("metrics of some publishers or replicas have not arrived");
            }
            () = stop.requested() => return stop.ended(arguments.once),
            input = next_input(screen.as_mut()) => if let Some(screen) = &mut screen {
                if screen.handle(input, &dashboard) {
                    return Ok(());
                }
                screen.draw(&dashboard)?;
            },
        }
        if arguments.once && is_listed && dashboard.is_complete() {
            return print(&dashboard, &mut context);
        }
    }
}

/// Prints the dashboard as lines or JSON.
fn print(dashboard: &Dashboard, context: &mut Context) -> anyhow::Result<()> {
    if context.output.is_json() {
        context.output.json(&dashboard.json())?;
        return Ok(());
    }
    for line in dashboard.lines(wall_ms()) {
        context.output.line(line)?;
    }
    Ok(())
}

/// The terminal, what it shows, and the lookups for it.
struct Screen {
    terminal: Terminal,
    view: View,
    look: Look,
    queries: Queries,
}

/// What changes the view.
enum Input {
    Event(ratatui::crossterm::event::Event),
    Report(Subject, Vec<detail::Block>),
}

/// Waits for input; pending forever without a terminal. Cancel safe.
async fn next_input(screen: Option<&mut Screen>) -> Input {
    let Some(screen) = screen else { return std::future::pending().await };
    tokio::select! {
        event = screen.terminal.event() => Input::Event(event),
        (subject, report) = screen.queries.next() => Input::Report(subject, report),
    }
}

impl Screen {
    fn open(context: &Context) -> std::io::Result<Screen> {
        Ok(Screen {
            terminal: Terminal::open()?,
            view: View::new(terminal::size(), wall_ms()),
            look: terminal::look(),
            queries: Queries::new(context.queues()),
        })
    }

    fn draw(&mut self, dashboard: &Dashboard) -> std::io::Result<()> {
        self.view.wall_ms = wall_ms();
        let (view, look) = (&self.view, self.look);
        self.terminal.draw(view.area, |buffer| draw::draw(view, dashboard, look, buffer))
    }

    /// True if the program has to end.
    fn handle(&mut self, input: Input, dashboard: &Dashboard) -> bool {
        let effect = match input {
            Input::Event(event) => self.view.step(&event, dashboard),
            Input::Report(subject, report) => {
                self.view.set_report(&subject, report);
                Effect::Draw
            }
        };
        match effect {
            Effect::Quit => return true,
            Effect::Query(subject) => {
                let patterns = patterns(&subject, dashboard);
                self.queries.open(subject, patterns);
            }
            Effect::Draw => {}
        }
        self.queries.retain(self.view.open.as_ref().map(|open| &open.subject));
        false
    }
}

/// The patterns that a worker takes.
fn patterns(subject: &Subject, dashboard: &Dashboard) -> Vec<Glob> {
    let Subject::Worker { name, session } = subject else { return Vec::new() };
    let mut links = dashboard.workers();
    links.retain(|link| text(link, "name") == name && text(link, "session") == session);
    let globs = links.iter().flat_map(workers::patterns).filter_map(|one| Glob::new(one).ok());
    let mut patterns: Vec<Glob> = Vec::new();
    for glob in globs {
        if !patterns.contains(&glob) {
            patterns.push(glob);
        }
    }
    patterns
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
