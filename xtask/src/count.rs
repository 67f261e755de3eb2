//! `cargo xtask count`: the instructions, allocations and system calls per job, value and path.
//!
//! Valgrind counts them, so the speed and load of the machine hardly matter: two runs differ by
//! about a percent. Which messages one read finds depends on the scheduler, though, so a workload
//! that is off is counted twice more, and the medians are compared. Each workload of
//! `tests/examples/count.rs` runs at two sizes; the difference excludes the cost of starting.
//! `tests/count.toml` contains the expected costs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context as _, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::cargo::cargo;
use crate::mutants::root;
use crate::test::target;

const WORKLOADS: [&str; 7] =
    ["jobs", "keyed_jobs", "one_kind", "twenty_kinds", "values", "registrations", "resolutions"];
/// Both sizes are multiples of the workloads' batch sizes.
const SIZES: [u64; 2] = [5_000, 15_000];
/// Of cheap operations more are counted: a timer more in a whole run was 3 % of 10,000.
const CHEAP_SIZES: [u64; 2] = [6_400, 64_000];
/// How far a cost may be from the expected one.
const TOLERANCE: f64 = 0.03;
/// How many times the instructions of a job whose worker has one kind for all queues a job may take
/// whose worker has a kind for each of twenty queues.
const KINDS_RATIO_MAX: f64 = 1.03;
/// Differences of system calls and instructions below this are noise, such as one more timer in a
/// whole run: without a change, one run of a workload has 0.08 system calls a job, another 0.11.
const NOISE: f64 = 0.04;
/// The same for allocations: how many requests one read finds depends on the scheduler, and a read
/// allocates.
const ALLOCATION_NOISE: f64 = 0.05;

/// The cost of one job, value or path.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cost {
    instructions: f64,
    allocations: f64,
    /// Without `clock_gettime`, which makes a system call only under valgrind.
    system_calls: f64,
}

/// The expected costs, and the environment that they were counted in.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    /// The compiler and the processor's features, which affect the costs.
    counted_with: String,
    workload: BTreeMap<String, Cost>,
}

