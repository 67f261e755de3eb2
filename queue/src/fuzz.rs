//! The journal's fuzz targets: each takes any bytes and must neither panic nor hang. Bytes with a
//! wrong checksum are rejected early, so records and blocks get valid checksums here. `fuzz/` runs
//! the targets under libFuzzer; the tests below run them with its corpus, unchanged and mutated.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use longshore_protocol::{Durability, PublisherId};

use crate::journal::fuzz_files::{self, segment_record};
use crate::journal::simulated_disk::SimulatedDisk;
use crate::journal::{JournalOpenError, JournalOptions, SEGMENT_BYTES_MIN};
use crate::{Command, Replay};

/// A fuzz target with its name.
pub type Body = (&'static str, fn(&[u8]));

/// All targets.
pub const ALL: [Body; 3] = [("command", command), ("records", records), ("snapshot", snapshot)];

/// A command's kind, then its body: a decoded command must encode to bytes that decode to the same
/// command.
pub fn command(data: &[u8]) {
    let [kind, body @ ..] = data else { return };
    let Ok(command) = Command::decode(*kind, Bytes::copy_from_slice(body)) else { return };
    let (head, raw) = command.encode();
    let again = Command::decode(command.kind(), [head, raw].concat().into());
    assert_eq!(again.as_ref(), Ok(&command));
}

/// A log: commands with valid checksums, then raw bytes. A start reads it, sets unreadable bytes
/// aside if permitted, and ends in a consistent state.
pub fn records(data: &[u8]) {
    let mut log = Vec::new();
    let mut rest = data;
    for index in 1.. {
        let Some((kind, body, after)) = part_of(rest) else { break };
        segment_record(index, kind, body, &mut log);
        rest = after;
    }
    log.extend_from_slice(rest);
    let disk = SimulatedDisk::default();
    fuzz_files::put_segment(&disk, DIR.as_ref(), &log);
    opens(&disk);
}

/// A snapshot of command 1: blocks with valid checksums between the first and the last, and no log.
pub fn snapshot(data: &[u8]) {
    let mut blocks = Vec::new();
    let mut rest = data;
    while let Some((kind, body, after)) = part_of(rest) {
        blocks.push((kind, body));
        rest = after;
    }
    let disk = SimulatedDisk::default();
    fuzz_files::put_snapshot(&disk, DIR.as_ref(), &blocks);
    opens(&disk);
}

const DIR: &str = "/data";
/// The journal id of all targets.
pub(crate) const JOURNAL: PublisherId = PublisherId([9; 16]);

/// Splits off a kind, a length, and that many bytes; then the rest.
fn part_of(data: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[kind, low, high], rest) = data.split_first_chunk()?;
    let (body, after) = rest.split_at_checked(usize::from(u16::from_le_bytes([low, high])))?;
    Some((kind, body, after))
}

