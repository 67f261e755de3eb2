//! `longshore context`: named systems.

use serde_json::{Value, json};

use super::Context;
use crate::arguments::{ContextAction, ContextCommand};
use crate::config::{
    Config, ConfigOverrides, ContextKeys, Contexts, NamedContext, Origin, SystemFlags,
    check_replicas, cluster_name, contexts,
};
use crate::failure::{AlreadyReported, Failure, FailureKind, UsageError};
use crate::output::Table;

pub(crate) fn run(arguments: ContextCommand, mut context: Context) -> anyhow::Result<()> {
    let stored = contexts()?;
    match arguments.action {
        ContextAction::Add { context: name, replace, select } => {
            let Some(replicas) = context.overrides.resolvers.clone() else {
                let why = "name its replicas with --resolver HOST:PORT,…";
                return Err(UsageError(why.to_owned()).into());
            };
            let replicas =
                check_replicas(replicas).map_err(|why| UsageError(format!("--resolver: {why}")))?;
            stored.add(&name, &replicas, &keys(&context.overrides)?, replace).map_err(failed)?;
            if select {
                stored.select(&name).map_err(failed)?;
            }
            let done = if select { "stored and selected" } else { "stored" };
            done_with(&name, done, &mut context)?;
            if select {
                warn_if_overridden(&name, &context.overrides);
            }
            Ok(())
        }
        ContextAction::Use { context: Some(name), .. } => {
            stored.select(&name).map_err(failed)?;
            done_with(&name, "selected", &mut context)?;
            warn_if_overridden(&name, &context.overrides);
            Ok(())
        }
        ContextAction::Use { context: None, .. } => {
            stored.select_none().map_err(failed)?;
            match context.output.is_json() {
                true => context.output.json(&json!({ "context": null, "done": "selected" }))?,
                false => context.output.line("no context is selected")?,
            }
            Ok(())
        }
        ContextAction::Ls => list(&stored, &mut context),
        ContextAction::Show { context: name } => show(&stored, name, &mut context),
        ContextAction::Rm { context: name } => {
            stored.remove(&name).map_err(failed)?;
            if stored.selected().map_err(failed)?.is_some_and(|selected| selected.value == name) {
                stored.select_none().map_err(failed)?;
                report_note!("it was selected: commands use the configuration file now");
            }
            done_with(&name, "removed", &mut context)
        }
    }
}

/// Warns if the commands that follow do not use the context that is selected now.
fn warn_if_overridden(selected: &str, overrides: &ConfigOverrides) {
    let overrides = ConfigOverrides { resolvers: None, context: None, ..overrides.clone() };
    let (config, _) = Config::load_with_problems(&overrides);
    if config.context.value.as_deref() == Some(selected) {
        return;
    }
    let origin = match &config.context.origin {
        Origin::Default => &config.resolvers.origin,
        variable => variable,
    };
    report_warning!("{origin} takes precedence here: commands do not use context {selected}");
}

/// What the flags say of the system beside its replicas. Files get absolute paths: commands are
/// typed in any folder.
fn keys(overrides: &ConfigOverrides) -> anyhow::Result<ContextKeys> {
    let SystemFlags { cluster, tls_ca, tls_certificate, tls_key, tls_server_name, token_file } =
        overrides.system.clone();
    let cluster = cluster.map(cluster_name).transpose().map_err(UsageError)?;
    let file = |file: Option<String>| file.map(absolute).transpose();
    let ca = match tls_ca {
        Some(ca) if ca == "system" => Some(ca),
        ca => file(ca)?,
    };
    let given = |keys: Vec<(&'static str, Option<String>)>| {
        keys.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
    };
    Ok(ContextKeys {
        top: given(vec![("cluster", cluster), ("token_file", file(token_file)?)]),
        tls: given(vec![
            ("ca", ca),
            ("certificate", file(tls_certificate)?),
            ("key", file(tls_key)?),
            ("server_name", tls_server_name),
        ]),
    })
}

fn absolute(file: String) -> anyhow::Result<String> {
    let path = std::path::absolute(&file)?.into_os_string();
    let not_utf_8 = |_| UsageError(format!("{file} is in a folder whose name is not UTF-8"));
    Ok(path.into_string().map_err(not_utf_8)?)
}

fn failed(why: String) -> Failure {
    Failure::new(FailureKind::Failed, why)
}

fn done_with(name: &str, done: &str, context: &mut Context) -> anyhow::Result<()> {
    match context.output.is_json() {
        true => context.output.json(&json!({ "context": name, "done": done }))?,
        false => context.output.line(format!("context {name} is {done}"))?,
    }
    Ok(())
}

/// Lists all contexts, damaged ones with their error.
fn list(stored: &Contexts, context: &mut Context) -> anyhow::Result<()> {
    let selected = stored.selected().map_err(failed)?.map(|selected| selected.value);
    let all: Vec<(String, Result<NamedContext, String>)> = stored
        .names()
        .map_err(failed)?
        .into_iter()
        .map(|name| (name.clone(), stored.read(&name)))
        .collect();
    let is_selected = |name: &str| selected.as_deref() == Some(name);
    if context.output.is_json() {
        let one = |(name, read): &(String, Result<NamedContext, String>)| {
            let (resolvers, error) = match read {
                Ok(one) => (json!(one.resolvers.value), Value::Null),
                Err(why) => (Value::Null, json!(why)),
            };
            let selected = is_selected(name);
            json!({ "name": name, "selected": selected, "resolvers": resolvers, "error": error })
        };
        let contexts: Vec<Value> = all.iter().map(one).collect();
        context.output.json_pretty(&json!({ "contexts": contexts }))?;
    } else if !all.is_empty() {
        let mut table = Table::new(&["context", "selected", "resolvers"]);
        for (name, read) in &all {
            let selected = if is_selected(name) { "yes" } else { "no" };
            let resolvers = match read {
                Ok(one) => one.resolvers.value.join(","),
                Err(_) => "(invalid)".to_owned(),
            };
            table.row([name.clone(), selected.to_owned(), resolvers]);
        }
        context.output.table(&table)?;
    }
    let damaged: Vec<&String> = all.iter().filter_map(|(_, read)| read.as_ref().err()).collect();
    for why in &damaged {
        report_error!("{why}");
    }
    if damaged.is_empty() { Ok(()) } else { Err(AlreadyReported.into()) }
}

fn show(stored: &Contexts, name: Option<String>, context: &mut Context) -> anyhow::Result<()> {
    let name = match name {
        Some(name) => name,
        None => match stored.selected().map_err(failed)? {
            Some(selected) => selected.value,
            None => anyhow::bail!("no context is selected; select one: longshore context use NAME"),
        },
    };
    let stored = stored.read(&name).map_err(failed)?;
    let others = stored.other_keys();
    let NamedContext { name, resolvers, .. } = stored;
    if context.output.is_json() {
        context.output.json_pretty(&json!({
            "name": name, "resolvers": resolvers.value, "from": resolvers.origin.to_string(),
            "keys": others.into_iter().map(|(key, setting)| {
                json!({ "key": key, "value": setting.value, "from": setting.origin.to_string() })
            }).collect::<Vec<_>>(),
        }))?;
    } else {
        let mut table = Table::new(&["key", "value", "from"]);
        let list = resolvers.value.join(",");
        table.row(["resolvers".to_owned(), list, resolvers.origin.to_string()]);
        for (key, setting) in others {
            table.row([key.to_owned(), setting.value, setting.origin.to_string()]);
        }
        context.output.table(&table)?;
    }
    Ok(())
}
