//! `longshore workers`: the workers linked to publishers, their patterns and the jobs they hold.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longshore::values::metrics::metrics_path;
use longshore::{Glob, Path, PublisherInfo, Subscriber};
use serde_json::{Value as Json, json};

use super::known_publishers::note_if_none;
use super::sys::{bases, below, name_of, number, read, text};
use super::{Context, quiet, warn_if_incomplete};
use crate::arguments::{Workers, WorkersAction};
use crate::failure::AlreadyReported;
use crate::output::{Table, grouped};
use crate::time::{show_duration, wall_ms};

pub(crate) async fn run(arguments: Workers, context: Context) -> anyhow::Result<()> {
    match arguments.action {
        WorkersAction::Ls { pattern } => ls(pattern, context).await,
        WorkersAction::Quiet { which, wait } => quiet::run(which, true, wait, context).await,
        WorkersAction::Resume(which) => quiet::run(which, false, false, context).await,
    }
}

/// The note for a publisher with `publisher.metrics = false`.
pub(super) const NO_METRICS: &str = "publishes no metrics (publisher.metrics is false)";

/// The workers that publishers list, one entry per worker and publisher.
#[derive(Default)]
pub(super) struct WorkerList {
    /// False while the directory may be incomplete.
    complete: bool,
    /// The publishers' entries, each with a field `publisher`.
    workers: Vec<Json>,
    /// The number of linked workers that are not listed.
    more: u64,
    /// Publishers that did not answer, and why.
    missing: Vec<(String, String)>,
    /// Publishers of queues without metrics, whose workers are not listed.
    pub(super) without_metrics: Vec<String>,
}

impl WorkerList {
    /// True if every linked worker is listed.
    fn is_whole(&self) -> bool {
        self.complete
            && self.more == 0
            && self.missing.is_empty()
            && self.without_metrics.is_empty()
    }

    /// Counts the workers of queues; none if the list is incomplete.
    pub(super) fn counter(&self) -> Option<WorkerCounter> {
        self.is_whole().then(|| WorkerCounter::of(&self.workers))
    }

    /// True if the list is complete, workers take from the queue, and all of them are quiet.
    pub(super) fn are_all_quiet(&self, queue: &Path) -> bool {
        let mut any = false;
        self.is_whole()
            && self.takers(queue).all(|worker| {
                any = true;
                worker["quiet"] == true
            })
            && any
    }

    fn takers(&self, queue: &Path) -> impl Iterator<Item = &Json> {
        self.workers.iter().filter(|worker| takes_from(worker, queue))
    }

    /// The jobs that these workers hold at all publishers. Unknown if the list is incomplete, and
    /// for up to half a second after a worker became quiet. Stores workers without a link in
    /// `unlinked`: they may hold jobs until the leases end.
    pub(super) fn leases_of(
        &self,
        sessions: &BTreeSet<String>,
        unlinked: &mut BTreeSet<String>,
    ) -> Option<u64> {
        let of_sessions = || self.workers.iter().filter(|w| sessions.contains(text(w, "session")));
        let linked: BTreeSet<&str> = of_sessions().map(|worker| text(worker, "session")).collect();
        *unlinked = sessions.iter().filter(|one| !linked.contains(one.as_str())).cloned().collect();
        let known = self.is_whole() && of_sessions().all(|worker| worker["quiet"] == true);
        known.then(|| of_sessions().map(|worker| number(worker, "leases")).sum())
    }
}

/// Counts workers. A worker counts once, however many publishers it is linked to.
pub(super) struct WorkerCounter {
    /// Patterns by name and session.
    takes: BTreeMap<(String, String), Vec<Glob>>,
}

impl WorkerCounter {
    /// From the entries of all publishers.
    pub(super) fn of(workers: &[Json]) -> WorkerCounter {
        let mut takes: BTreeMap<_, Vec<Glob>> = BTreeMap::new();
        for worker in workers {
            let identity = (text(worker, "name").to_owned(), text(worker, "session").to_owned());
            let all = takes.entry(identity).or_default();
            for glob in patterns(worker).filter_map(|pattern| Glob::new(pattern).ok()) {
                if !all.contains(&glob) {
                    all.push(glob);
                }
            }
        }
        WorkerCounter { takes }
    }

