//! Writes: a subscriber's value for the publisher's program, and the answer.

use crate::fields::{codes, fields};
use crate::limits::REASON_BYTES_MAX;
use crate::value::Value;

fields! {
    /// A value for the publisher's program to take.
    pub struct WriteValue {
        /// The subscriber's number for the write; the answer carries it. Without meaning if there
        /// is to be none.
        pub request: u32,
        /// Where: a subscription that stands.
        pub subscription: u32,
        /// Whether an answer is wanted.
        pub receipt: bool,
        /// The longest that the program may take, in milliseconds from when the publisher reads it;
        /// 0 for as long as it likes.
        pub deadline_ms: u32,
        /// What is written.
        pub value: Value,
    }

    /// The answer to a write.
    pub struct Written {
        /// The write's number.
        pub request: u32,
        /// What the program answered, or why it did not.
        pub outcome: Result<Value, WriteRefused>,
    }

    /// Why a write was not taken.
    #[derive(thiserror::Error)]
    #[error("{code}: {reason}")]
    pub struct WriteRefused {
        /// For programs.
        pub code: WriteRefusal,
        /// For people; may be empty.
        pub reason: String = cut("reason", REASON_BYTES_MAX),
    }
}

codes! {
    /// Why a write was not taken.
    WriteRefusal, "write refusal" {
        /// The program refused the write, or dropped it without an answer. It was not taken.
        Refused = 1, "the publisher's program refused the write";
        /// The program takes no writes to this value. Nothing was taken.
        NotWritable = 2, "the value takes no writes";
        /// The program did not answer within the write's deadline. It may have taken the value.
        Late = 3, "the publisher's program did not answer in time; it may have taken the value";
        /// As many writes wait as may, of this value or of this link. Nothing was taken: try again
        /// once some are answered.
        TooMany = 4, "as many writes wait for their answers as may; wait for some";
        /// There is no such subscription, or no longer. Nothing was taken.
        NotSubscribed = 5, "the subscription does not stand";
    }
}
