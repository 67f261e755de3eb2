//! Frames: `u32` little-endian body length, then messages until it ends. A message: tag (1 byte),
//! body length (`u32` little-endian), body. Many messages share a frame; a frame is what one `send`
//! hands to the socket.

use bytes::{BufMut, Bytes, BytesMut};

use crate::codec::{Reader, WireError, within, zigzag};
use crate::limits::FRAME_MESSAGES_MAX;

/// Bytes of a frame's length field.
pub const FRAME_HEADER_BYTES: usize = 4;
/// Bytes of a message's tag and length.
pub const MESSAGE_HEADER_BYTES: usize = 5;
/// Shorter payloads are copied into the frame's head; longer ones are chained, so that no byte of
/// them is copied.
pub const CHAIN_BYTES_MIN: usize = 4 * 1024;

/// A frame ready to be written: its parts in order, for one vectored write.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    parts: Vec<Bytes>,
    length: usize,
}

impl Frame {
    /// The parts, in order; none is empty.
    pub fn parts(&self) -> &[Bytes] {
        &self.parts
    }

    /// The parts, given away.
    pub fn into_parts(self) -> Vec<Bytes> {
        self.parts
    }

    /// All bytes of the frame, its length field included.
    pub fn len(&self) -> usize {
        self.length
    }

    /// True of a frame that was never written to; there is none on the wire.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

/// Writes one frame: small fields into one buffer, large payloads chained to it.
///
/// ```
/// use longshore_protocol::frame::{FrameWriter, Messages};
///
/// let mut out = FrameWriter::new();
/// out.message(7, |out| out.u64(300));
/// let frame = out.finish();
/// assert_eq!(frame.parts()[0].as_ref(), &[7, 0, 0, 0, 7, 2, 0, 0, 0, 0xac, 0x02]);
/// ```
#[derive(Debug)]
pub struct FrameWriter {
    head: BytesMut,
    /// Chained payloads, each with the position in `head` that it stands before.
    chained: Vec<(usize, Bytes)>,
    chained_bytes: usize,
}

impl Default for FrameWriter {
    fn default() -> FrameWriter {
        FrameWriter::new()
    }
}

impl FrameWriter {
    /// An empty frame.
    pub fn new() -> FrameWriter {
        FrameWriter::with_capacity(256)
    }

    /// An empty frame with room for `bytes` of fields.
    pub fn with_capacity(bytes: usize) -> FrameWriter {
        let mut head = BytesMut::with_capacity(bytes + FRAME_HEADER_BYTES);
        head.put_u32_le(0);
        FrameWriter { head, chained: Vec::new(), chained_bytes: 0 }
    }

    /// Bytes of the frame's body so far.
    pub fn body_len(&self) -> usize {
        self.head.len() - FRAME_HEADER_BYTES + self.chained_bytes
    }

    /// True while no message has been written.
    pub fn is_empty(&self) -> bool {
        self.body_len() == 0
    }

    /// Writes one message.
    pub fn message(&mut self, tag: u8, body: impl FnOnce(&mut FrameWriter)) {
        self.head.put_u8(tag);
        self.sized(body);
    }

    /// Writes a record within a message: its length, a fixed `u32`, then its fields. A list's
    /// elements are records where later versions may add fields to them.
    pub fn record(&mut self, body: impl FnOnce(&mut FrameWriter)) {
        self.sized(body);
    }

    fn sized(&mut self, body: impl FnOnce(&mut FrameWriter)) {
        let at = self.head.len();
        self.head.put_u32_le(0);
        let before = self.body_len();
        body(self);
        self.fill_in(at, before);
    }

    /// Begins a message in an empty frame that is written bit by bit: gives the place for
    /// [`FrameWriter::close`].
    pub(crate) fn open(&mut self, tag: u8) -> usize {
        debug_assert!(self.is_empty(), "one open message, and nothing before it");
        self.head.put_u8(tag);
        let at = self.head.len();
        self.head.put_u32_le(0);
        at
    }

    /// Ends the message that was begun at that place.
    pub(crate) fn close(&mut self, at: usize) {
        self.fill_in(at, MESSAGE_HEADER_BYTES);
    }

    /// Fills in a length field: what the body has more than it had `before`.
    fn fill_in(&mut self, at: usize, before: usize) {
        let length = u32::try_from(self.body_len() - before).unwrap_or(u32::MAX);
        self.head[at..at + 4].copy_from_slice(&length.to_le_bytes());
    }

    /// The frame, its length filled in.
    pub fn finish(mut self) -> Frame {
        let body = self.body_len();
        let field = u32::try_from(body).unwrap_or(u32::MAX);
        self.head[..FRAME_HEADER_BYTES].copy_from_slice(&field.to_le_bytes());
        let mut frame = Frame {
            parts: Vec::with_capacity(1 + 2 * self.chained.len()),
            length: body + FRAME_HEADER_BYTES,
        };
        let (mut head, mut taken) = (self.head.freeze(), 0);
        for (at, payload) in self.chained {
            if at > taken {
                frame.parts.push(head.split_to(at - taken));
                taken = at;
            }
            frame.parts.push(payload);
        }
        if !head.is_empty() {
            frame.parts.push(head);
        }
        frame
    }

