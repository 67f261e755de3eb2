//! A system of real processes, each of which can be killed and restarted with its address and data.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path as FilePath, PathBuf};
use std::process::Command;
use std::time::Duration;

use longshore::embedded::RunningPublisher;
use longshore::protocol::Epoch;
use longshore::protocol::messages::work::{Filter, JobInfo, JobsQuery, QueueStat};
use longshore::{
    Cluster, Glob, JobLocator, NewJob, Path, PathAnswer, Producer, PublisherId, PublisherInfo,
    PublisherOptions, Queues, ReadClient, ReplicaStatus, ResolverTiming,
};

use super::proxy::LossyProxy;
use super::{Service, eventually, longshore, run};

/// A publisher that is silent for this long is hidden; its heartbeat interval is half of it.
pub(crate) const WRITER_TTL: Duration = Duration::from_secs(4);

/// Timing short enough for tests.
pub(crate) fn timing() -> ResolverTiming {
    ResolverTiming {
        writer_ttl: WRITER_TTL,
        retry_wait_min: Duration::from_millis(50),
        retry_wait_max: Duration::from_millis(300),
        ..ResolverTiming::default()
    }
}

pub(crate) const CONFIGURATION: &str = "\
[timing]
writer_ttl = \"4s\"
retry_wait_min = \"50ms\"
retry_wait_max = \"300ms\"
";

/// A service process that keeps its address over restarts.
pub(crate) struct ServiceProcess {
    pub(crate) service: Service,
    arguments: Vec<OsString>,
    configuration: PathBuf,
}

impl ServiceProcess {
    fn start(arguments: Vec<OsString>, first: &[&str], configuration: &FilePath) -> ServiceProcess {
        let begin = |more: &[&str]| {
            let mut command = configured(configuration, &[]);
            command.args(&arguments).args(more);
            Service::start(command)
        };
        let service = begin(&[&["--listen", "127.0.0.1:0"], first].concat());
        ServiceProcess { service, arguments, configuration: configuration.to_owned() }
    }

    /// Its listening address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.service.text("address").parse().unwrap()
    }

    pub(crate) fn kill(&mut self) {
        self.service.kill();
    }

    /// Restarts it at its address.
    pub(crate) fn restart(&mut self) {
        let address = self.address().to_string();
        let mut command = configured(&self.configuration, &[]);
        command.args(&self.arguments).args(["--listen", &address]);
        self.service = Service::start(command);
    }
}

fn configured(configuration: &FilePath, arguments: &[&str]) -> Command {
    let mut command = longshore(arguments);
    command.env("LONGSHORE_CONFIG", configuration);
    command
}

/// A running system of replicas and publishers.
pub(crate) struct Harness {
    pub(crate) replicas: Vec<ServiceProcess>,
    pub(crate) publishers: Vec<ServiceProcess>,
    /// The proxy between clients and the first publisher, if any.
    pub(crate) proxy: Option<LossyProxy>,
    pub(crate) folder: tempfile::TempDir,
}

impl Harness {
    /// One replica and one publisher.
    pub(crate) async fn start() -> Harness {
        Harness::start_with(1, 1, None).await
    }

    /// One replica and one publisher behind a proxy.
    pub(crate) async fn with_proxy() -> Harness {
        Harness::start_with(1, 1, Some(LossyProxy::new())).await
    }

    pub(crate) async fn start_with(
        replicas: usize,
        publishers: usize,
        proxy: Option<LossyProxy>,
    ) -> Harness {
        Harness::with_more_configuration(replicas, publishers, proxy, "").await
    }

    /// Like [`Harness::start_with`], with additional configuration.
    pub(crate) async fn with_more_configuration(
        replicas: usize,
        publishers: usize,
        proxy: Option<LossyProxy>,
        more: &str,
    ) -> Harness {
        Harness::with_configuration(replicas, publishers, proxy, &[CONFIGURATION, more].concat())
            .await
    }

    /// Like [`Harness::start_with`], with another configuration.
    pub(crate) async fn with_configuration(
        replicas: usize,
        publishers: usize,
        proxy: Option<LossyProxy>,
        text: &str,
    ) -> Harness {
        let folder = tempfile::tempdir().unwrap();
        let configuration = folder.path().join("config.toml");
        std::fs::write(&configuration, text).unwrap();
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();

        let resolver = |n: usize| {
            let mut arguments = words(&["resolver", "run", "--json", "--data"]);
            arguments.push(folder.path().join(format!("replica-{n}")).into());
            ServiceProcess::start(arguments, &["--fresh"], &configuration)
        };
        let replicas: Vec<ServiceProcess> = (0..replicas).map(resolver).collect();
        let addresses: Vec<&str> =
            replicas.iter().map(|replica| replica.service.text("address")).collect();
        let addresses = addresses.join(",");
        let publisher = |n| {
            let name = format!("publisher-{n}");
            let mut arguments =
                words(&["publisher", "run", "--json", "--default", "/", "--name", &name]);
            arguments.extend(words(&["--resolver", &addresses, "--data"]));
            arguments.push(folder.path().join(&name).into());
            if let Some(proxy) = &proxy {
                arguments.extend(words(&["--advertise", &proxy.address.to_string()]));
            }
            ServiceProcess::start(arguments, &[], &configuration)
        };
        let publishers: Vec<ServiceProcess> = (1..=publishers).map(publisher).collect();
        if let (Some(proxy), Some(first)) = (&proxy, publishers.first()) {
            proxy.forward_to(first.address());
        }
        let harness = Harness { replicas, publishers, proxy, folder };
        harness.wait_until_registered().await;
        harness
    }

