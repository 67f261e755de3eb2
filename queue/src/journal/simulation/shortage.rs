//! A disk that other programs fill and empty, with power cuts: refusals lose nothing, running
//! attempts can end, nothing fails while there is a ballast, and once there is room jobs are
//! accepted unaided.

use std::path::Path;

use longshore_protocol::Role;
use longshore_protocol::messages::work::BatchBuilder;
use rand::RngExt;

use super::super::files::Files;
use super::super::{JournalOpenError, JournalOptions, SEGMENT_BYTES_MIN};
use super::command_coverage::{CommandCoverage, FULL_DISK_COMMANDS};
use super::harness::{PublisherRun, SimulationHarness};
use super::power::{SeedReport, schedule_power_cut};
use super::{DIR, env_or, options};
use crate::journal::space::ballast::BALLAST_FILE;
use crate::{Command, SpaceLevel};

/// A queue that nobody pauses.
const QUEUE: &str = "/always";

/// Counts of the runs of one seed.
#[derive(Default, Debug, PartialEq)]
struct ShortageTotals {
    cuts: u64,
    /// Cuts while the disk was short of room.
    short_cuts: u64,
    /// Settles accepted meanwhile.
    settled_short: u64,
    /// Starts on a full disk.
    short_starts: u64,
    trace: u32,
}

fn run_seed(seed: u64, command_coverage: &mut CommandCoverage) -> ShortageTotals {
    let options = JournalOptions { segment_bytes: SEGMENT_BYTES_MIN, ..options() };
    let mut harness = SimulationHarness::new(seed, options);
    harness.shares_disk = true;
    let mut totals = ShortageTotals::default();
    for _ in 0..harness.random.random_range(2..6) {
        let power_fails = harness.random.random_bool(0.8);
        // The first start creates the ballast.
        if power_fails && totals.cuts > 0 {
            schedule_power_cut(&mut harness);
        }
        // Sometimes the ballast is deleted, and its space used.
        let ballast_lost = totals.cuts > 0 && harness.once_in(3);
        if ballast_lost {
            delete_ballast(&mut harness);
        }
        let level = run_until_fault(&mut harness, seed, ballast_lost);
        if harness.disk.hit().is_none() {
            harness.disk.heal();
            restore_room(&mut harness, seed);
        }
        let next = harness.random.random();
        harness.disk = match power_fails {
            true => harness.disk.after_power_cut(next),
            false => harness.disk.after_kill(),
        };
        if harness.disk.free() == 0 {
            // Surviving files have their space: a disk never stores more than its capacity.
            harness.disk.leave_free(0);
        }
        totals.cuts += u64::from(power_fails);
        totals.short_cuts += u64::from(power_fails && level.is_some_and(SpaceLevel::is_short));
        totals.short_starts += u64::from(harness.disk.free() == 0);
    }
    restore_room(&mut harness, seed);
    totals.settled_short = harness.settled_short;
    totals.trace = harness.disk.trace();
    command_coverage.add(&harness.command_coverage());
    totals
}

/// Starts the publisher and runs it until a power cut, or for a while. Returns the space level at
/// the end; none if it did not start.
fn run_until_fault(
    harness: &mut SimulationHarness,
    seed: u64,
    ballast_lost: bool,
) -> Option<SpaceLevel> {
    let mut run = match harness.open() {
        Ok(run) => run,
        Err(JournalOpenError::Io { .. }) if harness.disk.hit().is_some() => return None,
        Err(why) => panic!("seed {seed}: {why}"),
    };
    // A ballast of a MiB does not last long.
    harness.shares_disk = !ballast_lost;
    let steps = harness.random.random_range(20..if ballast_lost { 40 } else { 120 });
    let outcome = harness.run_clients(&mut run, steps);
    harness.shares_disk = true;
    assert!(outcome.is_ok() || harness.disk.hit().is_some(), "seed {seed}: {outcome:?}");
    Some(run.store.space().level)
}

/// Deletes the ballast, and leaves hardly room for one.
fn delete_ballast(harness: &mut SimulationHarness) {
    let path = Path::new(DIR).join(BALLAST_FILE);
    if harness.disk.paths().contains(&path) {
        let without = harness.disk.after_kill();
        without.remove(&path).expect("it is there");
        harness.disk = without;
        harness.disk.leave_free(3 << 19);
    }
}

/// Starts the publisher and frees the disk: a second later jobs are accepted and delivered again.
fn restore_room(harness: &mut SimulationHarness, seed: u64) {
    harness.shares_disk = false;
    let mut run = harness.open().unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    let outcome = harness.run_clients(&mut run, 5);
    assert!(outcome.is_ok(), "seed {seed}: {outcome:?}");
    harness.disk.set_capacity(None);
    harness.pass_ms(1_000);
    let accepted = enqueue_one(harness, &mut run);
    assert!(
        accepted.is_ok_and(|accepted| accepted),
        "seed {seed}: there is room, and a job is refused"
    );
    assert!(
        run.store.state().delivery_budget() > 0,
        "seed {seed}: there is room, and no job is delivered"
    );
    harness.shares_disk = true;
}

/// Whether a job is accepted.
fn enqueue_one(
    harness: &mut SimulationHarness,
    run: &mut PublisherRun,
) -> Result<bool, crate::Poisoned> {
    harness.measure_disk(run);
    run.store.advance(harness.now)?;
    let position = harness.sessions.iter().position(|session| session.role == Role::Producer);
    let position = position.expect("there are producers");
    harness.attach(run, position)?;
    let job = harness.job(QUEUE.parse().expect("a path"), 100);
    let mut batch = BatchBuilder::new();
    batch.push(&job);
    harness.model.submit(&job);
    let session = &mut harness.sessions[position];
    let (sequence, sealed) = (session.next_batch, batch.seal(false));
    session.next_batch += 1;
    let batch = sealed.to_batch(sequence).expect("within the limits");
    session.batches.insert(sequence, (sealed, vec![job.id]));
    let link = session.link.expect("it was attached");
    run.store.submit(harness.now, Command::Enqueue { link, batch })?;
    harness.release(run)?;
    Ok(harness.model.is_present(job.id))
}

#[test]
fn full_disk_refuses_only_new_jobs_and_recovers_unaided() {
    let mut command_coverage = CommandCoverage::default();
    let (target, mut all, mut seed) =
        (env_or("LONGSHORE_SHORTAGES", 300), ShortageTotals::default(), 0);
    while all.cuts < target {
        let report = SeedReport(seed);
        let totals = run_seed(seed, &mut command_coverage);
        drop(report);
        all.cuts += totals.cuts;
        all.short_cuts += totals.short_cuts;
        all.settled_short += totals.settled_short;
        all.short_starts += totals.short_starts;
        seed += 1;
    }
    command_coverage.assert_commands(&FULL_DISK_COMMANDS, target / 100);
    // Starts on a completely full disk are the rarest: about one in twenty cuts.
    let least = target / 50;
    let shorts = [all.short_cuts, all.settled_short, all.short_starts];
    assert!(shorts.iter().all(|&times| times >= least), "{all:?}");
}

#[test]
fn same_seed_gives_the_same_shortage_run() {
    for seed in 0..5 {
        let command_coverage = &mut CommandCoverage::default();
        assert_eq!(
            run_seed(seed, command_coverage),
            run_seed(seed, command_coverage),
            "seed {seed}"
        );
    }
}