    /// The body alone, in one piece; what is chained is copied.
    pub fn into_body(self) -> Bytes {
        let mut whole = BytesMut::with_capacity(self.body_len());
        let frame = self.finish();
        for part in frame.parts() {
            whole.extend_from_slice(part);
        }
        whole.freeze().slice(FRAME_HEADER_BYTES..)
    }

    /// Bytes as they are, no length before them.
    pub fn put(&mut self, bytes: &[u8]) {
        self.head.extend_from_slice(bytes);
    }

    /// The first bytes of a few. Their number known, they are copied without a call.
    #[inline]
    pub(crate) fn put_first<const N: usize>(&mut self, bytes: &[u8; N], count: usize) {
        let length = self.head.len() + count.min(N);
        self.head.extend_from_slice(bytes);
        self.head.truncate(length);
    }

    /// Bytes as they are, chained when they are long.
    pub fn put_shared(&mut self, bytes: Bytes) {
        if bytes.len() < CHAIN_BYTES_MIN {
            self.put(&bytes);
        } else {
            self.chained_bytes += bytes.len();
            self.chained.push((self.head.len(), bytes));
        }
    }

    /// Forgets what was written, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.head.truncate(FRAME_HEADER_BYTES);
        self.chained.clear();
        self.chained_bytes = 0;
    }

    /// The body of a writer that has nothing chained.
    pub(crate) fn small_body(&self) -> &[u8] {
        debug_assert!(self.chained.is_empty(), "a body with chained payloads is not in one piece");
        &self.head[FRAME_HEADER_BYTES..]
    }

    /// What another writer has written, without its frame's length; its chained payloads stay
    /// chained.
    pub fn append(&mut self, other: FrameWriter) {
        let base = self.head.len();
        self.head.extend_from_slice(&other.head[FRAME_HEADER_BYTES..]);
        self.chained_bytes += other.chained_bytes;
        self.chained.extend(
            other
                .chained
                .into_iter()
                .map(|(at, payload)| (base + at - FRAME_HEADER_BYTES, payload)),
        );
    }

    /// The body of a finished frame; its longer parts are chained, not copied.
    pub fn append_frame(&mut self, frame: &Frame) {
        let mut skip = FRAME_HEADER_BYTES;
        for part in frame.parts() {
            self.put_shared(part.slice(skip.min(part.len())..));
            skip = skip.saturating_sub(part.len());
        }
    }

    /// One byte.
    pub fn u8(&mut self, value: u8) {
        self.head.put_u8(value);
    }

    /// A flag.
    pub fn bool(&mut self, value: bool) {
        self.head.put_u8(u8::from(value));
    }

    /// A fixed 32-bit number.
    pub fn u32_fixed(&mut self, value: u32) {
        self.head.put_u32_le(value);
    }

    /// A fixed 64-bit number.
    pub fn u64_fixed(&mut self, value: u64) {
        self.head.put_u64_le(value);
    }

    /// A number in LEB128.
    pub fn u64(&mut self, mut value: u64) {
        let mut buffer = [0u8; 10];
        let mut n = 0;
        while value >= 0x80 {
            buffer[n] = (value as u8 & 0x7f) | 0x80;
            value >>= 7;
            n += 1;
        }
        buffer[n] = value as u8;
        self.head.extend_from_slice(&buffer[..=n]);
    }

    /// A signed number, zigzag in LEB128.
    pub fn i64(&mut self, value: i64) {
        self.u64(zigzag(value));
    }

    /// Bytes with their length first.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.u64(bytes.len() as u64);
        self.put(bytes);
    }

    /// Bytes with their length first, chained when they are long.
    pub fn bytes_shared(&mut self, bytes: Bytes) {
        self.u64(bytes.len() as u64);
        self.put_shared(bytes);
    }

    /// Text with its length first.
    pub fn string(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    /// Text for people with its length first, cut to `limit` bytes at the end of a character: a
    /// reader would refuse all of a longer one.
    pub fn string_cut(&mut self, text: &str, limit: usize) {
        let mut end = limit.min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.string(&text[..end]);
    }
}

/// The messages of a frame's body, in order: tag and body.
#[derive(Clone, Debug)]
pub struct Messages {
    rest: Reader,
    count: usize,
}

impl Messages {
    /// Reads the messages of `body`, a frame without its length field.
    pub fn new(body: Bytes) -> Messages {
        Messages { rest: Reader::new(body), count: 0 }
    }

    fn read(&mut self) -> Result<(u8, Bytes), WireError> {
        self.count += 1;
        within(self.rest.offset(), "messages in a frame", self.count, FRAME_MESSAGES_MAX)?;
        let tag = self.rest.u8()?;
        let length = self.rest.u32_fixed()? as usize;
        Ok((tag, self.rest.take(length)?))
    }
}

/// An error ends the frame: where a message's length lies, nothing after it can be found.
impl Iterator for Messages {
    type Item = Result<(u8, Bytes), WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let message = self.read();
        if message.is_err() {
            self.rest.take_rest();
        }
        Some(message)
    }
}
