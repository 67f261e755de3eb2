//! `longshore publisher`: holds queues on its disk and pushes jobs to workers.

use std::path::{Path as FilePath, PathBuf};

use anyhow::Context as _;
use longshore::{OpenError, Opened, Publisher, PublisherOptions};
use serde_json::{Value, json};

use super::{Context, drain, forget, memory_json};
use crate::arguments::{self, PublisherAction};
use crate::config::Service;
use crate::failure::WrongUsage;
use crate::reload::Reload;
use crate::signals::{Stop, parent_gone};

pub(crate) async fn run(given: arguments::Publisher, context: Context) -> anyhow::Result<()> {
    match given.action {
        Some(PublisherAction::Drain(asked)) => drain::run(asked, context).await,
        Some(PublisherAction::Forget { name }) => forget::run(&name, context).await,
        None => serve(given, context).await,
    }
}

async fn serve(given: arguments::Publisher, mut context: Context) -> anyhow::Result<()> {
    let stop = Stop::listen()?;
    let end_with_stdin = given.child.end_with_stdin;
    let reload = Reload::listen(Service::Publisher, &context, &fixed(&given))?;
    let options = options(given, &context)?;
    let data = options.data.clone();
    let publisher = Publisher::open(options).await.map_err(|error| cannot_start(error, &data))?;
    tokio::spawn(reload.run(None));

    let address = publisher.local_address().to_string();
    if context.output.is_json() {
        context.output.json(&json!({
            "ready": "publisher", "name": publisher.name(), "address": address,
            "publisher": publisher.id().to_string(), "data": data.display().to_string(),
            "resolvers": context.config.resolvers.value, "recovered": recovered_json(publisher.opened()),
            "memory": memory_json(publisher.memory_bounds()),
        }))?;
    } else {
        context.output.line(format!(
            "publisher {} ({}) listens on {address}\ndata in {}\n{}registers at {}\nmemory beside its jobs: {}",
            publisher.name(),
            publisher.id().prefix(),
            data.display(),
            recovered_lines(publisher.opened()),
            context.config.resolvers.value.join(", "),
            publisher.memory_bounds(),
        ))?;
    }
    let asked = stop.asked();
    publisher
        .run(async move {
            tokio::select! {
                () = asked => {}
                () = parent_gone(), if end_with_stdin => {}
            }
        })
        .await
        .context("the publisher stopped; start it again once the cause is gone")
}

/// What a start found that people should know of, each on a line of its own.
pub(crate) fn recovered_lines(opened: &Opened) -> String {
    let mut lines = String::new();
    if let Some(dropped) = &opened.dropped {
        lines += &format!(
            "LOST: command {} and all after it, for the damage in {} at byte {}; {} bytes are kept in {}\n",
            dropped.index,
            dropped.file.display(),
            dropped.offset,
            dropped.bytes,
            dropped.kept_in.display(),
        );
    }
    if let Some(lost) = &opened.lost_payloads {
        lines += &format!(
            "LOST: the payloads in {} and {} more files; their jobs are buried when read\n",
            lost.file.display(),
            lost.files - 1,
        );
    }
    if let Some(cut) = &opened.cut {
        lines += &format!(
            "cut off {} at byte {}: {} bytes of a commit that nobody was told of\n",
            cut.file.display(),
            cut.offset,
            cut.bytes,
        );
    }
    lines
}

/// The same for programs.
pub(crate) fn recovered_json(opened: &Opened) -> Value {
    let dropped = opened.dropped.as_ref().map(|dropped| {
        json!({
            "file": dropped.file.display().to_string(), "offset": dropped.offset,
            "index": dropped.index, "bytes": dropped.bytes,
            "kept_in": dropped.kept_in.display().to_string(),
        })
    });
    let cut = opened.cut.as_ref().map(|cut| {
        json!({
            "file": cut.file.display().to_string(), "offset": cut.offset, "bytes": cut.bytes,
        })
    });
    let lost_payloads = opened
        .lost_payloads
        .as_ref()
        .map(|lost| json!({ "file": lost.file.display().to_string(), "files": lost.files }));
    json!({
        "commands": opened.records, "dropped": dropped, "lost_payloads": lost_payloads, "cut": cut,
    })
}

/// The keys that its own command line has said.
fn fixed(given: &arguments::Publisher) -> [(&'static str, bool); 12] {
    [
        ("data", given.data.is_some()),
        ("publisher.name", given.name.is_some()),
        ("publisher.listen", given.listen.is_some()),
        ("publisher.advertise", !given.advertise.is_empty()),
        ("publisher.paths", !given.path.is_empty()),
        ("publisher.defaults", !given.default.is_empty()),
        ("publisher.homes", !given.homes.is_empty()),
        ("publisher.durability", given.durability.is_some()),
        ("publisher.segment_bytes", given.segment_bytes.is_some()),
        ("publisher.cache_bytes", given.cache_bytes.is_some()),
        ("publisher.memory_max", given.memory_max.is_some()),
        ("publisher.insecure", given.insecure),
    ]
}

fn options(given: arguments::Publisher, context: &Context) -> anyhow::Result<PublisherOptions> {
    let configured = &context.config.publisher;
    let data = absolute(context.config.data_dir(given.data)?)?;
    let mut options = context.config.publisher_options(data);
    options.name = given.name.unwrap_or(options.name);
    options.listen = given.listen.unwrap_or(configured.listen.value);
    options.advertise = or(given.advertise, &configured.advertise.value);
    options.paths = or(given.path, &configured.paths.value);
    options.defaults = or(given.default, &configured.defaults.value);
    options.homes = or(given.homes, &configured.homes.value);
    options.cluster = Some(context.cluster());
    options.durability = given.durability.unwrap_or(options.durability);
    options.insecure = given.insecure || configured.insecure.value;
    options.accept_loss = given.accept_loss;
    options.segment_bytes = given.segment_bytes.unwrap_or(options.segment_bytes);
    options.cache_bytes = given.cache_bytes.unwrap_or(options.cache_bytes);
    options.memory_max = given.memory_max.or(options.memory_max);
    if options.paths.is_empty() && options.defaults.is_empty() {
        let what = "a publisher needs something to publish: --path /a/queue for one queue, --default / for any";
        return Err(WrongUsage(what.to_owned()).into());
    }
    Ok(options)
}

/// A list of the command line goes before the configured one.
fn or<T: Clone>(given: Vec<T>, configured: &[T]) -> Vec<T> {
    if given.is_empty() { configured.to_vec() } else { given }
}

/// `--data jobs` has no parent to its name, and the journal makes the entry in the parent durable.
pub(crate) fn absolute(data: PathBuf) -> anyhow::Result<PathBuf> {
    std::path::absolute(&data).with_context(|| format!("data directory '{}'", data.display()))
}

/// Why a publisher did not start; names its data directory.
pub(crate) fn cannot_start(error: OpenError, data: &FilePath) -> anyhow::Error {
    let text = format!("cannot start a publisher with its data in {}", data.display());
    anyhow::Error::new(error).context(text)
}
