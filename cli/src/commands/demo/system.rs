//! The demo's processes: three replicas, two publishers, four workers, each this same binary. Any
//! of them can be killed and started again at its old place.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use longshore::Cluster;

use super::pace::Victim;
use crate::child::{Child, Role};
use crate::config::Config;

const REPLICAS: usize = 3;
const PUBLISHERS: usize = 2;
const WORKERS: usize = 4;
/// Files that one worker hashes at a time.
const CONCURRENCY: usize = 4;
/// How long a killed process stays away.
const AWAY: Duration = Duration::from_millis(500);

/// The resolver's timing in the demo: a run of seconds should see a replica come back and be told
/// everything again.
const CONFIGURATION: &str = "\
[timing]
reader_ttl = \"10s\"
writer_ttl = \"10s\"
retry_wait_min = \"100ms\"
retry_wait_max = \"500ms\"
request_timeout_min = \"5s\"
";

/// All processes, and the folder with their journals and logs.
pub(crate) struct System {
    replicas: Vec<Member>,
    publishers: Vec<Member>,
    workers: Vec<Member>,
    configuration: PathBuf,
}

struct Member {
    role: Role,
    child: Child,
}

impl System {
    /// Starts everything, with its files in `folder`.
    pub(crate) async fn start(folder: &Path, jobs_below: &str) -> anyhow::Result<System> {
        let configuration = folder.join("config.toml");
        std::fs::write(&configuration, CONFIGURATION)
            .with_context(|| format!("cannot write {}", configuration.display()))?;
        let environment = vec![("LONGSHORE_CONFIG", configuration.clone().into_os_string())];
        let role = |name: String, arguments: Vec<OsString>| Role {
            log: Some(folder.join(format!("{name}.log"))),
            name,
            arguments,
            environment: environment.clone(),
        };

        let mut replicas = Vec::new();
        for n in 1..=REPLICAS {
            let name = format!("replica-{n}");
            let mut fixed = words(&["resolver", "--json", "--end-with-stdin", "--name", &name]);
            fixed.extend(words(&["--data"]));
            fixed.push(folder.join(&name).into_os_string());
            let first = [&fixed[..], &words(&["--listen", "127.0.0.1:0", "--fresh"])].concat();
            let child = Child::start(&role(name.clone(), first)).await?;
            // Once more, it listens where it did, and cannot know what it has missed.
            let again = [&fixed[..], &words(&["--listen", child.ready_text("address")?])].concat();
            replicas.push(Member { role: role(name, again), child });
        }
        let addresses: Result<Vec<&str>, _> =
            replicas.iter().map(|replica| replica.child.ready_text("address")).collect();
        let resolvers = addresses?.join(",");

        let mut publishers = Vec::new();
        for n in 1..=PUBLISHERS {
            let name = format!("publisher-{n}");
            let mut arguments =
                words(&["publisher", "--json", "--end-with-stdin", "--name", &name]);
            arguments.extend(words(&["--listen", "127.0.0.1:0", "--default", jobs_below]));
            arguments.extend(words(&["--resolver", &resolvers, "--data"]));
            arguments.push(folder.join(&name).into_os_string());
            publishers.push(Member::start(role(name, arguments)).await?);
        }
        let mut workers = Vec::new();
        for n in 1..=WORKERS {
            let name = format!("worker-{n}");
            let pattern = format!("{jobs_below}/**");
            let mut arguments = words(&["demo-worker", &pattern, "--json", "--name", &name]);
            arguments.extend(words(&["--concurrency", &CONCURRENCY.to_string()]));
            arguments.extend(words(&["--resolver", &resolvers]));
            workers.push(Member::start(role(name, arguments)).await?);
        }
        Ok(System { replicas, publishers, workers, configuration })
    }

    /// How its resolver is reached.
    pub(crate) fn cluster(&self) -> anyhow::Result<Cluster> {
        let given = crate::config::Given {
            config: Some(self.configuration.clone()),
            ..crate::config::Given::default()
        };
        let addresses: Result<Vec<&str>, _> =
            self.replicas.iter().map(|replica| replica.child.ready_text("address")).collect();
        let mut cluster = Cluster::new(addresses?);
        cluster.timing = Config::load(&given)?.timing();
        Ok(cluster)
    }

    /// How many publishers there are.
    pub(crate) fn publishers(&self) -> usize {
        self.publishers.len()
    }

    /// Kills one with SIGKILL, and starts it again a moment later. Its name.
    pub(crate) async fn kill_and_restart(&mut self, victim: Victim) -> anyhow::Result<String> {
        let members = match victim {
            Victim::Worker => &mut self.workers,
            Victim::Publisher => &mut self.publishers,
            Victim::Replica => &mut self.replicas,
        };
        let member = members.first_mut().context("there is none to kill")?;
        member.child.kill().await?;
        tokio::time::sleep(AWAY).await;
        member.child = Child::start(&member.role).await?;
        Ok(member.role.name.clone())
    }

    /// Ends everything in order: workers drain, publishers sync, replicas go last.
    pub(crate) async fn end(self) -> anyhow::Result<()> {
        for members in [self.workers, self.publishers, self.replicas] {
            let ends = members.into_iter().map(|member| tokio::spawn(member.child.end()));
            for end in ends.collect::<Vec<_>>() {
                end.await??;
            }
        }
        Ok(())
    }
}

impl Member {
    async fn start(role: Role) -> anyhow::Result<Member> {
        let child = Child::start(&role).await?;
        Ok(Member { role, child })
    }
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}
