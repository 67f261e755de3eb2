//! `longshore resolver`: runs one replica, or shows the status of all replicas.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use longshore::{
    KnownPublisher, ReplicaStatus, RequestCounts, ResolverServer, ServerOptions, StatusHandle,
};
use serde_json::{Value, json};

use super::known_publishers::{Answer, query_all};
use super::{Context, memory_json, replica_metrics, warn_if_unprinted};
use crate::arguments::{Resolver, ResolverAction, RunReplica};
use crate::config::{ReplicaMetrics, Service};
use crate::failure::AlreadyReported;
use crate::output::{Table, grouped};
use crate::reload::ConfigReloader;
use crate::service_manager::{self, Health};
use crate::signals::{StopSignal, parent_exited};
use crate::time::show_duration;

pub(crate) async fn run(arguments: Resolver, context: Context) -> anyhow::Result<()> {
    match arguments.action {
        ResolverAction::Status { publishers: false } => status(context).await,
        ResolverAction::Status { publishers: true } => publishers(context).await,
        ResolverAction::Run(arguments) => serve(arguments, context).await,
    }
}

async fn serve(arguments: RunReplica, mut context: Context) -> anyhow::Result<()> {
    let stop = StopSignal::listen()?;
    let fixed = [
        ("resolver.name", arguments.name.is_some()),
        ("resolver.listen", arguments.listen.is_some()),
        ("resolver.insecure", arguments.insecure),
        ("resolver.metrics", arguments.metrics.is_some()),
    ];
    let reload = ConfigReloader::listen(Service::Resolver, &context, &fixed)?;
    let mut options = ServerOptions { fresh: arguments.fresh, ..context.config.server_options() };
    options.name = arguments.name.unwrap_or(options.name);
    options.insecure |= arguments.insecure;
    let listen = arguments.listen.unwrap_or(context.config.resolver.listen.value);
    options.listen_unix = context.config.resolver.listen_unix.value.clone();
    options.tls = context.acceptor(listen)?;
    options.access_control = context.rules.control.clone();
    options.audit = context.audit.clone();
    options.data = match (arguments.data, listen.port()) {
        (Some(dir), _) => Some(dir),
        // After a restart it would listen on another port, as another replica.
        (None, 0) => None,
        (None, port) => Some(context.config.data_dir(None)?.join(format!("resolver-{port}"))),
    };
    let fresh = options.fresh;
    let name = options.name.clone();
    let insecure = options.insecure;
    let budget = options.budget.clone();
    let setting = arguments.metrics.map(ReplicaMetrics::At);
    let setting = setting.unwrap_or(context.config.resolver.metrics.value);
    context.config.metrics_socket(setting, listen.ip())?;
    let server = ResolverServer::bind(listen, options)?;
    let warming = if fresh { None } else { Some(server.warming_left()) };

    let at = server.local_address();
    let address = at.to_string();
    let metrics =
        replica_metrics::publisher(&context, &name, at, setting, insecure, budget).await?;
    if let Some(metrics) = &metrics {
        replica_metrics::serve(&metrics.values(), &name, server.status_handle())?;
    }
    let printed = if context.output.is_json() {
        context.output.json(&json!({
            "ready": "resolver", "name": name, "address": address, "warming": warming.is_some(),
            "memory": memory_json(server.memory_bounds()),
        }))
    } else {
        let state = warming.map_or("new cluster".to_owned(), |left| {
            format!("warming for up to {}: publishers are registering", show_duration(left))
        });
        let memory = server.memory_bounds();
        context.output.lines(format!(
            "resolver {name} listens on {address} ({state})\nmemory beside its directory: {memory}"
        ))
    };
    warn_if_unprinted(printed);
    let status = server.status_handle();
    let checks = service_manager::keep_checking(move || check(status.clone()));
    service_manager::ready(format!("listens on {address}"));
    tokio::spawn(reload.run(Some(server.limits())));
    let stopped = stop.requested();
    server
        .run(async move {
            tokio::select! {
                () = stopped => {}
                () = parent_exited(), if arguments.child.end_with_stdin => {}
            }
            service_manager::stopping(&checks, "closing links").await;
            if let Some(metrics) = metrics {
                metrics.stop().await;
            }
        })
        .await
        .context("the replica failed; restart it: publishers will register again")
}

/// Whether the replica's loop answers, with its state.
pub(crate) async fn check(replica: StatusHandle) -> Health {
    match replica.status().await {
        Some(s) if s.warming => Health::Alive(format!(
            "warming for up to {}; publishers: {}; paths: {}",
            show_duration(seconds(s.warming_left_ms)),
            s.publishers,
            s.paths
        )),
        Some(s) => Health::Alive(format!("publishers: {}; paths: {}", s.publishers, s.paths)),
        None => Health::Hung("the replica's loop has ended".to_owned()),
    }
}

