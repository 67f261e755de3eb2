//! Commands about homes.

use clap::{Args, Subcommand};

#[derive(Args, Debug)]
pub(crate) struct Home {
    #[command(subcommand)]
    pub(crate) action: HomeAction,
}

#[derive(Subcommand, Debug)]
pub(crate) enum HomeAction {
    /// List the declared homes, the publishers that declare them, and those that do not
    Ls,
}
