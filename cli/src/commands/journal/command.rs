//! A logged command as JSON.

use longshore::journal::{Command, Occurrence};
use longshore::protocol::PathSet;
use longshore::protocol::messages::work::{
    BatchEntry, EnqueueBatch, NextOccurrence, SettleBatch, SettleItem, Span, Verdict,
};
use longshore::{Glob, Path};
use serde_json::{Value, json};

use super::super::cron::declared_json;
use super::super::limit::limit_json;
use super::super::queue::settings_json;
use crate::output::bytes_json;

/// A command's name and fields. User data is shown only with `payloads`, otherwise only its size.
pub(super) fn command_json(command: &Command, payloads: bool) -> (&'static str, Value) {
    match command {
        Command::Start(start) => (
            "start",
            json!({
                "publisher": start.publisher.to_string(), "epoch": start.epoch.0,
                "durability": start.durability.to_string(), "paths": texts(&start.paths),
                "defaults": texts(&start.defaults),
            }),
        ),
        Command::LinkUp { link, role, session, name, identity, work, resume } => (
            "link_up",
            json!({
                "link": link.0, "role": debug(role), "session": session.to_string(), "name": name,
                "identity": Some(identity).filter(|text| !text.is_empty()),
                "work": work.as_ref().map(path_set),
                "resume": resume.0.iter().map(|token| token.0).collect::<Vec<_>>(),
            }),
        ),
        Command::Permit { link, work } => {
            ("permit", json!({ "link": link.0, "work": work.as_ref().map(path_set) }))
        }
        Command::LinkLost { link } => ("link_lost", json!({ "link": link.0 })),
        Command::Subscribe { link, subscription, sources, handlers } => (
            "subscribe",
            json!({
                "link": link.0,
                "subscription": subscription,
                "sources": debug(sources),
                "handlers": handlers,
            }),
        ),
        Command::Unsubscribe { link, subscription } => {
            ("unsubscribe", json!({ "link": link.0, "subscription": subscription }))
        }
        Command::Credit { link, subscription, count } => {
            ("credit", json!({ "link": link.0, "subscription": subscription, "count": count }))
        }
        Command::Recall { link, subscription, count } => {
            ("recall", json!({ "link": link.0, "subscription": subscription, "count": count }))
        }
        Command::Enqueue { link, batch } => (
            "enqueue",
            json!({
                "link": link.0, "batch": batch.sequence, "atomic": batch.atomic,
                "jobs": jobs(batch, payloads),
            }),
        ),
        Command::Settle { link, batch } => (
            "settle",
            json!({ "link": link.0, "batch": batch.sequence, "ends": ends(batch, payloads) }),
        ),
        Command::Expire { leases } => {
            let leases = leases.iter().map(|lease| {
                json!({
                    "token": lease.token.0, "started": lease.started, "uncounted": lease.uncounted,
                    "timed_out": lease.timed_out,
                })
            });
            ("expire", json!({ "leases": leases.collect::<Vec<_>>() }))
        }
        Command::Checkpoint { link, checkpoint } => {
            let mut fields = json!({ "link": link.0, "bytes": checkpoint.body().len() });
            if payloads {
                fields["content"] = bytes_json(checkpoint.body());
            }
            ("checkpoint", fields)
        }
        Command::Act { link, request, action, selection, pace, within } => (
            "act",
            json!({
                "link": link.0, "request": request, "action": debug(action),
                "selection": debug(selection), "pace": pace.as_ref().map(debug),
                "within": within.as_ref().map(path_set),
            }),
        ),
        Command::Replace { link, request, id, entry } => {
            let mut fields = json!({
                "link": link.0, "request": request, "id": id.to_string(), "bytes": entry.len(),
            });
            if payloads {
                fields["entry"] = bytes_json(entry);
            }
            ("replace", fields)
        }
        Command::Pause { link, request, gate, pattern, paused } => (
            "pause",
            json!({
                "link": link.0, "request": request, "gate": gate.to_string(),
                "pattern": pattern.as_str(), "paused": paused,
            }),
        ),
        Command::SetLimit { link, request, limit } => {
            ("set_limit", json!({ "link": link.0, "request": request, "limit": limit_json(limit) }))
        }
        Command::RemoveLimit { link, request, name } => {
            ("remove_limit", json!({ "link": link.0, "request": request, "name": name }))
        }
        Command::PutSchedule { link, request, next, entry, schedule } => (
            "put_schedule",
            json!({
                "link": link.0, "request": request, "schedule": declared_json(schedule),
                "entry_bytes": entry.len(), "next": next.map(next_json),
            }),
        ),
        Command::RemoveSchedule { link, request, name } => {
            ("remove_schedule", json!({ "link": link.0, "request": request, "name": name }))
        }
        Command::PauseSchedule { link, request, name, paused, next } => (
            "pause_schedule",
            json!({
                "link": link.0, "request": request, "name": name, "paused": paused,
                "next": next.map(next_json),
            }),
        ),
        Command::RunSchedule { link, request, name, job } => (
            "run_schedule",
            json!({
                "link": link.0, "request": request, "name": name, "job": job.to_string(),
            }),
        ),
        Command::Occur { occurrences } => {
            let one = |occurrence: &Occurrence| {
                json!({
                    "schedule": occurrence.schedule, "due_at": occurrence.due_at,
                    "run": occurrence.run.map(|run| json!({
                        "due_at": run.due_at, "job": run.job.to_string(),
                    })),
                    "missed": occurrence.missed, "next": occurrence.next.map(next_json),
                })
            };
            ("occur", json!({ "occurrences": occurrences.iter().map(one).collect::<Vec<_>>() }))
        }
        Command::Drain { link, request, draining } => {
            ("drain", json!({ "link": link.0, "request": request, "draining": draining }))
        }
        Command::Configure { link, request, path, changes, reset } => (
            "configure",
            json!({
                "link": link.0, "request": request, "path": path.as_str(), "reset": reset,
                "changes": settings_json(changes),
            }),
        ),
        Command::Damaged { token } => ("damaged", json!({ "token": token.0 })),
        Command::Tick => ("tick", json!({})),
        Command::Refuse { link, sequence, jobs, refusal } => (
            "refuse",
            json!({
                "link": link.0, "batch": sequence, "jobs": jobs, "refusal": debug(refusal),
            }),
        ),
        Command::DeliveryBudget { budget: u64::MAX } => {
            ("delivery_budget", json!({ "budget": null }))
        }
        Command::DeliveryBudget { budget } => ("delivery_budget", json!({ "budget": budget })),
    }
}

