//! `longshore check`: the health of every component.

use std::pin::pin;
use std::process::{self, ExitCode};
use std::time::Duration;

use longshore::protocol::messages::work::{PublisherStatus, QueueStat, Room};
use longshore::{Glob, LinkOptions, PublisherAnswers, Queues, QueuesError, ReadClient};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::Context;
use super::known_publishers::{self, Gap, query_all};
use super::workers::{self, NO_METRICS, WorkerList};
use crate::arguments::Check;
use crate::failure::AlreadyReported;
use crate::output::{counted, jobs, printable};

/// A command that waits this long for its commit, in milliseconds, indicates a failing disk.
const COMMIT_SLOW_MS: u64 = 5_000;
/// Timeouts of a publisher's handshake and of an answer.
const HANDSHAKE_MAX: Duration = Duration::from_secs(3);
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// When replicas that lack publishers are asked again.
const SECOND_LOOK_AFTER: Duration = Duration::from_secs(1);

/// Severity, the worst last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Level {
    Ok,
    Warning,
    /// The component could not be checked.
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

/// The result of `check --nagios` if nothing could be checked: one line, and Nagios's exit code.
pub(crate) fn unknown(why: &str) -> ExitCode {
    let why = why.lines().next().unwrap_or_default();
    println!("LONGSHORE {} - {}", Level::Unknown.word(), printable(why));
    ExitCode::from(Level::Unknown.code())
}

/// The result for one component.
struct Finding {
    part: String,
    level: Level,
    message: String,
}

pub(crate) async fn run(arguments: Check, mut context: Context) -> anyhow::Result<()> {
    let findings = check(&context).await;
    let worst = findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Unknown);
    if context.output.is_json() {
        let parts: Vec<Value> = findings
            .iter()
            .map(|f| json!({ "part": f.part, "level": f.level.word(), "message": f.message }))
            .collect();
        context.output.json_pretty(&json!({ "level": worst.word(), "parts": parts }))?;
    } else if arguments.nagios {
        let shown: Vec<String> = findings
            .iter()
            .filter(|finding| finding.level == worst)
            .map(|finding| format!("{} {}", finding.part, finding.message))
            .collect();
        context.output.line(format!("LONGSHORE {} - {}", worst.word(), shown.join("; ")))?;
    } else {
        for finding in &findings {
            context.output.line(format!(
                "{:<8} {}: {}",
                finding.level.word(),
                finding.part,
                finding.message
            ))?;
        }
    }
    if arguments.nagios {
        process::exit(worst.code().into());
    }
    // A warning is not a failure.
    if worst > Level::Warning { Err(AlreadyReported.into()) } else { Ok(()) }
}

async fn check(context: &Context) -> Vec<Finding> {
    let mut findings = Vec::new();
    // A stopped process accepts connections but never answers the handshake. All components are
    // checked concurrently, so that it is reported within 10 s.
    let cluster = context.cluster();
    let client = ReadClient::builder().name("longshore").connect(cluster.clone());
    let link = LinkOptions { handshake_timeout: HANDSHAKE_MAX, ..LinkOptions::default() };
    let options = Queues::builder().request_timeout(ANSWER_MAX).link(link);
    let queues = options.connect(cluster);
    let mut queries = pin!(async {
        let stats = queues.stats(Glob::everything());
        let listed = async {
            let listed = timeout(ANSWER_MAX, workers::read_all(context)).await;
            listed.ok().and_then(Result::ok)
        };
        tokio::join!(queues.status(), stats, listed)
    });
    let mut replicas = pin!(async {
        tokio::join!(client.replica_status(), gaps(&client, context.cluster().replicas))
    });
    let ((replicas, gaps), answers) = tokio::select! {
        replicas = &mut replicas => (replicas, None),
        answers = &mut queries => (replicas.await, Some(answers)),
    };
    let up = replicas.iter().filter(|(_, status)| status.is_ok()).count();
    for (replica, status) in &replicas {
        let (level, message) = match status {
            Ok(status) if status.warming => (Level::Warning, "warming".to_owned()),
            Ok(status) => {
                // Writers are publishers of queues and of values.
                let writers = counted(status.publishers, "writer");
                (Level::Ok, format!("{writers}, {}", counted(status.paths, "path")))
            }
            // One answering replica serves all clients.
            Err(why) if up > 0 => (Level::Warning, why.clone()),
            // Without a replica the publishers cannot be checked.
            Err(why) => (Level::Unknown, why.clone()),
        };
        findings.push(Finding { part: format!("replica {replica}"), level, message });
    }
    findings.extend(gaps.into_iter().map(|gap| Finding {
        part: format!("replica {}", gap.replica),
        level: Level::Warning,
        message: gap.message(),
    }));
    if up == 0 {
        return findings;
    }
    let (status, stats, workers) = match answers {
        Some(answers) => answers,
        None => queries.await,
    };
    match status {
        Ok(gathered) => findings.extend(publishers(&gathered)),
        Err(error) => findings.push(unchecked("publishers", &error)),
    }
    match stats {
        Ok(stats) => {
            // Without the list of workers, use each queue's number of subscriptions.
            let workers = workers.unwrap_or_default();
            findings.extend(workers.without_metrics.iter().map(|name| Finding {
                part: format!("publisher {name}"),
                level: Level::Ok,
                message: NO_METRICS.to_owned(),
            }));
            findings.extend(stats.merged().iter().filter_map(|stat| queue(stat, &workers)));
        }
        Err(error) => findings.push(unchecked("queues", &error)),
    }
    findings
}

