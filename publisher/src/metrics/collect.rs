//! The current metrics, from existing counters.

use longshore_protocol::messages::work::{JobCounts, PublisherStatus, QueueStat, Room};
use longshore_protocol::{Durability, JobId, LinkId, PublisherId, Role, Value};
use longshore_queue::{LinkUse, Now, Store};

use super::{Metric, MetricSample};

/// Most queues over which a publisher's jobs are summed by state, twice a second: 100,000 take
/// about a millisecond.
const SUMMED_QUEUES_MAX: usize = 100_000;
/// Most queues that `queues` lists; each also has its own value.
const LISTED_QUEUES_MAX: usize = 1_000;
/// Most workers that `workers` lists.
const LISTED_WORKERS_MAX: usize = 1_000;
/// Most patterns that are listed per worker.
const LISTED_PATTERNS_MAX: usize = 64;
/// A list ends at this many bytes: below the limit of a value.
const LISTED_BYTES_MAX: usize = 768 * 1024;

/// Readings that only the owner has.
pub(crate) struct OwnerStats<'a> {
    pub(crate) id: PublisherId,
    pub(crate) epoch: u64,
    pub(crate) value_links: usize,
    pub(crate) status: PublisherStatus,
    /// When a link attached, in milliseconds since 1970.
    pub(crate) since: &'a dyn Fn(LinkId) -> Option<u64>,
    /// Whether its worker reports that it is quiet.
    pub(crate) is_quiet: &'a dyn Fn(LinkId) -> bool,
}

/// Samples one metric.
pub(crate) fn collect(
    metric: &Metric,
    store: &Store,
    now: Now,
    stats: &OwnerStats<'_>,
) -> MetricSample {
    match metric {
        Metric::Publisher => MetricSample::Now(publisher(store, stats)),
        Metric::Queues => MetricSample::Now(queues(store, now)),
        Metric::Queue(path) => match store.state().queue_stat_at(path, now) {
            Some(stat) => MetricSample::Now(Value::map(queue(&stat))),
            None => MetricSample::Nothing(format!("this publisher has no queue {path}")),
        },
        Metric::Workers => MetricSample::Now(workers(store, stats)),
        Metric::Progress(id) => progress(store, now, id),
    }
}

type Entry = (&'static str, Value);

fn publisher(store: &Store, stats: &OwnerStats<'_>) -> Value {
    let OwnerStats { id, epoch, value_links, status, .. } = stats;
    let (mut workers, mut producers, mut tools) = (0u64, 0u64, 0u64);
    for link in store.state().link_uses() {
        match link.role {
            Role::Worker => workers += 1,
            Role::Producer => producers += 1,
            _ => tools += 1,
        }
    }
    let links = Value::map([
        ("workers", workers),
        ("producers", producers),
        ("tools", tools),
        ("values", *value_links as u64),
    ]);
    let headroom = Some(store.space().headroom).filter(|&bytes| bytes < u64::MAX);
    let states = store.state().counts(SUMMED_QUEUES_MAX).map(|counts| Value::map(states(&counts)));
    let durability = match status.durability {
        Durability::Fsync => "fsync",
        _ => "none",
    };
    let room = match status.room {
        Room::Open => "open",
        Room::NoEnqueues => "no_enqueues",
        Room::NoDeliveries => "no_deliveries",
    };
    Value::map([
        ("id", Value::from(id.to_string())),
        ("name", status.name.as_str().into()),
        ("epoch", (*epoch).into()),
        ("uptime_s", (status.uptime_ms / 1_000).into()),
        ("links", links),
        ("queues", status.queues.into()),
        ("jobs", status.jobs.into()),
        ("states", states.into()),
        ("durability", durability.into()),
        ("committed_index", status.committed_index.into()),
        ("syncs", status.syncs.into()),
        ("written_bytes", status.written_bytes.into()),
        ("journal_bytes", status.journal_bytes.into()),
        ("ballast_bytes", status.ballast_bytes.into()),
        ("memory_bytes", status.memory_bytes.into()),
        ("memory_max", status.memory_max.into()),
        ("room", room.into()),
        ("headroom_bytes", headroom.into()),
        ("oldest_uncommitted_ms", status.oldest_uncommitted_ms.into()),
        ("stale_refused", status.stale_refused.into()),
        ("idempotency_keys", store.state().keys().into()),
        ("clock_held", status.clock_held.into()),
        ("paused", Value::list(status.paused.iter().map(|glob| glob.as_str()))),
        ("closed", Value::list(status.closed.iter().map(|glob| glob.as_str()))),
    ])
}

fn states(counts: &JobCounts) -> [Entry; 10] {
    [
        ("prepared", counts.prepared.into()),
        ("scheduled", counts.scheduled.into()),
        ("retrying", counts.retrying.into()),
        ("ready", counts.ready.into()),
        ("running", counts.running.into()),
        ("completed", counts.completed.into()),
        ("dead", counts.dead.into()),
        ("cancelled", counts.cancelled.into()),
        ("expired", counts.expired.into()),
        ("blocked", counts.blocked.into()),
    ]
}

fn queue(stat: &QueueStat) -> Vec<Entry> {
    let mut entries = states(&stat.counts).to_vec();
    entries.extend([
        ("oldest_ready_ms", stat.oldest_ready_ms.into()),
        ("enqueued_ever", stat.enqueued.into()),
        ("completed_ever", stat.completed.into()),
        ("failed_ever", stat.failed.into()),
        ("died_ever", stat.died.into()),
        ("redelivered_ever", stat.redelivered.into()),
        ("subscriptions", stat.subscriptions.into()),
        ("credits", stat.credits.into()),
        ("paused", (!stat.paused_by.is_empty()).into()),
        ("closed", (!stat.closed_by.is_empty()).into()),
    ]);
    entries
}

fn queues(store: &Store, now: Now) -> Value {
    let all = store.metrics(now).queues;
    let stats = store.state().first_queue_stats(LISTED_QUEUES_MAX, now);
    let queue_row = |stat: QueueStat| {
        let path = ("path", Value::from(stat.path.as_str()));
        Value::map(queue(&stat).into_iter().chain([path]))
    };
    listed("queues", stats.into_iter().map(queue_row), all)
}

fn workers(store: &Store, stats: &OwnerStats<'_>) -> Value {
    let is_worker = |link: &LinkUse<'_>| link.role == Role::Worker || !link.patterns.is_empty();
    let all = store.state().link_uses().filter(is_worker).count() as u64;
    let worker_row = |link: LinkUse<'_>| {
        let session: String = link.session.to_string().chars().take(8).collect();
        let patterns = link.patterns.iter().take(LISTED_PATTERNS_MAX).map(|glob| glob.as_str());
        Value::map([
            ("name", Value::from(link.name)),
            ("session", session.into()),
            ("patterns", Value::list(patterns)),
            ("credits", link.credits.into()),
            ("leases", link.leases.into()),
            ("since_ms", (stats.since)(link.link).into()),
            ("quiet", (stats.is_quiet)(link.link).into()),
        ])
    };
    let workers =
        store.state().link_uses().filter(is_worker).take(LISTED_WORKERS_MAX).map(worker_row);
    listed("workers", workers, all)
}

