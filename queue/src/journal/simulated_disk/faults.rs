//! Fault injection: which call to a disk fails, and how.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A kind of call to a disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Call {
    Lock,
    MakeDir,
    List,
    Open,
    Create,
    Rename,
    Remove,
    SyncDir,
    Length,
    Read,
    Write,
    Sync,
    Allocate,
    Truncate,
    Measure,
    Forget,
}

impl Call {
    /// Whether it changes the disk.
    pub(crate) fn is_change(self) -> bool {
        use Call::{Allocate, Create, Remove, Rename, Sync, SyncDir, Truncate, Write};
        matches!(self, Create | Rename | Remove | SyncDir | Write | Sync | Allocate | Truncate)
    }
}

/// The error of a failing call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    /// A device error: EIO.
    Device,
    /// No room is left: ENOSPC.
    Full,
    /// The process has as many open files as it may: EMFILE.
    TooManyFiles,
}

impl Failure {
    pub(super) fn error(self) -> io::Error {
        io::Error::from_raw_os_error(match self {
            Failure::Device => 5,
            Failure::Full => 28,
            Failure::TooManyFiles => 24,
        })
    }
}

/// A filter of calls.
pub(crate) type Choice = dyn Fn(Call, &Path) -> bool + Send + Sync;

/// A call that fails.
#[derive(Clone)]
pub(crate) struct Fault {
    /// Which calls count.
    pub(crate) of: Arc<Choice>,
    /// Which of them fails, counted from now: 1 is the next one.
    pub(crate) nth: u64,
    /// Whether every call of any kind after it fails too, as after a power failure.
    pub(crate) lasts: bool,
    pub(crate) failure: Failure,
}

impl Fault {
    /// The `nth` call of that kind fails, once.
    pub(crate) fn nth_of(call: Call, nth: u64) -> Fault {
        Fault::nth_where(nth, move |made, _| made == call)
    }

    /// The `nth` call of whatever kind fails, once.
    pub(crate) fn nth(nth: u64) -> Fault {
        Fault::nth_where(nth, |_, _| true)
    }

    /// The `nth` call that fits fails, once.
    pub(crate) fn nth_where(
        nth: u64,
        of: impl Fn(Call, &Path) -> bool + Send + Sync + 'static,
    ) -> Fault {
        Fault { of: Arc::new(of), nth, lasts: false, failure: Failure::Device }
    }

    /// Every call after it fails too.
    pub(crate) fn for_good(self) -> Fault {
        Fault { lasts: true, ..self }
    }

    /// With that error.
    pub(crate) fn with(self, failure: Failure) -> Fault {
        Fault { failure, ..self }
    }
}

/// The faults of a disk.
#[derive(Default)]
pub(super) struct Faults {
    waiting: Vec<Fault>,
    /// All calls fail from now on.
    permanent: Option<Failure>,
    /// The first call that failed.
    hit: Option<(Call, PathBuf)>,
}

impl Faults {
    pub(super) fn add(&mut self, fault: Fault) {
        self.waiting.push(fault);
    }

    pub(super) fn clear(&mut self) {
        *self = Faults::default();
    }

    pub(super) fn hit(&self) -> Option<&(Call, PathBuf)> {
        self.hit.as_ref()
    }

    /// How that call fails, if it does, and whether everything after it fails.
    pub(super) fn meet(&mut self, call: Call, path: &Path) -> Option<(Failure, bool)> {
        if let Some(failure) = self.permanent {
            return Some((failure, true));
        }
        let mut met = None;
        self.waiting.retain_mut(|fault| {
            if (fault.of)(call, path) {
                fault.nth = fault.nth.saturating_sub(1);
                if fault.nth == 0 {
                    met = Some((fault.failure, fault.lasts));
                }
            }
            fault.nth > 0
        });
        if let Some((failure, lasts)) = met {
            self.permanent = lasts.then_some(failure);
            self.hit.get_or_insert_with(|| (call, path.to_owned()));
        }
        met
    }
}