/// The replicas that lack publishers, also after a second look: a publisher may be registering.
async fn gaps(client: &ReadClient, replicas: Vec<String>) -> Vec<Gap> {
    let gaps = known_publishers::gaps(&query_all(client, replicas.clone()).await);
    if gaps.is_empty() {
        return gaps;
    }
    sleep(SECOND_LOOK_AFTER).await;
    known_publishers::gaps(&query_all(client, replicas).await)
}

fn unchecked(part: &str, error: &QueuesError) -> Finding {
    Finding { part: part.to_owned(), level: Level::Unknown, message: error.to_string() }
}

/// What a publisher refuses for lack of memory or disk space, why, and the remedy.
pub(crate) fn shortage(status: &PublisherStatus) -> Option<String> {
    let disk = "free some of its disk, and it resumes by itself";
    match status.room {
        Room::Open if status.memory_bytes < status.memory_max => None,
        Room::Open => Some(format!(
            "its jobs take {} MiB of memory, and may take {}: it refuses new jobs (MemoryFull); \
             let workers catch up, retain fewer ended jobs (longshore queue set), or start it \
             with a larger --memory-max",
            status.memory_bytes >> 20,
            status.memory_max >> 20,
        )),
        Room::NoEnqueues => {
            Some(format!("its disk is short of room: it refuses new jobs (NoSpace); {disk}"))
        }
        Room::NoDeliveries => Some(format!(
            "its disk is almost full: it refuses new jobs (NoSpace) and delivers none; running \
             jobs can end; {disk}"
        )),
    }
}

fn publishers(gathered: &PublisherAnswers<PublisherStatus>) -> Vec<Finding> {
    let part = |name: &str| format!("publisher {name}");
    let mut findings: Vec<Finding> = gathered
        .answers
        .iter()
        .map(|answered| {
            let status = &answered.answer;
            let slow = status.oldest_uncommitted_ms >= COMMIT_SLOW_MS;
            let short = shortage(status);
            let is_short = short.is_some();
            let is_filling = status.memory_bytes >= status.memory_max / 10 * 9;
            let message = if let (Some(short), false) = (short, slow) {
                short
            } else if is_filling && !slow {
                format!(
                    "its jobs take {} MiB of memory; from {} on it refuses new ones (MemoryFull)",
                    status.memory_bytes >> 20,
                    status.memory_max >> 20,
                )
            } else if status.clock_held && !slow {
                "the wall clock has jumped; jobs that wait for it are paused: \
                 longshore resume --clock"
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
            Finding { part: part(&answered.publisher.name), level, message }
        })
        .collect();
    for answered in &gathered.answers {
        let status = &answered.answer;
        if status.draining {
            findings.push(Finding {
                part: part(&answered.publisher.name),
                level: Level::Warning,
                message: format!(
                    "it is drained: it accepts no new jobs; \
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
                message: format!("{what}: {}", patterns.join(", ")),
            }));
        }
    }
    findings.extend(gathered.missing.iter().map(|missing| Finding {
        part: part(&missing.publisher.name),
        level: Level::Critical,
        message: format!("does not answer: {}", missing.why),
    }));
    if findings.is_empty() {
        let message = "no replica knows one: longshore publisher run starts one, and its \
                       `resolvers` name every replica"
            .to_owned();
        findings.push(Finding { part: "publishers".to_owned(), level: Level::Critical, message });
    }
    findings
}

/// A warning about a queue, if an operator should act.
fn queue(stat: &QueueStat, workers: &WorkerList) -> Option<Finding> {
    let counts = stat.counts;
    let wait =
        format!("{} {}", jobs(counts.ready), if counts.ready == 1 { "waits" } else { "wait" });
    let message = if let Some(pattern) = stat.paused_by.first() {
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
    Some(Finding { part: format!("queue {}", stat.path), level: Level::Warning, message })
}
