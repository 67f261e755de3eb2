//! What was measured, and how the sides compare.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use serde_json::{Value, json};

use super::asked::Asked;
use super::work::{NetidxRegisters, PER_PARENT, RESOLVE_BATCH, Work};
use crate::machine::{QUIET_PERCENT, cores};
use crate::numbers::{grouped, median, rounded};
use crate::side::Side;

/// What one round of one side has come to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Figures {
    pub(super) register_per_s: f64,
    /// Processor time of the resolver and of who asks it, for one path.
    pub(super) register_cpu_us: f64,
    pub(super) resolve_per_s: f64,
    pub(super) resolve_cpu_us: f64,
    pub(super) list_per_s: f64,
    pub(super) list_cpu_us: f64,
    /// Resident memory of the resolver's process, once all is registered.
    pub(super) bytes_per_path: f64,
    /// The same, once all was resolved and listed.
    pub(super) bytes_per_path_after_reads: f64,
    /// How much of the machine's processor time others had while the work was done.
    pub(super) others_percent: f64,
}

/// One of the figures.
struct Row {
    key: &'static str,
    name: &'static str,
    more_is_better: bool,
    of: fn(&Figures) -> f64,
}

impl Row {
    const fn new(key: &'static str, name: &'static str, of: fn(&Figures) -> f64) -> Row {
        Row { key, name, more_is_better: false, of }
    }

    const fn speed(key: &'static str, name: &'static str, of: fn(&Figures) -> f64) -> Row {
        Row { key, name, more_is_better: true, of }
    }
}

const ROWS: [Row; 8] = [
    Row::speed("register_per_s", "registrations/s", |f| f.register_per_s),
    Row::new("register_cpu_us", "  µs of CPU each", |f| f.register_cpu_us),
    Row::speed("resolve_per_s", "resolutions/s", |f| f.resolve_per_s),
    Row::new("resolve_cpu_us", "  µs of CPU each", |f| f.resolve_cpu_us),
    Row::speed("list_per_s", "paths listed/s", |f| f.list_per_s),
    Row::new("list_cpu_us", "  µs of CPU each", |f| f.list_cpu_us),
    Row::new("bytes_per_path", "bytes per path", |f| f.bytes_per_path),
    Row::new("bytes_per_path_after_reads", "  after the reads", |f| f.bytes_per_path_after_reads),
];

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figure = |row: &Row| format!("{} {}", grouped((row.of)(self)), row.name.trim());
        f.write_str(&ROWS.iter().map(figure).collect::<Vec<_>>().join(", "))?;
        write!(f, ", others had {:.0} % of the processors", self.others_percent)
    }
}

/// All rounds of both sides.
pub(super) struct Comparison {
    work: Work,
    rounds: BTreeMap<Side, Vec<Figures>>,
}

impl Comparison {
    pub(super) fn new(asked: &Asked) -> Comparison {
        Comparison { work: asked.work.clone(), rounds: BTreeMap::new() }
    }

    pub(super) fn add(&mut self, side: Side, figures: Figures) {
        self.rounds.entry(side).or_default().push(figures);
    }

    fn all(&self, side: Side, of: fn(&Figures) -> f64) -> Vec<f64> {
        self.rounds.get(&side).into_iter().flatten().map(of).collect()
    }

    /// How many times better Longshore's median is, and how it ranges when each round is compared with its neighbour.
    fn ratio(&self, row: &Row) -> (f64, f64, f64) {
        let (ours, theirs) = (self.all(Side::Longshore, row.of), self.all(Side::Netidx, row.of));
        let better = |ours: f64, theirs: f64| match row.more_is_better {
            true => ours / theirs,
            false => theirs / ours,
        };
        let pairs: Vec<f64> = ours.iter().zip(&theirs).map(|(o, t)| better(*o, *t)).collect();
        let least = pairs.iter().copied().fold(f64::INFINITY, f64::min);
        let most = pairs.iter().copied().fold(0.0, f64::max);
        (better(median(ours), median(theirs)), least, most)
    }

