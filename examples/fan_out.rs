//! A newsletter: one job enqueues a job for each reader, and a mail server that sometimes fails
//! causes retries. Undeliverable mails and mails without attempts left become dead letters, grouped
//! by their error. The whole system runs in this program, which ends by itself: `cargo run
//! --package longshore-examples --example fan_out`.

use std::time::Duration;

use longshore::Path;
use longshore::embedded::System;
use longshore::prelude::*;
use longshore::{Backoff, Filter, Glob, JobEnd, JobLocator, Json};

#[derive(serde::Serialize, serde::Deserialize)]
struct Newsletter {
    subject: String,
    readers: Vec<String>,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Mail {
    subject: String,
    to: String,
}

/// Errors of a mail server.
#[derive(Debug, thiserror::Error)]
enum SmtpError {
    #[error("451 try again later")]
    Busy,
    #[error("550 no such mailbox")]
    NoSuchMailbox,
}

/// A mail server that is busy for some recipients, always or at first, and does not know others.
fn smtp(mail: &Mail, attempt: u16) -> Result<(), SmtpError> {
    match mail.to.split_once('@') {
        Some(("nobody", _)) => Err(SmtpError::NoSuchMailbox),
        Some((_, "slow.example")) if attempt < 3 => Err(SmtpError::Busy),
        Some((_, "down.example")) => Err(SmtpError::Busy),
        _ => Ok(()),
    }
}

async fn send(job: Job<Mail>, context: JobContext) -> Result<(), JobFailure> {
    match smtp(&job.payload, context.attempt()) {
        Err(SmtpError::NoSuchMailbox) => {
            Err(JobFailure::bury(SmtpError::NoSuchMailbox).kind("NoSuchMailbox"))
        }
        Err(busy) => Err(JobFailure::retry(busy).kind("Busy")),
        Ok(()) => Ok(()),
    }
}

/// Enqueues one job for each reader; the result lists their receipts. Their ids are derived from
/// this job's id, so that a second attempt enqueues no mail twice.
async fn fan_out(
    job: Job<Newsletter>,
    context: JobContext,
    producer: Producer,
) -> Result<Json<Vec<String>>, JobFailure> {
    let Newsletter { subject, readers } = job.payload;
    let mut mails = Vec::with_capacity(readers.len());
    for (n, to) in (1u32..).zip(readers) {
        let mail = Mail { subject: subject.clone(), to };
        let mut id = job.id;
        for (byte, part) in id.0[12..].iter_mut().zip(n.to_be_bytes()) {
            *byte ^= part;
        }
        let mut mail = NewJob::new(Path::new("/mail/send")?, id, serde_json::to_vec(&mail)?);
        mail.options.max_attempts = Some(3);
        mail.options.backoff = Some(Backoff::Fixed(50));
        mails.push(producer.enqueue(mail).await?.to_string());
        context.progress(50, format!("{n} mails enqueued"));
    }
    Ok(Json(mails))
}

/// The outcome of a newsletter.
#[derive(Debug, PartialEq)]
pub(crate) struct Sent {
    /// Mails that were sent.
    pub(crate) sent: usize,
    /// The kind of error and number of the dead letters, by kind.
    pub(crate) dead: Vec<(String, u64)>,
}

/// Sends a newsletter to these readers.
pub(crate) async fn newsletter(readers: Vec<String>) -> anyhow::Result<Sent> {
    let journal = tempfile::tempdir()?;
    let system = System::start(journal.path()).await?;

    let producer = system.producer();
    let newsletters = system.worker().durable_subscribe("/mail/newsletter");
    let mails = system.worker().durable_subscribe("/mail/send");
    let handles = [newsletters.shutdown_handle(), mails.shutdown_handle()];
    let enqueues = producer.clone();
    let fanning =
        tokio::spawn(newsletters.run(move |job: Job<Newsletter>, context: JobContext| {
            fan_out(job, context, enqueues.clone())
        }));
    let sending = tokio::spawn(mails.run(send));

    let letter = Newsletter { subject: "What is new".into(), readers };
    let mut job = new_job(Path::new("/mail/newsletter")?, serde_json::to_vec(&letter)?);
    job.options.keep_result = true;
    let receipt = producer.enqueue(job).await?;
    let mails: Vec<String> = match producer.wait(&receipt, Duration::from_secs(60)).await? {
        JobEnd::Completed { result: Some(mails) } => serde_json::from_slice(&mails)?,
        end => anyhow::bail!("the newsletter was not sent: {end:?}"),
    };
    let queues = system.queues();
    let mut sent = 0;
    for mail in &mails {
        let end = queues.wait(&mail.parse::<JobLocator>()?, Duration::from_secs(60)).await?;
        sent += usize::from(matches!(end, JobEnd::Completed { .. }));
    }
    let groups = queues.dead_groups(Filter::of(Glob::new("/mail/**")?)).await?.merged().groups;
    let mut dead: Vec<(String, u64)> = Vec::new();
    for group in groups.into_iter().map(|at| at.group) {
        dead.push((group.error.map_or("no error".into(), |error| error.kind), group.jobs));
    }
    dead.sort();

    handles.iter().for_each(|handle| handle.drain());
    fanning.await??;
    sending.await??;
    system.stop().await?;
    Ok(Sent { sent, dead })
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let readers = (1..=100).map(|n| match n % 10 {
        0 => format!("nobody@{n}.example"),
        3 | 6 => format!("reader-{n}@slow.example"),
        9 => format!("reader-{n}@down.example"),
        _ => format!("reader-{n}@fast.example"),
    });
    let Sent { sent, dead } = newsletter(readers.collect()).await?;
    println!("{sent} mails sent");
    for (kind, jobs) in dead {
        println!("{jobs} dead letters: {kind}");
    }
    Ok(())
}
