//! The metrics below `/sys`, as tools read them.

use std::time::Duration;

use longshore::values::{Event, SubscribeOptions, Subscriber};
use longshore::{Glob, Path, ReadClient};
use serde_json::Value as Json;
use tokio::task::JoinSet;

use super::value_text;

/// How long one metric may take to come.
const METRIC_WITHIN: Duration = Duration::from_secs(5);

/// Those of a kind that tell metrics: `publishers` or `replicas`; and whether the directory was
/// sure to know all.
pub(super) async fn bases(client: &ReadClient, kind: &str) -> anyhow::Result<(Vec<Path>, bool)> {
    let listing = client.list_matching(vec![Glob::new(&format!("/sys/{kind}/*"))?]).await?;
    let bases = listing.paths.into_iter().filter(|listed| listed.default);
    Ok((bases.map(|listed| listed.path).collect(), listing.complete))
}

/// Reads these once, side by side; in their order, each with what it is or why it is not known.
pub(super) async fn read(
    subscriber: &Subscriber,
    paths: Vec<Path>,
) -> Vec<(Path, Result<Json, String>)> {
    let mut reading = JoinSet::new();
    for (place, path) in paths.into_iter().enumerate() {
        let subscriber = subscriber.clone();
        reading.spawn(async move {
            let metric = read_one(&subscriber, path.clone()).await;
            (place, path, metric)
        });
    }
    let mut metrics = reading.join_all().await;
    metrics.sort_unstable_by_key(|(place, ..)| *place);
    metrics.into_iter().map(|(_, path, metric)| (path, metric)).collect()
}

async fn read_one(subscriber: &Subscriber, path: Path) -> Result<Json, String> {
    let options = SubscribeOptions { within: METRIC_WITHIN, ..SubscribeOptions::default() };
    let held = subscriber.subscribe_with(path, &options).await;
    let mut held = held.map_err(|error| error.to_string())?;
    match held.next().await {
        Some(Event::Update(value)) => Ok(value_text::to_json(&value)),
        Some(Event::Dead(why)) => Err(why.to_string()),
        None => Err("it was lost".to_owned()),
    }
}

/// What lies below a path, as a path.
pub(super) fn below(base: &Path, name: &str) -> Option<Path> {
    Path::new(&format!("{base}/{name}")).ok()
}

/// The name that a path of metrics has, its last segment.
pub(super) fn name_of(path: &Path) -> &str {
    path.segments().nth(2).unwrap_or_default()
}

/// A count of a map.
pub(super) fn number(map: &Json, field: &str) -> u64 {
    map[field].as_u64().unwrap_or_default()
}

/// A text of a map.
pub(super) fn text<'a>(map: &'a Json, field: &str) -> &'a str {
    map[field].as_str().unwrap_or_default()
}
