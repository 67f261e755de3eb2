//! Arguments of `longshore context`.

use clap::{Args, Subcommand};

use crate::config::parse_context_name;

#[derive(Args, Debug)]
pub(crate) struct ContextCommand {
    #[command(subcommand)]
    pub(crate) action: ContextAction,
}

#[derive(Subcommand, Debug)]
pub(crate) enum ContextAction {
    /// Store a system by its name; --resolver names its replicas
    Add {
        /// The context's name
        #[arg(value_parser = parse_context_name, value_name = "NAME")]
        context: String,
        /// Replace an existing one
        #[arg(long)]
        replace: bool,
        /// Select it, too
        #[arg(long = "use")]
        select: bool,
    },
    /// Select the system of the commands that follow
    Use {
        /// The context's name
        #[arg(
            value_parser = parse_context_name,
            value_name = "NAME",
            required_unless_present = "none",
            conflicts_with = "none"
        )]
        context: Option<String>,
        /// Select none
        #[arg(long)]
        none: bool,
    },
    /// List all contexts
    Ls,
    /// Show one context
    Show {
        /// The context's name [default: the selected one]
        #[arg(value_parser = parse_context_name, value_name = "NAME")]
        context: Option<String>,
    },
    /// Remove a context
    Rm {
        /// The context's name
        #[arg(value_parser = parse_context_name, value_name = "NAME")]
        context: String,
    },
}
