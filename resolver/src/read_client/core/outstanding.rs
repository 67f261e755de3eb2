//! A request in flight. A replica that sends a wrong answer, a longer one than asked for, or an
//! endless one, is left: the client's memory and time are limited.

use crate::read_client::answer::Answer;

/// The most memory for the answer to one request, in bytes: paths or publishers with the overhead
/// beside their texts. A directory's default limit of 16 million paths, listed at 60 bytes each,
/// fits.
pub(super) const ANSWER_BYTES_MAX: usize = 2 * 1024 * 1024 * 1024;
/// Most consecutive empty slices. A searching replica sends one for every few milliseconds of work:
/// for 256 million nodes, on a slow machine, some 30,000.
const EMPTY_SLICES_MAX: u32 = 65_536;

/// The outstanding answer of a request.
#[derive(Debug)]
pub(super) struct OutstandingAnswer {
    /// Its batch.
    pub(super) batch: u64,
    /// The number of outstanding answers; `None` for a listing, which has its own end mark.
    answers_left: Option<usize>,
    bytes_left: usize,
    empty_slices: u32,
}

/// Why a replica is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InvalidAnswer {
    /// Another kind of answer, or fewer or more answers.
    SomethingElse,
    /// Empty slices without end.
    Nothing,
    /// Longer than the limit.
    TooLong,
}

impl InvalidAnswer {
    /// For people.
    pub(super) fn why(self) -> String {
        match self {
            InvalidAnswer::SomethingElse => "it answered something else than it was asked".into(),
            InvalidAnswer::Nothing => {
                format!("it sent {EMPTY_SLICES_MAX} parts of an answer with nothing")
            }
            InvalidAnswer::TooLong => "its answer is longer than is taken in".into(),
        }
    }
}

impl OutstandingAnswer {
    /// A request of a batch, with its number of answers, unless it is a listing.
    pub(super) fn new(batch: u64, answers: Option<usize>, bytes_max: usize) -> OutstandingAnswer {
        OutstandingAnswer { batch, answers_left: answers, bytes_left: bytes_max, empty_slices: 0 }
    }

    /// Accounts for a slice of the answer. True if it shows that the replica is working: any slice
    /// of a listing does; of a resolution, only one with answers.
    pub(super) fn take(&mut self, slice: &Answer, last: bool) -> Result<bool, InvalidAnswer> {
        let count = slice.len();
        if let Some(left) = &mut self.answers_left {
            *left = left.checked_sub(count).ok_or(InvalidAnswer::SomethingElse)?;
        }
        let one_by_one = matches!(slice, Answer::Resolved(_));
        if one_by_one != self.answers_left.is_some() || last && self.answers_left.unwrap_or(0) > 0 {
            return Err(InvalidAnswer::SomethingElse);
        }
        self.bytes_left =
            self.bytes_left.checked_sub(slice.bytes()).ok_or(InvalidAnswer::TooLong)?;
        self.empty_slices = if count == 0 { self.empty_slices + 1 } else { 0 };
        if self.empty_slices > EMPTY_SLICES_MAX {
            return Err(InvalidAnswer::Nothing);
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
    fn the_number_of_answers_has_to_match_the_question() {
        let of = |answers| OutstandingAnswer::new(1, answers, ANSWER_BYTES_MAX);
        let mut outstanding = of(Some(3));
        assert_eq!(outstanding.take(&resolved(2), false), Ok(true));
        assert_eq!(
            outstanding.take(&resolved(0), false),
            Ok(false),
            "an empty slice is no progress"
        );
        assert_eq!(outstanding.take(&resolved(1), true), Ok(true));
        assert_eq!(outstanding.take(&resolved(1), true), Err(InvalidAnswer::SomethingElse));
        assert_eq!(of(Some(3)).take(&resolved(2), true), Err(InvalidAnswer::SomethingElse));
        assert_eq!(of(None).take(&resolved(2), true), Err(InvalidAnswer::SomethingElse));
        let listed = Answer::Listed(Listing::default());
        assert_eq!(of(Some(3)).take(&listed, false), Err(InvalidAnswer::SomethingElse));
    }

    #[test]
    fn a_search_may_find_nothing_for_long_but_not_for_ever() {
        let mut outstanding = OutstandingAnswer::new(1, None, ANSWER_BYTES_MAX);
        let nothing = Answer::Listed(Listing::default());
        for _ in 0..EMPTY_SLICES_MAX {
            assert_eq!(outstanding.take(&nothing, false), Ok(true));
        }
        assert_eq!(outstanding.take(&nothing, false), Err(InvalidAnswer::Nothing));
    }
}
