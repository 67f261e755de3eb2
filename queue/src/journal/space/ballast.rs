//! The ballast: an empty allocated file that reserves disk space for compaction. It is shortened
//! when a write needs the space.
//!
//! Other programs use the disk too, so counting bytes is not enough: only allocated space is
//! certain. Its target length is [`Budget::ballast`], and what the next snapshot adds. It is
//! resized at the start and after each cycle, as far as the disk has room; in between it grows.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::journal::SEGMENT_BYTES_MIN;
use crate::journal::compaction::compactor::log_between;
use crate::journal::files::{Files, JournalFile};
use crate::journal::space::budget::{Budget, COMPACTION_SEGMENTS, LEASE_BYTES};

/// The file's name in the data directory.
pub(crate) const BALLAST_FILE: &str = "ballast";

/// The ballast, and the last known state of the disk. Used by all threads of a journal.
pub(crate) struct Ballast {
    files: Arc<dyn Files>,
    dir: PathBuf,
    segment_bytes: u64,
    /// None until it is opened: a journal opened only for reading has no ballast.
    file: Mutex<Option<Arc<dyn JournalFile>>>,
    /// Its length.
    bytes: AtomicU64,
    /// Free bytes of the disk at the last measurement; 0 while it refuses them.
    free: AtomicU64,
    /// The disk has refused bytes that it reports as free, as with a user's quota. Nothing is free
    /// then until it allocates a segment's length again.
    refuses: AtomicBool,
    /// Bytes that can still be written into existing segments.
    in_segments: AtomicU64,
    leases: AtomicU64,
    snapshot_bytes: AtomicU64,
    growth_bytes: AtomicU64,
    /// Bytes that the running cycle has copied, and those of its snapshot: the ballast is reserved
    /// for them, so they count as available until the cycle ends, each up to its share of the
    /// ballast.
    compacted: AtomicU64,
    in_snapshot: AtomicU64,
    short: AtomicBool,
}

impl Ballast {
    pub(crate) fn new(files: Arc<dyn Files>, dir: PathBuf, segment_bytes: u64) -> Ballast {
        Ballast {
            files,
            dir,
            segment_bytes,
            file: Mutex::new(None),
            bytes: AtomicU64::new(0),
            free: AtomicU64::new(u64::MAX / 4),
            refuses: AtomicBool::new(false),
            in_segments: AtomicU64::new(0),
            leases: AtomicU64::new(0),
            snapshot_bytes: AtomicU64::new(0),
            growth_bytes: AtomicU64::new(0),
            compacted: AtomicU64::new(0),
            in_snapshot: AtomicU64::new(0),
            short: AtomicBool::new(false),
        }
    }

