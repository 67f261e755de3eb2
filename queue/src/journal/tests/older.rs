//! A directory of format 2, as the program before this one left it: `queue/tests/fixtures/format-2`.

use super::*;
use crate::RecordRef;
use crate::journal::format::{SegmentHeader, SegmentKind};
use crate::log::Records;

const JOURNAL: PublisherId = PublisherId([0x22; 16]);
const IDENTITY: &[u8] = include_bytes!("../../../tests/fixtures/format-2/publisher");
const MARK: &[u8] = include_bytes!("../../../tests/fixtures/format-2/mark");
/// Cut short behind its last record.
const SEGMENT: &[u8] = include_bytes!("../../../tests/fixtures/format-2/segments/0000000002.seg");
/// Index, kind, length and CRC32C of the body of its commands: a start, two links, a subscription, batches of three and of two
/// jobs, credit, a settle.
const COMMANDS: [(u64, u8, usize, u32); 8] = [
    (1, 1, 38, 0x76fb_2630),
    (2, 2, 27, 0xa151_cbfc),
    (3, 2, 27, 0x9073_c9bc),
    (4, 4, 14, 0x5b41_1391),
    (5, 8, 185, 0xf589_66a4),
    (6, 8, 5_574, 0xe369_28ff),
    (7, 6, 3, 0xdd92_19f7),
    (8, 9, 25, 0xf220_d3e4),
];

fn path(name: &str) -> std::path::PathBuf {
    Path::new(DIR).join(name)
}

fn put(disk: &SimulatedDisk, name: &str, bytes: &[u8]) {
    let file = disk.create(&path(name)).unwrap();
    file.write_at(bytes, 0).unwrap();
    file.sync_data().unwrap();
}

/// The segment as long as it was: there is room in it.
fn segment() -> Vec<u8> {
    let mut bytes = SEGMENT.to_vec();
    bytes.resize(SEGMENT_BYTES_MIN as usize, 0);
    bytes
}

/// The fixture, with a segment made ahead as most directories have.
fn fixture() -> SimulatedDisk {
    let disk = SimulatedDisk::default();
    put(&disk, "publisher", IDENTITY);
    put(&disk, "mark", MARK);
    put(&disk, "segments/0000000002.seg", &segment());
    let (version, kind) = (2, SegmentKind::Log);
    let ahead = SegmentHeader { version, kind, journal: JOURNAL, sequence: 3, first_index: 0 };
    put(&disk, "segments/0000000003.seg", &ahead.encode());
    disk.sync_dir(Path::new(DIR)).unwrap();
    disk.sync_dir(&path("segments")).unwrap();
    disk
}

fn bytes_of(disk: &SimulatedDisk, name: &str) -> Vec<u8> {
    disk.tamper(&path(name), |bytes| bytes.clone())
}

fn assert_is_the_fixture(read: &Read) {
    let told = |(index, _, kind, body): &(u64, Now, u8, Bytes)| {
        (*index, *kind, body.len(), crc32c::crc32c(body))
    };
    let told: Vec<_> = read.iter().map(told).collect();
    assert_eq!(told, COMMANDS);
}

