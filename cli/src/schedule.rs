//! Parts of schedules as arguments and files have them.

use longshore::{Missed, Overlap};

/// Parses what becomes of missed occurrences.
pub(crate) fn parse_missed(text: &str) -> Result<Missed, String> {
    let named = Missed::ALL.iter().find(|missed| missed.to_string() == text);
    named.copied().ok_or_else(|| format!("'{text}' is neither latest, all nor none"))
}

/// Parses what becomes of overlapping occurrences.
pub(crate) fn parse_overlap(text: &str) -> Result<Overlap, String> {
    let named = Overlap::ALL.iter().find(|overlap| overlap.to_string() == text);
    named.copied().ok_or_else(|| format!("'{text}' is neither skip, allow nor buffer"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_schedules_have_names() {
        assert_eq!(parse_missed("all"), Ok(Missed::All));
        assert_eq!(parse_overlap("buffer"), Ok(Overlap::Buffer));
        assert!(parse_missed("some").unwrap_err().contains("latest, all nor none"));
        assert!(parse_overlap("wait").unwrap_err().contains("skip, allow nor buffer"));
    }
}