    /// Opens or creates the file, allocates it again, and resizes it, as far as the disk has room.
    pub(crate) fn open(&self) -> io::Result<()> {
        let path = self.dir.join(BALLAST_FILE);
        let file = match self.files.open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.files.create(&path)?,
            opened => opened?,
        };
        let mut length = file.len()?;
        // A restored file may have holes: only allocated space can be given away.
        if length > 0
            && let Err(error) = file.allocate(length)
        {
            if !is_full(&error) {
                tracing::warn!(file = ?path, %error, "the ballast cannot be allocated again");
            }
            file.truncate(0)?;
            length = 0;
        }
        self.bytes.store(length, Ordering::Relaxed);
        *self.file.lock() = Some(file);
        if self.files.is_copy_on_write(&self.dir).unwrap_or(false) {
            tracing::warn!(
                dir = ?self.dir,
                "a copy-on-write file system: reserved space may be missing when the disk is full; \
                 give the publisher a disk, or a quota, of its own"
            );
        }
        self.resize()
    }

    /// Resizes the file to its target, as far as there is room. A full disk is no failure: a later
    /// cycle tries again.
    pub(crate) fn resize(&self) -> io::Result<()> {
        // The cycle's credits end once what it freed counts: otherwise the disk would seem full.
        self.measure();
        self.compacted.store(0, Ordering::Relaxed);
        self.in_snapshot.store(0, Ordering::Relaxed);
        let file = self.file.lock();
        let Some(file) = &*file else { return Ok(()) };
        let target = self.target();
        let mut at = self.bytes.load(Ordering::Relaxed);
        if target < at {
            file.truncate(target)?;
            at = target;
        }
        // Allocate all at once, or else step by step as much as fits.
        let mut step = target - at;
        while at < target {
            let next = (at + step).min(target);
            match file.allocate(next) {
                Ok(()) => at = next,
                Err(error) if is_full(&error) => {
                    self.note_refusal(next - at);
                    // It may have allocated a part.
                    file.truncate(at)?;
                }
                Err(error) => return Err(error),
            }
            if at < next && step <= SEGMENT_BYTES_MIN {
                break;
            }
            step = SEGMENT_BYTES_MIN;
        }
        self.bytes.store(at, Ordering::Relaxed);
        self.measure();
        Ok(())
    }

    /// The length that the file should have.
    fn target(&self) -> u64 {
        let budget = self.budget(0);
        let growth = budget.growth_bytes.div_ceil(SEGMENT_BYTES_MIN);
        budget.ballast().saturating_add(growth.saturating_mul(SEGMENT_BYTES_MIN))
    }

    /// Measures the disk, once a second. The file grows to its target by a segment at a time, as a
    /// quota that the disk does not report may leave no room for that later. While the disk refuses
    /// what it reports, allocating one segment more checks whether it still does.
    pub(crate) fn measure_and_grow(&self) {
        self.measure();
        let file = self.file.lock();
        let Some(file) = &*file else { return };
        let (mut at, target) = (self.bytes(), self.target());
        let refuses = self.refuses.load(Ordering::Relaxed);
        let grows = at < target;
        let next =
            if grows { target.min(at + self.segment_bytes) } else { at + self.segment_bytes };
        let is_reported = next - at <= self.free.load(Ordering::Relaxed);
        let tries = refuses || grows && is_reported;
        if !tries {
            return;
        }
        match file.allocate(next) {
            Ok(()) if grows => at = next,
            Ok(()) => self.refuses.store(false, Ordering::Relaxed),
            Err(error) if is_full(&error) => self.note_refusal(next - at),
            // The next cycle reports it.
            Err(_) => {}
        }
        // A failed allocation may have allocated a part. A file that stays longer does no harm.
        let _ = file.truncate(at);
        self.bytes.store(at, Ordering::Relaxed);
        self.measure();
    }

    /// Measures the free space. If that fails, keeps using the last known value.
    pub(crate) fn measure(&self) {
        if let Ok(free) = self.files.free_bytes(&self.dir) {
            let free = if self.refuses.load(Ordering::Relaxed) { 0 } else { free };
            self.free.store(free, Ordering::Relaxed);
        }
    }

    /// Notes that the disk has refused `bytes`, in case it reports them as free.
    fn note_refusal(&self, bytes: u64) {
        let reported = self.files.free_bytes(&self.dir);
        if reported.is_ok_and(|free| free >= bytes) && !self.refuses.swap(true, Ordering::Relaxed) {
            tracing::warn!(bytes, "the disk refuses space that it reports as free: is it a quota?");
        }
    }

    /// Calls `make` with `usual` bytes; on a full disk with `least` bytes, which are taken from the
    /// ballast if necessary.
    ///
    /// # Errors
    /// As `make` returned: with a full disk only once nothing is left of the ballast.
    pub(crate) fn make<T>(
        &self,
        usual: u64,
        least: u64,
        mut make: impl FnMut(u64) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut made = make(usual);
        match &made {
            Err(error) if is_full(error) => self.note_refusal(usual),
            Ok(_) if usual >= self.segment_bytes => self.refuses.store(false, Ordering::Relaxed),
            _ => {}
        }
        if made.as_ref().is_err_and(is_full) && least < usual {
            made = make(least);
        }
        let mut target = least;
        while made.as_ref().is_err_and(is_full) && self.shorten(target) {
            made = make(least);
            // Other programs may have taken the space, or the file system needs some itself.
            target = SEGMENT_BYTES_MIN;
        }
        self.measure();
        made
    }

    /// The same for copies of the running cycle. It leaves the snapshot's share, however fast other
    /// programs fill the disk: without a snapshot no space is ever freed.
    ///
    /// # Errors
    /// Also `StorageFull` where the snapshot, or the ends of leases, would have no room any more.
    pub(crate) fn make_for_compaction<T>(
        &self,
        bytes: u64,
        make: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        self.measure();
        let reserved = self.budget(0).snapshot_share().saturating_add(SEGMENT_BYTES_MIN);
        if self.takeable() < bytes.saturating_add(reserved) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.make_for_cycle(bytes, &self.compacted, make)
    }

    /// The same for the snapshot of the running cycle.
    ///
    /// # Errors
    /// Also `StorageFull` where the ends of leases would have no room any more.
    pub(crate) fn make_for_snapshot<T>(
        &self,
        bytes: u64,
        make: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        self.make_for_cycle(bytes, &self.in_snapshot, make)
    }

    fn make_for_cycle<T>(
        &self,
        bytes: u64,
        written: &AtomicU64,
        mut make: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        let ends = self.leases.load(Ordering::Relaxed).saturating_mul(LEASE_BYTES / 2);
        let all = self.takeable().saturating_add(self.in_segments.load(Ordering::Relaxed));
        if all < bytes.saturating_add(ends).saturating_add(SEGMENT_BYTES_MIN) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let made = self.make(bytes, bytes, |_| make())?;
        written.fetch_add(bytes, Ordering::Relaxed);
        Ok(made)
    }

    /// Bytes that a cycle may copy: they exist twice until it ends, and its snapshot needs room.
    pub(crate) fn compactable(&self, short: bool) -> u64 {
        let free = self.free.load(Ordering::Relaxed);
        let most = if short { COMPACTION_SEGMENTS * self.segment_bytes } else { free / 2 };
        let reserved = self.budget(0).snapshot_share() + SEGMENT_BYTES_MIN;
        most.min(self.takeable().saturating_sub(reserved))
    }

    /// Free bytes, plus those of the ballast.
    fn takeable(&self) -> u64 {
        self.free.load(Ordering::Relaxed).saturating_add(self.bytes())
    }

    /// Shortens the file by `bytes`; false if it is empty.
    fn shorten(&self, bytes: u64) -> bool {
        let file = self.file.lock();
        let has = self.bytes.load(Ordering::Relaxed);
        let left = has.saturating_sub(bytes);
        let Some(file) = file.as_ref().filter(|_| left < has) else { return false };
        let done = file.truncate(left).is_ok();
        if done {
            self.bytes.store(left, Ordering::Relaxed);
        }
        done
    }

    /// `bytes` more can be written into existing segments.
    pub(crate) fn add_in_segments(&self, bytes: u64) {
        self.in_segments.fetch_add(bytes, Ordering::Relaxed);
    }

    /// `bytes` were written into segments, or never will be.
    pub(crate) fn use_in_segments(&self, bytes: u64) {
        self.in_segments.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The newest snapshot has `newest` bytes, the next would have `next`.
    pub(crate) fn note_snapshots(&self, newest: u64, next: u64) {
        self.snapshot_bytes.store(newest.max(next), Ordering::Relaxed);
        self.growth_bytes.store(next.saturating_sub(newest), Ordering::Relaxed);
    }

    /// `leases` leases run.
    pub(crate) fn note_leases(&self, leases: u64) {
        self.leases.store(leases, Ordering::Relaxed);
    }

    /// Bytes of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether new work is refused.
    pub(crate) fn is_short(&self) -> bool {
        self.short.load(Ordering::Relaxed)
    }

    /// Whether the fallback snapshot must go: new work might be refused before the next cycle ends.
    pub(crate) fn is_tight(&self) -> bool {
        let budget = self.budget(0);
        let until_then = log_between(budget.snapshot_bytes, budget.segment_bytes);
        budget.headroom() < budget.ballast().saturating_add(until_then)
    }

    /// What may be appended while `uncommitted` bytes are not yet written. Cheap.
    pub(crate) fn budget(&self, uncommitted: u64) -> Budget {
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let mut budget = Budget {
            available: 0,
            segment_bytes: self.segment_bytes,
            snapshot_bytes: load(&self.snapshot_bytes),
            growth_bytes: load(&self.growth_bytes),
            leases: load(&self.leases),
            short: self.is_short(),
        };
        let all = self.takeable().saturating_add(load(&self.in_segments));
        let copies = COMPACTION_SEGMENTS * self.segment_bytes;
        let compacted = load(&self.compacted).min(copies);
        let by_cycle = compacted + load(&self.in_snapshot).min(budget.snapshot_share());
        budget.available = all.saturating_add(by_cycle).saturating_sub(uncommitted);
        let short = budget.is_short_after(budget.short);
        if short != budget.short {
            let (available, ballast) = (budget.available, self.bytes());
            tracing::warn!(short, available, ballast, "disk space level changed");
            self.short.store(short, Ordering::Relaxed);
            budget.short = short;
        }
        budget
    }
}

