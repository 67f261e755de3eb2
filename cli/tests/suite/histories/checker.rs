//! Judges the promises about keys from what workers recorded, and from nothing else.

use std::collections::BTreeMap;

/// A handler ran a job; without an end, its worker was killed before that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    pub(super) job: u64,
    pub(super) began: u64,
    pub(super) ended: Option<u64>,
}

/// The runs in the lines of one worker's file: `began JOB AT` or `ended JOB AT`. A worker has one
/// run of a job at a time.
pub(super) fn runs_of(lines: &str) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut open: BTreeMap<u64, usize> = BTreeMap::new();
    // A worker that was killed may have left half a line.
    let whole = lines.rsplit_once('\n').map_or("", |(whole, _)| whole);
    for line in whole.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [what, job, at] = words[..] else { panic!("{line}") };
        let (job, at) = (job.parse().unwrap(), at.parse().unwrap());
        if what == "began" {
            open.insert(job, runs.len());
            runs.push(Run { job, began: at, ended: None });
        } else if let Some(run) = open.remove(&job) {
            runs[run].ended = Some(at);
        }
    }
    runs
}

/// Whether each of `jobs` jobs ran to its end, and the jobs of each key did so one after the other,
/// in the order of their numbers. The first error otherwise.
pub(super) fn check_order(
    runs: &[Run],
    jobs: u64,
    key_of: impl Fn(u64) -> u64,
) -> Result<(), String> {
    let mut by_key: BTreeMap<u64, Vec<Run>> = BTreeMap::new();
    for run in runs {
        by_key.entry(key_of(run.job)).or_default().push(*run);
    }
    let mut expected: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for job in 0..jobs {
        expected.entry(key_of(job)).or_default().push(job);
    }
    for (key, jobs) in expected {
        let mut runs = by_key.remove(&key).unwrap_or_default();
        runs.sort_unstable_by_key(|run| run.began);
        let mut runs = runs.into_iter().peekable();
        let mut free_at = 0;
        for job in jobs {
            let mut has_ended = false;
            while let Some(run) = runs.next_if(|run| run.job == job) {
                if run.began < free_at {
                    return Err(format!("job {job} of key {key} began beside another run"));
                }
                has_ended |= run.ended.is_some();
                free_at = free_at.max(run.ended.unwrap_or(run.began));
            }
            if !has_ended {
                let next = runs.peek().map(|run| run.job);
                return Err(format!(
                    "job {job} of key {key} did not run to its end before {next:?}"
                ));
            }
        }
        if let Some(run) = runs.next() {
            return Err(format!("job {} of key {key} ran again after its successor", run.job));
        }
    }
    Ok(())
}

/// Whether no more than `most` jobs of a key ran at once. A run that a kill cut short counts as an
/// instant: when it ended is not known.
pub(super) fn check_concurrency(
    runs: &[Run],
    most: usize,
    key_of: impl Fn(u64) -> Option<u64>,
) -> Result<(), String> {
    let mut changes: Vec<(u64, bool, u64)> = Vec::new();
    for run in runs {
        let Some(key) = key_of(run.job) else { continue };
        let ended = run.ended.unwrap_or(run.began + 1);
        changes.extend([(run.began, true, key), (ended, false, key)]);
    }
    // At the same instant an end comes first.
    changes.sort_unstable();
    let mut running: BTreeMap<u64, usize> = BTreeMap::new();
    for (at, begins, key) in changes {
        let count = running.entry(key).or_default();
        *count = if begins { *count + 1 } else { *count - 1 };
        if *count > most {
            return Err(format!("{count} jobs of key {key} ran at {at}"));
        }
    }
    Ok(())
}

/// Whether no window had more starts than `per_second` × its length + `burst`. The starts are in
/// milliseconds, each exact to `error_ms`.
pub(super) fn check_rate(
    starts: &[u64],
    per_second: u64,
    burst: u64,
    error_ms: u64,
) -> Result<(), String> {
    let mut starts = starts.to_vec();
    starts.sort_unstable();
    // A window from start i to start j has j - i + 1 of them: the worst begins where the number of
    // starts before it is the least in proportion to the time.
    let mut worst: Option<(i128, u64)> = None;
    for (number, &at) in starts.iter().enumerate() {
        let before = number as i128 * 1_000 - i128::from(at) * i128::from(per_second);
        let (least, from) = worst.filter(|(least, _)| *least <= before).unwrap_or((before, at));
        worst = Some((least, from));
        let over = before + 1_000 - least;
        if over > i128::from(burst * 1_000 + error_ms * per_second) {
            return Err(format!("too many starts from {from} to {at} ms"));
        }
    }
    Ok(())
}

/// Whether, until one of them has had `some` runs, each tenant's share of the runs is within
/// `tolerance` of its weight.
pub(super) fn check_shares(
    runs: &[Run],
    (some, tolerance): (u64, f64),
    weights: &[u64],
    tenant_of: impl Fn(u64) -> usize,
) -> Result<(), String> {
    let mut in_order = runs.to_vec();
    in_order.sort_unstable_by_key(|run| run.began);
    let mut counts = vec![0; weights.len()];
    for run in in_order {
        let tenant = tenant_of(run.job);
        counts[tenant] += 1;
        if counts[tenant] >= some {
            break;
        }
    }
    let (all, whole): (u64, u64) = (counts.iter().sum(), weights.iter().sum());
    for (tenant, (&count, &weight)) in counts.iter().zip(weights).enumerate() {
        let fair = all as f64 * weight as f64 / whole as f64;
        if (count as f64 - fair).abs() > fair * tolerance {
            return Err(format!(
                "tenant {tenant} had {count} of {all} runs, and its share is {fair:.0}"
            ));
        }
    }
    Ok(())
}

