//! Identifiers on the wire: jobs, publishers, sessions, links, tokens, epochs.

use std::fmt;
use std::str::FromStr;

macro_rules! id16 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub [u8; 16]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_hyphenated(&self.0, f)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_hyphenated(&self.0, f)
            }
        }
        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                parse_hyphenated(text).map($name)
            }
        }
    };
}

id16! {
    /// A job's id: a UUIDv7, so later ids sort later. Nothing depends on that order.
    JobId
}
id16! {
    /// A publisher's id: random, created with its data directory and stored there.
    PublisherId
}
id16! {
    /// One run of a client process, as publishers identify it: it survives reconnects, not
    /// restarts.
    SessionId
}
id16! {
    /// One run of a resolver replica. Revisions of two incarnations cannot be compared.
    Incarnation
}

impl JobId {
    /// Builds a UUIDv7 (RFC 9562) from the wall clock in milliseconds and 10 random bytes.
    pub fn new_v7(wall_ms: u64, random: [u8; 10]) -> JobId {
        let mut id = [0u8; 16];
        id[..6].copy_from_slice(&wall_ms.to_be_bytes()[2..]);
        id[6..].copy_from_slice(&random);
        id[6] = 0x70 | (id[6] & 0x0f);
        id[8] = 0x80 | (id[8] & 0x3f);
        JobId(id)
    }
}

impl PublisherId {
    /// The first eight hex digits: receipts identify the publisher by them.
    pub fn prefix(&self) -> String {
        let [a, b, c, d, ..] = self.0;
        format!("{a:02x}{b:02x}{c:02x}{d:02x}")
    }
}

/// A job and the publisher that stores it, as in a receipt. Printed as `publisher-prefix:uuid`,
/// which `JobLocator` parses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct JobRef {
    /// The publisher that stores the job.
    pub publisher: PublisherId,
    /// The job.
    pub id: JobId,
}

impl fmt::Display for JobRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.publisher.prefix(), self.id)
    }
}

/// The number that proves a lease: strictly increasing over the whole life of a publisher,
/// including restarts. A later delivery of a job has a higher token, so a store that remembers the
/// highest can refuse a stale writer. Tokens of two publishers cannot be compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Token(pub u64);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The start counter of a publisher: each start increments it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Epoch(pub u64);

/// A publisher's number for a link: never reused within a data directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LinkId(pub u64);

/// Why a text is not an id.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{text}' is not an id; it looks like 01920f3e-5b7a-7c3d-8e4f-a1b2c3d4e5f6")]
pub struct IdError {
    text: String,
}

const HYPHENS: [usize; 4] = [8, 13, 18, 23];

fn write_hyphenated(id: &[u8; 16], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut text = [b'-'; 36];
    let mut at = 0;
    for byte in id {
        if HYPHENS.contains(&at) {
            at += 1;
        }
        text[at] = HEX[usize::from(byte >> 4)];
        text[at + 1] = HEX[usize::from(byte & 15)];
        at += 2;
    }
    f.pad(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
}

fn parse_hyphenated(text: &str) -> Result<[u8; 16], IdError> {
    let wrong = || IdError { text: text.chars().take(64).collect() };
    let bytes = text.as_bytes();
    if bytes.len() != 36 || HYPHENS.iter().any(|&at| bytes[at] != b'-') {
        return Err(wrong());
    }
    let mut digits = bytes.iter().enumerate().filter(|(at, _)| !HYPHENS.contains(at));
    let mut digit = || -> Option<u8> {
        let (_, &c) = digits.next()?;
        char::from(c).to_digit(16).and_then(|d| u8::try_from(d).ok())
    };
    let mut id = [0u8; 16];
    for byte in &mut id {
        let (high, low) = (digit().ok_or_else(wrong)?, digit().ok_or_else(wrong)?);
        *byte = high << 4 | low;
    }
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v7_ids_contain_the_time_and_round_trip_as_text() {
        let id = JobId::new_v7(0x0192_0f3e_5b7a, [0xff; 10]);
        assert_eq!(id.to_string(), "01920f3e-5b7a-7fff-bfff-ffffffffffff");
        assert_eq!(id.to_string().parse(), Ok(id));
    }

    #[test]
    fn malformed_id_text_is_refused() {
        for text in [
            "",
            "0192",
            "01920f3e-5b7a-7fff-bfff-fffffffffffg",
            "01920f3e+5b7a-7fff-bfff-ffffffffffff",
        ] {
            assert!(text.parse::<JobId>().is_err(), "{text}");
        }
    }
}
