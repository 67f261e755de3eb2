//! What was asked for.

use anyhow::{Context as _, ensure};

use super::work::{NetidxRegisters, Work};

pub(super) const USAGE: &str = "\
cargo xtask bench resolver [OPTION]…
  --paths N               how many paths; default 1000000
  --rounds N              how often each side does it, in turns; default 3, medians are told
  --shuffled              resolves in another order than it registers in
  --json                  one JSON object instead of a table
  --netidx-publisher      netidx registers by its whole publisher, instead of its write client";

/// Rounds that are asked for at most.
const ROUNDS_MAX: u64 = 99;
/// More would not have 30 bytes.
const PATHS_MAX: u64 = 16_000_000;

/// What was asked for.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) work: Work,
    pub(super) rounds: u64,
    pub(super) json: bool,
}

impl Asked {
    pub(super) fn parse(arguments: &[&str]) -> anyhow::Result<Asked> {
        let mut asked = Asked {
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
                let text = words.next().with_context(|| format!("{word} wants a number"))?;
                let number: u64 = text.parse().with_context(|| format!("{word} {text}"))?;
                ensure!((1..=most).contains(&number), "{word} {text}: 1 to {most} are possible");
                anyhow::Ok(number)
            };
            let work = &mut asked.work;
            match word {
                "--paths" => work.paths = number(PATHS_MAX)?,
                "--rounds" => asked.rounds = number(ROUNDS_MAX)?,
                "--shuffled" => work.shuffled = true,
                "--json" => asked.json = true,
                "--netidx-publisher" => work.netidx_registers = NetidxRegisters::ByPublisher,
                _ => anyhow::bail!("{word} is not an option"),
            }
        }
        Ok(asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_nonsense_is_refused() {
        let asked = Asked::parse(&["--paths", "10000", "--json", "--netidx-publisher"]).unwrap();
        assert_eq!((asked.work.paths, asked.rounds, asked.json), (10_000, 3, true));
        assert_eq!(asked.work.netidx_registers, NetidxRegisters::ByPublisher);
        for wrong in [&["--paths"][..], &["--paths", "0"], &["--rounds", "100"], &["--path", "1"]] {
            assert!(Asked::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