/// As many as fit in a value, and the number of the rest.
fn listed(name: &'static str, all: impl Iterator<Item = Value>, count: u64) -> Value {
    let mut bytes = 0;
    let fits = |row: &Value| {
        bytes += row.encoded_len().unwrap_or(LISTED_BYTES_MAX);
        bytes < LISTED_BYTES_MAX
    };
    let listed: Vec<Value> = all.take_while(fits).collect();
    let more = count.saturating_sub(listed.len() as u64);
    Value::map([(name, Value::from(listed)), ("more", more.into())])
}

/// A job's progress, until it has ended.
fn progress(store: &Store, now: Now, id: &JobId) -> MetricSample {
    let Some(view) = store.job(now, id) else {
        return MetricSample::Nothing(format!("this publisher has no job {id}"));
    };
    let info = view.info;
    let progress = info.progress.as_ref();
    let value = Value::map([
        ("path", Value::from(info.path.as_str())),
        ("state", info.state.to_string().into()),
        ("attempt", info.attempt.into()),
        ("worker", info.worker.into()),
        ("percent", progress.map(|progress| progress.percent).into()),
        ("text", progress.map(|progress| progress.message.as_str()).into()),
        ("at_ms", progress.map(|progress| progress.at).into()),
    ]);
    if info.state.is_end() { MetricSample::Last(value) } else { MetricSample::Now(value) }
}

#[cfg(test)]
mod tests {
    use longshore_protocol::Path;

    use super::*;

    #[test]
    fn list_ends_below_the_limit_of_a_value_and_counts_the_rest() {
        let long = || Value::from("x".repeat(100 * 1024));
        let Value::Map(map) = listed("queues", std::iter::repeat_with(long).take(50), 70) else {
            panic!("a map")
        };
        let Some(Value::List(list)) = map.get("queues") else { panic!("a list") };
        assert_eq!((list.len(), map.get("more")), (7, Some(&Value::U64(63))));
        assert!(Value::Map(map).encoded_len().is_ok());
    }

    #[test]
    fn longest_list_of_queues_fits_a_value() {
        let stat = QueueStat::empty(Path::new("/a").unwrap());
        let row = || Value::map(queue(&stat));
        let all = std::iter::repeat_with(row).take(LISTED_QUEUES_MAX);
        assert!(listed("queues", all, 1_000).encoded_len().is_ok());
    }
}
