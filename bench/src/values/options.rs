//! The command's options.

use anyhow::{Context as _, ensure};

use super::work::{CommitSizes, Work};

pub(super) const USAGE: &str = "\
cargo xtask bench values [OPTION]…
  --size BYTES            size of each value, 8 (a number) or more; default 8, then 256
  --updates N             number of updates, default 80000000 of 8 bytes, 16000000 of others
  --seconds N             seconds of single updates, 1000 per second; default 5
  --rounds N              rounds of each system, default 3; reports their medians
  --commit N              updates per commit of both systems, default 1000
  --json                  prints a JSON array instead of tables";

const ROUNDS_MAX: u64 = 99;
const UPDATES_MAX: u64 = 10_000_000_000;
const SIZE_MAX: u64 = 64 * 1024;
const SECONDS_MAX: u64 = 600;
const COMMIT_MAX: u64 = 1_000_000;

/// The options of the command.
#[derive(Debug)]
pub(super) struct Options {
    pub(super) works: Vec<Work>,
    pub(super) rounds: u64,
    pub(super) json: bool,
}

impl Options {
    pub(super) fn parse(arguments: &[&str]) -> anyhow::Result<Options> {
        let (mut sizes, mut updates, mut commits) = (vec![8, 256], None, CommitSizes::default());
        let (mut rounds, mut seconds, mut json) = (3, 5, false);
        let mut words = arguments.iter().copied();
        while let Some(word) = words.next() {
            let mut number = |least: u64, most: u64| {
                let text = words.next().with_context(|| format!("{word} needs a number"))?;
                let number: u64 = text.parse().with_context(|| format!("{word} {text}"))?;
                let fits = (least..=most).contains(&number);
                ensure!(fits, "{word} {text}: expected {least} to {most}");
                anyhow::Ok(number)
            };
            match word {
                "--size" => sizes = vec![number(8, SIZE_MAX)? as usize],
                "--updates" => updates = Some(number(1, UPDATES_MAX)?),
                "--seconds" => seconds = number(1, SECONDS_MAX)?,
                "--rounds" => rounds = number(1, ROUNDS_MAX)?,
                "--commit" => commits = CommitSizes::both(number(1, COMMIT_MAX)? as usize),
                "--json" => json = true,
                _ => anyhow::bail!("unknown option {word}"),
            }
        }
        let default_updates = |size| if size == 8 { 80_000_000 } else { 16_000_000 };
        let work = |size| {
            let updates = updates.unwrap_or_else(|| default_updates(size));
            Work { size, updates, seconds, commits }
        };
        Ok(Options { works: sizes.into_iter().map(work).collect(), rounds, json })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_options_parse_and_invalid_ones_are_refused() {
        let options = Options::parse(&["--size", "8", "--updates", "5000", "--json"]).unwrap();
        let [work] = &options.works[..] else { panic!("{options:?}") };
        assert_eq!((work.size, work.updates, options.rounds, options.json), (8, 5_000, 3, true));
        let sizes: Vec<_> = Options::parse(&[]).unwrap().works.iter().map(|w| w.size).collect();
        assert_eq!(sizes, [8, 256]);
        for wrong in [&["--size"][..], &["--size", "7"], &["--rounds", "100"], &["--paths", "1"]] {
            assert!(Options::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
