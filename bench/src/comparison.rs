//! The rounds of both systems and how they compare, as JSON and as a table.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use serde_json::{Value, json};

use crate::machine::QUIET_PERCENT;
use crate::numbers::{grouped, median, rounded};
use crate::system::System;

/// The release of netidx that `Cargo.toml` names.
pub(crate) const NETIDX_VERSION: &str = "0.32.0";

/// The measurements of one round of one system.
pub(crate) trait RoundStats: Copy + 'static {
    /// The rows of the table, in order.
    const ROWS: &'static [Row<Self>];

    /// The percentage of the machine's processor time that other processes used during the round.
    fn others_percent(&self) -> f64;
}

/// One measurement.
pub(crate) struct Row<F> {
    key: &'static str,
    name: &'static str,
    more_is_better: bool,
    of: fn(&F) -> f64,
}

impl<F> Row<F> {
    /// A measurement where less is better.
    pub(crate) const fn cost(key: &'static str, name: &'static str, of: fn(&F) -> f64) -> Row<F> {
        Row { key, name, more_is_better: false, of }
    }

    /// A measurement where more is better.
    pub(crate) const fn speed(key: &'static str, name: &'static str, of: fn(&F) -> f64) -> Row<F> {
        Row { key, name, more_is_better: true, of }
    }
}

/// Writes one round as a line.
pub(crate) fn write_line<F: RoundStats>(stats: &F, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let number = |row: &Row<F>| format!("{} {}", grouped((row.of)(stats)), row.name.trim());
    f.write_str(&F::ROWS.iter().map(number).collect::<Vec<_>>().join(", "))?;
    write!(f, ", other processes used {:.0} % of the processors", stats.others_percent())
}

/// All rounds of both systems.
pub(crate) struct Rounds<F>(BTreeMap<System, Vec<F>>);

impl<F: RoundStats> Rounds<F> {
    pub(crate) fn new() -> Rounds<F> {
        Rounds(BTreeMap::new())
    }

    pub(crate) fn add(&mut self, system: System, stats: F) {
        self.0.entry(system).or_default().push(stats);
    }

    /// The number of rounds that both systems have done.
    pub(crate) fn count(&self) -> usize {
        self.0.values().map(Vec::len).min().unwrap_or(0)
    }

    fn all(&self, system: System, of: fn(&F) -> f64) -> Vec<f64> {
        self.0.get(&system).into_iter().flatten().map(of).collect()
    }

    /// How many times better Longshore's median is, and the least and greatest ratio of a single
    /// pair of rounds.
    pub(crate) fn ratio(&self, row: &Row<F>) -> (f64, f64, f64) {
        let (ours, theirs) =
            (self.all(System::Longshore, row.of), self.all(System::Netidx, row.of));
        let times_better = |ours: f64, theirs: f64| match row.more_is_better {
            true => ours / theirs,
            false => theirs / ours,
        };
        let pairs: Vec<f64> = ours.iter().zip(&theirs).map(|(o, t)| times_better(*o, *t)).collect();
        let least = pairs.iter().copied().fold(f64::INFINITY, f64::min);
        let most = pairs.iter().copied().fold(0.0, f64::max);
        (times_better(median(ours), median(theirs)), least, most)
    }

    /// A system's medians, and the measurements of each round.
    pub(crate) fn system_json(&self, system: System) -> Value {
        let all = |row: &Row<F>| self.all(system, row.of);
        let medians: BTreeMap<_, _> =
            F::ROWS.iter().map(|row| (row.key, rounded(median(all(row))))).collect();
        let each = |row: &Row<F>| all(row).into_iter().map(rounded).collect::<Vec<_>>();
        let rounds: BTreeMap<_, _> = F::ROWS.iter().map(|row| (row.key, each(row))).collect();
        let mut object = json!(medians);
        object["rounds"] = json!(rounds);
        object["others_percent"] = json!(rounded(self.others(system)));
        object
    }

    /// How many times better Longshore's medians are.
    pub(crate) fn times_better(&self) -> Value {
        let ratio = |row: &Row<F>| (row.key, rounded(self.ratio(row).0));
        json!(F::ROWS.iter().map(ratio).collect::<BTreeMap<_, _>>())
    }

    /// A table of medians, with the `title` of the work.
    pub(crate) fn table(&self, title: &str) -> String {
        let names = F::ROWS.iter().map(|row| row.name.chars().count());
        let width = names.max().unwrap_or(0) + 2;
        let mut table = format!(
            "{title}, medians of {} rounds\n{:<width$}{:>14}{:>14}{:>14}  each round\n",
            self.count(),
            "",
            format!("netidx {NETIDX_VERSION}"),
            "longshore",
            "times better",
        );
        for row in F::ROWS {
            let name = row.name;
            let of_system = |system| grouped(median(self.all(system, row.of)));
            let (ratio, least, most) = self.ratio(row);
            let (theirs, ours) = (of_system(System::Netidx), of_system(System::Longshore));
            // Writing to a string cannot fail.
            let _ = writeln!(
                table,
                "{name:<width$}{theirs:>14}{ours:>14}{ratio:>14.2}  {least:.2}–{most:.2}"
            );
        }
        let (theirs, ours) = (self.others(System::Netidx), self.others(System::Longshore));
        if theirs.max(ours) > QUIET_PERCENT {
            let _ = writeln!(
                table,
                "\nThe machine was not quiet: other processes used {theirs:.0} % of its \
                 processor time during netidx's rounds,\nand {ours:.0} % during Longshore's. \
                 Speeds and their ratios are unreliable then."
            );
        }
        table
    }

    fn others(&self, system: System) -> f64 {
        median(self.all(system, F::others_percent))
    }
}
