//! Longshore moves jobs from the programs that produce them to the workers that run them, over plain TCP.

pub use longshore_protocol as protocol;

pub use longshore_protocol::{
    Backoff, DeathReason, Due, Durability, Glob, GlobError, Headers, JobError, JobId, JobOptions,
    JobRef, JobState, NewJob, Path, PathError, PublisherId, PublisherInfo, Refusal, ResolverTiming,
    Token,
};
