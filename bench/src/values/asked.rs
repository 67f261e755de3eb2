//! What was asked for.

use anyhow::{Context as _, ensure};

use super::work::{Commits, Work};

pub(super) const USAGE: &str = "\
cargo xtask bench values [OPTION]…
  --size BYTES            of each value, 8 (a number) or more; default: 8, then 256
  --updates N             how many go through; default: 80000000 of 8 bytes, 16000000 of others
  --seconds N             how long single updates are measured, 1000 a second; default 5
  --rounds N              how often each side does it, in turns; default 3, medians are told
  --commit N              updates that both commit at a time; default: what is best for each
  --json                  one JSON array instead of tables";

/// Rounds that are asked for at most.
const ROUNDS_MAX: u64 = 99;
const UPDATES_MAX: u64 = 10_000_000_000;
const SIZE_MAX: u64 = 64 * 1024;
const SECONDS_MAX: u64 = 600;
const COMMIT_MAX: u64 = 1_000_000;

/// What was asked for.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) works: Vec<Work>,
    pub(super) rounds: u64,
    pub(super) json: bool,
}

impl Asked {
    pub(super) fn parse(arguments: &[&str]) -> anyhow::Result<Asked> {
        let (mut sizes, mut updates, mut commits) = (vec![8, 256], None, Commits::default());
        let (mut rounds, mut seconds, mut json) = (3, 5, false);
        let mut words = arguments.iter().copied();
        while let Some(word) = words.next() {
            let mut number = |least: u64, most: u64| {
                let text = words.next().with_context(|| format!("{word} wants a number"))?;
                let number: u64 = text.parse().with_context(|| format!("{word} {text}"))?;
                let fits = (least..=most).contains(&number);
                ensure!(fits, "{word} {text}: {least} to {most} are possible");
                anyhow::Ok(number)
            };
            match word {
                "--size" => sizes = vec![number(8, SIZE_MAX)? as usize],
                "--updates" => updates = Some(number(1, UPDATES_MAX)?),
                "--seconds" => seconds = number(1, SECONDS_MAX)?,
                "--rounds" => rounds = number(1, ROUNDS_MAX)?,
                "--commit" => commits = Commits::both(number(1, COMMIT_MAX)? as usize),
                "--json" => json = true,
                _ => anyhow::bail!("{word} is not an option"),
            }
        }
        let usual = |size| if size == 8 { 80_000_000 } else { 16_000_000 };
        let work = |size| {
            let updates = updates.unwrap_or_else(|| usual(size));
            Work { size, updates, seconds, commits }
        };
        Ok(Asked { works: sizes.into_iter().map(work).collect(), rounds, json })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_nonsense_is_refused() {
        let asked = Asked::parse(&["--size", "8", "--updates", "5000", "--json"]).unwrap();
        let [work] = &asked.works[..] else { panic!("{asked:?}") };
        assert_eq!((work.size, work.updates, asked.rounds, asked.json), (8, 5_000, 3, true));
        let sizes: Vec<_> = Asked::parse(&[]).unwrap().works.iter().map(|w| w.size).collect();
        assert_eq!(sizes, [8, 256]);
        for wrong in [&["--size"][..], &["--size", "7"], &["--rounds", "100"], &["--paths", "1"]] {
            assert!(Asked::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
