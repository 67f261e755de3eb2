//! Open files: links must not take those that the rest of the process needs. A journal that gets
//! none for its next segment fails, and with it the publisher.

use std::fs::File;
use std::io;

/// Above this many the limit is never raised: some programs still go through every number up to it
/// when they start a child.
#[cfg(unix)]
const RAISED_MAX: u64 = 1_048_576;

/// What a listener's connections may take, each one descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Budget {
    /// Links.
    pub(crate) links: usize,
    /// Handshakes under way.
    pub(crate) handshakes: usize,
    /// Refused diallers that are waited for.
    pub(crate) refusals: usize,
}

impl Budget {
    fn sum(self) -> usize {
        self.links.saturating_add(self.handshakes).saturating_add(self.refusals)
    }
}

/// How much of `wanted` the process may open besides `kept` descriptors for everything else, and
/// its limit. The soft limit is raised to the hard one if it is too low: for the whole process, and
/// for what it starts.
pub(crate) fn within_limit(wanted: Budget, kept: usize) -> (Budget, Option<u64>) {
    let limit = raised(wanted.sum().saturating_add(kept) as u64);
    (within(wanted, kept, limit), limit)
}

/// A tight limit is shared: half of it at most is kept, an eighth of the rest is for handshakes, as
/// much for refusals.
fn within(wanted: Budget, kept: usize, limit: Option<u64>) -> Budget {
    let Some(limit) = limit.and_then(|most| usize::try_from(most).ok()) else { return wanted };
    let room = limit.saturating_sub(kept).max(limit / 2);
    let part = |wanted: usize| wanted.min((room / 8).max(1));
    let (handshakes, refusals) = (part(wanted.handshakes), part(wanted.refusals));
    let links = wanted.links.min(room.saturating_sub(handshakes + refusals).max(1));
    Budget { links, handshakes, refusals }
}

/// The soft limit once it is at least `needed`, or as high as it may be; none if there is no limit.
#[cfg(unix)]
fn raised(needed: u64) -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let limit = getrlimit(Resource::Nofile);
    let now = limit.current?;
    let highest = limit.maximum.unwrap_or(RAISED_MAX).min(RAISED_MAX);
    if now >= needed || now >= highest {
        return Some(now);
    }
    match setrlimit(Resource::Nofile, Rlimit { current: Some(highest), ..limit }) {
        Ok(()) => Some(highest),
        Err(error) => {
            tracing::debug!(%error, now, highest, "the limit of open files stays as it is");
            Some(now)
        }
    }
}

#[cfg(not(unix))]
fn raised(_needed: u64) -> Option<u64> {
    None
}

/// One descriptor in reserve. When there is none left, a connection cannot even be refused: it
/// would wait in the kernel for a process that seems well. Given up for a moment, the reserve lets
/// one be accepted, told so, and closed.
#[derive(Debug)]
pub(crate) struct Reserve(Option<File>);

impl Reserve {
    /// Sets one aside.
    pub(crate) fn new() -> Reserve {
        let mut reserve = Reserve(None);
        reserve.restore();
        reserve
    }

    /// Gives it up. False if there is none.
    pub(crate) fn give(&mut self) -> bool {
        self.0.take().is_some()
    }

    /// Sets one aside again, unless others were faster.
    pub(crate) fn restore(&mut self) {
        if self.0.is_none() && cfg!(unix) {
            self.0 = File::open("/dev/null").ok();
        }
    }
}

/// True if the process, or the system, has as many open files as it may.
pub(crate) fn none_left(error: &io::Error) -> bool {
    #[cfg(unix)]
    {
        use rustix::io::Errno;
        let code = error.raw_os_error();
        code == Some(Errno::MFILE.raw_os_error()) || code == Some(Errno::NFILE.raw_os_error())
    }
    #[cfg(not(unix))]
    {
        let _ = error;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_leave_the_rest_of_the_process_its_files() {
        let wanted = |links| Budget { links, handshakes: 256, refusals: 256 };
        let reduced = |links, handshakes| Budget { links, handshakes, refusals: handshakes };
        for (links, limit, within_it) in [
            (16_384, None, wanted(16_384)),
            (16_384, Some(1_000_000), wanted(16_384)),
            (16_384, Some(17_152), wanted(16_384)),
            (16_384, Some(17_151), wanted(16_383)),
            (16_384, Some(1_024), reduced(576, 96)),
            (768, Some(1_024), reduced(576, 96)),
            (100, Some(1_024), reduced(100, 96)),
            (16_384, Some(256), reduced(96, 16)),
            (16_384, Some(0), reduced(1, 1)),
        ] {
            assert_eq!(within(wanted(links), 256, limit), within_it, "{links} of {limit:?}");
        }
    }

    #[test]
    fn what_is_kept_is_at_most_half_of_a_limit_and_never_taken() {
        let wanted = Budget { links: usize::MAX, handshakes: usize::MAX, refusals: usize::MAX };
        for limit in 16..5_000 {
            let taken = within(wanted, 256, Some(limit as u64)).sum();
            assert_eq!(taken + 256.min(limit - limit / 2), limit);
        }
    }

    #[test]
    fn a_reserve_is_given_once_and_set_aside_again() {
        let mut reserve = Reserve::new();
        assert!(reserve.give() && !reserve.give());
        reserve.restore();
        assert!(reserve.give());
    }
}
