//! Whole cycles, one call at a time: their behaviour on a disk with too little room, and the files
//! they leave.

use std::io;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::snapshots::{Commands, path, segment, snapshots_of};
use super::*;
use crate::RecordRef;
use crate::journal::compaction::compactor::{Compactor, CycleContext, CycleError, CycleMetrics};
use crate::journal::compaction::pace::CHUNK_BYTES;
use crate::journal::files::pin::Pin;
use crate::journal::simulated_disk::{Call, Failure, Fault};
use crate::log::Records;

const MIB: u64 = 1024 * 1024;
/// Bytes of the ballast for one-MiB segments and no snapshot.
const BALLAST: u64 = 2 * MIB;

/// A cycle context without other activity; the log grows by `grows` with each chunk.
#[derive(Default)]
pub(super) struct IdleContext {
    short: bool,
    /// Time since the first cycle.
    after: Duration,
    /// Bytes by which the log grows with each chunk.
    grows: u64,
    log_bytes: u64,
}

impl CycleContext for IdleContext {
    fn sync_up_to(&mut self, _: u64) -> Result<(), Poisoned> {
        Ok(())
    }

    fn pace(&mut self, _: usize) -> io::Result<usize> {
        self.log_bytes += self.grows;
        Ok(CHUNK_BYTES)
    }