/// A start refuses the files with a typed error or ends in a consistent state. With `--accept-loss`
/// only an intact but meaningless record refuses it.
fn opens(disk: &SimulatedDisk) {
    for accept_loss in [false, true] {
        let options = JournalOptions {
            segment_bytes: SEGMENT_BYTES_MIN,
            durability: Durability::Fsync,
            accept_loss,
            new_publisher: JOURNAL,
            new_journal: JOURNAL,
        };
        let mut replay = Replay::new();
        let opened =
            fuzz_files::open(&Arc::new(disk.clone()), Path::new(DIR), options, &mut replay);
        match opened {
            Ok(restored) => {
                let holds = replay.state().invariant();
                // A snapshot's blocks are trusted once their checksum is valid, so forged blocks
                // may be inconsistent.
                assert!(restored || holds.is_ok(), "{holds:?}");
            }
            Err(JournalOpenError::Damaged { .. }) => assert!(!accept_loss, "{opened:?}"),
            Err(JournalOpenError::Undecodable { .. } | JournalOpenError::Unrestorable { .. }) => {}
            Err(_) => panic!("{opened:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use proptest::prelude::*;

    use super::*;
    use crate::State;
    use crate::command::tests::one_of_each;

    fn corpus(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(name)
    }

    fn part(kind: u8, body: &[u8]) -> Vec<u8> {
        let mut part = vec![kind];
        part.extend_from_slice(&(body.len() as u16).to_le_bytes());
        part.extend_from_slice(body);
        part
    }

    /// Seeds: one command of each kind; all of them as a log; the state after them.
    fn seeds(body: &str) -> Vec<Vec<u8>> {
        let commands: Vec<(u8, Bytes)> = one_of_each()
            .into_iter()
            .map(|(command, kind, _)| {
                let (head, raw) = command.encode();
                (kind, [head, raw].concat().into())
            })
            .collect();
        match body {
            "command" => {
                commands.iter().map(|(kind, body)| [&[*kind][..], body].concat()).collect()
            }
            "records" => {
                let log: Vec<Vec<u8>> =
                    commands.iter().map(|(kind, body)| part(*kind, body)).collect();
                vec![log[0].clone(), log.concat(), [&log.concat()[..], &[7; 50]].concat()]
            }
            _ => {
                let (mut state, mut out) = (State::new(), crate::Outcomes::default());
                for (index, (command, ..)) in (1..).zip(one_of_each()) {
                    state.apply(index, crate::Now::default(), &command, &mut out);
                }
                let mut frozen = state.freeze();
                let (mut blocks, mut block) = (Vec::new(), Vec::new());
                while crate::Snapshot::next_block(&mut frozen, &mut block) {
                    blocks.extend(part(fuzz_files::KIND_STATE, &std::mem::take(&mut block)));
                }
                vec![blocks]
            }
        }
    }

    /// `LONGSHORE_BLESS=1` writes the seeds.
    #[test]
    fn fuzz_corpus_exists_and_passes() {
        for (name, body) in ALL {
            let dir = corpus(name);
            if std::env::var_os("LONGSHORE_BLESS").is_some() {
                std::fs::create_dir_all(&dir).unwrap();
                for (n, seed) in seeds(name).iter().enumerate() {
                    std::fs::write(dir.join(format!("{n:02}")), seed).unwrap();
                }
            }
            let files = std::fs::read_dir(&dir).unwrap();
            let count =
                files.map(|file| body(&std::fs::read(file.unwrap().path()).unwrap())).count();
            assert!(count >= seeds(name).len(), "{name}");
        }
    }

    #[test]
    fn fuzz_seed_log_replays_every_command() {
        let disk = SimulatedDisk::default();
        let mut log = Vec::new();
        for (index, (command, ..)) in (1..).zip(one_of_each()) {
            let (head, raw) = command.encode();
            segment_record(index, command.kind(), &[head, raw].concat(), &mut log);
        }
        fuzz_files::put_segment(&disk, DIR.as_ref(), &log);
        opens(&disk);
        let mut replay = Replay::new();
        let options = JournalOptions {
            segment_bytes: SEGMENT_BYTES_MIN,
            durability: Durability::Fsync,
            accept_loss: false,
            new_publisher: JOURNAL,
            new_journal: JOURNAL,
        };
        fuzz_files::open(&Arc::new(disk), DIR.as_ref(), options, &mut replay).unwrap();
        assert_eq!(replay.state().applied(), one_of_each().len() as u64, "all were read");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn mutated_seeds_give_typed_errors_or_consistent_states(
            body in 0..ALL.len(),
            seed in any::<prop::sample::Index>(),
            mutations in prop::collection::vec(
                (any::<prop::sample::Index>(), any::<u8>(), 0..3u8),
                1..6,
            ),
        ) {
            let (name, body) = ALL[body];
            let seeds = seeds(name);
            let mut bytes = seeds[seed.index(seeds.len())].clone();
            for (at, byte, how) in mutations {
                if bytes.is_empty() {
                    break;
                }
                let at = at.index(bytes.len());
                match how {
                    0 => bytes[at] = byte,
                    1 => _ = bytes.remove(at),
                    _ => bytes.insert(at, byte),
                }
            }
            body(&bytes);
        }
    }
}
