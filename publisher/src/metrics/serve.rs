//! Serves a default for metrics: publishes what subscribers request, samples it, and unpublishes it
//! when the last subscriber leaves.

use std::collections::BTreeMap;
use std::time::Duration;

use longshore_protocol::{Path, Value};
use tokio::time::{Instant, sleep_until};
use tracing::debug;

use crate::values::{Published, ValueDefault, ValueRequest, Values};

/// How often metrics are sampled while someone subscribes: at most twice a second.
pub const METRICS_EVERY: Duration = Duration::from_millis(500);
/// Most metrics of one publisher that are served at a time; more are refused.
pub const METRICS_MAX: usize = 1_024;

/// A sample of a metric.
#[derive(Clone, PartialEq, Debug)]
pub enum MetricSample {
    /// The current value.
    Now(Value),
    /// The final value: no more will come.
    Last(Value),
    /// There is no such metric, with the reason.
    Nothing(String),
}

/// A source of metrics.
pub trait MetricSource: Send + 'static {
    /// Samples all of these in one pass, in their order; none once the source has ended.
    fn take(&mut self, paths: Vec<Path>) -> impl Future<Output = Option<Vec<MetricSample>>> + Send;
}

/// A published metric.
struct Followed {
    published: Published,
    last: Value,
    /// It had no subscriber at the last check. A new subscriber may not be registered yet.
    unfollowed: bool,
}

/// Publishes what is requested from the default while it has subscribers. Ends with its source.
pub async fn serve_metrics(
    mut default: ValueDefault,
    values: Values,
    mut source: impl MetricSource,
) {
    let mut followed: BTreeMap<Path, Followed> = BTreeMap::new();
    let mut next_sample = Instant::now();
    loop {
        let sample_time = async {
            match followed.is_empty() {
                true => std::future::pending().await,
                false => sleep_until(next_sample).await,
            }
        };
        let requested = tokio::select! {
            requested = default.next() => requested,
            () = sample_time => {
                next_sample = Instant::now() + METRICS_EVERY;
                if !renew(&mut followed, &values, &mut source).await {
                    return;
                }
                continue;
            }
        };
        let Some(requested) = requested else { return };
        if followed.is_empty() {
            next_sample = Instant::now() + METRICS_EVERY;
        }
        if !begin(requested, &mut followed, &mut source).await {
            return;
        }
    }
}

/// Publishes a requested metric. False once the source has ended.
async fn begin(
    requested: ValueRequest,
    followed: &mut BTreeMap<Path, Followed>,
    source: &mut impl MetricSource,
) -> bool {
    if followed.len() >= METRICS_MAX {
        requested.refuse(&format!("{METRICS_MAX} metrics are in use, which is the limit"));
        return true;
    }
    let path = requested.path().clone();
    let Some(samples) = source.take(vec![path.clone()]).await else { return false };
    match samples.into_iter().next() {
        Some(MetricSample::Now(value)) => match requested.publish(value.clone()) {
            Ok(published) => {
                let followed_metric = Followed { published, last: value, unfollowed: false };
                followed.insert(path, followed_metric);
            }
            Err(error) => debug!(%path, %error, "metrics are not published"),
        },
        // It is sent once, to the subscribers that requested it.
        Some(MetricSample::Last(value)) => drop(requested.publish(value)),
        Some(MetricSample::Nothing(why)) => requested.refuse(&why),
        None => requested.refuse("there are no such metrics"),
    }
    true
}

/// Unpublishes metrics without subscribers, and samples the others. False once the source has
/// ended.
async fn renew(
    followed: &mut BTreeMap<Path, Followed>,
    values: &Values,
    source: &mut impl MetricSource,
) -> bool {
    followed.retain(|_, followed_metric| {
        let is_followed = followed_metric.published.subscribers() > 0;
        is_followed || !std::mem::replace(&mut followed_metric.unfollowed, true)
    });
    followed.values_mut().for_each(|followed_metric| {
        followed_metric.unfollowed &= followed_metric.published.subscribers() == 0
    });
    if followed.is_empty() {
        return true;
    }
    let paths: Vec<Path> = followed.keys().cloned().collect();
    let Some(samples) = source.take(paths.clone()).await else { return false };
    let mut batch = values.batch();
    let mut ended = Vec::new();
    for (path, samples) in paths.into_iter().zip(samples) {
        let Some(followed_metric) = followed.get_mut(&path) else { continue };
        let value = match samples {
            MetricSample::Now(value) => value,
            MetricSample::Last(value) => {
                ended.push(path.clone());
                value
            }
            MetricSample::Nothing(_) => {
                ended.push(path);
                continue;
            }
        };
        if value != followed_metric.last {
            followed_metric.last = value.clone();
            if let Err(error) = batch.update(&followed_metric.published, value) {
                debug!(%path, %error, "metrics are not published");
            }
        }
    }
    batch.commit();
    ended.iter().for_each(|path| drop(followed.remove(path)));
    true
}
