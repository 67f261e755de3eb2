//! Looking at a publisher's data directory.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Args, Debug)]
pub(crate) struct Journal {
    #[command(subcommand)]
    pub(crate) action: JournalAction,
}

#[derive(Subcommand, Debug)]
pub(crate) enum JournalAction {
    /// What its files say of themselves: quick, and also while a publisher runs on it
    Stat {
        /// A publisher's data directory
        dir: PathBuf,
    },
    /// Read everything in it, and say what a start would make of what is not as it was written;
    /// exit code 1 if anything is damaged
    ///
    /// No publisher may run on it; writes nothing. A torn tail, the last commit before a power cut,
    /// is no damage.
    Verify {
        /// A publisher's data directory
        dir: PathBuf,
    },
    /// Its records in order, one JSON object per line; goes on behind damage
    Dump {
        /// A publisher's data directory, or one file of it; also one below lost/
        dir: PathBuf,
        /// The first command
        #[arg(long, value_name = "INDEX", default_value_t = 0)]
        from: u64,
        /// The last command
        #[arg(long, value_name = "INDEX", default_value_t = u64::MAX, hide_default_value = true)]
        to: u64,
        /// With the jobs' payloads, results, errors and checkpoints: as text, or as {"base16": …}
        /// where they are none
        #[arg(long)]
        payloads: bool,
    },
    /// Copy it, also while a publisher runs on it; a publisher that is started on the copy is
    /// another one
    ///
    /// Everything that was acknowledged before the command began is in the copy. Leases are not:
    /// what runs there is ready here.
    Copy {
        /// A publisher's data directory
        dir: PathBuf,
        /// Where the copy goes: a new directory, or an empty one
        dest: PathBuf,
    },
}
