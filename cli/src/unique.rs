//! Unique keys as arguments and JSON lines have them.

use longshore::{OnConflict, UniqueUntil};

use crate::time::parse_duration;

/// Parses how long a unique key lasts.
pub(crate) fn parse_until(text: &str) -> Result<UniqueUntil, String> {
    match text {
        "end" => Ok(UniqueUntil::End),
        "start" => Ok(UniqueUntil::Start),
        _ => match parse_duration(text) {
            Ok(period) => {
                Ok(UniqueUntil::For(u64::try_from(period.as_millis()).unwrap_or(u64::MAX)))
            }
            Err(_) => Err(format!("'{text}' is neither end, start nor a duration, like 10m")),
        },
    }
}

/// Parses the answer to a held key.
pub(crate) fn parse_on_conflict(text: &str) -> Result<OnConflict, String> {
    let named = OnConflict::ALL.iter().find(|answer| answer.to_string() == text);
    named.copied().ok_or_else(|| format!("'{text}' is neither keep, replace nor refuse"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_and_answers_have_names() {
        assert_eq!(parse_until("end"), Ok(UniqueUntil::End));
        assert_eq!(parse_until("start"), Ok(UniqueUntil::Start));
        assert_eq!(parse_until("10m"), Ok(UniqueUntil::For(600_000)));
        assert!(parse_until("never").unwrap_err().contains("neither end, start"));
        assert_eq!(parse_on_conflict("replace"), Ok(OnConflict::Replace));
        assert!(parse_on_conflict("drop").unwrap_err().contains("keep, replace nor refuse"));
    }
}
