//! `longshore access`: what a policy allows.

use std::path::Path as FilePath;

use longshore::Path;
use longshore::protocol::Glob;
use longshore_access::{
    Action, Decision, Effect, Identity, LinksLimit, NameKind, QueueQuota, Rule,
};
use serde_json::{Value, json};

use super::{Context, audit_log, named_file};
use crate::access_rules::read_policy;
use crate::arguments::{Access, AccessAction, GroupsArgument, PolicyArgument, Who};
use crate::failure::{Failure, FailureKind, UsageError};
use crate::output::Table;

pub(crate) fn run(arguments: Access, mut context: Context) -> anyhow::Result<()> {
    let policy_of = |argument: PolicyArgument, context: &Context| {
        let configured = &context.config.access.policy;
        named_file(&argument.file, configured, "--policy FILE", "access.policy", context)
    };
    match arguments.action {
        AccessAction::Check { who, action, path, groups, policy } => {
            let who = in_groups(who, groups)?;
            let file = policy_of(policy, &context)?;
            check(&who, action, &path, &file, &mut context)
        }
        AccessAction::Show { who, groups, policy } => {
            let who = in_groups(who, groups)?;
            let file = policy_of(policy, &context)?;
            show(&who, &file, &mut context)
        }
        AccessAction::Audit { files } => audit_log::verify(&files, &mut context),
    }
}

/// The client as its JWT names it.
fn in_groups(Who(who): Who, groups: GroupsArgument) -> Result<Who, UsageError> {
    let is_jwt = who.as_ref().is_some_and(|who| who.kind == NameKind::Jwt);
    if !is_jwt && !groups.names.is_empty() {
        let why = "--jwt-group is for a client with a JWT; write it as jwt:NAME";
        return Err(UsageError(why.to_owned()));
    }
    Ok(Who(who.map(|who| Identity { groups: groups.names.into(), ..who })))
}

fn read(file: &FilePath) -> Result<longshore_access::Policy, Failure> {
    read_policy(file).map_err(|why| Failure::new(FailureKind::Configuration, why))
}

fn check(
    who: &Who,
    action: Action,
    path: &Path,
    file: &FilePath,
    context: &mut Context,
) -> anyhow::Result<()> {
    let policy = read(file)?;
    let decision = policy.decide(who.0.as_ref(), action, path);
    let at = |rule: &Rule| format!("{}:{}", file.display(), rule.line);
    if context.output.is_json() {
        let rule = match decision {
            Decision::Allowed(rule) | Decision::Denied(rule) => Some(rule),
            Decision::NoRule => None,
        };
        let rule = rule.map(|rule| json!({ "effect": effect(rule), "line": rule.line }));
        context.output.json_pretty(&json!({
            "who": who.to_string(), "action": action.name(), "path": path.as_str(),
            "allowed": decision.is_allowed(), "rule": rule, "file": file.display().to_string(),
        }))?;
    }
    let what = format!("{who} may not {action} {path}");
    let why = match decision {
        Decision::Allowed(_) if context.output.is_json() => return Ok(()),
        Decision::Allowed(rule) => {
            let line = format!("{who} may {action} {path}: the rule at {} allows it", at(rule));
            context.output.line(line)?;
            return Ok(());
        }
        Decision::Denied(rule) => format!("{what}: the rule at {} denies it", at(rule)),
        Decision::NoRule => format!("{what}: no rule of {} allows it", file.display()),
    };
    Err(Failure::new(FailureKind::Failed, why).into())
}

fn effect(rule: &Rule) -> &'static str {
    match rule.effect {
        Effect::Allow => "allow",
        Effect::Deny => "deny",
    }
}

fn show(who: &Who, file: &FilePath, context: &mut Context) -> anyhow::Result<()> {
    let policy = read(file)?;
    let (rights, quota) = (policy.rights(who.0.as_ref()), policy.quota(who.0.as_ref()));
    let queue_quotas = policy.queue_quotas(who.0.as_ref());
    let texts = |globs: &[Glob]| globs.iter().map(ToString::to_string).collect::<Vec<_>>();
    let allowed = Action::ALL.into_iter().filter_map(|action| {
        let paths = rights.paths(action);
        (!paths.allow.is_empty()).then(|| (action, texts(&paths.allow), texts(&paths.deny)))
    });
    if context.output.is_json() {
        let actions: Vec<Value> = allowed
            .map(|(action, allow, deny)| {
                json!({ "action": action.name(), "allow": allow, "deny": deny })
            })
            .collect();
        let (who, file) = (who.to_string(), file.display().to_string());
        let quota = json!({
            "links": quota.links_max().map(|(most, _)| most),
            "handshakes_per_s": quota.handshakes, "bytes_per_s": quota.bytes,
            "messages_per_s": quota.messages, "registered_paths": quota.registered_paths,
        });
        let queue_quotas = queue_quotas.iter().map(|quota| {
            json!({
                "line": quota.line, "paths": texts(&quota.paths), "queues": quota.limits.queues,
                "waiting_jobs": quota.limits.waiting_jobs,
                "waiting_bytes": quota.limits.waiting_bytes,
            })
        });
        let queue_quotas: Vec<Value> = queue_quotas.collect();
        context.output.json_pretty(&json!({
            "who": who, "file": file, "actions": actions, "quota": quota,
            "queue_quotas": queue_quotas,
        }))?;
        return Ok(());
    }
    let mut table = Table::new(&["action", "paths", "except"]);
    for (action, allow, deny) in allowed {
        let except = if deny.is_empty() { "-".to_owned() } else { deny.join(" ") };
        table.row([action.name().to_owned(), allow.join(" "), except]);
    }
    if table.is_empty() {
        report_note!("{} allows nothing to {who}", file.display());
        return Ok(());
    }
    context.output.table(&table)?;
    let links = quota.links_max().map(|(most, limit)| match limit {
        LinksLimit::Links => format!("{most} links"),
        LinksLimit::Bytes => format!("{most} links (as its bytes serve no more)"),
        LinksLimit::Messages => format!("{most} links (as its messages serve no more)"),
    });
    let handshakes = quota.handshakes.map(|most| format!("{most} handshakes a second"));
    let bytes = quota.bytes.map(|most| format!("{most} bytes a second"));
    let messages = quota.messages.map(|most| format!("{most} messages a second"));
    let paths = quota.registered_paths.map(|most| format!("{most} registered paths"));
    let parts = [links, handshakes, bytes, messages, paths];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if !parts.is_empty() {
        context.output.line(format!("quota at each server: {}", parts.join(", ")))?;
    }
    for QueueQuota { line, paths, limits, .. } in queue_quotas {
        let queues = limits.queues.map(|most| format!("{most} queues"));
        let jobs = limits.waiting_jobs.map(|most| format!("{most} waiting jobs"));
        let bytes = limits.waiting_bytes.map(|most| format!("{most} bytes of waiting jobs"));
        let most: Vec<String> = [queues, jobs, bytes].into_iter().flatten().collect();
        let (most, paths) = (most.join(", "), texts(&paths).join(" "));
        let at = format!("{}:{line}", file.display());
        context.output.line(format!("quota at each publisher ({at}): {most} on {paths}"))?;
    }
    Ok(())
}
