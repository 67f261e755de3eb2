//! `longshore resolve`: which publishers serve a path.

use longshore::PathAnswer;
use serde_json::{Value, json};

use super::Context;
use crate::arguments::Resolve;
use crate::failure::Reported;
use crate::output::Table;

pub(crate) async fn run(arguments: Resolve, mut context: Context) -> anyhow::Result<()> {
    let client = context.read_client();
    let resolution = client.resolve(arguments.paths.clone()).await?;
    let answers = || arguments.paths.iter().zip(&resolution.answers);
    let mut failed = false;

    let mut table = Table::new(&["path", "publisher", "name", "addresses", "by"]);
    let mut values = Vec::new();
    for (path, answer) in answers() {
        match answer {
            PathAnswer::Publishers { set, by_default } => {
                let mut publishers = Vec::new();
                for publisher in set.iter() {
                    let addresses: Vec<String> =
                        publisher.addresses.iter().map(ToString::to_string).collect();
                    table.row([
                        path.to_string(),
                        publisher.id.prefix(),
                        publisher.name.clone(),
                        addresses.join(","),
                        if *by_default { "default" } else { "path" }.to_owned(),
                    ]);
                    publishers.push(json!({
                        "id": publisher.id.to_string(), "name": publisher.name,
                        "epoch": publisher.epoch.0, "addresses": addresses,
                    }));
                }
                values.push(json!({
                    "path": path.as_str(), "by_default": by_default, "publishers": publishers,
                }));
            }
            PathAnswer::NotFound => {
                failed = true;
                let why = if resolution.complete {
                    "nobody publishes it, and no publisher has a default for it"
                } else {
                    "nobody publishes it yet; the resolver is still warming up"
                };
                values.push(failure(path, why, &context));
            }
            PathAnswer::Refused(why) => {
                failed = true;
                values.push(failure(path, why, &context));
            }
        }
    }
    if context.output.is_json() {
        context.output.json_pretty(&json!({ "complete": resolution.complete, "paths": values }))?;
    } else if !table.is_empty() {
        context.output.table(&table)?;
    }
    if failed { Err(Reported.into()) } else { Ok(()) }
}

fn failure(path: &longshore::Path, why: &str, context: &Context) -> Value {
    if !context.output.is_json() {
        eprintln!("error: {path}: {why}");
    }
    json!({ "path": path.as_str(), "error": why })
}
