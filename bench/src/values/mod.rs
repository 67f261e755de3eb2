//! Compares the live values of Longshore and netidx: updates per second from a publisher to a
//! subscriber, and the latency of single updates.

mod longshore;
#[cfg(feature = "netidx")]
mod netidx;
mod options;
mod run;
mod stats;
mod work;

pub(crate) use run::run_child;

use anyhow::Context as _;

use self::options::{Options, USAGE};
use self::stats::Comparison;
use crate::system::System;

/// Runs the command with its arguments.
pub(crate) fn command(arguments: &[&str]) -> anyhow::Result<()> {
    if arguments.contains(&"--help") {
        println!("{USAGE}");
        return Ok(());
    }
    let options = Options::parse(arguments).with_context(|| USAGE)?;
    let mut all = Vec::new();
    for work in &options.works {
        let mut comparison = Comparison::new(work);
        for round in 1..=options.rounds {
            for system in [System::Netidx, System::Longshore] {
                let stats = run::round(system, work).with_context(|| format!("{system}"))?;
                let size = work.size;
                eprintln!("{size} bytes, round {round} of {}, {system}: {stats}", options.rounds);
                comparison.add(system, stats);
            }
        }
        all.push(comparison);
    }
    if options.json {
        let all: Vec<_> = all.iter().map(Comparison::json).collect();
        println!("{}", serde_json::to_string(&all)?);
    } else {
        print!("{}", all.iter().map(Comparison::table).collect::<Vec<_>>().join("\n"));
    }
    Ok(())
}
