//! Subscriptions, credits, and lists of tokens.

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::glob::Glob;
use crate::id::Token;
use crate::limits::{CREDITS_MAX, SOURCES_MAX, TOKENS_MAX};
use crate::refusal::codes;

/// What a worker takes jobs from.
#[derive(Clone, PartialEq, Debug)]
pub struct Subscribe {
    /// The client's number for it, unique on its link.
    pub subscription: u32,
    /// Which queues, and in which order.
    pub sources: Sources,
}

/// Queues to take jobs from, and in which order: those that there are, and those that there will be.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Sources {
    /// Which source comes first.
    pub order: Order,
    /// At least one, at most 64. A queue that several match belongs to the first of them.
    pub patterns: Vec<Source>,
}

/// Queues of one pattern.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Source {
    /// Which.
    pub pattern: Glob,
    /// Its share of the jobs under [`Order::Weighted`]; at least 1. Without meaning under the other orders.
    pub weight: u16,
}

codes! {
    /// In which order a subscription takes from several sources. Within one, jobs come by priority, then age.
    Order, "order of sources" {
        /// By priority, then age, as if all of them were one queue.
        Age = 0, "age";
        /// While the first has a job, none of the second is taken, and so on.
        Strict = 1, "strict";
        /// Each by its weight, for as long as it has jobs.
        Weighted = 2, "weighted";
    }
}

impl Sources {
    /// The queues of one pattern.
    pub fn one(pattern: Glob) -> Sources {
        Sources { order: Order::Age, patterns: vec![Source { pattern, weight: 1 }] }
    }

    /// True when one of the patterns matches.
    pub fn matches(&self, path: &crate::Path) -> bool {
        self.patterns.iter().any(|source| source.pattern.matches(path))
    }
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
        self.sources.encode(out);
    }
}

impl Decode for Subscribe {
    fn decode(r: &mut Reader) -> Result<Subscribe, WireError> {
        Ok(Subscribe { subscription: r.u32()?, sources: Sources::decode(r)? })
    }
}

impl Encode for Sources {
    fn encode(&self, out: &mut FrameWriter) {
        self.order.encode(out);
        out.u64(self.patterns.len() as u64);
        for source in &self.patterns {
            source.pattern.encode(out);
            out.u64(u64::from(source.weight));
        }
    }
}

impl Decode for Sources {
    fn decode(r: &mut Reader) -> Result<Sources, WireError> {
        let order = Order::decode(r)?;
        let none = r.invalid("subscription without a pattern");
        let count = r.count("patterns of a subscription", SOURCES_MAX, 2)?;
        if count == 0 {
            return Err(none);
        }
        let mut read_one = || {
            let pattern = Glob::decode(r)?;
            let zero = r.invalid("weight of 0; the least is 1");
            match r.u16()? {
                0 => Err(zero),
                weight => Ok(Source { pattern, weight }),
            }
        };
        let patterns = (0..count).map(|_| read_one()).collect::<Result<_, _>>()?;
        Ok(Sources { order, patterns })
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
