//! Why a call has no reply.

use std::time::Duration;

use longshore_protocol::ConvertError;
use longshore_protocol::messages::values::WriteRefusal;

use super::subscriber::SubscribeError;
use super::writes::WriteError;

/// Why [`Subscriber::call`](crate::Subscriber::call) has no reply, and whether the procedure ran.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CallError {
    /// Nobody publishes a procedure at this path. Nothing ran.
    #[error("nobody publishes a procedure at this path")]
    NoSuchProcedure,
    /// The procedure ran, and returned this error.
    #[error("refused: {0}")]
    Refused(String),
    /// The procedure could not read its argument, which is of another type. It did not run.
    #[error("the procedure did not run, as it could not read its argument: {0}")]
    Unreadable(String),
    /// The procedure ran, but its reply does not convert to a value or is too large for one.
    #[error("the procedure ran, but its reply is no value: {0}")]
    BadReply(String),
    /// No reply within the time limit. The procedure may or may not have run, and may still run:
    /// retry only what may run twice.
    #[error("no reply within {after:?}; the procedure may or may not have run")]
    TimedOut {
        /// The time limit.
        after: Duration,
    },
    /// The link was lost before the reply, or the procedure ended without one. It may or may not
    /// have run: retry only what may run twice.
    #[error("the outcome of the call is unknown: {0}")]
    Lost(String),
    /// The call was not sent, or the publisher had no room for it, or its policy does not allow it
    /// ([`WriteRefusal::Forbidden`]). Nothing ran: otherwise retry.
    #[error("the call was not made: {0}")]
    NotMade(WriteError),
    /// The argument does not convert to a value. Nothing ran.
    #[error("the argument does not convert to a value: {0}")]
    Argument(ConvertError),
    /// The procedure ran, but its reply does not convert to the expected type.
    #[error("the procedure ran; its reply is of another type: {0}")]
    Reply(ConvertError),
}

impl CallError {
    pub(super) fn new(why: WriteError, after: Duration) -> CallError {
        match why {
            WriteError::Subscribe(SubscribeError::NotFound { complete: true }) => {
                CallError::NoSuchProcedure
            }
            WriteError::Refused(refused) => match refused.code {
                WriteRefusal::NotWritable => CallError::NoSuchProcedure,
                WriteRefusal::Refused => CallError::Refused(refused.reason),
                WriteRefusal::Unreadable => CallError::Unreadable(refused.reason),
                WriteRefusal::BadAnswer => CallError::BadReply(refused.reason),
                WriteRefusal::Late if refused.reason.is_empty() => CallError::TimedOut { after },
                WriteRefusal::Late => CallError::Lost(refused.reason),
                WriteRefusal::TooMany | WriteRefusal::NotSubscribed | WriteRefusal::Forbidden => {
                    CallError::NotMade(WriteError::Refused(refused))
                }
            },
            WriteError::TimedOut { .. } => CallError::TimedOut { after },
            WriteError::Unknown(reason) => CallError::Lost(reason),
            WriteError::Subscribe(_)
            | WriteError::Dead
            | WriteError::Full
            | WriteError::Value(_) => CallError::NotMade(why),
        }
    }
}
