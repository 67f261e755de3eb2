//! Room kept for what must go on when the disk is full: a file of no content, which gives up its bytes when they are needed.
//!
//! Others write to the disk, too, so a number would not do: only what has been taken is there. A crash leaves the file as it
//! is; nothing in it is ever read.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::files::{Files, JournalFile};
use super::space::{Needs, Part, STEP_BYTES, Space, SpaceLevel, Stock};

/// The file's name in the data directory.
pub(crate) const RESERVE_FILE: &str = "reserve";

/// The reserve, and what is known of the room on the disk. Asked and told by all threads of a journal.
pub(crate) struct Reserve {
    files: Arc<dyn Files>,
    dir: PathBuf,
    segment_bytes: u64,
    /// None until it is opened: a journal that is only read has no reserve.
    file: Mutex<Option<Arc<dyn JournalFile>>>,
    /// Its length.
    bytes: AtomicU64,
    /// As the disk said last; 0 since it refused something.
    free: AtomicU64,
    /// Bytes that can still be written into segments that are there.
    room: AtomicU64,
    running_leases: AtomicU64,
    snapshot_bytes: AtomicU64,
    /// Bytes that the cycle under way has taken of the disk.
    taken: AtomicU64,
    /// Bytes of the reserve that it was given for them: as good as there, because they are for just that.
    drawn: AtomicU64,
    /// Bytes of those that went into what it carries.
    carried: AtomicU64,
    /// The last level, as its place in [`SpaceLevel::ALL`].
    level: AtomicU8,
    /// The disk was looked at since that level began.
    looked: AtomicBool,
}

impl Reserve {
    pub(crate) fn new(files: Arc<dyn Files>, dir: PathBuf, segment_bytes: u64) -> Reserve {
        Reserve {
            files,
            dir,
            segment_bytes,
            file: Mutex::new(None),
            bytes: AtomicU64::new(0),
            free: AtomicU64::new(u64::MAX / 4),
            room: AtomicU64::new(0),
            running_leases: AtomicU64::new(0),
            snapshot_bytes: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            drawn: AtomicU64::new(0),
            carried: AtomicU64::new(0),
            level: AtomicU8::new(0),
            looked: AtomicBool::new(false),
        }
    }

