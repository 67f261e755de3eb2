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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn framed(bodies: &[Vec<u8>]) -> Vec<u8> {
        let mut stream = Vec::new();
        for body in bodies {
            stream.extend_from_slice(&(body.len() as u32).to_le_bytes());
            stream.extend_from_slice(body);
        }
        stream
    }

    /// Feeds `stream` in reads of at most the given sizes, over and over, as a socket would.
    fn read_in(frames: &mut FrameReader, mut stream: &[u8], sizes: &[usize]) -> Vec<Bytes> {
        let mut out = Vec::new();
        let mut sizes = sizes.iter().cycle();
        loop {
            while let Some(body) = frames.next().unwrap() {
                out.push(body);
            }
            if stream.is_empty() {
                return out;
            }
            let mut spare = frames.spare();
            let room = spare.remaining_mut();
            assert!(room > 0, "a full buffer would look like the end of the stream");
            let read = room.min(*sizes.next().unwrap()).min(stream.len());
            spare.put_slice(&stream[..read]);
            frames.filled(read, room);
            stream = &stream[read..];
        }
    }

    #[test]
    fn a_frame_over_the_limit_is_refused_from_its_length_before_memory_is_taken() {
        let mut frames = FrameReader::new(1_000);
        frames.spare().put_slice(&1_001u32.to_le_bytes());
        let had = frames.buffer.capacity();
        let end = frames.next().unwrap_err();
        assert!(matches!(end, LinkEnd::FrameTooLong { length: 1_001, limit: 1_000 }), "{end}");
        assert!(frames.long.is_none() && frames.buffer.capacity() == had);

        let mut frames = FrameReader::new(1_000);
        frames.spare().put_slice(&1_000u32.to_le_bytes());
        assert!(frames.next().unwrap().is_none(), "a frame of just the limit is not refused");
    }

    #[test]
    fn an_end_between_frames_is_a_close_and_within_one_a_truncation() {
        let mut frames = FrameReader::new(1_000_000);
        assert!(matches!(frames.end_of_stream(), LinkEnd::Closed));
        read_in(&mut frames, &framed(&[vec![1; 10]]), &[1]);
        assert!(matches!(frames.end_of_stream(), LinkEnd::Closed));
        read_in(&mut frames, &[10, 0], &[9]);
        assert!(matches!(frames.end_of_stream(), LinkEnd::Truncated { had: 2, needed: 4 }));
        read_in(&mut frames, &[0, 0, 7, 7], &[9]);
        assert!(matches!(frames.end_of_stream(), LinkEnd::Truncated { had: 6, needed: 14 }));

        let mut frames = FrameReader::new(1_000_000);
        read_in(&mut frames, &framed(&[vec![1; 500_000]])[..100], &[9]);
        assert!(matches!(frames.end_of_stream(), LinkEnd::Truncated { had: 100, needed: 500_004 }));
    }

    #[test]
    fn a_long_frame_gets_memory_of_exactly_its_length() {
        let mut frames = FrameReader::new(1_000_000);
        read_in(&mut frames, &framed(&[vec![1; 300_000]])[..10_000], &[9_999]);
        let (body, length) = frames.long.as_ref().unwrap();
        assert_eq!((body.capacity(), *length), (300_000, 300_000));
    }

    #[test]
    fn a_shared_buffer_never_outgrows_its_bound_though_slices_of_it_are_kept() {
        let mut frames = FrameReader::new(1_000_000);
        let bodies: Vec<_> = (0..2_000).map(|i| vec![i as u8; 37 * (i % 1_771)]).collect();
        let mut kept = Vec::new();
        for stream in framed(&bodies).chunks(200_000) {
            kept.extend(read_in(&mut frames, stream, &[usize::MAX]));
            assert!(frames.buffer.capacity() <= READ_BYTES_MAX);
        }
        assert_eq!(kept, bodies);
    }

    #[test]
    fn an_idle_link_holds_a_small_buffer_and_a_busy_one_grows() {
        let mut frames = FrameReader::new(1_000_000);
        read_in(&mut frames, &framed(&[vec![1; 100]]), &[usize::MAX]);
        assert!(frames.buffer.capacity() <= READ_BYTES_MIN);
        read_in(&mut frames, &framed(&vec![vec![1; 100]; 20_000]), &[usize::MAX]);
        assert_eq!(frames.buffer_size, READ_BYTES_MAX);
    }

    proptest! {
        #[test]
        fn frames_come_out_as_they_went_in_however_the_stream_is_cut(
            lengths in prop::collection::vec(
                prop_oneof![4 => 0usize..300, 1 => 60_000usize..70_000, 1 => 130_000usize..140_000],
                1..30,
            ),
            sizes in prop::collection::vec(prop_oneof![1usize..10, 1usize..5_000, Just(usize::MAX)], 1..10),
        ) {
            let bodies: Vec<Vec<u8>> =
                lengths.iter().enumerate().map(|(i, length)| vec![i as u8; *length]).collect();
            let mut frames = FrameReader::new(140_000);
            prop_assert_eq!(read_in(&mut frames, &framed(&bodies), &sizes), bodies);
            prop_assert!(matches!(frames.end_of_stream(), LinkEnd::Closed));
        }
    }
}
