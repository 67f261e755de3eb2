//! Arguments of `longshore cert`.

use std::path::PathBuf;

use clap::{Args, Subcommand, value_parser};

use super::file_argument;
use crate::certificates::{
    DAYS_MAX, Host, parse_authority_name, parse_certificate_name, parse_host, parse_uri,
};

#[derive(Args, Debug)]
pub(crate) struct Cert {
    #[command(subcommand)]
    pub(crate) action: CertAction,
}

#[derive(Subcommand, Debug)]
pub(crate) enum CertAction {
    /// Make a certificate authority of your own: ca.pem and ca.key
    ///
    /// Give ca.pem to every server and client, and keep ca.key where certificates are issued:
    /// whoever has it can pass for any server or client. Overwrites nothing. It is for development
    /// and closed networks: it revokes no certificate.
    Ca {
        /// Where to write the files; made if it is missing
        #[arg(long, value_name = "DIR", default_value = ".", value_parser = file_argument())]
        dir: PathBuf,
        /// Its common name
        #[arg(
            long,
            value_name = "NAME",
            default_value = "Longshore development CA",
            value_parser = parse_authority_name
        )]
        name: String,
        /// How many days it is valid
        #[arg(
            long,
            value_name = "DAYS",
            default_value_t = 3650,
            value_parser = value_parser!(u32).range(1..=DAYS_MAX)
        )]
        days: u32,
    },
    /// Issue a certificate for a server, a client, or a process that is both: NAME.pem and NAME.key
    ///
    /// A server needs a --host for each name or address that clients dial. A client's identity is
    /// the first --uri, else the first --host that is a DNS name, else NAME; the command prints it.
    /// Overwrites nothing without --replace.
    Issue(IssueCertificate),
    /// Show certificates with their names, identity and validity, and whether their key fits
    ///
    /// The key is the one in the file, or that of NAME.key beside NAME.pem. Key material is never
    /// printed.
    Show {
        /// PEM files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

#[derive(Args, Debug)]
pub(crate) struct IssueCertificate {
    /// Its common name, and the name of its files
    #[arg(value_name = "NAME", value_parser = parse_certificate_name)]
    pub(crate) name: String,
    /// A DNS name or an IP address of the server, as clients dial it; may be repeated
    #[arg(long = "host", value_name = "HOST", value_parser = parse_host)]
    pub(crate) hosts: Vec<Host>,
    /// A URI that names the client, like spiffe://example.com/worker; may be repeated
    #[arg(long = "uri", value_name = "URI", value_parser = parse_uri)]
    pub(crate) uris: Vec<String>,
    /// How many days it is valid; it ends with its authority at the latest
    #[arg(
        long,
        value_name = "DAYS",
        default_value_t = 365,
        value_parser = value_parser!(u32).range(1..=DAYS_MAX)
    )]
    pub(crate) days: u32,
    /// The folder of ca.pem and ca.key
    #[arg(long, value_name = "DIR", default_value = ".", value_parser = file_argument())]
    pub(crate) dir: PathBuf,
    /// Where to write NAME.pem and NAME.key; made if it is missing [default: that of the authority]
    #[arg(long, value_name = "DIR", value_parser = file_argument())]
    pub(crate) out: Option<PathBuf>,
    /// Replace NAME.pem and NAME.key; they keep their owner, group and mode
    #[arg(long)]
    pub(crate) replace: bool,
}