    /// The number of workers that take from a queue.
    pub(super) fn taking_from(&self, queue: &Path) -> u64 {
        let takes = |globs: &&Vec<Glob>| globs.iter().any(|glob| glob.matches(queue));
        self.takes.values().filter(takes).count() as u64
    }
}

/// The publishers without metrics, that is, without a path in `bases`.
pub(super) fn without_metrics(publishers: &[PublisherInfo], bases: &BTreeSet<Path>) -> Vec<String> {
    let lacks = |one: &&PublisherInfo| !bases.contains(&metrics_path("publishers", &one.name));
    let names: BTreeSet<&str> =
        publishers.iter().filter(lacks).map(|one| one.name.as_str()).collect();
    names.into_iter().map(str::to_owned).collect()
}

/// Reads the workers of every publisher.
pub(super) async fn read_all(context: &Context) -> anyhow::Result<WorkerList> {
    // Read first, so that a publisher that starts after this does not count as one without metrics.
    let (all, publishers) = context.queues().publishers(&Glob::everything()).await?;
    let (bases, complete) = bases(&context.read_client(), "publishers").await?;
    let without_metrics = without_metrics(&publishers, &bases.iter().cloned().collect());
    let subscriber = Subscriber::connect(context.cluster());
    let paths = bases.iter().filter_map(|base| below(base, "workers")).collect();
    let mut listed =
        WorkerList { complete: complete && all, without_metrics, ..WorkerList::default() };
    for (path, metric) in read(&subscriber, paths).await {
        let publisher = name_of(&path).to_owned();
        match metric {
            Ok(metric) => {
                listed.more += number(&metric, "more");
                listed.workers.extend(workers_at(&publisher, &metric));
            }
            Err(why) => listed.missing.push((publisher, why)),
        }
    }
    Ok(listed)
}

/// The workers in a publisher's metric. Whatever else it lists is left out.
fn workers_at(publisher: &str, metric: &Json) -> impl Iterator<Item = Json> {
    let workers = metric["workers"].as_array().into_iter().flatten();
    workers.filter(|worker| worker.is_object()).map(move |worker| {
        let mut worker = worker.clone();
        worker["publisher"] = Json::from(publisher);
        worker
    })
}

async fn ls(pattern: Option<Glob>, mut context: Context) -> anyhow::Result<()> {
    let WorkerList { complete, mut workers, more, missing, without_metrics } =
        read_all(&context).await?;
    if workers.is_empty() && without_metrics.is_empty() {
        note_if_none(&context).await;
    }
    workers.retain(|worker| takes(worker, pattern.as_ref()));
    if context.output.is_json() {
        let missing: Vec<Json> =
            missing.iter().map(|(name, why)| json!({ "name": name, "error": why })).collect();
        context.output.json_pretty(&json!({
            "complete": complete, "workers": workers, "more": more, "missing": missing,
            "without_metrics": without_metrics,
        }))?;
    } else {
        context.output.table(&table(&workers))?;
        if more > 0 {
            report!("and {} more, which the publishers do not list", grouped(more));
        }
        for name in &without_metrics {
            report!("publisher {name} {NO_METRICS}: its workers are not listed");
        }
        for (name, why) in &missing {
            report_error!("publisher {name} did not list its workers: {why}");
        }
        warn_if_incomplete(complete);
    }
    if missing.is_empty() { Ok(()) } else { Err(AlreadyReported.into()) }
}

/// A row per worker and publisher.
fn table(workers: &[Json]) -> Table {
    let mut table =
        Table::new(&["worker", "session", "publisher", "takes", "free", "leases", "for", "quiet"]);
    let now = wall_ms();
    for worker in workers {
        let patterns: Vec<&str> = patterns(worker).collect();
        let since = worker["since_ms"].as_u64().map_or_else(
            || "-".to_owned(),
            |since| show_duration(Duration::from_secs(now.saturating_sub(since) / 1_000)),
        );
        table.row([
            text(worker, "name").to_owned(),
            text(worker, "session").to_owned(),
            text(worker, "publisher").to_owned(),
            if patterns.is_empty() { "-".to_owned() } else { patterns.join(" ") },
            grouped(number(worker, "credits")),
            grouped(number(worker, "leases")),
            since,
            if worker["quiet"] == true { "quiet" } else { "-" }.to_owned(),
        ]);
    }
    table
}

