//! The first messages of a work link.

use crate::codes::Durability;
use crate::fields::fields;
use crate::messages::work::Tokens;

fields! {
    /// A client's first message. It ends the session's older links and their credits.
    #[derive(Default)]
    pub struct Attach {
        /// Every token of the worker without an answered settle. Unlisted leases of the session are
        /// released, because the worker never received them.
        pub resume: Tokens,
    }

    /// The publisher's answer, sent once the link is durable.
    pub struct Attached {
        /// How durable the publisher's acknowledgements are.
        pub durability: Durability,
        /// The sequence number of the session's next enqueue batch. 1 for a new session.
        pub next_batch: u64,
        /// The sequence number of the session's next settle batch.
        pub next_settle: u64,
        /// Tokens of `resume` that no longer have a lease.
        pub gone: Tokens,
        /// How long the session's leases outlive this link, in milliseconds. Unless the session is
        /// resumed by then, their jobs go to other workers. The worker counts from the last byte
        /// that it received, and begins none of them after that.
        pub reconnect_grace_ms: u64,
    }
}
