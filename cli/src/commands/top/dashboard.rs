//! The state of the system as `longshore top` shows it, and its layout. No I/O; the caller passes
//! the time.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use longshore::{Path, PublisherInfo};
use serde_json::{Value as Json, json};

use crate::commands::sys::{below, name_of, number, text};
use crate::commands::workers::{self, WorkerCounter};
use crate::output::{Table, grouped, printable};
use crate::time::show_duration;

/// Rates are computed over this many samples, one per second.
const SAMPLES_MAX: usize = 6;
/// The fewest lines of the sections for queues and for workers.
const SECTION_LINES_MIN: usize = 3;

/// The latest metrics.
#[derive(Default)]
pub(super) struct Dashboard {
    /// By path; none until the first value arrives, and after the subscription is lost.
    metrics: BTreeMap<Path, Option<Json>>,
    why: BTreeMap<Path, String>,
    samples: VecDeque<(Instant, BTreeMap<String, Flow>)>,
    /// The publishers of queues; none until the directory has listed them.
    publishers: Option<Vec<PublisherInfo>>,
}

/// Total counts of a queue's jobs.
#[derive(Clone, Copy, Default)]
struct Flow {
    enqueued: u64,
    completed: u64,
    failed: u64,
}

impl Dashboard {
    /// Adds a publisher or replica from the directory.
    pub(super) fn add_source(&mut self, base: &Path) {
        self.metrics.entry(base.clone()).or_default();
    }

    /// Sets the publishers that have queues or defaults.
    pub(super) fn set_publishers(&mut self, publishers: Vec<PublisherInfo>) {
        self.publishers = Some(publishers);
    }

    /// Publishers that are configured to publish no metrics.
    fn without_metrics(&self) -> Vec<String> {
        let bases = self.of_kind("publishers").map(|(path, _)| path.clone()).collect();
        workers::without_metrics(self.publishers.as_deref().unwrap_or_default(), &bases)
    }

    /// Stores a metric.
    pub(super) fn update(&mut self, path: &Path, metric: Json) {
        self.why.remove(path);
        self.metrics.insert(path.clone(), Some(metric));
    }

    /// Marks a metric as lost.
    pub(super) fn lost(&mut self, path: &Path, why: &str) {
        self.metrics.insert(path.clone(), None);
        self.why.insert(path.clone(), why.to_owned());
    }

    /// Removes a publisher or replica with all its metrics.
    pub(super) fn remove(&mut self, base: &Path) {
        self.metrics.retain(|path, _| !path.is_at_or_below(base));
        self.why.retain(|path, _| !path.is_at_or_below(base));
    }

    /// True once every metric has arrived from all publishers and replicas that publish some.
    pub(super) fn is_complete(&self) -> bool {
        let has = |base: &Path, name: &str| {
            let path = Path::new(&format!("{base}/{name}"));
            path.is_ok_and(|path| matches!(self.metrics.get(&path), Some(Some(_))))
        };
        self.metrics.iter().filter(|(path, _)| path.depth() == 3).all(|(path, metric)| {
            let below =
                kind_of(path) != "publishers" || (has(path, "queues") && has(path, "workers"));
            metric.is_some() && below
        }) && self.publishers.is_some()
    }

    /// Samples the total counts.
    pub(super) fn sample(&mut self, now: Instant) {
        let mut flows: BTreeMap<String, Flow> = BTreeMap::new();
        for queue in self.queues() {
            let flow = flows.entry(text(&queue, "path").to_owned()).or_default();
            flow.enqueued += number(&queue, "enqueued_ever");
            flow.completed += number(&queue, "completed_ever");
            flow.failed += number(&queue, "failed_ever");
        }
        self.samples.push_back((now, flows));
        if self.samples.len() > SAMPLES_MAX {
            self.samples.pop_front();
        }
    }

