//! The system under measurement: a throwaway resolver and publisher, or the running system that was
//! named.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use longshore::protocol::messages::work::PublisherStatus;
use longshore::{
    Cluster, Path, PathAnswer, Queues, ReadClient, ReplicaStopped, ResolverServer, ServerOptions,
    new_id,
};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::sync_time;
use crate::arguments::BenchSystem;
use crate::child::{Child, ChildSpec};
use crate::commands::Context;
use crate::config::{Origin, SYSTEM_VARIABLES};

/// The longest wait until the resolver knows the throwaway publisher.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(10);
/// The journal's folder within the throwaway system's folder.
const JOURNAL: &str = "journal";
const NOT_THROWAWAY: &str = "this system was not started for the measurement";

pub(crate) struct MeasuredSystem {
    resolvers: String,
    cluster: Cluster,
    /// The flags with which a named system is reached.
    named: Option<Vec<OsString>>,
    throwaway: Option<Throwaway>,
    /// The median fdatasync where the journal lives, in microseconds; none for a named system,
    /// whose journals are elsewhere.
    pub(crate) sync_us: Option<f64>,
    /// The measured queue, which nothing else uses.
    pub(crate) path: Path,
}

struct Throwaway {
    publisher: Child,
    /// The publisher's command, for restarts.
    spec: ChildSpec,
    resolver: JoinHandle<Result<(), ReplicaStopped>>,
    /// Contains the journal; deleted on drop.
    folder: TempDir,
}

/// Stats summed over a system's publishers.
pub(crate) struct SystemStats {
    pub(crate) durability: String,
    pub(crate) written_bytes: u64,
    pub(crate) payload_bytes: u64,
    /// Jobs in any state.
    pub(crate) jobs: u64,
}

/// Durations of a restart, from its start.
pub(crate) struct Restart {
    /// Until the publisher had read its journal and reported that it is ready.
    pub(crate) ready: Duration,
    /// Until it was registered at the resolver.
    pub(crate) registered: Duration,
}

impl MeasuredSystem {
    /// Starts a throwaway system, unless one was named on the command line.
    pub(crate) async fn start(
        arguments: BenchSystem,
        context: &Context,
    ) -> anyhow::Result<MeasuredSystem> {
        MeasuredSystem::start_with(arguments, &[], context).await
    }

    /// Like [`MeasuredSystem::start`], with additional options for a throwaway publisher.
    pub(crate) async fn start_with(
        arguments: BenchSystem,
        options: &[&str],
        context: &Context,
    ) -> anyhow::Result<MeasuredSystem> {
        let path = Path::new(&format!("/bench/{}", new_id()))?;
        if matches!(context.config.resolvers.origin, Origin::Flag(_)) {
            return Ok(MeasuredSystem {
                resolvers: context.config.resolvers.value.join(","),
                cluster: context.cluster(),
                named: Some(context.overrides.system_flags()),
                throwaway: None,
                sync_us: None,
                path,
            });
        }
        let parent = arguments.data.unwrap_or_else(std::env::temp_dir);
        let folder = tempfile::Builder::new()
            .prefix("longshore-bench-")
            .tempdir_in(&parent)
            .with_context(|| format!("cannot create a folder in {}", parent.display()))?;
        let sync_us = sync_time::median_us(folder.path())
            .with_context(|| format!("cannot measure fdatasync in {}", folder.path().display()))?;
        let server = ResolverServer::bind(
            SocketAddr::from(([127, 0, 0, 1], 0)),
            ServerOptions { name: "bench".to_owned(), fresh: true, ..ServerOptions::default() },
        )?;
        let resolvers = server.local_address().to_string();
        let resolver = tokio::spawn(server.run(std::future::pending()));

        let mut spec =
            child_spec("publisher", &resolvers, &["publisher", "run", "--end-with-stdin"], None);
        spec.arguments.extend(["--listen", "127.0.0.1:0", "--default", "/"].map(OsString::from));
        spec.arguments
            .extend(["--durability", &arguments.durability.to_string()].map(OsString::from));
        spec.arguments.extend(options.iter().map(OsString::from));
        spec.arguments.push("--data".into());
        spec.arguments.push(folder.path().join(JOURNAL).into_os_string());
        let publisher = Child::start(&spec).await?;
        let cluster = Cluster::from(resolvers.as_str());
        let address = publisher.ready_text("address")?.parse()?;
        registered(&cluster, &path, address, REGISTRATION_TIMEOUT).await?;
        Ok(MeasuredSystem {
            cluster,
            resolvers,
            named: None,
            throwaway: Some(Throwaway { publisher, spec, resolver, folder }),
            sync_us: Some(sync_us),
            path,
        })
    }

