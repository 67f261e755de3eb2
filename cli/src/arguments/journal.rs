//! Inspecting a publisher's data directory.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Args, Debug)]
pub(crate) struct Journal {
    #[command(subcommand)]
    pub(crate) action: JournalAction,
}

#[derive(Subcommand, Debug)]
pub(crate) enum JournalAction {
    /// Show its files by their headers: quick, also while a publisher runs on it
    Stat {
        /// A publisher's data directory
        dir: PathBuf,
    },
    /// Read everything and report damage, with what a start would do about it; exit code 1 if
    /// anything is damaged
    ///
    /// Requires that no publisher runs on the directory; writes nothing. A torn tail, the last
    /// commit before a power cut, is not damage.
    Verify {
        /// A publisher's data directory
        dir: PathBuf,
    },
    /// Print its records in order, one JSON object per line; continues after damage
    Dump {
        /// A publisher's data directory, or one of its files, also below lost/
        dir: PathBuf,
        /// The index of the first command
        #[arg(long, value_name = "INDEX", default_value_t = 0)]
        from: u64,
        /// The index of the last command
        #[arg(long, value_name = "INDEX", default_value_t = u64::MAX, hide_default_value = true)]
        to: u64,
        /// Include payloads, results, errors and checkpoints: as text, or as {"base64": …} if they
        /// are not UTF-8
        #[arg(long)]
        payloads: bool,
    },
    /// Copy it, also while a publisher runs on it; a publisher started on the copy has a new
    /// identity
    ///
    /// The copy has everything that was acknowledged before the command began. It has no leases:
    /// running jobs are ready in the copy. To restore it, start a publisher on it in place of the
    /// original, never beside it: open jobs would run twice.
    Copy {
        /// A publisher's data directory
        dir: PathBuf,
        /// The copy's directory: new or empty
        dest: PathBuf,
    },
}
