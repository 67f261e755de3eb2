//! The demo's processes: three replicas, two publishers and four workers, all of this binary. Each
//! can be killed and restarted with its address and data.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use longshore::Cluster;

use super::pace::Victim;
use crate::child::{Child, ChildSpec};
use crate::config::{Config, SYSTEM_VARIABLES};

const REPLICAS: usize = 3;
const PUBLISHERS: usize = 2;
const WORKERS: usize = 4;
/// Files that a worker hashes at a time.
const CONCURRENCY: usize = 4;
/// The time between a kill and the restart.
const DOWNTIME: Duration = Duration::from_millis(500);

/// The resolver's timing, short enough that a replica restarts and gets all registrations again
/// within a run of seconds.
const CONFIGURATION: &str = "\
[timing]
reader_ttl = \"10s\"
writer_ttl = \"10s\"
retry_wait_min = \"100ms\"
retry_wait_max = \"500ms\"
request_timeout_min = \"5s\"
";

/// All processes.
pub(crate) struct DemoSystem {
    replicas: Vec<ManagedProcess>,
    publishers: Vec<ManagedProcess>,
    workers: Vec<ManagedProcess>,
    configuration: PathBuf,
}

struct ManagedProcess {
    spec: ChildSpec,
    child: Child,
}

impl DemoSystem {
    /// Starts all processes, with their files in `folder`.
    pub(crate) async fn start(folder: &Path, queue_parent: &str) -> anyhow::Result<DemoSystem> {
        let configuration = folder.join("config.toml");
        std::fs::write(&configuration, CONFIGURATION)
            .with_context(|| format!("cannot write {}", configuration.display()))?;
        let mut environment = vec![("LONGSHORE_CONFIG", configuration.clone().into_os_string())];
        environment.extend(SYSTEM_VARIABLES.map(|variable| (variable, OsString::new())));
        let spec_of = |name: String, arguments: Vec<OsString>| ChildSpec {
            log: Some(folder.join(format!("{name}.log"))),
            name,
            arguments,
            environment: environment.clone(),
        };

        let mut replicas = Vec::new();
        for n in 1..=REPLICAS {
            let name = format!("replica-{n}");
            let mut fixed =
                words(&["resolver", "run", "--json", "--end-with-stdin", "--name", &name]);
            fixed.extend(words(&["--data"]));
            fixed.push(folder.join(&name).into_os_string());
            let first = [&fixed[..], &words(&["--listen", "127.0.0.1:0", "--fresh"])].concat();
            let child = Child::start(&spec_of(name.clone(), first)).await?;
            // A restart uses the same address, without `--fresh`: the replica may have missed
            // changes.
            let restart =
                [&fixed[..], &words(&["--listen", child.ready_text("address")?])].concat();
            replicas.push(ManagedProcess { spec: spec_of(name, restart), child });
        }
        let addresses: Result<Vec<&str>, _> =
            replicas.iter().map(|replica| replica.child.ready_text("address")).collect();
        let resolvers = addresses?.join(",");

        let mut publishers = Vec::new();
        for n in 1..=PUBLISHERS {
            let name = format!("publisher-{n}");
            let mut arguments =
                words(&["publisher", "run", "--json", "--end-with-stdin", "--name", &name]);
            arguments.extend(words(&["--listen", "127.0.0.1:0", "--default", queue_parent]));
            arguments.extend(words(&["--resolver", &resolvers, "--data"]));
            arguments.push(folder.join(&name).into_os_string());
            publishers.push(ManagedProcess::start(spec_of(name, arguments)).await?);
        }
        let mut workers = Vec::new();
        for n in 1..=WORKERS {
            let name = format!("worker-{n}");
            let pattern = format!("{queue_parent}/**");
            let mut arguments = words(&["demo-worker", &pattern, "--json", "--name", &name]);
            arguments.extend(words(&["--concurrency", &CONCURRENCY.to_string()]));
            arguments.extend(words(&["--resolver", &resolvers]));
            workers.push(ManagedProcess::start(spec_of(name, arguments)).await?);
        }
        Ok(DemoSystem { replicas, publishers, workers, configuration })
    }

    /// The resolver of the system.
    pub(crate) fn cluster(&self) -> anyhow::Result<Cluster> {
        let overrides = crate::config::ConfigOverrides {
            config: Some(self.configuration.clone()),
            ..crate::config::ConfigOverrides::default()
        };
        let addresses: Result<Vec<&str>, _> =
            self.replicas.iter().map(|replica| replica.child.ready_text("address")).collect();
        let mut cluster = Cluster::new(addresses?);
        cluster.timing = Config::load(&overrides)?.timing();
        Ok(cluster)
    }

    /// The number of publishers.
    pub(crate) fn publishers(&self) -> usize {
        self.publishers.len()
    }

    /// Kills a process with SIGKILL and restarts it after [`DOWNTIME`]. Returns its name.
    pub(crate) async fn kill_and_restart(&mut self, victim: Victim) -> anyhow::Result<String> {
        let processes = match victim {
            Victim::Worker => &mut self.workers,
            Victim::Publisher => &mut self.publishers,
            Victim::Replica => &mut self.replicas,
        };
        let process = processes.first_mut().context("no process to kill")?;
        process.child.kill().await?;
        tokio::time::sleep(DOWNTIME).await;
        process.child = Child::start(&process.spec).await?;
        Ok(process.spec.name.clone())
    }

    /// Stops all processes in order: workers drain, then publishers sync, then replicas.
    pub(crate) async fn end(self) -> anyhow::Result<()> {
        for processes in [self.workers, self.publishers, self.replicas] {
            let ends = processes.into_iter().map(|process| tokio::spawn(process.child.end()));
            for end in ends.collect::<Vec<_>>() {
                end.await??;
            }
        }
        Ok(())
    }
}

impl ManagedProcess {
    async fn start(spec: ChildSpec) -> anyhow::Result<ManagedProcess> {
        let child = Child::start(&spec).await?;
        Ok(ManagedProcess { spec, child })
    }
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}
