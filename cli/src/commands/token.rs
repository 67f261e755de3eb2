//! `longshore token`: the tokens that servers accept.

use std::path::Path;

use longshore_access::{SECRET_RANDOM_BYTES, Secret, Token, TokenFault, Tokens};
use serde_json::{Value, json};

use super::{Context, named_file};
use crate::arguments::{self, DryRun, TokenAction, TokenFileArgument};
use crate::failure::{AlreadyReported, Failure, FailureKind, UsageError};
use crate::output::Table;
use crate::time::{show_duration, show_timestamp, wall_ms};
use crate::token_store::TokenStore;

pub(crate) fn run(arguments: arguments::Token, mut context: Context) -> anyhow::Result<()> {
    match arguments.action {
        TokenAction::Create { name, expires, replace, file } => {
            create(name, expires, replace, &store(file, &context)?, &mut context)
        }
        TokenAction::Ls { file } => list(&store(file, &context)?, &mut context),
        TokenAction::Revoke { tokens, file, act } => {
            revoke(&tokens, &store(file, &context)?, act, &mut context)
        }
    }
}

/// The token file that is named, or configured.
fn store(file: TokenFileArgument, context: &Context) -> anyhow::Result<TokenStore> {
    let configured = &context.config.access.tokens;
    let file = named_file(&file.path, configured, "--file FILE", "access.tokens", context)?;
    let store = TokenStore::new(file);
    if let Some(warning) = store.warning() {
        report_warning!("{warning}");
    }
    Ok(store)
}

fn create(
    name: String,
    expires_unix_ms: Option<u64>,
    replace: bool,
    store: &TokenStore,
    context: &mut Context,
) -> anyhow::Result<()> {
    let created_unix_ms = wall_ms();
    if let Some(expires) = expires_unix_ms.filter(|expires| *expires <= created_unix_ms) {
        let why = format!("--expires: {} is in the past", show_timestamp(expires));
        return Err(UsageError(why).into());
    }
    let secret = Secret::from_random(&mut rand::random::<[u8; SECRET_RANDOM_BYTES]>());
    let token = Token { name: name.clone(), hash: secret.hash(), created_unix_ms, expires_unix_ms };
    store.change(|tokens| {
        if replace && !tokens.remove(&token.name) {
            let why = format!("there is no token {} to replace", token.name);
            return Err(Failure::new(FailureKind::NotFound, why)
                .with_hint("longshore token ls shows all; without --replace it is created"));
        }
        tokens.add(token).map_err(refused)
    })?;
    let file = store.file().display();
    let text = String::from_utf8_lossy(secret.text());
    let printed = if context.output.is_json() {
        context.output.json_pretty(&json!({
            "name": name, "secret": text, "created": show_timestamp(created_unix_ms),
            "expires": expires_unix_ms.map(show_timestamp), "file": file.to_string(),
        }))
    } else {
        let end = match expires_unix_ms {
            Some(expires) => format!("until {}", show_timestamp(expires)),
            None => "until it is revoked".to_owned(),
        };
        report_note!(
            "{file} has token {name} now, valid {end}; this is its secret, which is stored nowhere:"
        );
        context.output.line(text)
    };
    // Also of a closed pipe, which ends other commands with success.
    printed.map_err(|why| {
        let why = format!("{file} has token {name} now, but its secret was not printed: {why}");
        let hint = "run it again with --replace: that makes another secret";
        Failure::new(FailureKind::Failed, why).with_hint(hint).into()
    })
}

fn refused(fault: TokenFault) -> Failure {
    let kind = match fault {
        TokenFault::Name(_) | TokenFault::Time { .. } => FailureKind::Usage,
        _ => FailureKind::Failed,
    };
    Failure::new(kind, fault.to_string())
}

fn list(store: &TokenStore, context: &mut Context) -> anyhow::Result<()> {
    let tokens = store.read()?.ok_or_else(|| missing(store.file()))?;
    let now = wall_ms();
    let is_expired = |token: &Token| token.expires_unix_ms.is_some_and(|end| now >= end);
    if context.output.is_json() {
        let one = |token: &Token| {
            json!({
                "name": token.name, "created": show_timestamp(token.created_unix_ms),
                "expires": token.expires_unix_ms.map(show_timestamp),
                "expired": is_expired(token), "hash": token.hash.to_string(),
            })
        };
        let all: Vec<Value> = tokens.iter().map(one).collect();
        let file = store.file().display().to_string();
        context.output.json_pretty(&json!({ "file": file, "tokens": all }))?;
        return Ok(());
    }
    if tokens.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["token", "created", "expires", "left"]);
    for token in tokens.iter() {
        let (expires, left) = match token.expires_unix_ms {
            None => ("never".to_owned(), "-".to_owned()),
            Some(end) => {
                let left = std::time::Duration::from_millis(end.saturating_sub(now));
                let left = if is_expired(token) { "EXPIRED".into() } else { show_duration(left) };
                (show_timestamp(end), left)
            }
        };
        table.row([token.name.clone(), show_timestamp(token.created_unix_ms), expires, left]);
    }
    context.output.table(&table)?;
    Ok(())
}

fn missing(file: &Path) -> Failure {
    Failure::new(FailureKind::NotFound, format!("there is no token file {}", file.display()))
        .with_hint("longshore token create NAME makes it")
}

fn revoke(
    names: &[String],
    store: &TokenStore,
    DryRun { dry_run }: DryRun,
    context: &mut Context,
) -> anyhow::Result<()> {
    let remove = |tokens: &mut Tokens| -> (Vec<&String>, Vec<&String>) {
        names.iter().partition(|name| tokens.remove(name))
    };
    let mut before = store.read()?.ok_or_else(|| missing(store.file()))?;
    let (revoked, unknown) = match dry_run {
        true => remove(&mut before),
        false => store.change(|tokens| Ok(remove(tokens)))?,
    };
    if context.output.is_json() {
        context.output.json_pretty(&json!({
            "file": store.file().display().to_string(), "dry_run": dry_run,
            "revoked": revoked, "unknown": unknown,
        }))?;
    }
    for name in &revoked {
        if !context.output.is_json() {
            let what = if dry_run { "would be revoked" } else { "is revoked" };
            context.output.line(format!("token {name} {what}"))?;
        }
    }
    for name in &unknown {
        report_error!("{} has no token {name}", store.file().display());
    }
    if unknown.is_empty() { Ok(()) } else { Err(AlreadyReported.into()) }
}
