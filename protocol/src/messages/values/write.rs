//! Writes: a subscriber's value for the publisher's program, and the answer.

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::limits::REASON_BYTES_MAX;
use crate::refusal::codes;
use crate::value::Value;

/// A value for the publisher's program to take.
#[derive(Clone, PartialEq, Debug)]
pub struct WriteValue {
    /// The subscriber's number for the write; the answer carries it. Without meaning if there is to be none.
    pub request: u32,
    /// Where: a subscription that stands.
    pub subscription: u32,
    /// Whether an answer is wanted.
    pub receipt: bool,
    /// The longest that the program may take, in milliseconds from when the publisher reads it; 0 for as long as it likes.
    pub deadline_ms: u32,
    /// What is written.
    pub value: Value,
}

/// The answer to a write.
#[derive(Clone, PartialEq, Debug)]
pub struct Written {
    /// The write's number.
    pub request: u32,
    /// What the program answered, or why it did not.
    pub outcome: Result<Value, WriteRefused>,
}

/// Why a write was not taken.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{code}: {reason}")]
pub struct WriteRefused {
    /// For programs.
    pub code: WriteRefusal,
    /// For people; may be empty.
    pub reason: String,
}

codes! {
    /// Why a write was not taken.
    WriteRefusal, "write refusal" {
        /// The program said no, or dropped the write without an answer. It was not taken.
        Refused = 1, "the publisher's program refused the write";
        /// The program takes no writes to this value. Nothing was taken.
        NotWritable = 2, "the value takes no writes";
        /// The program did not answer within the write's deadline. It may have taken the value.
        Late = 3, "the publisher's program did not answer in time; it may have taken the value";
        /// As many writes wait as may, of this value or of this link. Nothing was taken: try again once some are answered.
        TooMany = 4, "as many writes wait for their answers as may; wait for some";
        /// There is no such subscription, or no longer. Nothing was taken.
        NotSubscribed = 5, "the subscription does not stand";
    }
}

impl Encode for WriteValue {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(u64::from(self.request));
        out.u64(u64::from(self.subscription));
        out.bool(self.receipt);
        out.u64(u64::from(self.deadline_ms));
        self.value.encode(out);
    }
}

impl Decode for WriteValue {
    fn decode(r: &mut Reader) -> Result<WriteValue, WireError> {
        let (request, subscription) = (r.u32()?, r.u32()?);
        let (receipt, deadline_ms) = (r.bool()?, r.u32()?);
        Ok(WriteValue { request, subscription, receipt, deadline_ms, value: Value::decode(r)? })
    }
}

impl Encode for Written {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(u64::from(self.request));
        out.bool(self.outcome.is_ok());
        match &self.outcome {
            Ok(value) => value.encode(out),
            Err(refused) => {
                refused.code.encode(out);
                out.string_cut(&refused.reason, REASON_BYTES_MAX);
            }
        }
    }
}

impl Decode for Written {
    fn decode(r: &mut Reader) -> Result<Written, WireError> {
        let request = r.u32()?;
        let outcome = if r.bool()? {
            Ok(Value::decode(r)?)
        } else {
            let code = WriteRefusal::decode(r)?;
            Err(WriteRefused { code, reason: r.string("reason", REASON_BYTES_MAX)? })
        };
        Ok(Written { request, outcome })
    }
}
