//! Without durability: a process that is killed loses nothing that was told, and a power cut the
//! end at most. What is left is what the first commands come to, and neither tokens nor epochs come
//! again.

use longshore_protocol::Durability;
use rand::RngExt;

use super::super::JournalOptions;
use super::power::{Seed, arm, live};
use super::world::World;
use super::{asked, options_of};

/// What the lives of one seed came to.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
struct Lived {
    cuts: u64,
    kills: u64,
    /// Cuts that cost something that was told.
    losses: u64,
    trace: u32,
}

fn lives(seed: u64) -> Lived {
    let options = JournalOptions { durability: Durability::None, ..options_of(seed) };
    let mut world = World::new(seed, options);
    let mut lived = Lived::default();
    for _ in 0..world.random.random_range(2..7) {
        if world.random.random_bool(0.7) {
            arm(&mut world);
        }
        live(&mut world, seed);
        let before = world.lost;
        let power_goes = world.random.random_bool(0.7);
        let next = world.random.random();
        world.disk = match power_goes {
            true => world.disk.after_power_cut(next),
            false => world.disk.after_kill(),
        };
        world.may_lose_end |= power_goes;
        lived.cuts += u64::from(power_goes);
        lived.kills += u64::from(!power_goes);
        // A start without a fault says what was lost; a second power cut may come before anything
        // new is told.
        if world.random.random_bool(0.5) {
            assert!(!live(&mut world, seed), "seed {seed}: a start without a fault");
        }
        lived.losses += u64::from(world.lost > before);
    }
    assert!(!live(&mut world, seed), "seed {seed}: a start without a fault");
    lived.trace = world.disk.trace();
    lived
}

#[test]
fn without_syncs_a_kill_costs_nothing_and_a_power_cut_the_end_alone() {
    let (wanted, mut all, mut seed) = (asked("LONGSHORE_UNSYNCED_CUTS", 500), Lived::default(), 0);
    while all.cuts < wanted {
        let told = Seed(seed);
        let lived = lives(seed);
        drop(told);
        all.cuts += lived.cuts;
        all.kills += lived.kills;
        all.losses += lived.losses;
        seed += 1;
    }
    let least = wanted / 10;
    assert!(all.kills >= least && all.losses >= least, "{all:?}");
}

#[test]
fn the_same_seed_loses_the_same() {
    for seed in 0..5 {
        assert_eq!(lives(seed), lives(seed), "seed {seed}");
    }
}
