//! What was measured, and how the sides compare.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use serde_json::{Value, json};

use super::asked::Asked;
use super::work::{NetidxRegisters, PER_PARENT, RESOLVE_BATCH, Side, Work};

/// What one round of one side has come to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Figures {
    pub(super) register_per_s: f64,
    pub(super) resolve_per_s: f64,
    pub(super) list_per_s: f64,
    /// Resident memory of the resolver's process, once all is registered.
    pub(super) bytes_per_path: f64,
    /// The same, once all was resolved and listed.
    pub(super) bytes_per_path_after_reads: f64,
}

/// A figure: its key, its name for people, and whether more is better.
type Row = (&'static str, &'static str, bool, fn(&Figures) -> f64);

const ROWS: [Row; 5] = [
    ("register_per_s", "registrations/s", true, |f| f.register_per_s),
    ("resolve_per_s", "resolutions/s", true, |f| f.resolve_per_s),
    ("list_per_s", "lists/s", true, |f| f.list_per_s),
    ("bytes_per_path", "bytes per path", false, |f| f.bytes_per_path),
    ("bytes_per_path_after_reads", "  after the reads", false, |f| f.bytes_per_path_after_reads),
];

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figure = |(_, name, _, of): &Row| format!("{} {}", grouped(of(self)), name.trim());
        f.write_str(&ROWS.iter().map(figure).collect::<Vec<_>>().join(", "))
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
    fn ratio(&self, (.., more_is_better, of): Row) -> (f64, f64, f64) {
        let (ours, theirs) = (self.all(Side::Longshore, of), self.all(Side::Netidx, of));
        let better = |ours: f64, theirs: f64| match more_is_better {
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
            let medians = ROWS.map(|(key, .., of)| (key, rounded(median(self.all(side, of)))));
            let rounds = ROWS.map(|(key, .., of)| {
                (key, self.all(side, of).into_iter().map(rounded).collect::<Vec<_>>())
            });
            let mut object = json!(BTreeMap::from(medians));
            object["rounds"] = json!(BTreeMap::from(rounds));
            object
        };
        let ratios = ROWS.map(|row| (row.0, rounded(self.ratio(row).0)));
        let mut netidx = side(Side::Netidx);
        netidx["version"] = json!("0.32.0");
        netidx["readers"] = json!(self.work.netidx_readers);
        netidx["batch"] = json!(self.work.netidx_batch);
        netidx["publisher"] = json!(self.work.netidx_registers == NetidxRegisters::ByPublisher);
        let mut longshore = side(Side::Longshore);
        longshore["readers"] = json!(self.work.longshore_readers);
        json!({
            "measure": "resolver",
            "cores": std::thread::available_parallelism().map_or(1, usize::from),
            "paths": self.work.paths,
            "per_parent": PER_PARENT,
            "resolve_batch": RESOLVE_BATCH,
            "shuffled": self.work.shuffled,
            "rounds": self.rounds.values().map(Vec::len).min().unwrap_or(0),
            "netidx": netidx,
            "longshore": longshore,
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
            let (_, name, _, of) = row;
            let of_side = |side| grouped(median(self.all(side, of)));
            let (ratio, least, most) = self.ratio(row);
            let (theirs, ours) = (of_side(Side::Netidx), of_side(Side::Longshore));
            // Writing into a string does not fail.
            let _ = writeln!(
                table,
                "{name:<18}{theirs:>14}{ours:>14}{ratio:>14.2}  {least:.2}–{most:.2}"
            );
        }
        table
    }
}

/// The middle one, or between the two in the middle; 0 of none.
fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    let half = figures.len() / 2;
    match (figures.get(half), figures.len() % 2) {
        (None, _) => 0.0,
        (Some(middle), 1) => *middle,
        (Some(above), _) => (figures[half - 1] + above) / 2.0,
    }
}

/// Two digits after the point are as many as mean anything.
fn rounded(figure: f64) -> f64 {
    (figure * 100.0).round() / 100.0
}

/// A whole number with its thousands apart.
fn grouped(figure: f64) -> String {
    let digits = format!("{figure:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(speed: f64, bytes: f64) -> Figures {
        Figures {
            register_per_s: speed,
            resolve_per_s: speed,
            list_per_s: speed,
            bytes_per_path: bytes,
            bytes_per_path_after_reads: bytes,
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
        assert_eq!(comparison.ratio(ROWS[0]), (2.5, 2.0, 6.0));
    }

    #[test]
    fn medians_and_thousands() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(Vec::new()), 0.0);
        assert_eq!(grouped(1_234_567.4), "1,234,567");
        assert_eq!(grouped(999.0), "999");
        assert_eq!(grouped(1_000.0), "1,000");
    }
}
