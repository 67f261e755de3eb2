//! Names of processes, publishers and homes: what operators see of them.

use crate::limits::NAME_BYTES_MAX;

/// A name is empty, or has more than 128 bytes: it had so many. Whoever would read it could not,
/// and would end the link, so it is refused where it is given, before anything is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the name has {0} bytes; give one of 1 to {NAME_BYTES_MAX} bytes")]
pub struct NameError(pub usize);

/// Whether all who are told this name can read it. The one place that decides it.
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
    fn a_name_has_1_to_128_bytes_whatever_its_characters() {
        for (name, told) in [
            ("", Err(NameError(0))),
            ("w", Ok(())),
            (&"w".repeat(NAME_BYTES_MAX), Ok(())),
            (&"w".repeat(NAME_BYTES_MAX + 1), Err(NameError(129))),
            (&"ü".repeat(64), Ok(())),
            (&"ü".repeat(65), Err(NameError(130))),
        ] {
            assert_eq!(check_name(name), told, "{name:?}");
        }
        let error = NameError(129).to_string();
        assert_eq!(error, "the name has 129 bytes; give one of 1 to 128 bytes");
    }
}
