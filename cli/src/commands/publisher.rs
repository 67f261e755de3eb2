//! `longshore publisher`: runs a publisher, shows all, drains or forgets one.

use std::io;
use std::path::{Path as FilePath, PathBuf};
use std::pin::pin;

use anyhow::Context as _;
use longshore::protocol::Homes;
use longshore::{
    HealthHandle, MemoryBounds, OpenError, Opened, Publisher, PublisherId, PublisherOptions,
    WriteClient,
};
use serde_json::{Value, json};

use super::{
    Context, drain, forget, journal_copies, memory_json, publisher_status, warn_if_unprinted,
};
use crate::arguments::{self, PublisherAction, RunPublisher};
use crate::config::Service;
use crate::failure::UsageError;
use crate::registration::Registration;
use crate::reload::ConfigReloader;
use crate::service_manager::{self, Health};
use crate::signals::{StopSignal, parent_exited};

pub(crate) async fn run(arguments: arguments::Publisher, context: Context) -> anyhow::Result<()> {
    match arguments.action {
        PublisherAction::Drain(arguments) => drain::run(arguments, context).await,
        PublisherAction::Forget(arguments) => forget::run(arguments, context).await,
        PublisherAction::Run(arguments) => serve(*arguments, context).await,
        PublisherAction::Status => publisher_status::run(context).await,
    }
}

async fn serve(arguments: RunPublisher, mut context: Context) -> anyhow::Result<()> {
    let stop = StopSignal::listen()?;
    let end_with_stdin = arguments.child.end_with_stdin;
    let reload = ConfigReloader::listen(Service::Publisher, &context, &fixed(&arguments))?;
    let options = options(arguments, &context)?;
    let data = options.data.clone();
    let opening = Publisher::open(options);
    let what = format!("recovering the journal in {}", data.display());
    let publisher = service_manager::starting(&what, opening).await;
    let publisher = publisher.map_err(|error| cannot_start(error, &data))?;

    let report = ReadyReport::of(&publisher, &data);
    let (id, client) = (publisher.id(), publisher.write_client().cloned());
    let checks = {
        let (health, client) = (publisher.health_handle(), client.clone());
        service_manager::keep_checking(move || check(health.clone(), client.clone()))
    };
    let stopped = stop.requested();
    let serving = publisher.run(async move {
        tokio::select! {
            () = stopped => {}
            () = parent_exited(), if end_with_stdin => {}
        }
        let status = "draining: no more jobs are taken, and those received become durable";
        service_manager::stopping(&checks, status).await;
    });
    let mut serving = pin!(serving);
    // It already serves clients of the replicas that know it. But a script that enqueues once it
    // has read the ready line finds the publisher by the resolver.
    let ended = tokio::select! {
        ended = &mut serving => Some(ended),
        registration = Registration::complete(client.as_ref()) => {
            warn_if_unprinted(report.print(&registration, &mut context));
            service_manager::ready(registration.brief());
            tokio::spawn(reload.run(None));
            tokio::spawn(journal_copies::warn_at_start(context.queues(), id));
            None
        }
    };
    let ended = match ended {
        Some(ended) => ended,
        None => serving.await,
    };
    ended.context("the publisher stopped; start it again once the cause is gone")
}

/// Whether the publisher's task answers and its disk works, with its state.
pub(crate) async fn check(health: HealthHandle, client: Option<WriteClient>) -> Health {
    let replicas = client.map(|client| client.status()).unwrap_or_default();
    match health.health().await {
        Some(health) if health.disk_hangs => Health::Hung(format!(
            "its disk hangs: nothing has become durable for {} s",
            health.oldest_uncommitted.as_secs()
        )),
        Some(_) => Health::Alive(Registration::of(&replicas).brief()),
        None => Health::Hung("the publisher's task has ended".to_owned()),
    }
}

/// What a publisher reports once it is ready.
struct ReadyReport {
    name: String,
    id: PublisherId,
    address: String,
    data: PathBuf,
    opened: Opened,
    memory: MemoryBounds,
}

impl ReadyReport {
    fn of(publisher: &Publisher, data: &FilePath) -> ReadyReport {
        ReadyReport {
            name: publisher.name().to_owned(),
            id: publisher.id(),
            address: publisher.local_address().to_string(),
            data: data.to_owned(),
            opened: publisher.opened().clone(),
            memory: publisher.memory_bounds().clone(),
        }
    }

    fn print(&self, registration: &Registration, context: &mut Context) -> io::Result<()> {
        let ReadyReport { name, id, address, data, opened, memory } = self;
        if context.output.is_json() {
            return context.output.json(&json!({
                "ready": "publisher", "name": name, "address": address,
                "publisher": id.to_string(), "data": data.display().to_string(),
                "resolvers": context.config.resolvers.value, "registered": registration.json(),
                "recovered": recovered_json(opened), "memory": memory_json(memory),
            }));
        }
        context.output.lines(format!(
            "publisher {name} ({}) listens on {address}\ndata in {}\n{}{registration}\n\
             memory beside its jobs: {memory}",
            id.prefix(),
            data.display(),
            recovered_lines(opened),
        ))
    }
}

