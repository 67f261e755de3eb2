//! Longshore's resolver beside netidx's: paths registered, resolved and listed, and what they cost
//! in memory.

mod asked;
mod figures;
pub(crate) mod longshore;
#[cfg(feature = "netidx")]
pub(crate) mod netidx;
mod run;
mod work;

pub(crate) use run::part;

use anyhow::Context as _;

use self::asked::{Asked, USAGE};
use self::figures::Comparison;
use crate::side::Side;

/// The command, with what stands behind its name.
pub(crate) fn command(arguments: &[&str]) -> anyhow::Result<()> {
    if arguments.contains(&"--help") {
        println!("{USAGE}");
        return Ok(());
    }
    let asked = Asked::parse(arguments).with_context(|| USAGE)?;
    let mut comparison = Comparison::new(&asked);
    for round in 1..=asked.rounds {
        for side in [Side::Netidx, Side::Longshore] {
            let figures = run::round(side, &asked.work).with_context(|| format!("{side}"))?;
            eprintln!("round {round} of {}, {side}: {figures}", asked.rounds);
            comparison.add(side, figures);
        }
    }
    if asked.json {
        println!("{}", comparison.json());
    } else {
        print!("{}", comparison.table());
    }
    Ok(())
}
