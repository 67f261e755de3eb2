//! Longshore's live values beside netidx's: updates a second from a publisher to a subscriber, and
//! how long a single update takes.

mod asked;
mod figures;
mod longshore;
#[cfg(feature = "netidx")]
mod netidx;
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
    let mut all = Vec::new();
    for work in &asked.works {
        let mut comparison = Comparison::new(work);
        for round in 1..=asked.rounds {
            for side in [Side::Netidx, Side::Longshore] {
                let figures = run::round(side, work).with_context(|| format!("{side}"))?;
                let size = work.size;
                eprintln!("{size} bytes, round {round} of {}, {side}: {figures}", asked.rounds);
                comparison.add(side, figures);
            }
        }
        all.push(comparison);
    }
    if asked.json {
        let all: Vec<_> = all.iter().map(Comparison::json).collect();
        println!("{}", serde_json::to_string(&all)?);
    } else {
        print!("{}", all.iter().map(Comparison::table).collect::<Vec<_>>().join("\n"));
    }
    Ok(())
}
