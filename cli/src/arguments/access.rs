//! Arguments of `longshore access`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};
use longshore::Path;
use longshore_access::{Action, Identity, IdentityTextError};

use super::file_argument;

/// The long help: what a policy looks like.
pub(super) const POLICY: &str = "Show what a policy allows, and by which rule

A policy is a TOML file for all servers, which the key access.policy of their configuration names, \
as access.tokens names the file of the tokens. What no rule allows is denied; [[deny]] beats \
[[allow]].

  [[allow]]
  who = [\"token:shop\", \"dns:*.shop.example\"]  # \"*\" is everyone with a name
  do = [\"resolve\", \"enqueue\"]                 # or \"*\"
  paths = [\"/jobs/shop/**\"]

  [publishers]  # who may register by this id: publisher status --json has it
  \"0198f2a4-c1d0-7a3e-9b5c-6d7e8f901234\" = [\"cn:berlin-1\"]

resolve is to find paths: all need it. Producers enqueue, workers work, publishers serve and \
publish. inspect is to see jobs, payload to see their contents, act to change jobs and queues; \
read and write are for live values; operate, at /sys, for servers. Clients with a token and no \
certificate need tls.client_certificates = \"optional\" at the servers.";

#[derive(Args, Debug)]
pub(crate) struct Access {
    #[command(subcommand)]
    pub(crate) action: AccessAction,
}

#[derive(Subcommand, Debug)]
pub(crate) enum AccessAction {
    /// Show whether the policy allows an action, and by which rule; exit code 1 if it does not
    Check {
        /// The client: uri:NAME, dns:NAME, cn:NAME, token:NAME, jwt:NAME, unix:UID or anonymous
        who: Who,
        /// The action, as the policy has it, like enqueue
        action: Action,
        /// The path; /sys for what concerns a server as a whole
        path: Path,
        #[command(flatten)]
        groups: GroupsArgument,
        #[command(flatten)]
        policy: PolicyArgument,
    },
    /// Show everything that the policy allows a client
    Show {
        /// The client: uri:NAME, dns:NAME, cn:NAME, token:NAME, jwt:NAME, unix:UID or anonymous
        who: Who,
        #[command(flatten)]
        groups: GroupsArgument,
        #[command(flatten)]
        policy: PolicyArgument,
    },
    /// Check that no line of an audit log was changed, removed or swapped; exit code 1 if one was
    Audit {
        /// The log's files, the oldest first
        #[arg(required = true, value_name = "FILE", value_parser = file_argument())]
        files: Vec<PathBuf>,
    },
}

#[derive(Args, Debug)]
pub(crate) struct GroupsArgument {
    /// A group that the client's JWT claims; again for each
    #[arg(long = "jwt-group", value_name = "NAME")]
    pub(crate) names: Vec<String>,
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

#[cfg(test)]
mod tests {
    use longshore_access::Policy;

    use super::*;

    #[test]
    fn the_policy_in_the_help_names_every_action_and_is_one() {
        let lines = POLICY.lines().filter(|line| line.starts_with("  ") || line.is_empty());
        let text: Vec<&str> = lines.collect();
        let policy = Policy::parse(&text.join("\n")).unwrap();
        let shop = "token:shop".parse().unwrap();
        let path = Path::new("/jobs/shop/a").unwrap();
        assert!(policy.decide(Some(&shop), Action::Enqueue, &path).is_allowed());
        for action in Action::ALL.iter().filter(|action| **action != Action::Replicate) {
            assert!(POLICY.contains(&action.to_string()), "{action}");
        }
    }
}
