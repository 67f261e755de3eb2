//! `longshore directory ls`: the directory.

use longshore::{Glob, Listing, Path, PathListed, ReadClient};
use serde_json::{Value, json};

use super::known_publishers::note_if_none;
use super::{Context, warn_if_incomplete};
use crate::arguments::Ls;
use crate::output::Table;

pub(crate) async fn run(arguments: Ls, mut context: Context) -> anyhow::Result<()> {
    let client = context.read_client();
    let listing = list(&client, arguments.pattern).await?;
    note_if_nothing_is_published(&listing.paths, &context).await;
    if context.output.is_json() {
        let paths: Vec<_> = listing.paths.iter().map(json).collect();
        context.output.json_pretty(&json!({ "complete": listing.complete, "paths": paths }))?;
        return Ok(());
    }
    let mut table = Table::new(&["path", "is"]);
    for listed in &listing.paths {
        table.row([listed.path.to_string(), what_is(listed)]);
    }
    context.output.table(&table)?;
    warn_if_incomplete(listing.complete);
    Ok(())
}

/// Notes which replicas know no publisher, if no path of any is listed. A replica publishes its own
/// metrics.
pub(super) async fn note_if_nothing_is_published(paths: &[PathListed], context: &Context) {
    let of_metrics = |listed: &PathListed| listed.path.segments().next() == Some("sys");
    if paths.iter().all(of_metrics) {
        note_if_none(context).await;
    }
}

/// What is published at a path, as text.
pub(super) fn what_is(listed: &PathListed) -> String {
    let kinds = [(listed.queue, "queue"), (listed.value, "value"), (listed.default, "default")];
    let is: Vec<&str> = kinds.iter().filter(|(is, _)| *is).map(|(_, kind)| *kind).collect();
    if is.is_empty() { "folder".to_owned() } else { is.join(", ") }
}

/// What is published at a path, as JSON.
pub(super) fn json(listed: &PathListed) -> Value {
    json!({
        "path": listed.path.as_str(), "published": listed.published(), "queue": listed.queue,
        "value": listed.value, "default": listed.default,
    })
}

async fn list(client: &ReadClient, pattern: Option<Glob>) -> anyhow::Result<Listing> {
    let listing = match pattern {
        None => client.list(Path::root()).await?,
        Some(glob) => match glob.literal() {
            Some(path) => client.list(path).await?,
            None => client.list_matching(vec![glob]).await?,
        },
    };
    Ok(listing)
}
