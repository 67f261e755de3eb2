//! A moment in the life of a replica's directory.

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::id::Incarnation;

/// What a replica had been told when it answered. Those of two incarnations do not compare: whoever moves to another replica, or
/// finds one started again, asks anew.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tracker {
    /// The run of the replica.
    pub incarnation: Incarnation,
    /// Rises with every change of its directory.
    pub revision: u64,
}

impl Encode for Tracker {
    fn encode(&self, out: &mut FrameWriter) {
        self.incarnation.encode(out);
        out.u64(self.revision);
    }
}

impl Decode for Tracker {
    fn decode(r: &mut Reader) -> Result<Tracker, WireError> {
        Ok(Tracker { incarnation: Incarnation::decode(r)?, revision: r.u64()? })
    }
}
