//! What was measured, and how the sides compare.

use std::fmt;

use serde_json::{Value, json};

use super::work::{PATHS, SINGLES_PER_S, Work};
use crate::comparison::{self, Rounds, Row, write_line};
use crate::machine::cores;
use crate::numbers::grouped;
use crate::side::Side;

/// What one round of one side has come to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Figures {
    pub(super) updates_per_s: f64,
    /// Processor time of each side for one update.
    pub(super) publisher_cpu_ns: f64,
    pub(super) subscriber_cpu_ns: f64,
    /// From the moment that a single update should be made until its subscriber's program has it.
    pub(super) latency_p50_us: f64,
    pub(super) latency_p99_us: f64,
    /// How much of the machine's processor time others had while the updates went through.
    pub(super) others_percent: f64,
}

impl comparison::Figures for Figures {
    const ROWS: &'static [Row<Figures>] = &[
        Row::speed("updates_per_s", "updates/s", |f| f.updates_per_s),
        Row::cost("publisher_cpu_ns", "  ns of CPU, publisher", |f| f.publisher_cpu_ns),
        Row::cost("subscriber_cpu_ns", "  ns of CPU, subscriber", |f| f.subscriber_cpu_ns),
        Row::cost("latency_p50_us", "one update, µs, p50", |f| f.latency_p50_us),
        Row::cost("latency_p99_us", "  p99", |f| f.latency_p99_us),
    ];

    fn others_percent(&self) -> f64 {
        self.others_percent
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_line(self, f)
    }
}

/// All rounds of both sides.
pub(super) struct Comparison {
    work: Work,
    rounds: Rounds<Figures>,
}

impl Comparison {
    pub(super) fn new(work: &Work) -> Comparison {
        Comparison { work: work.clone(), rounds: Rounds::new() }
    }

    pub(super) fn add(&mut self, side: Side, figures: Figures) {
        self.rounds.add(side, figures);
    }

    /// One object; the ratios say how many times better Longshore is.
    pub(super) fn json(&self) -> Value {
        let side = |side, commit: usize| {
            let mut object = self.rounds.side_json(side);
            object["updates_per_commit"] = json!(commit);
            object
        };
        let mut netidx = side(Side::Netidx, self.work.commits.netidx);
        netidx["version"] = json!("0.32.0");
        json!({
            "measure": "values",
            "cores": cores(),
            "paths": PATHS,
            "size": self.work.size,
            "updates": self.work.updates,
            "offered_per_s": SINGLES_PER_S,
            "rounds": self.rounds.count(),
            "netidx": netidx,
            "longshore": side(Side::Longshore, self.work.commits.longshore),
            "times_better": self.rounds.times_better(),
        })
    }

    /// A table of medians for people.
    pub(super) fn table(&self) -> String {
        let (updates, size) = (grouped(self.work.updates as f64), self.work.size);
        self.rounds.table(&format!("{updates} updates of {size} bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::asked::Asked;

    fn figures(speed: f64, latency: f64) -> Figures {
        Figures {
            updates_per_s: speed,
            publisher_cpu_ns: 1e9 / speed,
            subscriber_cpu_ns: 1e9 / speed,
            latency_p50_us: latency,
            latency_p99_us: latency,
            others_percent: 0.0,
        }
    }

    #[test]
    fn ratios_are_of_medians_and_say_how_many_times_better_longshore_is() {
        let mut compared = Comparison::new(&Asked::parse(&[]).unwrap().works[0]);
        for (theirs, ours) in [(100.0, 200.0), (50.0, 300.0), (110.0, 250.0)] {
            compared.add(Side::Netidx, figures(theirs, 400.0));
            compared.add(Side::Longshore, figures(ours, 100.0));
        }
        let json = compared.json();
        assert_eq!(json["netidx"]["updates_per_s"], 100.0);
        assert_eq!(json["times_better"]["updates_per_s"], 2.5);
        assert_eq!(json["times_better"]["latency_p50_us"], 4.0);
        assert_eq!(
            compared.rounds.ratio(&<Figures as comparison::Figures>::ROWS[0]),
            (2.5, 2.0, 6.0)
        );
        assert!(!compared.table().contains("not quiet"));
        for _ in 0..4 {
            compared.add(Side::Netidx, Figures { others_percent: 60.0, ..figures(1.0, 1.0) });
        }
        assert!(compared.table().contains("others had 60 %"));
    }
}