    /// Jobs per second that a queue accepted, completed and failed; none before it has two samples.
    fn rates(&self, queue: &str) -> Option<[f64; 3]> {
        let mut seen = self.samples.iter().filter_map(|(at, flows)| Some((*at, flows.get(queue)?)));
        let (from, first) = seen.next()?;
        let (to, last) = seen.next_back()?;
        let seconds = to.saturating_duration_since(from).as_secs_f64();
        // The counts drop when a publisher disappears.
        let rate = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds;
        (seconds > 0.0).then(|| {
            [
                rate(first.enqueued, last.enqueued),
                rate(first.completed, last.completed),
                rate(first.failed, last.failed),
            ]
        })
    }

    fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = (&'a Path, Option<&'a Json>)> {
        let bases =
            self.metrics.iter().filter(move |(path, _)| path.depth() == 3 && kind_of(path) == kind);
        bases.map(|(path, metric)| (path, metric.as_ref()))
    }

    fn listed<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a Path, &'a Json)> {
        let lists = self
            .metrics
            .iter()
            .filter(move |(path, _)| path.depth() == 4 && path.segments().nth(3) == Some(name));
        lists.flat_map(move |(path, metric)| {
            let list = metric.iter().flat_map(move |metric| metric[name].as_array()).flatten();
            list.map(move |one| (path, one))
        })
    }

    /// Counts the workers of queues; none if a publisher does not list all its workers.
    fn worker_counter(&self) -> Option<WorkerCounter> {
        let lists = |(base, _): (&Path, _)| {
            let list = self.metrics.get(&below(base, "workers")?)?.as_ref()?;
            (number(list, "more") == 0).then_some(())
        };
        let all = self.of_kind("publishers").all(|publisher| lists(publisher).is_some());
        let all = all && self.publishers.is_some() && self.without_metrics().is_empty();
        all.then(|| WorkerCounter::of(&self.workers()))
    }

    fn workers(&self) -> Vec<Json> {
        let with = |(path, worker): (&Path, &Json)| {
            let mut worker = worker.clone();
            worker["publisher"] = Json::from(name_of(path));
            worker
        };
        self.listed("workers").map(with).collect()
    }

    /// The queues, summed over their publishers, busiest first.
    fn queues(&self) -> Vec<Json> {
        let mut queues: BTreeMap<&str, Json> = BTreeMap::new();
        for (_, queue) in self.listed("queues") {
            match queues.entry(text(queue, "path")) {
                std::collections::btree_map::Entry::Vacant(entry) => {
                    entry.insert(queue.clone())["workers"] = queue["subscriptions"].clone();
                }
                std::collections::btree_map::Entry::Occupied(mut sum) => add(sum.get_mut(), queue),
            }
        }
        if let Some(counter) = self.worker_counter() {
            for (path, queue) in &mut queues {
                if let Ok(path) = Path::new(path) {
                    queue["workers"] = counter.taking_from(&path).into();
                }
            }
        }
        let mut queues: Vec<Json> = queues.into_values().collect();
        let busy = |queue: &Json| number(queue, "running") + number(queue, "ready");
        queues.sort_by_key(|queue| std::cmp::Reverse(busy(queue)));
        queues
    }

    /// Everything as JSON.
    pub(super) fn json(&self) -> Json {
        let named = |kind: &str| -> Vec<Json> {
            let one = |(path, metric): (&Path, Option<&Json>)| match metric {
                Some(metric) => metric.clone(),
                None => json!({ "name": name_of(path), "error": self.why.get(path) }),
            };
            self.of_kind(kind).map(one).collect()
        };
        let mut queues = self.queues();
        for queue in &mut queues {
            if let Some([enqueued, completed, failed]) = self.rates(text(queue, "path")) {
                queue["enqueued_per_s"] = enqueued.into();
                queue["completed_per_s"] = completed.into();
                queue["failed_per_s"] = failed.into();
            }
        }
        json!({
            "publishers": named("publishers"), "queues": queues, "workers": self.workers(),
            "replicas": named("replicas"), "without_metrics": self.without_metrics(),
        })
    }

    /// Everything as lines of text; with `rows`, the queues and workers are cut to fit.
    pub(super) fn lines(&self, rows: Option<usize>) -> Vec<String> {
        let publishers = self.publisher_table().lines();
        let replicas = self.replica_table().lines();
        let queues = self.queue_table().lines();
        let workers = workers::table(&self.workers()).lines();
        let mut lost: Vec<String> = self
            .why
            .iter()
            .filter(|(path, _)| path.depth() == 3)
            .map(|(path, why)| printable(&format!("{path}: {why}")).into_owned())
            .collect();
        let without_metrics = self.without_metrics();
        lost.extend(without_metrics.iter().map(|name| {
            printable(&format!("publisher {name} {}", workers::NO_METRICS)).into_owned()
        }));
        lost.truncate(SECTION_LINES_MIN);
        // A blank line between two sections.
        let used = publishers.len() + replicas.len() + lost.len() + 4;
        let (for_queues, for_workers) = match rows {
            Some(rows) => shares(rows.saturating_sub(used), queues.len(), workers.len()),
            None => (queues.len(), workers.len()),
        };
        let tables = [publishers, cut(queues, for_queues), cut(workers, for_workers), replicas];
        // An empty table has only its heading.
        let tables = tables.into_iter().filter(|table| table.len() > 1);
        let mut lines = Vec::new();
        for section in tables.chain((!lost.is_empty()).then_some(lost)) {
            if !lines.is_empty() {
                lines.push(String::new());
            }
            lines.extend(section);
        }
        if lines.is_empty() {
            lines.push("no metrics: there is no publisher and no replica".to_owned());
        }
        lines
    }

    fn publisher_table(&self) -> Table {
        let mut table = Table::new(&[
            "publisher",
            "id",
            "up",
            "queues",
            "ready",
            "running",
            "dead",
            "workers",
            "producers",
            "journal",
            "room",
            "oldest",
        ]);
        for (path, metric) in self.of_kind("publishers") {
            let Some(p) = metric else {
                let unknown = std::iter::repeat_n("-".to_owned(), 11);
                table.row(std::iter::once(name_of(path).to_owned()).chain(unknown));
                continue;
            };
            table.row([
                text(p, "name").to_owned(),
                text(p, "id").chars().take(8).collect(),
                show_duration(Duration::from_secs(number(p, "uptime_s"))),
                grouped(number(p, "queues")),
                count(&p["states"], "ready"),
                count(&p["states"], "running"),
                count(&p["states"], "dead"),
                grouped(number(&p["links"], "workers")),
                grouped(number(&p["links"], "producers")),
                mebibytes(number(p, "journal_bytes")),
                text(p, "room").to_owned(),
                format!("{} ms", grouped(number(p, "oldest_uncommitted_ms"))),
            ]);
        }
        table
    }

    fn queue_table(&self) -> Table {
        let mut table = Table::new(&[
            "queue",
            "ready",
            "running",
            "retrying",
            "scheduled",
            "dead",
            "in/s",
            "done/s",
            "failed/s",
            "oldest",
            "workers",
        ]);
        for queue in self.queues() {
            let rate = |nth: usize| {
                let rates = self.rates(text(&queue, "path"));
                rates.map_or_else(|| "-".to_owned(), |rates| grouped(rates[nth].round() as u64))
            };
            let oldest = queue["oldest_ready_ms"].as_u64();
            let paused = if queue["paused"] == true { " (paused)" } else { "" };
            table.row([
                format!("{}{paused}", text(&queue, "path")),
                count(&queue, "ready"),
                count(&queue, "running"),
                count(&queue, "retrying"),
                count(&queue, "scheduled"),
                count(&queue, "dead"),
                rate(0),
                rate(1),
                rate(2),
                oldest.map_or_else(
                    || "-".to_owned(),
                    |ms| show_duration(Duration::from_secs(ms / 1_000)),
                ),
                count(&queue, "workers"),
            ]);
        }
        table
    }

    fn replica_table(&self) -> Table {
        let mut table = Table::new(&[
            "replica",
            "state",
            "up",
            "writers",
            "hidden",
            "paths",
            "connections",
            "watches",
            "reads",
            "writes",
            "memory",
        ]);
        for (path, metric) in self.of_kind("replicas") {
            let Some(r) = metric else {
                let unknown = std::iter::repeat_n("-".to_owned(), 10);
                table.row(std::iter::once(name_of(path).to_owned()).chain(unknown));
                continue;
            };
            let state = if r["warming"] == true { "warming" } else { "complete" };
            table.row([
                text(r, "name").to_owned(),
                state.to_owned(),
                show_duration(Duration::from_secs(number(r, "uptime_s"))),
                count(r, "publishers"),
                count(r, "hidden"),
                count(r, "paths"),
                count(r, "connections"),
                count(r, "watches"),
                count(r, "reads"),
                count(r, "writes"),
                mebibytes(number(r, "memory_bytes")),
            ]);
        }
        table
    }
}

