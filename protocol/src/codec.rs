//! Reading and writing the fields of messages.
//!
//! Integers are LEB128 unless they are called *fixed*: those are little-endian. Strings, bytes and
//! lists are prefixed with their length. [`Reader`] borrows: the bytes that it returns are slices
//! of the frame. It never allocates for a length before it has checked that many bytes remain.

use bytes::Bytes;

use crate::fingerprint::Fingerprint;
use crate::frame::FrameWriter;
use crate::id::{Epoch, Incarnation, JobId, LinkId, PublisherId, SessionId, Token};

/// Why bytes could not be decoded as a message.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WireError {
    /// The bytes end before the field does.
    #[error("truncated at byte {offset}: {needed} bytes needed, {had} left")]
    Truncated {
        /// Offset of the missing bytes, from the start of the message body.
        offset: usize,
        /// Bytes needed from that offset.
        needed: usize,
        /// Bytes that remain.
        had: usize,
    },
    /// A field has a value that is never valid.
    #[error("invalid {what} at byte {offset}")]
    Invalid {
        /// Offset from the start of the message body.
        offset: usize,
        /// The field.
        what: &'static str,
    },
    /// A count or a length is over its limit.
    #[error("{what} at byte {offset} is {value}; the limit is {limit}")]
    OverLimit {
        /// Offset from the start of the message body.
        offset: usize,
        /// The field.
        what: &'static str,
        /// The value read.
        value: u64,
        /// The largest value allowed.
        limit: u64,
    },
}

/// Returns an error if a count or length, read at `offset`, is over its limit.
#[inline]
pub(crate) fn check_limit(
    offset: usize,
    what: &'static str,
    value: usize,
    limit: usize,
) -> Result<(), WireError> {
    let (value, limit) = (value as u64, limit as u64);
    if value > limit { Err(WireError::OverLimit { offset, what, value, limit }) } else { Ok(()) }
}

/// A type that can be written into a frame.
pub trait Encode {
    /// Appends the fields in their order.
    fn encode(&self, out: &mut FrameWriter);
}

/// A type that can be read from a message body. The caller skips fields after the last known one.
pub trait Decode: Sized {
    /// Reads the fields in their order.
    fn decode(r: &mut Reader) -> Result<Self, WireError>;
}

/// A type that is read up to a limit; the reader checks the limit before it allocates.
pub(crate) trait Bounded: Sized {
    /// Reads at most `limit`. `what` names the field in errors.
    fn read(r: &mut Reader, what: &'static str, limit: usize) -> Result<Self, WireError>;
}

/// Reads fields from the body of a message and tracks its offset. Numbers are read in place; only
/// data returned as [`Bytes`] costs a reference count.
#[derive(Clone, Debug)]
pub struct Reader {
    body: Bytes,
    at: usize,
}

impl Reader {
    /// Reads from the start of `body`.
    pub fn new(body: Bytes) -> Reader {
        Reader { body, at: 0 }
    }

    /// Bytes read so far.
    pub fn offset(&self) -> usize {
        self.at
    }

    /// Bytes that remain to be read.
    pub fn left(&self) -> usize {
        self.body.len() - self.at
    }

    /// True once the whole body is read.
    pub fn is_empty(&self) -> bool {
        self.left() == 0
    }

    /// The whole body, including what is already read.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Returns the whole body.
    pub fn into_body(self) -> Bytes {
        self.body
    }

    /// Takes the whole unread body and leaves the reader empty.
    pub(crate) fn take_body(&mut self) -> Bytes {
        std::mem::take(&mut self.body)
    }

    /// The error for an invalid field that begins at the current offset.
    pub fn invalid(&self, what: &'static str) -> WireError {
        WireError::Invalid { offset: self.at, what }
    }

    /// The next `n` bytes, as a slice of the frame.
    pub fn take(&mut self, n: usize) -> Result<Bytes, WireError> {
        self.need(n)?;
        self.at += n;
        Ok(self.body.slice(self.at - n..self.at))
    }

    /// The next `n` bytes, borrowed.
    pub fn take_slice(&mut self, n: usize) -> Result<&[u8], WireError> {
        self.need(n)?;
        self.at += n;
        Ok(&self.body[self.at - n..self.at])
    }