fn run(job: u64, began: u64, ended: impl Into<Option<u64>>) -> Run {
    Run { job, began, ended: ended.into() }
}

#[test]
fn records_become_runs_and_half_a_line_is_none() {
    let lines = "began 1 10\nbegan 2 11\nended 1 12\nbegan 1 20\nended 2 2";
    assert_eq!(runs_of(lines), [run(1, 10, 12), run(2, 11, None), run(1, 20, None)]);
    assert_eq!(runs_of("began 1 1"), []);
}

#[test]
fn a_broken_order_is_found() {
    // Jobs 0, 2 and 4 have one key, 1 and 3 the other; a worker was killed during job 2.
    let good =
        [run(0, 1, 5), run(1, 2, 3), run(2, 5, None), run(2, 9, 10), run(3, 4, 90), run(4, 10, 12)];
    let check = |runs: &[Run]| check_order(runs, 5, |job| job % 2);
    assert_eq!(check(&good), Ok(()));
    let with = |at: usize, run: Run| {
        let mut runs = good;
        runs[at] = run;
        check(&runs).unwrap_err()
    };
    assert_eq!(with(5, run(4, 8, 12)), "job 2 of key 0 did not run to its end before Some(4)");
    assert_eq!(with(2, run(2, 4, None)), "job 2 of key 0 began beside another run");
    assert_eq!(with(3, run(2, 13, 14)), "job 2 of key 0 did not run to its end before Some(4)");
    assert_eq!(with(2, run(0, 11, 12)), "job 0 of key 0 ran again after its successor");
    assert_eq!(with(4, run(3, 4, None)), "job 3 of key 1 did not run to its end before None");
    let again = [&good[..], &[run(2, 13, 14)]].concat();
    assert_eq!(check(&again).unwrap_err(), "job 2 of key 0 ran again after its successor");
    assert!(check(&good[..5]).is_err(), "the last job did not run");
}

#[test]
fn jobs_beyond_a_limit_are_found() {
    let key_of = |job: u64| (job < 10).then_some(job % 2);
    let good = [run(0, 1, 5), run(2, 2, 6), run(4, 5, 9), run(6, 6, None), run(1, 1, 9)];
    assert_eq!(check_concurrency(&good, 2, key_of), Ok(()));
    let beside = [&good[..], &[run(8, 4, 7)]].concat();
    assert_eq!(check_concurrency(&beside, 2, key_of).unwrap_err(), "3 jobs of key 0 ran at 4");
    let killed = [&good[..], &[run(8, 4, None)]].concat();
    assert_eq!(check_concurrency(&killed, 2, key_of).unwrap_err(), "3 jobs of key 0 ran at 4");
    let without = [&good[..], &[run(12, 4, 7)]].concat();
    assert_eq!(check_concurrency(&without, 2, key_of), Ok(()));
}

#[test]
fn starts_beyond_a_rate_are_found() {
    // Ten a second, with a burst of three.
    let check = |starts: &[u64]| check_rate(starts, 10, 3, 0);
    assert_eq!(check(&[0, 0, 0, 100, 200, 300]), Ok(()));
    assert_eq!(check(&[0, 100, 200, 900, 900, 900, 1_000]), Ok(()));
    assert_eq!(check(&[0, 0, 0, 0]).unwrap_err(), "too many starts from 0 to 0 ms");
    assert_eq!(check(&[0, 0, 0, 100, 199]).unwrap_err(), "too many starts from 0 to 199 ms");
    assert_eq!(
        check(&[0, 500, 1_000, 1_000, 1_000, 1_050]).unwrap_err(),
        "too many starts from 1000 to 1050 ms"
    );
    assert_eq!(check_rate(&[0, 0, 0, 100, 199], 10, 3, 1), Ok(()));
}

#[test]
fn an_unfair_share_is_found() {
    // Tenant 0 has weight 1, tenant 1 weight 3, and each 300 jobs.
    let runs = |of_1: u64| -> Vec<Run> {
        let runs = (0..400).map(|at| run(u64::from(at % 400 < of_1), at, at + 1));
        runs.collect()
    };
    let check =
        |runs: &[Run]| check_shares(runs, (270, 0.1), &[1, 3], |job| usize::try_from(job).unwrap());
    let mixed: Vec<Run> = (0..400).map(|at| run(u64::from(at % 4 > 0), at, at + 1)).collect();
    assert_eq!(check(&mixed), Ok(()));
    let equal: Vec<Run> = (0..400).map(|at| run(at % 2, at, at + 1)).collect();
    assert_eq!(check(&equal).unwrap_err(), "tenant 0 had 200 of 400 runs, and its share is 100");
    assert!(check(&runs(200)).is_err(), "one after the other");
}
