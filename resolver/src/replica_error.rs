//! Why a replica did not answer.

use std::time::Duration;

use longshore_protocol::messages::resolver::RequestRefusal;
use longshore_protocol::{Address, AddressError};
use longshore_transport::{DialError, LinkEnd, SendError};

/// Why a replica did not answer one question.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// Its address is not one.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Its name has no IP address, or one of its addresses could not be dialled.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// A publisher answers at the address. It serves tools, too, but would close the link at the
    /// first question.
    #[error(
        "{address} is not a replica of the resolver, but the publisher {publisher}; \
         name the resolver's address"
    )]
    IsPublisher {
        /// The dialled address.
        address: Address,
        /// The publisher's name.
        publisher: String,
    },
    /// Each of its addresses was tried, and none led to a replica.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    AllAddressesFailed(Vec<ReplicaError>),
    /// The question could not be sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The link ended before the answer.
    #[error(transparent)]
    LinkEnded(#[from] LinkEnd),
    /// It sent no answer in time.
    #[error("no answer for {0:?}")]
    Silent(Duration),
    /// It refused the question.
    #[error("{reason}")]
    Refused {
        /// For programs.
        code: RequestRefusal,
        /// For people.
        reason: String,
    },
    /// Its answer does not decode, or is longer than an answer may be.
    #[error("{0}")]
    BadAnswer(String),
}

impl ReplicaError {
    /// Whether the replica refuses this client, at each of its addresses: another try changes
    /// nothing.
    pub fn refuses_client(&self) -> bool {
        match self {
            ReplicaError::Dial(error) => error.refuses_client(),
            ReplicaError::AllAddressesFailed(failures) => {
                !failures.is_empty() && failures.iter().all(ReplicaError::refuses_client)
            }
            _ => false,
        }
    }

    /// Whether another authority, certificate or token may be the remedy, at one of its addresses
    /// at least.
    pub fn concerns_identity(&self) -> bool {
        match self {
            ReplicaError::Dial(error) => error.concerns_identity(),
            ReplicaError::AllAddressesFailed(failures) => {
                failures.iter().any(ReplicaError::concerns_identity)
            }
            _ => false,
        }
    }
}
