//! How fast parts of cold batches are read back from the journal: batches of 500 entries of 280 bytes (140 KB), on the file
//! system of the temporary directory (or of the first argument). The page cache is dropped before each run.
//!
//! ```text
//! cargo run --release -p longshore-queue --example cold_reads [DIR [BATCHES]]
//! ```

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore_protocol::{Durability, PublisherId};
use longshore_queue::{Journal, JournalOptions, Log, Now, Reader, RecordRef, SEGMENT_BYTES};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::fs::{Advice, fadvise};

const ENTRIES: u32 = 500;
const ENTRY_BYTES: u32 = 280;
/// Parts read in random order in one run, each of another batch.
const RANDOM_READS: usize = 2_000;
/// Threads that read at once, as a publisher's do.
const THREADS: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let batches: u64 = arguments.next().map_or(Ok(4_000), |batches| batches.parse())?;
    let dir = dir.join(format!("cold-reads-{}", std::process::id()));
    let measured =
        tokio::runtime::Builder::new_current_thread().build()?.block_on(measure(&dir, batches));
    std::fs::remove_dir_all(&dir)?;
    measured
}

async fn measure(dir: &Path, batches: u64) -> Result<(), Box<dyn Error>> {
    let options = JournalOptions {
        segment_bytes: SEGMENT_BYTES,
        durability: Durability::Fsync,
        accept_loss: false,
        new_publisher: PublisherId([1; 16]),
    };
    let (mut journal, _) = Journal::open(dir, options, &mut |_| Ok(()))?;
    let mut random = StdRng::seed_from_u64(1);
    let body: Vec<u8> = (0..ENTRIES * ENTRY_BYTES).map(|_| random.random()).collect();
    let body = Bytes::from(body);
    for index in 1..=batches {
        journal.append(Now::default(), 8, Bytes::new(), body.clone())?;
        journal.flush();
        if index % 100 == 0 || index == batches {
            journal.committed_beyond(index - 1).await?;
        }
    }
    let reader = journal.reader();

    forget_cached(dir)?;
    let began = Instant::now();
    let mut times = Vec::with_capacity(RANDOM_READS);
    for _ in 0..RANDOM_READS {
        let index = random.random_range(1..=batches);
        let at = random.random_range(0..ENTRIES);
        let began = Instant::now();
        read(&reader, index, at)?;
        times.push(began.elapsed());
    }
    say("random, cold", RANDOM_READS as u64, began.elapsed(), &mut times);

    let began = Instant::now();
    let mut times = Vec::with_capacity(RANDOM_READS);
    for _ in 0..RANDOM_READS {
        let index = random.random_range(1..=batches.min(200));
        let at = random.random_range(0..ENTRIES);
        let began = Instant::now();
        read(&reader, index, at)?;
        times.push(began.elapsed());
    }
    say("random, in the page cache", RANDOM_READS as u64, began.elapsed(), &mut times);

    forget_cached(dir)?;
    let began = Instant::now();
    for index in 1..=batches {
        for at in 0..ENTRIES {
            read(&reader, index, at)?;
        }
    }
    say("in order, cold", batches * u64::from(ENTRIES), began.elapsed(), &mut []);

    forget_cached(dir)?;
    let began = Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS as u64)
            .map(|thread| {
                let reader = reader.clone();
                scope.spawn(move || {
                    for index in (1 + thread..=batches).step_by(THREADS) {
                        for at in 0..ENTRIES {
                            read(&reader, index, at).expect("what was written can be read");
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
    say("in order, cold, 4 threads", batches * u64::from(ENTRIES), began.elapsed(), &mut []);
    Ok(())
}

fn read(reader: &Reader, index: u64, at: u32) -> Result<Bytes, longshore_queue::ReadError> {
    reader.read(RecordRef { index, at: at * ENTRY_BYTES, length: ENTRY_BYTES })
}

fn forget_cached(dir: &Path) -> Result<(), Box<dyn Error>> {
    for entry in dir.join("segments").read_dir()? {
        fadvise(std::fs::File::open(entry?.path())?, 0, None, Advice::DontNeed)?;
    }
    Ok(())
}

fn say(what: &str, reads: u64, took: Duration, times: &mut [Duration]) {
    let each = took.as_secs_f64() * 1e6 / reads as f64;
    let mib = reads as f64 * f64::from(ENTRY_BYTES) / took.as_secs_f64() / 1_048_576.0;
    print!("{what}: {reads} parts in {took:.2?}: {each:.1} µs each, {mib:.0} MiB/s");
    times.sort_unstable();
    if let (Some(half), Some(most)) =
        (times.get(times.len() / 2), times.get(times.len() * 99 / 100))
    {
        print!(", half below {half:.1?}, 99 % below {most:.1?}");
    }
    println!();
}