    /// Skips the next `n` bytes.
    pub fn skip(&mut self, n: usize) -> Result<(), WireError> {
        self.take_slice(n).map(|_| ())
    }

    /// Moves to byte `at` of the body, or to its end if that comes first.
    pub(crate) fn seek(&mut self, at: usize) {
        self.at = at.min(self.body.len());
    }

    /// Reads a record: its length, fixed, then its fields. Bytes after the known fields are
    /// skipped.
    pub fn record<T>(
        &mut self,
        fields: impl FnOnce(&mut Reader) -> Result<T, WireError>,
    ) -> Result<T, WireError> {
        let length = self.u32_fixed()? as usize;
        let start = self.at;
        let mut inner =
            Reader { body: self.body.slice(..start + length.min(self.left())), at: start };
        self.skip(length)?;
        fields(&mut inner)
    }

    /// Reads a record of at most `limit` bytes, fields of later versions included.
    pub(crate) fn record_within<T>(
        &mut self,
        what: &'static str,
        limit: usize,
        fields: impl FnOnce(&mut Reader) -> Result<T, WireError>,
    ) -> Result<T, WireError> {
        let offset = self.at;
        let length = self.u32_fixed()? as usize;
        self.seek(offset);
        check_limit(offset, what, length, limit)?;
        self.record(fields)
    }

    /// The remaining bytes, as a slice of the frame.
    pub fn take_rest(&mut self) -> Bytes {
        let rest = self.body.slice(self.at..);
        self.at = self.body.len();
        rest
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8, WireError> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// A flag: 0 or 1; any other byte is invalid.
    pub fn bool(&mut self) -> Result<bool, WireError> {
        let invalid = self.invalid("flag");
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(invalid),
        }
    }

    /// A fixed 32-bit number.
    pub fn u32_fixed(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_le_bytes)
    }

