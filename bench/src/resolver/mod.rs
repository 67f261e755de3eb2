//! Compares the resolvers of Longshore and netidx: they register, resolve and list paths, and their
//! memory use is measured.

pub(crate) mod longshore;
#[cfg(feature = "netidx")]
pub(crate) mod netidx;
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
    let mut comparison = Comparison::new(&options);
    for round in 1..=options.rounds {
        for system in [System::Netidx, System::Longshore] {
            let stats = run::round(system, &options.work).with_context(|| format!("{system}"))?;
            eprintln!("round {round} of {}, {system}: {stats}", options.rounds);
            comparison.add(system, stats);
        }
    }
    if options.json {
        println!("{}", comparison.json());
    } else {
        print!("{}", comparison.table());
    }
    Ok(())
}
