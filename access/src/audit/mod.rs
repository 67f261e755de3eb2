//! Lines of an audit log: what was done at a server, or refused, by whom. Each is a JSON object
//! that ends with a hash over its text and the hash of the line before it, so that a changed,
//! removed or swapped line is found. Pure.
//!
//! A record has no field for a payload, a result, an error of a job, a token or a secret.

mod chain;
mod record;
mod verifier;

pub use chain::{AuditChain, NotAnAuditLine};
pub use record::{AUDIT_LINE_BYTES_MAX, AUDIT_TEXT_BYTES_MAX, AuditOutcome, AuditRecord};
pub use verifier::{AuditFault, AuditVerifier};
