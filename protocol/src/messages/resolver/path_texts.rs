//! Batches of texts that are expected to be paths.

use std::fmt;

use bytes::Bytes;

use crate::codec::{Bounded, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::limits::PATH_TEXT_BYTES_MAX;
use crate::path::Path;

/// An unchecked text that is expected to be a path. Each is checked individually, so that one
/// invalid path does not affect the answers for others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathText<'a>(&'a [u8]);

impl<'a> PathText<'a> {
    /// Wraps a text without checking it.
    pub fn new(bytes: &'a [u8]) -> PathText<'a> {
        PathText(bytes)
    }

    /// The bytes of the text.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// The text, if it is UTF-8.
    pub fn as_str(self) -> Option<&'a str> {
        std::str::from_utf8(self.0).ok()
    }

    /// Returns the text if it is a valid path, or an error text for people.
    pub fn check(self) -> Result<&'a str, String> {
        let text = self.as_str().ok_or("the path is not UTF-8")?;
        Path::check(text).map(|()| text).map_err(|error| error.to_string())
    }

    /// Returns the path, or an error text for people.
    pub fn parse(self) -> Result<Path, String> {
        let text = self.as_str().ok_or("the path is not UTF-8")?;
        Path::new(text).map_err(|error| error.to_string())
    }
}

impl<'a> From<&'a Path> for PathText<'a> {
    fn from(path: &'a Path) -> PathText<'a> {
        PathText(path.as_str().as_bytes())
    }
}

/// Texts that are expected to be paths, in one buffer: a replica reads a million of them per
/// second, and no single text costs an allocation or a reference count. Decoded texts use no memory
/// besides their frame.
#[derive(Clone, Default)]
pub struct PathTexts {
    /// The texts in sequence, each prefixed with its length, as on the wire.
    memory: Memory,
    count: usize,
}

#[derive(Clone)]
enum Memory {
    /// A slice of the frame.
    Read(Bytes),
    /// Texts to send.
    Own(Vec<u8>),
}

impl PathTexts {
    /// The number of texts.
    pub fn len(&self) -> usize {
        self.count
    }

    /// True if there are no texts.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Iterates over all texts.
    pub fn iter(&self) -> PathTextsIter<'_> {
        self.from(0)
    }

    /// Iterates over the texts from an [offset](PathTextsIter::offset) of another iterator on.
    pub fn from(&self, offset: usize) -> PathTextsIter<'_> {
        let all = self.memory.bytes();
        PathTextsIter { rest: all.get(offset..).unwrap_or_default(), end: all.len() }
    }

    /// Appends a text.
    pub fn push(&mut self, text: PathText<'_>) {
        if let Memory::Read(read) = &self.memory {
            self.memory = Memory::Own(read.to_vec());
        }
        if let Memory::Own(own) = &mut self.memory {
            let mut length = text.0.len();
            while length >= 0x80 {
                own.push(length as u8 | 0x80);
                length >>= 7;
            }
            own.push(length as u8);
            own.extend_from_slice(text.0);
            self.count += 1;
        }
    }
}

impl Memory {
    fn bytes(&self) -> &[u8] {
        match self {
            Memory::Read(read) => read,
            Memory::Own(own) => own,
        }
    }
}

/// Iterates over texts in order.
#[derive(Clone, Debug)]
pub struct PathTextsIter<'a> {
    rest: &'a [u8],
    /// The offset of the end of the texts.
    end: usize,
}

impl PathTextsIter<'_> {
    /// The current offset, for [`PathTexts::from`].
    pub fn offset(&self) -> usize {
        self.end - self.rest.len()
    }

    /// True if no text remains.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

impl<'a> Iterator for PathTextsIter<'a> {
    type Item = PathText<'a>;

    fn next(&mut self) -> Option<PathText<'a>> {
        // `read` has checked these lengths: the texts lie within the buffer.
        let (mut length, mut shift) = (0, 0);
        loop {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            length |= usize::from(byte & 0x7f).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                break;
            }
            shift += 7;
        }
        let (text, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(PathText(text))
    }
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::Own(Vec::new())
    }
}

impl<'a> FromIterator<PathText<'a>> for PathTexts {
    fn from_iter<I: IntoIterator<Item = PathText<'a>>>(texts: I) -> PathTexts {
        let mut all = PathTexts::default();
        texts.into_iter().for_each(|text| all.push(text));
        all
    }
}

impl<'a> FromIterator<&'a Path> for PathTexts {
    fn from_iter<I: IntoIterator<Item = &'a Path>>(paths: I) -> PathTexts {
        paths.into_iter().map(PathText::from).collect()
    }
}

impl PartialEq for PathTexts {
    fn eq(&self, other: &PathTexts) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for PathTexts {}

impl fmt::Debug for PathTexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|text| text.0.escape_ascii().to_string())).finish()
    }
}

impl Bounded for PathTexts {
    fn read(r: &mut Reader, what: &'static str, limit: usize) -> Result<PathTexts, WireError> {
        let count = r.count(what, limit, 1)?;
        let before = r.offset();
        for _ in 0..count {
            let length = r.count("path length", PATH_TEXT_BYTES_MAX, 1)?;
            r.skip(length)?;
        }
        Ok(PathTexts { memory: Memory::Read(r.body().slice(before..r.offset())), count })
    }
}

impl Encode for PathTexts {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.len() as u64);
        out.put(self.memory.bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multi_byte_text_lengths_round_trip() {
        let texts: Vec<Vec<u8>> =
            [127, 128, 16_383, 16_384, PATH_TEXT_BYTES_MAX].map(|n| vec![b'x'; n]).into();
        let written: PathTexts = texts.iter().map(|text| PathText::new(text)).collect();
        let mut out = FrameWriter::new();
        written.encode(&mut out);
        let read = PathTexts::read(&mut Reader::new(out.into_body()), "paths", 5).unwrap();
        assert!(read.iter().map(PathText::as_bytes).eq(texts.iter().map(Vec::as_slice)));
    }

    #[test]
    fn decoded_texts_can_be_extended_and_resumed() {
        let texts: [&[u8]; 4] = [b"/jobs/mail", b"", b"\xff", b"/"];
        let mut written: PathTexts = texts[..3].iter().copied().map(PathText::new).collect();
        let mut out = FrameWriter::new();
        written.encode(&mut out);
        let mut reader = Reader::new(out.into_body());
        let mut read = PathTexts::read(&mut reader, "paths", 3).unwrap();
        assert!(reader.is_empty());
        assert_eq!(read, written);
        for all in [&mut read, &mut written] {
            all.push(PathText::new(texts[3]));
        }
        assert_eq!(read, written);
        assert!(read.iter().map(PathText::as_bytes).eq(texts));
        let mut iter = read.iter();
        assert_eq!(iter.by_ref().take(2).count(), 2);
        let (rest, offset) = (read.from(iter.offset()), iter.offset());
        assert!(rest.map(PathText::as_bytes).eq(texts[2..].iter().copied()));
        assert_eq!((offset, iter.nth(1), iter.is_empty()), (12, Some(PathText::new(b"/")), true));
        assert_eq!(read.from(usize::MAX).count(), 0);
        assert_eq!(format!("{read:?}"), r#"["/jobs/mail", "", "\\xff", "/"]"#);
    }
}
