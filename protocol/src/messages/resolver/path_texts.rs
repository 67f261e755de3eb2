//! Texts that should be paths, many at a time.

use std::fmt;

use bytes::Bytes;

use crate::codec::{Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::limits::PATH_TEXT_BYTES_MAX;
use crate::path::Path;

/// A text that should be a path, as it came: checked one by one by whoever acts on it, so that one bad path never costs
/// the others their answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathText<'a>(&'a [u8]);

impl<'a> PathText<'a> {
    /// That text, or what should be one.
    pub fn new(bytes: &'a [u8]) -> PathText<'a> {
        PathText(bytes)
    }

    /// The text as it came.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// The text, if it is UTF-8.
    pub fn as_str(self) -> Option<&'a str> {
        std::str::from_utf8(self.0).ok()
    }

    /// The text, which is that of a path; or what is wrong with it, for people.
    pub fn check(self) -> Result<&'a str, String> {
        let text = self.as_str().ok_or("the path is not UTF-8")?;
        Path::check(text).map(|()| text).map_err(|error| error.to_string())
    }

    /// The path, or what is wrong with it, for people.
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

/// Texts that should be paths, in one piece of memory: a replica reads a million of them a second, and none costs an allocation or a
/// count of references.
#[derive(Clone, Default)]
pub struct PathTexts {
    memory: Memory,
    places: Vec<Place>,
}

#[derive(Clone)]
enum Memory {
    /// A slice of the frame.
    Read(Bytes),
    /// Texts that are to be sent, one behind the other.
    Own(Vec<u8>),
}

/// Where a text stands. No frame has 4 GiB.
#[derive(Clone, Copy)]
struct Place {
    start: u32,
    len: u32,
}

impl PathTexts {
    /// How many.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The one with that number, from 0.
    pub fn get(&self, number: usize) -> Option<PathText<'_>> {
        self.places.get(number).map(|place| self.text(*place))
    }

    /// Those from that number on.
    pub fn from(&self, number: usize) -> impl Iterator<Item = PathText<'_>> {
        self.places.get(number..).unwrap_or_default().iter().map(|place| self.text(*place))
    }

    /// All of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = PathText<'_>> {
        self.places.iter().map(|place| self.text(*place))
    }

    /// What it takes in memory beside the texts, in bytes.
    pub fn overhead(&self) -> usize {
        size_of_val(&self.places[..])
    }

    /// Adds one.
    pub fn push(&mut self, text: PathText<'_>) {
        let own = match &mut self.memory {
            Memory::Own(own) => own,
            Memory::Read(read) => {
                self.memory = Memory::Own(read.to_vec());
                return self.push(text);
            }
        };
        let (start, len) = (own.len() as u32, text.0.len() as u32);
        own.extend_from_slice(text.0);
        self.places.push(Place { start, len });
    }

    /// As many as there are, at most `limit`; `what` they are is for the error.
    pub(super) fn decode(
        r: &mut Reader,
        what: &'static str,
        limit: usize,
    ) -> Result<PathTexts, WireError> {
        let count = r.count(what, limit, 1)?;
        let before = r.offset();
        // A byte of input may stand for eight bytes of memory: grow with what is really there.
        let mut places = Vec::with_capacity(count.min(1_024));
        for _ in 0..count {
            let len = r.count("path length", PATH_TEXT_BYTES_MAX, 1)?;
            places.push(Place { start: (r.offset() - before) as u32, len: len as u32 });
            r.skip(len)?;
        }
        Ok(PathTexts { memory: Memory::Read(r.body().slice(before..r.offset())), places })
    }

    fn text(&self, place: Place) -> PathText<'_> {
        let memory = match &self.memory {
            Memory::Read(read) => &read[..],
            Memory::Own(own) => &own[..],
        };
        PathText(&memory[place.start as usize..][..place.len as usize])
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

impl Encode for PathTexts {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.len() as u64);
        self.iter().for_each(|text| out.bytes(text.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_takes_more_texts_in_and_stays_what_it_was() {
        let texts: [&[u8]; 4] = [b"/jobs/mail", b"", b"\xff", b"/"];
        let mut written: PathTexts = texts[..3].iter().copied().map(PathText::new).collect();
        let mut out = FrameWriter::new();
        written.encode(&mut out);
        let mut reader = Reader::new(out.into_body());
        let mut read = PathTexts::decode(&mut reader, "paths", 3).unwrap();
        assert!(reader.is_empty());
        assert_eq!(read, written);
        for all in [&mut read, &mut written] {
            all.push(PathText::new(texts[3]));
        }
        assert_eq!(read, written);
        assert!(read.iter().map(PathText::as_bytes).eq(texts));
        assert!(read.from(2).map(PathText::as_bytes).eq(texts[2..].iter().copied()));
        assert_eq!((read.get(3), read.get(4)), (Some(PathText::new(b"/")), None));
        assert_eq!(read.from(5).count(), 0);
        assert_eq!(format!("{read:?}"), r#"["/jobs/mail", "", "\\xff", "/"]"#);
    }
}
