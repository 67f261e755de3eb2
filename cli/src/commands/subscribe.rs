//! `longshore subscribe`: live values as they change.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use longshore::values::{
    DurableValue, Event, SubscribeOptions, Subscriber, SubscriptionKey, Updates, ValueState,
};
use longshore::{Glob, Path, PathEvent, PathListed, PathWatch, Value};
use serde_json::json;

use super::{Context, value_text, warn_if_incomplete};
use crate::arguments::Subscribe;
use crate::failure::Reported;
use crate::output::{Output, printable};
use crate::signals::Stop;

/// Updates that may wait to be printed; beyond, each value's newest does.
const UPDATES_WAITING_MAX: usize = 65_536;

pub(crate) async fn run(arguments: Subscribe, mut context: Context) -> anyhow::Result<()> {
    let stop = Stop::listen()?;
    let Subscribe { pattern, count, once } = arguments;
    let subscriber = Subscriber::connect(context.cluster()).await?;
    match pattern.literal() {
        Some(path) if once => {
            let mut held = tokio::select! {
                held = subscriber.subscribe(path.clone()) => held?,
                () = stop.asked() => return Ok(()),
            };
            match held.next().await {
                Some(Event::Update(value)) => print(&mut context.output, &path, &value),
                Some(Event::Dead(why)) => anyhow::bail!("{path}: {why}"),
                None => anyhow::bail!("{path} was lost before its value came"),
            }
        }
        Some(path) => {
            let value = subscriber.durable_subscribe(path);
            one(value, count.unwrap_or(u64::MAX), stop, context).await
        }
        None => {
            let globs = match pattern.as_str().starts_with("/sys/") {
                // What is made when it is asked for stands in no directory: its default does.
                true => vec![pattern.clone(), Glob::new("/sys/*/*")?],
                false => vec![pattern.clone()],
            };
            let watch = context.read_client().watch_paths(globs);
            let many = Many::new(subscriber, pattern, once);
            many.run(watch, count.unwrap_or(u64::MAX), stop, context).await
        }
    }
}

fn print(output: &mut Output, path: &Path, value: &Value) -> anyhow::Result<()> {
    if output.is_json() {
        let value = value_text::to_json(value);
        output.json(&json!({ "path": path.as_str(), "value": value }))?;
    } else {
        output.line(format!("{} {value}", printable(path.as_str())))?;
    }
    Ok(())
}

/// Follows one value, and says how the subscription stands.
async fn one(
    mut value: DurableValue,
    mut left: u64,
    stop: Stop,
    mut context: Context,
) -> anyhow::Result<()> {
    let path = value.path().clone();
    let mut state = value.watch_state();
    while left > 0 {
        tokio::select! {
            event = value.next() => match event {
                Some(Event::Update(value)) => {
                    print(&mut context.output, &path, &value)?;
                    left -= 1;
                }
                // The state says more.
                Some(Event::Dead(_)) => {}
                None => return Ok(()),
            },
            changed = state.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
                match &*state.borrow_and_update() {
                    ValueState::Pending => {}
                    ValueState::Alive { publisher, .. } => {
                        eprintln!("{path}: held at publisher {}", publisher.prefix());
                    }
                    ValueState::Dead { reason, attempt: 1, .. } => {
                        eprintln!("{path}: {reason}; tried again until it is there");
                    }
                    ValueState::Dead { .. } => {}
                }
            }
            () = stop.asked() => return Ok(()),
        }
    }
    Ok(())
}

/// Follows every value that matches, as they come and go.
struct Many {
    subscriber: Subscriber,
    pattern: Glob,
    once: bool,
    updates: Updates,
    paths: HashMap<SubscriptionKey, Path>,
    held: BTreeMap<Path, DurableValue>,
    /// Of those that are to be printed once: which have not been.
    awaited: BTreeSet<Path>,
}

impl Many {
    fn new(subscriber: Subscriber, pattern: Glob, once: bool) -> Many {
        Many {
            subscriber,
            pattern,
            once,
            updates: Updates::new(UPDATES_WAITING_MAX),
            paths: HashMap::new(),
            held: BTreeMap::new(),
            awaited: BTreeSet::new(),
        }
    }

    async fn run(
        mut self,
        mut watch: PathWatch,
        mut left: u64,
        stop: Stop,
        mut context: Context,
    ) -> anyhow::Result<()> {
        let mut whole = false;
        let mut any = false;
        while left > 0 && !(self.once && whole && self.awaited.is_empty()) {
            tokio::select! {
                event = watch.next() => match event? {
                    PathEvent::Now(listed) => {
                        for path in self.values_of(&listed) {
                            any = true;
                            self.follow(path);
                        }
                    }
                    PathEvent::Gone(path) => self.forget(&path),
                    PathEvent::Whole { complete } => {
                        whole = true;
                        warn_if_incomplete(complete);
                    }
                    PathEvent::SnapshotBegins { .. } => {}
                    PathEvent::Refused { replica, reason } => {
                        eprintln!("replica {replica} refuses the watch: {reason}; trying another");
                    }
                },
                events = self.updates.next() => {
                    for (key, event) in events {
                        // One that was let go meanwhile.
                        let Some(path) = self.paths.get(key) else { continue };
                        let first = self.awaited.remove(path);
                        match event {
                            Event::Update(value) if (first || !self.once) && left > 0 => {
                                print(&mut context.output, path, value)?;
                                left -= 1;
                            }
                            Event::Update(_) => {}
                            Event::Dead(why) => eprintln!("{path}: {why}"),
                        }
                    }
                }
                () = stop.asked() => return Ok(()),
            }
        }
        if self.once && !any {
            eprintln!("error: nobody publishes a value that matches '{}'", self.pattern);
            return Err(Reported.into());
        }
        Ok(())
    }

    /// The values at a path of the directory that are to be followed. Metrics are made below their
    /// default.
    fn values_of(&self, listed: &PathListed) -> Vec<Path> {
        let mut values = Vec::new();
        if listed.value && self.pattern.matches(&listed.path) {
            values.push(listed.path.clone());
        }
        if listed.default && listed.path.is_reserved() && self.pattern.as_str().starts_with("/sys/")
        {
            let below: &[&str] = match listed.path.segments().nth(1) {
                Some("publishers") => &["", "/queues", "/workers"],
                _ => &[""],
            };
            let made =
                below.iter().filter_map(|name| Path::new(&format!("{}{name}", listed.path)).ok());
            values.extend(made.filter(|path| self.pattern.matches(path)));
        }
        values
    }

    fn follow(&mut self, path: Path) {
        if self.held.contains_key(&path) {
            return;
        }
        let options =
            SubscribeOptions { into: Some(self.updates.sink()), ..SubscribeOptions::default() };
        let value = self.subscriber.durable_subscribe_with(path.clone(), &options);
        self.paths.insert(value.key(), path.clone());
        if self.once {
            self.awaited.insert(path.clone());
        }
        self.held.insert(path, value);
    }

    /// What was at that path, and what was made below it, is gone.
    fn forget(&mut self, path: &Path) {
        let gone: Vec<Path> = self
            .held
            .keys()
            .filter(|held| *held == path || (path.is_reserved() && held.is_at_or_below(path)))
            .cloned()
            .collect();
        for path in gone {
            if let Some(value) = self.held.remove(&path) {
                self.paths.remove(&value.key());
            }
            self.awaited.remove(&path);
        }
    }
}
