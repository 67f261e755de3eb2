//! Arguments of the demo, and of the processes started by it.

use std::path::PathBuf;

use clap::Args;
use longshore::Glob;

#[derive(Args, Debug)]
pub(crate) struct Demo {
    /// The folder whose files are hashed [default: the dependencies in the Cargo.lock here, as
    /// cargo has unpacked them]
    pub(crate) dir: Option<PathBuf>,
    /// The file for the digests, in the format of sha256sum
    #[arg(long, value_name = "FILE", default_value = "digests.txt")]
    pub(crate) digests: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct DemoWorker {
    pub(crate) pattern: Glob,
    #[arg(long)]
    pub(crate) name: String,
    #[arg(long)]
    pub(crate) concurrency: usize,
}
