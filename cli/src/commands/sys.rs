//! Reads the metrics below `/sys`.

use std::time::Duration;

use longshore::values::{Event, SubscribeOptions, Subscriber};
use longshore::{Glob, Path, ReadClient};
use serde_json::Value as Json;
use tokio::task::JoinSet;

use super::value_text;

/// The timeout of one metric.
const METRIC_TIMEOUT: Duration = Duration::from_secs(5);

/// The base paths of all `publishers` or `replicas` with metrics, and whether the directory is
/// complete.
pub(crate) async fn bases(client: &ReadClient, kind: &str) -> anyhow::Result<(Vec<Path>, bool)> {
    let listing = client.list_matching(vec![Glob::new(&format!("/sys/{kind}/*"))?]).await?;
    let bases = listing.paths.into_iter().filter(|listed| listed.default);
    Ok((bases.map(|listed| listed.path).collect(), listing.complete))
}

/// Reads metrics concurrently. Returns the value or the error of each, in order.
pub(crate) async fn read(
    subscriber: &Subscriber,
    paths: Vec<Path>,
) -> Vec<(Path, Result<Json, String>)> {
    let mut reading = JoinSet::new();
    for (index, path) in paths.into_iter().enumerate() {
        let subscriber = subscriber.clone();
        reading.spawn(async move {
            let metric = read_one(&subscriber, path.clone()).await;
            (index, path, metric)
        });
    }
    let mut metrics = reading.join_all().await;
    metrics.sort_unstable_by_key(|(index, ..)| *index);
    metrics.into_iter().map(|(_, path, metric)| (path, metric)).collect()
}

async fn read_one(subscriber: &Subscriber, path: Path) -> Result<Json, String> {
    let options = SubscribeOptions { within: METRIC_TIMEOUT, ..SubscribeOptions::default() };
    let subscription = subscriber.subscribe_with(path, &options).await;
    let mut subscription = subscription.map_err(|error| error.to_string())?;
    match subscription.next().await {
        Some(Event::Update(value)) => Ok(value_text::to_json(&value)),
        Some(Event::Dead(why)) => Err(why.to_string()),
        None => Err("the subscription ended".to_owned()),
    }
}

/// A child of a path.
pub(crate) fn below(base: &Path, name: &str) -> Option<Path> {
    Path::new(&format!("{base}/{name}")).ok()
}

/// The name of the publisher or replica in a path of metrics.
pub(crate) fn name_of(path: &Path) -> &str {
    path.segments().nth(2).unwrap_or_default()
}

/// A number in a map.
pub(crate) fn number(map: &Json, field: &str) -> u64 {
    map[field].as_u64().unwrap_or_default()
}

/// A string in a map.
pub(crate) fn text<'a>(map: &'a Json, field: &str) -> &'a str {
    map[field].as_str().unwrap_or_default()
}
