//! `longshore check`: the health of every component.

use std::collections::BTreeMap;
use std::pin::pin;
use std::process::{self, ExitCode};
use std::time::Duration;

use longshore::protocol::messages::work::{PublisherStatus, QueueStat, Room};
use longshore::{
    Filter, Glob, JobsQuery, LinkOptions, Path, PublisherAnswer, PublisherAnswers, PublisherInfo,
    Queues, QueuesError, ReadClient, Related,
};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::Context;
use super::journal_copies::{self, shared_journals};
use super::known_publishers::{self, Gap, query_all};
use super::waiting_reasons::{self, COMMIT_SLOW_MS, Cause, Reason};
use super::workers::{self, NO_METRICS, WorkerList};
use crate::arguments::Check;
use crate::certificates::Validity;
use crate::config::Config;
use crate::failure::AlreadyReported;
use crate::output::{counted, jobs, printable};
use crate::time::{show_duration, wall_ms};
use crate::tls;

/// Timeouts of a publisher's handshake and of an answer.
const HANDSHAKE_MAX: Duration = Duration::from_secs(3);
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// How long a job may be dead for whose success others wait, before that is a warning.
const STUCK_AFTER: Duration = Duration::from_secs(15 * 60);
/// Most pages of such jobs that are counted, of up to 1,000 each.
const STUCK_PAGES_MAX: usize = 20;
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
    /// For a queue: why its jobs wait.
    reasons: Vec<Reason>,
}

impl Finding {
    fn new(part: impl Into<String>, level: Level, message: impl Into<String>) -> Finding {
        let (part, message) = (part.into(), message.into());
        Finding { part, level, message, reasons: Vec::new() }
    }

    fn json(&self) -> Value {
        let mut value = json!({
            "part": self.part, "level": self.level.word(), "message": self.message,
        });
        if !self.reasons.is_empty() {
            value["reasons"] = self.reasons.iter().map(Reason::json).collect();
        }
        value
    }
}

pub(crate) async fn run(arguments: Check, mut context: Context) -> anyhow::Result<()> {
    let findings = check(&context).await;
    let worst = findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Unknown);
    if context.output.is_json() {
        let parts: Vec<Value> = findings.iter().map(Finding::json).collect();
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
    let mut findings: Vec<Finding> = own_certificate(&context.config).into_iter().collect();
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
        tokio::join!(queues.status(), stats, listed, stuck(&queues))
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
            Err(why) if up > 0 => (Level::Warning, why.to_string()),
            // Without a replica the publishers cannot be checked.
            Err(why) => (Level::Unknown, why.to_string()),
        };
        findings.push(Finding::new(format!("replica {replica}"), level, message));
    }
    findings.extend(gaps.into_iter().map(|gap| {
        Finding::new(format!("replica {}", gap.replica), Level::Warning, gap.message())
    }));
    if up == 0 {
        return findings;
    }
    let (status, stats, workers, stuck) = match answers {
        Some(answers) => answers,
        None => queries.await,
    };
    match &status {
        Ok(gathered) => findings.extend(publishers(gathered)),
        Err(error) => findings.push(unchecked("publishers", error)),
    }
    match stats {
        Ok(stats) => {
            // Without the list of workers, use each queue's number of subscriptions.
            let workers = workers.unwrap_or_default();
            findings.extend(
                workers
                    .without_metrics
                    .iter()
                    .map(|name| Finding::new(format!("publisher {name}"), Level::Ok, NO_METRICS)),
            );
            let status = status.map(|gathered| gathered.answers).unwrap_or_default();
            findings.extend(of_queues(&stats, &status, &workers));
        }
        Err(error) => findings.push(unchecked("queues", &error)),
    }
    // Publishers that cannot be asked are reported above.
    findings.extend(stuck);
    findings
}

/// The certificate that the configuration names: mostly that of this machine's services.
fn own_certificate(config: &Config) -> Option<Finding> {
    let file = config.tls.certificate.value.as_deref()?;
    let (level, message) = match tls::validity(file) {
        Ok((Validity::Valid, left)) => (Level::Ok, left),
        Ok((Validity::Expiring, left)) => (Level::Warning, format!("{left}: replace it")),
        Ok((Validity::NotYet | Validity::Expired, left)) => (Level::Critical, left),
        Err(why) => (Level::Warning, why),
    };
    Some(Finding::new(format!("certificate {}", file.display()), level, message))
}

