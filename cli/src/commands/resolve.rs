//! `longshore directory resolve`: a path's publishers.

use longshore::{PathAnswer, Publication, PublicationKind, Terms};
use serde_json::{Value, json};

use super::known_publishers::note_if_none;
use super::{Context, warn_if_incomplete};
use crate::arguments::Resolve;
use crate::failure::AlreadyReported;
use crate::output::Table;

pub(crate) async fn run(arguments: Resolve, mut context: Context) -> anyhow::Result<()> {
    let client = context.read_client();
    let resolution = client.resolve(arguments.paths.clone()).await?;
    let answers = || arguments.paths.iter().zip(&resolution.answers);
    let mut failed = false;

    let mut table = Table::new(&["path", "publisher", "name", "addresses", "by", "terms"]);
    let mut values = Vec::new();
    for (path, answer) in answers() {
        match answer {
            PathAnswer::Publishers { set, by_default, .. } => {
                let mut publishers = Vec::new();
                for Publication { publisher, terms } in set.iter() {
                    let addresses: Vec<String> =
                        publisher.addresses.iter().map(ToString::to_string).collect();
                    let home = terms.homes.home_of(path).map(|home| home.name);
                    table.row([
                        path.to_string(),
                        publisher.id.prefix(),
                        publisher.name.clone(),
                        addresses.join(","),
                        if *by_default { "default" } else { "path" }.to_owned(),
                        shown_terms(terms, home),
                    ]);
                    publishers.push(json!({
                        "id": publisher.id.to_string(), "name": publisher.name,
                        "epoch": publisher.epoch.0, "addresses": addresses,
                        "kind": terms.kind.to_string(), "flags": terms.flags,
                        "priority": terms.priority, "weight": terms.weight, "home": home,
                    }));
                }
                values.push(json!({
                    "path": path.as_str(), "by_default": by_default, "publishers": publishers,
                }));
            }
            PathAnswer::NotFound => {
                failed = true;
                let why = if resolution.complete {
                    "no publisher has it or a default for it"
                } else {
                    "no publisher has it yet; the resolver is still warming up"
                };
                values.push(failure(path, why, &context));
            }
            PathAnswer::Refused(why) => {
                failed = true;
                values.push(failure(path, why, &context));
            }
        }
    }
    if failed {
        note_if_none(&context).await;
    }
    if context.output.is_json() {
        context.output.json_pretty(&json!({ "complete": resolution.complete, "paths": values }))?;
    } else {
        if !table.is_empty() {
            context.output.table(&table)?;
        }
        warn_if_incomplete(resolution.complete);
    }
    if failed { Err(AlreadyReported.into()) } else { Ok(()) }
}

/// The terms that differ from the default, and the declared home of the path.
fn shown_terms(terms: &Terms, home: Option<&str>) -> String {
    let default = Terms::default();
    let mut words = Vec::new();
    if terms.kind == PublicationKind::Value {
        words.push("value".to_owned());
    }
    if terms.priority != default.priority {
        words.push(format!("priority {}", terms.priority));
    }
    if terms.weight != default.weight {
        words.push(format!("weight {}", terms.weight));
    }
    if terms.flags != default.flags {
        words.push(format!("flags {:#x}", terms.flags));
    }
    words.extend(home.map(|home| format!("home {home}")));
    words.join(", ")
}

fn failure(path: &longshore::Path, why: &str, context: &Context) -> Value {
    if !context.output.is_json() {
        report_error!("{path}: {why}");
    }
    json!({ "path": path.as_str(), "error": why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_terms_are_not_shown() {
        assert_eq!(shown_terms(&Terms::default(), None), "");
        let terms = Terms {
            kind: PublicationKind::Value,
            flags: 2,
            priority: 1,
            weight: 0,
            ..Terms::default()
        };
        let shown = shown_terms(&terms, Some("east"));
        assert_eq!(shown, "value, priority 1, weight 0, flags 0x2, home east");
    }
}