    /// A fixed 64-bit number.
    pub fn u64_fixed(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_le_bytes)
    }

    /// An id of 16 bytes.
    pub fn id(&mut self) -> Result<[u8; 16], WireError> {
        self.array()
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let Some(bytes) = self.body[self.at..].first_chunk::<N>() else {
            return Err(WireError::Truncated { offset: self.at, needed: N, had: self.left() });
        };
        self.at += N;
        Ok(*bytes)
    }

    /// A LEB128 number of at most 64 bits; longer encodings than the shortest are accepted.
    pub fn u64(&mut self) -> Result<u64, WireError> {
        let start = self.at;
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(WireError::Invalid { offset: start, what: "number" })
    }

    /// A LEB128 number of at most 32 bits.
    pub fn u32(&mut self) -> Result<u32, WireError> {
        self.narrow("32-bit number")
    }

    /// A LEB128 number of at most 16 bits.
    pub fn u16(&mut self) -> Result<u16, WireError> {
        self.narrow("16-bit number")
    }

    /// A signed number, zigzag in LEB128.
    pub fn i64(&mut self) -> Result<i64, WireError> {
        let z = self.u64()?;
        Ok((z >> 1) as i64 ^ -((z & 1) as i64))
    }

    /// A signed number of at most 32 bits, zigzag in LEB128.
    pub fn i32(&mut self) -> Result<i32, WireError> {
        let offset = self.at;
        let value = self.i64()?;
        i32::try_from(value)
            .map_err(|_| WireError::Invalid { offset, what: "signed 32-bit number" })
    }

    /// Reads a count of items of at least `each` bytes. A count over `limit`, or too large for the
    /// remaining bytes, is an error.
    pub fn count(
        &mut self,
        what: &'static str,
        limit: usize,
        each: usize,
    ) -> Result<usize, WireError> {
        let offset = self.at;
        let value = self.u64()?;
        if value > limit as u64 {
            return Err(WireError::OverLimit { offset, what, value, limit: limit as u64 });
        }
        let count = value as usize;
        self.need(count.saturating_mul(each))?;
        Ok(count)
    }

    /// Length-prefixed bytes, as a slice of the frame.
    pub fn bytes(&mut self, what: &'static str, limit: usize) -> Result<Bytes, WireError> {
        let length = self.count(what, limit, 1)?;
        self.take(length)
    }

    /// Length-prefixed UTF-8 text.
    pub fn string(&mut self, what: &'static str, limit: usize) -> Result<String, WireError> {
        self.text(what, limit).map(str::to_owned)
    }

    /// Length-prefixed UTF-8 text, borrowed.
    pub fn text(&mut self, what: &'static str, limit: usize) -> Result<&str, WireError> {
        let offset = self.at;
        let length = self.count(what, limit, 1)?;
        std::str::from_utf8(self.take_slice(length)?)
            .map_err(|_| WireError::Invalid { offset, what })
    }

    /// A list: its length, then elements of at least one byte each.
    pub fn list<T: Decode>(
        &mut self,
        what: &'static str,
        limit: usize,
    ) -> Result<Vec<T>, WireError> {
        self.list_of(what, limit, 1, T::decode)
    }

    /// A list whose elements are read by `read` and take at least `each` bytes each.
    pub(crate) fn list_of<T>(
        &mut self,
        what: &'static str,
        limit: usize,
        each: usize,
        mut read: impl FnMut(&mut Reader) -> Result<T, WireError>,
    ) -> Result<Vec<T>, WireError> {
        let count = self.count(what, limit, each)?;
        // A byte of input may decode to many bytes of memory, so the list grows as elements are
        // read.
        let mut list = Vec::with_capacity(count.min(1_024));
        for _ in 0..count {
            list.push(read(self)?);
        }
        Ok(list)
    }

    /// A list of at least one element; an empty list is an invalid `none`.
    pub(crate) fn non_empty_list<T: Decode>(
        &mut self,
        none: &'static str,
        what: &'static str,
        limit: usize,
    ) -> Result<Vec<T>, WireError> {
        let none = self.invalid(none);
        let list = self.list(what, limit)?;
        if list.is_empty() { Err(none) } else { Ok(list) }
    }

    /// A flag, then the value if the flag is set.
    pub fn option<T: Decode>(&mut self) -> Result<Option<T>, WireError> {
        Ok(if self.bool()? { Some(T::decode(self)?) } else { None })
    }

    /// A field that satisfies `holds`; any other value is an invalid `what`.
    pub(crate) fn valid<T: Decode>(
        &mut self,
        what: &'static str,
        holds: impl FnOnce(&T) -> bool,
    ) -> Result<T, WireError> {
        let invalid = self.invalid(what);
        let field = T::decode(self)?;
        if holds(&field) { Ok(field) } else { Err(invalid) }
    }

    fn narrow<T: TryFrom<u64>>(&mut self, what: &'static str) -> Result<T, WireError> {
        let offset = self.at;
        let value = self.u64()?;
        T::try_from(value).map_err(|_| WireError::Invalid { offset, what })
    }

    fn need(&self, needed: usize) -> Result<(), WireError> {
        if self.left() < needed {
            return Err(WireError::Truncated { offset: self.at, needed, had: self.left() });
        }
        Ok(())
    }
}

/// A list is encoded as its length, then its elements.
impl<T: Encode> Encode for [T] {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.len() as u64);
        for item in self {
            item.encode(out);
        }
    }
}

impl<T: Encode> Encode for Option<T> {
    fn encode(&self, out: &mut FrameWriter) {
        out.bool(self.is_some());
        if let Some(item) = self {
            item.encode(out);
        }
    }
}

impl<T: Decode> Decode for Option<T> {
    fn decode(r: &mut Reader) -> Result<Option<T>, WireError> {
        r.option()
    }
}

impl<T: Bounded> Bounded for Option<T> {
    fn read(r: &mut Reader, what: &'static str, limit: usize) -> Result<Option<T>, WireError> {
        Ok(if r.bool()? { Some(T::read(r, what, limit)?) } else { None })
    }
}

/// A flag that is set for `Ok`, then the value or the error.
impl<T: Encode, E: Encode> Encode for Result<T, E> {
    fn encode(&self, out: &mut FrameWriter) {
        out.bool(self.is_ok());
        match self {
            Ok(value) => value.encode(out),
            Err(error) => error.encode(out),
        }
    }
}

