//! `longshore up`: a whole system in one process.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path as FilePath;
use std::time::Duration;

use anyhow::Context as _;
use longshore::embedded::{StartError, System, SystemFailed, SystemOptions};
use longshore::{
    FrameBudget, HealthHandle, MemoryBounds, Path, ServerOptions, StatusHandle, ValuePublisher,
};
use serde_json::json;
use tokio::time::timeout;

use super::dev_tls::DevTls;
use super::{Context, publisher, replica_metrics, resolver, warn_if_unprinted};
use crate::arguments::Up;
use crate::config::ReplicaMetrics;
use crate::failure::UsageError;
use crate::output::shell_word;
use crate::registration::Registration;
use crate::service_manager::{self, Health};
use crate::signals::StopSignal;

/// How long a start waits for the registration of the replicas' metrics, which continues in the
/// background.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) async fn run(arguments: Up, mut context: Context) -> anyhow::Result<()> {
    let stop = StopSignal::listen()?;
    let dev_tls = dev_tls(&arguments, &mut context)?;
    let mut options = options(&arguments, &context)?;
    let (data, budget) = (options.publisher.data.clone(), options.publisher.frame_budget());
    // All links share one budget for received frames.
    options.replicas.iter_mut().for_each(|(_, replica)| replica.budget = budget.clone());
    options.publisher.budget = Some(budget.clone());
    let memory = budget.bytes();
    let starting = service_manager::starting("starting", System::start_with(options)).await;
    let system = starting.map_err(|error| match error {
        StartError::Publisher(error) => publisher::cannot_start(error, &data),
        StartError::Replica { .. } | StartError::NoReplica => error.into(),
    })?;
    let metrics = serve_metrics(&system, &context, budget).await?;
    // The start has waited until its replicas know the publisher.
    let registration = Registration::of(system.publisher().registration());
    let cluster = system.cluster();
    let config =
        dev_tls.as_ref().map(|dev| dev.write_config(&cluster.replicas, &cluster.access.cluster));
    let ready = Ready {
        system: &system,
        data: &data,
        memory: memory_bound(&system, memory),
        registration: &registration,
        config: config.transpose()?,
    };
    warn_if_unprinted(ready.print(&mut context));
    service_manager::ready(registration.brief());
    let checks = {
        let health = system.publisher().health_handle();
        let replicas = system.replicas().iter().map(|replica| replica.status_handle());
        let (replicas, status) = (replicas.collect::<Vec<_>>(), registration.brief());
        service_manager::keep_checking(move || {
            check(health.clone(), replicas.clone(), status.clone())
        })
    };

    tokio::select! {
        () = stop.requested() => {}
        () = system.ended() => {}
    }
    service_manager::stopping(&checks, "draining: no more jobs are taken").await;
    let stop_metrics = async {
        if let Some(metrics) = metrics {
            metrics.stop().await;
        }
    };
    // Concurrently: a subscriber of metrics that does not read must not delay the publisher's stop.
    let ((), stopped) = tokio::join!(stop_metrics, system.stop());
    stopped.map_err(|failed| match failed {
        SystemFailed::Publisher(error) => anyhow::Error::new(error)
            .context("the publisher stopped; start it again once the cause is gone"),
        SystemFailed::Replica(error) => {
            anyhow::Error::new(error).context("a replica of the resolver stopped; start it again")
        }
    })
}

/// Whether every part works, with the status of its start.
async fn check(health: HealthHandle, replicas: Vec<StatusHandle>, status: String) -> Health {
    for replica in replicas {
        if let hung @ Health::Hung(_) = resolver::check(replica).await {
            return hung;
        }
    }
    match publisher::check(health, None).await {
        Health::Alive(_) => Health::Alive(status),
        hung => hung,
    }
}

/// The certificates of `--tls-dev`, which are then those of this process.
fn dev_tls(arguments: &Up, context: &mut Context) -> anyhow::Result<Option<DevTls>> {
    if !arguments.tls_dev {
        return Ok(None);
    }
    if context.config.tls.is_on() {
        let what = "--tls-dev makes its own certificates, and the configuration names others; \
                    leave one of them out";
        return Err(UsageError(what.to_owned()).into());
    }
    let data = publisher::absolute(context.config.data_dir(arguments.data.clone())?)?;
    // Beside it: a new journal takes only an empty directory.
    let mut folder = data.into_os_string();
    folder.push("-tls");
    let made = DevTls::prepare(FilePath::new(&folder))?;
    context.tls = made.tls.clone();
    Ok(Some(made))
}