#[test]
fn a_directory_of_format_2_gives_its_commands_and_goes_on_in_format_3() {
    let disk = fixture();
    let (mut journal, read, recovered) = Stepped::open(&disk).unwrap();
    assert_is_the_fixture(&read);
    assert_eq!((recovered.publisher, recovered.cut), (JOURNAL, None));
    let is_as_it_was = || bytes_of(&disk, "segments/0000000002.seg") == segment();
    assert!(is_as_it_was(), "nothing is written to it");
    let says = String::from_utf8(bytes_of(&disk, "publisher")).unwrap();
    assert!(says.starts_with(&format!("longshore journal 3\njournal {JOURNAL}\n")), "{says}");
    // A body of two blocks, and a short one.
    journal.write(1, 5_000).unwrap();
    journal.write(1, 50).unwrap();
    assert!(is_as_it_was(), "nor later");
    let mut header = [0; 4096];
    header.copy_from_slice(&bytes_of(&disk, "segments/0000000004.seg")[..4096]);
    let header = SegmentHeader::decode(&header).unwrap();
    assert_eq!((header.version, header.first_index), (3, 9));

    let (parts, mut read) = open_parts(&disk.after_kill(), options()).unwrap();
    let new: Read = read.split_off(8);
    assert_is_the_fixture(&read);
    let lengths = [(9, 5_000), (10, 50)];
    let wanted = lengths.map(|(index, length)| (index, body(index, length)));
    let new: Vec<_> = new.into_iter().map(|(index, _, _, body)| (index, body.slice(8..))).collect();
    assert_eq!(new, wanted);
    // Parts of both formats are read back.
    for (index, _, _, body) in &read {
        for at in (0..body.len()).step_by(700) {
            let length = 300.min(body.len() - at);
            let part = RecordRef { index: *index, at: at as u32, length: length as u32 };
            assert_eq!(parts.records.part(part).unwrap(), body[at..at + length]);
        }
    }
    let part = RecordRef { index: 9, at: 4_000, length: 1_000 };
    assert_eq!(parts.records.part(part).unwrap(), body(9, 5_000)[3_992..4_992]);
}

#[test]
fn a_directory_of_format_2_is_upgraded_whole_or_not_at_all() {
    let mut call = 1;
    loop {
        let disk = fixture();
        disk.fail_at(disk.calls() + call);
        let done = Stepped::open(&disk)
            .map_err(|_| ())
            .and_then(|(mut journal, _, _)| journal.write(1, 5_000).map_err(|_| ()))
            .is_ok();
        for seed in 0..20 {
            let disk = disk.after_power_cut(seed);
            let (mut journal, mut read, _) =
                Stepped::open(&disk).unwrap_or_else(|why| panic!("call {call}: {why}"));
            assert!(!done || read.len() == 9);
            read.truncate(8);
            assert_is_the_fixture(&read);
            journal.write(1, 5_000).unwrap();
        }
        if done {
            break;
        }
        call += 1;
    }
    assert!(call > 8, "it makes many calls: {call}");
}

#[test]
fn a_segment_that_is_shorter_than_it_was_will_do() {
    let disk = fixture();
    put(&disk, "segments/0000000002.seg", SEGMENT);
    let (mut journal, read, _) = Stepped::open(&disk).unwrap();
    assert_is_the_fixture(&read);
    journal.write(1, 50).unwrap();
    assert_eq!(Stepped::open(&disk.after_kill()).unwrap().1.len(), 9);
}

#[test]
fn what_is_refused_is_not_upgraded() {
    let disk = fixture();
    disk.tamper(&path("segments/0000000002.seg"), |bytes| bytes[5_000] ^= 1);
    let refused = Stepped::open(&disk).map(|_| ());
    assert!(matches!(refused, Err(OpenError::Damaged { .. })), "{refused:?}");
    assert_eq!(bytes_of(&disk, "publisher"), IDENTITY);
}

#[test]
fn a_rotten_bit_of_a_format_2_record_is_seen_when_it_is_read() {
    let disk = fixture();
    let (parts, read) = open_parts(&disk, options()).unwrap();
    let at = SEGMENT.windows(100).position(|bytes| *bytes == read[5].3[4_000..4_100]).unwrap();
    disk.tamper(&path("segments/0000000002.seg"), |bytes| bytes[at] ^= 1);
    let part = |index| parts.records.part(RecordRef { index, at: 0, length: 10 });
    let damaged = |read| matches!(read, Err(crate::ReadError::Damaged { .. }));
    assert!(damaged(part(6)), "it is checked whole");
    assert!(!damaged(part(5)) && !damaged(part(7).map(|_| Bytes::new())));
}
