//! Runs the fuzz targets on stable Rust, with random bytes and with golden vectors mutated in the
//! ways in which a broken peer could damage them.

use std::sync::LazyLock;

use super::bodies::{self, Body};
use super::vectors::{folder, vectors};
use proptest::prelude::*;

/// The seeds: vectors as they are, and messages without their length.
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

/// One mutation of a byte string.
#[derive(Clone, Debug)]
enum Mutation {
    Set(usize, u8),
    Flip(usize, u8),
    Cut(usize),
    Insert(usize, Vec<u8>),
    Remove(usize, usize),
    Repeat(usize, usize),
    /// Overwrites with the largest LEB128 number, or with the largest fixed number.
    Huge(usize, bool),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let at = any::<usize>();
    prop_oneof![
        (at, any::<u8>()).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        (at, 0u8..8).prop_map(|(at, bit)| Mutation::Flip(at, bit)),
        at.prop_map(Mutation::Cut),
        (at, prop::collection::vec(any::<u8>(), 1..12)).prop_map(|(at, b)| Mutation::Insert(at, b)),
        (at, 1usize..12).prop_map(|(at, n)| Mutation::Remove(at, n)),
        (at, 1usize..24).prop_map(|(at, n)| Mutation::Repeat(at, n)),
        (at, any::<bool>()).prop_map(|(at, fixed)| Mutation::Huge(at, fixed)),
    ]
}

fn apply(bytes: &mut Vec<u8>, mutation: &Mutation) {
    let within = |at: usize, length: usize| at % (length + 1);
    let length = bytes.len();
    match mutation {
        Mutation::Set(at, byte) if length > 0 => bytes[at % length] = *byte,
        Mutation::Flip(at, bit) if length > 0 => bytes[at % length] ^= 1 << bit,
        Mutation::Cut(at) => bytes.truncate(within(*at, length)),
        Mutation::Insert(at, more) => {
            let at = within(*at, length);
            bytes.splice(at..at, more.iter().copied());
        }
        Mutation::Remove(at, n) => {
            let at = within(*at, length);
            bytes.drain(at..(at + n).min(length));
        }
        Mutation::Repeat(at, n) => {
            let at = within(*at, length);
            let part = bytes[at..(at + n).min(length)].to_vec();
            bytes.splice(at..at, part);
        }
        Mutation::Huge(at, fixed) => {
            let huge: &[u8] = if *fixed {
                &[0xff; 4]
            } else {
                &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]
            };
            let at = within(*at, length);
            bytes.splice(at..(at + huge.len()).min(length), huge.iter().copied());
        }
        Mutation::Set(..) | Mutation::Flip(..) => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6_000))]

    #[test]
    fn mutated_vectors_decode_or_fail_with_typed_errors(
        seed in any::<prop::sample::Index>(),
        mutations in prop::collection::vec(mutation(), 1..5),
    ) {
        let mut bytes = seed.get(&SEEDS).clone();
        mutations.iter().for_each(|mutation| apply(&mut bytes, mutation));
        for (_, body) in bodies::ALL {
            body(&bytes);
        }
    }

    #[test]
    fn random_bytes_decode_or_fail_with_typed_errors(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        body in prop::sample::select(bodies::ALL.to_vec()),
        tag in 0u8..120,
    ) {
        let (_, body): Body = body;
        body(&bytes);
        body(&[&[tag][..], &bytes].concat());
    }

    #[test]
    fn glob_like_texts_parse_or_fail_with_typed_errors(
        glob in "[/ab*?{},\\[é.]{0,60}",
        path in "(/[abé.]{1,3}){0,6}",
    ) {
        bodies::fuzz_glob(format!("{glob}\n{path}").as_bytes());
        bodies::fuzz_path(glob.as_bytes());
    }
}

/// The corpus of a target consists of the vectors of its kind; paths and globs have texts.
/// `LONGSHORE_BLESS=1` writes it.
#[test]
fn the_corpus_is_complete_and_passes() {
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
        let count = files.map(|file| body(&std::fs::read(file.unwrap().path()).unwrap())).count();
        assert!(count > 0 && count >= seeds_of(name).len(), "{name}");
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
    // Targets take messages without their length; one frame contains them all.
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
fn every_vector_passes_every_fuzz_target() {
    for seed in SEEDS.iter() {
        for (_, body) in bodies::ALL {
            body(seed);
        }
    }
}

/// Sets every single byte of every vector to each extreme, which random mutation may miss.
#[test]
fn every_byte_of_every_vector_may_be_damaged() {
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
