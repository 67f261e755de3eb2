//! Since when the kernel refuses what is to be sent on one link. Pure: time is an argument.

use std::time::Instant;

/// The last stretch of time in which a byte stood refused. A byte that the kernel takes ends it:
/// what is refused after that begins another.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Refusals {
    stretch: Option<Stretch>,
}

#[derive(Clone, Copy, Debug)]
struct Stretch {
    began: Instant,
    ended: Option<Instant>,
}

impl Refusals {
    /// The kernel takes nothing of what is to be sent. True if it did until now.
    pub(crate) fn refused(&mut self, now: Instant) -> bool {
        let stands = self.stretch.is_some_and(|stretch| stretch.ended.is_none());
        if !stands {
            self.stretch = Some(Stretch { began: now, ended: None });
        }
        !stands
    }

    /// The kernel took at least one byte.
    pub(crate) fn took(&mut self, now: Instant) {
        if let Some(stretch) = &mut self.stretch {
            stretch.ended.get_or_insert(now);
        }
    }

    /// When a byte was refused first, at or after `moment`; one that stands refused then counts
    /// from then. Of several stretches since then only the last is known: who wants the first asks
    /// as each begins.
    pub(crate) fn first_after(&self, moment: Instant) -> Option<Instant> {
        let Stretch { began, ended } = self.stretch?;
        ended.is_none_or(|ended| ended > moment).then(|| began.max(moment))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_byte_that_stands_refused_counts_from_the_moment_that_is_asked_about() {
        let start = Instant::now();
        let mut refusals = Refusals::default();
        assert_eq!(refusals.first_after(start), None);
        assert!(refusals.refused(start + SECOND));
        assert!(!refusals.refused(start + 2 * SECOND), "it stands");
        assert_eq!(refusals.first_after(start), Some(start + SECOND));
        assert_eq!(refusals.first_after(start + 5 * SECOND), Some(start + 5 * SECOND));
    }

    #[test]
    fn a_byte_that_is_taken_ends_it_and_what_is_refused_then_counts_anew() {
        let start = Instant::now();
        let mut refusals = Refusals::default();
        refusals.refused(start + SECOND);
        refusals.took(start + 3 * SECOND);
        refusals.took(start + 4 * SECOND);
        let asked = start + 3 * SECOND;
        assert_eq!(refusals.first_after(asked), None, "nothing stood refused since");
        let before = asked - SECOND;
        assert_eq!(refusals.first_after(before), Some(before), "it stood refused then");
        assert!(refusals.refused(start + 7 * SECOND));
        assert_eq!(refusals.first_after(asked), Some(start + 7 * SECOND));
    }
}
