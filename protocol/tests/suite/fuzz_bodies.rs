//! The fuzz bodies on stable: golden vectors bent in every way that a broken peer bends them, and
//! random bytes.

use std::sync::LazyLock;

use super::bodies::{self, Body};
use super::vectors::{folder, vectors};
use proptest::prelude::*;

/// What a body takes: vectors as they are, and messages without their length as well.
static SEEDS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let vectors = vectors().into_iter().map(|(_, bytes)| bytes);
    vectors
        .flat_map(|bytes| {
            let message = bytes
                .first()
                .filter(|_| bytes.len() >= 5)
                .map(|&tag| [&[tag][..], &bytes[5..]].concat());
            [Some(bytes), message]
        })
        .flatten()
        .collect()
});

/// One thing that can be done to bytes.
#[derive(Clone, Debug)]
enum Bend {
    Set(usize, u8),
    Flip(usize, u8),
    Cut(usize),
    Insert(usize, Vec<u8>),
    Remove(usize, usize),
    Repeat(usize, usize),
    /// The largest number that LEB128 can write, or the largest fixed one.
    Huge(usize, bool),
}

fn bend() -> impl Strategy<Value = Bend> {
    let at = any::<usize>();
    prop_oneof![
        (at, any::<u8>()).prop_map(|(at, byte)| Bend::Set(at, byte)),
        (at, 0u8..8).prop_map(|(at, bit)| Bend::Flip(at, bit)),
        at.prop_map(Bend::Cut),
        (at, prop::collection::vec(any::<u8>(), 1..12)).prop_map(|(at, b)| Bend::Insert(at, b)),
        (at, 1usize..12).prop_map(|(at, n)| Bend::Remove(at, n)),
        (at, 1usize..24).prop_map(|(at, n)| Bend::Repeat(at, n)),
        (at, any::<bool>()).prop_map(|(at, fixed)| Bend::Huge(at, fixed)),
    ]
}

fn apply(bytes: &mut Vec<u8>, bend: &Bend) {
    let within = |at: usize, length: usize| at % (length + 1);
    let length = bytes.len();
    match bend {
        Bend::Set(at, byte) if length > 0 => bytes[at % length] = *byte,
        Bend::Flip(at, bit) if length > 0 => bytes[at % length] ^= 1 << bit,
        Bend::Cut(at) => bytes.truncate(within(*at, length)),
        Bend::Insert(at, more) => {
            let at = within(*at, length);
            bytes.splice(at..at, more.iter().copied());
        }
        Bend::Remove(at, n) => {
            let at = within(*at, length);
            bytes.drain(at..(at + n).min(length));
        }
        Bend::Repeat(at, n) => {
            let at = within(*at, length);
            let part = bytes[at..(at + n).min(length)].to_vec();
            bytes.splice(at..at, part);
        }
        Bend::Huge(at, fixed) => {
            let huge: &[u8] = if *fixed {
                &[0xff; 4]
            } else {
                &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]
            };
            let at = within(*at, length);
            bytes.splice(at..(at + huge.len()).min(length), huge.iter().copied());
        }
        Bend::Set(..) | Bend::Flip(..) => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6_000))]

    #[test]
    fn bent_vectors_give_typed_errors_or_messages(
        seed in any::<prop::sample::Index>(),
        bends in prop::collection::vec(bend(), 1..5),
    ) {
        let mut bytes = seed.get(&SEEDS).clone();
        bends.iter().for_each(|bend| apply(&mut bytes, bend));
        for (_, body) in bodies::ALL {
            body(&bytes);
        }
    }

    #[test]
    fn random_bytes_give_typed_errors_or_messages(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        body in prop::sample::select(bodies::ALL.to_vec()),
        tag in 0u8..120,
    ) {
        let (_, body): Body = body;
        body(&bytes);
        body(&[&[tag][..], &bytes].concat());
    }

    #[test]
    fn texts_of_glob_characters_give_typed_errors_or_globs(
        glob in "[/ab*?{},\\[é.]{0,60}",
        path in "(/[abé.]{1,3}){0,6}",
    ) {
        bodies::fuzz_glob(format!("{glob}\n{path}").as_bytes());
        bodies::fuzz_path(glob.as_bytes());
    }
}

/// The corpus of a body is the vectors that are of its kind; paths and globs have texts.
/// `LONGSHORE_BLESS=1` writes it.
#[test]
fn the_corpus_is_there_and_passes() {
    let corpus = folder().join("../../../fuzz/corpus");
    for (name, body) in bodies::ALL {
        let dir = corpus.join(name);
        if std::env::var_os("LONGSHORE_BLESS").is_some() {
            std::fs::create_dir_all(&dir).unwrap();
            for (file, bytes) in seeds_of(name) {
                std::fs::write(dir.join(file), bytes).unwrap();
            }
        }
        let files = std::fs::read_dir(&dir).unwrap();
        let seen = files.map(|file| body(&std::fs::read(file.unwrap().path()).unwrap())).count();
        assert!(seen > 0 && seen >= seeds_of(name).len(), "{name}");
    }
}

fn seeds_of(body: &str) -> Vec<(String, Vec<u8>)> {
    let texts = |texts: &[&str]| {
        let named =
            texts.iter().zip('a'..).map(|(text, name)| (name.into(), text.as_bytes().into()));
        named.collect()
    };
    let prefix = match body {
        "path" => return texts(&["/", "/jobs/mail/welcome", "/jobs//x", "/é"]),
        "glob" => return texts(&["/jobs/**\n/jobs/a/b", "/{a,b}/*\n/a/x", "/[a-c]?\n/bx"]),
        "value" => "from-values-updates",
        "frame" => "",
        "handshake_answer" => "handshake-",
        other => other,
    };
    let prefix = prefix.replace('_', "-");
    let vectors = vectors().into_iter().filter(|(name, _)| name.starts_with(&prefix));
    // Bodies take messages without their length; one frame has them all.
    let message = |bytes: Vec<u8>| [&bytes[..1], &bytes[5..]].concat();
    let with_length = matches!(body, "entry" | "handshake" | "handshake_answer");
    match body {
        "frame" => {
            let whole =
                vectors.filter(|(name, _)| name.contains("-values-") || name == "heartbeat");
            vec![("messages".to_owned(), whole.flat_map(|(_, bytes)| bytes).collect())]
        }
        _ if with_length => vectors.collect(),
        _ => vectors.map(|(name, bytes)| (name, message(bytes))).collect(),
    }
}

#[test]
fn every_vector_passes_every_body() {
    for seed in SEEDS.iter() {
        for (_, body) in bodies::ALL {
            body(seed);
        }
    }
}

/// One byte set to each extreme, at every place of every vector: what random bending may miss.
#[test]
fn every_byte_of_every_vector_may_be_wrong() {
    for seed in SEEDS.iter() {
        for at in 0..seed.len() {
            for byte in [0x00, 0x7f, 0x80, 0xff, seed[at].wrapping_add(1)] {
                let mut bytes = seed.clone();
                bytes[at] = byte;
                for (_, body) in bodies::ALL {
                    body(&bytes);
                }
            }
        }
    }
}
