//! The chain of lines.

use std::fmt;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::record::AuditRecord;

/// Between a line without its hash and the hash.
const CHAIN_KEY: &str = ",\"chain\":\"";
/// After the hash.
const LINE_END: &str = "\"}";
const HASH_TEXT_BYTES: usize = 64;

/// The position after a line: what the next one follows. The default is before the first line of a
/// new log.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct AuditChain {
    /// The number of the last line; the first has 1.
    pub seq: u64,
    /// The hash at its end.
    pub(super) hash: [u8; 32],
}

/// A line that no audit log has.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("it is not a line of an audit log: {0}")]
pub struct NotAnAuditLine(pub String);

/// A record with what places it in the chain.
#[derive(Serialize)]
struct Numbered<'a> {
    seq: u64,
    /// In the first line of a file: the hash that the line follows, which is in another file.
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<String>,
    #[serde(flatten)]
    record: &'a AuditRecord,
}

/// The part of a line that a reader of the chain needs.
#[derive(Deserialize)]
pub(super) struct Place {
    pub(super) seq: u64,
    pub(super) after: Option<String>,
}

impl AuditChain {
    /// The next line, with its line feed.
    pub fn append(&mut self, record: &AuditRecord) -> String {
        self.append_after(record, None)
    }

    /// The same for the first line of a file: it names the hash that it follows.
    pub fn begin_file(&mut self, record: &AuditRecord) -> String {
        self.append_after(record, Some(self.hash_text()))
    }

    fn append_after(&mut self, record: &AuditRecord, after: Option<String>) -> String {
        self.seq += 1;
        // Neither a map with other keys than texts nor a failing field: this never fails.
        let numbered = Numbered { seq: self.seq, after, record };
        let mut line = serde_json::to_string(&numbered).unwrap_or_default();
        line.pop();
        self.hash = self.hash_of(line.as_bytes());
        line += CHAIN_KEY;
        line += &self.hash_text();
        line += LINE_END;
        line.push('\n');
        line
    }

    /// The position after a line, without its line feed. Whether the line itself follows the one
    /// before is for [`AuditVerifier`](super::AuditVerifier).
    pub fn after_line(line: &str) -> Result<AuditChain, NotAnAuditLine> {
        let (text, hash) = split(line)?;
        let Place { seq, .. } = place(text)?;
        Ok(AuditChain { seq, hash })
    }

    /// The hash of the next line, whose text without the hash and the brace is this.
    pub(super) fn hash_of(&self, text: &[u8]) -> [u8; 32] {
        Sha256::new().chain_update(self.hash).chain_update(text).finalize().into()
    }

    /// The hash as text.
    pub fn hash_text(&self) -> String {
        HEXLOWER.encode(&self.hash)
    }
}

/// The text of a line before its hash, and the hash.
pub(super) fn split(line: &str) -> Result<(&str, [u8; 32]), NotAnAuditLine> {
    let fault = || NotAnAuditLine(String::from("its end has no `chain`"));
    let rest = line.strip_suffix(LINE_END).ok_or_else(fault)?;
    let at = rest.len().checked_sub(HASH_TEXT_BYTES).ok_or_else(fault)?;
    let (text, hash) = rest.split_at_checked(at).ok_or_else(fault)?;
    let text = text.strip_suffix(CHAIN_KEY).ok_or_else(fault)?;
    Ok((text, hash_of_text(hash).ok_or_else(fault)?))
}

pub(super) fn hash_of_text(text: &str) -> Option<[u8; 32]> {
    HEXLOWER.decode(text.as_bytes()).ok()?.try_into().ok()
}

/// The place of a line without its hash.
pub(super) fn place(text: &str) -> Result<Place, NotAnAuditLine> {
    serde_json::from_str(&format!("{text}}}")).map_err(|error| NotAnAuditLine(error.to_string()))
}

impl fmt::Display for AuditChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, chain {}", self.seq, self.hash_text())
    }
}

impl fmt::Debug for AuditChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AuditChain({self})")
    }
}
