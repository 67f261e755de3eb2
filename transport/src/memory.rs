//! The memory bound of a service's links.

use std::fmt;

const MIB: usize = 1024 * 1024;

/// The most memory that the links of a service can make it take, in bytes: the sum of the bounds of
/// its buffers, which it logs at start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryBounds {
    /// Received frames: the budget, which services of one process share.
    pub frames: usize,
    /// Every other buffer whose bound does not depend on slow readers, with its purpose.
    pub parts: Vec<(&'static str, usize)>,
    /// What is queued for a link that does not read.
    pub unread: usize,
    /// The limit of links.
    pub links: usize,
}

impl MemoryBounds {
    /// Bytes while every link reads.
    pub fn received(&self) -> usize {
        self.parts.iter().fold(self.frames, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// Bytes if no link reads.
    pub fn total(&self) -> usize {
        self.received().saturating_add(self.links.saturating_mul(self.unread))
    }
}

impl fmt::Display for MemoryBounds {
    /// In MiB, each number rounded up.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: usize| bytes.div_ceil(MIB);
        let (received, total) = (mib(self.received()), mib(self.total()));
        write!(f, "at most {received} MiB ({} received frames", mib(self.frames))?;
        self.parts.iter().try_for_each(|(what, bytes)| write!(f, ", {} {what}", mib(*bytes)))?;
        let (unread, links) = (mib(self.unread), self.links);
        write!(f, "), and {unread} MiB for each of {links} links that does not read: {total} MiB")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_the_sum_of_all_bounds() {
        let parts = vec![("links", 3 * MIB), ("decoding", MIB / 2)];
        let bounds = MemoryBounds { frames: 32 * MIB, parts, unread: 2 * MIB, links: 10 };
        assert_eq!((bounds.received(), bounds.total()), (71 * MIB / 2, 111 * MIB / 2));
        let expected = "at most 36 MiB (32 received frames, 3 links, 1 decoding), \
                        and 2 MiB for each of 10 links that does not read: 56 MiB";
        assert_eq!(bounds.to_string(), expected);
    }
}
