//! Updates: numbers and values up to the end of the message. They are the hot path: without a count
//! or a header, so that one encoding is sent to every link.

use bytes::Bytes;

use super::tag;
use crate::codec::{Decode, Reader, WireError};
use crate::frame::{Frame, FrameWriter};
use crate::value::{Value, put_number_and_value, take_number_and_plain};

/// New values by the publisher's numbers, decoded on iteration.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Updates {
    body: Bytes,
}

impl Updates {
    /// The updates in `body`.
    pub fn new(body: Bytes) -> Updates {
        Updates { body }
    }

    pub(super) fn decode(body: Bytes) -> Result<Updates, WireError> {
        Ok(Updates::new(body))
    }

    /// The encoded updates.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Iterates over the updates in order. After an error the iterator ends.
    pub fn iter(&self) -> UpdatesIter {
        UpdatesIter { rest: Reader::new(self.body.clone()) }
    }
}

impl<'a> FromIterator<(u32, &'a Value)> for Updates {
    fn from_iter<I: IntoIterator<Item = (u32, &'a Value)>>(updates: I) -> Updates {
        let mut out = FrameWriter::new();
        updates.into_iter().for_each(|(n, value)| put_number_and_value(n, value, &mut out));
        Updates { body: out.into_body() }
    }
}

impl IntoIterator for &Updates {
    type Item = Result<(u32, Value), WireError>;
    type IntoIter = UpdatesIter;
    fn into_iter(self) -> UpdatesIter {
        self.iter()
    }
}

/// Decodes updates one by one.
#[derive(Clone, Debug)]
pub struct UpdatesIter {
    rest: Reader,
}

impl UpdatesIter {
    /// Returns the next update if its value is a number, as in most updates: the same as `next`,
    /// but without copying a result that could be an error. Returns `None` for anything else, and
    /// at the end.
    #[inline]
    pub fn next_number(&mut self) -> Option<(u32, Value)> {
        take_number_and_plain(&mut self.rest)
    }

    fn read(&mut self) -> Result<(u32, Value), WireError> {
        let number = self.rest.u32()?;
        Ok((number, Value::decode(&mut self.rest)?))
    }
}

/// The publisher's number for the value, and the value.
impl Iterator for UpdatesIter {
    type Item = Result<(u32, Value), WireError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if let Some(update) = take_number_and_plain(&mut self.rest) {
            return Some(Ok(update));
        }
        if self.rest.is_empty() {
            return None;
        }
        let update = self.read();
        if update.is_err() {
            self.rest.seek(usize::MAX);
        }
        Some(update)
    }
}

/// Writes a frame with one message of updates.
#[derive(Debug)]
pub struct UpdatesWriter {
    out: FrameWriter,
    at: usize,
}

impl UpdatesWriter {
    /// A frame with capacity for `bytes`; it must not be sent without updates.
    pub fn with_capacity(bytes: usize) -> UpdatesWriter {
        let mut out = FrameWriter::with_capacity(bytes);
        let at = out.open(tag::UPDATES);
        UpdatesWriter { out, at }
    }

    /// Adds one update.
    #[inline]
    pub fn push(&mut self, number: u32, value: &Value) {
        put_number_and_value(number, value, &mut self.out);
    }

    /// Bytes of the frame's body so far.
    #[inline]
    pub fn body_len(&self) -> usize {
        self.out.body_len()
    }

    /// The frame. A clone of it shares its bytes.
    pub fn finish(mut self) -> Frame {
        self.out.close(self.at);
        self.out.finish()
    }
}
