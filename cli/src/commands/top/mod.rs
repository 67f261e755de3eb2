//! `longshore top`: publishers, queues, workers and replicas as they are, from the metrics below
//! `/sys`.

mod board;
mod screen;

use std::collections::HashMap;
use std::io::IsTerminal;
use std::time::Duration;

use longshore::values::{
    DurableValue, Event, SubscribeOptions, Subscriber, SubscriptionKey, Updates,
};
use longshore::{Glob, Path, PathEvent};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use self::board::Board;
use self::screen::Screen;
use super::sys::below;
use super::{Context, value_text};
use crate::arguments::Top;
use crate::signals::Stop;

/// How often it is shown.
const SHOWN_EVERY: Duration = Duration::from_secs(1);
/// How long metrics may take to come before what there is is shown once.
const ONCE_WITHIN: Duration = Duration::from_secs(5);
/// Updates that may wait to be read; beyond, each metric's newest does.
const UPDATES_WAITING_MAX: usize = 4_096;

pub(crate) async fn run(arguments: Top, mut context: Context) -> anyhow::Result<()> {
    let stop = Stop::listen()?;
    let globs = vec![Glob::new("/sys/publishers/*")?, Glob::new("/sys/replicas/*")?];
    let client = context.read_client();
    let mut watch = client.watch_paths(globs);
    let mut publishers = client.watch_publishers(Glob::everything());
    let mut following = Following::new(Subscriber::connect(context.cluster()).await?);
    let mut board = Board::default();
    let mut screen = match context.output.is_json() || arguments.once {
        false if std::io::stdout().is_terminal() => Some(Screen::open()?),
        _ => None,
    };
    if let Some(found) = screen.as_ref().map(Screen::found) {
        // While the terminal takes no output the first time comes to nothing, and after the second
        // nothing is dropped.
        let at_once = stop.asked_twice();
        tokio::spawn(async move {
            at_once.await;
            found.restore();
        });
    }
    let mut whole = false;
    let mut ticks = interval(SHOWN_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first is at once, when there is nothing to show.
    ticks.tick().await;
    let once_by = Instant::now() + ONCE_WITHIN;
    loop {
        tokio::select! {
            event = watch.next() => match event? {
                PathEvent::Now(listed) if listed.default => {
                    board.replica_or_publisher(&listed.path);
                    following.follow(&listed.path);
                }
                PathEvent::Now(listed) => {
                    following.forget(&listed.path);
                    board.forget(&listed.path);
                }
                PathEvent::Gone(path) => {
                    following.forget(&path);
                    board.forget(&path);
                }
                PathEvent::Whole { .. } => whole = true,
                PathEvent::SnapshotBegins { .. } | PathEvent::Refused { .. } => {}
            },
            set = publishers.changed() => board.publishers(set.publishers),
            events = following.updates.next() => {
                for (key, event) in events {
                    let Some(path) = following.paths.get(key) else { continue };
                    match event {
                        Event::Update(value) => board.told(path, value_text::to_json(value)),
                        Event::Dead(why) => board.lost(path, why),
                    }
                }
            }
            _ = ticks.tick(), if !arguments.once => {
                board.sample(std::time::Instant::now());
                show(&board, screen.as_mut(), &mut context)?;
            }
            () = sleep_until(once_by), if arguments.once => {
                show(&board, None, &mut context)?;
                anyhow::bail!("not all that the directory names has told its metrics");
            }
            () = stop.asked() => return Ok(()),
            () = quit(screen.as_mut()) => return Ok(()),
        }
        if arguments.once && whole && board.is_whole() {
            return show(&board, None, &mut context);
        }
    }
}

/// Waits until somebody at the terminal wants no more of it.
async fn quit(screen: Option<&mut Screen>) {
    match screen {
        Some(screen) => screen.quit().await,
        None => std::future::pending().await,
    }
}

/// Shows it all: anew on a terminal, as lines elsewhere.
fn show(board: &Board, screen: Option<&mut Screen>, context: &mut Context) -> anyhow::Result<()> {
    if context.output.is_json() {
        context.output.json(&board.json())?;
        return Ok(());
    }
    match screen {
        Some(screen) => screen.show(&board.lines(Some(screen.rows())))?,
        None => {
            for line in board.lines(None) {
                context.output.line(line)?;
            }
        }
    }
    Ok(())
}

/// The metrics that are followed.
struct Following {
    subscriber: Subscriber,
    updates: Updates,
    paths: HashMap<SubscriptionKey, Path>,
    held: HashMap<Path, Vec<DurableValue>>,
}

impl Following {
    fn new(subscriber: Subscriber) -> Following {
        let updates = Updates::new(UPDATES_WAITING_MAX);
        Following { subscriber, updates, paths: HashMap::new(), held: HashMap::new() }
    }

    /// Follows all metrics of a publisher or a replica.
    fn follow(&mut self, base: &Path) {
        if self.held.contains_key(base) {
            return;
        }
        let mut paths = vec![base.clone()];
        if base.segments().nth(1) == Some("publishers") {
            paths.extend(["queues", "workers"].iter().filter_map(|name| below(base, name)));
        }
        let options =
            SubscribeOptions { into: Some(self.updates.sink()), ..SubscribeOptions::default() };
        let held = self.subscriber.durable_subscribe_all(paths, &options);
        self.paths.extend(held.iter().map(|value| (value.key(), value.path().clone())));
        self.held.insert(base.clone(), held);
    }

    fn forget(&mut self, base: &Path) {
        for value in self.held.remove(base).into_iter().flatten() {
            self.paths.remove(&value.key());
        }
    }
}
