//! What is measured: a throwaway resolver and publisher, or the running system that was named.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use longshore::protocol::SessionId;
use longshore::protocol::messages::work::PublisherStatus;
use longshore::{
    Cluster, DirectoryStopped, Path, PathAnswer, Queues, QueuesOptions, ReadClient, ResolverServer,
    ServerOptions, new_id,
};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::sync_time;
use crate::arguments::BenchSystem;
use crate::child::{Child, Role};
use crate::commands::Context;
use crate::config::Origin;

/// How long a throwaway publisher may take until the resolver knows it.
const REGISTERED_WITHIN: Duration = Duration::from_secs(10);
/// The journal's folder, in one of the throwaway system's own.
const JOURNAL: &str = "journal";
const NOT_THROWAWAY: &str = "this system was not started for the measurement";

pub(crate) struct System {
    resolvers: String,
    cluster: Cluster,
    throwaway: Option<Throwaway>,
    /// The median fdatasync where the journal lives, in microseconds.
    pub(crate) sync_us: f64,
    /// The queue that is measured; nobody else uses it.
    pub(crate) path: Path,
}

struct Throwaway {
    publisher: Child,
    /// How it was started.
    role: Role,
    resolver: JoinHandle<Result<(), DirectoryStopped>>,
    /// Goes away with its journal.
    folder: TempDir,
}

/// Sums over the publishers of a system.
pub(crate) struct Figures {
    pub(crate) durability: String,
    pub(crate) written_bytes: u64,
    pub(crate) payload_bytes: u64,
    /// Jobs that they keep, in any state.
    pub(crate) jobs: u64,
}

/// How long a restart took, from its beginning.
pub(crate) struct Restart {
    /// Until the publisher had read its journal and said that it is ready.
    pub(crate) ready: Duration,
    /// Until the resolver led to it.
    pub(crate) registered: Duration,
}

impl System {
    /// Starts a throwaway system, unless one was named on the command line.
    pub(crate) async fn start(given: BenchSystem, context: &Context) -> anyhow::Result<System> {
        System::start_with(given, &[], context).await
    }

    /// The same; a throwaway publisher gets these options beside the usual ones.
    pub(crate) async fn start_with(
        given: BenchSystem,
        options: &[&str],
        context: &Context,
    ) -> anyhow::Result<System> {
        let above = given.data.unwrap_or_else(std::env::temp_dir);
        let folder = tempfile::Builder::new()
            .prefix("longshore-bench-")
            .tempdir_in(&above)
            .with_context(|| format!("cannot make a folder in {}", above.display()))?;
        let sync_us = sync_time::median_us(folder.path())
            .with_context(|| format!("cannot measure fdatasync in {}", folder.path().display()))?;
        let path = Path::new(&format!("/bench/{}", new_id()))?;
        if matches!(context.config.resolvers.origin, Origin::Flag(_)) {
            return Ok(System {
                resolvers: context.config.resolvers.value.join(","),
                cluster: context.cluster(),
                throwaway: None,
                sync_us,
                path,
            });
        }
        let server = ResolverServer::bind(
            SocketAddr::from(([127, 0, 0, 1], 0)),
            ServerOptions { name: "bench".to_owned(), fresh: true, ..ServerOptions::default() },
        )
        .await?;
        let resolvers = server.local_address().to_string();
        let resolver = tokio::spawn(server.run(std::future::pending()));

        let mut role = role("publisher", &resolvers, &["publisher", "--end-with-stdin"]);
        role.arguments.extend(["--listen", "127.0.0.1:0", "--default", "/"].map(OsString::from));
        role.arguments.extend(["--durability", &given.durability.to_string()].map(OsString::from));
        role.arguments.extend(options.iter().map(OsString::from));
        role.arguments.push("--data".into());
        role.arguments.push(folder.path().join(JOURNAL).into_os_string());
        let publisher = Child::start(&role).await?;
        let cluster = Cluster::from(resolvers.as_str());
        let address = publisher.ready_text("address")?.parse()?;
        registered(&cluster, &path, address, REGISTERED_WITHIN).await?;
        Ok(System {
            cluster,
            resolvers,
            throwaway: Some(Throwaway { publisher, role, resolver, folder }),
            sync_us,
            path,
        })
    }

