//! `longshore demo`: enqueues files as jobs for workers in other processes, kills processes
//! meanwhile, and checks every result.

mod digests;
mod enqueue;
mod files;
mod ledger;
mod pace;
mod progress;
mod system;
pub(crate) mod worker;

use std::cell::RefCell;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use longshore::protocol::limits::PAGE_JOBS_MAX;
use longshore::protocol::messages::work::{Filter, JobsQuery};
use longshore::{Glob, JobState, Path, Queues};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::Context;
use crate::arguments::Demo;
use crate::failure::AlreadyReported;
use crate::output::{Progress, Table, counted, grouped, shown};
use crate::signals::StopSignal;
use crate::time::show_duration;
use ledger::{End, Ledger, Summary};
use pace::{Pace, Victim};
use progress::Counters;
use system::DemoSystem;

/// The parent of the demo's queues.
const PARENT: &str = "/demo";
/// Files per queue. Publishers retain the newest 100,000 ended jobs of a queue, and the demo reads
/// all of them.
const FILES_PER_QUEUE: usize = 50_000;
/// Buried or lost files that are printed by name.
const PRINTED_MAX: usize = 10;

pub(crate) async fn run(arguments: Demo, mut context: Context) -> anyhow::Result<()> {
    let stop = StopSignal::listen()?;
    let (folders, location) = match arguments.dir {
        Some(folder) => {
            let location = format!("below {}", folder.display());
            (vec![folder], location)
        }
        None => {
            let here = std::env::current_dir().context("cannot read the current directory")?;
            let found = files::dependencies(&here, files::cargo_home().as_deref())?;
            let count = counted(found.folders.len() as u64, "unpacked package");
            (found.folders, format!("of the {count} that {} names", found.lock.display()))
        }
    };
    let files = find_files(&folders, &location, &arguments.digests)?;
    let temporary = tempfile::Builder::new().prefix("longshore-demo-").tempdir();
    let temporary = temporary.context("cannot create a temporary folder for the journals")?;
    if !context.output.is_json() {
        context.output.line(format!(
            "{} {location}; 3 replicas, 2 publishers, 4 workers; journals in {}",
            counted(files.len() as u64, "file"),
            temporary.path().display(),
        ))?;
    }
    let ledger = Ledger::new(files.into_iter().map(|file| file.into_os_string().into_vec()));
    let run = tokio::select! {
        run = observed(ledger,  temporary.path(), &context) => run,
        () = stop.requested() => {
            report!("stopped; nothing was written");
            return stop.ended(true);
        }
    };
    let run = match run {
        Ok(run) => run,
        Err(error) => {
            let folder = temporary.keep();
            return Err(
                error.context(format!("the run failed; its logs are in {}", folder.display()))
            );
        }
    };
    write_digests(&arguments.digests, &run.summary)?;
    report(&run, &arguments.digests, &mut context)?;
    if run.summary.is_clean() {
        return Ok(());
    }
    report_error!(
        "not every file has exactly one result; journals and logs are in {}",
        temporary.keep().display()
    );
    Err(AlreadyReported.into())
}

/// The outcome of a run.
struct Run {
    summary: Summary,
    files: u64,
    counters: Counters,
    killed: Vec<String>,
    took: Duration,
}

impl Run {
    fn jobs_per_s(&self) -> f64 {
        (self.files as f64 / self.took.as_secs_f64()).round()
    }

    fn json(&self, digests: &FilePath) -> Value {
        let Run { summary, files, counters, killed, took } = self;
        let buried = summary.buried.iter();
        let buried = buried.map(|(file, why)| json!({ "file": shown_name(file), "reason": why }));
        json!({
            "files": files, "digests": summary.digests.len(), "buried": buried.collect::<Vec<_>>(),
            "redeliveries": counters.redelivered, "stale_refused": counters.stale_refused,
            "lost": summary.lost.len(), "doubled": summary.doubled,
            "unknown": summary.unknown, "foreign": summary.foreign, "killed": killed,
            "seconds": took.as_secs_f64(), "jobs_per_s": self.jobs_per_s(),
            "written": digests.display().to_string(),
        })
    }
}

/// A file's name in messages.
fn shown_name(name: &[u8]) -> String {
    shown(name, 300)
}

fn find_files(
    folders: &[PathBuf],
    location: &str,
    digests: &FilePath,
) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for folder in folders {
        files.extend(files::regular_files(folder, &mut |path, error| {
            report!("skipped {}: {error}", path.display());
        })?);
    }
    // Leave out the digests of an earlier run, which are about to change.
    if let Ok(written) = digests.canonicalize() {
        files.retain(|file| {
            file.file_name() != written.file_name()
                || file.canonicalize().is_ok_and(|f| f != written)
        });
    }
    if files.is_empty() {
        bail!("there is no file {location}");
    }
    Ok(files)
}

