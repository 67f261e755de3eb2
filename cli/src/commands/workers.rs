//! `longshore workers`: who is linked to publishers, what they take and what they hold.

use std::collections::BTreeSet;
use std::time::Duration;

use longshore::{Glob, Path, Subscriber};
use serde_json::{Value as Json, json};

use super::sys::{bases, below, name_of, number, read, text};
use super::{Context, quiet, warn_if_incomplete};
use crate::arguments::{Workers, WorkersAction};
use crate::failure::Reported;
use crate::output::{Table, grouped};
use crate::time::{show_length, wall_ms};

pub(crate) async fn run(arguments: Workers, context: Context) -> anyhow::Result<()> {
    match arguments.action {
        WorkersAction::Ls { pattern } => ls(pattern, context).await,
        WorkersAction::Quiet { which, wait } => quiet::run(which, true, wait, context).await,
        WorkersAction::Resume(which) => quiet::run(which, false, false, context).await,
    }
}

/// The workers that publishers list, at each publisher one by one.
#[derive(Default)]
pub(super) struct Listed {
    /// False while the directory may not know all publishers.
    complete: bool,
    /// As a publisher lists it, and `publisher`, its name.
    workers: Vec<Json>,
    /// Those that are linked and not listed.
    more: u64,
    /// Publishers that list none, and why.
    missing: Vec<(String, String)>,
}

impl Listed {
    /// True if every worker that is linked anywhere is listed.
    fn is_whole(&self) -> bool {
        self.complete && self.more == 0 && self.missing.is_empty()
    }

    /// How many workers take from a queue, each counted once however many publishers it is linked to; none if not all
    /// are listed.
    pub(super) fn taking_from(&self, queue: &Path) -> Option<u64> {
        let identity =
            |worker: &Json| (text(worker, "name").to_owned(), text(worker, "session").to_owned());
        self.is_whole()
            .then(|| self.takers(queue).map(identity).collect::<BTreeSet<_>>().len() as u64)
    }

    /// True if workers take from a queue and each of them is quiet, as far as all are listed.
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

    /// Jobs that these workers hold, over all publishers. Not known unless all workers are listed,
    /// and for up to half a second after one became quiet. Those without a link are in `unlinked`:
    /// they hold what they held, until its leases have ended.
    pub(super) fn held_by(
        &self,
        sessions: &BTreeSet<String>,
        unlinked: &mut BTreeSet<String>,
    ) -> Option<u64> {
        let theirs = || self.workers.iter().filter(|w| sessions.contains(text(w, "session")));
        let linked: BTreeSet<&str> = theirs().map(|worker| text(worker, "session")).collect();
        *unlinked = sessions.iter().filter(|one| !linked.contains(one.as_str())).cloned().collect();
        let known = self.is_whole() && theirs().all(|worker| worker["quiet"] == true);
        known.then(|| theirs().map(|worker| number(worker, "held")).sum())
    }
}

/// Asks every publisher for its workers.
pub(super) async fn listed(context: &Context) -> anyhow::Result<Listed> {
    let (bases, complete) = bases(&context.read_client(), "publishers").await?;
    let subscriber = Subscriber::connect(context.cluster()).await?;
    let paths = bases.iter().filter_map(|base| below(base, "workers")).collect();
    let mut listed = Listed { complete, ..Listed::default() };
    for (path, figure) in read(&subscriber, paths).await {
        let publisher = name_of(&path).to_owned();
        match figure {
            Ok(figure) => {
                listed.more += number(&figure, "more");
                let workers = figure["workers"].as_array().into_iter().flatten().cloned();
                listed.workers.extend(workers.map(|mut worker| {
                    worker["publisher"] = Json::from(publisher.as_str());
                    worker
                }));
            }
            Err(why) => listed.missing.push((publisher, why)),
        }
    }
    Ok(listed)
}