fn kind_of(path: &Path) -> &str {
    path.segments().nth(1).unwrap_or_default()
}

/// A number in a map, or `-`: a publisher with too many queues does not sum their counts.
fn count(map: &Json, field: &str) -> String {
    map[field].as_u64().map_or_else(|| "-".to_owned(), grouped)
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", grouped(bytes.div_ceil(1 << 20)))
}

/// Adds one publisher's numbers of a queue to the sum. A worker is usually linked to several
/// publishers, so `workers` is the largest number at one of them.
fn add(sum: &mut Json, more: &Json) {
    let Some(fields) = more.as_object() else { return };
    sum["workers"] = number(sum, "workers").max(number(more, "subscriptions")).into();
    for (field, value) in fields {
        match value.as_u64() {
            Some(n) if field == "oldest_ready_ms" => {
                sum[field.as_str()] = n.max(number(sum, field)).into();
            }
            Some(n) => sum[field.as_str()] = n.saturating_add(number(sum, field)).into(),
            None if field == "paused" && *value == true => sum["paused"] = true.into(),
            None => {}
        }
    }
}

/// Divides `lines` between two sections: half for each, plus what the other does not need.
fn shares(lines: usize, first: usize, second: usize) -> (usize, usize) {
    let half = lines / 2;
    let of_first =
        first.min(half.max(lines.saturating_sub(second))).max(SECTION_LINES_MIN.min(first));
    (of_first, second.min(lines.saturating_sub(of_first)).max(SECTION_LINES_MIN.min(second)))
}

