//! `longshore batch new`, `ls`, `show`, `close`, `cancel` and `retry`.

use std::os::unix::ffi::OsStringExt;

use anyhow::bail;
use bytes::Bytes;
use longshore::{
    Action, Filter, FoundJob, Glob, JobLocator, JobsQuery, NewBatch, NewJob, Producer, Related,
    new_id,
};
use serde_json::json;

use super::{Context, act, job, job_view, jobs, missing_job};
use crate::arguments::{Batch, BatchAction, OfBatch};

pub(super) async fn run(arguments: Batch, context: Context) -> anyhow::Result<()> {
    match arguments.action {
        BatchAction::New { path, text, id, batch, expires } => {
            let payload = Bytes::from(text.unwrap_or_default().into_vec());
            let mut new = NewJob::new(path, id.unwrap_or_else(new_id), payload);
            new.options.expires_at = expires;
            new = new.batch(NewBatch::Open);
            if let Some(batch) = batch {
                new = new.in_batch(batch);
            }
            open(new, context).await
        }
        BatchAction::Ls { pattern, limit } => {
            let filter = Filter::of(pattern.unwrap_or_else(Glob::everything));
            let query = JobsQuery { related: Some(Related::Batches), ..JobsQuery::of(filter) };
            jobs::list(query, None, limit, context).await
        }
        BatchAction::Show { id, limit } => show(&id, limit, context).await,
        BatchAction::Close(of) => change(Action::CloseBatch, of, context).await,
        BatchAction::Cancel(of) => change(Action::Cancel, of, context).await,
        BatchAction::Retry(of) => change(Action::Revive, of, context).await,
    }
}

async fn open(batch: NewJob, mut context: Context) -> anyhow::Result<()> {
    let mut options = Producer::builder().name(format!("batch-{}", std::process::id()));
    if let Some(limit) = context.deadline.limit() {
        options = options.answer_timeout(limit);
    }
    let producer = options.connect(context.cluster());
    let receipt = producer.enqueue(batch).await?;
    if context.output.is_json() {
        context.output.json_row(&json!({
            "job": receipt.job.to_string(),
            "outcome": if receipt.existing { "existing" } else { "created" },
        }))?;
    } else {
        context.output.line(receipt.to_string())?;
    }
    Ok(())
}

async fn show(id: &JobLocator, limit: Option<u64>, mut context: Context) -> anyhow::Result<()> {
    let found = find(id, &context).await?;
    if context.output.is_json() {
        context.output.json_row(&job_view::json(&found.job_ref(), &found.job))?;
    } else {
        job::show(&found, None, &mut context).await?;
    }
    let related = Some(Related::MembersOf(found.job.id));
    let query = JobsQuery { related, ..JobsQuery::of(Filter::of(Glob::everything())) };
    jobs::list(query, None, limit, context).await
}

/// The batch; an error for another job.
async fn find(id: &JobLocator, context: &Context) -> anyhow::Result<FoundJob> {
    let queues = context.queues();
    let found = match queues.job(id).await {
        Ok(found) => found,
        Err(error) => return Err(missing_job::explain(error, id, &queues, context).await),
    };
    if found.job.batch.is_none() {
        bail!("job {id} is no batch");
    }
    Ok(found)
}

async fn change(action: Action, of: OfBatch, context: Context) -> anyhow::Result<()> {
    // Cancelling and reviving are acts on any job; nothing is done if one is no batch.
    for id in &of.which {
        find(id, &context).await?;
    }
    act::on_names(action, &of.which, of.act.dry_run, context).await
}
