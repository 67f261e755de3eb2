//! Opening a store on its journal: recovery, and an epoch that no earlier run had.

use std::path::{Path as FilePath, PathBuf};
use std::time::Instant;

use longshore_protocol::{Epoch, PublisherId};

use super::replay::Replay;
use super::{Opened, Store, StoreOptions};
use crate::State;
use crate::clock::{BootStamp, Clock, LastRun};
use crate::journal::{Journal, JournalOpenError, JournalOptions};
use crate::log::Poisoned;

/// Epochs reserved for each accepted loss: lost commands may have included starts, whose tokens and
/// links must not be reused. It is more than the starts of any directory, and all counted losses
/// fit.
const EPOCHS_PER_LOSS: u64 = 1 << 20;

impl Store<Journal> {
    /// Opens or creates the journal in `dir`, replays it, and logs this start, synced at every
    /// level of durability. Blocks.
    pub fn open(
        dir: &FilePath,
        options: StoreOptions,
    ) -> Result<(Store<Journal>, Clock, Opened), JournalOpenError> {
        let began = Instant::now();
        let journal_options = JournalOptions {
            segment_bytes: options.segment_bytes,
            durability: options.durability,
            accept_loss: options.accept_loss,
            new_publisher: PublisherId(rand::random()),
            new_journal: PublisherId(rand::random()),
        };
        let mut replay = Replay::new();
        let (journal, recovered) = Journal::open(dir, journal_options, &mut replay)?;
        let started =
            Clock::start(options.clock.clone(), options.clock_skew_max, last_run(&replay.state));
        let mut clock = started.map_err(|error| JournalOpenError::Io {
            what: "reading the boot's id from",
            file: PathBuf::from("/proc/sys/kernel/random/boot_id"),
            error,
        })?;
        let (now, stamp) = (clock.now(), clock.stamp());
        let floor = epoch_floor(recovered.losses);
        let store =
            Store::start_above(floor, journal, replay, recovered.publisher, now, stamp, options)?;
        let (publisher, epoch) = store.identity();
        let opened = Opened {
            publisher,
            journal: recovered.journal,
            epoch,
            snapshot: recovered.snapshot,
            records: recovered.records,
            bytes: recovered.bytes,
            took: began.elapsed(),
            running: store.leases.len() as u64,
            cut: recovered.cut,
            dropped: recovered.dropped,
            lost_payloads: recovered.lost_payloads,
        };
        Ok((store, clock, opened))
    }
}

/// An epoch at least as high as any used before the last of `losses` losses.
pub(crate) fn epoch_floor(losses: u64) -> Epoch {
    Epoch(losses * EPOCHS_PER_LOSS)
}

/// The previous run of a state, to continue its clock.
fn last_run(state: &State) -> Option<LastRun> {
    let start = state.last_start()?;
    Some(LastRun { stamp: BootStamp::from_bytes(start.boot), last: state.last_now() })
}

impl From<Poisoned> for JournalOpenError {
    fn from(why: Poisoned) -> JournalOpenError {
        let error = std::io::Error::new(why.error.kind(), why.error.to_string());
        JournalOpenError::Io { what: why.what, file: why.file, error }
    }
}
