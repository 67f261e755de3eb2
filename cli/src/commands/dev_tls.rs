//! The certificates of `longshore up --tls-dev`, and a configuration for its clients.

use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::certificates::{AUTHORITY_FILES, Authority, Host, Pair, make_authority};
use crate::config::{ContextKeys, write_system};
use crate::failure::UsageError;
use crate::time::wall_ms;
use crate::tls::Tls;

/// Days of the authority, and of the certificates, which each start replaces.
const AUTHORITY_DAYS: u32 = 3_650;
const DAYS: u32 = 365;

/// The certificates of a system on one machine.
#[derive(Debug)]
pub(super) struct DevTls {
    pub(super) tls: Tls,
    authority: PathBuf,
    client: Pair,
    config: PathBuf,
}

impl DevTls {
    /// Makes an authority in this folder, unless it has one, and new certificates for the system
    /// and for its clients.
    pub(super) fn prepare(folder: &Path) -> anyhow::Result<DevTls> {
        let now = i64::try_from(wall_ms() / 1_000).unwrap_or(i64::MAX);
        let of_authority = Pair::new(folder, AUTHORITY_FILES);
        if !of_authority.certificate.exists() {
            // A crash may leave the key without its certificate: nobody trusts what it signs.
            let _ = fs::remove_file(&of_authority.key);
            let made = make_authority("Longshore development", AUTHORITY_DAYS, now)?;
            of_authority.write(&made.certificate, &made.key)?;
        }
        let authority = Authority::load(folder, now)?;
        let here = [
            Host::Dns("localhost".to_owned()),
            Host::Ip(Ipv4Addr::LOCALHOST.into()),
            Host::Ip(IpAddr::V6(Ipv6Addr::LOCALHOST)),
        ];
        let issue = |name: &str, hosts: &[Host]| {
            let pair = Pair::new(folder, name);
            for file in [&pair.certificate, &pair.key] {
                match fs::remove_file(file) {
                    Err(why) if why.kind() != ErrorKind::NotFound => {
                        return Err(why)
                            .with_context(|| format!("cannot remove {}", file.display()));
                    }
                    _ => {}
                }
            }
            let issued = authority.issue(name, hosts, &[], DAYS, now)?;
            pair.write(&issued.certificate, &issued.key)?;
            anyhow::Ok(pair)
        };
        let (system, client) = (issue("up", &here)?, issue("client", &[])?);
        let authority = of_authority.certificate;
        let tls = Tls::of_files(&authority, &system.certificate, &system.key)?;
        Ok(DevTls { tls, authority, client, config: folder.join("client.toml") })
    }

    /// Writes a configuration for clients of the replicas at `resolvers`; returns its file.
    pub(super) fn write_config(
        &self,
        resolvers: &[String],
        cluster: &str,
    ) -> anyhow::Result<&Path> {
        let text = |file: &Path| {
            let text = file.to_str().map(str::to_owned);
            text.ok_or_else(|| UsageError(format!("{} is not UTF-8", file.display())))
        };
        let keys = ContextKeys {
            top: Vec::from_iter((!cluster.is_empty()).then(|| ("cluster", cluster.to_owned()))),
            tls: vec![
                ("ca", text(&self.authority)?),
                ("certificate", text(&self.client.certificate)?),
                ("key", text(&self.client.key)?),
            ],
        };
        write_system(&self.config, resolvers, &keys).map_err(anyhow::Error::msg)?;
        Ok(&self.config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_a_crash_left_without_its_certificate_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("ca.key"), "cut off").unwrap();
        DevTls::prepare(folder.path()).unwrap();
        let made = fs::read(folder.path().join("ca.key")).unwrap();
        DevTls::prepare(folder.path()).unwrap();
        assert_eq!(fs::read(folder.path().join("ca.key")).unwrap(), made, "it has one now");
    }
}