pub(crate) fn count(bless: bool) -> anyhow::Result<bool> {
    let valgrind = Command::new("valgrind").arg("--version").output();
    if !valgrind.is_ok_and(|output| output.status.success()) {
        println!("NOT COUNTED: valgrind is not installed");
        return Ok(!bless);
    }
    let program = build()?;
    let file = root().join("tests/count.toml");
    let text = fs::read_to_string(&file);
    let text = text.with_context(|| format!("cannot read {}", file.display()))?;
    let expected: Expected = toml::from_str(&text)?;
    let counted_with = counted_with()?;
    let comparable = expected.counted_with == counted_with;
    let mut workload = BTreeMap::new();
    for name in WORKLOADS {
        let known = expected.workload.get(name);
        let is_near = |cost: Cost| !comparable || known.is_some_and(|known| cost.is_near(*known));
        let first = cost(&program, name)?;
        let counted = if is_near(first) && !bless {
            first
        } else {
            median([first, cost(&program, name)?, cost(&program, name)?])
        };
        workload.insert(name.to_owned(), counted);
    }
    // One count may be off by more than the bound allows.
    if kinds_ratio(&workload)? > KINDS_RATIO_MAX {
        for name in ["one_kind", "twenty_kinds"] {
            let costs = [cost(&program, name)?, cost(&program, name)?, cost(&program, name)?];
            workload.insert(name.to_owned(), median(costs));
        }
    }
    let ratio = kinds_ratio(&workload)?;
    println!(
        "a job of one of twenty kinds takes {ratio:.3} times the instructions of an only kind's"
    );
    ensure!(ratio <= KINDS_RATIO_MAX, "that is over {KINDS_RATIO_MAX}: more kinds cost too much");
    let counted = Expected { counted_with, workload };
    if bless {
        let text = format!(
            "# Expected costs per job, value and path, written by `cargo xtask count --bless`.\n\n\
             {}",
            toml::to_string(&counted)?
        );
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let mut same = true;
    for (name, cost) in &counted.workload {
        let expected_cost = expected.workload.get(name);
        let expected_cost =
            expected_cost.with_context(|| format!("{} has no '{name}'", file.display()))?;
        same &= compare(name, *cost, *expected_cost);
    }
    if !comparable {
        println!(
            "not compared: counted with {}, but expected costs are of {}",
            counted.counted_with, expected.counted_with
        );
    } else if !same && !bless {
        println!(
            "costs differ by more than {} %: find the reason; if it is intended, run \
             `cargo xtask count --bless`",
            TOLERANCE * 100.0
        );
    }
    Ok(same || bless || !comparable)
}

/// The instructions of a job of one of twenty kinds, in proportion to those of an only kind.
fn kinds_ratio(workload: &BTreeMap<String, Cost>) -> anyhow::Result<f64> {
    let instructions = |name: &str| {
        let cost = workload.get(name).with_context(|| format!("no costs of '{name}'"))?;
        anyhow::Ok(cost.instructions)
    };
    Ok(instructions("twenty_kinds")? / instructions("one_kind")?)
}

fn build() -> anyhow::Result<PathBuf> {
    // With `--workspace`: the package alone would be built again with fewer features.
    let arguments = ["build", "--quiet", "--locked", "--workspace", "--example", "count"];
    let status = cargo().args(arguments).status()?;
    ensure!(status.success(), "the workloads do not compile");
    Ok(target()?.join("debug/examples/count"))
}

/// The cost of one more job, value or path.
fn cost(program: &Path, workload: &str) -> anyhow::Result<Cost> {
    let [few, many] = if workload == "resolutions" { CHEAP_SIZES } else { SIZES };
    let (few_counted, many_counted) = (run(program, workload, few)?, run(program, workload, many)?);
    let each = |of: fn(&Cost) -> f64| (of(&many_counted) - of(&few_counted)) / (many - few) as f64;
    Ok(Cost {
        instructions: each(|cost| cost.instructions),
        allocations: each(|cost| cost.allocations),
        system_calls: each(|cost| cost.system_calls),
    })
}

/// The cost of a whole run.
fn run(program: &Path, workload: &str, number: u64) -> anyhow::Result<Cost> {
    let valgrind = |options: &[&str]| {
        let mut command = Command::new("valgrind");
        command.args(options).arg(program).arg(workload).arg(number.to_string());
        let output = command.output().context("cannot run valgrind")?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{workload} {number} failed under valgrind:\n{stderr}");
        Ok(stderr)
    };
    // Both at once: valgrind uses one core.
    let (calls, blocks) = thread::scope(|scope| {
        let blocks = scope.spawn(|| valgrind(&["--tool=dhat", "--dhat-out-file=/dev/null"]));
        let calls = ["--tool=callgrind", "--callgrind-out-file=/dev/null", "--trace-syscalls=yes"];
        (valgrind(&calls), blocks.join().expect("valgrind() does not panic"))
    });
    let (calls, blocks) = (calls?, blocks?);
    Ok(Cost {
        instructions: instructions(&calls).context("callgrind printed no count")?,
        allocations: allocations(&blocks).context("dhat printed no count")?,
        system_calls: system_calls(&calls),
    })
}

/// The number in callgrind's line `Collected : 106278610`.
fn instructions(output: &str) -> Option<f64> {
    output.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok())
}

/// The blocks in dhat's line `Total:     1,234 bytes in 56 blocks`.
fn allocations(output: &str) -> Option<f64> {
    let total = output.lines().find_map(|line| line.split_once("Total: "))?.1;
    let blocks = total.split_once(" bytes in ")?.1.strip_suffix(" blocks")?;
    blocks.replace(',', "").parse().ok()
}

fn system_calls(output: &str) -> f64 {
    // A system call that waits has a second line when it returns.
    let is_call = |line: &&str| line.starts_with("SYSCALL[") && !line.contains("... [async]");
    let is_counted = |line: &&str| !line.contains("sys_clock_gettime");
    output.lines().filter(is_call).filter(is_counted).count() as f64
}

