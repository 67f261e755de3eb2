//! Cuts a stream of bytes into frames. Pure: the caller reads.

use bytes::buf::Limit;
use bytes::{BufMut, Bytes};
use longshore_protocol::frame::{FRAME_HEADER_BYTES, MESSAGE_HEADER_BYTES};
use longshore_protocol::messages::HEARTBEAT;

use crate::budget::Charge;
use crate::link_end::LinkEnd;

/// The read buffer of an accepted link, in bytes. A frame that fits into it is copied out once it
/// is whole.
pub(crate) const READ_BYTES: usize = 32 * 1024;
/// The read buffer of a dialled link: a process has few of them, and one read returns many updates.
pub(crate) const DIALLED_READ_BYTES: usize = 128 * 1024;

/// The result of [`FrameReader::next`].
#[derive(Debug)]
pub(crate) enum Next {
    /// A frame's body.
    Frame(Bytes),
    /// A bare heartbeat, or an empty frame: neither takes memory.
    Heartbeat,
    /// A frame of this length continues once it is [`charged`](FrameReader::charged).
    Charge(usize),
    /// No whole frame is buffered: read.
    Read,
}

/// Reads go into [`spare`](FrameReader::spare), frames come out of [`next`](FrameReader::next).
///
/// Every frame has memory of its own, so that a slice keeps alive exactly what was charged for its
/// frame. A long frame is read directly into that memory, except for the bytes that arrived
/// together with its length.
#[derive(Debug)]
pub(crate) struct FrameReader {
    limit: usize,
    /// Capacity of the read buffer, in bytes.
    read_bytes: usize,
    /// Received bytes. Those from `at` on are not yet returned; they begin with a frame's length
    /// field, unless `long` holds the frame that is arriving.
    buffer: Vec<u8>,
    at: usize,
    /// The body of a long frame, and its length.
    long: Option<(Vec<u8>, usize)>,
    /// The charge of the next frame, or of the long one.
    charge: Option<Charge>,
}

impl FrameReader {
    /// A reader of frames with bodies of at most `limit` bytes, and a read buffer of `read_bytes`.
    pub(crate) fn new(limit: usize, read_bytes: usize) -> FrameReader {
        FrameReader { limit, read_bytes, buffer: Vec::new(), at: 0, long: None, charge: None }
    }

    /// The next step with the bytes that have arrived. A frame over the limit is refused from its
    /// length, before anything is charged or allocated for it.
    pub(crate) fn next(&mut self) -> Result<Next, LinkEnd> {
        if let Some((body, length)) = &mut self.long {
            if body.len() < *length {
                return Ok(Next::Read);
            }
            let body = std::mem::take(body);
            self.long = None;
            return Ok(Next::Frame(self.charge.take().unwrap_or_default().into_bytes(body)));
        }
        let Some(length) = self.announced() else {
            return Ok(Next::Read);
        };
        if length > self.limit {
            return Err(LinkEnd::FrameTooLong { length, limit: self.limit });
        }
        let rest = &self.buffer[self.at + FRAME_HEADER_BYTES..];
        let whole = rest.get(..length);
        if whole.is_some_and(is_bare_heartbeat) {
            self.at += FRAME_HEADER_BYTES + length;
            return Ok(Next::Heartbeat);
        }
        // The read buffer, which the link has anyway, has room for the rest of a short frame.
        if whole.is_none() && FRAME_HEADER_BYTES + length <= self.read_bytes {
            return Ok(Next::Read);
        }
        let Some(charge) = self.charge.take() else {
            return Ok(Next::Charge(length));
        };
        if let Some(body) = whole {
            let frame = charge.into_bytes(body.to_vec());
            self.at += FRAME_HEADER_BYTES + length;
            return Ok(Next::Frame(frame));
        }
        let mut body = Vec::with_capacity(length);
        body.extend_from_slice(rest);
        (self.long, self.charge) = (Some((body, length)), Some(charge));
        self.buffer.clear();
        self.at = 0;
        Ok(Next::Read)
    }

    /// Grants the charge that [`Next::Charge`] asked for.
    pub(crate) fn charged(&mut self, charge: Charge) {
        self.charge = Some(charge);
    }

    /// The buffer for the next bytes, with room for at least one. Call it only after
    /// [`next`](FrameReader::next) has returned [`Next::Read`].
    pub(crate) fn spare(&mut self) -> Limit<&mut Vec<u8>> {
        if let Some((body, length)) = &mut self.long {
            let left = *length - body.len();
            return body.limit(left);
        }
        self.buffer.drain(..self.at);
        self.at = 0;
        self.buffer.reserve_exact(self.read_bytes - self.buffer.len());
        let room = self.read_bytes - self.buffer.len();
        (&mut self.buffer).limit(room)
    }

    /// For a partial frame: the bytes that have arrived, and its total as far as is known, its
    /// length field included.
    pub(crate) fn partial(&self) -> Option<(usize, usize)> {
        match &self.long {
            Some((body, length)) => {
                Some((FRAME_HEADER_BYTES + body.len(), FRAME_HEADER_BYTES + length))
            }
            None if self.at == self.buffer.len() => None,
            None => Some((
                self.buffer.len() - self.at,
                FRAME_HEADER_BYTES + self.announced().unwrap_or(0),
            )),
        }
    }

    /// The meaning of the stream's end at this position.
    pub(crate) fn end_of_stream(&self) -> LinkEnd {
        match self.partial() {
            Some((had, needed)) => LinkEnd::Truncated { had, needed },
            None => LinkEnd::Closed,
        }
    }

    fn announced(&self) -> Option<usize> {
        self.buffer[self.at..]
            .first_chunk::<FRAME_HEADER_BYTES>()
            .map(|field| u32::from_le_bytes(*field) as usize)
    }
}

