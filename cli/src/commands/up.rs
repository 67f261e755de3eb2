//! `longshore up`: a whole system in this one process.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use longshore::{
    Cluster, DirectoryStopped, MemoryBounds, Path, Publisher, ResolverServer, ServerOptions,
    ValuePublisher,
};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Context, publisher, replica_figures};
use crate::arguments::Up;
use crate::config::ReplicaFigures;
use crate::signals::Stop;

/// How long it is waited until every replica knows the publisher, and who tells figures.
const REGISTERED_WITHIN: Duration = Duration::from_secs(5);

pub(crate) async fn run(arguments: Up, mut context: Context) -> anyhow::Result<()> {
    let stop = Stop::listen()?;
    let system = System::start(&arguments, &context).await?;

    let publisher = system.publisher.local_address();
    let resolvers: Vec<String> = system.replicas.iter().map(ToString::to_string).collect();
    let data = system.data.display().to_string();
    let recovered = publisher::recovered_json(&system.publisher);
    if context.output.is_json() {
        context.output.json(&json!({
            "ready": "up", "resolvers": resolvers, "address": publisher.to_string(),
            "publisher": system.publisher.id().to_string(), "data": data, "recovered": recovered,
            "memory_max_bytes": system.memory,
        }))?;
    } else {
        // What another terminal has to say to find this system.
        let named = resolvers.iter().any(|at| context.config.resolvers.value.contains(at));
        let resolvers = resolvers.join(",");
        let at = if named { String::new() } else { format!(" --resolver {resolvers}") };
        context.output.line(format!(
            "ready\n  resolver   {resolvers}\n  publisher  {publisher}\n  data       {data}\n  memory     {} MiB at most beside jobs, paths and what links do not read\n{}\n\
             longshore enqueue{at} /jobs/hello 'a payload'\nlongshore work{at} /jobs/hello -- cat",
            system.memory.div_ceil(1 << 20),
            publisher::recovered_lines(&system.publisher),
        ))?;
    }
    system.run(stop).await
}

/// What the links of one more service can make the process take; all share one budget for received
/// frames.
fn beside_frames(sum: usize, service: &MemoryBounds) -> usize {
    sum.saturating_add(service.received() - service.frames)
}

/// Replicas and a publisher, running and listening.
struct System {
    replicas: Vec<SocketAddr>,
    serving: JoinSet<Result<(), DirectoryStopped>>,
    /// Dropped, it ends the replicas.
    end: watch::Sender<()>,
    publisher: Publisher,
    /// Tells the replicas' figures, if that is not the publisher's to do.
    figures: Option<ValuePublisher>,
    data: PathBuf,
    /// The most that links can make it take, in bytes.
    memory: usize,
}

impl System {
    async fn start(arguments: &Up, context: &Context) -> anyhow::Result<System> {
        let mut replicas = Vec::new();
        let mut serving = JoinSet::new();
        let mut standings = Vec::new();
        let (end, ended) = watch::channel(());
        let data = context.config.data_dir(arguments.data.clone())?;
        let mut options = context.config.publisher_options(data.clone());
        let budget = options.frame_budget();
        options.budget = Some(budget.clone());
        let mut memory = budget.bytes();
        for nth in 0..arguments.replicas {
            // Port 0 stands for any free one, for each of them.
            let port = match arguments.resolver_port {
                0 => 0,
                first => first.checked_add(nth).context("the replicas' ports end beyond 65535")?,
            };
            let options = ServerOptions {
                name: format!("up-{}", nth + 1),
                fresh: true,
                budget: budget.clone(),
                ..context.config.server_options()
            };
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let server = ResolverServer::bind(address, options)
                .await
                .with_context(|| format!("cannot start replica {} of the resolver", nth + 1))?;
            replicas.push(server.local_address());
            memory = beside_frames(memory, server.memory_bounds());
            standings.push((format!("up-{}", nth + 1), server.standing()));
            let mut ended = ended.clone();
            serving.spawn(server.run(async move { while ended.changed().await.is_ok() {} }));
        }

        let mut cluster = Cluster::new(replicas.iter().map(ToString::to_string));
        cluster.timing = context.config.timing();
        options.listen = SocketAddr::from((Ipv4Addr::LOCALHOST, arguments.publisher_port));
        options.defaults = vec![Path::root()];
        options.cluster = Some(cluster.clone());
        options.accept_loss = arguments.accept_loss;
        let publisher = publisher::open(options).await?;
        let memory = beside_frames(memory, publisher.memory_bounds());
        let resolver = &context.config.resolver;
        let (told, figures) = match resolver.figures.value {
            ReplicaFigures::Off => (None, None),
            ReplicaFigures::Beside => (Some(publisher.values()), None),
            ReplicaFigures::At(listen) => {
                let (name, insecure) = ("replica-up".to_owned(), resolver.insecure.value);
                let figures = replica_figures::open(name, listen, cluster, insecure, budget).await;
                let figures = figures.with_context(|| {
                    format!(
                        "cannot tell the replicas' figures at {listen} (resolver.figures from {}; true has them \
                         told where the publisher listens; resolver.insecure = true accepts an address that other \
                         machines reach)",
                        resolver.figures.origin
                    )
                })?;
                (Some(figures.values()), Some(figures))
            }
        };
        for (name, standing) in standings {
            if let Some(values) = &told {
                replica_figures::serve(values, &name, standing)?;
            }
        }
        let of_figures = figures.as_ref().and_then(ValuePublisher::write_client);
        let registries = [publisher.write_client(), of_figures].into_iter().flatten();
        let registered = async {
            for registry in registries {
                registry.flushed(replicas.len()).await;
            }
        };
        // They keep trying by themselves; the replicas are in this process, so this takes no time to speak of.
        let _ = timeout(REGISTERED_WITHIN, registered).await;
        Ok(System { replicas, serving, end, publisher, figures, data, memory })
    }

    async fn run(self, stop: Stop) -> anyhow::Result<()> {
        let System { mut serving, end, publisher, figures, .. } = self;
        let mut ended_early = None;
        let asked = async {
            tokio::select! {
                () = stop.asked() => {}
                // A replica that ends by itself ends the system, with its reason.
                Some(ended) = serving.join_next() => ended_early = Some(ended),
            }
        };
        // The replicas go last: the publisher takes its paths back on its way out.
        let result = publisher.run(asked).await;
        if let Some(figures) = figures {
            figures.stop().await;
        }
        drop(end);
        let mut ended: Vec<_> = ended_early.into_iter().collect();
        while let Some(replica) = serving.join_next().await {
            ended.push(replica);
        }
        result.context("the publisher stopped; start it again once the cause is gone")?;
        for replica in ended {
            replica.context("a replica of the resolver stopped")?.context("start it again")?;
        }
        Ok(())
    }
}
