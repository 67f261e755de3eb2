//! Open files: links must not take those that the journal needs. Without one for its next segment a journal fails, and with it
//! the publisher.

use rustix::process::{Resource, getrlimit};

/// Descriptors for everything but links: the journal keeps 64 segments open to read and a handful to write; the rest is for
/// links to the resolver and for what the host program has open.
const KEPT: usize = 256;

/// How many of the links that are wanted the process may have.
pub(crate) fn links_within_limit(wanted: usize) -> usize {
    within(wanted, getrlimit(Resource::Nofile).current)
}

fn within(wanted: usize, descriptors: Option<u64>) -> usize {
    let Some(descriptors) = descriptors.and_then(|most| usize::try_from(most).ok()) else {
        return wanted;
    };
    wanted.min(descriptors.saturating_sub(KEPT).max(descriptors / 2).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_leave_the_journal_its_files() {
        for (wanted, descriptors, links) in [
            (16_384, None, 16_384),
            (16_384, Some(1_000_000), 16_384),
            (16_384, Some(16_385), 16_129),
            (16_384, Some(1_024), 768),
            (100, Some(1_024), 100),
            (16_384, Some(256), 128),
            (16_384, Some(0), 1),
        ] {
            assert_eq!(within(wanted, descriptors), links, "{wanted} of {descriptors:?}");
        }
    }
}
