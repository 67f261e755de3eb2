//! `cargo xtask count`: what a job and a value cost in instructions, allocations and system calls.
//!
//! Valgrind counts them, so neither the speed nor the load of the machine matters: two runs differ
//! by less than half a percent. The workloads are `tests/examples/count.rs`, each run at two sizes;
//! the difference leaves out what starting costs. `tests/count.toml` has what is expected.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::mutants::root;
use crate::test::target;

const WORKLOADS: [&str; 2] = ["jobs", "values"];
/// Both sizes are whole batches of the workloads.
const SIZES: [u64; 2] = [5_000, 15_000];
/// How far a number may be from what is expected.
const TOLERANCE: f64 = 0.03;
/// Differences below this are noise: a timer more or less in a whole run.
const LEAST: f64 = 0.02;

/// What one job or value costs.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cost {
    instructions: f64,
    allocations: f64,
    /// Without `clock_gettime`, which is none outside of valgrind.
    system_calls: f64,
}

/// What is expected, and where it was counted.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    /// The compiler and the processor's features: others give other numbers.
    counted_with: String,
    workload: BTreeMap<String, Cost>,
}

pub(crate) fn command(arguments: &[&str]) -> ExitCode {
    let done = match arguments {
        [] => count(false),
        ["--bless"] => count(true),
        [other, ..] => Err(anyhow::anyhow!("'{other}' is not understood: --bless")),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn count(bless: bool) -> anyhow::Result<bool> {
    let valgrind = Command::new("valgrind").arg("--version").output();
    if !valgrind.is_ok_and(|output| output.status.success()) {
        println!("NOT COUNTED: valgrind is not installed");
        return Ok(!bless);
    }
    let program = build()?;
    let mut workload = BTreeMap::new();
    for name in WORKLOADS {
        workload.insert(name.to_owned(), cost(&program, name)?);
    }
    let file = root().join("tests/count.toml");
    let counted = Expected { counted_with: counted_with()?, workload };
    if bless {
        let text = format!(
            "# What `cargo xtask count` expects of one job and one value; `--bless` writes it.\n\n{}",
            toml::to_string(&counted)?
        );
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let text = fs::read_to_string(&file);
    let text = text.with_context(|| format!("cannot read {}", file.display()))?;
    let expected: Expected = toml::from_str(&text)?;
    let comparable = expected.counted_with == counted.counted_with;
    let mut same = true;
    for (name, cost) in &counted.workload {
        let wanted = expected.workload.get(name);
        let wanted = wanted.with_context(|| format!("{} has no '{name}'", file.display()))?;
        same &= compare(name, *cost, *wanted);
    }
    if !comparable {
        println!(
            "not compared: counted with {}, expected with {}",
            counted.counted_with, expected.counted_with
        );
    } else if !same {
        println!(
            "more than {} % off: find the reason; if it is wanted, `cargo xtask count --bless`",
            TOLERANCE * 100.0
        );
    }
    Ok(same || !comparable)
}

fn build() -> anyhow::Result<PathBuf> {
    // Of the workspace: of its package alone, everything would be built again with fewer features.
    let arguments = ["build", "--quiet", "--locked", "--workspace", "--example", "count"];
    let status = Command::new("cargo").args(arguments).status()?;
    ensure!(status.success(), "the workloads do not compile");
    Ok(target()?.join("debug/examples/count"))
}

/// What one more item costs.
fn cost(program: &Path, workload: &str) -> anyhow::Result<Cost> {
    let [few, many] = SIZES;
    let (few_counted, many_counted) = (run(program, workload, few)?, run(program, workload, many)?);
    let each = |of: fn(&Cost) -> f64| (of(&many_counted) - of(&few_counted)) / (many - few) as f64;
    Ok(Cost {
        instructions: each(|cost| cost.instructions),
        allocations: each(|cost| cost.allocations),
        system_calls: each(|cost| cost.system_calls),
    })
}

/// What a whole run costs.
fn run(program: &Path, workload: &str, number: u64) -> anyhow::Result<Cost> {
    let valgrind = |options: &[&str]| {
        let mut command = Command::new("valgrind");
        command.args(options).arg(program).arg(workload).arg(number.to_string());
        let output = command.output().context("cannot run valgrind")?;
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{workload} {number} failed below valgrind:\n{printed}");
        Ok(printed)
    };
    let calls =
        valgrind(&["--tool=callgrind", "--callgrind-out-file=/dev/null", "--trace-syscalls=yes"])?;
    let blocks = valgrind(&["--tool=dhat", "--dhat-out-file=/dev/null"])?;
    Ok(Cost {
        instructions: instructions(&calls).context("callgrind has counted nothing")?,
        allocations: allocations(&blocks).context("dhat has counted nothing")?,
        system_calls: system_calls(&calls),
    })
}

/// The number in callgrind's line `Collected : 106278610`.
fn instructions(printed: &str) -> Option<f64> {
    printed.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok())
}

/// The blocks in dhat's line `Total:     1,234 bytes in 56 blocks`.
fn allocations(printed: &str) -> Option<f64> {
    let total = printed.lines().find_map(|line| line.split_once("Total: "))?.1;
    let blocks = total.split_once(" bytes in ")?.1.strip_suffix(" blocks")?;
    blocks.replace(',', "").parse().ok()
}

fn system_calls(printed: &str) -> f64 {
    // One that waits has a second line when it returns.
    let begins = |line: &&str| line.starts_with("SYSCALL[") && !line.contains("... [async]");
    let counts = |line: &&str| !line.contains("sys_clock_gettime");
    printed.lines().filter(begins).filter(counts).count() as f64
}

/// Prints the numbers of a workload; true if all are as expected.
fn compare(name: &str, cost: Cost, expected: Cost) -> bool {
    let rows = [
        ("instructions", cost.instructions, expected.instructions),
        ("allocations", cost.allocations, expected.allocations),
        ("system calls", cost.system_calls, expected.system_calls),
    ];
    let mut same = true;
    for (what, now, then) in rows {
        let is_near = (now - then).abs() <= (then.abs() * TOLERANCE).max(LEAST);
        let mark = if is_near { "" } else { "  OFF" };
        println!("{name:<8} {what:<14} {now:>12.3}   expected {then:>12.3}{mark}");
        same &= is_near;
    }
    same
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
    fn what_valgrind_prints_is_read() {
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
    fn three_percent_more_or_less_is_off() {
        let cost = Cost { instructions: 20_000.0, allocations: 2.0, system_calls: 0.1 };
        assert!(compare("jobs", Cost { instructions: 20_500.0, system_calls: 0.11, ..cost }, cost));
        for off in [
            Cost { instructions: 20_700.0, ..cost },
            Cost { instructions: 19_300.0, ..cost },
            Cost { allocations: 2.1, ..cost },
            Cost { system_calls: 0.13, ..cost },
        ] {
            assert!(!compare("jobs", off, cost));
        }
    }
}
