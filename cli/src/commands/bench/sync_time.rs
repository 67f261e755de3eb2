//! The time of one fdatasync on the journal's disk: the minimum for any durable acknowledgement.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

const BLOCK_BYTES: usize = 4 * 1024;
const SYNCS: usize = 200;

/// The median time of writing 4 KiB within a file and syncing it, in microseconds.
pub(crate) fn median_us(folder: &Path) -> io::Result<f64> {
    let file: File = tempfile::tempfile_in(folder)?;
    file.write_all_at(&vec![0; BLOCK_BYTES * SYNCS], 0)?;
    file.sync_all()?;
    let mut times = Vec::with_capacity(SYNCS);
    for n in 0..SYNCS {
        let began = Instant::now();
        file.write_all_at(&[1; BLOCK_BYTES], (n * BLOCK_BYTES) as u64)?;
        file.sync_data()?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    Ok(times[SYNCS / 2].as_secs_f64() * 1_000_000.0)
}
