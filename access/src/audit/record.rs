//! One record.

use std::borrow::Cow;

use serde::{Serialize, Serializer};

use crate::tokens::Timestamp;

/// The longest text of one field, in bytes; a longer one is cut, and ends with `…`.
pub const AUDIT_TEXT_BYTES_MAX: usize = 4_096;

/// The longest line: JSON takes up to six bytes for one, and there are seven texts.
pub const AUDIT_LINE_BYTES_MAX: usize = 6 * 7 * AUDIT_TEXT_BYTES_MAX + 1_024;

/// What a record reports.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct AuditRecord {
    /// When, in milliseconds since 1970.
    #[serde(rename = "time", serialize_with = "time")]
    pub time_unix_ms: u64,
    /// The name of the server; empty if it concerns all of the process.
    #[serde(serialize_with = "text", skip_serializing_if = "String::is_empty")]
    pub server: String,
    /// The client's identity; empty if it has none, or the server itself acted.
    #[serde(serialize_with = "text", skip_serializing_if = "String::is_empty")]
    pub identity: String,
    /// The client's address; empty if the server itself acted.
    #[serde(serialize_with = "text", skip_serializing_if = "String::is_empty")]
    pub address: String,
    /// What was done or tried.
    pub action: &'static str,
    /// The path, pattern or ids that it concerns.
    #[serde(serialize_with = "text", skip_serializing_if = "String::is_empty")]
    pub target: String,
    /// What is to be known beside that, such as the settings of a queue.
    #[serde(serialize_with = "text", skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// Whether it was allowed.
    #[serde(flatten)]
    pub outcome: AuditOutcome,
    /// Refused accesses since the last record of one that have no record, as there were too many.
    #[serde(skip_serializing_if = "is_zero")]
    pub left_out: u64,
}

/// Whether an action was allowed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "outcome", rename_all = "lowercase")]
pub enum AuditOutcome {
    /// It was allowed, and began. The client has the result.
    Allowed,
    /// It was refused.
    Refused {
        /// For people.
        #[serde(serialize_with = "text")]
        reason: String,
    },
}

impl AuditRecord {
    /// Its text without a place in a chain: a JSON object.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

fn time<S: Serializer>(unix_ms: &u64, out: S) -> Result<S::Ok, S::Error> {
    out.collect_str(&Timestamp(*unix_ms))
}

fn text<S: Serializer>(text: &str, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(&cut(text))
}

fn cut(text: &str) -> Cow<'_, str> {
    if text.len() <= AUDIT_TEXT_BYTES_MAX {
        return Cow::Borrowed(text);
    }
    let mut end = AUDIT_TEXT_BYTES_MAX - '…'.len_utf8();
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    Cow::Owned(format!("{}…", &text[..end]))
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters_and_no_line_is_too_long() {
        for character in ["\u{1}", "ü", "\u{10ffff}"] {
            let long = character.repeat(AUDIT_TEXT_BYTES_MAX + 1);
            let record = AuditRecord {
                time_unix_ms: u64::MAX,
                server: long.clone(),
                identity: long.clone(),
                address: long.clone(),
                action: "announce",
                target: long.clone(),
                detail: long.clone(),
                outcome: AuditOutcome::Refused { reason: long.clone() },
                left_out: u64::MAX,
            };
            let line = crate::AuditChain::default().append(&record);
            assert!(line.len() <= AUDIT_LINE_BYTES_MAX, "{}", line.len());
            assert!(!line.contains(&long) && line.matches('…').count() == 6);
            assert!(!line.trim_end_matches('\n').contains(char::is_control));
        }
    }
}
