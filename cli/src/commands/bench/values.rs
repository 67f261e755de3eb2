//! Updates of live values a second, from a publisher to a subscriber, each a process of its own,
//! and how long a single update takes.
//!
//! 1. The publisher commits an update of every value at a time, as fast as they are taken. It
//!    flushes so often that nothing is conflated: what the subscriber did not get all the same is
//!    told as `lost`.
//! 2. It makes single updates at a steady rate that waits for nothing; each is counted from when it
//!    should have gone out.

use std::net::SocketAddr;

use anyhow::{Context as _, ensure};
use longshore::{Path, ResolverServer, ServerOptions, new_id};
use serde_json::{Value, json};

use super::process::CpuClock;
use super::system::role;
use super::{head, rounded, sync_time};
use crate::arguments::BenchValues;
use crate::child::Child;
use crate::commands::Context;
use crate::config::Origin;
use crate::output::grouped;

/// Values are nowhere but in memory.
const DURABILITY: &str = "none";

pub(crate) async fn measure(asked: BenchValues, context: &Context) -> anyhow::Result<Value> {
    let sync_us =
        sync_time::median_us(&std::env::temp_dir()).context("cannot measure fdatasync")?;
    // A throwaway replica, unless one was named on the command line.
    let (resolvers, replica) = match context.config.resolvers.origin {
        Origin::Flag(_) => (context.config.resolvers.value.join(","), None),
        _ => {
            let options =
                ServerOptions { name: "bench".to_owned(), fresh: true, ..ServerOptions::default() };
            let any = SocketAddr::from(([127, 0, 0, 1], 0));
            let server = ResolverServer::bind(any, options).await?;
            let address = server.local_address().to_string();
            (address, Some(tokio::spawn(server.run(std::future::pending()))))
        }
    };
    let below = Path::new(&format!("/bench/{}", new_id()))?.to_string();
    let (paths, size) = (asked.paths.to_string(), asked.size.to_string());
    let start = async |name: &str, part: &str| {
        let arguments = [part, &below, "--paths", &paths, "--size", &size];
        Child::start(&role(name, &resolvers, &arguments)).await
    };
    let mut publisher = start("the publisher", "bench-value-publisher").await?;
    let mut subscriber = start("the subscriber", "bench-value-subscriber").await?;

    let mut figures = head("values", DURABILITY, sync_us);
    figures["size"] = json!(asked.size);
    figures["paths"] = json!(asked.paths);
    burst(&mut publisher, &mut subscriber, asked.seconds, &mut figures, context).await?;
    single(&mut publisher, &mut subscriber, &asked, &mut figures).await?;
    subscriber.end().await?;
    publisher.end().await?;
    if let Some(replica) = replica {
        replica.abort();
    }
    Ok(figures)
}

/// As many as go through.
async fn burst(
    publisher: &mut Child,
    subscriber: &mut Child,
    seconds: u64,
    figures: &mut Value,
    context: &Context,
) -> anyhow::Result<()> {
    let clock = |part: &Child| part.id().map(CpuClock::of).context("a part has ended");
    let (mut publishing, mut reading) = (clock(publisher)?, clock(subscriber)?);
    let before = (publishing.now_ns()?, reading.now_ns()?);
    let sent = said(publisher, &format!("burst {seconds}")).await?;
    let updates = number(&sent, "updates")?;
    let got = said(subscriber, &format!("until {updates}")).await?;
    let used = (publishing.now_ns()? - before.0, reading.now_ns()? - before.1);
    let received = number(&got, "received")?;
    ensure!(received > 0 && received <= updates, "{received} of {updates} updates were received");
    let took_ns = number(&got, "last_ns")?.saturating_sub(number(&sent, "began_ns")?).max(1);
    let per_s = (received as f64 * 1e9 / took_ns as f64).round();
    let each_ns = |ns: u64| json!(rounded(ns as f64 / received as f64));
    figures["updates"] = json!(updates);
    figures["lost"] = json!(updates - received);
    figures["updates_per_s"] = json!(per_s);
    figures["publisher_cpu_ns"] = each_ns(used.0);
    figures["subscriber_cpu_ns"] = each_ns(used.1);
    if !context.output.is_json() {
        eprintln!("{} updates a second", grouped(per_s as u64));
    }
    Ok(())
}

/// One at a time.
async fn single(
    publisher: &mut Child,
    subscriber: &mut Child,
    asked: &BenchValues,
    figures: &mut Value,
) -> anyhow::Result<()> {
    let updates = asked.rate * asked.seconds;
    said(subscriber, "time").await?;
    said(publisher, &format!("steady {updates} {} 1", asked.rate)).await?;
    let got = said(subscriber, &format!("until {updates}")).await?;
    figures["offered_per_s"] = json!(asked.rate);
    for key in ["p50_us", "p99_us", "max_us"] {
        figures[format!("latency_{key}")] = got[key].clone();
    }
    Ok(())
}

async fn said(part: &mut Child, word: &str) -> anyhow::Result<Value> {
    part.tell(word).await?;
    part.next().await
}

fn number(report: &Value, key: &str) -> anyhow::Result<u64> {
    report[key].as_u64().with_context(|| format!("a report without {key}: {report}"))
}