    fn rest_after_step(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn log_bytes(&self) -> u64 {
        self.log_bytes
    }

    fn is_short(&self) -> bool {
        self.short
    }

    fn now(&self) -> Instant {
        static FIRST: LazyLock<Instant> = LazyLock::new(Instant::now);
        *FIRST + self.after
    }
}

fn short() -> IdleContext {
    IdleContext { short: true, ..IdleContext::default() }
}

fn compactor(journal: &SteppedJournal) -> (Compactor, Arc<CycleMetrics>) {
    let metrics = Arc::new(CycleMetrics::default());
    let (directory, records) = (Arc::clone(&journal.directory), Arc::clone(&journal.records));
    (Compactor::new(directory, records, Arc::clone(&metrics), None, None, Vec::new()), metrics)
}

/// An empty state after all commands, which references so many bytes of some commands.
fn state(journal: &SteppedJournal, live: impl Iterator<Item = (u64, u32)>) -> Commands {
    let part = |(index, length)| RecordRef { index, at: 0, length };
    let parts = live.map(part).collect();
    Commands { index: journal.committed(), blocks: [].into(), parts }
}

/// A disk with `free_mib` MiB free beside the ballast. Half of a long command in the second segment
/// is live: 1.5 MB.
fn full(free_mib: u64) -> (SimulatedDisk, SteppedJournal) {
    let disk = SimulatedDisk::default();
    let (mut journal, _, _) = SteppedJournal::open(&disk).unwrap();
    for length in [100, 3_000_000, 100] {
        journal.write(1, length).unwrap();
    }
    journal.directory.open_ballast().unwrap();
    assert_eq!(journal.directory.ballast.bytes(), BALLAST);
    disk.leave_free(free_mib * MIB);
    journal.directory.ballast.measure();
    (disk, journal)
}

fn half(journal: &SteppedJournal) -> Commands {
    state(journal, [(2, 1_500_000)].into_iter())
}

fn part_is_readable(journal: &SteppedJournal) -> bool {
    let part = RecordRef { index: 2, at: 0, length: 1_500_000 };
    let whole = [b"headhead", &body(2, 3_000_000)[..]].concat();
    journal.records.part(part).unwrap() == whole[..1_500_000]
}

fn compacted_files(disk: &SimulatedDisk) -> usize {
    disk.paths().iter().filter(|path| path.to_string_lossy().contains(".compacted")).count()
}

#[test]
fn cycle_without_room_to_compact_still_writes_its_snapshot() {
    // The room is missing from the start, or runs out once the cycle has begun to compact.
    for free_mib in [0, 1] {
        let (disk, journal) = full(free_mib);
        let (mut compactor, metrics) = compactor(&journal);
        let compacts = |call, path: &Path| {
            call == Call::Create && path.to_string_lossy().contains(".compacted")
        };
        // The ballast gives way to the first failures.
        for nth in 1..=8 {
            disk.fail(Fault::nth_where(nth, compacts).with(Failure::Full));
        }
        compactor.cycle(Box::new(half(&journal)), &mut short()).unwrap();
        assert_eq!(snapshots_of(&disk), [path("snapshots/00000000000000000003.snap")]);
        // No compacted file remains, and the original segment still exists.
        let compacted_bytes = metrics.compacted_bytes.load(Ordering::Relaxed);
        assert_eq!((compacted_files(&disk), compacted_bytes), (0, 0));
        assert!(disk.paths().contains(&segment(2)) && part_is_readable(&journal));
        // Once there is room, the next cycle compacts and refills the ballast.
        disk.heal();
        disk.set_capacity(None);
        journal.directory.ballast.measure();
        compactor.cycle(Box::new(half(&journal)), &mut short()).unwrap();
        assert!(compacted_files(&disk) == 1 && !disk.paths().contains(&segment(2)));
        assert!(part_is_readable(&journal));
        assert_eq!(journal.directory.ballast.bytes(), BALLAST);
    }
}

#[test]
fn ballast_funds_compaction_and_is_refilled_afterwards() {
    let (disk, journal) = full(1);
    let (mut compactor, _) = compactor(&journal);
    compactor.cycle(Box::new(half(&journal)), &mut short()).unwrap();
    assert!(compacted_files(&disk) == 1 && part_is_readable(&journal));
    assert_eq!(journal.directory.ballast.bytes(), BALLAST, "3 MB went for 1.5");
}

#[test]
fn compactor_waits_for_a_copy_until_the_disk_is_full() {
    let (disk, journal) = full(8);
    let (mut compactor, _) = compactor(&journal);
    let copy = Pin::to_read(&disk, Path::new(DIR)).unwrap();
    let waits = compactor.cycle(Box::new(half(&journal)), &mut short());
    assert!(matches!(waits, Err(CycleError::NotNow { .. })), "another one is tried: {waits:?}");
    assert!(disk.paths().contains(&segment(2)), "obsolete files stay while a copy is made");
    for (free, ends) in [(2 * MIB, false), (2 * MIB - 1, true)] {
        disk.leave_free(free);
        journal.directory.ballast.measure();
        let cycle = compactor.cycle(Box::new(half(&journal)), &mut short());
        assert_eq!(copy.is_valid().unwrap(), !ends, "{free} bytes are free");
        match ends {
            true => cycle.unwrap(),
            false => assert!(matches!(cycle, Err(CycleError::NotNow { .. })), "{cycle:?}"),
        }
    }
    assert!(!disk.paths().contains(&segment(2)) && part_is_readable(&journal));
}

#[test]
fn compactor_ends_a_copy_after_a_minute_of_shortage() {
    let (disk, journal) = full(8);
    let (mut compactor, _) = compactor(&journal);
    let copy = Pin::to_read(&disk, Path::new(DIR)).unwrap();
    let second = Duration::from_secs(1);
    let mut cycle = |short, seconds| {
        let mut context = IdleContext { short, after: seconds * second, ..IdleContext::default() };
        compactor.cycle(Box::new(half(&journal)), &mut context)
    };
    cycle(true, 0).unwrap_err();
    cycle(false, 30).unwrap();
    cycle(true, 70).unwrap_err();
    cycle(true, 129).unwrap_err();
    assert!(copy.is_valid().unwrap() && disk.paths().contains(&segment(2)));
    cycle(true, 130).unwrap();
    assert!(!copy.is_valid().unwrap() && !disk.paths().contains(&segment(2)));
}

#[test]
fn failing_to_end_a_copy_does_not_fail_the_journal() {
    let (disk, journal) = full(8);
    let (mut compactor, _) = compactor(&journal);
    let _copy = Pin::to_read(&disk, Path::new(DIR)).unwrap();
    compactor.cycle(Box::new(half(&journal)), &mut short()).unwrap_err();
    disk.leave_free(MIB);
    journal.directory.ballast.measure();
    let of_pin = |call, path: &Path| call == Call::Remove && path.ends_with("PIN");
    disk.fail(Fault::nth_where(1, of_pin).with(Failure::Full));
    let cycle = compactor.cycle(Box::new(half(&journal)), &mut short());
    assert!(matches!(cycle, Err(CycleError::NotNow { what: "pinning", .. })), "{cycle:?}");
    compactor.cycle(Box::new(half(&journal)), &mut short()).unwrap();
    assert!(!disk.paths().contains(&segment(2)) && part_is_readable(&journal));
}

#[test]
fn cycle_without_room_for_its_snapshot_refills_the_ballast() {
    let (disk, journal) = full(0);
    let (mut compactor, _) = compactor(&journal);
    // An unexpected snapshot of 3 MB, with 2 MiB for it.
    let large = Commands { index: 3, ..Commands::up_to(1, 3_000_000) };
    let done = compactor.cycle(Box::new(large), &mut short());
    assert!(matches!(done, Err(CycleError::NotNow { .. })), "{done:?}");
    assert!(snapshots_of(&disk).is_empty() && disk.paths().contains(&segment(2)));
    assert_eq!(journal.directory.ballast.bytes(), BALLAST);
}

/// Two commands per segment; half of each live command is live.
fn journal_of_pairs(commands: u64) -> (SimulatedDisk, SteppedJournal) {
    let disk = SimulatedDisk::default();
    let (mut journal, _, _) = SteppedJournal::open(&disk).unwrap();
    (0..commands).for_each(|_| journal.write(1, 400_000).unwrap());
    journal.directory.open_ballast().unwrap();
    (disk, journal)
}

/// All commands so far, of which only the last is live: the segments before it are dead.
fn last_of(journal: &SteppedJournal) -> Commands {
    let last = journal.committed();
    let parts = vec![RecordRef { index: last, at: 0, length: 100 }];
    Commands { parts, ..Commands::up_to(last, 400_000) }
}

#[test]
fn previous_snapshot_and_its_files_stay_for_fallback() {
    let (disk, mut journal) = journal_of_pairs(6);
    let (mut compactor, _) = compactor(&journal);
    let newest = |disk: &SimulatedDisk| snapshots_of(disk).pop().unwrap();
    for round in 0..4 {
        let before = disk.paths();
        compactor.cycle(Box::new(last_of(&journal)), &mut IdleContext::default()).unwrap();
        assert_eq!(snapshots_of(&disk).len(), if round == 0 { 1 } else { 2 });
        let gone = before.iter().filter(|path| !disk.paths().contains(path)).count();
        assert_eq!(gone > 0, round >= 2 || round == 1, "round {round}: {gone} files");
        journal.sync_watermark().unwrap();
        for falls_back in [false, true] {
            let disk = disk.after_kill();
            let snapshot = newest(&disk);
            if falls_back {
                disk.tamper(&snapshot, |bytes| bytes[5_000] ^= 1);
            }
            let (_, read, recovered) = SteppedJournal::open(&disk).unwrap();
            assert_eq!(assert_is_a_prefix(&read, |_| 400_000), journal.committed());
            let found = recovered
                .snapshot
                .map(|found| path(&format!("snapshots/{:020}.snap", found.index)));
            assert_eq!(found == Some(snapshot), !falls_back, "round {round}");
            assert_eq!(recovered.dropped, None);
        }
        (0..6).for_each(|_| journal.write(1, 400_000).unwrap());
    }
    // Damage both snapshots: the log from the first command on is long gone.
    let disk = disk.after_kill();
    for snapshot in snapshots_of(&disk) {
        disk.tamper(&snapshot, |bytes| bytes[5_000] ^= 1);
    }
    assert!(matches!(
        SteppedJournal::open(&disk).map(drop),
        Err(JournalOpenError::Damaged { index: 1, .. })
    ));
}

#[test]
fn start_retains_the_fallback_for_the_next_start() {
    let (disk, mut journal) = journal_of_pairs(6);
    let (mut first, _) = compactor(&journal);
    first.cycle(Box::new(last_of(&journal)), &mut IdleContext::default()).unwrap();
    (0..6).for_each(|_| journal.write(1, 400_000).unwrap());
    first.cycle(Box::new(last_of(&journal)), &mut IdleContext::default()).unwrap();
    journal.sync_watermark().unwrap();
    let disk = disk.after_kill();
    drop(SteppedJournal::open(&disk).unwrap());
    let again = disk.after_kill();
    again.tamper(&snapshots_of(&again)[1], |bytes| bytes[5_000] ^= 1);
    let (_, read, recovered) = SteppedJournal::open(&again).unwrap();
    assert_eq!(assert_is_a_prefix(&read, |_| 400_000), 12);
    assert_eq!(recovered.snapshot.unwrap().index, 6);
    // The next cycle removes the older one, and the files that only it needed.
    let (parts, _) = open_parts(&disk, options()).unwrap();
    let index = parts.recovered.snapshot.map(|snapshot| snapshot.index);
    let metrics = Arc::new(CycleMetrics::default());
    let before = disk.paths();
    let Parts { directory, records, fallback, obsolete, .. } = parts;
    let mut next = Compactor::new(directory, records, metrics, index, fallback, obsolete);
    let state = Commands { index: 12, parts: Vec::new(), ..Commands::up_to(12, 400_000) };
    next.cycle(Box::new(state), &mut short()).unwrap();
    assert_eq!(snapshots_of(&disk), [path("snapshots/00000000000000000012.snap")]);
    assert!(before.contains(&segment(4)) && !disk.paths().contains(&segment(4)));
}

#[test]
fn start_on_a_full_disk_gives_up_the_fallback() {
    let (disk, mut journal) = journal_of_pairs(6);
    let (mut compactor, _) = compactor(&journal);
    for _ in 0..2 {
        compactor.cycle(Box::new(last_of(&journal)), &mut IdleContext::default()).unwrap();
        (0..6).for_each(|_| journal.write(1, 400_000).unwrap());
    }
    journal.sync_watermark().unwrap();
    let disk = disk.after_kill();
    disk.remove(&path("ballast")).unwrap();
    for (free, snapshots) in [(MIB, 2), (0, 1)] {
        let disk = disk.after_kill();
        disk.leave_free(free);
        let (mut parts, _) = open_parts(&disk, options()).unwrap();
        parts.compactor().unwrap();
        assert_eq!(snapshots_of(&disk).len(), snapshots, "{free} bytes are free");
        assert!(parts.directory.ballast.bytes() > 0);
    }
}

#[test]
fn tight_disk_retains_only_one_snapshot() {
    let (disk, mut journal) = journal_of_pairs(6);
    let (mut compactor, _) = compactor(&journal);
    compactor.cycle(Box::new(last_of(&journal)), &mut IdleContext::default()).unwrap();
    assert!(disk.paths().contains(&segment(1)), "the first has the log to fall back to");
    (0..6).for_each(|_| journal.write(1, 400_000).unwrap());
    // The headroom is less than the next cycle may take.
    disk.leave_free(6 * MIB);
    journal.directory.ballast.measure();
    assert!(!journal.directory.ballast.budget(0).short && journal.directory.ballast.is_tight());
    compactor.cycle(Box::new(last_of(&journal)), &mut IdleContext::default()).unwrap();
    assert_eq!(snapshots_of(&disk).len(), 1);
    assert!((1..=5).all(|number| !disk.paths().contains(&segment(number))));
}

#[test]
fn no_second_compaction_before_a_snapshot_frees_the_first() {
    let disk = SimulatedDisk::default();
    let (mut journal, _, _) = SteppedJournal::open(&disk).unwrap();
    // Two per segment. A cycle copies at most two MiB of them: five segments of eleven.
    for _ in 0..24 {
        journal.write(1, 400_000).unwrap();
    }
    journal.directory.open_ballast().unwrap();
    let (mut compactor, metrics) = compactor(&journal);
    let halves = |journal: &SteppedJournal| state(journal, (1..=22).map(|index| (index, 200_000)));
    let compacted = || metrics.compacted_bytes.load(Ordering::Relaxed);
    let no_room = |call: Call, path: &Path| {
        call == Call::Create && path.to_string_lossy().ends_with(".snap.new")
    };
    disk.fail(Fault::nth_where(1, no_room).with(Failure::Full));
    disk.fail(Fault::nth_where(2, no_room).with(Failure::Full));
    let mut once = 0;
    for _ in 0..2 {
        let done = compactor.cycle(Box::new(halves(&journal)), &mut short());
        assert!(matches!(done, Err(CycleError::NotNow { .. })), "{done:?}");
        assert!(
            once == 0 || compacted() == once,
            "copies exist twice, and must not exist three times"
        );
        once = compacted();
        assert!(once > 0 && disk.paths().contains(&segment(1)));
    }
    compactor.cycle(Box::new(halves(&journal)), &mut short()).unwrap();
    assert!(compacted() == once && !disk.paths().contains(&segment(1)), "now it is removed");
    let part = RecordRef { index: 1, at: 0, length: 200_000 };
    assert_eq!(journal.records.part(part).unwrap()[8..], body(1, 400_000)[..200_000 - 8]);
    compactor.cycle(Box::new(halves(&journal)), &mut short()).unwrap();
    assert!(compacted() > once, "and the next are compacted");
}

#[test]
fn segment_is_compacted_once_its_file_can_be_opened_again() {
    let (disk, journal) = full(8);
    let (mut compactor, _) = compactor(&journal);
    // The first time, it is opened for its length.
    let opens = |call: Call, path: &Path| call == Call::Open && *path == *segment(2);
    disk.fail(Fault::nth_where(2, opens).with(Failure::TooManyFiles));
    compactor.cycle(Box::new(half(&journal)), &mut short()).unwrap();
    assert_eq!(disk.hit(), Some((Call::Open, segment(2))));
    assert!(disk.paths().contains(&segment(2)) && compacted_files(&disk) == 0);
    compactor.cycle(Box::new(half(&journal)), &mut short()).unwrap();
    assert!(!disk.paths().contains(&segment(2)) && part_is_readable(&journal));
}

#[test]
fn next_cycle_plans_for_log_growth_of_the_last() {
    for (grows, compacts) in [(0, false), (MIB, true)] {
        let disk = SimulatedDisk::default();
        let (mut journal, _, _) = SteppedJournal::open(&disk).unwrap();
        for _ in 0..8 {
            journal.write(2, 200_000).unwrap();
        }
        let (mut compactor, metrics) = compactor(&journal);
        // 4 MiB for 2.2 live: within twice that, with a segment and a snapshot's worth of log to
        // come, and not with MiBs more.
        let live =
            |journal: &SteppedJournal| state(journal, (1..=16).map(|index| (index, 144_000)));
        let mut context = IdleContext { grows, ..IdleContext::default() };
        compactor.cycle(Box::new(live(&journal)), &mut context).unwrap();
        let compacted = || metrics.compacted_bytes.load(Ordering::Relaxed);
        assert_eq!(compacted(), 0, "the growth is not known yet");
        assert_eq!(context.log_bytes > 0, grows > 0);
        compactor.cycle(Box::new(live(&journal)), &mut context).unwrap();
        assert_eq!(compacted() > 0, compacts, "with {grows} bytes a chunk");
    }
}

#[test]
fn no_file_is_truncated_before_its_readers_finish() {
    let (disk, journal) = full(1);
    let cut = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&cut);
    // Records truncations, and fails no call.
    disk.fail(Fault::nth_where(1, move |call, path| {
        let retired = path.to_string_lossy().ends_with(".seg.new");
        seen.fetch_or(retired && matches!(call, Call::Truncate | Call::Remove), Ordering::SeqCst);
        false
    }));
    let (mut compactor, _) = compactor(&journal);
    let reading = journal.records.start_reading();
    std::thread::scope(|scope| {
        let snapshot = Box::new(half(&journal));
        let cycle = scope.spawn(move || compactor.cycle(snapshot, &mut short()).unwrap());
        while disk.paths().contains(&segment(2)) {
            assert!(!cycle.is_finished());
            std::thread::yield_now();
        }
        // It was renamed. This leaves time for a wrong truncation.
        (0..1_000).for_each(|_| std::thread::yield_now());
        assert!(!cut.load(Ordering::SeqCst) && !cycle.is_finished());
        drop(reading);
        cycle.join().unwrap();
    });
    assert!(cut.load(Ordering::SeqCst) && part_is_readable(&journal));
}

#[test]
fn reading_a_file_blocks_its_truncation() {
    let (disk, journal) = full(1);
    let (mut compactor, _) = compactor(&journal);
    let (records, reads) = (Arc::clone(&journal.records), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&reads);
    disk.fail(Fault::nth_where(1, move |call, _| {
        if call == Call::Read && counted.fetch_add(1, Ordering::SeqCst) == 0 {
            assert!(records.has_readers(), "the file could be truncated while it is read");
        }
        false
    }));
    let first = |length| journal.records.part(RecordRef { index: 2, at: 0, length }).unwrap();
    assert_eq!(first(100)[..8], b"headhead"[..]);
    assert!(reads.swap(0, Ordering::SeqCst) > 0, "of the log");
    compactor.cycle(Box::new(half(&journal)), &mut short()).unwrap();
    reads.store(0, Ordering::SeqCst);
    first(1_500_000);
    assert!(reads.swap(0, Ordering::SeqCst) > 0, "of a compacted file");
    journal.records.now_of(2, 0).unwrap();
    assert!(reads.load(Ordering::SeqCst) > 0, "of a record's head alone");
}