/// Queues with jobs that have been dead for a while, and for whose success others wait, as far as
/// they are found in time.
async fn stuck(queues: &Queues) -> Vec<Finding> {
    let filter = Filter {
        ended_before: Some(wall_ms().saturating_sub(STUCK_AFTER.as_millis() as u64)),
        ..Filter::of(Glob::everything())
    };
    let query = JobsQuery { related: Some(Related::WaitedFor), ..JobsQuery::of(filter) };
    let (mut found, mut at_least) = (BTreeMap::new(), "at least ");
    let reading = async {
        let mut pages = queues.jobs(query).await?;
        for _ in 0..STUCK_PAGES_MAX {
            let Some(page) = pages.next().await else {
                at_least = "";
                break;
            };
            for job in page.jobs {
                *found.entry(job.path).or_insert(0) += 1;
            }
        }
        Ok::<_, QueuesError>(())
    };
    // Each publisher is asked after the one before, and several may hang.
    let _ = timeout(ANSWER_MAX, reading).await;
    let finding = |(path, count): (Path, u64)| {
        let message = format!(
            "{at_least}{} dead for over {}, and others wait for their success (longshore jobs \
             {path} --waited-for): revive or drop them",
            jobs(count),
            show_duration(STUCK_AFTER)
        );
        Finding::new(format!("queue {path}"), Level::Warning, message)
    };
    found.into_iter().map(finding).collect()
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
    Finding::new(part, Level::Unknown, error.to_string())
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
            Finding::new(part(&answered.publisher.name), level, message)
        })
        .collect();
    for answered in &gathered.answers {
        let status = &answered.answer;
        if status.draining {
            let message = format!(
                "it is drained: it accepts no new jobs; \
                 longshore publisher drain {} --undo ends that",
                status.name
            );
            let part = part(&answered.publisher.name);
            findings.push(Finding::new(part, Level::Warning, message));
        }
        for (what, patterns) in [("paused", &status.paused), ("closed", &status.closed)] {
            let patterns: Vec<String> =
                patterns.iter().map(|pattern| format!("'{pattern}'")).collect();
            findings.extend((!patterns.is_empty()).then(|| {
                let message = format!("{what}: {}", patterns.join(", "));
                Finding::new(part(&answered.publisher.name), Level::Warning, message)
            }));
        }
    }
    findings.extend(shared_journals(&gathered.answers).values().map(|publishers| {
        Finding::new("publishers", Level::Warning, journal_copies::warning(publishers))
    }));
    findings.extend(gathered.missing.iter().map(|missing| {
        let message = format!("does not answer: {}", missing.why);
        Finding::new(part(&missing.publisher.name), Level::Critical, message)
    }));
    if findings.is_empty() {
        let message = "no replica knows one: longshore publisher run starts one, and its \
                       `resolvers` name every replica";
        findings.push(Finding::new("publishers", Level::Critical, message));
    }
    findings
}

/// A queue as each of its publishers reports it, with the publisher's name and status.
type AtPublisher<'a> = (&'a str, &'a QueueStat, Option<&'a PublisherStatus>);

/// Warnings about queues.
fn of_queues(
    stats: &PublisherAnswers<Vec<QueueStat>>,
    status: &[PublisherAnswer<PublisherStatus>],
    workers: &WorkerList,
) -> Vec<Finding> {
    let mut queues: BTreeMap<&Path, Vec<AtPublisher<'_>>> = BTreeMap::new();
    for answered in &stats.answers {
        let PublisherInfo { id, name, .. } = &answered.publisher;
        let status = status.iter().find(|one| one.publisher.id == *id).map(|one| &one.answer);
        for stat in &answered.answer {
            queues.entry(&stat.path).or_default().push((name, stat, status));
        }
    }
    queues.into_iter().filter_map(|(path, each)| of_queue(path, &each, workers)).collect()
}

/// A warning about a queue, if an operator should act: every reason why its jobs wait, and its dead
/// letters.
fn of_queue(path: &Path, each: &[AtPublisher<'_>], workers: &WorkerList) -> Option<Finding> {
    let mut ready = 0;
    let mut reasons: Vec<(Reason, Vec<&str>)> = Vec::new();
    for &(name, stat, status) in each {
        let of_queue = waiting_reasons::of_queue(stat, status, workers).into_iter();
        let is_paused = !stat.paused_by.is_empty();
        let mut needs_action = false;
        for reason in of_queue.filter(|reason| reason.cause.needs_action()) {
            // Without jobs only a pause is worth a warning: somebody may have forgotten it.
            if stat.counts.ready == 0 && !(is_paused && reason.cause == Cause::Paused) {
                continue;
            }
            needs_action = true;
            match reasons.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, at)) => at.push(name),
                None => reasons.push((reason, vec![name])),
            }
        }
        if needs_action {
            ready += stat.counts.ready;
        }
    }
    let shown = reasons.iter().map(|(reason, at)| match at.len() == each.len() {
        true => reason.to_string(),
        false => format!("at {}: {reason}", at.join(", ")),
    });
    let shown = shown.collect::<Vec<_>>().join("; ");
    let wait = if ready == 1 { "waits" } else { "wait" };
    let dead: u64 = each.iter().map(|(_, stat, _)| stat.counts.dead).sum();
    let waiting = (!shown.is_empty()).then(|| format!("{} {wait}: {shown}", jobs(ready)));
    let blocks =
        |stat: &QueueStat| stat.settings.dead_blocks_order == Some(true) && stat.counts.dead > 0;
    let blocked = each.iter().filter(|(_, stat, _)| blocks(stat));
    let dead = (dead > 0).then(|| match blocked.map(|(_, stat, _)| stat.counts.blocked).sum() {
        0 => format!("{} in the dead letters", jobs(dead)),
        blocked => format!(
            "{} in the dead letters, which keep their order keys, and {} blocked (longshore jobs \
             {path} --state blocked): revive or drop them",
            jobs(dead),
            jobs(blocked)
        ),
    });
    let message: Vec<String> = [waiting, dead].into_iter().flatten().collect();
    (!message.is_empty()).then(|| Finding {
        part: format!("queue {path}"),
        level: Level::Warning,
        message: message.join("; "),
        reasons: reasons.into_iter().map(|(reason, _)| reason).collect(),
    })
}
