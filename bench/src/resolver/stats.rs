//! The measurements, and how the systems compare.

use std::fmt;

use serde_json::{Value, json};

use super::options::Options;
use super::work::{NetidxRegisters, PER_PARENT, RESOLVE_BATCH, Work};
use crate::comparison::{self, NETIDX_VERSION, Rounds, Row, write_line};
use crate::machine::cores;
use crate::numbers::grouped;
use crate::system::System;

/// The measurements of one round of one system.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Stats {
    pub(super) register_per_s: f64,
    /// Processor time of the resolver and its client, per path.
    pub(super) register_cpu_us: f64,
    pub(super) resolve_per_s: f64,
    pub(super) resolve_cpu_us: f64,
    pub(super) list_per_s: f64,
    pub(super) list_cpu_us: f64,
    /// Resident memory of the resolver per path, after all are registered.
    pub(super) bytes_per_path: f64,
    /// The same, after all are resolved and listed.
    pub(super) bytes_per_path_after_reads: f64,
    /// The percentage of the machine's processor time that other processes used during the work.
    pub(super) others_percent: f64,
}

impl comparison::RoundStats for Stats {
    const ROWS: &'static [Row<Stats>] = &[
        Row::speed("register_per_s", "registrations/s", |f| f.register_per_s),
        Row::cost("register_cpu_us", "  µs of CPU each", |f| f.register_cpu_us),
        Row::speed("resolve_per_s", "resolutions/s", |f| f.resolve_per_s),
        Row::cost("resolve_cpu_us", "  µs of CPU each", |f| f.resolve_cpu_us),
        Row::speed("list_per_s", "paths listed/s", |f| f.list_per_s),
        Row::cost("list_cpu_us", "  µs of CPU each", |f| f.list_cpu_us),
        Row::cost("bytes_per_path", "bytes per path", |f| f.bytes_per_path),
        Row::cost("bytes_per_path_after_reads", "  after the reads", |f| {
            f.bytes_per_path_after_reads
        }),
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
    pub(super) fn new(options: &Options) -> Comparison {
        Comparison { work: options.work.clone(), rounds: Rounds::new() }
    }

    pub(super) fn add(&mut self, system: System, stats: Stats) {
        self.rounds.add(system, stats);
    }

    /// A JSON object. Its ratios are how many times better Longshore is.
    pub(super) fn json(&self) -> Value {
        let mut netidx = self.rounds.system_json(System::Netidx);
        netidx["version"] = json!(NETIDX_VERSION);
        netidx["by_publisher"] = json!(self.work.netidx_registers == NetidxRegisters::ByPublisher);
        json!({
            "measure": "resolver",
            "cores": cores(),
            "paths": self.work.paths,
            "per_parent": PER_PARENT,
            "resolve_batch": RESOLVE_BATCH,
            "shuffled": self.work.shuffled,
            "rounds": self.rounds.count(),
            "netidx": netidx,
            "longshore": self.rounds.system_json(System::Longshore),
            "times_better": self.rounds.times_better(),
        })
    }

    /// A table of medians.
    pub(super) fn table(&self) -> String {
        self.rounds.table(&format!("{} paths", grouped(self.work.paths as f64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(speed: f64, bytes: f64) -> Stats {
        Stats {
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
    fn ratios_compare_medians() {
        let mut compared = Comparison::new(&Options::parse(&[]).unwrap());
        for (theirs, ours) in [(100.0, 200.0), (50.0, 300.0), (110.0, 250.0)] {
            compared.add(System::Netidx, stats(theirs, 400.0));
            compared.add(System::Longshore, stats(ours, 100.0));
        }
        let json = compared.json();
        assert_eq!(json["netidx"]["register_per_s"], 100.0);
        assert_eq!(json["longshore"]["register_per_s"], 250.0);
        assert_eq!(json["times_better"]["register_per_s"], 2.5);
        assert_eq!(json["times_better"]["bytes_per_path"], 4.0);
        assert_eq!(json["rounds"], 3);
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