/// True for an empty frame, or one with only a bare heartbeat. A heartbeat with a number is for the
/// layer above.
fn is_bare_heartbeat(body: &[u8]) -> bool {
    body.is_empty() || (body.len() == MESSAGE_HEADER_BYTES && body == [HEARTBEAT, 0, 0, 0, 0])
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

    /// Feeds `stream` in reads of at most the given sizes, repeated, as a socket would. Each frame
    /// gets the empty charge of a dialled link.
    fn read_in(frames: &mut FrameReader, mut stream: &[u8], sizes: &[usize]) -> Vec<Bytes> {
        let mut out = Vec::new();
        let mut sizes = sizes.iter().cycle();
        loop {
            loop {
                match frames.next().unwrap() {
                    Next::Frame(body) => out.push(body),
                    Next::Charge(_) => frames.charged(Charge::default()),
                    Next::Heartbeat => out.push(Bytes::new()),
                    Next::Read => break,
                }
            }
            if stream.is_empty() {
                return out;
            }
            let mut spare = frames.spare();
            let room = spare.remaining_mut();
            assert!(room > 0, "a full buffer would look like the end of the stream");
            let read = room.min(*sizes.next().unwrap()).min(stream.len());
            spare.put_slice(&stream[..read]);
            stream = &stream[read..];
            assert!(frames.buffer.capacity() <= READ_BYTES);
        }
    }

    #[test]
    fn a_frame_over_the_limit_is_refused_before_it_is_allocated() {
        let mut frames = FrameReader::new(100_000, READ_BYTES);
        frames.spare().put_slice(&100_001u32.to_le_bytes());
        let end = frames.next().unwrap_err();
        assert!(matches!(end, LinkEnd::FrameTooLong { length: 100_001, limit: 100_000 }), "{end}");

        let mut frames = FrameReader::new(100_000, READ_BYTES);
        frames.spare().put_slice(&100_000u32.to_le_bytes());
        let next = frames.next().unwrap();
        assert!(matches!(next, Next::Charge(100_000)), "a frame of just the limit is not refused");
    }

    #[test]
    fn a_long_frame_is_allocated_exactly_once_it_is_charged() {
        let mut frames = FrameReader::new(1_000_000, READ_BYTES);
        frames.spare().put_slice(&framed(&[vec![1; 300_000]])[..10_000]);
        for _ in 0..2 {
            assert!(matches!(frames.next().unwrap(), Next::Charge(300_000)));
            assert!(frames.long.is_none());
        }
        frames.charged(Charge::default());
        assert!(matches!(frames.next().unwrap(), Next::Read));
        let (body, length) = frames.long.as_ref().unwrap();
        assert_eq!((body.len(), body.capacity(), *length), (9_996, 300_000, 300_000));
    }

    #[test]
    fn a_short_frame_is_charged_once_whole_and_a_heartbeat_never() {
        let mut frames = FrameReader::new(1_000_000, READ_BYTES);
        let short = framed(&[vec![1; 20_000]]);
        frames.spare().put_slice(&short[..19_000]);
        assert!(matches!(frames.next().unwrap(), Next::Read));
        frames.spare().put_slice(&short[19_000..]);
        frames.spare().put_slice(&[5, 0, 0, 0, HEARTBEAT, 0, 0, 0, 0]);
        assert!(matches!(frames.next().unwrap(), Next::Charge(20_000)));
        frames.charged(Charge::default());
        assert!(matches!(frames.next().unwrap(), Next::Frame(body) if body.len() == 20_000));
        assert!(matches!(frames.next().unwrap(), Next::Heartbeat));
        assert!(matches!(frames.next().unwrap(), Next::Read));
        assert_eq!(frames.partial(), None);
    }

    #[test]
    fn an_end_between_frames_is_a_close_and_within_one_a_truncation() {
        let mut frames = FrameReader::new(1_000_000, READ_BYTES);
        assert!(matches!(frames.end_of_stream(), LinkEnd::Closed));
        read_in(&mut frames, &framed(&[vec![1; 10]]), &[1]);
        assert!(matches!(frames.end_of_stream(), LinkEnd::Closed));
        read_in(&mut frames, &[10, 0], &[9]);
        assert!(matches!(frames.end_of_stream(), LinkEnd::Truncated { had: 2, needed: 4 }));
        read_in(&mut frames, &[0, 0, 7, 7], &[9]);
        assert!(matches!(frames.end_of_stream(), LinkEnd::Truncated { had: 6, needed: 14 }));

        let mut frames = FrameReader::new(1_000_000, READ_BYTES);
        read_in(&mut frames, &framed(&[vec![1; 500_000]])[..100], &[9]);
        assert!(matches!(frames.end_of_stream(), LinkEnd::Truncated { had: 100, needed: 500_004 }));
    }

    proptest! {
        #[test]
        fn frames_come_out_as_they_went_in_however_the_stream_is_cut(
            lengths in prop::collection::vec(
                prop_oneof![4 => 0usize..300, 1 => 30_000usize..34_000, 1 => 130_000usize..140_000],
                1..30,
            ),
            sizes in prop::collection::vec(
                prop_oneof![1usize..10, 1usize..5_000, Just(usize::MAX)],
                1..10,
            ),
        ) {
            let bodies: Vec<Vec<u8>> =
                lengths.iter().enumerate().map(|(i, length)| vec![i as u8; *length]).collect();
            let mut frames = FrameReader::new(140_000, READ_BYTES);
            prop_assert_eq!(read_in(&mut frames, &framed(&bodies), &sizes), bodies);
            prop_assert!(matches!(frames.end_of_stream(), LinkEnd::Closed));
        }
    }
}
