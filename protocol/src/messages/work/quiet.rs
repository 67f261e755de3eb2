//! Quiet workers, which begin no jobs for a while.

use std::fmt;
use std::str::FromStr;

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::fields::{codes, fields};
use crate::frame::FrameWriter;
use crate::glob::matches_segment;
use crate::id::SessionId;
use crate::limits::NAME_BYTES_MAX;

/// The shortest prefix of a session's id in a pattern, in hex digits: as many as tools print.
const SESSION_DIGITS_MIN: usize = 8;

/// Selects workers (`Queues::quiet_workers`): a name, in which `*` matches any characters and `?`
/// matches one, or a prefix of a session's id with at least eight hex digits. Names need not be
/// unique, sessions are. 1 to 128 bytes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct WorkerPattern(String);

/// A text that cannot be a worker's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a worker's name has 1 to {NAME_BYTES_MAX} bytes, not {0}")]
pub struct WorkerPatternError(usize);

impl WorkerPattern {
    /// Validates a text: it must have 1 to 128 bytes.
    pub fn new(text: &str) -> Result<WorkerPattern, WorkerPatternError> {
        match text.len() {
            1..=NAME_BYTES_MAX => Ok(WorkerPattern(text.to_owned())),
            bytes => Err(WorkerPatternError(bytes)),
        }
    }

    /// Every worker.
    pub fn every_worker() -> WorkerPattern {
        WorkerPattern("*".to_owned())
    }

    /// The worker of a session.
    pub fn of_session(session: SessionId) -> WorkerPattern {
        WorkerPattern(session.to_string())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True if the pattern selects the worker.
    pub fn matches(&self, name: &str, session: SessionId) -> bool {
        matches_segment(&self.0, name) || self.is_prefix_of(session)
    }

    /// Whether its digits are a prefix of the session's id. Allocates nothing, because a publisher
    /// checks each of its workers.
    fn is_prefix_of(&self, session: SessionId) -> bool {
        let mut session_digits = session.0.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        let mut digits = 0;
        for digit in self.0.chars().filter(|&char| char != '-') {
            if digit.to_digit(16) != session_digits.next().map(u32::from)
                || !digit.is_ascii_hexdigit()
            {
                return false;
            }
            digits += 1;
        }
        digits >= SESSION_DIGITS_MIN
    }
}

impl FromStr for WorkerPattern {
    type Err = WorkerPatternError;

    fn from_str(text: &str) -> Result<WorkerPattern, WorkerPatternError> {
        WorkerPattern::new(text)
    }
}

impl fmt::Display for WorkerPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

fields! {
    /// Whether a worker is quiet, as a publisher requests or as the worker reports.
    #[derive(Copy)]
    pub struct Quiet {
        /// The publisher's increasing number for its request; the worker's answer repeats the
        /// newest one. 0 if the worker reports without a request.
        pub request: u64,
        /// True if the worker begins no jobs.
        pub quiet: bool,
    }

    /// A worker that a tool has quieted or resumed.
    pub struct QuietedWorker as record {
        /// Its name.
        pub name: String = at_most("name", NAME_BYTES_MAX),
        /// Its run.
        pub session: SessionId,
        /// The result.
        pub end: QuietEnd,
    }
}

codes! {
    /// The result of quieting or resuming a worker.
    QuietEnd, "end of asking a worker" {
        /// A dry run: the worker matched.
        Matched = 0, "it matches";
        /// The worker has confirmed that it begins no jobs, or has resumed.
        Confirmed = 1, "confirmed";
        /// It did not answer within 5 s, or its link ended. It may have received the request:
        /// repeat it.
        NotAnswered = 2, "NotAnswered: it did not confirm in time; its version may not support it";
        /// The opposite was requested in the meantime.
        Otherwise = 3, "Otherwise: the opposite was requested in the meantime";
    }
}

impl Encode for WorkerPattern {
    fn encode(&self, out: &mut FrameWriter) {
        out.string(&self.0);
    }
}

impl Decode for WorkerPattern {
    fn decode(r: &mut Reader) -> Result<WorkerPattern, WireError> {
        let empty = r.invalid("pattern of workers");
        let text = r.text("pattern of workers", NAME_BYTES_MAX)?;
        WorkerPattern::new(text).map_err(|_| empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_worker_names_and_session_prefixes() {
        let session = SessionId([0x3f, 0x2a, 0x91, 0xc0, 0x01, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        for (pattern, expected) in [
            ("mail/a-7", true),
            ("mail/a", false),
            ("mail*", true),
            ("*", true),
            ("*-7", true),
            ("mail/?-7", true),
            ("mail?", false),
            ("3f2a91c0", true),
            ("3F2A91C001", true),
            ("3f2a91c", false),
            ("3f2a91c1", false),
        ] {
            let pattern = WorkerPattern::new(pattern).unwrap();
            assert_eq!(pattern.matches("mail/a-7", session), expected, "{pattern}");
        }
        assert!(WorkerPattern::every_worker().matches("", session));
    }

    #[test]
    fn empty_and_overlong_patterns_are_refused() {
        assert_eq!(WorkerPattern::new(""), Err(WorkerPatternError(0)));
        assert!(WorkerPattern::new(&"x".repeat(NAME_BYTES_MAX)).is_ok());
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        assert_eq!(WorkerPattern::new(&long), Err(WorkerPatternError(129)));
    }
}
