//! Frames. A frame is the length of its body (`u32`, little-endian), then messages up to the end of
//! the body. A message is a tag (1 byte), the length of its body (`u32`, little-endian) and the
//! body. Many messages share a frame; one `send` writes one frame to the socket.

use bytes::{BufMut, Bytes, BytesMut};

use crate::codec::{Reader, WireError, check_limit, zigzag};
use crate::limits::FRAME_MESSAGES_MAX;

/// Bytes of a frame's length field.
pub const FRAME_HEADER_BYTES: usize = 4;
/// Bytes of a message's tag and length.
pub const MESSAGE_HEADER_BYTES: usize = 5;
/// Payloads of this size and more are chained to the frame without a copy; shorter ones are copied
/// into its head.
pub const CHAIN_BYTES_MIN: usize = 4 * 1024;

/// A finished frame: its parts in order, for one vectored write.
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

    /// Returns the parts.
    pub fn into_parts(self) -> Vec<Bytes> {
        self.parts
    }

    /// The size of the frame in bytes, its length field included.
    pub fn len(&self) -> usize {
        self.length
    }

    /// True for the default value. No frame on the wire is empty.
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
    /// Chained payloads, each with the position in `head` before which it is sent.
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

    /// An empty frame with capacity for `bytes` of fields.
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

    /// Writes a record within a message: its length, a fixed `u32`, then its fields. A list whose
    /// elements may get more fields in later versions writes them as records.
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

    /// Begins a message in an empty frame that is written incrementally. Returns its position for
    /// [`FrameWriter::close`].
    pub(crate) fn open(&mut self, tag: u8) -> usize {
        debug_assert!(self.is_empty(), "one open message, and nothing before it");
        self.head.put_u8(tag);
        let at = self.head.len();
        self.head.put_u32_le(0);
        at
    }

    /// Ends the message that begins at that position.
    pub(crate) fn close(&mut self, at: usize) {
        self.fill_in(at, MESSAGE_HEADER_BYTES);
    }

    /// Fills in a length field: the growth of the body since it had `before` bytes.
    fn fill_in(&mut self, at: usize, before: usize) {
        let length = u32::try_from(self.body_len() - before).unwrap_or(u32::MAX);
        self.head[at..at + 4].copy_from_slice(&length.to_le_bytes());
    }

    /// Fills in the length and returns the frame.
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

    /// Returns the body alone as one buffer; chained payloads are copied into it.
    pub fn into_body(self) -> Bytes {
        let mut whole = BytesMut::with_capacity(self.body_len());
        let frame = self.finish();
        for part in frame.parts() {
            whole.extend_from_slice(part);
        }
        whole.freeze().slice(FRAME_HEADER_BYTES..)
    }

    /// Raw bytes, without a length.
    pub fn put(&mut self, bytes: &[u8]) {
        self.head.extend_from_slice(bytes);
    }

    /// Writes the first `count` bytes of a short array. Its length is constant, so the copy needs
    /// no call.
    #[inline]
    pub(crate) fn put_first<const N: usize>(&mut self, bytes: &[u8; N], count: usize) {
        let length = self.head.len() + count.min(N);
        self.head.extend_from_slice(bytes);
        self.head.truncate(length);
    }

    /// Raw bytes, without a length; long ones are chained.
    pub fn put_shared(&mut self, bytes: Bytes) {
        if bytes.len() < CHAIN_BYTES_MIN {
            self.put(&bytes);
        } else {
            self.chained_bytes += bytes.len();
            self.chained.push((self.head.len(), bytes));
        }
    }

    /// Clears the frame and reuses its memory.
    pub(crate) fn clear(&mut self) {
        self.head.truncate(FRAME_HEADER_BYTES);
        self.chained.clear();
        self.chained_bytes = 0;
    }

    /// The body of a writer without chained payloads.
    pub(crate) fn small_body(&self) -> &[u8] {
        debug_assert!(self.chained.is_empty(), "a body with chained payloads is not contiguous");
        &self.head[FRAME_HEADER_BYTES..]
    }

    /// Appends what another writer has written, without its frame's length; its chained payloads
    /// remain chained.
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

    /// Appends the body of a finished frame; its longer parts are chained, not copied.
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

    /// Length-prefixed bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.u64(bytes.len() as u64);
        self.put(bytes);
    }

    /// Length-prefixed bytes; long ones are chained.
    pub fn bytes_shared(&mut self, bytes: Bytes) {
        self.u64(bytes.len() as u64);
        self.put_shared(bytes);
    }

    /// Length-prefixed text.
    pub fn string(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    /// Length-prefixed text for people, cut to `limit` bytes at a character boundary: a reader
    /// would refuse a longer one.
    pub fn string_cut(&mut self, text: &str, limit: usize) {
        let mut end = limit.min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.string(&text[..end]);
    }
}

/// Iterates over the messages of a frame's body: tag and body.
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
        check_limit(self.rest.offset(), "messages in a frame", self.count, FRAME_MESSAGES_MAX)?;
        let tag = self.rest.u8()?;
        let length = self.rest.u32_fixed()? as usize;
        Ok((tag, self.rest.take(length)?))
    }
}

/// An error ends the frame: after a wrong length no later message can be found.
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