fn path_set(paths: &PathSet) -> Value {
    let texts = |globs: &[Glob]| globs.iter().map(Glob::to_string).collect::<Vec<_>>();
    json!({ "allow": texts(&paths.allow), "deny": texts(&paths.deny) })
}

fn jobs(batch: &EnqueueBatch, payloads: bool) -> Vec<Value> {
    let job = |entry: BatchEntry| {
        let path = batch.paths.get(entry.path).map(Path::as_str);
        let head = match entry.head {
            Ok(head) => head,
            Err(error) => return json!({ "path": path, "undecodable": error.to_string() }),
        };
        let mut job = json!({
            "path": path, "id": head.id.to_string(), "payload_bytes": head.payload_len,
            "has_options": head.options.is_some(),
        });
        if payloads {
            // An entry ends with its payload.
            let end = entry.at as usize + entry.length as usize;
            let payload =
                end.checked_sub(head.payload_len).and_then(|at| batch.body().get(at..end));
            job["payload"] = payload.map_or(Value::Null, bytes_json);
        }
        job
    };
    batch.entries().map(job).collect()
}

fn ends(batch: &SettleBatch, payloads: bool) -> Vec<Value> {
    let content = |span: &Span| {
        let (from, to) = (span.at as usize, span.at as usize + span.length as usize);
        batch.body().get(from..to).map_or(Value::Null, bytes_json)
    };
    let end = |item: SettleItem| {
        let mut end = json!({ "token": item.token.0 });
        let (verdict, span) = match &item.verdict {
            Verdict::Complete(result) => ("complete", result.as_ref()),
            Verdict::Fail(error) => ("fail", Some(error)),
            Verdict::Release => ("release", None),
            Verdict::Snooze(delay_ms) => {
                end["delay_ms"] = json!(delay_ms);
                ("snooze", None)
            }
            Verdict::Throttle(delay_ms) => {
                end["delay_ms"] = json!(delay_ms);
                ("throttle", None)
            }
            Verdict::Bury(error) => ("bury", Some(error)),
        };
        end["verdict"] = json!(verdict);
        if let Some(span) = span {
            end["bytes"] = json!(span.length);
            if payloads {
                end["content"] = content(span);
            }
        }
        end
    };
    batch.items().map(end).collect()
}

fn texts(paths: &[Path]) -> Vec<&str> {
    paths.iter().map(Path::as_str).collect()
}

/// Debug form of values without a text form.
fn debug(value: &impl std::fmt::Debug) -> String {
    format!("{value:?}")
}

fn next_json(next: NextOccurrence) -> Value {
    json!({ "due_at": next.due_at, "fires_at": next.fires_at })
}