    /// Waits until every replica resolves a path to every publisher; returns the time taken. A
    /// replica's number of publishers is not enough: a publisher connects before it announces its
    /// paths.
    pub(crate) async fn wait_until_registered(&self) -> Duration {
        let reader_of = |replica| reader(Cluster { replicas: vec![replica], ..self.cluster() });
        let each: Vec<_> = self.cluster().replicas.into_iter().map(reader_of).collect();
        let path = Path::new("/of/the/default").unwrap();
        let known = || async {
            for replica in &each {
                let Ok(resolution) = replica.resolve(vec![path.clone()]).await else {
                    return false;
                };
                let found = match &resolution.answers[..] {
                    [PathAnswer::Publishers { set, .. }] => set.len(),
                    _ => 0,
                };
                if found != self.publishers.len() {
                    return false;
                }
            }
            true
        };
        eventually("every publisher is registered at every replica", known).await
    }

    /// The status of each replica; none if it does not answer.
    pub(crate) async fn status(&self) -> Vec<Option<ReplicaStatus>> {
        reader(self.cluster())
            .replica_status()
            .await
            .into_iter()
            .map(|(_, status)| status.ok())
            .collect()
    }

    /// The cluster for clients.
    pub(crate) fn cluster(&self) -> Cluster {
        let replicas = self.replicas.iter().map(|replica| replica.address().to_string());
        Cluster { timing: timing(), ..Cluster::new(replicas) }
    }

    pub(crate) fn producer(&self) -> Producer {
        Producer::connect(self.cluster())
    }

    /// A client of one publisher that bypasses resolver and proxy.
    pub(crate) fn direct_queues(&self, publisher: usize) -> Queues {
        direct_queues(&self.publishers[publisher].service)
    }

    /// A command that uses this system.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = configured(&self.folder.path().join("config.toml"), &[]);
        let replicas: Vec<String> =
            self.replicas.iter().map(|replica| replica.address().to_string()).collect();
        command.arg("--resolver").arg(replicas.join(",")).args(arguments);
        command
    }

    /// Kills the first publisher with SIGKILL.
    pub(crate) fn kill_publisher(&mut self) {
        self.publishers[0].kill();
    }

    /// Restarts the first publisher with its address and data.
    pub(crate) fn restart_publisher(&mut self) {
        self.publishers[0].restart();
    }

    /// Starts the first publisher at another address, while the proxy still forwards to the old
    /// one. This shows what its disk holds before clients reconnect. Kill it before
    /// [`Harness::restart_publisher`].
    pub(crate) fn start_publisher_behind_proxy(&self) -> Service {
        assert!(self.proxy.is_some(), "without a proxy clients would find it");
        let mut command = configured(&self.publishers[0].configuration, &[]);
        command.args(&self.publishers[0].arguments).args(["--listen", "127.0.0.1:0"]);
        Service::start(command)
    }

    /// Enqueues jobs, and waits for their acknowledgement.
    pub(crate) async fn enqueue(&self, jobs: Vec<NewJob>) {
        let receipts = self.producer().enqueue_all(jobs).await;
        for receipt in receipts {
            receipt.outcome.unwrap();
        }
    }

    /// The stats of a queue at the first publisher; all 0 if it does not exist.
    pub(crate) async fn stat(&self, queue: &str) -> QueueStat {
        stat_of(&self.direct_queues(0), queue).await
    }

    /// A job at the first publisher.
    pub(crate) async fn job(&self, job: &NewJob) -> JobInfo {
        self.direct_queues(0).job(&JobLocator::from(job.id)).await.unwrap().job
    }

    /// Runs a command that uses this system, to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> super::CommandOutput {
        run(self.command(arguments), b"")
    }
}

/// A client of this cluster's directory.
pub(crate) fn reader(cluster: Cluster) -> ReadClient {
    ReadClient::builder().name("test").connect(cluster)
}

/// A client of one publisher that bypasses resolver and proxy.
pub(crate) fn direct_queues(publisher: &Service) -> Queues {
    Queues::to_publishers(vec![info_of(publisher)])
}

/// The info to dial a publisher directly.
pub(crate) fn info_of(publisher: &Service) -> PublisherInfo {
    PublisherInfo {
        id: publisher.text("publisher").parse().unwrap(),
        epoch: Epoch(0),
        name: publisher.text("name").to_owned(),
        addresses: vec![publisher.text("address").parse().unwrap()],
        tls_name: None,
        later: Default::default(),
    }
}

/// The stats of a queue; all 0 if it does not exist.
pub(crate) async fn stat_of(queues: &Queues, queue: &str) -> QueueStat {
    let stats = queues.stats(Glob::new(queue).unwrap()).await.unwrap();
    assert!(stats.missing.is_empty(), "{:?}", stats.missing);
    let path = Path::new(queue).unwrap();
    let found = stats.merged().into_iter().find(|stat| stat.path == path);
    found.unwrap_or_else(|| QueueStat::empty(path))
}

/// Every job of a queue.
pub(crate) async fn jobs_of(queues: &Queues, queue: &str) -> Vec<JobInfo> {
    let query = JobsQuery::of(Filter::of(Glob::new(queue).unwrap()));
    let mut pages = queues.jobs(query).await.unwrap();
    let mut jobs = Vec::new();
    while let Some(page) = pages.next().await {
        jobs.extend(page.jobs);
    }
    assert!(pages.is_complete());
    jobs
}

/// The id of the publisher whose data is, or will be, in the folder.
pub(crate) fn publisher_id(data: &FilePath) -> PublisherId {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options = PublisherOptions::new(data);
        let publisher = RunningPublisher::start(options).await.unwrap();
        let id = publisher.info().id;
        publisher.stop().await.unwrap();
        id
    })
}
