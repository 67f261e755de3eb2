//! The state of the system as `longshore top` shows it. No I/O; the caller passes the time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use longshore::{Path, PublisherInfo};
use serde_json::{Value as Json, json};

use super::rows::{self, Kind};
use crate::commands::sys::{below, name_of, number, text};
use crate::commands::workers::{self, WorkerCounter};
use crate::output::{counted, printable};

/// Rates are computed over this many samples, one per second.
const SAMPLES_MAX: usize = 6;
/// The most notes.
const NOTES_MAX: usize = 3;

/// The latest metrics.
#[derive(Default)]
pub(super) struct Dashboard {
    /// By path; none until the first value arrives, and after the subscription is lost.
    metrics: BTreeMap<Path, Option<Json>>,
    why: BTreeMap<Path, String>,
    samples: VecDeque<(Instant, Flows)>,
    /// The publishers of queues; none until the directory has listed them.
    publishers: Option<Vec<PublisherInfo>>,
}

/// By queue, and by the path of a publisher's list.
type Flows = BTreeMap<String, BTreeMap<Path, Flow>>;

/// A publisher's total counts of a queue's jobs.
#[derive(Clone, Copy)]
struct Flow {
    enqueued: u64,
    completed: u64,
    failed: u64,
}

/// Jobs of all queues.
pub(super) struct Totals {
    pub(super) ready: u64,
    pub(super) running: u64,
    pub(super) dead: u64,
    /// Jobs per second that were enqueued, completed and failed.
    pub(super) rates: Option<[f64; 3]>,
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
        let mut flows = Flows::new();
        for (list, queue) in self.listed("queues") {
            let flow = Flow {
                enqueued: number(queue, "enqueued_ever"),
                completed: number(queue, "completed_ever"),
                failed: number(queue, "failed_ever"),
            };
            flows.entry(text(queue, "path").to_owned()).or_default().insert(list.clone(), flow);
        }
        self.samples.push_back((now, flows));
        if self.samples.len() > SAMPLES_MAX {
            self.samples.pop_front();
        }
    }

    /// Jobs per second that a queue accepted, completed and failed, summed over its publishers;
    /// none before one of them has two samples.
    ///
    /// Each publisher has its own first sample: one that appears adds its lifetime counts, which
    /// are not a rate.
    pub(super) fn rates(&self, queue: &str) -> Option<[f64; 3]> {
        let (to, newest) = self.samples.back()?;
        let rates = newest.get(queue)?.iter().filter_map(|(publisher, last)| {
            let first =
                |(at, flows): &(Instant, Flows)| Some((*at, *flows.get(queue)?.get(publisher)?));
            let (from, first) = self.samples.iter().find_map(first)?;
            let seconds = to.saturating_duration_since(from).as_secs_f64();
            // A publisher that has lost its journal counts from 0.
            let rate = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds;
            (seconds > 0.0).then(|| {
                [
                    rate(first.enqueued, last.enqueued),
                    rate(first.completed, last.completed),
                    rate(first.failed, last.failed),
                ]
            })
        });
        rates.reduce(add_rates)
    }

    pub(super) fn of_kind<'a>(
        &'a self,
        kind: &'a str,
    ) -> impl Iterator<Item = (&'a Path, Option<&'a Json>)> {
        let bases =
            self.metrics.iter().filter(move |(path, _)| path.depth() == 3 && kind_of(path) == kind);
        bases.map(|(path, metric)| (path, metric.as_ref()))
    }

    /// The entries of the lists `queues` or `workers`, each with its list's path.
    pub(super) fn listed<'a>(
        &'a self,
        name: &'a str,
    ) -> impl Iterator<Item = (&'a Path, &'a Json)> {
        let lists = self
            .metrics
            .iter()
            .filter(move |(path, _)| path.depth() == 4 && path.segments().nth(3) == Some(name));
        lists.flat_map(move |(path, metric)| {
            let list = metric.iter().flat_map(move |metric| metric[name].as_array()).flatten();
            // Whatever a publisher lists is no reason to end.
            list.filter(|one| one.is_object()).map(move |one| (path, one))
        })
    }

    /// A publisher's list `queues` or `workers`.
    fn list(&self, base: &Path, name: &str) -> Option<&Json> {
        self.metrics.get(&below(base, name)?)?.as_ref()
    }

    /// The publishers with more queues or workers than their lists have, and how many more.
    fn more<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a str, u64)> {
        let more = move |(base, _): (&'a Path, _)| {
            Some((name_of(base), number(self.list(base, name)?, "more")))
        };
        self.of_kind("publishers").filter_map(more).filter(|(_, more)| *more > 0)
    }

    /// Counts the workers of queues; none if a publisher does not list all its workers.
    fn worker_counter(&self) -> Option<WorkerCounter> {
        let lists_all = |(base, _): (&Path, _)| {
            self.list(base, "workers").is_some_and(|list| number(list, "more") == 0)
        };
        let all = self.of_kind("publishers").all(lists_all);
        let all = all && self.publishers.is_some() && self.without_metrics().is_empty();
        all.then(|| WorkerCounter::of(&self.workers()))
    }

    /// The workers' links, each with its publisher.
    pub(super) fn workers(&self) -> Vec<Json> {
        let with = |(path, worker): (&Path, &Json)| {
            let mut worker = worker.clone();
            worker["publisher"] = Json::from(name_of(path));
            worker
        };
        self.listed("workers").map(with).collect()
    }

    /// The queues, summed over their publishers, busiest first.
    pub(super) fn queues(&self) -> Vec<Json> {
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
        let more = |name: &str| self.more(name).map(|(_, more)| more).sum::<u64>();
        json!({
            "publishers": named("publishers"), "queues": queues, "workers": self.workers(),
            "more": { "queues": more("queues"), "workers": more("workers") },
            "replicas": named("replicas"), "without_metrics": self.without_metrics(),
        })
    }

    /// Everything as lines of text.
    pub(super) fn lines(&self, wall_ms: u64) -> Vec<String> {
        let order = [Kind::Publishers, Kind::Queues, Kind::Workers, Kind::Replicas];
        let tables = order.map(|kind| rows::table(kind, self, wall_ms));
        let mut lines = Vec::new();
        let notes = self.notes();
        let tables = tables.iter().filter(|table| !table.is_empty());
        let tables = tables.map(|table| table.lines_within(None));
        for section in tables.chain((!notes.is_empty()).then_some(notes)) {
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

    /// What is missing, and why.
    pub(super) fn notes(&self) -> Vec<String> {
        let lost = self.why.iter().filter(|(path, _)| path.depth() == 3);
        let lost = lost.map(|(path, why)| format!("{path}: {why}"));
        let without_metrics = self.without_metrics();
        let without =
            without_metrics.iter().map(|name| format!("publisher {name} {}", workers::NO_METRICS));
        let lists = [("queues", "more queue"), ("workers", "more worker")];
        let more = lists.into_iter().flat_map(|(list, noun)| {
            self.more(list).map(move |(publisher, more)| {
                format!("publisher {publisher}: {} not shown", counted(more, noun))
            })
        });
        let notes = lost.chain(without).chain(more).take(NOTES_MAX);
        notes.map(|note| printable(&note).into_owned()).collect()
    }

    /// The sums over all queues; the rates only over those that publishers list.
    pub(super) fn totals(&self) -> Totals {
        let [ready, running, dead] = ["ready", "running", "dead"].map(|state| {
            let of_publisher = |(base, metric): (&Path, Option<&Json>)| match metric {
                // A publisher lists 1,000 queues, but sums the jobs of 100,000.
                Some(metric) if metric["states"].is_object() => number(&metric["states"], state),
                _ => {
                    let list = self.list(base, "queues").and_then(|list| list["queues"].as_array());
                    list.into_iter().flatten().map(|queue| number(queue, state)).sum()
                }
            };
            self.of_kind("publishers").map(of_publisher).sum()
        });
        let queues = self.queues();
        let rates = queues.iter().filter_map(|queue| self.rates(text(queue, "path")));
        let rates = rates.reduce(add_rates);
        Totals { ready, running, dead, rates }
    }

    /// The rows of a kind.
    pub(super) fn len(&self, kind: Kind) -> usize {
        match kind {
            Kind::Queues => self.queues().len(),
            Kind::Workers => self.listed("workers").count(),
            Kind::Publishers => self.of_kind("publishers").count(),
            Kind::Replicas => self.of_kind("replicas").count(),
        }
    }

    /// A publisher's or replica's own metric.
    pub(super) fn metric(&self, base: &Path) -> Option<&Json> {
        self.metrics.get(base)?.as_ref()
    }
}

fn add_rates(a: [f64; 3], b: [f64; 3]) -> [f64; 3] {
    [a[0] + b[0], a[1] + b[1], a[2] + b[2]]
}

fn kind_of(path: &Path) -> &str {
    path.segments().nth(1).unwrap_or_default()
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        let lines = dashboard.lines(0);
        assert!(lines[1].starts_with("/jobs/a") && lines[1].contains("150"), "{lines:?}");
        assert!(lines[2].starts_with("/jobs/b (paused)"), "{lines:?}");
    }

    #[test]
    fn entries_that_are_no_objects_are_left_out() {
        let mut dashboard = Dashboard::default();
        for name in ["queues", "workers"] {
            let list =
                json!({ name: [1, "x", null, { "path": "/jobs/a", "name": "w" }], "more": 0 });
            dashboard.update(&path(&format!("/sys/publishers/p1/{name}")), list);
        }
        assert_eq!((dashboard.queues().len(), dashboard.workers().len()), (1, 1));
    }

    #[test]
    fn lifetime_counts_of_a_publisher_that_appears_are_no_rate() {
        let mut dashboard = Dashboard::default();
        let [one, two] = ["p1", "p2"].map(|p| path(&format!("/sys/publishers/{p}/queues")));
        let start = Instant::now();
        let mut rates = Vec::new();
        for second in 0..8 {
            dashboard.update(&one, queues(5, 1_000_000 + 100 * second));
            // Its list arrives later, is lost for two samples, and returns.
            if [0, 3, 4].contains(&second) {
                dashboard.lost(&two, "the link ended");
            } else {
                dashboard.update(&two, queues(7, 9_000_000 + 50 * second));
            }
            dashboard.sample(start + Duration::from_secs(second));
            rates.push(dashboard.rates("/jobs/a").map(|rates| rates[1]));
        }
        let of_both = [150.0; 3];
        let expected = [&[100.0, 150.0, 100.0, 100.0][..], &of_both].concat();
        assert_eq!((rates[0], rates[1]), (None, Some(100.0)));
        assert_eq!(rates[1..].iter().flatten().copied().collect::<Vec<_>>(), expected);
        assert_eq!(dashboard.totals().rates.map(|rates| rates[1]), Some(150.0));
        assert_eq!(dashboard.json()["queues"][0]["completed_per_s"], 150.0);
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
    fn totals_include_unlisted_queues_and_notes_count_them() {
        let mut dashboard = Dashboard::default();
        for (p, states) in [("p1", json!({ "ready": 900, "running": 2 })), ("p2", Json::Null)] {
            let at = |name: &str| path(&format!("/sys/publishers/{p}{name}"));
            dashboard.add_source(&at(""));
            dashboard.update(&at(""), json!({ "name": p, "states": states }));
            let mut list = queues(5, 0);
            list["more"] = json!(1_500);
            dashboard.update(&at("/queues"), list);
            let more = if p == "p1" { 0 } else { 7 };
            dashboard.update(&at("/workers"), json!({ "workers": [], "more": more }));
        }
        let totals = dashboard.totals();
        // The second publisher has too many queues to sum them.
        assert_eq!((totals.ready, totals.running, totals.dead), (905, 3, 0));
        let expected = ["p1: 1,500 more queues", "p2: 1,500 more queues", "p2: 7 more workers"]
            .map(|more| format!("publisher {more} not shown"));
        assert_eq!(dashboard.notes(), expected);
        let lines = dashboard.lines(0);
        assert!(lines.ends_with(&expected), "{lines:?}");
        assert_eq!(dashboard.json()["more"], json!({ "queues": 3_000, "workers": 7 }));
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
        assert!(dashboard.lines(0).iter().any(|line| line == expected), "{:?}", dashboard.lines(0));
        dashboard.lost(&path("/sys/replicas/r1"), "the link ended");
        assert!(!dashboard.is_complete());
        assert!(
            dashboard.lines(0).iter().any(|line| line.starts_with("r1 ")),
            "a lost replica is still listed"
        );
        dashboard.remove(&path("/sys/replicas/r1"));
        assert!(dashboard.is_complete());
    }
}
