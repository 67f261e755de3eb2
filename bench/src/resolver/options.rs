//! The command's options.

use anyhow::{Context as _, ensure};

use super::work::{NetidxRegisters, Work};

pub(super) const USAGE: &str = "\
cargo xtask bench resolver [OPTION]…
  --paths N               number of paths, default 1000000
  --rounds N              rounds of each system, default 3; reports their medians
  --shuffled              resolves in a different order than it registers
  --json                  prints a JSON object instead of a table
  --netidx-publisher      netidx registers with its publisher instead of its write client";

/// The maximum number of rounds.
const ROUNDS_MAX: u64 = 99;
/// The maximum number of paths. More would not have 30 bytes each.
const PATHS_MAX: u64 = 16_000_000;

/// The options of the command.
#[derive(Debug)]
pub(super) struct Options {
    pub(super) work: Work,
    pub(super) rounds: u64,
    pub(super) json: bool,
}

impl Options {
    pub(super) fn parse(arguments: &[&str]) -> anyhow::Result<Options> {
        let mut options = Options {
            work: Work {
                paths: 1_000_000,
                shuffled: false,
                netidx_registers: NetidxRegisters::ByResolverWrite,
            },
            rounds: 3,
            json: false,
        };
        let mut words = arguments.iter().copied();
        while let Some(word) = words.next() {
            let mut number = |most: u64| {
                let text = words.next().with_context(|| format!("{word} needs a number"))?;
                let number: u64 = text.parse().with_context(|| format!("{word} {text}"))?;
                ensure!((1..=most).contains(&number), "{word} {text}: expected 1 to {most}");
                anyhow::Ok(number)
            };
            let work = &mut options.work;
            match word {
                "--paths" => work.paths = number(PATHS_MAX)?,
                "--rounds" => options.rounds = number(ROUNDS_MAX)?,
                "--shuffled" => work.shuffled = true,
                "--json" => options.json = true,
                "--netidx-publisher" => work.netidx_registers = NetidxRegisters::ByPublisher,
                _ => anyhow::bail!("unknown option {word}"),
            }
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_options_parse_and_invalid_ones_are_refused() {
        let options =
            Options::parse(&["--paths", "10000", "--json", "--netidx-publisher"]).unwrap();
        assert_eq!((options.work.paths, options.rounds, options.json), (10_000, 3, true));
        assert_eq!(options.work.netidx_registers, NetidxRegisters::ByPublisher);
        for wrong in [&["--paths"][..], &["--paths", "0"], &["--rounds", "100"], &["--path", "1"]] {
            assert!(Options::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
