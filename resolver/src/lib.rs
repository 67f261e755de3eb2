//! Which publisher holds which path. A cluster of 1 to N replicas keeps that in memory, each for
//! itself: publishers write to every replica ([`WriteClient`]), everybody reads from any
//! ([`ReadClient`]). What publishers want published is the truth, and it is in the publishers; a
//! replica may forget everything and is told again.
//!
//! Three pure cores decide: `directory`, `read_client::core` and `write_client::core`. They are
//! told the time and what happened, and say what is to be done. The tasks around them move bytes
//! and time.

mod cluster;
mod directory;
mod read_client;
mod replica_link;
mod server;
mod slept;
mod write_client;

pub use cluster::{Cluster, REPLICA_PORT, ReplicaFailure};
pub use read_client::{
    Listing, PathAnswer, PathEvent, PathTable, PathWatch, Publication, PublisherRoll, PublisherSet,
    PublisherWatch, ReadClient, ReadError, Resolution, WATCHED_PATHS_MAX, WatchEnded,
};
pub use server::{
    DirectoryStopped, Limits, LimitsHandle, ReplicaStartError, ResolverServer, ServerOptions,
    StandingHandle,
};
pub use write_client::{PublicationTerms, ReplicaStanding, ReplicaState, TermsError, WriteClient};

pub use longshore_protocol::messages::resolver::{
    Column, Declared, Departure, KnownPublisher, PathListed, ReplicaStatus, RequestCounts,
};
pub use longshore_transport::BindError;
