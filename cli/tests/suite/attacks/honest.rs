//! Honest clients: a producer, a worker and a reader, which go on during all attacks and measure
//! how long they take.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use longshore::{
    Cluster, Job, JobContext, Path, PathAnswer, Producer, ReadClient, ShutdownHandle, Worker,
    WorkerReport, new_job,
};
use longshore_tests::hostile::OTHERS;
use tokio::runtime::Runtime;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::system::SecuredSystem;

/// The pause between two jobs, and between two resolutions.
const PAUSE: Duration = Duration::from_millis(5);
/// Jobs that run during all attacks.
const LONG_JOBS: u32 = 4;
/// Far longer than anything takes.
const SOON: Duration = Duration::from_secs(60);

/// Measured times.
#[derive(Clone, Default)]
pub(super) struct Times {
    jobs: Vec<Duration>,
    resolutions: Vec<Duration>,
    links: Vec<Duration>,
}

impl Times {
    pub(super) fn add(&mut self, more: Times) {
        self.jobs.extend(more.jobs);
        self.resolutions.extend(more.resolutions);
        self.links.extend(more.links);
    }

    /// What is compared, with its p99 here and there.
    pub(super) fn beside(&self, other: &Times) -> [(&'static str, Duration, Duration); 2] {
        [
            ("a job", p99(&self.jobs), p99(&other.jobs)),
            ("a resolution", p99(&self.resolutions), p99(&other.resolutions)),
        ]
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, times) in
            [("job", &self.jobs), ("resolution", &self.resolutions), ("new link", &self.links)]
        {
            let (p50, p99) = (percentile(times, 50), p99(times));
            write!(f, "{what}: n {:5} p50 {p50:9.2?} p99 {p99:9.2?}   ", times.len())?;
        }
        Ok(())
    }
}

fn p99(times: &[Duration]) -> Duration {
    percentile(times, 99)
}

fn percentile(times: &[Duration], percent: usize) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() * percent / 100).copied().unwrap_or_default()
}

/// What the clients share.
#[derive(Default)]
struct Shared {
    times: Mutex<Times>,
    /// How often each job was run to its end.
    done: Mutex<BTreeMap<String, u32>>,
    progress: Notify,
    /// Jobs done one after the other, and resolutions.
    counts: Mutex<(u64, u64)>,
}

pub(super) struct Honest {
    runtime: Runtime,
    cluster: Cluster,
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    release_long_jobs: watch::Sender<bool>,
    worker: (ShutdownHandle, JoinHandle<WorkerReport>),
    producing: JoinHandle<u32>,
    resolving: JoinHandle<()>,
}

impl Honest {
    pub(super) fn start(system: &SecuredSystem) -> Honest {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let _context = runtime.enter();
        let cluster = system.cluster();
        let shared = Arc::<Shared>::default();
        let (stop, stopped) = watch::channel(false);
        let (release_long_jobs, released) = watch::channel(false);
        let worker = Worker::connect(cluster.clone()).durable_subscribe("/shop/**");
        let handle = worker.shutdown_handle();
        let handler = {
            let shared = shared.clone();
            move |job: Job<String>, _: JobContext| {
                let (shared, mut released) = (shared.clone(), released.clone());
                async move {
                    if job.payload.starts_with("long") {
                        released.wait_for(|released| *released).await.ok();
                    }
                    *shared.done.lock().unwrap().entry(job.payload).or_default() += 1;
                    shared.progress.notify_waiters();
                    Ok(())
                }
            }
        };
        let running = tokio::spawn(async move { worker.run(handler).await.unwrap() });
        let producing = tokio::spawn(produce(cluster.clone(), shared.clone(), stopped.clone()));
        let resolving = tokio::spawn(resolve(cluster.clone(), shared.clone(), stopped));
        drop(_context);
        Honest {
            runtime,
            cluster,
            shared,
            stop,
            release_long_jobs,
            worker: (handle, running),
            producing,
            resolving,
        }
    }