async fn ls(pattern: Option<Glob>, mut context: Context) -> anyhow::Result<()> {
    let Listed { complete, mut workers, more, missing } = listed(&context).await?;
    workers.retain(|worker| takes(worker, pattern.as_ref()));
    if context.output.is_json() {
        let missing: Vec<Json> =
            missing.iter().map(|(name, why)| json!({ "name": name, "error": why })).collect();
        context.output.json_pretty(&json!({
            "complete": complete, "workers": workers, "more": more, "missing": missing,
        }))?;
    } else {
        context.output.table(&table(&workers))?;
        if more > 0 {
            eprintln!("and {} more, which the publishers do not list", grouped(more));
        }
        for (name, why) in &missing {
            eprintln!("error: publisher {name} did not tell its workers: {why}");
        }
        warn_if_incomplete(complete);
    }
    if missing.is_empty() { Ok(()) } else { Err(Reported.into()) }
}

/// A row for each worker at each publisher.
pub(super) fn table(workers: &[Json]) -> Table {
    let mut table =
        Table::new(&["worker", "session", "publisher", "takes", "free", "holds", "for", "quiet"]);
    let now = wall_ms();
    for worker in workers {
        let patterns: Vec<&str> = patterns(worker).collect();
        let since = worker["since_ms"].as_u64().map_or_else(
            || "-".to_owned(),
            |since| show_length(Duration::from_secs(now.saturating_sub(since) / 1_000)),
        );
        table.row([
            text(worker, "name").to_owned(),
            text(worker, "session").to_owned(),
            text(worker, "publisher").to_owned(),
            if patterns.is_empty() { "-".to_owned() } else { patterns.join(" ") },
            grouped(number(worker, "credits")),
            grouped(number(worker, "held")),
            since,
            if worker["quiet"] == true { "quiet" } else { "-" }.to_owned(),
        ]);
    }
    table
}

/// Whether a worker takes from that queue, or by a pattern that the other one matches.
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

fn patterns(worker: &Json) -> impl Iterator<Item = &str> {
    worker["patterns"].as_array().into_iter().flatten().filter_map(Json::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_counts_once_and_only_a_whole_list_counts() {
        let at = |publisher: &str, session: &str, quiet: bool| {
            json!({ "name": "w", "session": session, "publisher": publisher, "quiet": quiet,
                    "patterns": ["/jobs/**", "/jobs/a"], "held": 2 })
        };
        let workers = vec![at("p1", "a", true), at("p2", "a", true), at("p1", "b", true)];
        let mut listed = Listed { complete: true, workers, ..Listed::default() };
        let (queue, other) = (Path::new("/jobs/a").unwrap(), Path::new("/b").unwrap());
        assert_eq!((listed.taking_from(&queue), listed.taking_from(&other)), (Some(2), Some(0)));
        assert!(listed.are_all_quiet(&queue) && !listed.are_all_quiet(&other));
        let mut unlinked = BTreeSet::new();
        let mut held = |listed: &Listed, session: &str| {
            listed.held_by(&[session.to_owned()].into(), &mut unlinked)
        };
        assert_eq!((held(&listed, "a"), held(&listed, "gone")), (Some(4), Some(0)));
        listed.workers[2]["quiet"] = Json::from(false);
        assert!(!listed.are_all_quiet(&queue));
        assert_eq!((held(&listed, "a"), held(&listed, "b")), (Some(4), None));
        listed.workers[2]["quiet"] = Json::from(true);
        listed.more = 1;
        assert_eq!((listed.taking_from(&queue), held(&listed, "a")), (None, None));
        assert!(!listed.are_all_quiet(&queue));
        assert_eq!(unlinked, BTreeSet::new(), "of the last that was asked about");
        listed.held_by(&["gone".to_owned()].into(), &mut unlinked);
        assert_eq!(unlinked, ["gone".to_owned()].into());
    }

    #[test]
    fn workers_are_chosen_by_a_queue_or_by_a_pattern_over_theirs() {
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
