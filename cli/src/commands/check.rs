//! `longshore check`: the health of every part.

use std::pin::pin;
use std::process::{self, ExitCode};
use std::time::Duration;

use longshore::protocol::SessionId;
use longshore::protocol::messages::work::{PublisherStatus, QueueStat, Room};
use longshore::{Gathered, Glob, LinkOptions, Queues, QueuesError, QueuesOptions, ReadClient};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::Context;
use super::workers::{self, Listed as Workers, NO_METRICS};
use crate::arguments::Check;
use crate::failure::Reported;
use crate::output::{counted, jobs, printable};

/// A command that has waited this long to become durable points at a disk in trouble, in
/// milliseconds.
const COMMIT_SLOW_MS: u64 = 5_000;
/// The longest that a handshake may take, and an answer.
const HANDSHAKE_MAX: Duration = Duration::from_secs(3);
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// How bad it is, the worst last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Level {
    Ok,
    Warning,
    /// It could not be checked.
    Unknown,
    Critical,
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Level::Ok => "OK",
            Level::Warning => "WARNING",
            Level::Unknown => "UNKNOWN",
            Level::Critical => "CRITICAL",
        }
    }

    /// The exit code of a Nagios plugin.
    fn code(self) -> u8 {
        match self {
            Level::Ok => 0,
            Level::Warning => 1,
            Level::Critical => 2,
            Level::Unknown => 3,
        }
    }
}

/// What `check --nagios` ends with when nothing could be checked: one line, and Nagios's exit code
/// for it.
pub(crate) fn unknown(why: &str) -> ExitCode {
    let why = why.lines().next().unwrap_or_default();
    println!("LONGSHORE {} - {}", Level::Unknown.word(), printable(why));
    ExitCode::from(Level::Unknown.code())
}

/// One thing that was looked at.
struct Finding {
    part: String,
    level: Level,
    says: String,
}

pub(crate) async fn run(arguments: Check, mut context: Context) -> anyhow::Result<()> {
    let findings = look(&context).await;
    let worst = findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Unknown);
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
        process::exit(worst.code().into());
    }
    // A warning is something to know, not a failure.
    if worst > Level::Warning { Err(Reported.into()) } else { Ok(()) }
}

async fn look(context: &Context) -> Vec<Finding> {
    let mut findings = Vec::new();
    // What is stopped takes connections and says no handshake: it is to be named within 10 s, one
    // beside the other.
    let mut cluster = context.cluster();
    cluster.timing.handshake_timeout = cluster.timing.handshake_timeout.min(HANDSHAKE_MAX);
    let client = ReadClient::new(cluster.clone(), SessionId(rand::random()), "longshore");
    let link = LinkOptions { handshake_timeout: HANDSHAKE_MAX, ..LinkOptions::default() };
    let options = QueuesOptions { request_timeout: ANSWER_MAX, link, ..QueuesOptions::default() };
    let queues = Queues::connect(cluster, options);
    let mut asking = pin!(async {
        let stats = queues.stats(Glob::everything());
        let listed = async {
            let listed = timeout(ANSWER_MAX, workers::listed(context)).await;
            listed.ok().and_then(Result::ok)
        };
        tokio::join!(queues.status(), stats, listed)
    });
    let mut replicas = pin!(client.replica_status());
    let (replicas, answers) = tokio::select! {
        replicas = &mut replicas => (replicas, None),
        answers = &mut asking => (replicas.await, Some(answers)),
    };
    let up = replicas.iter().filter(|(_, status)| status.is_ok()).count();
    for (replica, status) in &replicas {
        let (level, says) = match status {
            Ok(status) if status.warming => (Level::Warning, "warming".to_owned()),
            Ok(status) => {
                // Publishers, and the processes that serve live values and metrics.
                let writers = counted(status.publishers, "writer");
                (Level::Ok, format!("{writers}, {}", counted(status.paths, "path")))
            }
            // As long as one answers, everybody finds everything.
            Err(why) if up > 0 => (Level::Warning, why.clone()),
            // Nobody can tell how the publishers are.
            Err(why) => (Level::Unknown, why.clone()),
        };
        findings.push(Finding { part: format!("replica {replica}"), level, says });
    }
    if up == 0 {
        return findings;
    }
    let (status, stats, workers) = match answers {
        Some(answers) => answers,
        None => asking.await,
    };
    match status {
        Ok(gathered) => findings.extend(publishers(&gathered)),
        Err(error) => findings.push(unchecked("publishers", &error)),
    }
    match stats {
        Ok(stats) => {
            // Without the list of workers a queue is as it counts its subscriptions.
            let workers = workers.unwrap_or_default();
            findings.extend(workers.without_metrics.iter().map(|name| Finding {
                part: format!("publisher {name}"),
                level: Level::Ok,
                says: NO_METRICS.to_owned(),
            }));
            findings.extend(stats.merged().iter().filter_map(|stat| queue(stat, &workers)));
        }
        Err(error) => findings.push(unchecked("queues", &error)),
    }
    findings
}

