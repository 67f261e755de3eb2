//! The data exchanged by Longshore's processes: paths, ids, jobs, messages, frames, and the time
//! and size rules that they share. Pure: no socket, clock, disk or randomness.
//!
//! `docs/PROTOCOL.md` describes the same bytes for other languages.

pub mod address;
mod after;
pub mod codec;
pub mod codes;
mod fields;
pub mod fingerprint;
pub mod frame;
pub mod glob;
pub mod handshake;
mod homes;
pub mod id;
mod idempotency;
pub mod job;
mod job_batch;
mod job_limit;
mod keys;
pub mod later_fields;
pub mod limits;
pub mod messages;
pub mod name;
pub mod path;
pub mod path_set;
pub mod publisher_info;
pub mod runs;
mod schedule;
pub mod settings;
pub mod socket_path;
pub mod terms;
#[cfg(test)]
mod tests;
pub mod timing;
pub mod tls_name;
pub mod trace;
mod unique;
pub mod value;

pub use address::{Address, AddressError, HostAddress, UnknownAddress};
pub use after::{Parent, ParentEnd};
pub use codec::{Decode, Encode, Reader, WireError};
pub use codes::{
    AttemptOutcome, BatchRefusal, CheckpointOutcome, DeathReason, Durability, EnqueueOutcome, Gate,
    JobChange, JobState, Refusal, Revoked, SettleOutcome,
};
pub use fingerprint::{Fingerprint, FingerprintError};
pub use frame::{Frame, FrameWriter, Messages};
pub use glob::{Glob, GlobError, GlobPart};
pub use handshake::{Credential, Handshake, HandshakeAnswer, HandshakeRefusal, Role, Welcome};
pub use homes::{DeclaredHome, HomePattern, Homes, HomesError};
pub use id::{Epoch, Incarnation, JobId, JobRef, LinkId, PublisherId, SessionId, Token};
pub use idempotency::Idempotency;
pub use job::{Backoff, Due, Entry, EntryHead, Headers, JobError, JobOptions, NewJob};
pub use job_batch::NewBatch;
pub use job_limit::{JobLimit, JobRate, LimitScope};
pub use keys::{FairKey, JobKeys};
pub use later_fields::LaterFields;
pub use name::{NameError, check_name};
pub use path::{Path, PathError};
pub use path_set::PathSet;
pub use publisher_info::{PublisherInfo, PublisherInfoError};
pub use runs::Runs;
pub use schedule::{Missed, Overlap, Schedule, Timing};
pub use settings::QueueSettings;
pub use socket_path::{NotASocketPath, SocketPath};
pub use terms::{PublicationKind, Terms};
pub use timing::{LinkTiming, ResolverTiming};
pub use tls_name::{NotATlsName, TlsName};
pub use trace::TraceContext;
pub use unique::{OnConflict, Unique, UniqueUntil};
pub use value::{ConvertError, Rfc3339, Text, Value, ValueError, ValueMap};