    /// Takes the times measured since the last call.
    pub(super) fn take(&self) -> Times {
        std::mem::take(&mut *self.shared.times.lock().unwrap())
    }

    /// Fails unless a job is done, a path resolved, and a new client served, from now on.
    pub(super) fn is_served(&self, when: &str) {
        let counts = || *self.shared.counts.lock().unwrap();
        let before = counts();
        let served = async {
            let began = Instant::now();
            let producer = Producer::connect(self.cluster.clone());
            let new =
                producer.enqueue(new_job(Path::new("/shop/new").unwrap(), when.to_owned())).await;
            new.unwrap_or_else(|why| panic!("{when}: a new client is refused: {why}"));
            self.shared.times.lock().unwrap().links.push(began.elapsed());
            // The two under way may have begun before.
            while counts().0 < before.0 + 2 || counts().1 < before.1 + 2 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let served = async { tokio::time::timeout(SOON, served).await };
        assert!(self.runtime.block_on(served).is_ok(), "{when}: honest clients are not served");
    }

    /// Stops, and fails if a job was lost or doubled.
    pub(super) fn end(self) {
        self.stop.send(true).unwrap();
        self.release_long_jobs.send(true).unwrap();
        let Honest { runtime, shared, worker: (handle, running), producing, resolving, .. } = self;
        let (jobs, report) = runtime.block_on(async {
            let ended = async {
                let jobs = producing.await.unwrap();
                resolving.await.unwrap();
                let is_done = |job: String| shared.done.lock().unwrap().contains_key(&job);
                while !(0..jobs).all(|n| is_done(n.to_string()))
                    || !(0..LONG_JOBS).all(|n| is_done(format!("long {n}")))
                {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                handle.drain();
                (jobs, running.await.unwrap())
            };
            tokio::time::timeout(SOON, ended).await.expect("honest jobs are lost")
        });
        let done = shared.done.lock().unwrap();
        let twice: Vec<_> = done.iter().filter(|(_, times)| **times > 1).collect();
        assert!(twice.is_empty(), "{twice:?}");
        assert_eq!((report.leases_revoked, report.stale_refused), (0, 0), "{report:?}");
        println!("{jobs} honest jobs, each done once");
    }
}

/// Enqueues one job after the other, and waits until it is done; the number of jobs.
async fn produce(cluster: Cluster, shared: Arc<Shared>, stopped: watch::Receiver<bool>) -> u32 {
    let producer = Producer::connect(cluster);
    let path = || Path::new(OTHERS).unwrap();
    for number in 0..LONG_JOBS {
        producer.enqueue(new_job(path(), format!("long {number}"))).await.unwrap();
    }
    let mut jobs = 0;
    while !*stopped.borrow() {
        let (began, job) = (Instant::now(), jobs.to_string());
        producer.enqueue(new_job(path(), job.clone())).await.unwrap();
        loop {
            let progress = shared.progress.notified();
            tokio::pin!(progress);
            progress.as_mut().enable();
            if shared.done.lock().unwrap().contains_key(&job) {
                break;
            }
            progress.await;
        }
        shared.times.lock().unwrap().jobs.push(began.elapsed());
        shared.counts.lock().unwrap().0 += 1;
        jobs += 1;
        tokio::time::sleep(PAUSE).await;
    }
    jobs
}

/// Resolves a path again and again.
async fn resolve(cluster: Cluster, shared: Arc<Shared>, stopped: watch::Receiver<bool>) {
    let reader = ReadClient::connect(cluster);
    while !*stopped.borrow() {
        let began = Instant::now();
        let resolved = reader.resolve(vec![Path::new(OTHERS).unwrap()]).await.unwrap();
        let is_served = matches!(&resolved.answers[..], [PathAnswer::Publishers { .. }]);
        assert!(is_served, "{resolved:?}");
        shared.times.lock().unwrap().resolutions.push(began.elapsed());
        shared.counts.lock().unwrap().1 += 1;
        tokio::time::sleep(PAUSE).await;
    }
}
