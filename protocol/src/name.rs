//! Names of processes, publishers and homes, as operators see them.

use crate::limits::NAME_BYTES_MAX;

/// A name is empty or has more than 128 bytes; the field is its length. A receiver could not decode
/// it and would end the link, so it is refused before anything is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the name has {0} bytes; give one of 1 to {NAME_BYTES_MAX} bytes")]
pub struct NameError(pub usize);

/// Checks that every receiver can decode this name. All checks of names use this function.
pub fn check_name(name: &str) -> Result<(), NameError> {
    match name.len() {
        1..=NAME_BYTES_MAX => Ok(()),
        bytes => Err(NameError(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_1_to_128_bytes() {
        for (name, expected) in [
            ("", Err(NameError(0))),
            ("w", Ok(())),
            (&"w".repeat(NAME_BYTES_MAX), Ok(())),
            (&"w".repeat(NAME_BYTES_MAX + 1), Err(NameError(129))),
            (&"ü".repeat(64), Ok(())),
            (&"ü".repeat(65), Err(NameError(130))),
        ] {
            assert_eq!(check_name(name), expected, "{name:?}");
        }
        let error = NameError(129).to_string();
        assert_eq!(error, "the name has 129 bytes; give one of 1 to 128 bytes");
    }
}
