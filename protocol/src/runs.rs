//! Run-length encoded answers to batches: in most batches all answers are the same, and take two
//! bytes.

use crate::codec::{Bounded, Decode, Encode, Reader, WireError, check_limit};
use crate::frame::FrameWriter;

/// A run-length encoded sequence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Runs<T> {
    runs: Vec<(T, u32)>,
}

impl<T> Default for Runs<T> {
    fn default() -> Runs<T> {
        Runs { runs: Vec::new() }
    }
}

impl<T: Copy + PartialEq> Runs<T> {
    /// The same `value`, `count` times.
    pub fn all(value: T, count: usize) -> Runs<T> {
        let mut runs = Runs::default();
        runs.push_many(value, count);
        runs
    }

    /// Adds one value at the end.
    pub fn push(&mut self, value: T) {
        self.push_many(value, 1);
    }

    /// Adds `value` at the end, `count` times.
    pub fn push_many(&mut self, value: T, count: usize) {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        match self.runs.last_mut() {
            _ if count == 0 => {}
            Some((last, n)) if *last == value && n.checked_add(count).is_some() => *n += count,
            _ => self.runs.push((value, count)),
        }
    }

    /// The values, each with the length of its run.
    pub fn runs(&self) -> &[(T, u32)] {
        &self.runs
    }

    /// Every value.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        self.runs.iter().flat_map(|&(value, n)| std::iter::repeat_n(value, n as usize))
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.runs.iter().map(|&(_, n)| n as usize).sum()
    }

    /// True if there are no values.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Reads runs whose lengths add up to at most `limit`.
    pub fn decode(r: &mut Reader, what: &'static str, limit: usize) -> Result<Runs<T>, WireError>
    where
        T: Decode,
    {
        let count = r.count(what, limit, 2)?;
        let (mut runs, mut total) = (Runs::default(), 0);
        for _ in 0..count {
            let value = T::decode(r)?;
            let offset = r.offset();
            let n = r.u32()? as usize;
            total += n;
            check_limit(offset, what, total, limit)?;
            runs.push_many(value, n);
        }
        Ok(runs)
    }
}

impl<T: Copy + PartialEq + Decode> Bounded for Runs<T> {
    fn read(r: &mut Reader, what: &'static str, limit: usize) -> Result<Runs<T>, WireError> {
        Runs::decode(r, what, limit)
    }
}

impl<T: Encode> Encode for Runs<T> {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.runs.len() as u64);
        for (value, n) in &self.runs {
            value.encode(out);
            out.u64(u64::from(*n));
        }
    }
}

impl<T: Copy + PartialEq> FromIterator<T> for Runs<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Runs<T> {
        let mut runs = Runs::default();
        values.into_iter().for_each(|value| runs.push(value));
        runs
    }
}
