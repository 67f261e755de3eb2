//! Rounds of both sides, and how they compare: for a script, and as a table for people.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use serde_json::{Value, json};

use crate::machine::QUIET_PERCENT;
use crate::numbers::{grouped, median, rounded};
use crate::side::Side;

/// What one round of one side has come to.
pub(crate) trait Figures: Copy + 'static {
    /// Its figures, in the order of the table.
    const ROWS: &'static [Row<Self>];

    /// How much of the machine's processor time others had meanwhile.
    fn others_percent(&self) -> f64;
}

/// One of the figures.
pub(crate) struct Row<F> {
    key: &'static str,
    name: &'static str,
    more_is_better: bool,
    of: fn(&F) -> f64,
}

impl<F> Row<F> {
    /// The less the better.
    pub(crate) const fn cost(key: &'static str, name: &'static str, of: fn(&F) -> f64) -> Row<F> {
        Row { key, name, more_is_better: false, of }
    }

    /// The more the better.
    pub(crate) const fn speed(key: &'static str, name: &'static str, of: fn(&F) -> f64) -> Row<F> {
        Row { key, name, more_is_better: true, of }
    }
}

/// One round, as a line.
pub(crate) fn write_line<F: Figures>(figures: &F, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let figure = |row: &Row<F>| format!("{} {}", grouped((row.of)(figures)), row.name.trim());
    f.write_str(&F::ROWS.iter().map(figure).collect::<Vec<_>>().join(", "))?;
    write!(f, ", others had {:.0} % of the processors", figures.others_percent())
}

/// All rounds of both sides.
pub(crate) struct Rounds<F>(BTreeMap<Side, Vec<F>>);

impl<F: Figures> Rounds<F> {
    pub(crate) fn new() -> Rounds<F> {
        Rounds(BTreeMap::new())
    }

    pub(crate) fn add(&mut self, side: Side, figures: F) {
        self.0.entry(side).or_default().push(figures);
    }

    /// Rounds that both sides have done.
    pub(crate) fn count(&self) -> usize {
        self.0.values().map(Vec::len).min().unwrap_or(0)
    }

    fn all(&self, side: Side, of: fn(&F) -> f64) -> Vec<f64> {
        self.0.get(&side).into_iter().flatten().map(of).collect()
    }

    /// How many times better Longshore's median is, and how it ranges when each round is compared
    /// with its neighbour.
    pub(crate) fn ratio(&self, row: &Row<F>) -> (f64, f64, f64) {
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

    /// A side's medians, and its rounds one by one.
    pub(crate) fn side_json(&self, side: Side) -> Value {
        let all = |row: &Row<F>| self.all(side, row.of);
        let medians: BTreeMap<_, _> =
            F::ROWS.iter().map(|row| (row.key, rounded(median(all(row))))).collect();
        let each = |row: &Row<F>| all(row).into_iter().map(rounded).collect::<Vec<_>>();
        let rounds: BTreeMap<_, _> = F::ROWS.iter().map(|row| (row.key, each(row))).collect();
        let mut object = json!(medians);
        object["rounds"] = json!(rounds);
        object["others_percent"] = json!(rounded(self.others(side)));
        object
    }

    /// How many times better Longshore's medians are.
    pub(crate) fn times_better(&self) -> Value {
        let ratio = |row: &Row<F>| (row.key, rounded(self.ratio(row).0));
        json!(F::ROWS.iter().map(ratio).collect::<BTreeMap<_, _>>())
    }

    /// A table of medians for people, `of` saying what was done.
    pub(crate) fn table(&self, of: &str) -> String {
        let names = F::ROWS.iter().map(|row| row.name.chars().count());
        let width = names.max().unwrap_or(0) + 2;
        let mut table = format!(
            "{of}, medians of {} rounds\n{:<width$}{:>14}{:>14}{:>14}  each round\n",
            self.count(),
            "",
            "netidx 0.32.0",
            "longshore",
            "times better",
        );
        for row in F::ROWS {
            let name = row.name;
            let of_side = |side| grouped(median(self.all(side, row.of)));
            let (ratio, least, most) = self.ratio(row);
            let (theirs, ours) = (of_side(Side::Netidx), of_side(Side::Longshore));
            // Writing into a string does not fail.
            let _ = writeln!(
                table,
                "{name:<width$}{theirs:>14}{ours:>14}{ratio:>14.2}  {least:.2}–{most:.2}"
            );
        }
        let (theirs, ours) = (self.others(Side::Netidx), self.others(Side::Longshore));
        if theirs.max(ours) > QUIET_PERCENT {
            let _ = writeln!(
                table,
                "\nThe machine was not quiet: others had {theirs:.0} % of its processor time beside netidx, {ours:.0} % beside \
                 Longshore.\nSpeeds, and their ratios, are of little worth then; what is not counted in seconds is of more."
            );
        }
        table
    }

    fn others(&self, side: Side) -> f64 {
        median(self.all(side, F::others_percent))
    }
}