    /// Starts a part of the measurement in a process of its own.
    pub(crate) async fn part(&self, name: &str, arguments: &[&str]) -> anyhow::Result<Child> {
        Child::start(&role(name, &self.resolvers, arguments)).await
    }

    /// What looks into its queues.
    pub(crate) fn queues(&self) -> Queues {
        Queues::connect(self.cluster.clone(), QueuesOptions::default())
    }

    /// The process of the throwaway publisher.
    pub(crate) fn publisher_id(&self) -> anyhow::Result<u32> {
        let throwaway = self.throwaway.as_ref().context(NOT_THROWAWAY)?;
        throwaway.publisher.id().context("the publisher has ended")
    }

    /// Where the throwaway publisher keeps its journal.
    pub(crate) fn journal(&self) -> anyhow::Result<PathBuf> {
        let throwaway = self.throwaway.as_ref().context(NOT_THROWAWAY)?;
        Ok(throwaway.folder.path().join(JOURNAL))
    }

    /// Kills the throwaway publisher with SIGKILL and starts it again.
    pub(crate) async fn kill_and_restart(&mut self, within: Duration) -> anyhow::Result<Restart> {
        let throwaway = self.throwaway.as_mut().context(NOT_THROWAWAY)?;
        throwaway.publisher.kill().await?;
        let began = Instant::now();
        throwaway.publisher = Child::start_within(&throwaway.role, within).await?;
        let ready = began.elapsed();
        let address = throwaway.publisher.ready_text("address")?.parse()?;
        registered(&self.cluster, &self.path, address, within).await?;
        Ok(Restart { ready, registered: began.elapsed() })
    }

    /// What the publishers say of themselves.
    pub(crate) async fn figures(&self) -> anyhow::Result<Figures> {
        let queues = self.queues();
        let gathered = queues.status().await?;
        let all: Vec<&PublisherStatus> = gathered.answers.iter().map(|a| &a.answer).collect();
        let first = all.first().context("no publisher answered")?;
        Ok(Figures {
            durability: first.durability.to_string(),
            written_bytes: all.iter().map(|status| status.written_bytes).sum(),
            payload_bytes: all.iter().map(|status| status.payload_bytes).sum(),
            jobs: all.iter().map(|status| status.jobs).sum(),
        })
    }

    /// Ends what was started for this measurement.
    pub(crate) async fn end(self) -> anyhow::Result<()> {
        let Some(throwaway) = self.throwaway else { return Ok(()) };
        throwaway.publisher.end().await?;
        throwaway.resolver.abort();
        Ok(())
    }
}

/// Waits until the resolver leads from the path to the publisher at that address.
async fn registered(
    cluster: &Cluster,
    path: &Path,
    address: SocketAddr,
    within: Duration,
) -> anyhow::Result<()> {
    let client = ReadClient::new(cluster.clone(), SessionId(rand::random()), "bench");
    let known = async {
        loop {
            let resolution = client.resolve(vec![path.clone()]).await?;
            if let [PathAnswer::Publishers { set, .. }] = &resolution.answers[..]
                && set.iter().any(|one| one.publisher.addresses.contains(&address.into()))
            {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(within, known).await.context("the publisher has not registered in time")?
}

pub(super) fn role(name: &str, resolvers: &str, arguments: &[&str]) -> Role {
    let mut arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
    arguments.extend(["--json", "--log", "warn", "--resolver", resolvers].map(OsString::from));
    Role { name: name.to_owned(), arguments, environment: Vec::new(), log: None }
}
