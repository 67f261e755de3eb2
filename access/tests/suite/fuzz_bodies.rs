//! Runs the fuzz targets on stable Rust, with the corpus, with random bytes, and with seeds that
//! are damaged at a few places.

use std::path::Path;

use proptest::prelude::*;

use super::bodies::{ALL, CERTIFICATE, FILE, JWTS, KEYS, POLICY, SECRET};

fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![SECRET.to_vec(), FILE.as_bytes().to_vec(), FILE.repeat(2).into_bytes()];
    seeds.extend(JWTS.map(|jwt| jwt.trim_end().as_bytes().to_vec()));
    seeds.extend([KEYS.as_bytes(), POLICY.as_bytes(), CERTIFICATE].map(<[u8]>::to_vec));
    seeds
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn damaged_seeds_are_read_or_refused(
        seed in prop::sample::select(seeds()),
        damages in prop::collection::vec(
            (any::<prop::sample::Index>(), 0usize..8, prop::collection::vec(any::<u8>(), 0..4)),
            0..4,
        ),
    ) {
        let mut bytes = seed;
        for (at, removed, inserted) in damages {
            let at = at.index(bytes.len() + 1);
            let end = (at + removed).min(bytes.len());
            bytes.splice(at..end, inserted);
        }
        ALL.iter().for_each(|(_, body)| body(&bytes));
    }

    #[test]
    fn arbitrary_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        ALL.iter().for_each(|(_, body)| body(&bytes));
    }
}

#[test]
fn the_corpus_passes() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    for (name, body) in ALL {
        let files = std::fs::read_dir(corpus.join(name)).unwrap();
        let count = files.map(|file| body(&std::fs::read(file.unwrap().path()).unwrap())).count();
        assert!(count > 0, "{name} has no seed");
    }
}