/// Starts the system, runs all jobs through it with kills on the way, and summarises.
async fn observed(ledger: Ledger, folder: &FilePath, context: &Context) -> anyhow::Result<Run> {
    let total = ledger.len() as u64;
    let mut system = DemoSystem::start(folder, PARENT).await?;
    let cluster = system.cluster()?;
    let queues = Queues::connect(cluster.clone());
    let paths = queue_paths(ledger.len())?;
    let ledger = RefCell::new(ledger);

    let mut progress = Progress::new("hashing", "files", Some(total), &context.output);
    let (allow, allowed) = watch::channel(0);
    let began = std::time::Instant::now();
    let enqueueing = enqueue::all(cluster, &ledger, &paths, allowed);
    let observing =
        progress::until_ended(&mut system, &queues, Pace::new(total), allow, &mut progress);
    let (_, (counters, killed)) = tokio::try_join!(enqueueing, observing)?;
    let took = began.elapsed();
    progress.finish();
    if killed.len() != Victim::ALL.len() {
        bail!(
            "only {} of {} kills happened: {}",
            killed.len(),
            Victim::ALL.len(),
            killed.join(", ")
        );
    }
    collect(&queues, &ledger, system.publishers()).await?;
    system.end().await?;
    Ok(Run { summary: ledger.into_inner().summary(), files: total, counters, killed, took })
}

fn queue_paths(files: usize) -> anyhow::Result<Vec<Path>> {
    let path = |n: usize| Ok(Path::new(&format!("{PARENT}/files-{n}"))?);
    (0..files.div_ceil(FILES_PER_QUEUE)).map(path).collect()
}

/// Reads how every job ended from the publishers' durable state.
async fn collect(
    queues: &Queues,
    ledger: &RefCell<Ledger>,
    publishers: usize,
) -> anyhow::Result<()> {
    for state in [JobState::Completed, JobState::Dead] {
        let pattern = Glob::new(&format!("{PARENT}/**"))?;
        let limit = PAGE_JOBS_MAX as u32;
        let filter = Filter::of(pattern).in_state(state);
        let query = JobsQuery { limit, full: true, ..JobsQuery::of(filter) };
        let mut pages = queues.jobs(query).await?;
        while let Some(page) = pages.next().await {
            let mut ledger = ledger.borrow_mut();
            for job in page.jobs {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let end = match state {
                    JobState::Completed => End::Digest(text(&job.result.unwrap_or_default())),
                    _ => End::Buried(job.error.map(|error| error.message).unwrap_or_default()),
                };
                ledger.ended(job.id, end);
            }
        }
        if let Some(missing) = pages.missing().first() {
            bail!("publisher {} did not list its jobs: {}", missing.publisher.name, missing.why);
        }
        if pages.answered().len() != publishers {
            bail!("{} of {publishers} publishers listed their jobs", pages.answered().len());
        }
    }
    Ok(())
}

fn write_digests(file: &FilePath, summary: &Summary) -> anyhow::Result<()> {
    let lines: Vec<u8> =
        summary.digests.iter().flat_map(|(name, digest)| digests::line(digest, name)).collect();
    fs::write(file, lines).with_context(|| format!("cannot write {}", file.display()))
}

fn report(run: &Run, digests: &FilePath, context: &mut Context) -> anyhow::Result<()> {
    let Run { summary, files, counters, killed, took } = run;
    if context.output.is_json() {
        context.output.json_pretty(&run.json(digests))?;
    } else {
        let mut table = Table::new(&["", "count"]);
        for (what, count) in [
            ("files", *files),
            ("digests", summary.digests.len() as u64),
            ("buried", summary.buried.len() as u64),
            ("redeliveries", counters.redelivered),
            ("stale results refused", counters.stale_refused),
            ("lost", summary.lost.len() as u64),
            ("doubled", summary.doubled),
            ("unknown", summary.unknown + summary.foreign),
            ("jobs/s", run.jobs_per_s() as u64),
        ] {
            table.row([what.to_owned(), grouped(count)]);
        }
        context.output.table(&table)?;
        context.output.line(format!(
            "killed and started again: {}; {} in all",
            killed.join(", "),
            show_duration(Duration::from_millis(u64::try_from(took.as_millis())?)),
        ))?;
        context.output.line(format!("sha256sum -c {}", digests.display()))?;
    }
    for (file, why) in summary.buried.iter().take(PRINTED_MAX) {
        report!("buried: {}: {why}", shown_name(file));
    }
    for file in summary.lost.iter().take(PRINTED_MAX) {
        report!("lost: {}", shown_name(file));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_reported_by_its_schema() {
        let summary = Summary {
            digests: vec![(b"a".to_vec(), "00".to_owned())],
            buried: vec![(b"not \xff utf8".to_vec(), "gone".to_owned())],
            ..Summary::default()
        };
        let (counters, killed) = (Counters::default(), vec!["worker-1".to_owned()]);
        let run = Run { summary, files: 2, counters, killed, took: Duration::from_secs(1) };
        crate::schema::check("demo", &run.json(FilePath::new("digests.txt")));
    }
}
