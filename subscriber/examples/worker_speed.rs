//! How many jobs a second one worker takes, runs and settles when its handler does nothing. The publisher is a stand-in on a
//! thread of its own: it pushes against credits and accepts every settle at once, so what is measured is the worker.
//!
//!     cargo run --release -p longshore-subscriber --example worker_speed -- [JOBS] [CONCURRENCY] [PREFETCH] [PAYLOAD BYTES] [LAYERS]
//!
//! Of layers there may be 0, 1 or 3 around the handler. They do nothing, but box their futures as most do that are written by hand.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore_protocol::messages::work::{
    Attached, Credit, Deliver, Delivery, FromPublisher, Settled, ToPublisher, Tokens,
};
use longshore_protocol::{
    Durability, Epoch, FrameWriter, JobId, Messages, NewJob, Path, PublisherId, PublisherInfo,
    Role, Runs, SessionId, SettleOutcome, Token,
};
use longshore_resolver::{Cluster, PublicationTerms, ResolverServer, ServerOptions, WriteClient};
use longshore_subscriber::{Job, JobContext, JobFailure, ShutdownHandle, Worker};
use longshore_transport::{Identity, LinkReceiver, LinkSender, Listener, ListenerOptions};
use tower_layer::Layer;
use tower_service::Service;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Jobs of one pushed message: what a publisher's group commit hands out at a time.
const PUSHED_TOGETHER: u64 = 500;
const PUBLISHER: PublisherId = PublisherId([1; 16]);

fn main() -> Result<(), Failure> {
    let numbers: Vec<usize> =
        std::env::args().skip(1).map(|text| text.parse()).collect::<Result<_, _>>()?;
    let number = |at: usize, otherwise| numbers.get(at).copied().unwrap_or(otherwise);
    let (jobs, concurrency) = (number(0, 3_000_000) as u64, number(1, 64));
    let (prefetch, payload, layers) = (number(2, 4_096), number(3, 256), number(4, 0));

    let (ready, resolver) = std::sync::mpsc::channel();
    let publisher = std::thread::spawn(move || -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(publish(jobs, payload, ready))
    });
    let resolver = resolver.recv()?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (took, report) = runtime.block_on(async {
        let worker = Worker::connect(resolver.as_str()).await?;
        let subscription =
            worker.durable_subscribe("/jobs/**").concurrency(concurrency).prefetch(prefetch);
        let (handle, stats) = (subscription.handle(), subscription.stats());
        let timer = tokio::spawn(time(jobs, handle, move || stats.now().completed));
        let report = match layers {
            0 => subscription.run(nothing).await?,
            1 => subscription.layer(NoOp).run(nothing).await?,
            3 => subscription.layer(NoOp).layer(NoOp).layer(NoOp).run(nothing).await?,
            _ => return Err("0, 1 or 3 layers".into()),
        };
        Ok::<_, Failure>((timer.await?, report))
    })?;
    println!(
        "{} jobs of {payload} bytes, concurrency {concurrency}, prefetch {prefetch}, {layers} layers: {:.0} jobs/s",
        report.completed,
        jobs as f64 / took.as_secs_f64()
    );
    drop(runtime);
    publisher.join().map_err(|_| "the publisher panicked")?
}

async fn nothing(_: Job<Bytes>, _: JobContext) -> Result<(), JobFailure> {
    Ok(())
}

/// A layer that does nothing, and what it makes of a service.
#[derive(Clone)]
struct NoOp;

#[derive(Clone)]
struct Around<S>(S);

impl<S> Layer<S> for NoOp {
    type Service = Around<S>;

    fn layer(&self, inner: S) -> Around<S> {
        Around(inner)
    }
}

impl<R, S: Service<R, Future: Send + 'static>> Service<R> for Around<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        Box::pin(self.0.call(request))
    }
}

/// From the first completion to the last.
async fn time(jobs: u64, handle: ShutdownHandle, completed: impl Fn() -> u64) -> Duration {
    while completed() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let started = Instant::now();
    while completed() < jobs {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let took = started.elapsed();
    handle.drain();
    took
}

async fn publish(
    jobs: u64,
    payload: usize,
    ready: std::sync::mpsc::Sender<String>,
) -> Result<(), Failure> {
    let loopback = ([127, 0, 0, 1], 0).into();
    let options = ServerOptions { fresh: true, ..ServerOptions::default() };
    let replica = ResolverServer::bind(loopback, options).await?;
    let resolver = replica.local_address().to_string();
    tokio::spawn(replica.run(std::future::pending()));
    let identity = Identity {
        instance: PUBLISHER.0,
        epoch: 1,
        name: "publisher".into(),
        serves: |role| role == Role::Worker,
    };
    let mut listener = Listener::bind(loopback, identity, ListenerOptions::default()).await?;
    let info = PublisherInfo {
        id: PUBLISHER,
        epoch: Epoch(1),
        name: "publisher".into(),
        addresses: vec![listener.local_address().into()],
        later: Default::default(),
    };
    let registration = WriteClient::new(Cluster::from(resolver.as_str()), info, SessionId([1; 16]));
    registration.publish_default(Path::root(), &PublicationTerms::default());
    ready.send(resolver)?;
    let (sender, receiver) = listener.accept().await.split();
    serve(jobs, payload, sender, receiver).await
}

async fn serve(
    jobs: u64,
    payload: usize,
    sender: LinkSender,
    mut receiver: LinkReceiver,
) -> Result<(), Failure> {
    let path = Path::new("/jobs/x")?;
    let job = NewJob::new(path.clone(), JobId([7; 16]), vec![7u8; payload]);
    let mut entry = FrameWriter::new();
    job.encode_entry_head(&mut entry);
    entry.put(&job.payload);
    let entry = entry.into_body();

    let (mut pushed, mut credits) = (0u64, 0u64);
    // The worker ends the link when it has drained.
    while let Ok(frame) = receiver.recv().await {
        let mut out = FrameWriter::with_capacity(256 * 1024);
        for message in Messages::new(frame) {
            let (tag, body) = message?;
            match ToPublisher::decode(tag, body)? {
                Some(ToPublisher::Attach(_)) => FromPublisher::Attached(Attached {
                    durability: Durability::None,
                    next_batch: 1,
                    next_settle: 1,
                    gone: Tokens::default(),
                    reconnect_grace_ms: 5_000,
                })
                .encode(&mut out),
                Some(ToPublisher::Credit(Credit { count, .. })) => credits += u64::from(count),
                Some(ToPublisher::Settle(batch)) => FromPublisher::Settled(Settled {
                    sequence: batch.sequence,
                    outcomes: Runs::all(SettleOutcome::Accepted, batch.len()),
                })
                .encode(&mut out),
                _ => {}
            }
        }
        while credits > 0 && pushed < jobs {
            let count = credits.min(jobs - pushed).min(PUSHED_TOGETHER);
            let delivery = |token| Delivery {
                token: Token(token),
                path: 0,
                attempt: 1,
                deliveries: 1,
                lease_ms: 30_000,
                checkpoints: 0,
                entry: entry.clone(),
            };
            FromPublisher::Deliver(Deliver {
                subscription: 1,
                paths: vec![path.clone()],
                jobs: (pushed..pushed + count).map(delivery).collect(),
            })
            .encode(&mut out);
            pushed += count;
            credits -= count;
        }
        if !out.is_empty() {
            sender.send(out.finish())?;
        }
    }
    Ok(())
}
