//! The end of a lease without a settle.

use longshore_protocol::{Decode, Encode, FrameWriter, Reader, Token, WireError};

/// A lease that has ended without a settle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expired {
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

impl Encode for Expired {
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

impl Decode for Expired {
    fn decode(r: &mut Reader) -> Result<Expired, WireError> {
        let token = Token::decode(r)?;
        let invalid_flags = r.invalid("flags of an expired lease");
        let flags = r.u8()?;
        if flags & !(STARTED | UNCOUNTED | TIMED_OUT) != 0 {
            return Err(invalid_flags);
        }
        Ok(Expired {
            token,
            started: flags & STARTED != 0,
            uncounted: flags & UNCOUNTED != 0,
            timed_out: flags & TIMED_OUT != 0,
        })
    }
}
