//! Groups errors of the same kind, for operators who look at ten thousand of them.

use std::fmt;
use std::str::FromStr;

use twox_hash::XxHash3_64;

use crate::job::JobError;

/// Identifies errors of the same kind: a hash of an error's type and of the shape of its message.
/// Numbers, ids, quoted parts and paths do not count. Printed as 16 hex digits. The fingerprint of
/// an error is the same in every version, because journals store it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Fingerprint(pub u64);

impl Fingerprint {
    /// The fingerprint of an error.
    pub fn of(error: &JobError) -> Fingerprint {
        Fingerprint::of_parts(&error.kind, &error.message)
    }

    /// The fingerprint of an error's type and message: XXH3-64 of the type, a zero byte, and the
    /// shape of the message.
    pub fn of_parts(kind: &str, message: &str) -> Fingerprint {
        let mut text = Vec::with_capacity(kind.len() + 1 + message.len());
        text.extend_from_slice(kind.as_bytes());
        text.push(0);
        // A shape is never longer than its message.
        shape(message, |byte| text.push(byte));
        Fingerprint(XxHash3_64::oneshot(&text))
    }
}

/// Writes the message without its variable parts: a quoted part becomes `'`, a word that contains a
/// digit or a slash becomes `#`, white space becomes one blank.
fn shape(message: &str, mut out: impl FnMut(u8)) {
    let mut rest = message.as_bytes();
    while let Some(&first) = rest.first() {
        let length = match first {
            quote @ (b'\'' | b'"' | b'`') => match closing(rest, quote) {
                Some(length) => {
                    out(b'\'');
                    length
                }
                None => {
                    out(quote);
                    1
                }
            },
            space if space.is_ascii_whitespace() => {
                out(b' ');
                rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count()
            }
            byte if is_word(byte) => {
                let length = rest.iter().take_while(|&&byte| is_word(byte)).count();
                let word = &rest[..length];
                if word.iter().any(|byte| byte.is_ascii_digit() || *byte == b'/') {
                    out(b'#');
                } else {
                    word.iter().for_each(|&byte| out(byte));
                }
                length
            }
            byte => {
                out(byte);
                1
            }
        };
        rest = &rest[length..];
    }
}

/// Returns the length of a quoted part with both quotes, if it is closed. A quote within a word, as
/// in "can't", does not open one, because the caller consumes whole words first.
fn closing(text: &[u8], quote: u8) -> Option<usize> {
    text[1..].iter().position(|&byte| byte == quote).map(|at| at + 2)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || byte >= 0x80
        || matches!(byte, b'_' | b'-' | b'.' | b'/' | b'\'')
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A text that is not a fingerprint.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{0}' is not a fingerprint; it has sixteen hex digits, as dead letters' groups print it")]
pub struct FingerprintError(String);

impl FromStr for Fingerprint {
    type Err = FingerprintError;

    fn from_str(text: &str) -> Result<Fingerprint, FingerprintError> {
        let wrong = || FingerprintError(text.chars().take(64).collect());
        if text.len() != 16 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        u64::from_str_radix(text, 16).map(Fingerprint).map_err(|_| wrong())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape_of(message: &str) -> String {
        let mut bytes = Vec::new();
        shape(message, |byte| bytes.push(byte));
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn fingerprints_ignore_variable_parts_of_messages() {
        for (message, shape) in [
            ("timeout after 1503 ms", "timeout after # ms"),
            ("user 'ann'  not found", "user ' not found"),
            ("can't open /tmp/a/b.txt: No such file", "can't open #: No such file"),
            ("job 01920f3e-5b7a-7c3d-8e4f-a1b2c3d4e5f6\nfailed", "job # failed"),
            ("a \"quoted part\" and `another`", "a ' and '"),
            ("an open 'quote", "an open 'quote"),
            ("größer als erlaubt", "größer als erlaubt"),
            ("", ""),
        ] {
            assert_eq!(shape_of(message), shape);
        }
    }

    #[test]
    fn fingerprint_depends_on_type_and_shape_and_is_stable() {
        let a = Fingerprint::of_parts("Timeout", "after 3 s");
        assert_eq!(a, Fingerprint::of_parts("Timeout", "after 17 s"));
        assert_ne!(a, Fingerprint::of_parts("Timeout", "before 3 s"));
        assert_ne!(a, Fingerprint::of_parts("Refused", "after 3 s"));
        assert_eq!(a.to_string().parse(), Ok(a));
        assert_eq!(Fingerprint::of_parts("", "").0, 0xc44b_dff4_074e_ecdb);
        let not_found = Fingerprint::of_parts("io::Error", "no such file");
        assert_eq!(not_found.0, 0x179e_ab49_dd74_818a);
        assert!("xyz".parse::<Fingerprint>().is_err());
    }
}
