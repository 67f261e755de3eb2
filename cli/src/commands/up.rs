//! `longshore up`: a whole system in this one process.

use std::net::SocketAddr;

use anyhow::Context as _;
use longshore::{Cluster, Path, PublisherOptions, ResolverServer, ServerOptions};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{Context, publisher};
use crate::arguments::Up;
use crate::signals::Stop;

pub(crate) async fn run(arguments: Up, mut context: Context) -> anyhow::Result<()> {
    let stop = Stop::listen()?;
    let system = System::start(&arguments, &context).await?;

    let publisher = system.publisher.local_address();
    let resolvers: Vec<String> = system.replicas.iter().map(ToString::to_string).collect();
    let data = system.data.display().to_string();
    if context.output.is_json() {
        context.output.json(&json!({
            "ready": "up", "resolvers": resolvers, "address": publisher.to_string(),
            "publisher": system.publisher.id().to_string(), "data": data,
        }))?;
    } else {
        let resolvers = resolvers.join(",");
        context.output.line(format!(
            "ready\n  resolver   {resolvers}\n  publisher  {publisher}\n  data       {data}\n\n\
             longshore enqueue /jobs/hello 'a payload'\nlongshore work /jobs/hello -- cat",
        ))?;
    }
    system.run(stop).await
}

/// Replicas and a publisher, listening.
struct System {
    servers: Vec<ResolverServer>,
    replicas: Vec<SocketAddr>,
    publisher: longshore::Publisher,
    data: std::path::PathBuf,
}

impl System {
    async fn start(arguments: &Up, context: &Context) -> anyhow::Result<System> {
        let mut servers = Vec::new();
        for nth in 0..arguments.replicas {
            // Port 0 stands for any free one, for each of them.
            let port = match arguments.resolver_port {
                0 => 0,
                first => first.checked_add(nth).context("the replicas' ports end beyond 65535")?,
            };
            let options = ServerOptions {
                name: format!("up-{}", nth + 1),
                timing: context.config.timing(),
                fresh: true,
                ..ServerOptions::default()
            };
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            let server = ResolverServer::bind(address, options)
                .await
                .with_context(|| format!("cannot start replica {} of the resolver", nth + 1))?;
            servers.push(server);
        }
        let replicas: Vec<SocketAddr> = servers.iter().map(ResolverServer::local_address).collect();

        let mut cluster = Cluster::new(replicas.iter().map(ToString::to_string));
        cluster.timing = context.config.timing();
        let data = arguments.data.clone().unwrap_or_else(|| context.config.data.value.clone());
        let mut options = PublisherOptions::new(&data);
        options.name = context.config.publisher.name.value.clone();
        options.listen = SocketAddr::from(([127, 0, 0, 1], arguments.publisher_port));
        options.defaults = vec![Path::root()];
        options.cluster = Some(cluster);
        options.durability = context.config.publisher.durability.value;
        let publisher = publisher::open(options).await?;
        Ok(System { servers, replicas, publisher, data })
    }

    async fn run(self, stop: Stop) -> anyhow::Result<()> {
        // The replicas go last: the publisher takes its paths back on its way out.
        let (end, ended) = watch::channel(());
        let mut replicas = JoinSet::new();
        for server in self.servers {
            let mut ended = ended.clone();
            replicas.spawn(server.run(async move { while ended.changed().await.is_ok() {} }));
        }
        drop(ended);
        let result = self.publisher.run(stop.asked()).await;
        drop(end);
        replicas.join_all().await;
        result.context("the publisher stopped; start it again once the cause is gone")
    }
}
