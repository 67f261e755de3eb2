//! Arguments of `longshore access`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};
use longshore::Path;
use longshore_access::{Action, Identity, IdentityTextError};

use super::file_argument;

#[derive(Args, Debug)]
pub(crate) struct Access {
    #[command(subcommand)]
    pub(crate) action: AccessAction,
}

#[derive(Subcommand, Debug)]
pub(crate) enum AccessAction {
    /// Show whether the policy allows an action, and by which rule; exit code 1 if it does not
    Check {
        /// The client: uri:NAME, dns:NAME, cn:NAME, token:NAME or anonymous
        who: Who,
        /// The action, as the policy has it, like enqueue
        action: Action,
        /// The path; /sys for what concerns a server as a whole
        path: Path,
        #[command(flatten)]
        policy: PolicyArgument,
    },
    /// Show everything that the policy allows a client
    Show {
        /// The client: uri:NAME, dns:NAME, cn:NAME, token:NAME or anonymous
        who: Who,
        #[command(flatten)]
        policy: PolicyArgument,
    },
}

#[derive(Args, Debug)]
pub(crate) struct PolicyArgument {
    /// The policy [default: access.policy of the configuration]
    #[arg(long = "policy", value_name = "FILE", value_parser = file_argument())]
    pub(crate) file: Option<PathBuf>,
}

/// A client, or one without an identity.
#[derive(Clone, Debug)]
pub(crate) struct Who(pub(crate) Option<Identity>);

impl FromStr for Who {
    type Err = IdentityTextError;

    fn from_str(text: &str) -> Result<Who, IdentityTextError> {
        match text {
            "anonymous" => Ok(Who(None)),
            text => text.parse().map(|who| Who(Some(who))),
        }
    }
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Some(who) => write!(f, "{who}"),
            None => f.write_str("anonymous"),
        }
    }
}
