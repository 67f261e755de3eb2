//! How fast values go out: `cargo run --release -p longshore-publisher --example values_speed`.
//!
//! One publisher, one or ten subscribers, each a socket of this process. The publisher commits batches of 1,000 updates, and flushes after every 100
//! of them so that nothing is conflated. Told are updates a second of the thread that commits, by its own time, and over the sockets,
//! read and decoded.
#![allow(clippy::print_stdout)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use longshore_protocol::messages::values::{
    FromValuePublisher, Policy, SubscribeValue, ToValuePublisher,
};
use longshore_protocol::{FrameWriter, Hello, LinkTiming, Messages, Path, Role, SessionId, Value};
use longshore_publisher::{ValuePublisher, ValuePublisherOptions};
use longshore_transport::{LinkOptions, dial};

const VALUES: u32 = 1_000;
const COMMITS_A_FLUSH: usize = 100;
const LASTS: Duration = Duration::from_secs(3);

type Failed = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let bytes = |length: usize| Value::from(bytes::Bytes::from(vec![7u8; length]));
    for (what, value) in
        [("u64", Value::U64(7)), ("256 bytes", bytes(256)), ("8 KiB", bytes(8_192))]
    {
        for links in [1, 10] {
            for decode in [false, true] {
                run(what, &value, links, decode).await?;
            }
        }
    }
    Ok(())
}

async fn run(what: &str, value: &Value, links: usize, decode: bool) -> Result<(), Failed> {
    let publisher = ValuePublisher::open(ValuePublisherOptions::default()).await?;
    let values = publisher.values();
    let paths = (0..VALUES).map(|n| Path::new(&format!("/speed/{n}")));
    let paths = paths.collect::<Result<Vec<_>, _>>()?;
    let published = values.publish_all(paths.iter().map(|path| (path.clone(), value.clone())))?;
    let heard = Arc::new(AtomicU64::new(0));
    for _ in 0..links {
        let reading = follow(publisher.local_address(), paths.clone(), decode, heard.clone());
        tokio::spawn(async move {
            if let Err(error) = reading.await {
                println!("a subscriber ended: {error}");
            }
        });
    }
    for value in &published {
        while value.subscribers() < links {
            value.subscribed().await;
            tokio::task::yield_now().await;
        }
    }
    let (begun, mut committing, mut updates) = (Instant::now(), Duration::ZERO, 0u64);
    let mut batch = values.batch();
    while begun.elapsed() < LASTS {
        // What is committed between two flushes has to fit the queue: 4 MiB.
        let commits =
            COMMITS_A_FLUSH.min(3 * 1024 * 1024 / (value.encoded_len()? * VALUES as usize)).max(1);
        let at = Instant::now();
        for _ in 0..commits {
            for held in &published {
                batch.update(held, value.clone())?;
            }
            batch.commit();
            updates += u64::from(VALUES);
        }
        committing += at.elapsed();
        values.flush(None).await;
    }
    let took = begun.elapsed().as_secs_f64();
    let per_second = |count: u64, seconds: f64| count as f64 / seconds / 1e6;
    println!(
        "{what}, {links} links{}: {:.1} M updates/s by the committing thread's time, {:.1} M/s sent over each link, {:.1} M/s decoded by all",
        if decode { ", decoded" } else { "" },
        per_second(updates, committing.as_secs_f64()),
        per_second(updates, took),
        per_second(heard.load(Ordering::Relaxed), took),
    );
    publisher.stop().await;
    Ok(())
}

async fn follow(
    to: std::net::SocketAddr,
    paths: Vec<Path>,
    decode: bool,
    heard: Arc<AtomicU64>,
) -> Result<(), Failed> {
    let hello = Hello::new(Role::Values, SessionId([1; 16]), "speed", LinkTiming::VALUES);
    let (sender, mut receiver) = dial(to, &hello, &LinkOptions::default()).await?.split();
    let wanted = (0..).zip(paths).map(|(subscription, path)| SubscribeValue {
        subscription,
        path,
        policy: Policy::Conflate,
    });
    let mut out = FrameWriter::new();
    ToValuePublisher::Subscribe(wanted.collect()).encode(&mut out);
    sender.send(out.finish())?;
    while let Ok(body) = receiver.recv().await {
        for message in Messages::new(body) {
            let (tag, body) = message?;
            if decode
                && let Some(FromValuePublisher::Updates(updates)) =
                    FromValuePublisher::decode(tag, body)?
            {
                let mut count = 0;
                for update in &updates {
                    update?;
                    count += 1;
                }
                heard.fetch_add(count, Ordering::Relaxed);
            }
        }
    }
    Ok(())
}
