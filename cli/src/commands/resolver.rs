//! `longshore resolver`: one replica as a service, and what the replicas say of themselves.

use anyhow::Context as _;
use longshore::{ResolverServer, ServerOptions};
use serde_json::json;

use super::Context;
use crate::arguments::{Resolver, ResolverAction};
use crate::config::Service;
use crate::failure::Reported;
use crate::output::{Table, grouped};
use crate::reload::Reload;
use crate::signals::{Stop, parent_gone};
use crate::time::show_length;

pub(crate) async fn run(arguments: Resolver, context: Context) -> anyhow::Result<()> {
    match arguments.action {
        Some(ResolverAction::Status) => status(context).await,
        None => serve(arguments, context).await,
    }
}

async fn serve(arguments: Resolver, mut context: Context) -> anyhow::Result<()> {
    let stop = Stop::listen()?;
    let fixed = [
        ("resolver.name", arguments.name.is_some()),
        ("resolver.listen", arguments.listen.is_some()),
        ("resolver.insecure", arguments.insecure),
    ];
    let reload = Reload::listen(Service::Resolver, &context, &fixed)?;
    let mut options = ServerOptions { fresh: arguments.fresh, ..context.config.server_options() };
    options.name = arguments.name.unwrap_or(options.name);
    options.insecure |= arguments.insecure;
    let listen = arguments.listen.unwrap_or(context.config.resolver.listen.value);
    let warming = if options.fresh { None } else { Some(options.timing.writer_ttl) };
    let name = options.name.clone();
    let server = ResolverServer::bind(listen, options).await?;
    tokio::spawn(reload.run(Some(server.limits())));

    let address = server.local_address().to_string();
    if context.output.is_json() {
        context.output.json(&json!({
            "ready": "resolver", "name": name, "address": address, "warming": warming.is_some(),
        }))?;
    } else {
        let state = warming.map_or("new cluster".to_owned(), |length| {
            format!("warming for {}: publishers are registering", show_length(length))
        });
        context.output.line(format!("resolver {name} listens on {address} ({state})"))?;
    }
    let asked = stop.asked();
    server
        .run(async move {
            tokio::select! {
                () = asked => {}
                () = parent_gone(), if arguments.child.end_with_stdin => {}
            }
        })
        .await
        .context("the replica ends; start it again: publishers tell it everything anew")
}

async fn status(mut context: Context) -> anyhow::Result<()> {
    let client = context.read_client();
    let replicas = client.replica_status().await;
    let silent = replicas.iter().filter(|(_, status)| status.is_err()).count();
    if context.output.is_json() {
        let replicas: Vec<_> = replicas
            .iter()
            .map(|(replica, status)| match status {
                Ok(s) => json!({
                    "replica": replica, "name": s.name, "incarnation": s.incarnation.to_string(),
                    "uptime_ms": s.uptime_ms, "warming": s.warming, "publishers": s.publishers,
                    "paths": s.paths, "defaults": s.defaults, "connections": s.connections,
                    "watches": s.watches,
                }),
                Err(why) => json!({ "replica": replica, "error": why }),
            })
            .collect();
        context.output.json_pretty(&json!({ "replicas": replicas }))?;
    } else {
        let mut table = Table::new(&[
            "replica",
            "name",
            "state",
            "up",
            "publishers",
            "paths",
            "defaults",
            "connections",
            "watches",
        ]);
        for (replica, status) in &replicas {
            let Ok(s) = status else { continue };
            table.row([
                replica.clone(),
                s.name.clone(),
                if s.warming { "warming" } else { "complete" }.to_owned(),
                show_length(std::time::Duration::from_millis(s.uptime_ms)),
                grouped(s.publishers),
                grouped(s.paths),
                grouped(s.defaults),
                grouped(s.connections),
                grouped(s.watches),
            ]);
        }
        if !table.is_empty() {
            context.output.table(&table)?;
        }
        for (replica, status) in &replicas {
            if let Err(why) = status {
                eprintln!("error: {replica} does not answer: {why}");
            }
        }
    }
    if silent > 0 { Err(Reported.into()) } else { Ok(()) }
}
