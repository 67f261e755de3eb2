//! Messages of a *value* link: between a publisher and those who follow its live values.
//!
//! The subscriber speaks first, by [`ToValuePublisher::Subscribe`]. The publisher answers each subscription with the value and the
//! number by which it calls it from then on; updates name that number and nothing else.

mod subscribe;
mod updates;
mod write;

use bytes::Bytes;

pub use subscribe::{
    Policy, SubscribeValue, Subscribed, SubscriptionEnd, SubscriptionEnded, ValueRefusal,
};
pub use updates::{Updates, UpdatesIter, UpdatesWriter};
pub use write::{WriteRefusal, WriteRefused, WriteValue, Written};

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::limits::{REASON_BYTES_MAX, VALUE_BATCH_MAX};

/// The tags. 1 is [`crate::messages::HEARTBEAT`].
pub mod tag {
    #![allow(missing_docs)]
    pub const SUBSCRIBE_VALUES: u8 = 90;
    pub const UNSUBSCRIBE_VALUES: u8 = 91;
    pub const WRITE_VALUE: u8 = 92;

    pub const SUBSCRIBED: u8 = 110;
    pub const VALUE_REFUSED: u8 = 111;
    pub const UPDATES: u8 = 112;
    pub const ENDED: u8 = 113;
    pub const VALUE_WRITTEN: u8 = 114;
    pub const VALUES_GOODBYE: u8 = 115;
}

/// What a subscriber says to a publisher of values.
#[derive(Clone, PartialEq, Debug)]
pub enum ToValuePublisher {
    /// These values are to be followed. Each is answered by [`FromValuePublisher::Subscribed`] or [`FromValuePublisher::Refused`].
    Subscribe(Vec<SubscribeValue>),
    /// These subscriptions are wanted no more. Each that stands is answered by [`FromValuePublisher::Ended`].
    Unsubscribe(Vec<u32>),
    /// A value for the publisher's program to take.
    Write(WriteValue),
}

/// What a publisher of values says to a subscriber.
#[derive(Clone, PartialEq, Debug)]
pub enum FromValuePublisher {
    /// These subscriptions stand, each with its value as it is now.
    Subscribed(Vec<Subscribed>),
    /// A subscription was not made; its number is free again.
    Refused {
        /// Which.
        subscription: u32,
        /// For programs.
        code: ValueRefusal,
        /// For people.
        reason: String,
    },
    /// New values, in their order.
    Updates(Updates),
    /// These subscriptions have ended; their numbers are free again.
    Ended(Vec<SubscriptionEnded>),
    /// The answer to a write that asked for one.
    Written(Written),
    /// The publisher is about to close the link, and why.
    Goodbye {
        /// Why, for people.
        reason: String,
    },
}

impl ToValuePublisher {
    /// Reads the message with that tag. `None` for a tag that this version does not know: it is skipped.
    pub fn decode(tag: u8, body: Bytes) -> Result<Option<ToValuePublisher>, WireError> {
        let mut r = Reader::new(body);
        let r = &mut r;
        Ok(Some(match tag {
            tag::SUBSCRIBE_VALUES => {
                ToValuePublisher::Subscribe(r.list("subscriptions", VALUE_BATCH_MAX)?)
            }
            tag::UNSUBSCRIBE_VALUES => {
                let count = r.count("subscriptions", VALUE_BATCH_MAX, 1)?;
                let numbers = (0..count).map(|_| r.u32()).collect::<Result<_, _>>()?;
                ToValuePublisher::Unsubscribe(numbers)
            }
            tag::WRITE_VALUE => ToValuePublisher::Write(WriteValue::decode(r)?),
            _ => return Ok(None),
        }))
    }

    /// Writes the message.
    pub fn encode(&self, out: &mut FrameWriter) {
        match self {
            ToValuePublisher::Subscribe(subscriptions) => {
                out.message(tag::SUBSCRIBE_VALUES, |out| subscriptions.encode(out));
            }
            ToValuePublisher::Unsubscribe(numbers) => {
                out.message(tag::UNSUBSCRIBE_VALUES, |out| {
                    out.u64(numbers.len() as u64);
                    numbers.iter().for_each(|number| out.u64(u64::from(*number)));
                });
            }
            ToValuePublisher::Write(write) => {
                out.message(tag::WRITE_VALUE, |out| write.encode(out));
            }
        }
    }
}

impl FromValuePublisher {
    /// Reads the message with that tag. `None` for a tag that this version does not know: it is skipped. The values of updates are
    /// read one by one, when they are asked for.
    pub fn decode(tag: u8, body: Bytes) -> Result<Option<FromValuePublisher>, WireError> {
        if tag == tag::UPDATES {
            return Ok(Some(FromValuePublisher::Updates(Updates::new(body))));
        }
        let mut r = Reader::new(body);
        let r = &mut r;
        Ok(Some(match tag {
            tag::SUBSCRIBED => {
                FromValuePublisher::Subscribed(r.list("subscriptions", VALUE_BATCH_MAX)?)
            }
            tag::VALUE_REFUSED => FromValuePublisher::Refused {
                subscription: r.u32()?,
                code: ValueRefusal::decode(r)?,
                reason: r.string("reason", REASON_BYTES_MAX)?,
            },
            tag::ENDED => FromValuePublisher::Ended(r.list("subscriptions", VALUE_BATCH_MAX)?),
            tag::VALUE_WRITTEN => FromValuePublisher::Written(Written::decode(r)?),
            tag::VALUES_GOODBYE => {
                FromValuePublisher::Goodbye { reason: r.string("reason", REASON_BYTES_MAX)? }
            }
            _ => return Ok(None),
        }))
    }

    /// Writes the message.
    pub fn encode(&self, out: &mut FrameWriter) {
        match self {
            FromValuePublisher::Subscribed(subscribed) => {
                out.message(tag::SUBSCRIBED, |out| subscribed.encode(out));
            }
            FromValuePublisher::Refused { subscription, code, reason } => {
                out.message(tag::VALUE_REFUSED, |out| {
                    out.u64(u64::from(*subscription));
                    code.encode(out);
                    out.string_cut(reason, REASON_BYTES_MAX);
                });
            }
            FromValuePublisher::Updates(updates) => {
                out.message(tag::UPDATES, |out| out.put_shared(updates.body().clone()));
            }
            FromValuePublisher::Ended(ended) => out.message(tag::ENDED, |out| ended.encode(out)),
            FromValuePublisher::Written(written) => {
                out.message(tag::VALUE_WRITTEN, |out| written.encode(out));
            }
            FromValuePublisher::Goodbye { reason } => {
                out.message(tag::VALUES_GOODBYE, |out| out.string_cut(reason, REASON_BYTES_MAX));
            }
        }
    }
}
