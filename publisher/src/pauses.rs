//! The paused patterns as far as they are durable: a status does not wait for a disk, and tells nothing that it could lose.

use longshore_protocol::Glob;

/// Pure: it is told of each change that is submitted and of each that has become durable.
#[derive(Debug)]
pub(crate) struct Pauses {
    durable: Vec<Glob>,
    /// Changes that are submitted and not yet durable.
    under_way: usize,
}

impl Pauses {
    /// Those that a publisher starts with: all of them durable.
    pub(crate) fn started<'a>(patterns: impl Iterator<Item = &'a Glob>) -> Pauses {
        Pauses { durable: patterns.cloned().collect(), under_way: 0 }
    }

    /// A change was submitted.
    pub(crate) fn submitted(&mut self) {
        self.under_way += 1;
    }

    /// One has become durable. With the last of them, what is `applied` is durable, too.
    pub(crate) fn released<'a>(&mut self, applied: impl Iterator<Item = &'a Glob>) {
        self.under_way = self.under_way.saturating_sub(1);
        if self.under_way == 0 {
            self.durable = applied.cloned().collect();
        }
    }

    /// The patterns that are paused.
    pub(crate) fn durable(&self) -> &[Glob] {
        &self.durable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_told_once_it_is_durable_and_not_before() {
        let (a, b) = (Glob::new("/a/**").unwrap(), Glob::new("/b").unwrap());
        let mut pauses = Pauses::started([&a].into_iter());
        assert_eq!(pauses.durable(), std::slice::from_ref(&a));
        pauses.submitted();
        pauses.submitted();
        // The first is durable; the state holds the second already.
        pauses.released([&a, &b].into_iter());
        assert_eq!(pauses.durable(), std::slice::from_ref(&a));
        pauses.released([&a, &b].into_iter());
        assert_eq!(pauses.durable(), [a, b]);
    }
}
