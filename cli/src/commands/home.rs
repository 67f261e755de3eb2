//! `longshore home ls`: the declared homes, and who disagrees.

use std::collections::{BTreeMap, BTreeSet};

use longshore::protocol::{HomePattern, Homes, PublisherId};
use longshore::{Glob, KnownPublisher, Path, PathAnswer, PublicationKind};
use serde_json::json;

use super::{Context, warn_if_incomplete};
use crate::arguments::{Home, HomeAction};
use crate::failure::{Failure, FailureKind};
use crate::output::Table;

pub(super) async fn run(arguments: Home, mut context: Context) -> anyhow::Result<()> {
    let HomeAction::Ls = arguments.action;
    let client = context.read_client();
    let all = client
        .cluster_publishers(&Glob::everything())
        .await
        .map_err(|why| Failure::new(FailureKind::TimedOut, why))?;
    let of_queues = |one: &&KnownPublisher| !one.declared.is_empty();
    let mut publishers: Vec<&KnownPublisher> = all.registered.iter().filter(of_queues).collect();
    publishers.sort_by_key(|one| (&one.info.name, one.info.id));
    let paths: BTreeSet<&Path> = publishers
        .iter()
        .flat_map(|one| one.declared.defaults.iter().chain(&one.declared.queues))
        .collect();
    let resolution = client.resolve(paths.into_iter().cloned().collect()).await?;
    let mut declared: BTreeMap<PublisherId, Homes> = BTreeMap::new();
    for answer in resolution.answers {
        let PathAnswer::Publishers { set, fallback, .. } = answer else { continue };
        let fallback = fallback.iter().flat_map(|fallback| fallback.iter());
        for one in set.iter().chain(fallback) {
            if one.terms.kind == PublicationKind::Queue {
                declared.insert(one.publisher.id, one.terms.homes.clone());
            }
        }
    }
    let rows = rows(&publishers, &declared);
    let complete = resolution.complete && all.silent_replicas.is_empty();
    if context.output.is_json() {
        let homes: Vec<_> = rows.iter().map(Row::json).collect();
        return Ok(context.output.json_pretty(&json!({ "complete": complete, "homes": homes }))?);
    }
    let mut table = Table::new(&["pattern", "homes", "declared by", "not declared by", "missing"]);
    for row in &rows {
        let names = |list: &[&str]| if list.is_empty() { "-".to_owned() } else { list.join(",") };
        table.row([
            row.pattern.to_string(),
            row.homes.join(","),
            names(&row.declared_by),
            names(&row.not_declared_by),
            names(&row.missing),
        ]);
    }
    if !table.is_empty() {
        context.output.table(&table)?;
    }
    warn_if_incomplete(complete);
    Ok(())
}

/// A declaration.
#[derive(PartialEq, Debug)]
struct Row<'a> {
    pattern: &'a HomePattern,
    homes: &'a [String],
    declared_by: Vec<&'a str>,
    /// Publishers that could serve a path of the pattern, and do not declare the same.
    not_declared_by: Vec<&'a str>,
    /// Homes of which no publisher, or more than one, has the name.
    missing: Vec<&'a str>,
}

impl Row<'_> {
    fn json(&self) -> serde_json::Value {
        json!({
            "pattern": self.pattern.as_str(), "homes": self.homes,
            "declared_by": self.declared_by, "not_declared_by": self.not_declared_by,
            "missing": self.missing,
        })
    }
}

/// Each declaration once, by pattern.
fn rows<'a>(
    publishers: &[&'a KnownPublisher],
    declared: &'a BTreeMap<PublisherId, Homes>,
) -> Vec<Row<'a>> {
    let each: BTreeSet<(&HomePattern, &[String])> =
        declared.values().flat_map(|homes| homes.iter()).collect();
    let row = |(pattern, homes): (&'a HomePattern, &'a [String])| {
        let covered = Glob::new(&format!("{}/**", pattern.as_str().trim_end_matches('/')));
        let declares = |one: &&&KnownPublisher| {
            let of = declared.get(&one.info.id);
            of.is_some_and(|of| of.iter().any(|declaration| declaration == (pattern, homes)))
        };
        // A pattern at the limits of a path may be none for a glob: then all could serve it.
        let could_serve = |one: &&&KnownPublisher| {
            covered.as_ref().map_or(true, |covered| one.declared.could_match(covered))
        };
        let name = |one: &&'a KnownPublisher| one.info.name.as_str();
        let holders =
            |home: &&'a str| publishers.iter().filter(|one| one.info.name == **home).count();
        Row {
            pattern,
            homes,
            declared_by: publishers.iter().filter(declares).map(name).collect(),
            not_declared_by: publishers
                .iter()
                .filter(|one| could_serve(one) && !declares(one))
                .map(name)
                .collect(),
            missing: homes.iter().map(String::as_str).filter(|one| holders(one) != 1).collect(),
        }
    };
    each.into_iter().map(row).collect()
}