    /// Starts another process of the measurement.
    pub(crate) async fn start_process(
        &self,
        name: &str,
        arguments: &[&str],
    ) -> anyhow::Result<Child> {
        Child::start(&child_spec(name, &self.resolvers, arguments, self.named.as_deref())).await
    }

    /// A client for its queues.
    pub(crate) fn queues(&self) -> Queues {
        Queues::connect(self.cluster.clone())
    }

    /// The process id of the throwaway publisher.
    pub(crate) fn publisher_id(&self) -> anyhow::Result<u32> {
        let throwaway = self.throwaway.as_ref().context(NOT_THROWAWAY)?;
        throwaway.publisher.id().context("the publisher has ended")
    }

    /// The directory of the throwaway publisher's journal.
    pub(crate) fn journal(&self) -> anyhow::Result<PathBuf> {
        let throwaway = self.throwaway.as_ref().context(NOT_THROWAWAY)?;
        Ok(throwaway.folder.path().join(JOURNAL))
    }

    /// Kills the throwaway publisher with SIGKILL and starts it again.
    pub(crate) async fn kill_and_restart(&mut self, within: Duration) -> anyhow::Result<Restart> {
        let throwaway = self.throwaway.as_mut().context(NOT_THROWAWAY)?;
        throwaway.publisher.kill().await?;
        let began = Instant::now();
        throwaway.publisher = Child::start_within(&throwaway.spec, within).await?;
        let ready = began.elapsed();
        let address = throwaway.publisher.ready_text("address")?.parse()?;
        registered(&self.cluster, &self.path, address, within).await?;
        Ok(Restart { ready, registered: began.elapsed() })
    }

    /// Reads the publishers' stats.
    pub(crate) async fn stats(&self) -> anyhow::Result<SystemStats> {
        let queues = self.queues();
        let gathered = queues.status().await?;
        // The differences of two readings would otherwise be of different publishers.
        anyhow::ensure!(gathered.missing.is_empty(), "not every publisher answered");
        let all: Vec<&PublisherStatus> = gathered.answers.iter().map(|a| &a.answer).collect();
        let first = all.first().context("no publisher answered")?;
        Ok(SystemStats {
            durability: first.durability.to_string(),
            written_bytes: all.iter().map(|status| status.written_bytes).sum(),
            payload_bytes: all.iter().map(|status| status.payload_bytes).sum(),
            jobs: all.iter().map(|status| status.jobs).sum(),
        })
    }

    /// Stops a throwaway system.
    pub(crate) async fn end(self) -> anyhow::Result<()> {
        let Some(throwaway) = self.throwaway else { return Ok(()) };
        throwaway.publisher.end().await?;
        throwaway.resolver.abort();
        Ok(())
    }
}

/// Waits until the resolver lists the publisher at this address for the path.
async fn registered(
    cluster: &Cluster,
    path: &Path,
    address: SocketAddr,
    within: Duration,
) -> anyhow::Result<()> {
    let client = ReadClient::builder().name("bench").connect(cluster.clone());
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

/// A process of a measurement. `named` has the flags with which a named system is reached; none for
/// a throwaway system, which has no cluster's name, no TLS and no configuration.
pub(super) fn child_spec(
    name: &str,
    resolvers: &str,
    arguments: &[&str],
    named: Option<&[OsString]>,
) -> ChildSpec {
    let mut arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
    arguments.extend(["--json", "--log", "warn", "--resolver", resolvers].map(OsString::from));
    let mut environment = Vec::new();
    match named {
        Some(flags) => arguments.extend_from_slice(flags),
        None => {
            environment.extend(SYSTEM_VARIABLES.map(|variable| (variable, OsString::new())));
            environment.push(("LONGSHORE_CONFIG", "/dev/null".into()));
        }
    }
    ChildSpec { name: name.to_owned(), arguments, environment, log: None }
}
