//! The first exchange of a work link.

use crate::fields::fields;
use crate::messages::work::Tokens;
use crate::refusal::Durability;

fields! {
    /// A client's first message. It ends the session's older links and their credits.
    #[derive(Default)]
    pub struct Attach {
        /// Every token that the worker holds and has no answered settle for. Leases of the session
        /// that are not listed are released: the worker never got them.
        pub resume: Tokens,
    }

    /// The publisher's answer, once the link is durable.
    pub struct Attached {
        /// How durable the publisher's acknowledgements are.
        pub durability: Durability,
        /// The sequence number that the session's next enqueue batch must have. 1 for a session
        /// that is new here.
        pub next_batch: u64,
        /// The sequence number that the session's next settle batch must have.
        pub next_settle: u64,
        /// Tokens of `resume` that hold no lease any more.
        pub gone: Tokens,
        /// How long the session's leases outlive this link, in milliseconds. Unless it is resumed
        /// by then, their jobs go to other workers: counted from the last byte that the worker
        /// received, it begins none of them after that.
        pub reconnect_grace_ms: u64,
    }
}
