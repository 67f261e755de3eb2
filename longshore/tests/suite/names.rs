//! Invalid names are refused at once, with the limit, and before anything is sent.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use longshore::Path;
use longshore::prelude::*;
use longshore::protocol::Epoch;
use longshore::values::{Policy, SubscribeError, Subscriber, ValuePublisher, ValuePublisherError};
use longshore::{
    Action, Cluster, ConfirmError, ConnectError, DialError, Durability, EnqueueError, FeedFrom,
    FeedUpdate, Glob, JobId, JobLocator, JobLookupError, JobRef, NameError, OpenError, Publisher,
    PublisherId, PublisherInfo, PublisherOptions, Queues, QueuesError, ReadClient, ReadError,
    Receipt, ReplaceError, ReplicaError, RunError, WaitError, WatchEnded, WriteClient,
};
use tokio::time::timeout;

/// Longer than any refusal takes, and shorter than any answer timeout.
const AT_ONCE: Duration = Duration::from_secs(5);
const MINUTE: Duration = Duration::from_secs(60);

/// A listener in place of a replica or publisher, which sends nothing and reports whether a client
/// connected.
struct SilentListener(TcpListener);

impl SilentListener {
    fn listen() -> anyhow::Result<SilentListener> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        Ok(SilentListener(listener))
    }

    fn address(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.0.local_addr()?)
    }

    fn has_no_connection(&self) -> bool {
        matches!(self.0.accept(), Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    fn cluster(&self) -> anyhow::Result<Cluster> {
        Ok(Cluster::new([self.address()?.to_string()]))
    }

    fn info(&self, name: &str) -> anyhow::Result<PublisherInfo> {
        Ok(PublisherInfo::new(PublisherId([7; 16]), Epoch(1), name.to_owned(), [self.address()?]))
    }
}

/// An empty name, and one that is a byte too long.
fn invalid_names() -> [(String, NameError); 2] {
    [(String::new(), NameError(0)), ("n".repeat(129), NameError(129))]
}

fn job() -> anyhow::Result<NewJob> {
    Ok(new_job(Path::new("/jobs/mail")?, "x"))
}

fn receipt() -> Receipt {
    let job = JobRef { publisher: PublisherId([7; 16]), id: JobId::default() };
    Receipt { job, existing: false, durability: Durability::Fsync, may_be_at: None }
}

#[tokio::test]
async fn clients_and_publishers_reject_invalid_names() -> anyhow::Result<()> {
    let listener = SilentListener::listen()?;
    for (name, expected) in invalid_names() {
        let worker = Worker::builder().name(&name).connect(listener.cluster()?);
        let accept = |_: Job<String>, _: JobContext| async { Ok(()) };
        let refused = worker.durable_subscribe("/jobs").run(accept).await.unwrap_err();
        assert_eq!(refused, RunError::Connect(ConnectError::Name(expected)));

        let subscriber = Subscriber::builder().name(&name).connect(listener.cluster()?);
        assert_eq!(timeout(AT_ONCE, subscriber.ready()).await?, Err(ReadError::Name(expected)));
        let refused = timeout(AT_ONCE, subscriber.subscribe(Path::new("/a")?)).await?;
        assert!(matches!(refused, Err(SubscribeError::Resolver(_))), "{refused:?}");
        let mut matching =
            subscriber.durable_subscribe_matching(Glob::new("/a/*")?, Policy::Conflate);
        let ended = timeout(AT_ONCE, matching.next()).await?;
        assert_eq!(ended, Some(Err(WatchEnded::Name(expected))));

        let publisher = ValuePublisher::builder().name(&name).connect(listener.cluster()?).await;
        assert!(matches!(publisher, Err(ValuePublisherError::BadName(error)) if error == expected));

        let folder = tempfile::tempdir()?;
        let cluster = Some(listener.cluster()?);
        let options = PublisherOptions { name, cluster, ..PublisherOptions::new(folder.path()) };
        let publisher = Publisher::open(options).await;
        assert!(matches!(publisher, Err(OpenError::BadName(error)) if error == expected));
    }
    assert!(listener.has_no_connection());
    Ok(())
}

#[tokio::test]
async fn producers_reject_invalid_names_before_sending() -> anyhow::Result<()> {
    let listener = SilentListener::listen()?;
    for (name, expected) in invalid_names() {
        let options = Producer::builder().name(name);
        let named = vec![listener.info("p")?];
        for producer in [options.clone().connect(listener.cluster()?), options.to_publishers(named)]
        {
            let refused =
                |outcome| matches!(outcome, Err(EnqueueError::Name(error)) if error == expected);
            assert_eq!(timeout(AT_ONCE, producer.ready()).await?, Err(ReadError::Name(expected)));
            assert!(refused(timeout(AT_ONCE, producer.enqueue(job()?)).await?));
            let all = timeout(AT_ONCE, producer.enqueue_all([job()?, job()?])).await?;
            assert_eq!(all.len(), 2);
            assert!(all.into_iter().all(|result| refused(result.outcome)));
            let atomic = timeout(AT_ONCE, producer.enqueue_atomic([job()?, job()?])).await?;
            assert_eq!(atomic, Err(EnqueueError::Name(expected)));
            let (mut pipeline, _receipts) = producer.pipeline();
            let sent = timeout(AT_ONCE, pipeline.send(job()?)).await?;
            assert!(matches!(sent, Err(EnqueueError::Name(error)) if error == expected));
            let confirmed = timeout(AT_ONCE, producer.confirm(&receipt())).await?;
            assert_eq!(confirmed, Err(ConfirmError::Name(expected)));
            let ended = timeout(AT_ONCE, producer.wait(&receipt(), MINUTE)).await?;
            let why = WaitError::Lookup(JobLookupError::Queues(QueuesError::Name(expected)));
            assert_eq!(ended, Err(why));
        }
    }
    assert!(listener.has_no_connection());
    Ok(())
}

#[tokio::test]
async fn queue_clients_reject_invalid_names_before_sending() -> anyhow::Result<()> {
    let listener = SilentListener::listen()?;
    for (name, expected) in invalid_names() {
        let options = Queues::builder().name(name);
        let named = vec![listener.info("p")?];
        for queues in [
            options.clone().connect(listener.cluster()?),
            options.clone().to_publishers(named.clone()),
        ] {
            let why = QueuesError::Name(expected);
            let job_name = JobLocator::from(receipt().job);
            assert_eq!(timeout(AT_ONCE, queues.ready()).await?, Err(ReadError::Name(expected)));
            let status = timeout(AT_ONCE, queues.status()).await?;
            assert_eq!(status.err(), Some(why.clone()));
            let paused = timeout(AT_ONCE, queues.pause(Glob::new("/**")?)).await?;
            assert_eq!(paused.err(), Some(why.clone()));
            let names = [job_name.clone()];
            let acted = timeout(AT_ONCE, queues.act_on(Action::Cancel, &names, false)).await?;
            assert_eq!(acted.err(), Some(why.clone()));
            let lookup = JobLookupError::Queues(why);
            assert_eq!(timeout(AT_ONCE, queues.job(&job_name)).await?.err(), Some(lookup.clone()));
            let ended = timeout(AT_ONCE, queues.wait(&job_name, MINUTE)).await?;
            assert_eq!(ended, Err(WaitError::Lookup(lookup.clone())));
            let replaced = timeout(AT_ONCE, queues.replace(&job_name, &job()?, MINUTE)).await?;
            assert_eq!(replaced, Err(ReplaceError::Lookup(lookup)));
        }
        let mut feed = options.to_publishers(named).feed(Glob::new("/**")?, FeedFrom::Now);
        let item = timeout(AT_ONCE, feed.next()).await?;
        let Some(FeedUpdate::Away { why }) = item.map(|item| item.update) else {
            panic!("a feed reports each named publisher with the error");
        };
        assert_eq!(why, expected.to_string());
    }
    assert!(listener.has_no_connection());
    Ok(())
}

fn is_name_error(error: ReplicaError, expected: NameError) -> bool {
    matches!(error, ReplicaError::Dial(DialError::Name(found)) if found == expected)
}

#[tokio::test]
async fn resolver_clients_reject_invalid_names_before_sending() -> anyhow::Result<()> {
    let listener = SilentListener::listen()?;
    for (name, expected) in invalid_names() {
        let reader = ReadClient::builder().name(name.clone()).connect(listener.cluster()?);
        assert_eq!(timeout(AT_ONCE, reader.ready()).await?, Err(ReadError::Name(expected)));
        let resolved = timeout(AT_ONCE, reader.resolve(vec![Path::new("/jobs")?])).await?;
        assert_eq!(resolved, Err(ReadError::Name(expected)));
        let listed = timeout(AT_ONCE, reader.list(Path::new("/jobs")?)).await?;
        assert_eq!(listed, Err(ReadError::Name(expected)));
        let mut watch = reader.watch_paths(vec![Glob::new("/**")?]);
        assert_eq!(timeout(AT_ONCE, watch.next()).await?, Err(WatchEnded::Name(expected)));
        let mut publishers = reader.watch_publishers(Glob::new("/**")?);
        let at = listener.address()?.to_string();
        let known = timeout(AT_ONCE, reader.publishers_known(&at)).await?;
        assert!(is_name_error(known.unwrap_err(), expected));
        let status = timeout(AT_ONCE, reader.replica_status()).await?;
        let [(replica, status)] = <[_; 1]>::try_from(status).unwrap();
        assert!(replica == at && is_name_error(status.unwrap_err(), expected));

        let writer = WriteClient::connect(listener.cluster()?, listener.info(&name)?);
        let began = Instant::now();
        while writer.status()[0].last_error != Some(expected.to_string()) {
            assert!(began.elapsed() < AT_ONCE, "{:?}", writer.status());
            tokio::task::yield_now().await;
        }
        assert!(timeout(Duration::from_millis(50), publishers.changed()).await.is_err());
    }
    assert!(listener.has_no_connection());
    Ok(())
}