/// Data loss and repairs that a start reports, one per line.
pub(crate) fn recovered_lines(opened: &Opened) -> String {
    let mut lines = String::new();
    if let Some(dropped) = &opened.dropped {
        lines += &format!(
            "LOST: command {} and all later ones, due to damage in {} at byte {}; \
             {} bytes are saved in {}\n",
            dropped.index,
            dropped.file.display(),
            dropped.offset,
            dropped.bytes,
            dropped.moved_to.display(),
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
            "cut off {} at byte {}: {} bytes of an unacknowledged commit\n",
            cut.file.display(),
            cut.offset,
            cut.bytes,
        );
    }
    lines
}

/// Data loss and repairs as JSON.
pub(crate) fn recovered_json(opened: &Opened) -> Value {
    let dropped = opened.dropped.as_ref().map(|dropped| {
        json!({
            "file": dropped.file.display().to_string(), "offset": dropped.offset,
            "index": dropped.index, "bytes": dropped.bytes,
            "moved_to": dropped.moved_to.display().to_string(),
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

/// The keys set by the service's own command line.
fn fixed(arguments: &RunPublisher) -> [(&'static str, bool); 12] {
    [
        ("data", arguments.data.is_some()),
        ("publisher.name", arguments.name.is_some()),
        ("publisher.listen", arguments.listen.is_some()),
        ("publisher.advertise", !arguments.advertise.is_empty()),
        ("publisher.paths", !arguments.path.is_empty()),
        ("publisher.defaults", !arguments.default.is_empty()),
        ("homes", !arguments.home.is_empty()),
        ("publisher.durability", arguments.durability.is_some()),
        ("publisher.segment_bytes", arguments.segment_bytes.is_some()),
        ("publisher.cache_bytes", arguments.cache_bytes.is_some()),
        ("publisher.memory_max", arguments.memory_max.is_some()),
        ("publisher.insecure", arguments.insecure),
    ]
}

fn options(arguments: RunPublisher, context: &Context) -> anyhow::Result<PublisherOptions> {
    let configured = &context.config.publisher;
    let data = absolute(context.config.data_dir(arguments.data)?)?;
    let mut options = context.config.publisher_options(data);
    options.name = arguments.name.unwrap_or(options.name);
    options.listen = arguments.listen.unwrap_or(configured.listen.value);
    options.listen_unix = configured.listen_unix.value.clone();
    options.advertise = or(arguments.advertise, &configured.advertise.value);
    options.paths = or(arguments.path, &configured.paths.value);
    options.defaults = or(arguments.default, &configured.defaults.value);
    options.homes = match arguments.home.is_empty() {
        true => context.config.homes.value.clone(),
        false => {
            Homes::new(arguments.home).map_err(|error| UsageError(format!("--home: {error}")))?
        }
    };
    options.cluster = Some(context.cluster());
    options.tls = context.acceptor(options.listen)?;
    options.access_control = context.rules.control.clone();
    options.audit = context.audit.clone();
    options.durability = arguments.durability.unwrap_or(options.durability);
    options.insecure = arguments.insecure || configured.insecure.value;
    options.accept_loss = arguments.accept_loss;
    options.segment_bytes = arguments.segment_bytes.unwrap_or(options.segment_bytes);
    options.cache_bytes = arguments.cache_bytes.unwrap_or(options.cache_bytes);
    options.memory_max = arguments.memory_max.or(options.memory_max);
    if options.paths.is_empty() && options.defaults.is_empty() {
        let what = "a publisher needs something to publish: --path /a/queue for one queue, \
                    --default / for any";
        return Err(UsageError(what.to_owned()).into());
    }
    Ok(options)
}

/// A list from the command line takes precedence over the configured one.
fn or<T: Clone>(flags: Vec<T>, configured: &[T]) -> Vec<T> {
    if flags.is_empty() { configured.to_vec() } else { flags }
}

/// Makes the path absolute: the journal syncs the parent directory, which a path like `jobs` lacks.
pub(crate) fn absolute(data: PathBuf) -> anyhow::Result<PathBuf> {
    std::path::absolute(&data).with_context(|| format!("data directory '{}'", data.display()))
}

/// Adds the data directory to the error of a failed start.
pub(crate) fn cannot_start(error: OpenError, data: &FilePath) -> anyhow::Error {
    let text = format!("cannot start a publisher with its data in {}", data.display());
    anyhow::Error::new(error).context(text)
}
