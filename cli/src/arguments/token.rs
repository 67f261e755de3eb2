//! Arguments of `longshore token`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{DryRun, file_argument};
use crate::time::{parse_deadline, parse_timestamp};

#[derive(Args, Debug)]
pub(crate) struct Token {
    #[command(subcommand)]
    pub(crate) action: TokenAction,
}

#[derive(Subcommand, Debug)]
pub(crate) enum TokenAction {
    /// Create a token and print its secret, which is stored nowhere
    ///
    /// A client that has the secret is token:NAME to servers. Give it the secret in a file that
    /// --token-file names, or in $LONGSHORE_TOKEN. Standard output has the secret alone. Servers
    /// that use the file accept it within a second; all need the same file.
    Create {
        /// The token's name: the identity of its clients
        name: String,
        /// From when on it is refused: a duration from now, like 90d, a date or a time [default:
        /// never]
        #[arg(long, value_name = "DURATION or DATE", value_parser = parse_expiry)]
        expires: Option<u64>,
        /// Give an existing token a new secret: the old one ends at once, and clients that read the
        /// new one from their file go on as the same identity, with their leases
        #[arg(long)]
        replace: bool,
        #[command(flatten)]
        file: TokenFileArgument,
    },
    /// List tokens; their secrets are not known
    Ls {
        #[command(flatten)]
        file: TokenFileArgument,
    },
    /// Revoke tokens: servers that use the file refuse them within a second, and end their links
    Revoke {
        /// Names of tokens
        #[arg(required = true, value_name = "NAME")]
        tokens: Vec<String>,
        #[command(flatten)]
        file: TokenFileArgument,
        #[command(flatten)]
        act: DryRun,
    },
}

#[derive(Args, Debug)]
pub(crate) struct TokenFileArgument {
    /// The token file of the servers [default: access.tokens of the configuration]
    #[arg(long = "file", value_name = "FILE", value_parser = file_argument())]
    pub(crate) path: Option<PathBuf>,
}

/// Parses a duration from now, a time, or a date, which means its beginning in UTC.
fn parse_expiry(text: &str) -> Result<u64, String> {
    parse_deadline(text)
        .or_else(|_| parse_timestamp(&format!("{}T00:00:00Z", text.trim())))
        .map_err(|_| {
            format!(
                "'{text}' is neither a duration, like 90d, nor a date, like 2027-01-31, nor a \
                 time, like 2027-01-31T12:00:00Z"
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::wall_ms;

    #[test]
    fn a_token_expires_after_a_duration_or_at_a_date_or_time() {
        let soon = parse_expiry("90d").unwrap() - wall_ms();
        assert!((7_775_990_000..=7_776_000_000).contains(&soon), "{soon}");
        assert_eq!(parse_expiry("2026-11-25T01:40:00Z"), Ok(1_795_570_800_000));
        assert_eq!(parse_expiry("2026-11-25"), Ok(1_795_564_800_000));
        for text in ["", "tomorrow", "2026-11", "2026-02-30", "1995-13-01T00:00:00Z"] {
            assert!(parse_expiry(text).unwrap_err().contains("2027-01-31"), "{text}");
        }
    }
}
