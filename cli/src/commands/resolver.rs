//! `longshore resolver`: one replica as a service, and what the replicas say of themselves.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use longshore::{KnownPublisher, ReplicaStatus, RequestCounts, ResolverServer, ServerOptions};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{Context, memory_json, replica_metrics};
use crate::arguments::{Resolver, ResolverAction};
use crate::config::{ReplicaMetrics, Service};
use crate::failure::Reported;
use crate::output::{Table, grouped};
use crate::reload::Reload;
use crate::signals::{Stop, parent_gone};
use crate::time::show_length;

pub(crate) async fn run(arguments: Resolver, context: Context) -> anyhow::Result<()> {
    match arguments.action {
        Some(ResolverAction::Status { publishers: false }) => status(context).await,
        Some(ResolverAction::Status { publishers: true }) => publishers(context).await,
        None => serve(arguments, context).await,
    }
}

async fn serve(arguments: Resolver, mut context: Context) -> anyhow::Result<()> {
    let stop = Stop::listen()?;
    let fixed = [
        ("resolver.name", arguments.name.is_some()),
        ("resolver.listen", arguments.listen.is_some()),
        ("resolver.insecure", arguments.insecure),
        ("resolver.metrics", arguments.metrics.is_some()),
    ];
    let reload = Reload::listen(Service::Resolver, &context, &fixed)?;
    let mut options = ServerOptions { fresh: arguments.fresh, ..context.config.server_options() };
    options.name = arguments.name.unwrap_or(options.name);
    options.insecure |= arguments.insecure;
    let listen = arguments.listen.unwrap_or(context.config.resolver.listen.value);
    options.data = match (arguments.data, listen.port()) {
        (Some(dir), _) => Some(dir),
        // Started again, it listens elsewhere: nobody takes it for the same replica.
        (None, 0) => None,
        (None, port) => Some(context.config.data_dir(None)?.join(format!("resolver-{port}"))),
    };
    let fresh = options.fresh;
    let name = options.name.clone();
    let insecure = options.insecure;
    let budget = options.budget.clone();
    let server = ResolverServer::bind(listen, options).await?;
    let warming = if fresh { None } else { Some(server.warming_left()) };
    tokio::spawn(reload.run(Some(server.limits())));

    let at = server.local_address();
    let address = at.to_string();
    let told = arguments.metrics.map(ReplicaMetrics::At);
    let told = told.unwrap_or(context.config.resolver.metrics.value);
    let metrics = replica_metrics::publisher(&context, &name, at, told, insecure, budget).await?;
    if let Some(metrics) = &metrics {
        replica_metrics::serve(&metrics.values(), &name, server.standing())?;
    }
    if context.output.is_json() {
        context.output.json(&json!({
            "ready": "resolver", "name": name, "address": address, "warming": warming.is_some(),
            "memory": memory_json(server.memory_bounds()),
        }))?;
    } else {
        let state = warming.map_or("new cluster".to_owned(), |length| {
            format!("warming for up to {}: publishers are registering", show_length(length))
        });
        let memory = server.memory_bounds();
        context.output.line(format!(
            "resolver {name} listens on {address} ({state})\nmemory beside its directory: {memory}"
        ))?;
    }
    let asked = stop.asked();
    server
        .run(async move {
            tokio::select! {
                () = asked => {}
                () = parent_gone(), if arguments.child.end_with_stdin => {}
            }
            if let Some(metrics) = metrics {
                metrics.stop().await;
            }
        })
        .await
        .context("the replica ends; start it again: publishers register anew")
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
                Err(why) => json!({ "replica": replica, "error": why }),
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
                    format!("warming, {} left", show_length(seconds(s.warming_left_ms)))
                } else {
                    "complete".to_owned()
                },
                show_length(Duration::from_millis(s.uptime_ms)),
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
        let mut kinds = vec!["asked for"];
        kinds.extend(RequestCounts::KINDS);
        let mut asked = Table::new(&kinds);
        for (replica, s) in answered() {
            let counts = s.requests.iter().map(|(_, count)| grouped(count));
            asked.row(std::iter::once(replica.clone()).chain(counts));
        }
        if !table.is_empty() {
            context.output.table(&table)?;
            context.output.line("")?;
            context.output.table(&limits)?;
            context.output.line("")?;
            context.output.table(&asked)?;
        }
        for (replica, status) in &replicas {
            if let Err(why) = status {
                eprintln!("error: {replica} does not answer: {why}");
            }
        }
    }
    if silent > 0 { Err(Reported.into()) } else { Ok(()) }
}

/// A replica's metrics, for programs.
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

/// Whole seconds, the last begun one counted.
fn seconds(ms: u64) -> Duration {
    Duration::from_secs(ms.div_ceil(1_000))
}

/// A limit; a replica that cannot tell says 0.
fn limit(most: u64) -> String {
    if most == 0 { "-".to_owned() } else { grouped(most) }
}

/// Memory in MiB; a replica that cannot tell says 0.
fn memory(bytes: u64) -> String {
    if bytes == 0 { "-".to_owned() } else { format!("{} MiB", grouped(bytes.div_ceil(1 << 20))) }
}

/// Which publishers every replica knows.
async fn publishers(mut context: Context) -> anyhow::Result<()> {
    let client = context.read_client();
    let mut asking = JoinSet::new();
    for (place, replica) in context.cluster().replicas.into_iter().enumerate() {
        let client = client.clone();
        asking.spawn(async move {
            let known = client.publishers_known(&replica).await;
            (place, replica, known)
        });
    }
    let mut replicas = asking.join_all().await;
    replicas.sort_unstable_by_key(|(place, ..)| *place);
    if context.output.is_json() {
        let one = |(_, replica, known): &(usize, String, Result<Vec<KnownPublisher>, String>)| {
            match known {
                Ok(known) => {
                    let publishers: Vec<Value> = known.iter().map(known_json).collect();
                    json!({ "replica": replica, "publishers": publishers })
                }
                Err(why) => json!({ "replica": replica, "error": why }),
            }
        };
        let all: Vec<Value> = replicas.iter().map(one).collect();
        context.output.json_pretty(&json!({ "replicas": all }))?;
    } else {
        let mut table =
            Table::new(&["replica", "publisher", "name", "state", "holds", "silent", "addresses"]);
        for (_, replica, known) in &replicas {
            for one in known.iter().flatten() {
                table.row([
                    replica.clone(),
                    one.info.id.prefix(),
                    one.info.name.clone(),
                    match one.departure {
                        Some(why) => format!("missing: {why}"),
                        None => "registered".to_owned(),
                    },
                    grouped(one.held),
                    show_length(seconds(one.silent_ms)),
                    addresses(one).join(","),
                ]);
            }
        }
        context.output.table(&table)?;
        for (_, replica, known) in &replicas {
            if let Err(why) = known {
                eprintln!("error: {replica} does not answer: {why}");
            }
        }
    }
    if replicas.iter().any(|(.., known)| known.is_err()) { Err(Reported.into()) } else { Ok(()) }
}

fn known_json(one: &KnownPublisher) -> Value {
    json!({
        "id": one.info.id.to_string(), "name": one.info.name, "epoch": one.info.epoch.0,
        "addresses": addresses(one), "held": one.held, "silent_ms": one.silent_ms,
        "missing": one.departure.map(|why| why.to_string()),
    })
}

fn addresses(one: &KnownPublisher) -> Vec<String> {
    one.info.addresses.iter().map(ToString::to_string).collect()
}
