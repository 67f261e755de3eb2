//! Opening a store on its journal: what is read back, and the epoch that no earlier run had.

use std::path::{Path as FilePath, PathBuf};
use std::time::Instant;

use longshore_protocol::{Epoch, PublisherId};

use super::replay::Replay;
use super::{LogStore, Opened, StoreOptions};
use crate::clock::{BootStamp, Clock, LastRun};
use crate::journal::{Journal, JournalOptions, LostStarts, OpenError};
use crate::log::Poisoned;
use crate::{Now, State};

/// How many epochs are passed over when damage was accepted: the dropped commands may have held starts, and neither their
/// tokens nor their links may be given out again. More starts than a directory sees; 4,096 such losses fit.
pub(super) const EPOCHS_PER_LOSS: u64 = 1 << 20;

impl LogStore<Journal> {
    /// Opens the journal in `dir`, or makes it, replays it, and logs this start, synced at every level of durability.
    /// Blocks.
    pub fn open(
        dir: &FilePath,
        options: StoreOptions,
    ) -> Result<(LogStore<Journal>, Clock, Opened), OpenError> {
        let began = Instant::now();
        let journal_options = JournalOptions {
            segment_bytes: options.segment_bytes,
            durability: options.durability,
            accept_loss: options.accept_loss,
            new_publisher: PublisherId(rand::random()),
        };
        let mut replay = Replay::new();
        let (journal, recovered) = Journal::open(dir, journal_options, &mut replay)?;
        let started =
            Clock::start(options.clock.clone(), options.clock_skew_max, last_run(&replay.state));
        let mut clock = started.map_err(|error| OpenError::Io {
            what: "reading the boot's id from",
            file: PathBuf::from("/proc/sys/kernel/random/boot_id"),
            error,
        })?;
        let (now, stamp) = (clock.now(), clock.stamp());
        let known = replay.state.last_start().map(|start| start.epoch);
        let floor = epoch_floor(known, recovered.lost_starts, now);
        let store = LogStore::start_above(
            floor,
            journal,
            replay,
            recovered.publisher,
            now,
            stamp,
            options,
        )?;
        let (publisher, epoch) = store.identity();
        let opened = Opened {
            publisher,
            epoch,
            snapshot: recovered.snapshot,
            records: recovered.records,
            bytes: recovered.bytes,
            took: began.elapsed(),
            running: store.leases.len() as u64,
            cut: recovered.cut,
            dropped: recovered.dropped,
        };
        Ok((store, clock, opened))
    }
}

/// An epoch that is as high as any that was given before, as far as `known` tells not: that of the last start that was read
/// back.
pub(crate) fn epoch_floor(known: Option<Epoch>, lost: Option<LostStarts>, now: Now) -> Epoch {
    let Some(LostStarts { told }) = lost else { return Epoch(0) };
    // When nobody can tell: no publisher starts once a second for all its life.
    let highest = known.map(|epoch| epoch.0).max(told).unwrap_or(now.wall_ms / 1_000);
    Epoch(highest + EPOCHS_PER_LOSS)
}

/// What a clock needs to go on after the run that a state was left by.
fn last_run(state: &State) -> Option<LastRun> {
    let start = state.last_start()?;
    Some(LastRun { stamp: BootStamp::from_bytes(start.boot), last: state.last_now() })
}

impl From<Poisoned> for OpenError {
    fn from(why: Poisoned) -> OpenError {
        let error = std::io::Error::new(why.error.kind(), why.error.to_string());
        OpenError::Io { what: why.what, file: why.file, error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_epoch_is_below_any_that_may_have_been_given() {
        let now = Now { mono_ms: 5, wall_ms: 1_700_000_000_999 };
        let told = |told| Some(LostStarts { told });
        assert_eq!(epoch_floor(Some(Epoch(7)), None, now), Epoch(0), "the log knows");
        assert_eq!(epoch_floor(Some(Epoch(7)), told(None), now), Epoch(7 + EPOCHS_PER_LOSS));
        assert_eq!(epoch_floor(Some(Epoch(7)), told(Some(9)), now), Epoch(9 + EPOCHS_PER_LOSS));
        assert_eq!(epoch_floor(None, told(Some(9)), now), Epoch(9 + EPOCHS_PER_LOSS));
        let seconds = Epoch(1_700_000_000 + EPOCHS_PER_LOSS);
        assert_eq!(epoch_floor(None, told(None), now), seconds, "nobody knows");
        assert!(seconds.0 < 1 << 32);
    }
}
