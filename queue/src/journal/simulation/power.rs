//! Power cuts at any call: what was told is true afterwards, and nothing is there that nobody has
//! asked for.

use rand::RngExt;

use super::super::OpenError;
use super::super::simulated_disk::Fault;
use super::damage::is_snapshot;
use super::executed::{Executed, ROOMY};
use super::phase::{Coverage, Phase};
use super::world::World;
use super::{asked, options_of};

/// Phases that cuts have to fall into.
const PHASES: [Phase; 8] = [
    Phase::Recovery,
    Phase::Commit,
    Phase::CommitWatermark,
    Phase::Rotation,
    Phase::SnapshotWrite,
    Phase::SnapshotSwitch,
    Phase::Carrying,
    Phase::Deletion,
];

/// Lives of one seed, each of which ends with a power cut, or a kill. Gives the cuts, and what
/// tells runs apart.
fn lives(seed: u64, coverage: &mut Coverage, executed: &mut Executed) -> (u64, u32) {
    let mut world = World::new(seed, options_of(seed));
    let mut cuts = 0;
    for _ in 0..world.random.random_range(2..7) {
        arm(&mut world);
        let starting = live(&mut world, seed);
        coverage.note(&world.disk, starting);
        let power_goes = world.random.random_bool(0.9);
        let next = world.random.random();
        world.disk = match power_goes {
            true => world.disk.after_power_cut(next),
            false => world.disk.after_kill(),
        };
        cuts += u64::from(power_goes);
        if world.once_in(4) {
            rot_newest_snapshot(&mut world);
        }
    }
    // In the end nothing fails, and everything is there.
    assert!(!live(&mut world, seed), "seed {seed}: a start without a fault");
    executed.add(&world.executed());
    (cuts, world.disk.trace())
}

/// A bit of the newest snapshot is not what it was, if there is another: whenever that may be, the
/// other is as good.
fn rot_newest_snapshot(world: &mut World) {
    let snapshots: Vec<_> =
        world.disk.paths().into_iter().filter(|path| is_snapshot(path)).collect();
    if let [_, .., newest] = &snapshots[..] {
        let bits = world.disk.bytes(newest).len() as u64 * 8;
        world.disk.flip(newest, world.random.random_range(0..bits));
    }
}

/// The power goes at some call, or at one of a kind that is rare.
pub(super) fn arm(world: &mut World) {
    let random = &mut world.random;
    let fault = match random.random_range(0..10) {
        0..5 => Fault::nth_where(random.random_range(1..150), |call, _| call.is_change()),
        5 | 6 => Fault::nth_where(random.random_range(1..15), |call, _| call.is_change()),
        _ => {
            // Those that are rare and short more often than the others.
            let phases = [&PHASES[..], &[Phase::Carrying, Phase::Carrying, Phase::Deletion]];
            let phases = phases.concat();
            let phase = phases[random.random_range(0..phases.len())];
            let of = move |call, path: &_| Phase::of(call, path) == phase;
            Fault::nth_where(random.random_range(1..6), of)
        }
    };
    world.disk.fail(fault.for_good());
}

/// The publisher starts and runs until the disk fails, or for a while. True when it failed while it
/// started.
pub(super) fn live(world: &mut World, seed: u64) -> bool {
    let mut run = match world.open() {
        Ok(run) => run,
        Err(OpenError::Io { .. }) if world.disk.hit().is_some() => return true,
        Err(why) => panic!("seed {seed}: {why}"),
    };
    let steps = world.random.random_range(5..80);
    let lived = world.live(&mut run, steps);
    assert!(lived.is_ok() || world.disk.hit().is_some(), "seed {seed}: {lived:?}");
    false
}

/// Says of which seed it was.
pub(super) struct Seed(pub(super) u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("FAULT seed {}", self.0);
        }
    }
}

#[test]
fn whatever_the_power_cut_what_was_told_is_true_and_nothing_else_is_there() {
    let (mut coverage, mut executed) = (Coverage::default(), Executed::default());
    let (wanted, mut cuts, mut seed) = (asked("LONGSHORE_POWER_CUTS", 3_000), 0, 0);
    while cuts < wanted {
        // Whatever is wrong says of which seed it is.
        let told = Seed(seed);
        cuts += lives(seed, &mut coverage, &mut executed).0;
        drop(told);
        seed += 1;
    }
    coverage.assert(&PHASES, wanted / 100);
    executed.assert_commands(&ROOMY, wanted / 500);
    executed.assert_changes(wanted / 500);
}

#[test]
fn the_same_seed_is_the_same_run() {
    let mut traces = Vec::new();
    for seed in 0..10 {
        let (coverage, executed) = (&mut Coverage::default(), &mut Executed::default());
        let once = lives(seed, coverage, executed);
        assert_eq!(once, lives(seed, coverage, executed), "seed {seed}");
        traces.push(once.1);
    }
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), 10, "and another seed is another run");
}