fn unchecked(part: &str, error: &QueuesError) -> Finding {
    Finding { part: part.to_owned(), level: Level::Unknown, says: error.to_string() }
}

/// What a publisher refuses for want of room, why, and the remedy.
pub(crate) fn short_of(status: &PublisherStatus) -> Option<String> {
    let disk = "free some of its disk, and it resumes by itself";
    match status.room {
        Room::Open if status.memory_bytes < status.memory_max => None,
        Room::Open => Some(format!(
            "its jobs take {} MiB of memory, and may take {}: it refuses new jobs (MemoryFull); let workers catch up, keep \
             fewer ended jobs (longshore queue set), or start it with a larger --memory-max",
            status.memory_bytes >> 20,
            status.memory_max >> 20,
        )),
        Room::NoEnqueues => {
            Some(format!("its disk is short of room: it refuses new jobs (NoSpace); {disk}"))
        }
        Room::Held => Some(format!(
            "its disk is all but full: it refuses new jobs (NoSpace) and hands none out; what runs can end; {disk}"
        )),
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
            let short = short_of(status);
            let is_short = short.is_some();
            let is_filling = status.memory_bytes >= status.memory_max / 10 * 9;
            let says = if let (Some(short), false) = (short, slow) {
                short
            } else if is_filling && !slow {
                format!(
                    "its jobs take {} MiB of memory; from {} on it refuses new ones (MemoryFull)",
                    status.memory_bytes >> 20,
                    status.memory_max >> 20,
                )
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
            let level = if slow || is_short {
                Level::Critical
            } else if status.clock_held || is_filling {
                Level::Warning
            } else {
                Level::Ok
            };
            Finding { part: part(&answered.publisher.name), level, says }
        })
        .collect();
    for answered in &gathered.answers {
        let status = &answered.answer;
        if status.draining {
            findings.push(Finding {
                part: part(&answered.publisher.name),
                level: Level::Warning,
                says: format!(
                    "it is drained: it takes no new jobs; \
                     longshore publisher drain {} --undo ends that",
                    status.name
                ),
            });
        }
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
fn queue(stat: &QueueStat, workers: &Workers) -> Option<Finding> {
    let counts = stat.counts;
    let wait =
        format!("{} {}", jobs(counts.ready), if counts.ready == 1 { "waits" } else { "wait" });
    let says = if let Some(pattern) = stat.paused_by.first() {
        format!("{wait} and the queue is paused by {pattern}")
    } else if counts.ready > 0 && stat.subscriptions == 0 {
        format!("{wait} and no worker takes them")
    } else if counts.ready > 0 && workers.are_all_quiet(&stat.path) {
        format!("{wait} and every worker that takes them is quiet: longshore workers resume")
    } else if counts.dead > 0 {
        format!("{} in the dead letters", jobs(counts.dead))
    } else {
        return None;
    };
    Some(Finding { part: format!("queue {}", stat.path), level: Level::Warning, says })
}
