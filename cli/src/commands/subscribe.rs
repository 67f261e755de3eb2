//! `longshore subscribe`: prints live values as they change.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use longshore::values::{
    DurableValue, Event, SubscribeOptions, Subscriber, SubscriptionKey, Updates, ValueState,
};
use longshore::{Glob, Path, PathEvent, PathListed, PathWatch, Value};
use serde_json::json;

use super::{Context, value_text, warn_if_incomplete};
use crate::arguments::Subscribe;
use crate::failure::AlreadyReported;
use crate::output::{Output, printable};
use crate::signals::StopSignal;

/// Updates that may wait to be printed; beyond it, only the newest of each value is retained.
const UPDATES_WAITING_MAX: usize = 65_536;

pub(crate) async fn run(arguments: Subscribe, mut context: Context) -> anyhow::Result<()> {
    let stop = StopSignal::listen()?;
    let Subscribe { pattern, count, once } = arguments;
    let subscriber = Subscriber::connect(context.cluster()).await?;
    match pattern.literal() {
        Some(path) if once => {
            let mut subscription = tokio::select! {
                subscription = subscriber.subscribe(path.clone()) => subscription?,
                () = stop.requested() => return Ok(()),
            };
            match subscription.next().await {
                Some(Event::Update(value)) => print(&mut context.output, &path, &value),
                Some(Event::Dead(why)) => anyhow::bail!("{path}: {why}"),
                None => anyhow::bail!("{path}: the subscription ended before its value arrived"),
            }
        }
        Some(path) => {
            let value = subscriber.durable_subscribe(path);
            follow_one(value, count.unwrap_or(u64::MAX), stop, context).await
        }
        None => {
            let globs = match pattern.as_str().starts_with("/sys/") {
                // The directory lists only the defaults of metrics that are created on demand.
                true => vec![pattern.clone(), Glob::new("/sys/*/*")?],
                false => vec![pattern.clone()],
            };
            let watch = context.read_client().watch_paths(globs);
            let many = PatternSubscriptions::new(subscriber, pattern, once);
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

/// Follows one value, and reports changes of the subscription's state.
async fn follow_one(
    mut value: DurableValue,
    mut left: u64,
    stop: StopSignal,
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
                // The state has the details.
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
                        eprintln!("{path}: subscribed at publisher {}", publisher.prefix());
                    }
                    ValueState::Dead { reason, attempt: 1, .. } => {
                        eprintln!("{path}: {reason}; retrying until it is available");
                    }
                    ValueState::Dead { .. } => {}
                }
            }
            () = stop.requested() => return Ok(()),
        }
    }
    Ok(())
}

/// Follows all values that match a pattern, as they are added and removed.
struct PatternSubscriptions {
    subscriber: Subscriber,
    pattern: Glob,
    once: bool,
    updates: Updates,
    paths: HashMap<SubscriptionKey, Path>,
    subscriptions: BTreeMap<Path, DurableValue>,
    /// Of those that are to be printed once: which have not been.
    pending_once: BTreeSet<Path>,
}

impl PatternSubscriptions {
    fn new(subscriber: Subscriber, pattern: Glob, once: bool) -> PatternSubscriptions {
        PatternSubscriptions {
            subscriber,
            pattern,
            once,
            updates: Updates::new(UPDATES_WAITING_MAX),
            paths: HashMap::new(),
            subscriptions: BTreeMap::new(),
            pending_once: BTreeSet::new(),
        }
    }

    async fn run(
        mut self,
        mut watch: PathWatch,
        mut left: u64,
        stop: StopSignal,
        mut context: Context,
    ) -> anyhow::Result<()> {
        let mut is_complete = false;
        let mut any = false;
        while left > 0 && !(self.once && is_complete && self.pending_once.is_empty()) {
            tokio::select! {
                event = watch.next() => match event? {
                    PathEvent::Now(listed) => {
                        for path in self.values_of(&listed) {
                            any = true;
                            self.follow(path);
                        }
                    }
                    PathEvent::Gone(path) => self.unsubscribe(&path),
                    PathEvent::Whole { complete } => {
                        is_complete = true;
                        warn_if_incomplete(complete);
                    }
                    PathEvent::SnapshotBegins { .. } => {}
                    PathEvent::Refused { replica, reason } => {
                        eprintln!("replica {replica} refuses the watch: {reason}; trying another");
                    }
                },
                events = self.updates.next() => {
                    for (key, event) in events {
                        // Skip values that were unsubscribed in the meantime.
                        let Some(path) = self.paths.get(key) else { continue };
                        let first = self.pending_once.remove(path);
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
                () = stop.requested() => return Ok(()),
            }
        }
        if self.once && !any {
            eprintln!("error: no publisher has a value that matches '{}'", self.pattern);
            return Err(AlreadyReported.into());
        }
        Ok(())
    }

    /// The values to follow for a directory entry. Metrics are created on demand below their
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
            let metrics =
                below.iter().filter_map(|name| Path::new(&format!("{}{name}", listed.path)).ok());
            values.extend(metrics.filter(|path| self.pattern.matches(path)));
        }
        values
    }

    fn follow(&mut self, path: Path) {
        if self.subscriptions.contains_key(&path) {
            return;
        }
        let options =
            SubscribeOptions { into: Some(self.updates.sink()), ..SubscribeOptions::default() };
        let value = self.subscriber.durable_subscribe_with(path.clone(), &options);
        self.paths.insert(value.key(), path.clone());
        if self.once {
            self.pending_once.insert(path.clone());
        }
        self.subscriptions.insert(path, value);
    }

    /// Unsubscribes from a removed path, and from metrics created below it.
    fn unsubscribe(&mut self, path: &Path) {
        let removed: Vec<Path> = self
            .subscriptions
            .keys()
            .filter(|known| *known == path || (path.is_reserved() && known.is_at_or_below(path)))
            .cloned()
            .collect();
        for path in removed {
            if let Some(value) = self.subscriptions.remove(&path) {
                self.paths.remove(&value.key());
            }
            self.pending_once.remove(&path);
        }
    }
}
