//! `longshore check`: the health of every part.

use std::process;

use longshore::protocol::messages::work::{PublisherStatus, QueueStat, Room};
use longshore::{Gathered, Glob};
use serde_json::{Value, json};

use super::Context;
use crate::arguments::Check;
use crate::failure::Reported;
use crate::output::{counted, jobs};

/// A command that has waited this long to become durable points at a disk in trouble, in milliseconds.
const COMMIT_SLOW_MS: u64 = 5_000;

/// How bad it is; the numbers are Nagios's exit codes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Level {
    Ok = 0,
    Warning = 1,
    Critical = 2,
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Level::Ok => "OK",
            Level::Warning => "WARNING",
            Level::Critical => "CRITICAL",
        }
    }
}

/// One thing that was looked at.
struct Finding {
    part: String,
    level: Level,
    says: String,
}

pub(crate) async fn run(arguments: Check, mut context: Context) -> anyhow::Result<()> {
    let findings = look(&context).await;
    let worst = findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Critical);
    if context.output.is_json() {
        let parts: Vec<Value> = findings
            .iter()
            .map(|f| json!({ "part": f.part, "level": f.level.word(), "says": f.says }))
            .collect();
        context.output.json_pretty(&json!({ "level": worst.word(), "parts": parts }))?;
    } else if arguments.nagios {
        let shown: Vec<String> = findings
            .iter()
            .filter(|finding| finding.level == worst)
            .map(|finding| format!("{} {}", finding.part, finding.says))
            .collect();
        context.output.line(format!("LONGSHORE {} - {}", worst.word(), shown.join("; ")))?;
    } else {
        for finding in &findings {
            context.output.line(format!(
                "{:<8} {}: {}",
                finding.level.word(),
                finding.part,
                finding.says
            ))?;
        }
    }
    if arguments.nagios {
        process::exit(worst as i32);
    }
    // A warning is something to know, not a failure.
    if worst == Level::Critical { Err(Reported.into()) } else { Ok(()) }
}

async fn look(context: &Context) -> Vec<Finding> {
    let mut findings = Vec::new();
    let replicas = context.read_client().replica_status().await;
    let up = replicas.iter().filter(|(_, status)| status.is_ok()).count();
    for (replica, status) in &replicas {
        let (level, says) = match status {
            Ok(status) if status.warming => (Level::Warning, "warming".to_owned()),
            Ok(status) => {
                let publishers = counted(status.publishers, "publisher");
                (Level::Ok, format!("{publishers}, {}", counted(status.paths, "path")))
            }
            // As long as one answers, everybody finds everything.
            Err(why) if up > 0 => (Level::Warning, why.clone()),
            Err(why) => (Level::Critical, why.clone()),
        };
        findings.push(Finding { part: format!("replica {replica}"), level, says });
    }
    if up == 0 {
        return findings;
    }
    let queues = context.queues();
    match queues.status().await {
        Ok(gathered) => findings.extend(publishers(&gathered)),
        Err(error) => findings.push(Finding {
            part: "publishers".to_owned(),
            level: Level::Critical,
            says: error.to_string(),
        }),
    }
    if let Ok(stats) = queues.stats(Glob::everything()).await {
        findings.extend(stats.merged().iter().filter_map(queue));
    }
    findings
}

/// What a publisher refuses for want of room.
pub(crate) fn short_of(room: Room) -> Option<&'static str> {
    match room {
        Room::Open => None,
        Room::NoEnqueues => Some("its disk is short of room: it refuses new jobs (NoSpace)"),
        Room::Held => Some(
            "its disk is all but full: it refuses new jobs (NoSpace) and hands none out; what runs can end",
        ),
    }
}

fn publishers(gathered: &Gathered<PublisherStatus>) -> Vec<Finding> {
    let part = |name: &str| format!("publisher {name}");
    let mut findings: Vec<Finding> = gathered
        .answers
        .iter()
        .map(|answered| {
            let status = &answered.answer;
            let slow = status.oldest_uncommitted_ms >= COMMIT_SLOW_MS;
            let says = if let (Some(short), false) = (short_of(status.room), slow) {
                format!("{short}; free some of its disk, and it resumes by itself")
            } else if status.clock_held && !slow {
                "the wall clock has jumped; what waits for it is held back: longshore resume --clock"
                    .to_owned()
            } else if slow {
                format!(
                    "its oldest command has not been durable for {} ms",
                    status.oldest_uncommitted_ms
                )
            } else {
                let links = counted(status.links, "link");
                format!("{}, {links}, {}", jobs(status.jobs), status.durability)
            };
            let level = if slow || status.room != Room::Open {
                Level::Critical
            } else if status.clock_held {
                Level::Warning
            } else {
                Level::Ok
            };
            Finding { part: part(&answered.publisher.name), level, says }
        })
        .collect();
    for answered in &gathered.answers {
        let status = &answered.answer;
        for (what, patterns) in [("paused", &status.paused), ("closed", &status.closed)] {
            let patterns: Vec<String> =
                patterns.iter().map(|pattern| format!("'{pattern}'")).collect();
            findings.extend((!patterns.is_empty()).then(|| Finding {
                part: part(&answered.publisher.name),
                level: Level::Warning,
                says: format!("{what}: {}", patterns.join(", ")),
            }));
        }
    }
    findings.extend(gathered.missing.iter().map(|missing| Finding {
        part: part(&missing.publisher.name),
        level: Level::Critical,
        says: format!("does not answer: {}", missing.why),
    }));
    if findings.is_empty() {
        let says = "there is none".to_owned();
        findings.push(Finding { part: "publishers".to_owned(), level: Level::Critical, says });
    }
    findings
}

/// Queues that somebody should look at.
fn queue(stat: &QueueStat) -> Option<Finding> {
    let counts = stat.counts;
    let says = if let Some(pattern) = stat.paused_by.first() {
        format!("{} jobs wait and the queue is paused by {pattern}", counts.ready)
    } else if counts.ready > 0 && stat.subscriptions == 0 {
        format!("{} jobs wait and no worker takes them", counts.ready)
    } else if counts.dead > 0 {
        format!("{} jobs in the dead letters", counts.dead)
    } else {
        return None;
    };
    Some(Finding { part: format!("queue {}", stat.path), level: Level::Warning, says })
}
