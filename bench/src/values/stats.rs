//! The measurements, and how the systems compare.

use std::fmt;

use serde_json::{Value, json};

use super::work::{PATHS, SINGLES_PER_S, Work};
use crate::comparison::{self, NETIDX_VERSION, Rounds, Row, write_line};
use crate::machine::cores;
use crate::numbers::grouped;
use crate::system::System;

/// The measurements of one round of one system.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Stats {
    pub(super) updates_per_s: f64,
    /// Processor time of each process per update.
    pub(super) publisher_cpu_ns: f64,
    pub(super) subscriber_cpu_ns: f64,
    /// From the time that a single update is due until the subscribing program receives it.
    pub(super) latency_p50_us: f64,
    pub(super) latency_p99_us: f64,
    /// The percentage of the machine's processor time that other processes used during the updates.
    pub(super) others_percent: f64,
}

impl comparison::RoundStats for Stats {
    const ROWS: &'static [Row<Stats>] = &[
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

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_line(self, f)
    }
}

/// All rounds of both systems.
pub(super) struct Comparison {
    work: Work,
    rounds: Rounds<Stats>,
}

impl Comparison {
    pub(super) fn new(work: &Work) -> Comparison {
        Comparison { work: work.clone(), rounds: Rounds::new() }
    }

    pub(super) fn add(&mut self, system: System, stats: Stats) {
        self.rounds.add(system, stats);
    }

    /// A JSON object. Its ratios are how many times better Longshore is.
    pub(super) fn json(&self) -> Value {
        let to_json = |system, commit: usize| {
            let mut object = self.rounds.system_json(system);
            object["updates_per_commit"] = json!(commit);
            object
        };
        let mut netidx = to_json(System::Netidx, self.work.commits.netidx);
        netidx["version"] = json!(NETIDX_VERSION);
        json!({
            "measure": "values",
            "cores": cores(),
            "paths": PATHS,
            "size": self.work.size,
            "updates": self.work.updates,
            "offered_per_s": SINGLES_PER_S,
            "rounds": self.rounds.count(),
            "netidx": netidx,
            "longshore": to_json(System::Longshore, self.work.commits.longshore),
            "times_better": self.rounds.times_better(),
        })
    }

    /// A table of medians.
    pub(super) fn table(&self) -> String {
        let (updates, size) = (grouped(self.work.updates as f64), self.work.size);
        self.rounds.table(&format!("{updates} updates of {size} bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::options::Options;

    fn stats(speed: f64, latency: f64) -> Stats {
        Stats {
            updates_per_s: speed,
            publisher_cpu_ns: 1e9 / speed,
            subscriber_cpu_ns: 1e9 / speed,
            latency_p50_us: latency,
            latency_p99_us: latency,
            others_percent: 0.0,
        }
    }

    #[test]
    fn ratios_compare_medians() {
        let mut compared = Comparison::new(&Options::parse(&[]).unwrap().works[0]);
        for (theirs, ours) in [(100.0, 200.0), (50.0, 300.0), (110.0, 250.0)] {
            compared.add(System::Netidx, stats(theirs, 400.0));
            compared.add(System::Longshore, stats(ours, 100.0));
        }
        let json = compared.json();
        assert_eq!(json["netidx"]["updates_per_s"], 100.0);
        assert_eq!(json["times_better"]["updates_per_s"], 2.5);
        assert_eq!(json["times_better"]["latency_p50_us"], 4.0);
        assert_eq!(
            compared.rounds.ratio(&<Stats as comparison::RoundStats>::ROWS[0]),
            (2.5, 2.0, 6.0)
        );
        assert!(!compared.table().contains("not quiet"));
        for _ in 0..4 {
            compared.add(System::Netidx, Stats { others_percent: 60.0, ..stats(1.0, 1.0) });
        }
        assert!(compared.table().contains("processes used 60 %"));
    }
}
