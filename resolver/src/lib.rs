//! The directory of publishers: it maps paths to the publishers that hold them. A cluster has 1 to
//! N replicas, each with its own copy in memory: publishers write to every replica
//! ([`WriteClient`]), and clients read from any ([`ReadClient`]). The publishers are the source of
//! truth; a replica may forget everything and gets it again from them.
//!
//! Three pure cores make the decisions: `directory`, `read_client::core` and `write_client::core`.
//! They take the time and events as arguments and return what to do. The tasks around them do I/O
//! and read the clock.

mod cluster;
mod directory;
mod read_client;
mod replica_error;
mod replica_link;
mod server;
mod sleep_detector;
mod write_client;

pub use cluster::{Cluster, REPLICA_PORT, ReplicaFailure};
pub use read_client::{
    ClusterPublishers, Listing, PathAnswer, PathEvent, PathTable, PathWatch, Publication,
    PublisherSet, PublisherWatch, ReadClient, ReadClientBuilder, ReadError, Resolution,
    WATCHED_PATHS_MAX, WatchEnded,
};
pub use replica_error::ReplicaError;
pub use server::{
    Limits, LimitsHandle, ReplicaStartError, ReplicaStopped, ResolverServer, ServerOptions,
    StatusHandle,
};
pub use write_client::{CheckedTerms, PublicationStatus, ReplicaHealth, TermsTooLong, WriteClient};

pub use longshore_protocol::messages::resolver::{
    Column, Declared, Departure, KnownPublisher, PathListed, ReplicaStatus, RequestCounts,
};
pub use longshore_transport::BindError;
