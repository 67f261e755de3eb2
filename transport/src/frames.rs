//! Cuts a stream of bytes into frames. Pure: it is lent to whatever reads.

use bytes::buf::Limit;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use longshore_protocol::frame::FRAME_HEADER_BYTES;

use crate::end::LinkEnd;

/// The first read buffer of a link, in bytes: an idle link holds no more.
const READ_BYTES_MIN: usize = 8 * 1024;
/// The largest shared read buffer, in bytes. This is the most memory that one short slice of a received frame keeps alive.
const READ_BYTES_MAX: usize = 128 * 1024;
/// Frames longer than this, in bytes, get a buffer of exactly their own length; shorter ones share one.
const SHARED_FRAME_BYTES_MAX: usize = READ_BYTES_MAX / 2;

/// Reads go into [`spare`](FrameReader::spare), frames come out of [`next`](FrameReader::next).
///
/// Short frames are slices of one buffer that many of them arrived in with one read. A long frame is read into memory of its
/// own, so that it is copied once, by the kernel, but for what had arrived together with its length.
#[derive(Debug)]
pub(crate) struct FrameReader {
    limit: usize,
    /// What came and was not given out. Starts with a frame's length field, unless `long` holds the frame that is arriving.
    buffer: BytesMut,
    buffer_size: usize,
    /// The body of a long frame, and its length.
    long: Option<(BytesMut, usize)>,
}

impl FrameReader {
    /// Frames with bodies of at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> FrameReader {
        FrameReader { limit, buffer: BytesMut::new(), buffer_size: READ_BYTES_MIN, long: None }
    }

    /// The body of the next whole frame, if it has come. A frame over the limit is refused from its length, before anything
    /// is allocated for it.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, LinkEnd> {
        if let Some((body, length)) = &mut self.long {
            if body.len() < *length {
                return Ok(None);
            }
            let body = std::mem::take(body);
            self.long = None;
            return Ok(Some(body.freeze()));
        }
        let Some(length) = self.announced() else {
            return Ok(None);
        };
        if length > self.limit {
            return Err(LinkEnd::FrameTooLong { length, limit: self.limit });
        }
        if self.buffer.len() >= FRAME_HEADER_BYTES + length {
            self.buffer.advance(FRAME_HEADER_BYTES);
            return Ok(Some(self.buffer.split_to(length).freeze()));
        }
        if length > SHARED_FRAME_BYTES_MAX {
            let mut body = BytesMut::with_capacity(length);
            body.extend_from_slice(&self.buffer[FRAME_HEADER_BYTES..]);
            self.buffer.clear();
            self.long = Some((body, length));
        }
        Ok(None)
    }

    /// Where the next bytes go. To be called once [`next`](FrameReader::next) has given out all it has; it has room for at
    /// least one byte.
    pub(crate) fn spare(&mut self) -> Limit<&mut BytesMut> {
        let announced = self.announced();
        if let Some((body, length)) = &mut self.long {
            let left = *length - body.len();
            return body.limit(left);
        }
        let wanted = match announced {
            Some(length) => (FRAME_HEADER_BYTES + length).saturating_sub(self.buffer.len()),
            None => FRAME_HEADER_BYTES,
        };
        if self.buffer.capacity() - self.buffer.len() < wanted.max(self.buffer_size / 4) {
            let size = self.buffer_size.max(self.buffer.len() + wanted);
            // Not `reserve`: it doubles, and the largest buffer is a promise.
            if !self.buffer.try_reclaim(size - self.buffer.len()) {
                let mut larger = BytesMut::with_capacity(size);
                larger.extend_from_slice(&self.buffer);
                self.buffer = larger;
            }
        }
        let room = self.buffer.capacity() - self.buffer.len();
        (&mut self.buffer).limit(room)
    }

    /// How much the last read brought, of how much room: a read that filled its buffer makes the next buffer larger.
    pub(crate) fn filled(&mut self, read: usize, room: usize) {
        if read == room && self.long.is_none() {
            self.buffer_size = (self.buffer_size * 2).min(READ_BYTES_MAX);
        }
    }

    /// What the end of the stream means here.
    pub(crate) fn end_of_stream(&self) -> LinkEnd {
        match (&self.long, self.announced()) {
            (Some((body, length)), _) => LinkEnd::Truncated {
                had: FRAME_HEADER_BYTES + body.len(),
                needed: FRAME_HEADER_BYTES + length,
            },
            (None, None) if self.buffer.is_empty() => LinkEnd::Closed,
            (None, announced) => LinkEnd::Truncated {
                had: self.buffer.len(),
                needed: FRAME_HEADER_BYTES + announced.unwrap_or(0),
            },
        }
    }

    fn announced(&self) -> Option<usize> {
        self.buffer
            .first_chunk::<FRAME_HEADER_BYTES>()
            .map(|field| u32::from_le_bytes(*field) as usize)
    }
}
