//! A simulated disk must do everything bad that a real one does, or it proves nothing.

use std::collections::BTreeSet;

use super::*;

const DIR: &str = "/d";

fn path(name: &str) -> PathBuf {
    Path::new(DIR).join(name)
}

/// Creates a file with these bytes; file and name are synced.
fn lasting(disk: &SimulatedDisk, name: &str, bytes: &[u8]) -> Arc<dyn JournalFile> {
    let file = disk.create(&path(name)).unwrap();
    file.write_at(bytes, 0).unwrap();
    file.sync_data().unwrap();
    disk.sync_dir(Path::new(DIR)).unwrap();
    file
}

fn contents(disk: &SimulatedDisk, name: &str) -> Option<Vec<u8>> {
    let file = disk.open(&path(name)).ok()?;
    let mut bytes = vec![0; file.len().unwrap() as usize];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    Some(bytes)
}

/// All results of `observe` over many power cuts.
fn outcomes<T: Ord>(disk: &SimulatedDisk, observe: impl Fn(&SimulatedDisk) -> T) -> BTreeSet<T> {
    (0..300).map(|seed| observe(&disk.after_power_cut(seed))).collect()
}

#[test]
fn unsynced_writes_survive_whole_partly_or_not_at_all() {
    let disk = SimulatedDisk::default();
    let file = lasting(&disk, "a", &[1; 2_000]);
    file.write_at(&[2; 2_000], 1_000).unwrap();
    let after = outcomes(&disk, |disk| contents(disk, "a").unwrap());
    for bytes in &after {
        assert!(bytes[..1_000] == [1; 1_000], "synced and not rewritten bytes survive");
    }
    let old = vec![1; 2_000];
    let new = [vec![1; 1_000], vec![2; 2_000]].concat();
    assert!(after.contains(&old) && after.contains(&new));
    assert!(after.len() > 100, "torn at any byte: {}", after.len());
    let has_hole = |bytes: &Vec<u8>| bytes.len() == 3_000 && bytes[1_000..].contains(&0);
    assert!(after.iter().any(has_hole), "its end without its middle");
    file.sync_data().unwrap();
    assert_eq!(outcomes(&disk, |disk| contents(disk, "a").unwrap()), BTreeSet::from([new]));
}

#[test]
fn unsynced_names_survive_independently() {
    let disk = SimulatedDisk::default();
    lasting(&disk, "old", b"1");
    lasting(&disk, "gone", b"2");
    disk.rename(&path("old"), &path("new")).unwrap();
    disk.remove(&path("gone")).unwrap();
    let observe = |disk: &SimulatedDisk| {
        ["old", "new", "gone"].map(|name| disk.paths().contains(&path(name)))
    };
    assert_eq!(observe(&disk), [false, true, false]);
    let after = outcomes(&disk, observe);
    let all: BTreeSet<_> = (0..8).map(|n| [n & 1 > 0, n & 2 > 0, n & 4 > 0]).collect();
    assert_eq!(after, all);
    disk.sync_dir(Path::new("/elsewhere")).unwrap();
    assert_eq!(outcomes(&disk, observe), all, "another directory's sync changes nothing");
    disk.sync_dir(Path::new(DIR)).unwrap();
    assert_eq!(outcomes(&disk, observe), BTreeSet::from([[false, true, false]]));
}

#[test]
fn name_and_data_of_a_new_file_survive_independently() {
    let disk = SimulatedDisk::default();
    let file = disk.create(&path("a")).unwrap();
    file.write_at(b"data", 0).unwrap();
    file.sync_data().unwrap();
    let observe = |disk: &SimulatedDisk| contents(disk, "a").map(|bytes| bytes.len());
    assert_eq!(outcomes(&disk, observe), BTreeSet::from([None, Some(4)]), "data without its name");
    let file = disk.create(&path("b")).unwrap();
    file.write_at(b"data", 0).unwrap();
    disk.sync_dir(Path::new(DIR)).unwrap();
    let observe = |disk: &SimulatedDisk| contents(disk, "b").unwrap().len();
    assert!(outcomes(&disk, observe).contains(&0), "its name without data");
}

#[test]
fn process_kill_loses_nothing_and_syncs_nothing() {
    let disk = SimulatedDisk::default();
    let file = disk.create(&path("a")).unwrap();
    file.write_at(b"data", 0).unwrap();
    let disk = disk.after_kill();
    assert_eq!(contents(&disk, "a").unwrap(), b"data");
    let after = outcomes(&disk, |disk| contents(disk, "a"));
    assert!(after.contains(&None) && after.contains(&Some(Vec::new())));
}

#[test]
fn nth_call_of_a_kind_fails_once_or_permanently() {
    let fill = |disk: &SimulatedDisk| {
        let file = disk.create(&path("a"))?;
        file.allocate(100)?;
        file.write_at(b"1", 0)?;
        file.write_at(b"2", 1)?;
        file.sync_data()?;
        disk.sync_dir(Path::new(DIR))?;
        disk.rename(&path("a"), &path("b"))?;
        let file = disk.open(&path("b"))?;
        file.read_at(&mut [0], 0)?;
        disk.remove(&path("b"))
    };
    use Call::{Allocate, Create, Open, Read, Remove, Rename, Sync, SyncDir, Write};
    for call in [Create, Allocate, Write, Sync, SyncDir, Rename, Open, Read, Remove] {
        for failure in [Failure::Device, Failure::Full, Failure::TooManyFiles] {
            let disk = SimulatedDisk::default();
            disk.fail(Fault::nth_of(call, 1).with(failure));
            let failed = fill(&disk).unwrap_err();
            assert_eq!(failed.raw_os_error(), failure.error().raw_os_error(), "{call:?}");
            assert_eq!(disk.hit().unwrap().0, call);
            fill(&disk).unwrap();
        }
        let disk = SimulatedDisk::default();
        disk.fail(Fault::nth_of(call, 1).for_good());
        assert!(fill(&disk).is_err());
        assert!(disk.create(&path("c")).is_err() && disk.list(Path::new(DIR)).is_err());
        disk.heal();
        fill(&disk).unwrap();
    }
    let disk = SimulatedDisk::default();
    disk.fail(Fault::nth_of(Write, 2));
    fill(&disk).unwrap_err();
    assert_eq!(&disk.tamper(&path("a"), |bytes| bytes.clone())[..1], b"1", "the first went well");
    let (mut nth, mut failed) = (1, true);
    while failed {
        let disk = SimulatedDisk::default();
        disk.fail(Fault::nth(nth));
        failed = fill(&disk).is_err();
        nth += 1;
    }
    assert_eq!(nth - 1, 11, "ten calls fail, one after the other");
}

