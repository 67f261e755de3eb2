//! Writes: a subscriber sends a value to the publisher's program and receives an answer.

use crate::fields::{codes, fields};
use crate::limits::REASON_BYTES_MAX;
use crate::value::Value;

fields! {
    /// A value for the publisher's program.
    pub struct WriteValue {
        /// The subscriber's number for the write, repeated in the answer. Meaningless if no answer
        /// is requested.
        pub request: u32,
        /// An active subscription to the value.
        pub subscription: u32,
        /// Whether an answer is requested.
        pub receipt: bool,
        /// The deadline for the program, in milliseconds from when the publisher reads the write; 0
        /// for none.
        pub deadline_ms: u32,
        /// The value to write.
        pub value: Value,
    }

    /// The answer to a write.
    pub struct Written {
        /// The write's number.
        pub request: u32,
        /// The program's answer, or why there is none.
        pub outcome: Result<Value, WriteRefused>,
    }

    /// Why a write was refused.
    #[derive(thiserror::Error)]
    #[error("{code}: {reason}")]
    pub struct WriteRefused {
        /// The reason for programs.
        pub code: WriteRefusal,
        /// The reason for people; may be empty.
        pub reason: String = cut("reason", REASON_BYTES_MAX),
    }
}

codes! {
    /// Why a write was refused.
    WriteRefusal, "write refusal" {
        /// The program refused the write, or dropped it without an answer. The value was not
        /// accepted.
        Refused = 1, "the publisher's program refused the write";
        /// The program accepts no writes to this value. Nothing was accepted.
        NotWritable = 2, "the value accepts no writes";
        /// The program did not answer before the write's deadline. It may have accepted the value.
        Late = 3, "the publisher's program did not answer in time; it may have accepted the value";
        /// This value or this link has reached its limit of pending writes. Nothing was accepted:
        /// try again once some are answered.
        TooMany = 4, "too many writes wait for their answers; wait for some";
        /// The subscription does not exist, or has ended. Nothing was accepted.
        NotSubscribed = 5, "the subscription does not exist or has ended";
        /// The program could not read the value, and did nothing with it.
        Unreadable = 6, "the publisher's program could not read the value";
        /// The program accepted the write, but its answer is no value within the limits.
        BadAnswer = 7, "the program accepted the write, but its answer is no value";
        /// The publisher's policy does not allow the client to write to the path. Nothing was
        /// accepted.
        Forbidden = 8, "the publisher's policy does not allow this client to write to the value";
    }
}