/// Whether the disk, or its user's quota, is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::journal::simulated_disk::{Call, Failure, Fault, SimulatedDisk};

    const MIB: u64 = 1024 * 1024;

    fn ballast(disk: &SimulatedDisk) -> Ballast {
        let ballast = Ballast::new(Arc::new(disk.clone()), "/data".into(), MIB);
        ballast.note_snapshots(8 * MIB, 0);
        ballast.open().unwrap();
        ballast
    }

    fn make(disk: &SimulatedDisk, ballast: &Ballast, name: &str, bytes: u64) -> io::Result<u64> {
        ballast.make(bytes, MIB.min(bytes), |bytes| {
            disk.create(Path::new(name))?.allocate(bytes)?;
            Ok(bytes)
        })
    }

    #[test]
    fn ballast_grows_as_room_allows_and_follows_snapshot_size() {
        let disk = SimulatedDisk::default();
        disk.set_capacity(Some(7 * MIB + 5));
        let ballast = ballast(&disk);
        assert_eq!(ballast.bytes(), 7 * MIB);
        disk.set_capacity(Some(64 * MIB));
        ballast.resize().unwrap();
        assert_eq!(ballast.bytes(), 12 * MIB);
        ballast.note_snapshots(0, 0);
        assert_eq!(ballast.bytes(), 12 * MIB, "until a cycle ends");
        ballast.resize().unwrap();
        assert_eq!(ballast.bytes(), 2 * MIB);
        drop(ballast);
        // A crash does not change it.
        let disk = disk.after_kill();
        disk.set_capacity(Some(2 * MIB));
        let again = Ballast::new(Arc::new(disk), "/data".into(), MIB);
        again.open().unwrap();
        assert_eq!(again.bytes(), 2 * MIB);
    }

    #[test]
    fn ballast_grows_between_cycles_with_the_expected_snapshot() {
        let disk = SimulatedDisk::default();
        let ballast = ballast(&disk);
        ballast.note_snapshots(8 * MIB, 10 * MIB);
        ballast.measure_and_grow();
        assert_eq!(ballast.bytes(), 13 * MIB, "a segment at a time");
        (0..9).for_each(|_| ballast.measure_and_grow());
        assert_eq!(ballast.bytes(), 17 * MIB, "1.25 × 10 MiB, 2 segments, 2 MiB more for the next");
        disk.leave_free(MIB - 1);
        ballast.note_snapshots(8 * MIB, 12 * MIB);
        ballast.measure_and_grow();
        assert_eq!(ballast.bytes(), 17 * MIB, "the disk has no room for a segment more");
    }

    #[test]
    fn disk_counts_as_full_while_it_refuses_what_it_reports_as_free() {
        let disk = SimulatedDisk::default();
        disk.set_capacity(Some(20 * MIB));
        disk.hide_capacity();
        let ballast = ballast(&disk);
        for n in 0..8 {
            make(&disk, &ballast, &format!("/{n}"), MIB).unwrap();
        }
        assert_eq!((ballast.bytes(), ballast.budget(0).short), (12 * MIB, false));
        make(&disk, &ballast, "/8", MIB).unwrap();
        assert_eq!((ballast.bytes(), ballast.budget(0).short), (11 * MIB, true));
        ballast.measure_and_grow();
        assert_eq!((ballast.bytes(), ballast.budget(0).short), (11 * MIB, true));
        // Room for the ballast alone is not yet room for a segment.
        for (capacity, short) in [(21 * MIB, true), (22 * MIB, false)] {
            disk.set_capacity(Some(capacity));
            ballast.measure_and_grow();
            assert_eq!(ballast.budget(0).short, short, "{capacity}");
        }
        assert_eq!(ballast.bytes(), 12 * MIB);
    }

    #[test]
    fn full_disk_gives_short_files_from_the_ballast() {
        let disk = SimulatedDisk::default();
        disk.set_capacity(Some(13 * MIB + 100));
        let ballast = ballast(&disk);
        assert_eq!(make(&disk, &ballast, "/a", 3 * MIB).unwrap(), MIB, "the shortest allowed");
        assert_eq!(ballast.bytes(), 12 * MIB);
        for left in (0..12).rev() {
            make(&disk, &ballast, &format!("/{left}"), MIB).unwrap();
            assert_eq!(ballast.bytes(), left * MIB);
        }
        let error = make(&disk, &ballast, "/c", MIB).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull, "the ballast is empty");
    }

    /// Writes 9 MiB.
    fn write_as_a_cycle(disk: &SimulatedDisk, ballast: &Ballast) {
        for n in 0..9 {
            let allocate = || disk.create(Path::new(&format!("/{n}")))?.allocate(MIB);
            match n {
                0..2 => ballast.make_for_compaction(MIB, allocate).unwrap(),
                _ => ballast.make_for_snapshot(MIB, allocate).unwrap(),
            }
        }
    }

    #[test]
    fn what_a_cycle_frees_counts_before_its_credits_end() {
        let (disk, old) = (SimulatedDisk::default(), Path::new("/old"));
        disk.create(old).unwrap().allocate(9 * MIB).unwrap();
        // Less than a segment of new work: once short, it would stay short.
        disk.leave_free(16 * MIB + MIB / 2);
        let ballast = ballast(&disk);
        let before = ballast.budget(0);
        assert_eq!((before.headroom(), before.short), (MIB / 2, false));
        write_as_a_cycle(&disk, &ballast);
        disk.remove(old).unwrap();
        ballast.resize().unwrap();
        assert_eq!(ballast.budget(0), before);
    }

    #[test]
    fn ballast_with_holes_is_allocated_as_far_as_there_is_room() {
        let disk = SimulatedDisk::default();
        assert_eq!(ballast(&disk).bytes(), 12 * MIB);
        disk.set_capacity(Some(3 * MIB));
        disk.fail(Fault::nth_of(Call::Allocate, 1).with(Failure::Full));
        assert_eq!(ballast(&disk).bytes(), 3 * MIB);
    }

    #[test]
    fn bytes_written_by_a_cycle_count_as_available_until_it_ends() {
        let disk = SimulatedDisk::default();
        disk.set_capacity(Some(20 * MIB));
        let ballast = ballast(&disk);
        let before = ballast.budget(0);
        assert_eq!((before.available, before.headroom()), (20 * MIB, 4 * MIB));
        assert_eq!([true, false].map(|short| ballast.compactable(short)), [2 * MIB, 4 * MIB]);
        write_as_a_cycle(&disk, &ballast);
        assert_eq!(ballast.budget(0), before);
        ballast.resize().unwrap();
        assert_eq!((ballast.budget(0).available, ballast.bytes()), (11 * MIB, 11 * MIB));
        assert_eq!(ballast.compactable(true), 0, "the next snapshot has room");
        // Room for the ends of leases is reserved too.
        ballast.note_leases(10 * MIB / (LEASE_BYTES / 2));
        let refused = ballast.make_for_snapshot(MIB, || Ok(())).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn compaction_copies_leave_room_for_the_snapshot() {
        let disk = SimulatedDisk::default();
        disk.set_capacity(Some(40 * MIB));
        let ballast = ballast(&disk);
        let copy = |n: u64| {
            let allocate = || disk.create(Path::new(&format!("/copy-{n}")))?.allocate(MIB);
            ballast.make_for_compaction(MIB, allocate)
        };
        let before = ballast.budget(0);
        for n in 0..4 {
            copy(n).unwrap();
        }
        let counted = before.available - ballast.budget(0).available;
        assert_eq!(counted, 2 * MIB, "what is copied counts up to two segments");
        disk.leave_free(0);
        copy(5).unwrap();
        assert_eq!(ballast.bytes(), 11 * MIB, "1.25 snapshots and a segment");
        assert_eq!(copy(6).unwrap_err().kind(), io::ErrorKind::StorageFull);
        let snapshot = || {
            ballast.make_for_snapshot(MIB, || disk.create(Path::new("/snapshot"))?.allocate(MIB))
        };
        snapshot().unwrap();
    }
}
