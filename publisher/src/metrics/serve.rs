//! A default for metrics: what is published of it, how often it is taken anew, and when it is let
//! go.

use std::collections::BTreeMap;
use std::time::Duration;

use longshore_protocol::{Path, Value};
use tokio::time::{Instant, sleep_until};
use tracing::debug;

use crate::values::{Published, Requested, ValueDefault, Values};

/// How often metrics are taken anew while somebody follows them: at most twice a second.
pub const METRICS_EVERY: Duration = Duration::from_millis(500);
/// Most metrics of one publisher that are followed at a time; more are refused.
pub const METRICS_MAX: usize = 1_024;

/// What metrics are, as of now.
#[derive(Clone, PartialEq, Debug)]
pub enum Taken {
    /// This.
    Now(Value),
    /// This, and nothing more comes.
    Last(Value),
    /// There is no such thing; why.
    Nothing(String),
}

/// Where metrics come from.
pub trait MetricSource: Send + 'static {
    /// Takes all of these in one pass, in their order; none once there are no metrics any more.
    fn take(&mut self, wanted: Vec<Path>) -> impl Future<Output = Option<Vec<Taken>>> + Send;
}

/// One that is published.
struct Followed {
    published: Published,
    last: Value,
    /// Nobody followed it when it was last looked at. A subscriber that has just asked may not
    /// stand yet.
    unfollowed: bool,
}

/// Publishes what is asked of the default for as long as somebody follows it. Ends with its source.
pub async fn serve_metrics(
    mut default: ValueDefault,
    values: Values,
    mut source: impl MetricSource,
) {
    let mut followed: BTreeMap<Path, Followed> = BTreeMap::new();
    let mut turn_at = Instant::now();
    loop {
        let turn = async {
            match followed.is_empty() {
                true => std::future::pending().await,
                false => sleep_until(turn_at).await,
            }
        };
        let requested = tokio::select! {
            requested = default.next() => requested,
            () = turn => {
                turn_at = Instant::now() + METRICS_EVERY;
                if !renew(&mut followed, &values, &mut source).await {
                    return;
                }
                continue;
            }
        };
        let Some(requested) = requested else { return };
        if followed.is_empty() {
            turn_at = Instant::now() + METRICS_EVERY;
        }
        if !begin(requested, &mut followed, &mut source).await {
            return;
        }
    }
}

/// Publishes one that is asked for. False once there are no metrics any more.
async fn begin(
    requested: Requested,
    followed: &mut BTreeMap<Path, Followed>,
    source: &mut impl MetricSource,
) -> bool {
    if followed.len() >= METRICS_MAX {
        requested.refuse(&format!("{METRICS_MAX} metrics are followed here, as many as may be"));
        return true;
    }
    let path = requested.path().clone();
    let Some(taken) = source.take(vec![path.clone()]).await else { return false };
    match taken.into_iter().next() {
        Some(Taken::Now(value)) => match requested.publish(value.clone()) {
            Ok(published) => {
                let one = Followed { published, last: value, unfollowed: false };
                followed.insert(path, one);
            }
            Err(error) => debug!(%path, %error, "metrics are not published"),
        },
        // It is said once, to those who have asked.
        Some(Taken::Last(value)) => drop(requested.publish(value)),
        Some(Taken::Nothing(why)) => requested.refuse(&why),
        None => requested.refuse("there are no such metrics"),
    }
    true
}

/// Lets go of what nobody follows, and takes the others anew. False once there are no metrics any
/// more.
async fn renew(
    followed: &mut BTreeMap<Path, Followed>,
    values: &Values,
    source: &mut impl MetricSource,
) -> bool {
    followed.retain(|_, one| {
        let is_followed = one.published.subscribers() > 0;
        is_followed || !std::mem::replace(&mut one.unfollowed, true)
    });
    followed.values_mut().for_each(|one| one.unfollowed &= one.published.subscribers() == 0);
    if followed.is_empty() {
        return true;
    }
    let wanted: Vec<Path> = followed.keys().cloned().collect();
    let Some(taken) = source.take(wanted.clone()).await else { return false };
    let mut batch = values.batch();
    let mut over = Vec::new();
    for (path, taken) in wanted.into_iter().zip(taken) {
        let Some(one) = followed.get_mut(&path) else { continue };
        let value = match taken {
            Taken::Now(value) => value,
            Taken::Last(value) => {
                over.push(path.clone());
                value
            }
            Taken::Nothing(_) => {
                over.push(path);
                continue;
            }
        };
        if value != one.last {
            one.last = value.clone();
            if let Err(error) = batch.update(&one.published, value) {
                debug!(%path, %error, "metrics are not published");
            }
        }
    }
    batch.commit();
    over.iter().for_each(|path| drop(followed.remove(path)));
    true
}
