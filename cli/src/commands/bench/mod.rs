//! `longshore bench`: measures a throwaway system or, with `--resolver`, a running one. Publisher,
//! producer and worker are separate processes.

mod backlog;
mod disk;
mod e2e;
mod latency;
mod load;
mod process;
mod producer;
mod registrar;
mod resolver;
mod sync_time;
mod system;
mod value_publisher;
mod value_subscriber;
mod values;
mod worker;

use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;

use super::Context;
use crate::arguments::{Bench, Measure};
use crate::output::Table;

pub(crate) async fn run(arguments: Bench, mut context: Context) -> anyhow::Result<()> {
    let results = match arguments.measure {
        Measure::E2e { jobs, size, keys, system } => {
            e2e::measure(jobs, size, keys, system, &context).await?
        }
        Measure::Latency { rate, seconds, size, system } => {
            latency::measure(rate, seconds, size, system, &context).await?
        }
        Measure::Backlog(arguments) => backlog::measure(arguments, &context).await?,
        Measure::Resolver(arguments) => resolver::measure(arguments, &context).await?,
        Measure::Values(arguments) => values::measure(arguments, &context).await?,
        // The processes of a measurement.
        Measure::Producer(arguments) => return producer::run(arguments, context).await,
        Measure::Worker(arguments) => return worker::run(arguments, context).await,
        Measure::Load(arguments) => return load::run(arguments, context).await,
        Measure::Registrar(arguments) => return registrar::run(arguments, context).await,
        Measure::ValuePublisher(arguments) => {
            return value_publisher::run(arguments, context).await;
        }
        Measure::ValueSubscriber(arguments) => {
            return value_subscriber::run(arguments, context).await;
        }
    };
    if context.output.is_json() {
        context.output.json(&results)?;
        return Ok(());
    }
    let mut table = Table::new(&["metric", "value"]);
    for (key, value) in results.as_object().into_iter().flatten() {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Null => "-".to_owned(),
            value => value.to_string(),
        };
        table.row([key.clone(), text]);
    }
    context.output.table(&table)?;
    Ok(())
}

/// The machine's monotonic clock in nanoseconds, the same in every process.
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let (seconds, ns) = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
    seconds.unwrap_or(0) * 1_000_000_000 + ns.unwrap_or(0)
}

/// The fields that every measurement of jobs or values reports. `sync_us` is none for a named
/// system: the client's own disk has nothing to do with its durability.
fn head(measure: &str, durability: &str, sync_us: Option<f64>) -> Value {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    serde_json::json!({
        "measure": measure, "version": env!("LONGSHORE_VERSION"), "durability": durability,
        "cores": cores, "fdatasync_us": sync_us.map(rounded),
    })
}

/// Rounds to three decimals; more are noise.
fn rounded(number: f64) -> f64 {
    (number * 1_000.0).round() / 1_000.0
}
