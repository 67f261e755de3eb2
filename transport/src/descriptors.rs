//! Open files: links must leave enough for the rest of the process. A journal that gets none for
//! its next segment fails, and with it the publisher.

use std::fs::File;
use std::io;

/// The limit is never raised above this: some programs still loop over every possible descriptor
/// when they start a child.
#[cfg(unix)]
const RAISED_MAX: u64 = 1_048_576;

/// The descriptors that a listener's connections may take, one each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DescriptorBudget {
    /// Links.
    pub(crate) links: usize,
    /// Handshakes in progress.
    pub(crate) handshakes: usize,
    /// Refused diallers that the listener waits for.
    pub(crate) refusals: usize,
}

impl DescriptorBudget {
    fn sum(self) -> usize {
        self.links.saturating_add(self.handshakes).saturating_add(self.refusals)
    }
}

/// The part of `requested` that the process may open besides `reserved` descriptors for everything
/// else, and its limit. Raises the soft limit to the hard one if it is too low: for the whole
/// process, and for its children.
pub(crate) fn within_limit(
    requested: DescriptorBudget,
    reserved: usize,
) -> (DescriptorBudget, Option<u64>) {
    let limit = raised(requested.sum().saturating_add(reserved) as u64);
    (within(requested, reserved, limit), limit)
}

/// Divides a tight limit: at most half of it is reserved for the rest of the process, an eighth of
/// what remains is for handshakes, as much for refusals.
fn within(requested: DescriptorBudget, reserved: usize, limit: Option<u64>) -> DescriptorBudget {
    let Some(limit) = limit.and_then(|most| usize::try_from(most).ok()) else { return requested };
    let room = limit.saturating_sub(reserved).max(limit / 2);
    let part = |requested: usize| requested.min((room / 8).max(1));
    let (handshakes, refusals) = (part(requested.handshakes), part(requested.refusals));
    let links = requested.links.min(room.saturating_sub(handshakes + refusals).max(1));
    DescriptorBudget { links, handshakes, refusals }
}

/// The soft limit after raising it to at least `needed` or as far as allowed; `None` if unlimited.
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
            tracing::debug!(%error, now, highest, "the limit of open files cannot be raised");
            Some(now)
        }
    }
}

#[cfg(not(unix))]
fn raised(_needed: u64) -> Option<u64> {
    None
}

/// One descriptor in reserve. Without one, a process at its limit cannot even refuse a connection,
/// which would wait in the kernel for a process that seems well. Released for a moment, the reserve
/// lets the listener accept, refuse and close one.
#[derive(Debug)]
pub(crate) struct Reserve(Option<File>);

impl Reserve {
    /// Opens the reserve.
    pub(crate) fn new() -> Reserve {
        let mut reserve = Reserve(None);
        reserve.restore();
        reserve
    }

    /// Releases the reserve. False if there is none.
    pub(crate) fn give(&mut self) -> bool {
        self.0.take().is_some()
    }

    /// Opens the reserve again, unless no descriptor is free.
    pub(crate) fn restore(&mut self) {
        if self.0.is_none() && cfg!(unix) {
            self.0 = File::open("/dev/null").ok();
        }
    }
}

/// True if the process, or the system, has reached its limit of open files.
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
        let requested = |links| DescriptorBudget { links, handshakes: 256, refusals: 256 };
        let reduced =
            |links, handshakes| DescriptorBudget { links, handshakes, refusals: handshakes };
        for (links, limit, within_it) in [
            (16_384, None, requested(16_384)),
            (16_384, Some(1_000_000), requested(16_384)),
            (16_384, Some(17_152), requested(16_384)),
            (16_384, Some(17_151), requested(16_383)),
            (16_384, Some(1_024), reduced(576, 96)),
            (768, Some(1_024), reduced(576, 96)),
            (100, Some(1_024), reduced(100, 96)),
            (16_384, Some(256), reduced(96, 16)),
            (16_384, Some(0), reduced(1, 1)),
        ] {
            assert_eq!(within(requested(links), 256, limit), within_it, "{links} of {limit:?}");
        }
    }

    #[test]
    fn the_reserved_descriptors_are_at_most_half_of_a_limit_and_never_taken() {
        let requested =
            DescriptorBudget { links: usize::MAX, handshakes: usize::MAX, refusals: usize::MAX };
        for limit in 16..5_000 {
            let taken = within(requested, 256, Some(limit as u64)).sum();
            assert_eq!(taken + 256.min(limit - limit / 2), limit);
        }
    }

    #[test]
    fn a_reserve_is_released_once_and_opened_again() {
        let mut reserve = Reserve::new();
        assert!(reserve.give() && !reserve.give());
        reserve.restore();
        assert!(reserve.give());
    }
}