/// Whether a worker takes from the queue, or has a pattern that `pattern` matches.
fn takes(worker: &Json, pattern: Option<&Glob>) -> bool {
    let Some(pattern) = pattern else { return true };
    match pattern.literal() {
        Some(queue) => takes_from(worker, &queue),
        None => patterns(worker).any(|taken| pattern.matches_str(taken)),
    }
}

fn takes_from(worker: &Json, queue: &Path) -> bool {
    patterns(worker).any(|taken| Glob::new(taken).is_ok_and(|taken| taken.matches(queue)))
}

/// The patterns that a worker takes.
pub(super) fn patterns(worker: &Json) -> impl Iterator<Item = &str> {
    worker["patterns"].as_array().into_iter().flatten().filter_map(Json::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_are_no_objects_are_left_out() {
        let metric = json!({ "workers": [1, "x", null, { "name": "w" }] });
        let workers: Vec<Json> = workers_at("p", &metric).collect();
        assert_eq!(workers, [json!({ "name": "w", "publisher": "p" })]);
        assert_eq!(workers_at("p", &json!("x")).count(), 0);
    }

    #[test]
    fn workers_are_counted_once_and_only_in_complete_lists() {
        let at = |publisher: &str, session: &str, quiet: bool| {
            json!({ "name": "w", "session": session, "publisher": publisher, "quiet": quiet,
                    "patterns": ["/jobs/**", "/jobs/a"], "leases": 2 })
        };
        let workers = vec![at("p1", "a", true), at("p2", "a", true), at("p1", "b", true)];
        let mut listed = WorkerList { complete: true, workers, ..WorkerList::default() };
        let (queue, other) = (Path::new("/jobs/a").unwrap(), Path::new("/b").unwrap());
        let taking = |listed: &WorkerList, queue| Some(listed.counter()?.taking_from(queue));
        assert_eq!((taking(&listed, &queue), taking(&listed, &other)), (Some(2), Some(0)));
        assert!(listed.are_all_quiet(&queue) && !listed.are_all_quiet(&other));
        let mut unlinked = BTreeSet::new();
        let mut leases = |listed: &WorkerList, session: &str| {
            listed.leases_of(&[session.to_owned()].into(), &mut unlinked)
        };
        assert_eq!((leases(&listed, "a"), leases(&listed, "gone")), (Some(4), Some(0)));
        listed.workers[2]["quiet"] = Json::from(false);
        assert!(!listed.are_all_quiet(&queue));
        assert_eq!((leases(&listed, "a"), leases(&listed, "b")), (Some(4), None));
        listed.workers[2]["quiet"] = Json::from(true);
        listed.more = 1;
        assert_eq!((taking(&listed, &queue), leases(&listed, "a")), (None, None));
        assert!(!listed.are_all_quiet(&queue));
        assert_eq!(unlinked, BTreeSet::new(), "of the last query");
        listed.leases_of(&["gone".to_owned()].into(), &mut unlinked);
        assert_eq!(unlinked, ["gone".to_owned()].into());
    }

    #[test]
    fn a_list_without_some_metrics_is_incomplete() {
        let publisher = |n: u8, name: &str| {
            let id = longshore::PublisherId([n; 16]);
            PublisherInfo::new(id, longshore::protocol::Epoch(1), name, [([127, 0, 0, 1], 4780)])
        };
        let bases = BTreeSet::from([metrics_path("publishers", "a/b")]);
        let publishers = [publisher(1, "a/b"), publisher(2, "c"), publisher(3, "c")];
        assert_eq!(without_metrics(&publishers, &bases), ["c"]);
        let without_metrics = vec!["c".to_owned()];
        let listed = WorkerList { complete: true, without_metrics, ..WorkerList::default() };
        assert!(listed.counter().is_none(), "the workers of c are unknown");
        assert_eq!(listed.leases_of(&BTreeSet::new(), &mut BTreeSet::new()), None);
    }

    #[test]
    fn workers_are_filtered_by_queue_or_pattern() {
        let worker = json!({ "patterns": ["/jobs/mail/**", "/other"] });
        for (pattern, takes_it) in [
            ("/jobs/mail/welcome", true),
            ("/other", true),
            ("/jobs/sha", false),
            ("/jobs/**", true),
            ("/**", true),
            ("/els*/**", false),
        ] {
            assert_eq!(takes(&worker, Some(&Glob::new(pattern).unwrap())), takes_it, "{pattern}");
        }
        assert!(takes(&worker, None));
    }
}
