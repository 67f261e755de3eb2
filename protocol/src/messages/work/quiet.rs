//! Workers that are to begin no job for a while.

use std::fmt;
use std::str::FromStr;

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::fields::{codes, fields};
use crate::frame::FrameWriter;
use crate::glob::matches_segment;
use crate::id::SessionId;
use crate::limits::NAME_BYTES_MAX;

/// Hex digits of a session that are enough to name it: as many as tools show.
const SESSION_DIGITS_MIN: usize = 8;

/// Which workers are meant (`Queues::quiet_workers`): a name, in which `*` stands for any
/// characters and `?` for one, or how a session's id begins, eight hex digits at least. Names need
/// not be unique, sessions are. 1 to 128 bytes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct WorkerPattern(String);

/// A text that can be no worker's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0} bytes name no worker; its name has 1 to {NAME_BYTES_MAX} bytes")]
pub struct WorkerPatternError(usize);

impl WorkerPattern {
    /// Checks a text: an error for one that is empty, or has more than 128 bytes.
    pub fn new(text: &str) -> Result<WorkerPattern, WorkerPatternError> {
        match text.len() {
            1..=NAME_BYTES_MAX => Ok(WorkerPattern(text.to_owned())),
            bytes => Err(WorkerPatternError(bytes)),
        }
    }

    /// Every worker.
    pub fn everyone() -> WorkerPattern {
        WorkerPattern("*".to_owned())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True when the worker is meant.
    pub fn matches(&self, name: &str, session: SessionId) -> bool {
        matches_segment(&self.0, name) || self.begins(session)
    }

    /// Whether its digits are the session's first ones. Nothing is allocated: a publisher asks this
    /// of each of its workers.
    fn begins(&self, session: SessionId) -> bool {
        let mut of_session = session.0.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        let mut digits = 0;
        for digit in self.0.chars().filter(|&char| char != '-') {
            if digit.to_digit(16) != of_session.next().map(u32::from) || !digit.is_ascii_hexdigit()
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
    /// Whether a worker is quiet: as a publisher requests, or as the worker reports.
    #[derive(Copy)]
    pub struct Quiet {
        /// The publisher's number for what it asks, rising; the worker's answer carries the newest.
        /// 0 when a worker reports on its own account.
        pub ask: u64,
        /// It is to begin no job, or begins none.
        pub quiet: bool,
    }

    /// A worker that a tool asked to be quiet or to go on.
    pub struct QuietedWorker as record {
        /// Its name.
        pub name: String = at_most("name", NAME_BYTES_MAX),
        /// Its run.
        pub session: SessionId,
        /// What came of it.
        pub end: QuietEnd,
    }
}

codes! {
    /// What came of asking a worker to be quiet or to go on.
    QuietEnd, "end of asking a worker" {
        /// It was only looked for.
        Matched = 0, "it would be asked";
        /// The worker has reported it: it begins nothing since, or goes on.
        Confirmed = 1, "confirmed";
        /// It did not report within 5 s, or its link ended. It may do so all the same: ask again.
        NotAnswered = 2, "NotAnswered: it did not say so in time; its version may not know how to";
        /// It was asked for the opposite meanwhile.
        Otherwise = 3, "Otherwise: it was asked for the opposite meanwhile";
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
    fn a_worker_is_meant_by_its_name_by_wildcards_or_by_how_its_session_begins() {
        let session = SessionId([0x3f, 0x2a, 0x91, 0xc0, 0x01, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        for (pattern, means) in [
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
            assert_eq!(pattern.matches("mail/a-7", session), means, "{pattern}");
        }
        assert!(WorkerPattern::everyone().matches("", session));
    }

    #[test]
    fn a_text_that_no_name_could_be_is_refused() {
        assert_eq!(WorkerPattern::new(""), Err(WorkerPatternError(0)));
        assert!(WorkerPattern::new(&"x".repeat(NAME_BYTES_MAX)).is_ok());
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        assert_eq!(WorkerPattern::new(&long), Err(WorkerPatternError(129)));
    }
}