    /// One object; the ratios say how many times better Longshore is.
    pub(super) fn json(&self) -> Value {
        let side = |side| {
            let medians = ROWS.map(|row| (row.key, rounded(median(self.all(side, row.of)))));
            let rounds = ROWS.map(|row| {
                (row.key, self.all(side, row.of).into_iter().map(rounded).collect::<Vec<_>>())
            });
            let mut object = json!(BTreeMap::from(medians));
            object["rounds"] = json!(BTreeMap::from(rounds));
            object["others_percent"] = json!(rounded(median(self.all(side, |f| f.others_percent))));
            object
        };
        let ratios = ROWS.map(|row| (row.key, rounded(self.ratio(&row).0)));
        let mut netidx = side(Side::Netidx);
        netidx["version"] = json!("0.32.0");
        netidx["by_publisher"] = json!(self.work.netidx_registers == NetidxRegisters::ByPublisher);
        json!({
            "measure": "resolver",
            "cores": cores(),
            "paths": self.work.paths,
            "per_parent": PER_PARENT,
            "resolve_batch": RESOLVE_BATCH,
            "shuffled": self.work.shuffled,
            "rounds": self.rounds.values().map(Vec::len).min().unwrap_or(0),
            "netidx": netidx,
            "longshore": side(Side::Longshore),
            "times_better": BTreeMap::from(ratios),
        })
    }

    /// A table of medians for people.
    pub(super) fn table(&self) -> String {
        let rounds = self.rounds.values().map(Vec::len).min().unwrap_or(0);
        let mut table = format!(
            "{} paths, medians of {rounds} rounds\n{:<18}{:>14}{:>14}{:>14}  each round\n",
            grouped(self.work.paths as f64),
            "",
            "netidx 0.32.0",
            "longshore",
            "times better",
        );
        for row in ROWS {
            let name = row.name;
            let of_side = |side| grouped(median(self.all(side, row.of)));
            let (ratio, least, most) = self.ratio(&row);
            let (theirs, ours) = (of_side(Side::Netidx), of_side(Side::Longshore));
            // Writing into a string does not fail.
            let _ = writeln!(
                table,
                "{name:<18}{theirs:>14}{ours:>14}{ratio:>14.2}  {least:.2}–{most:.2}"
            );
        }
        let others = |side| median(self.all(side, |f| f.others_percent));
        let (theirs, ours) = (others(Side::Netidx), others(Side::Longshore));
        if theirs.max(ours) > QUIET_PERCENT {
            let _ = writeln!(
                table,
                "\nThe machine was not quiet: others had {theirs:.0} % of its processor time beside netidx, {ours:.0} % beside \
                 Longshore.\nSpeeds, and their ratios, are of little worth then; the CPU time and the bytes are of more."
            );
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(speed: f64, bytes: f64) -> Figures {
        Figures {
            register_per_s: speed,
            register_cpu_us: 1e6 / speed,
            resolve_per_s: speed,
            resolve_cpu_us: 1e6 / speed,
            list_per_s: speed,
            list_cpu_us: 1e6 / speed,
            bytes_per_path: bytes,
            bytes_per_path_after_reads: bytes,
            others_percent: 0.0,
        }
    }

    #[test]
    fn ratios_are_of_medians_and_say_how_many_times_better_longshore_is() {
        let mut comparison = Comparison::new(&Asked::parse(&[]).unwrap());
        for (theirs, ours) in [(100.0, 200.0), (50.0, 300.0), (110.0, 250.0)] {
            comparison.add(Side::Netidx, figures(theirs, 400.0));
            comparison.add(Side::Longshore, figures(ours, 100.0));
        }
        let json = comparison.json();
        assert_eq!(json["netidx"]["register_per_s"], 100.0);
        assert_eq!(json["longshore"]["register_per_s"], 250.0);
        assert_eq!(json["times_better"]["register_per_s"], 2.5);
        assert_eq!(json["times_better"]["bytes_per_path"], 4.0);
        assert_eq!(json["rounds"], 3);
        assert_eq!(comparison.ratio(&ROWS[0]), (2.5, 2.0, 6.0));
        assert!(!comparison.table().contains("not quiet"));
        for _ in 0..4 {
            comparison.add(Side::Netidx, Figures { others_percent: 60.0, ..figures(1.0, 1.0) });
        }
        assert!(comparison.table().contains("others had 60 %"));
    }
}
