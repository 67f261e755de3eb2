//! Subscriptions, credits, and lists of tokens.

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::glob::Glob;
use crate::id::Token;
use crate::limits::{CREDITS_MAX, TOKENS_MAX};

/// A pattern that a worker takes jobs from.
#[derive(Clone, PartialEq, Debug)]
pub struct Subscribe {
    /// The client's number for it, unique on its link.
    pub subscription: u32,
    /// Which queues: those that there are, and those that there will be.
    pub pattern: Glob,
}

/// A number of credits of one subscription. A credit is one job that the worker is ready to take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credit {
    /// The subscription.
    pub subscription: u32,
    /// How many.
    pub count: u32,
}

/// Jobs that wait for a credit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// The subscription.
    pub subscription: u32,
    /// How many jobs wait in the queues that it matches.
    pub jobs: u64,
}

/// Tokens, in any order. On the wire each is the difference from the one before: neighbours cost a byte.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tokens(pub Vec<Token>);

impl Encode for Subscribe {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(u64::from(self.subscription));
        self.pattern.encode(out);
    }
}

impl Decode for Subscribe {
    fn decode(r: &mut Reader) -> Result<Subscribe, WireError> {
        Ok(Subscribe { subscription: r.u32()?, pattern: Glob::decode(r)? })
    }
}

impl Encode for Credit {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(u64::from(self.subscription));
        out.u64(u64::from(self.count));
    }
}

impl Decode for Credit {
    fn decode(r: &mut Reader) -> Result<Credit, WireError> {
        let subscription = r.u32()?;
        let offset = r.offset();
        let count = r.u32()?;
        if count > CREDITS_MAX {
            let (value, limit) = (u64::from(count), u64::from(CREDITS_MAX));
            return Err(WireError::OverLimit { offset, what: "credits", value, limit });
        }
        Ok(Credit { subscription, count })
    }
}

impl Encode for Waiting {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(u64::from(self.subscription));
        out.u64(self.jobs);
    }
}

impl Decode for Waiting {
    fn decode(r: &mut Reader) -> Result<Waiting, WireError> {
        Ok(Waiting { subscription: r.u32()?, jobs: r.u64()? })
    }
}

impl Encode for Tokens {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.0.len() as u64);
        let mut before = 0;
        for token in &self.0 {
            put_token(out, &mut before, *token);
        }
    }
}

impl Decode for Tokens {
    fn decode(r: &mut Reader) -> Result<Tokens, WireError> {
        let count = r.count("tokens", TOKENS_MAX, 1)?;
        let mut before = 0;
        let tokens = (0..count).map(|_| read_token(r, &mut before)).collect::<Result<_, _>>()?;
        Ok(Tokens(tokens))
    }
}

/// Writes a token as its difference from the one `before`.
pub(super) fn put_token(out: &mut FrameWriter, before: &mut u64, token: Token) {
    out.i64(token.0.wrapping_sub(*before) as i64);
    *before = token.0;
}

/// Reads a token that was written by [`put_token`].
pub(super) fn read_token(r: &mut Reader, before: &mut u64) -> Result<Token, WireError> {
    *before = before.wrapping_add(r.i64()? as u64);
    Ok(Token(*before))
}
