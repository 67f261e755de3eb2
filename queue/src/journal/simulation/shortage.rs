//! A disk that others fill and empty, with power cuts all the while: a refusal is no loss, what
//! runs can end, nothing fails while there is a reserve, and once there is room again jobs are
//! taken unaided.

use std::path::Path;

use longshore_protocol::Role;
use longshore_protocol::messages::work::BatchBuilder;
use rand::RngExt;

use super::super::files::Files;
use super::super::{JournalOptions, OpenError, SEGMENT_BYTES_MIN};
use super::executed::{Executed, SHORT};
use super::power::{Seed, arm};
use super::world::{Run, World};
use super::{DIR, asked, options};
use crate::journal::space::ballast::BALLAST_FILE;
use crate::{Command, SpaceLevel};

/// A queue that nobody pauses.
const QUEUE: &str = "/always";

/// What the lives of one seed came to.
#[derive(Default, Debug, PartialEq)]
struct Lived {
    cuts: u64,
    /// Cuts while the disk was short of room.
    short_cuts: u64,
    /// Settles that counted while it was.
    settled_short: u64,
    /// Starts on a disk that was.
    short_starts: u64,
    trace: u32,
}

fn lives(seed: u64, executed: &mut Executed) -> Lived {
    let options = JournalOptions { segment_bytes: SEGMENT_BYTES_MIN, ..options() };
    let mut world = World::new(seed, options);
    world.shares_disk = true;
    let mut lived = Lived::default();
    for _ in 0..world.random.random_range(2..6) {
        let cuts_power = world.random.random_bool(0.8);
        // The first start makes the ballast.
        if cuts_power && lived.cuts > 0 {
            arm(&mut world);
        }
        // Now and then somebody has deleted the ballast, and taken its room.
        let is_thin = lived.cuts > 0 && world.once_in(3);
        if is_thin {
            thin_out(&mut world);
        }
        let level = live(&mut world, seed, is_thin);
        if world.disk.hit().is_none() {
            world.disk.heal();
            heal(&mut world, seed);
        }
        let next = world.random.random();
        world.disk = match cuts_power {
            true => world.disk.after_power_cut(next),
            false => world.disk.after_kill(),
        };
        if world.disk.free() == 0 {
            // What came back to life has the room that it had: a disk never holds more than it has
            // blocks.
            world.disk.leave_free(0);
        }
        lived.cuts += u64::from(cuts_power);
        lived.short_cuts += u64::from(cuts_power && level.is_some_and(SpaceLevel::is_short));
        lived.short_starts += u64::from(world.disk.free() == 0);
    }
    heal(&mut world, seed);
    lived.settled_short = world.settled_short;
    lived.trace = world.disk.trace();
    executed.add(&world.executed());
    lived
}

/// The publisher starts and runs until the power goes, or for a while. What its journal takes in
/// the end; none when it did not come up.
fn live(world: &mut World, seed: u64, is_thin: bool) -> Option<SpaceLevel> {
    let mut run = match world.open() {
        Ok(run) => run,
        Err(OpenError::Io { .. }) if world.disk.hit().is_some() => return None,
        Err(why) => panic!("seed {seed}: {why}"),
    };
    // A reserve of a MiB is not for long.
    world.shares_disk = !is_thin;
    let steps = world.random.random_range(20..if is_thin { 40 } else { 120 });
    let lived = world.live(&mut run, steps);
    world.shares_disk = true;
    assert!(lived.is_ok() || world.disk.hit().is_some(), "seed {seed}: {lived:?}");
    Some(run.store.space().level)
}

/// There is no ballast, and hardly room for one.
fn thin_out(world: &mut World) {
    let path = Path::new(DIR).join(BALLAST_FILE);
    if world.disk.paths().contains(&path) {
        let without = world.disk.after_kill();
        without.remove(&path).expect("it is there");
        world.disk = without;
        world.disk.leave_free(3 << 19);
    }
}

/// The publisher starts, others give the disk back, a second passes: jobs are taken again, and
/// handed out.
fn heal(world: &mut World, seed: u64) {
    world.shares_disk = false;
    let mut run = world.open().unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    let lived = world.live(&mut run, 5);
    assert!(lived.is_ok(), "seed {seed}: {lived:?}");
    world.disk.set_capacity(None);
    world.pass_ms(1_000);
    let taken = take_one(world, &mut run);
    assert!(taken.is_ok_and(|taken| taken), "seed {seed}: there is room, and a job is refused");
    assert!(
        run.store.state().handouts() > 0,
        "seed {seed}: there is room, and no job is handed out"
    );
    world.shares_disk = true;
}

/// Whether a job is taken.
fn take_one(world: &mut World, run: &mut Run) -> Result<bool, crate::Poisoned> {
    world.keep_house(run);
    run.store.turn(world.now)?;
    let place = world.sessions.iter().position(|session| session.role == Role::Producer);
    let place = place.expect("there are producers");
    world.attach(run, place)?;
    let job = world.job(QUEUE.parse().expect("a path"), 100);
    let mut batch = BatchBuilder::new();
    batch.push(&job);
    world.told.submit(&job);
    let session = &mut world.sessions[place];
    let (sequence, sealed) = (session.next_batch, batch.seal(false));
    session.next_batch += 1;
    let batch = sealed.to_batch(sequence).expect("within the limits");
    session.batches.insert(sequence, (sealed, vec![job.id]));
    let link = session.link.expect("it was attached");
    run.store.submit(world.now, Command::Enqueue { link, batch })?;
    world.release(run)?;
    Ok(world.told.is_there(job.id))
}

#[test]
fn a_disk_without_room_costs_new_jobs_alone_and_takes_them_again_by_itself() {
    let mut executed = Executed::default();
    let (wanted, mut all, mut seed) = (asked("LONGSHORE_SHORTAGES", 300), Lived::default(), 0);
    while all.cuts < wanted {
        let told = Seed(seed);
        let lived = lives(seed, &mut executed);
        drop(told);
        all.cuts += lived.cuts;
        all.short_cuts += lived.short_cuts;
        all.settled_short += lived.settled_short;
        all.short_starts += lived.short_starts;
        seed += 1;
    }
    executed.assert_commands(&SHORT, wanted / 100);
    // Starts on a disk without a free byte are the rarest: about one for twenty cuts.
    let least = wanted / 50;
    let shorts = [all.short_cuts, all.settled_short, all.short_starts];
    assert!(shorts.iter().all(|&times| times >= least), "{all:?}");
}

#[test]
fn the_same_seed_fills_and_empties_the_same_disk() {
    for seed in 0..5 {
        let executed = &mut Executed::default();
        assert_eq!(lives(seed, executed), lives(seed, executed), "seed {seed}");
    }
}
