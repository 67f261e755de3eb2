//! The first exchange of a work link.

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::messages::work::Tokens;
use crate::refusal::Durability;

/// A client's first message. It ends the session's older links and their credits.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Attach {
    /// Every token that the worker holds and has no answered settle for. Leases of the session that are not listed are
    /// released: the worker never got them.
    pub resume: Tokens,
}

/// The publisher's answer, once the link is durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attached {
    /// How durable the publisher's acknowledgements are.
    pub durability: Durability,
    /// The sequence number that the session's next enqueue batch must have. 1 for a session that is new here.
    pub next_batch: u64,
    /// The sequence number that the session's next settle batch must have.
    pub next_settle: u64,
    /// Tokens of `resume` that hold no lease any more.
    pub gone: Tokens,
    /// How long the session's leases outlive this link, in milliseconds. Unless it is resumed by then, their jobs go to other
    /// workers: counted from the last byte that the worker received, it begins none of them after that.
    pub reconnect_grace_ms: u64,
}

impl Encode for Attach {
    fn encode(&self, out: &mut FrameWriter) {
        self.resume.encode(out);
    }
}

impl Decode for Attach {
    fn decode(r: &mut Reader) -> Result<Attach, WireError> {
        Ok(Attach { resume: Tokens::decode(r)? })
    }
}

impl Encode for Attached {
    fn encode(&self, out: &mut FrameWriter) {
        self.durability.encode(out);
        out.u64(self.next_batch);
        out.u64(self.next_settle);
        self.gone.encode(out);
        out.u64(self.reconnect_grace_ms);
    }
}

impl Decode for Attached {
    fn decode(r: &mut Reader) -> Result<Attached, WireError> {
        Ok(Attached {
            durability: Durability::decode(r)?,
            next_batch: r.u64()?,
            next_settle: r.u64()?,
            gone: Tokens::decode(r)?,
            reconnect_grace_ms: r.u64()?,
        })
    }
}