impl Cost {
    fn rows(self, expected: Self) -> [(&'static str, f64, f64, f64); 3] {
        [
            ("instructions", self.instructions, expected.instructions, NOISE),
            ("allocations", self.allocations, expected.allocations, ALLOCATION_NOISE),
            ("system calls", self.system_calls, expected.system_calls, NOISE),
        ]
    }

    fn is_near(self, expected: Self) -> bool {
        self.rows(expected).into_iter().all(is_near)
    }
}

fn is_near((_, counted, expected, noise): (&str, f64, f64, f64)) -> bool {
    (counted - expected).abs() <= (expected.abs() * TOLERANCE).max(noise)
}

/// The median of each count by itself.
fn median(costs: [Cost; 3]) -> Cost {
    let middle = |of: fn(&Cost) -> f64| {
        let mut counts = costs.each_ref().map(of);
        counts.sort_unstable_by(f64::total_cmp);
        counts[1]
    };
    Cost {
        instructions: middle(|cost| cost.instructions),
        allocations: middle(|cost| cost.allocations),
        system_calls: middle(|cost| cost.system_calls),
    }
}

/// Prints the costs of a workload; true if all are as expected.
fn compare(name: &str, cost: Cost, expected: Cost) -> bool {
    for row in cost.rows(expected) {
        let (what, counted, expected, _) = row;
        let flag = if is_near(row) { "" } else { "  OFF" };
        println!("{name:<13} {what:<14} {counted:>12.3}   expected {expected:>12.3}{flag}");
    }
    cost.is_near(expected)
}

fn counted_with() -> anyhow::Result<String> {
    let output = Command::new("rustc").arg("--version").output().context("cannot run rustc")?;
    let compiler = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = cpu.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let has = |flag: &&str| flags.split_whitespace().any(|has| has == *flag);
    let features: Vec<&str> = ["sse4_2", "pclmulqdq", "avx2"].into_iter().filter(has).collect();
    if compiler.is_empty() {
        bail!("rustc --version printed nothing");
    }
    Ok(format!("{compiler}, {} {}", std::env::consts::ARCH, features.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valgrind_output_is_parsed() {
        let calls = "==1== Events    : Ir\n==1== Collected : 106278610\n\
                     SYSCALL[1,1](228) sys_clock_gettime( 1, 0x1 ) --> [pre-success] Success(0x0)\n\
                     SYSCALL[1,1](44) sys_sendto ( 9 ) --> [async] ... \n\
                     SYSCALL[1,1](44) ... [async] --> Success(0x6599) \n";
        assert_eq!(instructions(calls), Some(106_278_610.0));
        assert_eq!(system_calls(calls), 1.0);
        let blocks = "==1== Total:     167,751,013 bytes in 12,345 blocks\n";
        assert_eq!(allocations(blocks), Some(12_345.0));
        assert_eq!((instructions(""), allocations("")), (None, None));
    }

    #[test]
    fn one_odd_run_of_three_does_not_count() {
        let cost = Cost { instructions: 20_000.0, allocations: 2.0, system_calls: 0.1 };
        let odd = Cost { instructions: 2.0, allocations: 90.0, ..cost };
        assert_eq!(median([odd, cost, cost]), cost);
        assert_eq!(median([cost, Cost { system_calls: 7.0, ..cost }, odd]), cost);
    }

    #[test]
    fn expected_costs_have_no_costly_kinds() {
        let text = include_str!("../../tests/count.toml");
        let expected: Expected = toml::from_str(text).unwrap();
        let ratio = kinds_ratio(&expected.workload).unwrap();
        assert!(ratio <= KINDS_RATIO_MAX, "{ratio}");
    }

    #[test]
    fn costs_beyond_three_percent_are_rejected() {
        let cost = Cost { instructions: 20_000.0, allocations: 2.0, system_calls: 0.1 };
        assert!(compare("jobs", Cost { instructions: 20_500.0, system_calls: 0.11, ..cost }, cost));
        for off in [
            Cost { instructions: 20_700.0, ..cost },
            Cost { instructions: 19_300.0, ..cost },
            Cost { allocations: 2.1, ..cost },
            Cost { system_calls: 0.15, ..cost },
        ] {
            assert!(!compare("jobs", off, cost));
        }
    }
}
