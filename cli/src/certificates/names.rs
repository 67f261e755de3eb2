//! The names of a new certificate, as the command line takes them.

use std::net::IpAddr;

use rustls::pki_types::DnsName;

use longshore_access::IDENTITY_BYTES_MAX;

/// The longest common name, in characters: the bound of X.509.
const COMMON_NAME_MAX: usize = 64;
/// The most hosts and URIs of a certificate: each link sends them all.
pub(crate) const NAMES_MAX: usize = 100;
/// The longest validity.
pub(crate) const DAYS_MAX: i64 = 36_500;
/// The name of the authority's files.
pub(crate) const AUTHORITY_FILES: &str = "ca";

/// A host that a server's certificate is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Host {
    Dns(String),
    Ip(IpAddr),
}

/// Parses a certificate's name, which also names its files.
pub(crate) fn parse_certificate_name(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    let starts_well = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !starts_well || !text.chars().all(fits) || text.len() > COMMON_NAME_MAX {
        return Err(format!(
            "it also names the files NAME.pem and NAME.key: use up to {COMMON_NAME_MAX} letters, \
             digits, '-', '_', '.' and '@', the first one a letter or a digit"
        ));
    }
    if text.eq_ignore_ascii_case(AUTHORITY_FILES) {
        return Err("ca.pem and ca.key are the authority's files; use another name".to_owned());
    }
    Ok(text.to_owned())
}

/// Parses the common name of an authority.
pub(crate) fn parse_authority_name(text: &str) -> Result<String, String> {
    let fits = |c: char| !c.is_control();
    match !text.trim().is_empty() && text.chars().all(fits) {
        true if text.chars().count() <= COMMON_NAME_MAX => Ok(text.to_owned()),
        _ => Err(format!("use 1 to {COMMON_NAME_MAX} characters, none of them a control one")),
    }
}

/// Parses a DNS name, one with `*` as its first label, or an IP address.
pub(crate) fn parse_host(text: &str) -> Result<Host, String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(Host::Ip(address));
    }
    // A certificate has no trailing dot, and clients compare without.
    let name = text.strip_suffix('.').unwrap_or(text);
    match DnsName::try_from(name.strip_prefix("*.").unwrap_or(name)) {
        Ok(_) => Ok(Host::Dns(name.to_owned())),
        Err(_) => Err("it is neither a DNS name, like worker.example.com, nor an IP address, \
                       like 10.0.0.5 or ::1; give it without a port"
            .to_owned()),
    }
}

/// Parses a URI, such as `spiffe://example.com/worker`.
pub(crate) fn parse_uri(text: &str) -> Result<String, String> {
    let is_scheme = |scheme: &str| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    };
    let parts = text.split_once(':');
    let is_uri = parts.is_some_and(|(scheme, rest)| is_scheme(scheme) && !rest.is_empty())
        && text.chars().all(|c| c.is_ascii_graphic());
    match is_uri && text.len() <= IDENTITY_BYTES_MAX {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "it is not a URI like spiffe://example.com/worker, of up to {IDENTITY_BYTES_MAX} \
             ASCII characters"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificates_name_is_a_file_name_in_its_folder() {
        for name in ["worker-1", "a", "10.0.0.5", "ann@example.com", &"x".repeat(64)] {
            assert_eq!(parse_certificate_name(name).as_deref(), Ok(name));
        }
        let long = "x".repeat(65);
        for name in ["", "a/b", "..", ".hidden", "-a", "a b", "a\0", "é", "ca", "CA", &long] {
            assert!(parse_certificate_name(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn authorities_have_names_for_people() {
        for name in ["Example's authority", "日本"] {
            assert_eq!(parse_authority_name(name).as_deref(), Ok(name));
        }
        for name in ["", "  ", "a\nb", &"x".repeat(65)] {
            assert!(parse_authority_name(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn hosts_are_dns_names_or_addresses_without_a_port() {
        let dns = |name: &str| Ok(Host::Dns(name.to_owned()));
        assert_eq!(parse_host("localhost"), dns("localhost"));
        assert_eq!(parse_host("a.example.com."), dns("a.example.com"));
        assert_eq!(parse_host("*.example.com"), dns("*.example.com"));
        assert_eq!(parse_host("::1"), Ok(Host::Ip("::1".parse().unwrap())));
        assert_eq!(parse_host("10.0.0.5"), Ok(Host::Ip("10.0.0.5".parse().unwrap())));
        let long = format!("{}.test", "x".repeat(64));
        for host in
            ["", ".", "*", "*.", "a.*.com", "a:4770", "[::1]", "10.0.0.5:1", "1.2.3", "ä.de", &long]
        {
            assert!(parse_host(host).is_err(), "{host}");
        }
    }

    #[test]
    fn uris_have_a_scheme_and_fit_an_identity() {
        let long = format!("urn:{}", "x".repeat(IDENTITY_BYTES_MAX - 4));
        for uri in ["spiffe://example.com/worker", "urn:a", &long] {
            assert_eq!(parse_uri(uri).as_deref(), Ok(uri));
        }
        let longer = format!("{long}x");
        for uri in ["", "worker", "urn:", ":a", "1a:b", "urn:a b", "urn:ä", "urn:\0", &longer] {
            assert!(parse_uri(uri).is_err(), "{uri:?}");
        }
    }
}
