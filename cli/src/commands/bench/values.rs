//! Live values: updates per second from a publisher process to a subscriber process, and the
//! latency of a single update.
//!
//! 1. The publisher commits an update of every value at a time, at full speed. It flushes so often
//!    that nothing is conflated; updates that the subscriber misses are reported as `lost`.
//! 2. It makes single updates at a fixed rate (open loop), each timed from its schedule; lost ones
//!    are reported as `latency_lost`.

use std::net::SocketAddr;

use anyhow::{Context as _, ensure};
use longshore::{Path, ResolverServer, ServerOptions, new_id};
use serde_json::{Value, json};

use super::process::CpuClock;
use super::system::child_spec;
use super::{head, rounded, sync_time};
use crate::arguments::BenchValues;
use crate::child::Child;
use crate::commands::Context;
use crate::config::Origin;
use crate::output::grouped;

/// Values are only in memory.
const DURABILITY: &str = "none";

pub(crate) async fn measure(arguments: BenchValues, context: &Context) -> anyhow::Result<Value> {
    // A throwaway replica, unless one was named on the command line.
    let (resolvers, named, replica) = match context.config.resolvers.origin {
        Origin::Flag(_) => {
            let named = Some(context.overrides.system_flags());
            (context.config.resolvers.value.join(","), named, None)
        }
        _ => {
            let options =
                ServerOptions { name: "bench".to_owned(), fresh: true, ..ServerOptions::default() };
            let any = SocketAddr::from(([127, 0, 0, 1], 0));
            let server = ResolverServer::bind(any, options)?;
            let address = server.local_address().to_string();
            (address, None, Some(tokio::spawn(server.run(std::future::pending()))))
        }
    };
    let parent = Path::new(&format!("/bench/{}", new_id()))?.to_string();
    let (paths, size) = (arguments.paths.to_string(), arguments.size.to_string());
    let start = async |name: &str, command: &str| {
        let arguments = ["bench", command, &parent, "--paths", &paths, "--size", &size];
        Child::start(&child_spec(name, &resolvers, &arguments, named.as_deref())).await
    };
    let mut publisher = start("the publisher", "value-publisher").await?;
    let mut subscriber = start("the subscriber", "value-subscriber").await?;

    let sync_us = match named {
        Some(_) => None,
        None => {
            let measured = sync_time::median_us(&std::env::temp_dir());
            Some(measured.context("cannot measure fdatasync")?)
        }
    };
    let mut results = head("values", DURABILITY, sync_us);
    results["size"] = json!(arguments.size);
    results["paths"] = json!(arguments.paths);
    burst(&mut publisher, &mut subscriber, arguments.seconds, &mut results, context).await?;
    single(&mut publisher, &mut subscriber, &arguments, &mut results).await?;
    subscriber.end().await?;
    publisher.end().await?;
    if let Some(replica) = replica {
        replica.abort();
    }
    Ok(results)
}

/// Measures updates at full speed.
async fn burst(
    publisher: &mut Child,
    subscriber: &mut Child,
    seconds: u64,
    results: &mut Value,
    context: &Context,
) -> anyhow::Result<()> {
    let clock = |child: &Child| child.id().map(CpuClock::of).context("a process has ended");
    let (mut publishing, mut reading) = (clock(publisher)?, clock(subscriber)?);
    let before = (publishing.now_ns()?, reading.now_ns()?);
    let sent = send_command(publisher, &format!("burst {seconds}")).await?;
    let updates = number(&sent, "updates")?;
    let got = send_command(subscriber, &format!("until {updates}")).await?;
    let used = (publishing.now_ns()? - before.0, reading.now_ns()? - before.1);
    let received = number(&got, "received")?;
    let lost = lost(updates, received)?;
    let took_ns = number(&got, "last_ns")?.saturating_sub(number(&sent, "began_ns")?).max(1);
    let per_s = (received as f64 * 1e9 / took_ns as f64).round();
    let each_ns = |ns: u64| json!(rounded(ns as f64 / received as f64));
    results["updates"] = json!(updates);
    results["lost"] = json!(lost);
    results["updates_per_s"] = json!(per_s);
    results["publisher_cpu_ns"] = each_ns(used.0);
    results["subscriber_cpu_ns"] = each_ns(used.1);
    if !context.output.is_json() {
        eprintln!("{} updates a second", grouped(per_s as u64));
    }
    Ok(())
}

/// Measures the latency of single updates.
async fn single(
    publisher: &mut Child,
    subscriber: &mut Child,
    arguments: &BenchValues,
    results: &mut Value,
) -> anyhow::Result<()> {
    let updates = arguments.rate * arguments.seconds;
    send_command(subscriber, "time").await?;
    send_command(publisher, &format!("steady {updates} {} 1", arguments.rate)).await?;
    let got = send_command(subscriber, &format!("until {updates}")).await?;
    results["offered_per_s"] = json!(arguments.rate);
    // The latency is of the others only.
    results["latency_lost"] = json!(lost(updates, number(&got, "received")?)?);
    for key in ["p50_us", "p99_us", "max_us"] {
        results[format!("latency_{key}")] = got[key].clone();
    }
    Ok(())
}

/// The number of updates that were not received.
fn lost(updates: u64, received: u64) -> anyhow::Result<u64> {
    ensure!(received > 0 && received <= updates, "{received} of {updates} updates were received");
    Ok(updates - received)
}

async fn send_command(process: &mut Child, command: &str) -> anyhow::Result<Value> {
    process.send_line(command).await?;
    process.next().await
}

fn number(report: &Value, key: &str) -> anyhow::Result<u64> {
    report[key].as_u64().with_context(|| format!("a report without {key}: {report}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_that_are_not_received_are_lost() {
        assert_eq!((lost(10, 7).unwrap(), lost(10, 10).unwrap()), (3, 0));
        assert!(lost(10, 0).is_err() && lost(10, 11).is_err());
    }
}