#[test]
fn data_dropped_by_a_failed_sync_is_never_written_later() {
    let disk = SimulatedDisk::default();
    let mut lost = 0;
    for name in (0..50).map(|n| n.to_string()) {
        let file = lasting(&disk, &name, b"");
        file.write_at(b"data", 0).unwrap();
        disk.fail(Fault::nth_of(Call::Sync, 1));
        assert!(file.sync_data().is_err());
        file.sync_data().unwrap();
        assert_eq!(contents(&disk, &name).unwrap(), b"data", "it is still in the page cache");
        lost += u32::from(contents(&disk.after_power_cut(1), &name).unwrap() != b"data");
        file.write_at(b"data", 0).unwrap();
        file.sync_data().unwrap();
        assert_eq!(contents(&disk.after_power_cut(1), &name).unwrap(), b"data");
    }
    assert!((5..50).contains(&lost), "{lost}");
}

#[test]
fn full_disk_accepts_only_writes_into_allocated_room() {
    let disk = SimulatedDisk::default();
    disk.set_capacity(Some(1_000));
    let file = disk.create(&path("a")).unwrap();
    assert_eq!(file.allocate(1_001).unwrap_err().kind(), io::ErrorKind::StorageFull);
    file.allocate(800).unwrap();
    assert_eq!(disk.free(), 200);
    let other = disk.create(&path("b")).unwrap();
    assert_eq!(other.write_at(&[2; 201], 0).unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!((other.len().unwrap(), disk.free()), (200, 0), "what fits is written");
    file.write_at(&[1; 800], 0).unwrap();
    assert_eq!(file.write_at(&[1; 2], 799).unwrap_err().kind(), io::ErrorKind::StorageFull);
    disk.set_capacity(Some(500));
    file.write_at(&[3; 800], 0).unwrap();
    disk.set_capacity(Some(2_000));
    assert_eq!(disk.free(), 1_000);
    disk.remove(&path("a")).unwrap();
    assert_eq!(disk.free(), 1_000, "the file is still open");
    drop(file);
    assert_eq!(disk.free(), 1_800);
    assert!(disk.after_power_cut(1).free() <= 2_000, "its capacity stays");
}

#[test]
fn short_system_reads_are_completed() {
    let disk = SimulatedDisk::default();
    let bytes: Vec<u8> = (0..10_000u32).map(|n| n as u8).collect();
    lasting(&disk, "a", &bytes);
    disk.read_short(true);
    for _ in 0..20 {
        assert!(contents(&disk, "a").unwrap() == bytes);
    }
    let file = disk.open(&path("a")).unwrap();
    assert_eq!(file.read_at(&mut [0; 100], 9_950).unwrap(), 50, "fewer only at the end");
}

#[test]
fn blocked_syncs_do_not_delay_other_files() {
    let disk = SimulatedDisk::default();
    let (slow, quick) = (lasting(&disk, "slow", b"1"), lasting(&disk, "quick", b"1"));
    disk.block_syncs_of([path("slow")]);
    slow.write_at(b"2", 0).unwrap();
    let waits = std::thread::spawn(move || slow.sync_data());
    while disk.blocked_syncs() == 0 {
        std::thread::yield_now();
    }
    quick.sync_data().unwrap();
    assert!(outcomes(&disk, |disk| contents(disk, "slow")).len() > 1, "it does not last yet");
    disk.block_syncs(false);
    waits.join().unwrap().unwrap();
    assert_eq!(outcomes(&disk, |disk| contents(disk, "slow")).len(), 1);
}

#[test]
fn flipped_bit_stays_flipped() {
    let disk = SimulatedDisk::default();
    lasting(&disk, "a", &[0; 100]);
    disk.flip(&path("a"), 8 * 50 + 3);
    for disk in [disk.after_kill(), disk.after_power_cut(1)] {
        let mut bytes = contents(&disk, "a").unwrap();
        assert_eq!(std::mem::take(&mut bytes[50]), 1 << 3);
        assert!(bytes == [0; 100]);
    }
}

#[test]
fn same_calls_and_seed_give_the_same_disk() {
    let run = |seed| {
        let disk = SimulatedDisk::default();
        disk.read_short(true);
        for n in 0..20 {
            let file = disk.create(&path(&n.to_string())).unwrap();
            file.write_at(&[n; 3_000], 0).unwrap();
            disk.fail(Fault::nth_of(Call::Sync, 1));
            assert!(file.sync_data().is_err());
        }
        let disk = disk.after_power_cut(seed);
        let names: Vec<_> = disk.paths();
        let read = |path: &PathBuf| contents(&disk, path.file_name().unwrap().to_str().unwrap());
        (names.iter().map(read).collect::<Vec<_>>(), disk.trace())
    };
    assert!(run(1) == run(1));
    assert!(run(1).0 != run(2).0);
}
