//! A request that waits for its answers. A replica that gives other answers than it was asked for,
//! or more, or none for ever, is left: nobody's memory and nobody's time are without end.

use crate::read_client::answer::Answer;

/// Most that the answer to one request may take, in bytes: paths or publishers with what each takes
/// beside its text. A directory's default limit of 16 million paths, listed at 60 bytes each, fits
/// in.
pub(super) const ANSWER_BYTES_MAX: usize = 2 * 1024 * 1024 * 1024;
/// Most slices in a row that bring nothing. A replica that searches sends one for every few
/// milliseconds of its work: for 256 million nodes, on a slow machine, some 30,000.
const EMPTY_SLICES_MAX: u32 = 65_536;

/// What is still to come for a request.
#[derive(Debug)]
pub(super) struct Asked {
    /// Whose it is.
    pub(super) batch: u64,
    /// How many answers; none for a listing, which says itself when it ends.
    answers_left: Option<usize>,
    bytes_left: usize,
    empty_slices: u32,
}

/// Why a replica is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wrong {
    /// Another kind of answer, or fewer or more answers.
    SomethingElse,
    /// Slices without anything in them, and no end.
    Nothing,
    /// More than is taken in.
    TooLong,
}

impl Wrong {
    /// For people.
    pub(super) fn why(self) -> String {
        match self {
            Wrong::SomethingElse => "it answered something else than it was asked".into(),
            Wrong::Nothing => format!("it sent {EMPTY_SLICES_MAX} parts of an answer with nothing"),
            Wrong::TooLong => "its answer is longer than is taken in".into(),
        }
    }
}

impl Asked {
    /// A request of a batch, with so many answers, unless it is for a listing.
    pub(super) fn new(batch: u64, answers: Option<usize>, bytes_max: usize) -> Asked {
        Asked { batch, answers_left: answers, bytes_left: bytes_max, empty_slices: 0 }
    }

    /// Notes a slice of the answer. True if it shows that the replica is at work: one of a listing
    /// does, whatever it has found; of answers one by one, only one that has some.
    pub(super) fn take(&mut self, slice: &Answer, last: bool) -> Result<bool, Wrong> {
        let count = slice.len();
        if let Some(left) = &mut self.answers_left {
            *left = left.checked_sub(count).ok_or(Wrong::SomethingElse)?;
        }
        let one_by_one = matches!(slice, Answer::Resolved(_));
        if one_by_one != self.answers_left.is_some() || last && self.answers_left.unwrap_or(0) > 0 {
            return Err(Wrong::SomethingElse);
        }
        self.bytes_left = self.bytes_left.checked_sub(slice.bytes()).ok_or(Wrong::TooLong)?;
        self.empty_slices = if count == 0 { self.empty_slices + 1 } else { 0 };
        if self.empty_slices > EMPTY_SLICES_MAX {
            return Err(Wrong::Nothing);
        }
        Ok(last || count > 0 || !one_by_one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_client::answer::{Listing, PathAnswer, Resolution};

    fn resolved(count: usize) -> Answer {
        let answers = vec![PathAnswer::NotFound; count];
        Answer::Resolved(Resolution { complete: true, answers })
    }

    #[test]
    fn there_are_as_many_answers_as_were_asked_for() {
        let of = |answers| Asked::new(1, answers, ANSWER_BYTES_MAX);
        let mut asked = of(Some(3));
        assert_eq!(asked.take(&resolved(2), false), Ok(true));
        assert_eq!(asked.take(&resolved(0), false), Ok(false), "that is no work");
        assert_eq!(asked.take(&resolved(1), true), Ok(true));
        assert_eq!(asked.take(&resolved(1), true), Err(Wrong::SomethingElse));
        assert_eq!(of(Some(3)).take(&resolved(2), true), Err(Wrong::SomethingElse));
        assert_eq!(of(None).take(&resolved(2), true), Err(Wrong::SomethingElse));
        let listed = Answer::Listed(Listing::default());
        assert_eq!(of(Some(3)).take(&listed, false), Err(Wrong::SomethingElse));
    }

    #[test]
    fn a_search_may_find_nothing_for_long_and_not_for_ever() {
        let mut asked = Asked::new(1, None, ANSWER_BYTES_MAX);
        let nothing = Answer::Listed(Listing::default());
        for _ in 0..EMPTY_SLICES_MAX {
            assert_eq!(asked.take(&nothing, false), Ok(true));
        }
        assert_eq!(asked.take(&nothing, false), Err(Wrong::Nothing));
    }
}
