//! Keys that producers gave to jobs, by scope and text: each once, with a number.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::num::NonZeroU8;
use std::ops::{Index, IndexMut};

use longshore_protocol::limits::KEY_BYTES_MAX;
use longshore_protocol::{Decode, Encode, FrameWriter, Reader, WireError};

use super::chunks::Shared;
use super::row::NONE;
use super::slab::Slab;
use super::slot_index::SlotIndex;

/// Parts of the index: each grows by itself, so no command waits for all of them.
pub(super) const INDEX_PARTS: usize = 64;

/// The text of a key, of the same size whatever its length.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct KeyText {
    length: NonZeroU8,
    bytes: [u8; KEY_BYTES_MAX],
}

impl KeyText {
    /// None if the text is no key: empty or too long.
    pub(super) fn new(text: &str) -> Option<KeyText> {
        let mut bytes = [0; KEY_BYTES_MAX];
        bytes.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        Some(KeyText { length: NonZeroU8::new(text.len() as u8)?, bytes })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length.get())]
    }
}

impl Encode for KeyText {
    fn encode(&self, out: &mut FrameWriter) {
        out.string(&String::from_utf8_lossy(self.bytes()));
    }
}

impl Decode for KeyText {
    fn decode(r: &mut Reader) -> Result<KeyText, WireError> {
        let empty = r.invalid("empty key of a job");
        KeyText::new(r.text("key of a job", KEY_BYTES_MAX)?).ok_or(empty)
    }
}

/// An entry of a [`KeyTable`].
pub(super) trait Keyed: Clone {
    /// What the key is unique within, and its text.
    fn key(&self) -> (u32, &[u8]);
}

/// Entries by number and by key.
#[derive(Clone, Debug)]
pub(super) struct KeyTable<T> {
    entries: Slab<T>,
    index: Vec<SlotIndex>,
    /// Producers choose the keys, so their hashes are keyed. Only for lookups: no outcome depends
    /// on it.
    hasher: RandomState,
}

impl<T> Default for KeyTable<T> {
    fn default() -> KeyTable<T> {
        KeyTable {
            entries: Slab::default(),
            index: vec![SlotIndex::default(); INDEX_PARTS],
            hasher: RandomState::new(),
        }
    }
}

impl<T: Keyed> KeyTable<T> {
    pub(super) fn find(&self, scope: u32, text: &[u8]) -> Option<u32> {
        let hash = hash_of(&self.hasher, (scope, text));
        self.index[part(hash)].find(hash, |number| self.entries[number].key() == (scope, text))
    }

    /// The number of a key, which is added if missing; `NONE` if the text is none. (An entry decodes
    /// only with a key of 1 to 80 bytes.)
    pub(super) fn number_of(&mut self, scope: u32, text: &str, new: fn(u32, KeyText) -> T) -> u32 {
        if let Some(known) = self.find(scope, text.as_bytes()) {
            return known;
        }
        KeyText::new(text).map_or(NONE, |text| self.insert(new(scope, text)))
    }

    /// Adds an entry with a key that is not there.
    pub(super) fn insert(&mut self, entry: T) -> u32 {
        let number = self.entries.insert(entry);
        self.index_key(number);
        number
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        let entry = self.entries.remove(number)?;
        let hash = hash_of(&self.hasher, entry.key());
        self.index[part(hash)].remove(hash, number);
        Some(entry)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Keys in the index.
    pub(super) fn indexed(&self) -> usize {
        self.index.iter().map(SlotIndex::len).sum()
    }

    pub(super) fn entries(&self) -> &Slab<T> {
        &self.entries
    }

    /// The table as it is now, shared.
    pub(super) fn freeze(&mut self) -> (Shared<Option<T>>, Shared<u32>) {
        self.entries.freeze()
    }

    /// The keys of a snapshot; none if one is there twice.
    pub(super) fn from_entries(entries: Slab<T>) -> Option<KeyTable<T>> {
        let mut table = KeyTable { entries, ..KeyTable::default() };
        let numbers: Vec<u32> = table.entries.iter().map(|(number, _)| number).collect();
        for number in numbers {
            let (scope, text) = table.entries[number].key();
            if table.find(scope, text).is_some() {
                return None;
            }
            table.index_key(number);
        }
        Some(table)
    }

    fn index_key(&mut self, number: u32) {
        let (entries, hasher) = (&self.entries, &self.hasher);
        let hash_at = |number: u32| hash_of(hasher, entries[number].key());
        let hash = hash_at(number);
        self.index[part(hash)].insert(hash, number, hash_at);
    }
}

impl<T: Keyed> Index<u32> for KeyTable<T> {
    type Output = T;

    fn index(&self, number: u32) -> &T {
        &self.entries[number]
    }
}

/// An entry's key must not change.
impl<T: Keyed> IndexMut<u32> for KeyTable<T> {
    fn index_mut(&mut self, number: u32) -> &mut T {
        &mut self.entries[number]
    }
}

/// In two writes, the first of a whole word: a write costs as much as two words of text. The text
/// comes last, so its length need not be hashed.
fn hash_of(hasher: &RandomState, (scope, text): (u32, &[u8])) -> u64 {
    let mut hash = hasher.build_hasher();
    hash.write_u64(scope.into());
    hash.write(text);
    hash.finish()
}

pub(super) fn part(hash: u64) -> usize {
    // A part itself uses the hash's lowest byte and its upper half.
    (hash >> 8) as usize % INDEX_PARTS
}