async fn status(mut context: Context) -> anyhow::Result<()> {
    let client = context.read_client();
    let replicas = client.replica_status().await;
    let silent = replicas.iter().filter(|(_, status)| status.is_err()).count();
    if context.output.is_json() {
        let replicas: Vec<_> = replicas
            .iter()
            .map(|(replica, status)| match status {
                Ok(s) => metrics(replica, s),
                Err(why) => json!({ "replica": replica, "error": why.to_string() }),
            })
            .collect();
        context.output.json_pretty(&json!({ "replicas": replicas }))?;
    } else {
        let answered =
            || replicas.iter().filter_map(|(at, status)| Some((at, status.as_ref().ok()?)));
        let mut table = Table::new(&[
            "replica",
            "name",
            "state",
            "up",
            "writers",
            "hidden",
            "paths",
            "defaults",
            "connections",
            "watches",
            "refused",
            "slowest",
            "memory",
        ]);
        for (replica, s) in answered() {
            table.row([
                replica.clone(),
                s.name.clone(),
                if s.warming {
                    format!("warming, {} left", show_duration(seconds(s.warming_left_ms)))
                } else {
                    "complete".to_owned()
                },
                show_duration(Duration::from_millis(s.uptime_ms)),
                grouped(s.publishers),
                grouped(s.hidden),
                grouped(s.paths),
                grouped(s.defaults),
                grouped(s.connections),
                grouped(s.watches),
                grouped(s.refused_busy),
                format!("{} us", grouped(s.slice_max_us)),
                memory(s.memory_bytes),
            ]);
        }
        let mut limits = Table::new(&["at most", "writers", "paths", "connections", "watches"]);
        for (replica, s) in answered() {
            let most = [s.publishers_max, s.paths_max, s.connections_max, s.watches_max];
            limits.row([replica.clone()].into_iter().chain(most.map(limit)));
        }
        let mut kinds = vec!["requests"];
        kinds.extend(RequestCounts::KINDS);
        let mut requests = Table::new(&kinds);
        for (replica, s) in answered() {
            let counts = s.requests.iter().map(|(_, count)| grouped(count));
            requests.row(std::iter::once(replica.clone()).chain(counts));
        }
        if !table.is_empty() {
            context.output.table(&table)?;
            context.output.line("")?;
            context.output.table(&limits)?;
            context.output.line("")?;
            context.output.table(&requests)?;
        }
        for (replica, status) in &replicas {
            if let Err(why) = status {
                report_error!("{replica} does not answer: {why}");
            }
        }
    }
    if silent > 0 { Err(AlreadyReported.into()) } else { Ok(()) }
}

/// A replica's status as JSON.
fn metrics(replica: &str, s: &ReplicaStatus) -> Value {
    json!({
        "replica": replica, "name": s.name, "incarnation": s.incarnation.to_string(),
        "uptime_ms": s.uptime_ms, "warming": s.warming, "warming_left_ms": s.warming_left_ms,
        "publishers": s.publishers, "hidden": s.hidden, "paths": s.paths, "defaults": s.defaults,
        "connections": s.connections, "watches": s.watches, "refused_busy": s.refused_busy,
        "slice_max_us": s.slice_max_us, "memory_bytes": s.memory_bytes,
        "publishers_max": s.publishers_max, "paths_max": s.paths_max,
        "connections_max": s.connections_max, "watches_max": s.watches_max,
        "reads": s.requests.reads(), "writes": s.requests.writes(),
        "requests": s.requests.iter().collect::<BTreeMap<_, _>>(),
    })
}

/// Rounds up to whole seconds.
fn seconds(ms: u64) -> Duration {
    Duration::from_secs(ms.div_ceil(1_000))
}

/// A limit; 0 means that the replica does not report it.
fn limit(most: u64) -> String {
    if most == 0 { "-".to_owned() } else { grouped(most) }
}

/// Memory in MiB; 0 means that the replica does not report it.
fn memory(bytes: u64) -> String {
    if bytes == 0 { "-".to_owned() } else { format!("{} MiB", grouped(bytes.div_ceil(1 << 20))) }
}

/// Shows the publishers that each replica knows.
async fn publishers(mut context: Context) -> anyhow::Result<()> {
    let replicas = query_all(&context.read_client(), context.cluster().replicas).await;
    if context.output.is_json() {
        let one = |(replica, known): &Answer| match known {
            Ok(known) => {
                let publishers: Vec<Value> = known.iter().map(known_json).collect();
                json!({ "replica": replica, "publishers": publishers })
            }
            Err(why) => json!({ "replica": replica, "error": why.to_string() }),
        };
        let all: Vec<Value> = replicas.iter().map(one).collect();
        context.output.json_pretty(&json!({ "replicas": all }))?;
    } else {
        let mut table = Table::new(&[
            "replica",
            "publisher",
            "name",
            "state",
            "registrations",
            "silent",
            "addresses",
        ]);
        for (replica, known) in &replicas {
            for one in known.iter().flatten() {
                table.row([
                    replica.clone(),
                    one.info.id.prefix(),
                    one.info.name.clone(),
                    match one.departure {
                        Some(why) => format!("missing: {why}"),
                        None => "registered".to_owned(),
                    },
                    grouped(one.registrations),
                    show_duration(seconds(one.silent_ms)),
                    addresses(one).join(","),
                ]);
            }
        }
        context.output.table(&table)?;
        for (replica, known) in &replicas {
            if let Err(why) = known {
                report_error!("{replica} does not answer: {why}");
            }
        }
    }
    if replicas.iter().any(|(.., known)| known.is_err()) {
        Err(AlreadyReported.into())
    } else {
        Ok(())
    }
}

fn known_json(one: &KnownPublisher) -> Value {
    json!({
        "id": one.info.id.to_string(), "name": one.info.name, "epoch": one.info.epoch.0,
        "addresses": addresses(one), "registrations": one.registrations, "silent_ms": one.silent_ms,
        "missing": one.departure.map(|why| why.to_string()),
    })
}

fn addresses(one: &KnownPublisher) -> Vec<String> {
    one.info.addresses.iter().map(ToString::to_string).collect()
}