fn options(arguments: &Up, context: &Context) -> anyhow::Result<SystemOptions> {
    let data = publisher::absolute(context.config.data_dir(arguments.data.clone())?)?;
    let mut replicas = Vec::new();
    let tls = context.tls.acceptor()?;
    for nth in 0..arguments.replicas {
        // With port 0 every replica picks a free port.
        let port = match arguments.resolver_port {
            0 => 0,
            first => first.checked_add(nth).context("the replicas' ports exceed 65535")?,
        };
        if port != 0 && port == arguments.publisher_port {
            let what = format!(
                "replica {} would listen on port {port}, which is the publisher's: give another \
                 --publisher-port or --resolver-port",
                nth + 1
            );
            return Err(UsageError(what).into());
        }
        let name = replica_name(nth.into());
        let options = ServerOptions {
            name,
            fresh: true,
            tls: tls.clone(),
            access_control: context.rules.control.clone(),
            audit: context.audit.clone(),
            ..context.config.server_options()
        };
        replicas.push((SocketAddr::from((Ipv4Addr::LOCALHOST, port)), options));
    }
    let mut publisher = context.config.publisher_options(data);
    publisher.listen = SocketAddr::from((Ipv4Addr::LOCALHOST, arguments.publisher_port));
    publisher.defaults = vec![Path::root()];
    publisher.accept_loss = arguments.accept_loss;
    publisher.tls = tls;
    publisher.access_control = context.rules.control.clone();
    publisher.audit = context.audit.clone();
    let access = context.tls.access(&context.config);
    Ok(SystemOptions { replicas, timing: context.config.timing(), access, publisher })
}

fn replica_name(nth: usize) -> String {
    format!("up-{}", nth + 1)
}

/// Publishes the replicas' metrics at the publisher, or at the address in `resolver.metrics`.
async fn serve_metrics(
    system: &System,
    context: &Context,
    budget: FrameBudget,
) -> anyhow::Result<Option<ValuePublisher>> {
    let resolver = &context.config.resolver;
    let (values, own) = match resolver.metrics.value {
        ReplicaMetrics::Off => return Ok(None),
        ReplicaMetrics::Automatic => (system.publisher().values(), None),
        ReplicaMetrics::At(listen) => {
            let (name, insecure) = ("replica-up".to_owned(), resolver.insecure.value);
            let cluster = system.cluster();
            let own =
                replica_metrics::open(name, (listen, None), cluster, context, insecure, budget)
                    .await;
            let own = own.with_context(|| {
                format!(
                    "cannot serve the replicas' metrics at {listen} (resolver.metrics from {}; \
                     true serves them where the publisher listens; resolver.insecure = true \
                     accepts an address that other machines can reach)",
                    resolver.metrics.origin
                )
            })?;
            (own.values(), Some(own))
        }
    };
    for (nth, replica) in system.replicas().iter().enumerate() {
        replica_metrics::serve(&values, &replica_name(nth), replica.status_handle())?;
    }
    if let Some(registry) = own.as_ref().map(ValuePublisher::write_client) {
        let _ = timeout(REGISTRATION_TIMEOUT, registry.flushed(system.replicas().len())).await;
    }
    Ok(own)
}

/// The memory bound of all links in bytes, with `frames` for received frames.
fn memory_bound(system: &System, frames: usize) -> usize {
    let without_frames = |bounds: &MemoryBounds| bounds.received() - bounds.frames;
    let replicas = system.replicas().iter().map(|replica| replica.memory_bounds());
    let services = replicas.chain([system.publisher().memory_bounds()]);
    services.map(without_frames).fold(frames, usize::saturating_add)
}

/// What a start reports.
struct Ready<'a> {
    system: &'a System,
    data: &'a FilePath,
    memory: usize,
    registration: &'a Registration,
    /// The configuration of its clients, with `--tls-dev`.
    config: Option<&'a FilePath>,
}

impl Ready<'_> {
    fn print(self, context: &mut Context) -> anyhow::Result<()> {
        let Ready { system, data, memory, registration, config } = self;
        let (publisher, resolvers) = (system.publisher(), system.cluster().replicas);
        let (address, data) = (publisher.address().to_string(), data.display());
        let variables = context.config.client_variables(&resolvers, config);
        let config = config.map(|file| file.display().to_string());
        if context.output.is_json() {
            return Ok(context.output.json(&json!({
                "ready": "up", "resolvers": resolvers, "address": address,
                "publisher": publisher.info().id.to_string(), "data": data.to_string(),
                "registered": registration.json(), "config": config,
                "environment": variables.into_iter().collect::<BTreeMap<_, _>>(),
                "recovered": publisher::recovered_json(publisher.opened()),
                "memory_max_bytes": memory,
            }))?);
        }
        let export = match variables.is_empty() {
            true => String::new(),
            false => {
                let words = variables.iter().map(|(name, value)| {
                    let value = shell_word(value);
                    format!(" {name}={value}")
                });
                format!("export{}\n", words.collect::<String>())
            }
        };
        context.output.lines(format!(
            "ready\n  resolver   {}\n  publisher  {address}, {}\n  data       {data}\n  \
             memory     {} MiB at most beside jobs, paths and unread output of links\n{}\n\
             In another terminal:\n{export}longshore enqueue /jobs/hello 'a payload'\n\
             longshore work /jobs/hello -- cat",
            resolvers.join(","),
            registration.brief(),
            memory.div_ceil(1 << 20),
            publisher::recovered_lines(publisher.opened()),
        ))?;
        Ok(())
    }
}