impl<T: Decode, E: Decode> Decode for Result<T, E> {
    fn decode(r: &mut Reader) -> Result<Result<T, E>, WireError> {
        Ok(if r.bool()? { Ok(T::decode(r)?) } else { Err(E::decode(r)?) })
    }
}

impl<T: Bounded, E: Decode> Bounded for Result<T, E> {
    fn read(r: &mut Reader, what: &'static str, limit: usize) -> Result<Self, WireError> {
        Ok(if r.bool()? { Ok(T::read(r, what, limit)?) } else { Err(E::decode(r)?) })
    }
}

impl<T: Encode> Encode for Vec<T> {
    fn encode(&self, out: &mut FrameWriter) {
        self[..].encode(out);
    }
}

impl<T: Encode> Encode for Box<T> {
    fn encode(&self, out: &mut FrameWriter) {
        T::encode(self, out);
    }
}

impl<T: Decode> Decode for Box<T> {
    fn decode(r: &mut Reader) -> Result<Box<T>, WireError> {
        T::decode(r).map(Box::new)
    }
}

/// Implements the traits for types that one call writes and another call reads.
macro_rules! codec {
    ($($type:ty: |$value:ident, $out:ident| $put:expr, $read:expr;)*) => {$(
        impl Encode for $type {
            #[inline]
            fn encode(&self, $out: &mut FrameWriter) {
                let $value = self;
                $put
            }
        }

        impl Decode for $type {
            #[inline]
            fn decode(r: &mut Reader) -> Result<$type, WireError> {
                $read(r)
            }
        }
    )*};
}
codec! {
    (): |_nothing, _out| (), |_| Ok(());
    bool: |flag, out| out.bool(*flag), Reader::bool;
    u8: |byte, out| out.u8(*byte), Reader::u8;
    u16: |number, out| out.u64(u64::from(*number)), Reader::u16;
    u32: |number, out| out.u64(u64::from(*number)), Reader::u32;
    u64: |number, out| out.u64(*number), Reader::u64;
    i32: |number, out| out.i64(i64::from(*number)), Reader::i32;
    [u8; 16]: |id, out| out.put(id), Reader::id;
    JobId: |id, out| out.put(&id.0), |r: &mut Reader| r.id().map(JobId);
    PublisherId: |id, out| out.put(&id.0), |r: &mut Reader| r.id().map(PublisherId);
    SessionId: |id, out| out.put(&id.0), |r: &mut Reader| r.id().map(SessionId);
    Incarnation: |id, out| out.put(&id.0), |r: &mut Reader| r.id().map(Incarnation);
    Token: |token, out| out.u64(token.0), |r: &mut Reader| r.u64().map(Token);
    Epoch: |epoch, out| out.u64(epoch.0), |r: &mut Reader| r.u64().map(Epoch);
    LinkId: |link, out| out.u64(link.0), |r: &mut Reader| r.u64().map(LinkId);
    Fingerprint: |id, out| out.u64_fixed(id.0), |r: &mut Reader| r.u64_fixed().map(Fingerprint);
}

impl Encode for String {
    fn encode(&self, out: &mut FrameWriter) {
        out.string(self);
    }
}

impl Bounded for String {
    fn read(r: &mut Reader, what: &'static str, limit: usize) -> Result<String, WireError> {
        r.string(what, limit)
    }
}

impl Encode for Bytes {
    fn encode(&self, out: &mut FrameWriter) {
        out.bytes_shared(self.clone());
    }
}

impl Bounded for Bytes {
    fn read(r: &mut Reader, what: &'static str, limit: usize) -> Result<Bytes, WireError> {
        r.bytes(what, limit)
    }
}

impl<T: Decode> Bounded for Vec<T> {
    fn read(r: &mut Reader, what: &'static str, limit: usize) -> Result<Vec<T>, WireError> {
        r.list(what, limit)
    }
}

/// Returns the size of a number in LEB128, in bytes.
pub(crate) fn number_bytes(number: u64) -> usize {
    (64 - (number | 1).leading_zeros()).div_ceil(7) as usize
}

/// Maps a signed number so that small magnitudes take few bytes in LEB128.
pub fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}