/// The first lines, with a count of the rest.
fn cut(mut lines: Vec<String>, most: usize) -> Vec<String> {
    if lines.len() > most {
        let more = lines.len() - most.saturating_sub(1);
        lines.truncate(most.saturating_sub(1));
        lines.push(format!("… {} more", grouped(more as u64)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Path {
        Path::new(text).unwrap()
    }

    fn publisher(n: u8, name: &str) -> PublisherInfo {
        let (id, epoch) = (longshore::PublisherId([n; 16]), longshore::protocol::Epoch(1));
        PublisherInfo::new(id, epoch, name, [([127, 0, 0, 1], 4780)])
    }

    fn queues(ready: u64, completed: u64) -> Json {
        json!({ "queues": [
            { "path": "/jobs/a", "ready": ready, "running": 1, "enqueued_ever": completed + ready,
              "completed_ever": completed, "failed_ever": 0,
              "oldest_ready_ms": 2_000, "paused": false },
            { "path": "/jobs/b", "ready": 0, "running": 0, "enqueued_ever": 0, "completed_ever": 0,
              "failed_ever": 0, "oldest_ready_ms": null, "paused": true },
        ], "more": 0 })
    }

    #[test]
    fn queues_are_summed_over_publishers_with_rates() {
        let mut dashboard = Dashboard::default();
        let start = Instant::now();
        for second in 0..10 {
            dashboard.update(&path("/sys/publishers/p1/queues"), queues(5, 100 * second));
            dashboard.update(&path("/sys/publishers/p2/queues"), queues(7, 50 * second));
            dashboard.sample(start + Duration::from_secs(second));
        }
        let json = dashboard.json();
        let first = &json["queues"][0];
        assert_eq!((&first["path"], &first["ready"]), (&json!("/jobs/a"), &json!(12)));
        assert_eq!(
            (&first["completed_per_s"], &first["oldest_ready_ms"]),
            (&json!(150.0), &json!(2_000))
        );
        assert_eq!(dashboard.samples.len(), SAMPLES_MAX);
        let lines = dashboard.lines(None);
        assert!(lines[1].starts_with("/jobs/a") && lines[1].contains("150"), "{lines:?}");
        assert!(lines[2].starts_with("/jobs/b (paused)"), "{lines:?}");
    }

    #[test]
    fn a_worker_of_two_publishers_is_counted_once() {
        let mut dashboard = Dashboard::default();
        let worker =
            |session: &str| json!({ "name": "w", "session": session, "patterns": ["/jobs/**"] });
        for (p, sessions) in [("p1", ["a", "b"]), ("p2", ["a", "c"])] {
            let at = |name: &str| path(&format!("/sys/publishers/{p}{name}"));
            dashboard.add_source(&at(""));
            let queue = json!({ "path": "/jobs/a", "subscriptions": 2 });
            dashboard.update(&at("/queues"), json!({ "queues": [queue], "more": 0 }));
            dashboard
                .update(&at("/workers"), json!({ "workers": sessions.map(worker), "more": 0 }));
        }
        assert_eq!(dashboard.json()["queues"][0]["workers"], 2, "at least as many as one has");
        dashboard.set_publishers(vec![publisher(1, "p1"), publisher(2, "p2")]);
        let queue = &dashboard.json()["queues"][0];
        assert_eq!((&queue["workers"], &queue["subscriptions"]), (&json!(3), &json!(4)));
        dashboard.set_publishers(vec![publisher(1, "p1"), publisher(2, "p2"), publisher(3, "p3")]);
        assert_eq!(dashboard.json()["queues"][0]["workers"], 2, "the workers of p3 are unknown");
        assert_eq!(dashboard.json()["without_metrics"], json!(["p3"]));
    }

    #[test]
    fn a_dashboard_is_complete_once_all_metrics_have_arrived() {
        let mut dashboard = Dashboard::default();
        dashboard.add_source(&path("/sys/publishers/p1"));
        dashboard.add_source(&path("/sys/replicas/r1"));
        for metric in ["/sys/replicas/r1", "/sys/publishers/p1", "/sys/publishers/p1/queues"] {
            dashboard.update(&path(metric), json!({}));
            assert!(!dashboard.is_complete(), "{metric}");
        }
        dashboard.update(&path("/sys/publishers/p1/workers"), json!({}));
        assert!(!dashboard.is_complete(), "there may be publishers without metrics");
        dashboard.set_publishers(vec![publisher(1, "p1"), publisher(2, "p2")]);
        assert!(dashboard.is_complete());
        let expected = "publisher p2 publishes no metrics (publisher.metrics is false)";
        assert!(
            dashboard.lines(None).iter().any(|line| line == expected),
            "{:?}",
            dashboard.lines(None)
        );
        dashboard.lost(&path("/sys/replicas/r1"), "the link ended");
        assert!(!dashboard.is_complete());
        assert!(
            dashboard.lines(None).iter().any(|line| line.starts_with("r1 ")),
            "a lost replica is still listed"
        );
        dashboard.remove(&path("/sys/replicas/r1"));
        assert!(dashboard.is_complete());
    }

    #[test]
    fn hidden_lines_are_counted_and_sections_share_the_rows() {
        assert_eq!(shares(20, 30, 30), (10, 10));
        assert_eq!(shares(20, 30, 4), (16, 4));
        assert_eq!(shares(20, 5, 30), (5, 15));
        assert_eq!(shares(0, 30, 30), (3, 3));
        let lines = |n: usize| (1..=n).map(|n| n.to_string()).collect::<Vec<_>>();
        assert_eq!(cut(lines(5), 3), ["1", "2", "… 3 more"]);
        assert_eq!(cut(lines(3), 3), lines(3));
    }
}
