//! Since when the kernel takes none of a link's queued bytes. Pure: time is an argument.

use std::time::Instant;

/// The last stall: a period in which the kernel refused a byte. A byte that the kernel takes ends
/// it; the next refusal begins another.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WriteStalls {
    stall: Option<Stall>,
}

#[derive(Clone, Copy, Debug)]
struct Stall {
    began: Instant,
    ended: Option<Instant>,
}

impl WriteStalls {
    /// The kernel takes none of the queued bytes. True if this begins a stall.
    pub(crate) fn refused(&mut self, now: Instant) -> bool {
        let lasts = self.stall.is_some_and(|stall| stall.ended.is_none());
        if !lasts {
            self.stall = Some(Stall { began: now, ended: None });
        }
        !lasts
    }

    /// The kernel took at least one byte.
    pub(crate) fn took(&mut self, now: Instant) {
        if let Some(stall) = &mut self.stall {
            stall.ended.get_or_insert(now);
        }
    }

    /// When a byte was first refused, at or after `moment`; a stall that lasts at `moment` counts
    /// from `moment`. Only the last stall is known: a caller that needs the first one has to ask as
    /// each begins.
    pub(crate) fn first_after(&self, moment: Instant) -> Option<Instant> {
        let Stall { began, ended } = self.stall?;
        ended.is_none_or(|ended| ended > moment).then(|| began.max(moment))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_lasting_stall_counts_from_the_given_instant() {
        let start = Instant::now();
        let mut stalls = WriteStalls::default();
        assert_eq!(stalls.first_after(start), None);
        assert!(stalls.refused(start + SECOND));
        assert!(!stalls.refused(start + 2 * SECOND), "it lasts");
        assert_eq!(stalls.first_after(start), Some(start + SECOND));
        assert_eq!(stalls.first_after(start + 5 * SECOND), Some(start + 5 * SECOND));
    }

    #[test]
    fn a_taken_byte_ends_a_stall_and_a_refusal_begins_another() {
        let start = Instant::now();
        let mut stalls = WriteStalls::default();
        stalls.refused(start + SECOND);
        stalls.took(start + 3 * SECOND);
        stalls.took(start + 4 * SECOND);
        let asked = start + 3 * SECOND;
        assert_eq!(stalls.first_after(asked), None, "no stall since");
        let before = asked - SECOND;
        assert_eq!(stalls.first_after(before), Some(before), "it was stalled then");
        assert!(stalls.refused(start + 7 * SECOND));
        assert_eq!(stalls.first_after(asked), Some(start + 7 * SECOND));
    }
}
