//! `cargo xtask count`: the instructions, allocations and system calls per job, value and path.
//!
//! Valgrind counts them, so the speed and load of the machine hardly matter: two runs differ by
//! about a percent. Which messages one read finds depends on the scheduler, though, so a workload
//! that is off is counted twice more, and the medians are compared. Each workload of
//! `tests/examples/count.rs` marks what is counted, without start, warm-up and end.
//! `tests/count.toml` contains the expected costs.

use std::collections::{BTreeMap, HashSet};
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
/// Jobs, values or paths to warm up with, and to count: multiples of the workloads' batch sizes.
const NUMBERS: [u64; 2] = [2_000, 10_000];
/// Of cheap operations more are counted: a timer more in a whole run was 3 % of 10,000.
const CHEAP_NUMBERS: [u64; 2] = [6_400, 57_600];
/// Runs at a time. Valgrind uses one core.
const RUNS_AT_ONCE: usize = 2;
/// The functions that allocate, in libc.
const ALLOCATING: [&str; 6] =
    ["malloc", "calloc", "realloc", "posix_memalign", "aligned_alloc", "memalign"];
/// How far a cost may be from the expected one.
const TOLERANCE: f64 = 0.03;
/// How many times the instructions of a job whose worker has one kind for all queues a job may take
/// whose worker has a kind for each of twenty queues.
const KINDS_RATIO_MAX: f64 = 1.03;
/// A smaller difference of allocations is noise: how many messages one read finds depends on the
/// scheduler, and a read allocates.
const ALLOCATION_NOISE: f64 = 0.05;
/// System calls depend on it most, and a job takes a tenth of one: so many times the expected
/// number are accepted, and any smaller number.
const SYSTEM_CALLS_RATIO_MAX: f64 = 1.5;

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
    let first = costs(&program, &WORKLOADS)?;
    let is_off = |(name, cost): (&&'static str, Cost)| {
        let known = expected.workload.get(*name);
        let is_off = comparable && !known.is_some_and(|known| cost.is_near(*known));
        (bless || is_off).then_some(*name)
    };
    let off: Vec<_> = WORKLOADS.iter().zip(first.iter().copied()).filter_map(is_off).collect();
    let names = WORKLOADS.map(str::to_owned);
    let mut workload: BTreeMap<_, _> = names.into_iter().zip(first).collect();
    count_again(&program, &off, &mut workload)?;
    // One count may be off by more than the bound allows.
    if kinds_ratio(&workload)? > KINDS_RATIO_MAX {
        count_again(&program, &["one_kind", "twenty_kinds"], &mut workload)?;
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
            "costs differ by more than {} %, or there are over {SYSTEM_CALLS_RATIO_MAX} times the \
             system calls: find the reason; if it is intended, run `cargo xtask count --bless`",
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

/// The cost of one job, value or path of each of these workloads.
fn costs(program: &Path, workloads: &[&str]) -> anyhow::Result<Vec<Cost>> {
    let mut counted = Vec::new();
    for at_once in workloads.chunks(RUNS_AT_ONCE) {
        thread::scope(|scope| {
            let run = |workload| scope.spawn(move || cost(program, workload));
            let runs: Vec<_> = at_once.iter().copied().map(run).collect();
            for run in runs {
                counted.push(run.join().expect("cost() does not panic")?);
            }
            anyhow::Ok(())
        })?;
    }
    Ok(counted)
}

/// Counts these workloads twice more, and keeps the medians.
fn count_again(
    program: &Path,
    workloads: &[&str],
    counted: &mut BTreeMap<String, Cost>,
) -> anyhow::Result<()> {
    let again = costs(program, &[workloads, workloads].concat())?;
    let (second, third) = again.split_at(workloads.len());
    for ((name, second), third) in workloads.iter().zip(second).zip(third) {
        if let Some(cost) = counted.get_mut(*name) {
            *cost = median([*cost, *second, *third]);
        }
    }
    Ok(())
}

fn cost(program: &Path, workload: &str) -> anyhow::Result<Cost> {
    let [warm_up, number] = if workload == "resolutions" { CHEAP_NUMBERS } else { NUMBERS };
    let file = tempfile::NamedTempFile::new()?;
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--trace-syscalls=yes", "--combine-dumps=yes"]);
    command.arg(format!("--callgrind-out-file={}", file.path().display()));
    command.arg("--dump-before=count::mark").arg(program);
    command.args([workload, &warm_up.to_string(), &number.to_string()]);
    let output = command.output().context("cannot run valgrind")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{workload} failed under valgrind:\n{stderr}");
    let calls = Calls::parse(&fs::read_to_string(file.path())?);
    let calls = calls.context("callgrind wrote no part between two marks")?;
    let system_calls = system_calls(&stderr).context("the program printed no two marks")?;
    ensure!(calls.allocations > 0 && system_calls > 0, "{workload}: nothing was counted");
    let each = |total: u64| total as f64 / number as f64;
    Ok(Cost {
        instructions: each(calls.instructions),
        allocations: each(calls.allocations),
        system_calls: each(system_calls),
    })
}

/// What callgrind counted between the two marks.
#[derive(Debug, PartialEq)]
struct Calls {
    instructions: u64,
    allocations: u64,
}

impl Calls {
    /// Of callgrind's file: `part: 2` to `part: 3`. Calls are lines `calls=NUMBER …` below one
    /// with the called function, `cfn=(ID) NAME`. Only the first mention of a function has its
    /// name.
    fn parse(text: &str) -> Option<Calls> {
        let mut allocating = HashSet::new();
        let (mut part, mut called) = (0, "");
        let mut instructions = None;
        let mut allocations = 0;
        for line in text.lines() {
            let Some((key, value)) = line.split_once([':', '=']) else { continue };
            match key {
                "part" => part = value.trim().parse().ok()?,
                "summary" if part == 2 => instructions = value.trim().parse().ok(),
                "fn" | "cfn" => {
                    let (id, name) = value.split_once(' ').unwrap_or((value, ""));
                    if ALLOCATING.contains(&name) {
                        allocating.insert(id);
                    }
                    called = id;
                }
                "calls" if part == 2 && allocating.contains(called) => {
                    allocations += value.split(' ').next()?.parse::<u64>().ok()?;
                }
                _ => {}
            }
        }
        Some(Calls { instructions: instructions?, allocations })
    }
}

/// The calls between the program's two lines `MARK`, which may follow a part of another line.
fn system_calls(output: &str) -> Option<u64> {
    let (_start, output) = output.split_once("MARK\n")?;
    let (counted, _end) = output.split_once("MARK\n")?;
    // A system call that waits has a second line when it returns.
    let is_call = |line: &&str| line.starts_with("SYSCALL[") && !line.contains("... [async]");
    let is_counted = |line: &&str| !line.contains("sys_clock_gettime");
    Some(counted.lines().filter(is_call).filter(is_counted).count() as u64)
}

impl Cost {
    fn rows(self, expected: Self) -> [(&'static str, f64, f64, bool); 3] {
        let is_near = |counted: f64, expected: f64, noise: f64| {
            (counted - expected).abs() <= (expected * TOLERANCE).max(noise)
        };
        let (own, other) = (self, expected);
        let instructions = is_near(own.instructions, other.instructions, 0.0);
        let allocations = is_near(own.allocations, other.allocations, ALLOCATION_NOISE);
        let system_calls = own.system_calls <= other.system_calls * SYSTEM_CALLS_RATIO_MAX;
        [
            ("instructions", own.instructions, other.instructions, instructions),
            ("allocations", own.allocations, other.allocations, allocations),
            ("system calls", own.system_calls, other.system_calls, system_calls),
        ]
    }

    fn is_near(self, expected: Self) -> bool {
        self.rows(expected).into_iter().all(|(.., is_near)| is_near)
    }
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
    for (what, counted, expected, is_near) in cost.rows(expected) {
        let flag = if is_near { "" } else { "  OFF" };
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
        let stderr = "SYSCALL[1,1](44) sys_sendto ( 9 ) --> [async] ... \n\
                      MARK\n\
                      SYSCALL[1,1](228) sys_clock_gettime( 1, 0x1 ) --> [pre-success] Success(0)\n\
                      SYSCALL[1,1](44) sys_sendto ( 9 ) --> [async] ... \n\
                      SYSCALL[1,1](44) ... [async] --> Success(0x6599) \n\
                      MARK\n\
                      SYSCALL[1,1](44) sys_sendto ( 9 ) --> [async] ... \n";
        assert_eq!(system_calls(stderr), Some(1));
        assert_eq!(system_calls("SYSCALL[1,1](44) sys_sendto ( 9 )\nMARK\n"), None);
        let file = "part: 1\nsummary: 7\nfn=(1) main\ncfn=(2) malloc\ncalls=5 0\n0 5\n\
                    part: 2\ndesc: Trigger: --dump-before=count::mark\nsummary: 106278610\n\
                    fn=(1)\ncfn=(2)\ncalls=3 1\n0 9\ncfn=(3) free\ncalls=8 1\n\
                    fn=(4) other\ncfn=(5) calloc\ncalls=4 1\n0 9\n\
                    part: 3\nsummary: 9\nfn=(1)\ncfn=(2)\ncalls=2 0\n";
        let calls = Calls { instructions: 106_278_610, allocations: 7 };
        assert_eq!(Calls::parse(file), Some(calls));
        assert_eq!(Calls::parse("part: 1\nsummary: 7\n"), None);
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
        assert!(compare("jobs", Cost { instructions: 20_500.0, system_calls: 0.14, ..cost }, cost));
        for off in [
            Cost { instructions: 20_700.0, ..cost },
            Cost { instructions: 19_300.0, ..cost },
            Cost { allocations: 2.1, ..cost },
            Cost { system_calls: 0.16, ..cost },
        ] {
            assert!(!compare("jobs", off, cost));
        }
    }
}
