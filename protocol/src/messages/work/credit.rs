//! Subscriptions, credits, and lists of tokens.

use crate::codec::{Decode, Encode, Reader, WireError, check_limit};
use crate::fields::{codes, fields};
use crate::frame::FrameWriter;
use crate::glob::Glob;
use crate::id::Token;
use crate::limits::{CREDITS_MAX, HANDLERS_MAX, SOURCES_MAX, TOKENS_MAX};

fields! {
    /// A subscription of a worker to queues.
    pub struct Subscribe {
        /// The client's number for it, unique on its link.
        pub subscription: u32,
        /// The queues and their order.
        pub sources: Sources,
        /// The worker's handlers, at least one: a job that needs a free handler is delivered only
        /// while the session has fewer leases than this.
        pub handlers: u32 = read_by(handlers),
    }

    /// The queues of a subscription and their order: existing and future ones.
    #[derive(Hash)]
    pub struct Sources {
        /// The order in which sources are used.
        pub order: Order,
        /// At least one, at most 64. A queue that several match belongs to the first match.
        pub patterns: Vec<Source> = read_by(patterns),
    }

    /// Queues of one pattern.
    #[derive(Hash)]
    pub struct Source {
        /// The pattern.
        pub pattern: Glob,
        /// Its share of the jobs under [`Order::Weighted`]; of no meaning under the other orders,
        /// except for 0: the subscription takes no job of these queues.
        pub weight: u16,
    }
}

codes! {
    /// The order in which a subscription uses several sources. Within a source, jobs are ordered by
    /// priority, then age.
    Order, "order of sources" {
        /// By priority, then age, as if all sources were one queue.
        Age = 0, "age";
        /// A source is used only while none before it has a job.
        Strict = 1, "strict";
        /// In proportion to the weights, among sources with jobs.
        Weighted = 2, "weighted";
    }
}

impl Sources {
    /// The queues of one pattern.
    pub fn one(pattern: Glob) -> Sources {
        Sources { order: Order::Age, patterns: vec![Source { pattern, weight: 1 }] }
    }

    /// The index of a queue's source, the first that matches; none if that has weight 0.
    pub fn source_of(&self, path: &crate::Path) -> Option<usize> {
        let first = self.patterns.iter().position(|source| source.pattern.matches(path))?;
        (self.patterns[first].weight > 0).then_some(first)
    }
}

fields! {
    /// A number of credits of one subscription. A credit is one job that the worker is ready to
    /// receive.
    #[derive(Copy)]
    pub struct Credit {
        /// The subscription.
        pub subscription: u32,
        /// The number of credits.
        pub count: u32 = read_by(credits),
    }

    /// Jobs that wait for a credit.
    #[derive(Copy)]
    pub struct Waiting {
        /// The subscription.
        pub subscription: u32,
        /// The number of ready jobs in the queues that it matches.
        pub jobs: u64,
    }
}

/// Tokens, in any order. Each is encoded as the difference from the one before: neighbours cost a
/// byte.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tokens(pub Vec<Token>);

fn credits(r: &mut Reader) -> Result<u32, WireError> {
    let (offset, count) = (r.offset(), r.u32()?);
    check_limit(offset, "credits", count as usize, CREDITS_MAX as usize).map(|()| count)
}

fn handlers(r: &mut Reader) -> Result<u32, WireError> {
    let (offset, none) = (r.offset(), r.invalid("subscription without a handler"));
    match r.u32()? {
        0 => Err(none),
        count => {
            check_limit(offset, "handlers", count as usize, HANDLERS_MAX as usize).map(|()| count)
        }
    }
}

fn patterns(r: &mut Reader) -> Result<Vec<Source>, WireError> {
    r.non_empty_list("subscription without a pattern", "patterns of a subscription", SOURCES_MAX)
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
