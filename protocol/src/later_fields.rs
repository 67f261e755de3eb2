//! The fields of a record that this version does not know.

use std::fmt;

use crate::codec::{Decode, Encode, Reader, WireError, check_limit};
use crate::frame::FrameWriter;
use crate::limits::LATER_BYTES_MAX;

/// The fields of later versions, byte for byte: they are relayed and digested unchanged. Usually
/// empty, and then without memory of its own: `None`, never an empty slice. Comparing two empty
/// slices calls `memcmp` with a dangling pointer, for which a masked load of AVX-512 takes about
/// 0.2 µs: a third of the time that a replica needs to register a path.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LaterFields(Option<Box<[u8]>>);

impl LaterFields {
    /// Copies the bytes, at most 1,024.
    pub fn new(bytes: &[u8]) -> Result<LaterFields, WireError> {
        LaterFields::read_at(0, bytes)
    }

    fn read_at(offset: usize, bytes: &[u8]) -> Result<LaterFields, WireError> {
        check_limit(offset, "unknown fields of a record", bytes.len(), LATER_BYTES_MAX)?;
        Ok(LaterFields((!bytes.is_empty()).then(|| bytes.into())))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl fmt::Debug for LaterFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x?}", self.as_bytes())
    }
}

impl Encode for LaterFields {
    fn encode(&self, out: &mut FrameWriter) {
        out.put(self.as_bytes());
    }
}

/// Reads all bytes up to the record's end and copies them, because they outlive the frame. Too many
/// bytes are an error; if they were cut, a writer would see a difference and write them again
/// forever.
impl Decode for LaterFields {
    fn decode(r: &mut Reader) -> Result<LaterFields, WireError> {
        let offset = r.offset();
        LaterFields::read_at(offset, &r.take_rest())
    }
}
