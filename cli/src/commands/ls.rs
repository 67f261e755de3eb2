//! `longshore ls`: the directory.

use longshore::{Glob, Listing, Path, ReadClient};
use serde_json::json;

use super::Context;
use crate::arguments::Ls;
use crate::output::Table;

pub(crate) async fn run(arguments: Ls, mut context: Context) -> anyhow::Result<()> {
    let client = context.read_client();
    let listing = list(&client, arguments.pattern).await?;
    if context.output.is_json() {
        let paths: Vec<_> = listing
            .paths
            .iter()
            .map(|p| json!({ "path": p.path.as_str(), "published": p.published(), "value": p.value, "default": p.default }))
            .collect();
        context.output.json_pretty(&json!({ "complete": listing.complete, "paths": paths }))?;
        return Ok(());
    }
    let mut table = Table::new(&["path", "is"]);
    for listed in &listing.paths {
        let is = match (listed.published(), listed.default) {
            (true, true) => "queue, default",
            (true, false) => "queue",
            (false, true) => "default",
            (false, false) => "folder",
        };
        table.row([listed.path.to_string(), is.to_owned()]);
    }
    context.output.table(&table)?;
    if !listing.complete {
        eprintln!("the resolver is still warming up: there may be more");
    }
    Ok(())
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
