//! A system with TLS and a policy, over real sockets and files: each client does what its
//! certificate allows, and certificates and policies change under load.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use longshore::access::{AccessControl, Policy};
use longshore::embedded::{ANY_PORT, RunningPublisher, System, SystemOptions};
use longshore::{
    Access, Cluster, EnqueueError, Job, JobContext, Path, PathAnswer, Producer, PublisherId,
    PublisherOptions, Queues, ReadClient, Refusal, ServerOptions, TlsAcceptor, TlsDialer, Worker,
    new_job,
};
use longshore_tests::short_timing;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;

use crate::long::long;

/// Far longer than any step takes.
const SOON: Duration = Duration::from_secs(20);

/// An authority, and the certificates that it has issued.
struct Authority {
    folder: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let folder = TempDir::new().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Authority { folder, issuer }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Issues a certificate for a DNS name and 127.0.0.1, or replaces it.
    fn issue(&self, name: &str) {
        let key = KeyPair::generate().unwrap();
        let names = vec![format!("{name}.test"), String::from("127.0.0.1")];
        let params = CertificateParams::new(names).unwrap();
        let chain = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(self.file(&format!("{name}.pem")), chain.pem()).unwrap();
        fs::write(self.file(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    fn pair(&self, name: &str) -> (PathBuf, PathBuf) {
        (self.file(&format!("{name}.pem")), self.file(&format!("{name}.key")))
    }

    fn acceptor(&self, name: &str) -> TlsAcceptor {
        let (chain, key) = self.pair(name);
        TlsAcceptor::from_pem(&chain, &key, Some(&self.file("ca.pem"))).unwrap()
    }

    /// How `dns:NAME.test` reaches the system.
    fn access(&self, name: &str) -> Access {
        let (chain, key) = self.pair(name);
        let own = Some((chain.as_path(), key.as_path()));
        let tls = Some(TlsDialer::from_pem(&self.file("ca.pem"), None, own).unwrap());
        Access { tls, ..Access::default() }
    }
}

/// Two replicas and the publisher `pa`, which share one policy.
struct Secured {
    authority: Authority,
    control: AccessControl,
    tls: TlsAcceptor,
    system: System,
    publisher: PublisherId,
    _data: TempDir,
}

impl Secured {
    async fn start(rules: &str) -> Secured {
        let (authority, data) = (Authority::new(), TempDir::new().unwrap());
        for name in ["server", "pa", "shop", "worker", "ops", "eve"] {
            authority.issue(name);
        }
        // A publisher's id is as old as its data directory; the policy has to name it.
        let first = RunningPublisher::start(PublisherOptions::new(data.path())).await.unwrap();
        let publisher = first.info().id;
        first.stop().await.unwrap();
        let control = AccessControl::new(Some(policy(publisher, "", rules)), None);
        let tls = authority.acceptor("server");
        let mut options = SystemOptions::new(data.path());
        let replica = || {
            let (tls, access_control) = (Some(tls.clone()), control.clone());
            let timing = short_timing();
            let options = ServerOptions { fresh: true, timing, ..ServerOptions::default() };
            (ANY_PORT, ServerOptions { tls, access_control, ..options })
        };
        options.replicas = vec![replica(), replica()];
        options.timing = short_timing();
        options.access = authority.access("pa");
        options.publisher.tls = Some(tls.clone());
        options.publisher.access_control = control.clone();
        let system = System::start_with(options).await.unwrap();
        Secured { authority, control, tls, system, publisher, _data: data }
    }

    fn cluster(&self, name: &str) -> Cluster {
        Cluster { access: self.authority.access(name), ..self.system.cluster() }
    }

    fn change(&self, rules: &str) {
        self.control.replace(Some(policy(self.publisher, "", rules)), None);
    }
}

/// A policy with these further entries of `[publishers]`, and rules.
fn policy(publisher: PublisherId, publishers: &str, rules: &str) -> Policy {
    let text = format!(
        "[publishers]\n\"{publisher}\" = [\"dns:pa.test\"]\n{publishers}\
         [[allow]]\nwho = [\"dns:pa.test\"]\ndo = [\"serve\", \"publish\", \"resolve\"]\n\
         paths = [\"/**\"]\n\
         [[allow]]\nwho = [\"dns:ops.test\"]\ndo = [\"*\"]\npaths = [\"/**\"]\n{rules}"
    );
    Policy::parse(&text).unwrap()
}

fn allow(who: &str, actions: &[&str], paths: &[&str]) -> String {
    let who = format!("dns:{who}.test");
    format!("[[allow]]\nwho = [{who:?}]\ndo = {actions:?}\npaths = {paths:?}\n")
}

fn path(text: &str) -> Path {
    Path::new(text).unwrap()
}

/// The publishers of a path.
fn publishers(answer: &PathAnswer) -> Vec<PublisherId> {
    match answer {
        PathAnswer::Publishers { set, .. } => set.iter().map(|one| one.publisher.id).collect(),
        PathAnswer::NotFound | PathAnswer::Refused(_) => Vec::new(),
    }
}

async fn soon<F: IntoFuture>(what: F) -> F::Output {
    tokio::time::timeout(SOON, what.into_future()).await.expect("it takes far too long")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_client_does_what_its_certificate_allows() {
    let rules = allow("shop", &["enqueue"], &["/shop/**"])
        + &allow("shop", &["resolve"], &["/**"])
        + &allow("worker", &["work", "resolve"], &["/shop/mail"]);
    let secured = Secured::start(&rules).await;
    let shop = Producer::connect(secured.cluster("shop"));
    soon(shop.enqueue(new_job(path("/shop/mail"), "1"))).await.unwrap();
    soon(shop.enqueue(new_job(path("/shop/bills"), "2"))).await.unwrap();
    let refused = soon(shop.enqueue(new_job(path("/other"), "3"))).await.unwrap_err();
    let is_forbidden = matches!(&refused, EnqueueError::Refused { refusal, .. }
        if *refusal == Refusal::Forbidden);
    assert!(is_forbidden, "{refused}");

    // Of two patterns the worker may use one queue, and it sees no other.
    let worker = Worker::connect(secured.cluster("worker")).durable_subscribe("/shop/**");
    let (handle, seen) = (worker.shutdown_handle(), Arc::new(Mutex::new(Vec::new())));
    let handler = {
        let seen = seen.clone();
        move |job: Job<String>, _: JobContext| {
            let seen = seen.clone();
            async move {
                seen.lock().unwrap().push(job.payload);
                Ok(())
            }
        }
    };
    let running = tokio::spawn(worker.run(handler));
    soon(async {
        while seen.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    handle.stop_now();
    soon(running).await.unwrap().unwrap();
    assert_eq!(*seen.lock().unwrap(), ["1"]);
    let paths = ReadClient::connect(secured.cluster("worker"));
    let (mail, bills) = (path("/shop/mail"), path("/shop/bills"));
    let answers = soon(paths.resolve(vec![mail, bills])).await.unwrap();
    let served = answers.answers.iter().map(|answer| !publishers(answer).is_empty());
    assert!(served.eq([true, false]), "{answers:?}");

    // Operators see everything; a certificate of the authority alone allows nothing.
    let ops = Queues::connect(secured.cluster("ops"));
    let stats = soon(ops.stats("/**".parse().unwrap())).await.unwrap();
    assert!(stats.complete, "{stats:?}");
    let eve = Producer::connect(secured.cluster("eve"));
    let refused = soon(eve.enqueue(new_job(path("/shop/mail"), "4"))).await.unwrap_err();
    assert!(refused.to_string().contains("nothing to dns:eve.test"), "{refused}");
    secured.system.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_serves_only_as_itself_and_only_what_it_may() {
    let rules = allow("eve", &["serve", "publish", "resolve"], &["/shop/**"])
        + &allow("shop", &["enqueue", "resolve"], &["/**"]);
    let secured = Secured::start(&rules).await;
    // Eve may serve these paths, but the policy binds no id to her.
    let data = TempDir::new().unwrap();
    let mut options = PublisherOptions::new(data.path());
    options.cluster = Some(secured.cluster("eve"));
    options.tls = Some(secured.tls.clone());
    options.paths = vec![path("/shop/mail")];
    let eve = RunningPublisher::start(options).await.unwrap();
    let paths = ReadClient::connect(secured.cluster("shop"));
    let refused = async {
        loop {
            let all = eve.registration();
            if all.iter().all(|replica| replica.refused > 0) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon(refused).await;
    let answers = soon(paths.resolve(vec![path("/shop/mail")])).await.unwrap();
    assert_eq!(publishers(&answers.answers[0]), [secured.publisher]);
    eve.stop().await.unwrap();
    secured.system.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_and_policies_change_under_load_without_a_lost_or_doubled_job() {
    let rotations = if long() { 1_000 } else { 25 };
    let rules = allow("shop", &["enqueue", "resolve"], &["/**"])
        + &allow("worker", &["work", "resolve"], &["/**"]);
    let secured = Secured::start(&rules).await;
    let worker = Worker::connect(secured.cluster("worker")).durable_subscribe("/shop/**");
    let (handle, stats) = (worker.shutdown_handle(), worker.stats());
    let done: Arc<Mutex<BTreeMap<String, u32>>> = Arc::default();
    let handler = {
        let done = done.clone();
        move |job: Job<String>, _: JobContext| {
            let done = done.clone();
            async move {
                *done.lock().unwrap().entry(job.payload).or_default() += 1;
                Ok(())
            }
        }
    };
    let running = tokio::spawn(worker.run(handler));
    let producer = Producer::connect(secured.cluster("shop"));
    let ((stop, stopped), completed) = (tokio::sync::watch::channel(false), done.clone());
    let producing = tokio::spawn(async move {
        let mut jobs = 0_u32;
        while !*stopped.borrow() {
            let job = |n: u32| new_job(path("/shop/mail"), format!("{n}"));
            let receipts = producer.enqueue_all((jobs..jobs + 100).map(job)).await;
            assert!(receipts.iter().all(|receipt| receipt.outcome.is_ok()));
            jobs += 100;
            // The worker has to keep up.
            while completed.lock().unwrap().len() + 1_000 < jobs as usize {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        jobs
    });
    soon(async {
        while stats.now().publishers_alive == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    let mut links_lost = 0;
    for number in 0..rotations {
        secured.authority.issue("server");
        assert!(secured.tls.reload().unwrap());
        // Another identity's rights come and go, and those in use grow and never shrink.
        let more = allow(if number % 2 == 0 { "eve" } else { "shop" }, &["inspect"], &["/**"]);
        // So does another publisher's id.
        let id = PublisherId([number as u8; 16]);
        let bound = format!("\"{id}\" = [\"dns:pb.test\"]\n");
        let rules = rules.clone() + &allow("shop", &["inspect"], &["/**"]) + &more;
        secured.control.replace(Some(policy(secured.publisher, &bound, &rules)), None);
        links_lost += u32::from(stats.now().publishers_alive == 0);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.send(true).unwrap();
    let jobs = soon(producing).await.unwrap();
    soon(async {
        while done.lock().unwrap().len() < jobs as usize {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    handle.drain();
    let report = soon(running).await.unwrap().unwrap();
    let twice: Vec<_> =
        done.lock().unwrap().iter().filter(|(_, n)| **n > 1).map(|(j, _)| j.clone()).collect();
    assert!(twice.is_empty(), "{twice:?} ran twice");
    assert_eq!((links_lost, report.leases_revoked, report.stale_refused), (0, 0, 0));
    assert_eq!(report.completed, u64::from(jobs));

    // A worker that loses its rights loses its link, and takes nothing more.
    secured.change(&allow("shop", &["enqueue", "resolve", "inspect"], &["/**"]));
    let late = Worker::connect(secured.cluster("worker")).durable_subscribe("/shop/**");
    let (handle, stats) = (late.shutdown_handle(), late.stats());
    let nothing = tokio::spawn(late.run(|_: Job<String>, _: JobContext| async { Ok(()) }));
    let producer = Producer::connect(secured.cluster("shop"));
    soon(producer.enqueue(new_job(path("/shop/mail"), "late"))).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!((stats.now().completed, stats.now().publishers_alive), (0, 0));
    handle.stop_now();
    soon(nothing).await.unwrap().ok();
    secured.system.stop().await.unwrap();
}
