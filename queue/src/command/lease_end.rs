//! The end of a lease without a settle.

use longshore_protocol::{Decode, Encode, FrameWriter, Reader, Token, WireError};

/// A lease that ended without a settle: by time, or because its link or the publisher did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseEnd {
    /// The lease.
    pub token: Token,
    /// Whether its worker had reported the attempt as started: then the attempt counts.
    pub started: bool,
    /// True if neither the attempt nor the delivery counts: no worker resumed it after the
    /// publisher's own restart, or its job was not sent.
    pub uncounted: bool,
    /// True if the attempt exceeded its run timeout: it has failed.
    pub timed_out: bool,
}

const STARTED: u8 = 1;
const UNCOUNTED: u8 = 2;
const TIMED_OUT: u8 = 4;

impl Encode for LeaseEnd {
    fn encode(&self, out: &mut FrameWriter) {
        self.token.encode(out);
        let mut flags = 0;
        for (is_set, flag) in
            [(self.started, STARTED), (self.uncounted, UNCOUNTED), (self.timed_out, TIMED_OUT)]
        {
            flags |= if is_set { flag } else { 0 };
        }
        out.u8(flags);
    }
}

impl Decode for LeaseEnd {
    fn decode(r: &mut Reader) -> Result<LeaseEnd, WireError> {
        let token = Token::decode(r)?;
        let invalid_flags = r.invalid("flags of a lease end");
        let flags = r.u8()?;
        if flags & !(STARTED | UNCOUNTED | TIMED_OUT) != 0 {
            return Err(invalid_flags);
        }
        Ok(LeaseEnd {
            token,
            started: flags & STARTED != 0,
            uncounted: flags & UNCOUNTED != 0,
            timed_out: flags & TIMED_OUT != 0,
        })
    }
}