    /// Opens the file, or makes it, and brings it to its size as far as the disk has room.
    pub(crate) fn open(&self) -> io::Result<()> {
        let path = self.dir.join(RESERVE_FILE);
        let file = match self.files.open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.files.create(&path)?,
            opened => opened?,
        };
        self.bytes.store(file.len()?, Ordering::Relaxed);
        *self.file.lock() = Some(file);
        self.keep()
    }

    /// Measures the disk, and brings the file to the size that it is to have, as far as there is room. A full disk is no
    /// failure: what is missing comes with a later call.
    pub(crate) fn keep(&self) -> io::Result<()> {
        let file = self.file.lock();
        let Some(file) = &*file else { return Ok(()) };
        let mut free = self.files.free_bytes(&self.dir)?;
        let bytes = self.bytes.load(Ordering::Relaxed);
        // What a cycle has drawn comes back at its end: until then the disk need not have it twice.
        let drawn = self.drawn.load(Ordering::Relaxed);
        let needs = self.needs();
        let least = needs.not_for_cycles();
        let wanted = needs.reserve_after(bytes + drawn).saturating_sub(drawn).max(least);
        if wanted < bytes {
            file.truncate(wanted)?;
            free = self.files.free_bytes(&self.dir)?;
            self.free.store(free, Ordering::Relaxed);
            self.bytes.store(wanted, Ordering::Relaxed);
        }
        let mut at = bytes;
        // Step by step: what there is, is better than nothing.
        while at < wanted && free > 0 {
            let next = (at + STEP_BYTES).min(wanted);
            match file.allocate(next) {
                Ok(()) => free = self.files.free_bytes(&self.dir)?,
                Err(error) if is_full(&error) => {
                    // It may have got a part of it.
                    file.truncate(at)?;
                    free = 0;
                    break;
                }
                Err(error) => return Err(error),
            }
            at = next;
            self.bytes.store(at, Ordering::Relaxed);
        }
        self.free.store(free, Ordering::Relaxed);
        self.looked.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Makes a file of `usual` bytes, or writes as many. On a full disk, of `least` bytes, out of the reserve if need be.
    ///
    /// # Errors
    /// As `make` said: with a full disk only once nothing is left of the reserve.
    pub(crate) fn make<T>(
        &self,
        usual: u64,
        least: u64,
        mut make: impl FnMut(u64) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut made = make(usual);
        if !made.as_ref().is_err_and(is_full) {
            self.measure();
            return made;
        }
        // What the disk says is free is not for this process: a quota, or a part that it keeps for itself.
        self.free.store(0, Ordering::Relaxed);
        if least < usual {
            made = make(least);
        }
        let mut wanted = least;
        while made.as_ref().is_err_and(is_full) && self.give(wanted) > 0 {
            made = make(least);
            // Others may have been quicker, or the file system needs some for itself.
            wanted = STEP_BYTES;
        }
        // What was given is used.
        self.free.store(0, Ordering::Relaxed);
        made
    }

    /// Makes a file of so many bytes for the cycle under way, or writes as many: in place of the reserve, as far as that is
    /// there for cycles. So the disk does not hold a snapshot, the next one, and room for the next one. Of what is kept for all
    /// else it leaves what [`Needs::left_by`] says.
    ///
    /// # Errors
    /// As `make` said: with a full disk only once nothing is left of the part that is for cycles. The disk is full for what is
    /// carried, too, when there would be no room for the snapshot after it.
    pub(crate) fn make_for_cycle<T>(
        &self,
        part: Part,
        bytes: u64,
        mut make: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        if part == Part::Cleaning && !self.leaves_a_snapshot(bytes) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let taken = self.taken.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.draw(part, taken.saturating_sub(self.drawn.load(Ordering::Relaxed)));
        loop {
            let made = make();
            if !made.as_ref().is_err_and(is_full) {
                self.measure();
                return made;
            }
            self.free.store(0, Ordering::Relaxed);
            // Others may have been quicker, or the file system needs some for itself.
            if self.draw(part, STEP_BYTES) == 0 {
                return made;
            }
        }
    }

    /// Gives the disk up to so many bytes of the reserve's part for cycles, a step at least, and says how many.
    fn draw(&self, part: Part, bytes: u64) -> u64 {
        if bytes == 0 {
            return 0;
        }
        let file = self.file.lock();
        let needs = self.needs();
        let left = needs.bytes_for(part).saturating_sub(self.drawn.load(Ordering::Relaxed));
        // A reserve that others kept from filling up has less for cycles, and not less for the ends of leases.
        let leaves = needs.left_by(part, self.room.load(Ordering::Relaxed));
        let above = self.bytes.load(Ordering::Relaxed).saturating_sub(leaves);
        let given = self.shorten(file.as_deref(), bytes.max(STEP_BYTES).min(left).min(above));
        self.drawn.fetch_add(given, Ordering::Relaxed);
        if part == Part::Cleaning {
            self.carried.fetch_add(given, Ordering::Relaxed);
        }
        given
    }

    /// Whether the disk still has room for the cycle's snapshot when so many bytes more are carried. Those who enqueue fill the disk
    /// at the same time, so it is asked; where it refused something before, less than it says is for this process.
    fn leaves_a_snapshot(&self, bytes: u64) -> bool {
        let free = self.free().min(self.files.free_bytes(&self.dir).unwrap_or(0));
        let leaves = self.needs().left_by(Part::Cleaning, self.room.load(Ordering::Relaxed));
        self.bytes().saturating_add(free) >= bytes.saturating_add(leaves)
    }

    /// Gives the disk up to so many bytes of the reserve back, and says how many.
    fn give(&self, bytes: u64) -> u64 {
        self.shorten(self.file.lock().as_deref(), bytes)
    }

    fn shorten(&self, file: Option<&dyn JournalFile>, bytes: u64) -> u64 {
        let Some(file) = file else { return 0 };
        let has = self.bytes.load(Ordering::Relaxed);
        let left = has.saturating_sub(bytes);
        if left == has || file.truncate(left).is_err() {
            return 0;
        }
        // In this order: to who asks in between there is more room than there is, and never less. A level that fell for that
        // moment would not rise as soon.
        self.free.fetch_add(has - left, Ordering::Relaxed);
        self.bytes.store(left, Ordering::Relaxed);
        has - left
    }

    /// Asks the disk how much is free.
    fn measure(&self) {
        // A disk that cannot say refuses when it must: what is known counts on.
        if let Ok(free) = self.files.free_bytes(&self.dir) {
            self.free.store(free, Ordering::Relaxed);
        }
    }

    /// So many more bytes can be written into segments that are there.
    pub(crate) fn add_room(&self, bytes: u64) {
        self.room.fetch_add(bytes, Ordering::Relaxed);
    }

    /// So many bytes have been written into segments, or will never be.
    pub(crate) fn use_room(&self, bytes: u64) {
        self.room.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// So many leases run.
    pub(crate) fn note_running(&self, leases: u64) {
        self.running_leases.store(leases, Ordering::Relaxed);
    }

    /// Bytes of the disk that were free when it was measured last.
    pub(crate) fn free(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    /// The cycle is over: what it took was worth it, or has been given back.
    pub(crate) fn repaid(&self) {
        self.measure();
        self.taken.store(0, Ordering::Relaxed);
        self.drawn.store(0, Ordering::Relaxed);
        self.carried.store(0, Ordering::Relaxed);
    }

    /// A snapshot has so many bytes, or would have.
    pub(crate) fn note_snapshot(&self, bytes: u64) {
        self.snapshot_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Bytes that are kept: the file's, and what the cycle under way has drawn for what it was kept for.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.bytes() + self.drawn.load(Ordering::Relaxed)
    }

    /// Bytes of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The level as it was worked out last.
    pub(crate) fn level(&self) -> SpaceLevel {
        let level = SpaceLevel::ALL.get(usize::from(self.level.load(Ordering::Relaxed)));
        level.copied().unwrap_or_default()
    }

    /// What is still taken, when so many bytes have been appended and are not yet written. Cheap.
    pub(crate) fn space(&self, uncommitted: u64) -> Space {
        let stock = Stock {
            room: self.room.load(Ordering::Relaxed),
            free: self.free.load(Ordering::Relaxed),
            reserve: self.kept_bytes(),
            carried: self.carried.load(Ordering::Relaxed),
            uncommitted,
        };
        let (needs, before) = (self.needs(), self.level());
        let level = needs.level(before, self.looked.load(Ordering::Relaxed), &stock);
        if level != before {
            self.looked.store(false, Ordering::Relaxed);
            let (room, free, reserve) = (stock.room, stock.free, stock.reserve);
            tracing::warn!(
                ?level,
                ?before,
                room,
                free,
                reserve,
                "the room on the disk has changed"
            );
            self.level.store(level as u8, Ordering::Relaxed);
        }
        Space { level, headroom: needs.headroom(&stock) }
    }

    fn needs(&self) -> Needs {
        Needs {
            segment_bytes: self.segment_bytes,
            snapshot_bytes: self.snapshot_bytes.load(Ordering::Relaxed),
            running_leases: self.running_leases.load(Ordering::Relaxed),
        }
    }
}

/// Whether the disk, or what its user may have of it, is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::journal::SEGMENT_BYTES_MIN;
    use crate::journal::simulated_disk::SimulatedDisk;

    const MIB: u64 = 1024 * 1024;
    /// Of one-MiB segments and no leases.
    const FULL: u64 = 4 * MIB;

    fn reserve(disk: &SimulatedDisk) -> Reserve {
        let reserve = Reserve::new(Arc::new(disk.clone()), "/data".into(), SEGMENT_BYTES_MIN);
        reserve.open().unwrap();
        reserve
    }

    /// Something else that takes room.
    fn ballast(disk: &SimulatedDisk, bytes: u64) -> Arc<dyn JournalFile> {
        let file = disk.create(Path::new("/ballast")).unwrap();
        file.allocate(bytes).unwrap();
        file
    }

    fn make(disk: &SimulatedDisk, reserve: &Reserve, name: &str, bytes: u64) -> io::Result<u64> {
        reserve.make(bytes, MIB.min(bytes), |bytes| {
            disk.create(Path::new(name))?.allocate(bytes)?;
            Ok(bytes)
        })
    }

    fn carry(disk: &SimulatedDisk, reserve: &Reserve, name: &str, bytes: u64) -> io::Result<()> {
        reserve
            .make_for_cycle(Part::Cleaning, bytes, || disk.create(Path::new(name))?.allocate(bytes))
    }

    fn make_for_cycle(
        disk: &SimulatedDisk,
        reserve: &Reserve,
        name: &str,
        bytes: u64,
    ) -> io::Result<()> {
        reserve
            .make_for_cycle(Part::Snapshot, bytes, || disk.create(Path::new(name))?.allocate(bytes))
    }

    fn free_bytes(disk: &SimulatedDisk) -> u64 {
        disk.free_bytes(Path::new("/")).unwrap()
    }

    #[test]
    fn it_takes_its_size_grows_with_leases_and_gives_back_what_is_too_much() {
        let disk = SimulatedDisk::default();
        disk.set_capacity(Some(64 * MIB));
        let reserve = reserve(&disk);
        assert_eq!(reserve.bytes(), FULL);
        reserve.note_running(1_000);
        assert_eq!(reserve.bytes(), FULL, "only the keeper's thread changes the file");
        reserve.keep().unwrap();
        assert_eq!(reserve.bytes(), 9 * MIB);
        reserve.note_running(900);
        reserve.keep().unwrap();
        assert_eq!(reserve.bytes(), 9 * MIB);
        reserve.note_running(0);
        reserve.keep().unwrap();
        assert_eq!((reserve.bytes(), disk.free_bytes(Path::new("/")).unwrap()), (FULL, 60 * MIB));
        reserve.note_snapshot(8 * MIB);
        reserve.keep().unwrap();
        assert_eq!(reserve.bytes(), 14 * MIB);
    }

    #[test]
    fn what_the_disk_has_no_room_for_is_made_of_it_and_comes_back() {
        let disk = SimulatedDisk::default();
        disk.set_capacity(Some(8 * MIB));
        let reserve = reserve(&disk);
        let ballast = ballast(&disk, 4 * MIB - 100);
        assert_eq!(make(&disk, &reserve, "/a", 3 * MIB).unwrap(), MIB, "no longer than it must be");
        assert_eq!(reserve.bytes(), FULL - MIB);
        // 100 bytes are free, and another MiB is needed: the reserve is never asked for less than is missing.
        for left in [2, 1, 0] {
            make(&disk, &reserve, &format!("/b{left}"), MIB).unwrap();
            assert_eq!(reserve.bytes(), left * MIB);
        }
        let error = make(&disk, &reserve, "/c", MIB).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull, "nothing is left of it");
        reserve.keep().unwrap();
        assert_eq!(reserve.bytes(), 0);
        ballast.truncate(MIB).unwrap();
        reserve.keep().unwrap();
        assert_eq!(reserve.bytes(), 3 * MIB, "as far as there is room");
        ballast.truncate(0).unwrap();
        reserve.keep().unwrap();
        assert_eq!(reserve.bytes(), FULL);
    }

    #[test]
    fn what_a_cycle_takes_of_its_part_of_the_reserve_holds_no_work_up_and_more_it_does_not_get() {
        let disk = SimulatedDisk::default();
        disk.set_capacity(Some(FULL));
        let reserve = reserve(&disk);
        assert_eq!(reserve.space(0).level, SpaceLevel::NoEnqueues);
        for n in 0..2 {
            make_for_cycle(&disk, &reserve, &format!("/unfinished{n}"), MIB).unwrap();
        }
        assert_eq!(reserve.space(0).level, SpaceLevel::NoEnqueues, "that is what it is for");
        let third = make_for_cycle(&disk, &reserve, "/unfinished2", MIB).unwrap_err();
        assert_eq!(third.kind(), io::ErrorKind::StorageFull);
        assert_eq!((reserve.bytes(), reserve.space(0).level), (2 * MIB, SpaceLevel::NoEnqueues));
        // What runs can still end.
        make(&disk, &reserve, "/segment", MIB).unwrap();
        reserve.repaid();
        assert_eq!(reserve.space(0).level, SpaceLevel::Hold, "it has not come back");
    }

    #[test]
    fn a_cycle_is_written_in_place_of_the_reserve_which_then_comes_back() {
        let disk = SimulatedDisk::default();
        disk.set_capacity(Some(64 * MIB));
        let reserve = reserve(&disk);
        reserve.note_snapshot(8 * MIB);
        reserve.keep().unwrap();
        let (full, free) = (14 * MIB, 50 * MIB);
        let space = reserve.space(0);
        for n in 1..=12 {
            make_for_cycle(&disk, &reserve, &format!("/new{n}"), MIB).unwrap();
            reserve.keep().unwrap();
            assert_eq!((reserve.bytes(), free_bytes(&disk)), (full - n * MIB, free), "{n}");
            assert_eq!(reserve.space(0), space);
        }
        // What is kept for leases and links is not for cycles.
        make_for_cycle(&disk, &reserve, "/new13", 3 * MIB).unwrap();
        assert_eq!((reserve.bytes(), free_bytes(&disk)), (2 * MIB, free - 3 * MIB));
        let (now, before) = (reserve.space(0).headroom, space.headroom);
        assert_eq!(now, before - 3 * MIB, "that room is gone");
        // The state has become small: what leases need stays.
        reserve.note_snapshot(0);
        reserve.keep().unwrap();
        assert_eq!(reserve.bytes(), 2 * MIB);
        reserve.note_snapshot(8 * MIB);
        reserve.repaid();
        reserve.keep().unwrap();
        assert_eq!(reserve.bytes(), full);
    }

    #[test]
    fn what_is_carried_leaves_the_snapshots_part_of_the_reserve_alone() {
        let disk = SimulatedDisk::default();
        let reserve = reserve(&disk);
        reserve.note_snapshot(8 * MIB);
        reserve.keep().unwrap();
        assert_eq!(reserve.bytes(), 14 * MIB);
        disk.leave_free(0);
        carry(&disk, &reserve, "/first", 2 * MIB).unwrap();
        let second = carry(&disk, &reserve, "/second", MIB).unwrap_err();
        assert_eq!((second.kind(), reserve.bytes()), (io::ErrorKind::StorageFull, 12 * MIB));
        for n in 0..10 {
            make_for_cycle(&disk, &reserve, &format!("/snapshot{n}"), MIB).unwrap();
        }
        assert_eq!(reserve.bytes(), 2 * MIB, "what leases and links need");
    }

    /// A cycle that began with room carries while the disk is filled by others: it stops in time.
    #[test]
    fn what_is_carried_on_a_disk_that_fills_up_leaves_room_for_the_snapshot() {
        let disk = SimulatedDisk::default();
        let reserve = reserve(&disk);
        reserve.note_snapshot(MIB / 2);
        // The reserve is of before the jobs: it lacks the MiB for their snapshot.
        assert_eq!(reserve.bytes(), FULL);
        disk.leave_free(3 * MIB);
        reserve.add_room(MIB);
        let carried = (0..).take_while(|n| carry(&disk, &reserve, &format!("/{n}"), MIB).is_ok());
        // 7 MiB, less half a one and a quarter of that for the snapshot, and one for commits: they have the other in their segments.
        assert_eq!(carried.count(), 5);
        make_for_cycle(&disk, &reserve, "/snapshot", MIB / 2 + MIB / 8).unwrap();
        // What leases and links need is still there, for the segment that they need next.
        make(&disk, &reserve, "/segment", MIB).unwrap();
    }

    /// As it was left by a cycle that could not be ended: what it carried is there twice.
    #[test]
    fn a_snapshot_may_take_what_commits_have_in_segments() {
        let disk = SimulatedDisk::default();
        let reserve = reserve(&disk);
        reserve.note_snapshot(MIB / 2);
        disk.leave_free(0);
        for name in ["/a", "/b", "/c"] {
            make(&disk, &reserve, name, MIB).unwrap();
        }
        assert_eq!(reserve.bytes(), MIB);
        make_for_cycle(&disk, &reserve, "/snapshot", MIB / 2).unwrap_err();
        reserve.repaid();
        reserve.add_room(2 * MIB);
        make_for_cycle(&disk, &reserve, "/snapshot", MIB / 2).unwrap();
    }

    #[test]
    fn what_is_carried_is_no_room_for_a_snapshot_and_holds_work_up() {
        let disk = SimulatedDisk::default();
        let reserve = reserve(&disk);
        reserve.note_snapshot(8 * MIB);
        reserve.keep().unwrap();
        disk.leave_free(0);
        reserve.keep().unwrap();
        assert_eq!(reserve.bytes(), 14 * MIB);
        carry(&disk, &reserve, "/carried", 2 * MIB).unwrap();
        assert_eq!(reserve.space(0).level, SpaceLevel::NoEnqueues, "there is room for a snapshot");
        make(&disk, &reserve, "/segment", MIB).unwrap();
        assert_eq!(reserve.space(0).level, SpaceLevel::Hold);
    }

    #[test]
    fn where_a_short_file_fits_the_reserve_is_left_alone() {
        let disk = SimulatedDisk::default();
        disk.set_capacity(Some(8 * MIB));
        let reserve = reserve(&disk);
        assert_eq!(make(&disk, &reserve, "/a", 5 * MIB).unwrap(), MIB);
        assert_eq!(reserve.bytes(), FULL);
    }

    #[test]
    fn the_level_follows_what_is_written_freed_and_refused() {
        let disk = SimulatedDisk::default();
        disk.set_capacity(Some(16 * MIB));
        let reserve = reserve(&disk);
        reserve.add_room(MIB);
        let space = reserve.space(0);
        assert_eq!(space, Space { level: SpaceLevel::Open, headroom: 11 * MIB });
        assert_eq!(reserve.space(10 * MIB).headroom, MIB, "what is on its way is as good as there");
        let ballast = ballast(&disk, 11 * MIB);
        reserve.keep().unwrap();
        // A MiB is free, and one is room.
        assert_eq!(reserve.space(0), Space { level: SpaceLevel::NoEnqueues, headroom: 0 });
        reserve.use_room(MIB);
        assert_eq!(reserve.space(0).level, SpaceLevel::NoEnqueues);
        for name in ["/a", "/b", "/c", "/d"] {
            make(&disk, &reserve, name, MIB).unwrap();
        }
        assert_eq!((reserve.bytes(), reserve.space(0).level), (FULL - 3 * MIB, SpaceLevel::Hold));
        ballast.truncate(4 * MIB).unwrap();
        reserve.keep().unwrap();
        assert_eq!((reserve.bytes(), reserve.level()), (FULL, SpaceLevel::Hold));
        assert_eq!(reserve.space(0).level, SpaceLevel::Open);
        assert_eq!(reserve.level(), SpaceLevel::Open);
    }

    #[test]
    fn after_a_crash_it_is_as_it_was_and_brought_to_its_size() {
        let disk = SimulatedDisk::default();
        drop(reserve(&disk));
        let disk = disk.after_kill();
        disk.set_capacity(Some(FULL));
        let again = Reserve::new(Arc::new(disk.clone()), "/data".into(), 3 * SEGMENT_BYTES_MIN);
        again.open().unwrap();
        assert_eq!(again.bytes(), FULL, "what it had, although the disk has no more");
        disk.set_capacity(None);
        again.keep().unwrap();
        assert_eq!(again.bytes(), FULL + 4 * MIB);
    }
}
